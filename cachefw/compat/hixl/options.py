"""The options of ``Hixl.initialize``: checked whole, and what they mean here."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import msgspec

from cachefw.compat.hixl import values
from cachefw.compat.protocols import OPTION, near
from cachefw.errors import RequestError, refusal

__all__ = ["Options", "read"]

_log = logging.getLogger("cachefw.compat")

_JSON_LIMIT = 64 * 1024
_PROTOCOL = "comm_resource_config.protocol_desc"
_THREADS = "connect_pool.thread_num"
_CAPACITY = "connect_pool.task_queue_capacity"
#: Fields of the resource configuration that HIXL knows. Those without a check size engines that are not used here.
_FIELDS: dict[str, range | None] = {
    _PROTOCOL: None,
    "comm_resource_config.listen_port": range(1, 65536),
    "comm_resource_config.qos": range(8),
    "comm_resource_config.max_active_channels": None,
    "local_comm_res_path": None,
    _THREADS: range(1, 65),
    _CAPACITY: range(1, 65536),
    "channel_pool.max_channel": range(1, 513),
    "channel_pool.high_waterline": None,
    "channel_pool.low_waterline": None,
    "fabric_memory.max_capacity": None,
    "fabric_memory.start_address": None,
    "fabric_memory.task_stream_num": range(1, 9),
    "fabric_memory.enable_aicpu_unfold": None,
}
_HEEDED = (_PROTOCOL, _THREADS, _CAPACITY)


@attrs.frozen
class Options:
    """What is left of the options once they are checked.

    Attributes:
        auto_connect: A transfer to an engine that is not connected connects first.
        protocols: What the options ask for, e.g. ``roce:device``.
        transports: The value of our own option, or None.
        connect_threads: Threads for asynchronous connects.
        connect_capacity: How many may wait.
    """

    auto_connect: bool = False
    protocols: tuple[str, ...] = ()
    transports: str | None = None
    connect_threads: int = 2
    connect_capacity: int = 128


def _bad(text: str, builtin: type[Exception] = ValueError) -> Exception:
    return refusal(RequestError, {builtin}, text, operation="initialize")


def read(options: Any) -> Options:
    """Check options.

    Raises:
        RequestError: Also a `TypeError` when it is no dict of str to str, else a `ValueError` that names every fault.
    """
    if not isinstance(options, dict):
        raise _bad(f"options must be a dict of str to str, not {type(options).__name__}", TypeError)
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise _bad(f"options must be a dict of str to str; found {key!r}: {value!r}", TypeError)
    known = {**_CHECKS, values.OPTION_GLOBAL_RESOURCE_CONFIG: None, values.OPTION_LOCAL_COMM_RES: None, OPTION: None}
    wrong = [f"there is no option {key!r}{near(key, known)}" for key in options if key not in known]
    for key, check in _CHECKS.items():
        if key in options and not check(options[key]):
            wrong.append(f"{key}={options[key]!r} is not {_WANTED[key]}")
    resources = _object(options, values.OPTION_GLOBAL_RESOURCE_CONFIG, wrong)
    protocols = _resource_protocols(resources, wrong)
    endpoints = _endpoint_protocols(_object(options, values.OPTION_LOCAL_COMM_RES, wrong), wrong)
    if wrong:
        raise _bad("; ".join(wrong))
    _say_what_is_unused(options, resources)
    return Options(
        auto_connect=options.get(values.OPTION_AUTO_CONNECT, "0") == "1",
        protocols=protocols or endpoints,
        transports=options.get(OPTION),
        connect_threads=resources.get(_THREADS, 2),
        connect_capacity=resources.get(_CAPACITY, 128),
    )


def _flag(value: str) -> bool:
    return value in ("0", "1")


def _pool(value: str) -> bool:
    return re.fullmatch(r"\d{1,9}:\d{1,9}", value) is not None


def _traffic_class(value: str) -> bool:
    return value.isascii() and value.isdigit() and int(value) in range(0, 256, 4)


def _service_level(value: str) -> bool:
    return value.isascii() and value.isdigit() and int(value) < 8


_CHECKS: dict[str, Callable[[str], bool]] = {
    values.OPTION_AUTO_CONNECT: _flag,
    values.OPTION_ENABLE_USE_FABRIC_MEM: _flag,
    values.OPTION_BUFFER_POOL: _pool,
    values.OPTION_RDMA_TRAFFIC_CLASS: _traffic_class,
    values.OPTION_RDMA_SERVICE_LEVEL: _service_level,
}
_WANTED = {
    values.OPTION_AUTO_CONNECT: "'0' or '1'",
    values.OPTION_ENABLE_USE_FABRIC_MEM: "'0' or '1'",
    values.OPTION_BUFFER_POOL: "'count:MiB', like '4:8'",
    values.OPTION_RDMA_TRAFFIC_CLASS: "a multiple of 4 from 0 to 252",
    values.OPTION_RDMA_SERVICE_LEVEL: "a number from 0 to 7",
}


def _object(options: Mapping[str, str], key: str, wrong: list[str]) -> dict[str, Any]:
    """A JSON object among the options; {} when it is absent, empty or wrong."""
    text = options.get(key, "")
    if not text:
        return {}
    if len(text) > _JSON_LIMIT:
        wrong.append(f"{key} has {len(text):,} characters; at most {_JSON_LIMIT:,}")
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        wrong.append(f"{key} is no JSON object: {error}")
        return {}


def _resource_protocols(resources: Mapping[str, Any], wrong: list[str]) -> tuple[str, ...]:
    where = values.OPTION_GLOBAL_RESOURCE_CONFIG
    for field, value in resources.items():
        allowed = _FIELDS.get(field)
        if field not in _FIELDS:
            _log.warning("hixl: %s has no field %r%s; it is passed over", where, field, near(field, _FIELDS))
        elif allowed is not None and (type(value) is not int or value not in allowed):
            wrong.append(f"{where}: {field} must be {allowed.start} to {allowed.stop - 1}, not {value!r}")
    asked = resources.get(_PROTOCOL, [])
    protocols = [asked] if isinstance(asked, str) else asked
    shaped = isinstance(protocols, list) and all(isinstance(name, str) for name in protocols)
    for name in protocols if shaped else ():
        if name not in _PROTOCOLS:
            wrong.append(f"{where}: {_PROTOCOL} {name!r} is unknown{near(name, _PROTOCOLS)}")
    if not shaped:
        wrong.append(f"{where}: {_PROTOCOL} must be a string or a list of strings, not {asked!r}")
        return ()
    return tuple(protocols)


_PROTOCOLS = ("roce:device", "hccs:device", "ub_ctp:device", "ub_ctp:host", "uboe:device", "ub_rtp:device", "roce:host")


def _endpoint_protocols(resource: Mapping[str, Any], wrong: list[str]) -> tuple[str, ...]:
    """The protocols of a communication resource of version 1.3; the older versions mean the communicators' own."""
    where = values.OPTION_LOCAL_COMM_RES
    if not resource:
        return ()
    version = resource.get("version")
    if version not in ("1.0", "1.2", "1.3"):
        wrong.append(f"{where}: version must be '1.0', '1.2' or '1.3', not {version!r}")
        return ()
    endpoints = resource.get("endpoint_list", []) if version == "1.3" else []
    if not isinstance(endpoints, list) or not all(isinstance(endpoint, dict) for endpoint in endpoints):
        wrong.append(f"{where}: endpoint_list must be a list of objects")
        return ()
    found = []
    for index, endpoint in enumerate(endpoints):
        protocol = f"{endpoint.get('protocol')}:{endpoint.get('placement', 'device')}"
        if protocol not in _PROTOCOLS:
            wrong.append(f"{where}: endpoint_list[{index}] has the unknown protocol and placement {protocol!r}")
        found.append(protocol)
    return tuple(dict.fromkeys(found))


def _say_what_is_unused(options: Mapping[str, str], resources: Mapping[str, Any]) -> None:
    heeded = {values.OPTION_AUTO_CONNECT, values.OPTION_GLOBAL_RESOURCE_CONFIG, values.OPTION_LOCAL_COMM_RES, OPTION}
    unused = [key for key in options if key not in heeded and options[key] not in ("0", "0:0")]
    unused += [field for field in resources if field in _FIELDS and field not in _HEEDED]
    if unused:
        _log.warning("hixl: without effect here: %s", ", ".join(unused))
