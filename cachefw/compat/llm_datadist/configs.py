"""Roles, the addresses of a peer, and the options of an instance as properties."""

from __future__ import annotations

import enum
import ipaddress
import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from cachefw.compat.llm_datadist.status import invalid, of_none
from cachefw.compat.llm_datadist.utils.utils import (
    check_int32,
    check_isinstance,
    check_uint16,
    check_uint32,
    check_uint64,
    near,
    require,
    wrong,
)
from cachefw.errors import RequestError

__all__ = ["LLMClusterInfo", "LLMConfig", "LLMRole", "LlmConfig"]


class LLMRole(enum.IntEnum):
    """What an instance is for. A label: it changes nothing about links and transfers."""

    PROMPT = 1
    DECODER = 2
    MIX = 3

    def __str__(self) -> str:
        return f"LLMRole.{self.name}"


class IpError(RequestError, RuntimeError):
    """A text is no IPv4 address."""


def ip_to_int(ip: str | int) -> int:
    """The number that stands for an IPv4 address: its bytes in network order, read as little-endian.

    Raises:
        RuntimeError: The text is no IPv4 address.
    """
    if isinstance(ip, int):
        return ip
    try:
        return int.from_bytes(ipaddress.IPv4Address(ip).packed, "little")
    except ipaddress.AddressValueError as error:
        raise IpError(f"{ip!r} is no IPv4 address: {error}", operation="append_ip_info") from None


def int_to_ip(number: int) -> str:
    """The address that a number stands for."""
    return str(ipaddress.IPv4Address(number.to_bytes(4, "little")))


class LLMClusterInfo:
    """How to reach one peer."""

    def __init__(self) -> None:
        self._remote_cluster_id: int | None = None
        self._remote_role_type: LLMRole | int = 0
        self._local_ip_info_list: list[tuple[int, int]] = []
        self._remote_ip_info_list: list[tuple[int, int]] = []

    @property
    def remote_cluster_id(self) -> int | None:
        """The peer's cluster id."""
        return self._remote_cluster_id

    @remote_cluster_id.setter
    def remote_cluster_id(self, value: int) -> None:
        self._remote_cluster_id = check_uint64("remote_cluster_id", value)

    @property
    def remote_role_type(self) -> LLMRole | int:
        """The peer's role; ignored."""
        return self._remote_role_type

    @remote_role_type.setter
    def remote_role_type(self, value: LLMRole | int) -> None:
        check_isinstance("remote_role_type", value, (LLMRole, int))
        self._remote_role_type = value

    @property
    def local_ip_info_list(self) -> list[tuple[int, int]]:
        """Own addresses: (number, port)."""
        return self._local_ip_info_list

    @property
    def remote_ip_info_list(self) -> list[tuple[int, int]]:
        """The peer's addresses: (number, port)."""
        return self._remote_ip_info_list

    def append_local_ip_info(self, ip: str | int, port: int) -> None:
        """Add an own address.

        Raises:
            TypeError: A wrong type.
            ValueError: A port outside 16 bits.
            RuntimeError: No IPv4 address.
        """
        self._local_ip_info_list.append(_ip_info(ip, port))

    def append_remote_ip_info(self, ip: str | int, port: int) -> None:
        """Add an address of the peer; errors as for `append_local_ip_info`."""
        self._remote_ip_info_list.append(_ip_info(ip, port))


def _ip_info(ip: str | int, port: int) -> tuple[int, int]:
    check_isinstance("ip", ip, (str, int), allow_none=False)
    check_uint16("port", port)
    if isinstance(ip, int):
        check_uint32("ip", ip)
    return ip_to_int(ip), port


def _device_id(value: Any) -> Any:
    check_isinstance("device_id", value, (int, list, tuple), allow_none=False)
    for each in [value] if isinstance(value, int) else value:
        check_int32("device_id", each)
        require(each >= 0, f"device_id must be at least 0, not {each}")
    require(isinstance(value, int) or len(value), "device_id is empty; give the number of the device")
    return value


def _sync_kv_timeout(value: Any) -> Any:
    check_isinstance("sync_kv_timeout", value, (int, str), allow_none=False)
    sane = value.isdigit() and int(value) > 0 if isinstance(value, str) else value > 0
    require(sane, f"sync_kv_timeout must be a number of milliseconds above 0, not {value!r}")
    return value


def _within(name: str, low: int, high: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        check_isinstance(name, value, int, allow_none=False)
        require(low <= value <= high, f"{name} must lie in {low} ... {high}, not {value}")
        return value

    return check


def _mem_utilization(value: Any) -> Any:
    check_isinstance("mem_utilization", value, float, allow_none=False)
    require(0.0 <= value <= 1.0, f"mem_utilization must lie in 0.0 ... 1.0, not {value}")
    return value


def _ge_options(value: Any) -> Any:
    if value is None:
        raise of_none("ge_options is None; it must be a dict of str to str")
    check_isinstance("ge_options", value, dict, str)
    for name, text in value.items():
        if not isinstance(text, str):
            raise wrong(f"ge_options[{name!r}]", str, text)
    return value


def _cluster_info(value: Any) -> Any:
    check_isinstance("cluster_info", value, str)
    if not value:
        return value
    try:
        document = json.loads(value)
        for each in document.get("listen_ip_info", ()):
            each["ip"] = ip_to_int(each["ip"])
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise invalid(f"cluster_info is no JSON object with listen_ip_info [{{ip, port}}]: {error}") from None
    return json.dumps(document)


def _typed(name: str, cls: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        check_isinstance(name, value, cls)
        return value

    return check


class _Option:
    """A property of `LLMConfig`: checked when it is set."""

    def __init__(self, check: Callable[[Any], Any], unset: Any, doc: str) -> None:
        self._check = check
        self._unset = unset
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, config: LLMConfig | None, owner: type | None = None) -> Any:
        if config is None:
            return self
        value = config._values.get(self._name)
        return self._unset if value is None else value

    def __set__(self, config: LLMConfig, value: Any) -> None:
        value = self._check(value)
        if value is None:
            config._values.pop(self._name, None)
        else:
            config._values[self._name] = value


class LLMConfig:
    """The options of an instance; `generate_options` makes the dict for `LLMDataDist.init`.

    Raises:
        TypeError: A property is set to a wrong type.
        ValueError: To a number outside its machine range.
        LLMException: To another wrong value.
    """

    device_id = _Option(_device_id, None, "Number of the device.")
    sync_kv_timeout = _Option(_sync_kv_timeout, None, "Milliseconds that a pull or push may take.")
    ge_options = _Option(_ge_options, {}, "Further options; the properties count before them.")
    listen_ip_info = _Option(_typed("listen_ip_info", str), "", "``ip:port`` to take links on.")
    enable_cache_manager = _Option(_typed("enable_cache_manager", bool), False, "Whether there is a cache manager.")
    enable_remote_cache_accessible = _Option(
        _typed("enable_remote_cache_accessible", bool), False, "Whether caches are read and written one-sided."
    )
    mem_pool_cfg = _Option(_typed("mem_pool_cfg", str), "", "The pool of device memory, JSON.")
    host_mem_pool_cfg = _Option(_typed("host_mem_pool_cfg", str), "", "The pool of host memory, JSON.")
    link_total_time = _Option(_within("link_total_time", 0, 2**32 - 1), 0, "Seconds that linking may take; 0: 120.")
    link_retry_count = _Option(_within("link_retry_count", 1, 100), 1, "Attempts within that time.")
    rdma_traffic_class = _Option(lambda v: check_uint32("rdma_traffic_class", v), None, "Traffic class of RDMA.")
    rdma_service_level = _Option(lambda v: check_uint32("rdma_service_level", v), None, "Service level of RDMA.")
    local_comm_res = _Option(_typed("local_comm_res", str), "", "Own communication resources, JSON.")
    transfer_backend = _Option(_typed("transfer_backend", str), "", 'Transfer engine: "hixl".')
    global_resource_config = _Option(_typed("global_resource_config", str), "", "For the hixl engine, JSON.")
    enable_switch_role = _Option(_typed("enable_switch_role", bool), False, "Ignored: roles can always be switched.")
    mem_utilization = _Option(_mem_utilization, 0.95, "Ignored.")
    buf_pool_cfg = _Option(_typed("buf_pool_cfg", str), "", "Ignored.")
    deploy_res_path = _Option(_typed("deploy_res_path", str), "", "Ignored.")
    output_max_size = _Option(_within("output_max_size", -(2**63), 2**63 - 1), None, "Ignored.")
    cluster_info = _Option(_cluster_info, "", "Ignored.")

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._options: dict[str, str] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and not hasattr(type(self), name):
            known = [each for each, option in vars(LLMConfig).items() if isinstance(option, _Option)]
            warnings.warn(f"LLMConfig has no option {name!r}, nothing reads it{near(name, known)}", stacklevel=2)
        object.__setattr__(self, name, value)

    @property
    def options(self) -> dict[str, str]:
        """What `generate_options` has made so far."""
        return self._options

    def generate_options(self) -> dict[str, str]:
        """The options as a dict: the same object each time, which forgets nothing."""
        options, values = self._options, self._values
        options.update(self.ge_options)
        if "device_id" in values:
            devices: Sequence[int] = values["device_id"]
            devices = [devices] if isinstance(devices, int) else devices
            options["ge.exec.deviceId"] = ";".join(str(int(each)) for each in devices)
            options["ge.session_device_id"] = str(int(devices[0]))
        for name, key in _FLAGS.items():
            if name in values:
                options[key] = "1" if values[name] else "0"
        for name, key in _IF_ASSIGNED.items():
            if name in values:
                options[key] = str(values[name])
        for name, key in _IF_NOT_EMPTY.items():
            if values.get(name):
                options[key] = values[name]
        if values.get("enable_switch_role"):
            options["llm.EnableSwitchRole"] = "1"
        options["llm.MemoryUtilization"] = str(self.mem_utilization)
        return options

    gen_options = generate_options


_FLAGS = {
    "enable_cache_manager": "llm.EnableCacheManager",
    "enable_remote_cache_accessible": "llm.EnableRemoteCacheAccessible",
}
_IF_ASSIGNED = {
    "sync_kv_timeout": "llm.SyncKvCacheWaitTime",
    "link_total_time": "llm.LinkTotalTime",
    "link_retry_count": "llm.LinkRetryCount",
    "rdma_traffic_class": "llm.RdmaTrafficClass",
    "rdma_service_level": "llm.RdmaServiceLevel",
    "local_comm_res": "llm.LocalCommRes",
    "transfer_backend": "llm.TransferBackend",
    "global_resource_config": "llm.GlobalResourceConfig",
    "output_max_size": "llm.OutputMaxSize",
}
_IF_NOT_EMPTY = {
    "listen_ip_info": "llm.listenIpInfo",
    "mem_pool_cfg": "llm.MemPoolConfig",
    "host_mem_pool_cfg": "llm.HostMemPoolConfig",
    "buf_pool_cfg": "llm.BufPoolCfg",
    "deploy_res_path": "llm.deployResPath",
    "cluster_info": "llm.ClusterInfo",
}

#: The older spelling of the same class.
LlmConfig = LLMConfig
