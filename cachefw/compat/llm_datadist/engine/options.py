"""From a dict of texts to what the engine runs by."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from typing import Any

import attrs

from cachefw.compat.llm_datadist.engine.resources import (
    CommRes,
    PoolConfig,
    ResourceConfig,
    comm_res,
    comm_res_file,
    load,
    pool_config,
    resource_config,
)
from cachefw.compat.llm_datadist.status import LLMException, invalid, wrong_type
from cachefw.compat.llm_datadist.utils.utils import near
from cachefw.compat.protocols import OPTION

__all__ = ["TRANSPORTS", "EngineOptions", "parse"]

#: Our own options: names of transports, best first, separated by commas; and their settings as JSON, by name.
TRANSPORTS = OPTION
SETTINGS = "cachefw.settings"

_KNOWN = (
    TRANSPORTS,
    SETTINGS,
    "ge.exec.deviceId",
    "ge.session_device_id",
    "ge.flowGraphMemMaxSize",
    "llm.BufPoolCfg",
    "llm.ClusterInfo",
    "llm.EnableCacheManager",
    "llm.EnableRemoteCacheAccessible",
    "llm.EnableSwitchRole",
    "llm.GlobalResourceConfig",
    "llm.HostMemPoolConfig",
    "llm.LinkRetryCount",
    "llm.LinkTotalTime",
    "llm.ListenIp",
    "llm.ListenPort",
    "llm.LocalCommRes",
    "llm.MemPoolConfig",
    "llm.MemoryUtilization",
    "llm.OutputMaxSize",
    "llm.RdmaServiceLevel",
    "llm.RdmaTrafficClass",
    "llm.Role",
    "llm.SyncKvCacheWaitTime",
    "llm.TransferBackend",
    "llm.deployResPath",
    "llm.listenIpInfo",
)


@attrs.frozen
class EngineOptions:
    """What the engine runs by.

    Attributes:
        device_id: Number of the device.
        get_mode: Whether caches are read and written one-sided.
        hixl: Whether links are those of the hixl engine.
        listen: ``"ip:port"`` to take links on, or None.
        timeout: Seconds that a pull or push may take.
        link_total_time: Seconds that a rank-table link may take.
        link_retry_count: Attempts to reach a peer.
        device_pool, host_pool: Pools to allocate from, or None.
        comm_res: Own communication resources, None where they are to be found.
        comm_res_error: What is wrong with them, for the engine that says so when it links.
        protocols: The protocols that were asked for, best first.
        transports: Transports that were asked for by name, or None.
        settings: The transports' own settings.
    """

    device_id: int = 0
    get_mode: bool = False
    hixl: bool = False
    listen: str | None = None
    timeout: float = 1.0
    link_total_time: float = 120.0
    link_retry_count: int = 1
    device_pool: PoolConfig | None = None
    host_pool: PoolConfig | None = None
    comm_res: CommRes | None = None
    comm_res_error: LLMException | None = None
    protocols: tuple[str, ...] = ()
    transports: tuple[str, ...] | None = None
    settings: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)


def parse(options: Mapping[str, str]) -> EngineOptions:
    """Read the options.

    Raises:
        TypeError: A value is no text.
        LLMException: A value cannot be right.
    """
    for name, value in options.items():
        if not isinstance(value, str):
            raise wrong_type(f"option {name} must be a str, not {value!r} ({type(value).__name__})")
    _name_unknown(options)
    backend = options.get("llm.TransferBackend")
    if backend not in (None, "hixl"):
        raise invalid(f"llm.TransferBackend must be 'hixl', not {backend!r}{near(backend or '', ['hixl'])}")
    hixl = backend is not None
    pools = {
        name: pool_config(key, options[key]) if options.get(key) else None
        for name, key in (("device_pool", "llm.MemPoolConfig"), ("host_pool", "llm.HostMemPoolConfig"))
    }
    for key in ("llm.RdmaTrafficClass", "llm.RdmaServiceLevel"):
        _number(options, key, 0, 0, 2**32 - 1)
    total = _number(options, "llm.LinkTotalTime", 0, 0, 2**32 - 1) or _connect_timeout()
    config = resource_config(options["llm.GlobalResourceConfig"]) if hixl and _config(options) else ResourceConfig()
    resources, problem = _resources(options, hixl, config.comm_res_path)
    protocols = config.protocols or (resources.protocols if resources is not None else ())
    return EngineOptions(
        device_id=_device(options),
        get_mode=_flag(options, "llm.EnableRemoteCacheAccessible"),
        hixl=hixl,
        listen=options.get("llm.listenIpInfo") or None,
        timeout=_number(options, "llm.SyncKvCacheWaitTime", 1000, 1, 2**31 - 1) / 1000,
        link_total_time=float(total),
        link_retry_count=_number(options, "llm.LinkRetryCount", 1, 1, 100),
        comm_res=resources,
        comm_res_error=problem,
        protocols=protocols,
        transports=_transports(options),
        settings=_settings(options),
        **pools,
    )


def _name_unknown(options: Mapping[str, str]) -> None:
    for name in options:
        if name in _KNOWN:
            continue
        hint = near(name, _KNOWN)
        if name.startswith("cachefw."):
            raise invalid(f"there is no option {name!r}{hint}")
        # The graph engine has many options of its own, which mean nothing here.
        if hint or not name.startswith("ge."):
            warnings.warn(f"there is no option {name!r}, nothing reads it{hint}", stacklevel=2)


def _number(options: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise invalid(f"option {name} must be a number within {low} ... {high}, not {text!r}")
    return int(text)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "0")
    if text not in ("0", "1"):
        raise invalid(f"option {name} must be '0' or '1', not {text!r}")
    return text == "1"


def _device(options: Mapping[str, str]) -> int:
    text = options.get("ge.exec.deviceId")
    if text is not None and ";" in text:
        raise invalid(f"option ge.exec.deviceId names several devices, {text!r}; a process has one")
    return _number(options, "ge.exec.deviceId", 0, 0, 2**31 - 1)


def _connect_timeout() -> int:
    text = os.environ.get("HCCL_CONNECT_TIMEOUT", "")
    return int(text) if text.isdigit() and int(text) > 0 else 120


def _config(options: Mapping[str, str]) -> str:
    return options.get("llm.GlobalResourceConfig", "")


def _resources(options: Mapping[str, str], hixl: bool, path: str) -> tuple[CommRes | None, LLMException | None]:
    """The engine over communicators says only when it links what is wrong with its resources."""
    try:
        text = options.get("llm.LocalCommRes", "")
        resources = comm_res(comm_res_file(path) if path and not text else text)
        if resources is not None and resources.version == "1.3" and not hixl:
            raise invalid("local_comm_res of version 1.3 needs llm.TransferBackend = 'hixl'")
    except LLMException as error:
        if hixl:
            raise
        return None, error
    return resources, None


def _transports(options: Mapping[str, str]) -> tuple[str, ...] | None:
    text = options.get(TRANSPORTS)
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise invalid(f"option {TRANSPORTS} names no transport; give names separated by commas")
    return names


def _settings(options: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    if SETTINGS not in options:
        return {}
    document = load(SETTINGS, options[SETTINGS])
    for name, value in document.items():
        if not isinstance(value, dict):
            raise invalid(f"option {SETTINGS}: {name} must be an object, not {json.dumps(value)}")
    return document
