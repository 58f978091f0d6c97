"""The JSON documents among the options: memory pools, communication resources, and what the hixl engine is told.

Formats and limits are LLM-DataDist's. A field that nobody reads gets a warning with what it may have meant.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from cachefw.compat.llm_datadist.status import invalid
from cachefw.compat.llm_datadist.utils.utils import near

__all__ = ["CommRes", "PoolConfig", "ResourceConfig", "comm_res", "comm_res_file", "pool_config", "resource_config"]

_PROTOCOLS = ("roce", "ub_ctp", "uboe", "ub_rtp")
_DESCRIPTIONS = (
    "roce:device",
    "hccs:device",
    "ub_ctp:device",
    "ub_ctp:host",
    "uboe:device",
    "ub_rtp:device",
    "roce:host",
)


@attrs.frozen
class PoolConfig:
    """How large a memory pool is, and its pages."""

    memory_size: int
    page_shift: int

    @property
    def pages(self) -> int:
        """Whole pages in it."""
        return self.memory_size >> self.page_shift


@attrs.frozen
class CommRes:
    """Communication resources: the version of the format, and the protocols it names (only 1.3 does)."""

    version: str
    protocols: tuple[str, ...] = ()


def load(name: str, text: str) -> dict[str, Any]:
    """The JSON object in an option.

    Raises:
        LLMException: It is none.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise invalid(f"{name} is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise invalid(f"{name} must be a JSON object, not {text[:80]!r}")
    return document


def unread(where: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Warn of fields that nobody reads."""
    for name in given:
        if name not in known:
            warnings.warn(f"{where} has no field {name!r}, nothing reads it{near(name, known)}", stacklevel=2)


def _unsigned(where: str, name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise invalid(f"{where}: {name} must be a number within {low} ... {high}, not {value!r}")
    return value


def pool_config(name: str, text: str) -> PoolConfig:
    """A pool's configuration.

    Raises:
        LLMException: The document cannot be right.
    """
    document = load(name, text)
    unread(name, document, ("memory_size", "page_shift"))
    if "memory_size" not in document:
        raise invalid(f"{name} needs memory_size, the bytes of the pool")
    size = _unsigned(name, "memory_size", document["memory_size"], 0, 2**64 - 1)
    shift = _unsigned(name, "page_shift", document.get("page_shift", 16), 10, 30)
    pool = PoolConfig(size, shift)
    if not 0 < pool.pages < 2**32 - 1:
        raise invalid(f"{name}: {size:,} bytes make {pool.pages:,} pages of {1 << shift:,}; 1 to 2^32 - 2 are possible")
    return pool


def comm_res(text: str) -> CommRes | None:
    """The communication resources in ``local_comm_res``; None for "", which lets the engine find them.

    Raises:
        LLMException: The document cannot be right.
    """
    name = "local_comm_res"
    if len(text.encode()) > 64 * 1024:
        raise invalid(f"{name} has {len(text.encode()):,} bytes; at most 65,536 are possible")
    if not text:
        return None
    document = load(name, text)
    version = document.get("version")
    if version == "1.3":
        return _endpoints(name, document)
    if version not in ("1.0", "1.2"):
        raise invalid(f"{name}: version must be '1.0', '1.2' or '1.3', not {version!r}")
    unread(name, document, ("server_list", "server_count", "status", "version", "super_pod_list"))
    _servers(name, document, version)
    return CommRes(version)


def _servers(name: str, document: dict[str, Any], version: str) -> None:
    servers = _objects(name, "server_list", document.get("server_list"))
    for server in servers:
        unread(f"{name}.server_list", server, ("device", "server_id", "host_ip", "host_nic_ip"))
        if not isinstance(server.get("server_id"), str):
            raise invalid(f"{name}: every server needs a server_id, a text, not {server.get('server_id')!r}")
        devices = _objects(name, "device", server.get("device"))
        if len(devices) != 1:
            raise invalid(f"{name}: server {server['server_id']!r} has {len(devices)} devices; exactly one is possible")
        known = ("device_id", "device_ip", "device_port", "super_device_id", "rank_id")
        unread(f"{name}.device", devices[0], known)
        needed = ("device_id", "super_device_id") if version == "1.2" else ("device_id",)
        for field in needed:
            if field not in devices[0]:
                raise invalid(f"{name}: a device of version {version} needs {field}")
        for field in known:
            if not isinstance(devices[0].get(field, ""), str):
                raise invalid(f"{name}: {field} must be a text, not {devices[0][field]!r}")
    if version == "1.2" and "super_pod_list" in document:
        for pod in _objects(name, "super_pod_list", document["super_pod_list"]):
            unread(f"{name}.super_pod_list", pod, ("super_pod_id", "server_list"))


def _objects(name: str, field: str, value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(each, dict) for each in value):
        raise invalid(f"{name}: {field} must be a list of objects, at least one, not {value!r}")
    return value


def _endpoints(name: str, document: dict[str, Any]) -> CommRes:
    unread(name, document, ("version", "net_instance_id", "endpoint_list"))
    if "endpoint_list" not in document:
        return CommRes("1.3")
    protocols = []
    for endpoint in _objects(name, "endpoint_list", document["endpoint_list"]):
        known = ("protocol", "comm_id", "placement", "plane", "dst_eid", "server_id")
        unread(f"{name}.endpoint_list", endpoint, known)
        protocol, placement = endpoint.get("protocol"), endpoint.get("placement")
        if protocol not in _PROTOCOLS:
            hint = near(protocol, _PROTOCOLS) if isinstance(protocol, str) else ""
            raise invalid(f"{name}: protocol must be one of {', '.join(_PROTOCOLS)}, not {protocol!r}{hint}")
        if placement not in ("host", "device"):
            raise invalid(f"{name}: placement must be 'host' or 'device', not {placement!r}")
        protocols.append(f"{protocol}:{placement}")
    return CommRes("1.3", tuple(protocols))


def _fraction(where: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise invalid(f"{where}: {name} must be a fraction within 0 ... 1, not {value!r}")


def _number(low: int, high: int) -> Callable[[str, str, Any], None]:
    def check(where: str, name: str, value: Any) -> None:
        number = int(value) if isinstance(value, str) and value.isdigit() else value
        _unsigned(where, name, number, low, high)

    return check


def _anything(where: str, name: str, value: Any) -> None:
    """Passed on to the vendor's library where there is one."""


def _text(where: str, name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise invalid(f"{where}: {name} must be a text, not {value!r}")


def _protocol(where: str, name: str, value: Any) -> None:
    for each in value if isinstance(value, list) else [value]:
        if each not in _DESCRIPTIONS:
            hint = near(each, _DESCRIPTIONS) if isinstance(each, str) else ""
            raise invalid(f"{where}: {name} must be of {', '.join(_DESCRIPTIONS)}, not {each!r}{hint}")


_COMM = "comm_resource_config"
_RESOURCE_FIELDS: dict[str, Callable[[str, str, Any], None]] = {
    f"{_COMM}.protocol_desc": _protocol,
    f"{_COMM}.listen_port": _number(1, 65535),
    f"{_COMM}.qos": _number(0, 7),
    f"{_COMM}.max_active_channels": _number(1, 2**32 - 1),
    "local_comm_res_path": _text,
    "connect_pool.thread_num": _number(1, 64),
    "connect_pool.task_queue_capacity": _number(1, 65535),
    "channel_pool.max_channel": _number(1, 512),
    "channel_pool.high_waterline": _fraction,
    "channel_pool.low_waterline": _fraction,
    "fabric_memory.max_capacity": _number(1, 2**32 - 1),
    "fabric_memory.start_address": _number(1, 2**32 - 1),
    "fabric_memory.task_stream_num": _number(1, 8),
    "fabric_memory.enable_aicpu_unfold": _anything,
}


@attrs.frozen
class ResourceConfig:
    """What of ``global_resource_config`` counts here: protocols, best first, and a file of communication resources."""

    protocols: tuple[str, ...] = ()
    comm_res_path: str = ""


def resource_config(text: str) -> ResourceConfig:
    """What ``global_resource_config`` asks for.

    Raises:
        LLMException: The document cannot be right.
    """
    name = "global_resource_config"
    document = load(name, text)
    unread(name, document, tuple(_RESOURCE_FIELDS))
    for field, value in document.items():
        if field in _RESOURCE_FIELDS:
            _RESOURCE_FIELDS[field](name, field, value)
    if ("channel_pool.high_waterline" in document) != ("channel_pool.low_waterline" in document):
        raise invalid(f"{name}: channel_pool.high_waterline and low_waterline go together; give both")
    wanted = document.get(f"{_COMM}.protocol_desc", [])
    protocols = tuple(wanted if isinstance(wanted, list) else [wanted])
    return ResourceConfig(protocols, document.get("local_comm_res_path", ""))


def comm_res_file(path: str) -> str:
    """The communication resources in a file of 1 byte to 1 MiB.

    Raises:
        LLMException: There is no such file, or it cannot be right.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(2**20 + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise invalid(f"local_comm_res_path {path!r} cannot be read: {error}") from None
    if not 1 <= len(text) <= 2**20:
        raise invalid(f"local_comm_res_path {path!r} must have 1 byte to 1 MiB")
    return text
