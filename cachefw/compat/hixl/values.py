"""Constants, enums and structs of ``hixl``."""

from __future__ import annotations

import enum
from typing import Any

import attrs

from cachefw.compat.engine import address_of, text
from cachefw.errors import RequestError, refusal

__all__ = [
    "ALREADY_CONNECTED",
    "AUTO_CONNECT",
    "CLIENT_SERVER_COMM",
    "CONNECTED",
    "CONNECTING",
    "CONNECT_FAILED",
    "CONNECT_PENDING",
    "DISCONNECTING",
    "DISCONNECT_PENDING",
    "FAILED",
    "FEATURE_NOT_SUPPORTED",
    "FEATURE_SUPPORTED",
    "MEM_DEVICE",
    "MEM_HOST",
    "NOTIFY_FAILED",
    "NOT_CONNECT",
    "NOT_CONNECTED",
    "OPTION_AUTO_CONNECT",
    "OPTION_BUFFER_POOL",
    "OPTION_ENABLE_USE_FABRIC_MEM",
    "OPTION_GLOBAL_RESOURCE_CONFIG",
    "OPTION_LOCAL_COMM_RES",
    "OPTION_RDMA_SERVICE_LEVEL",
    "OPTION_RDMA_TRAFFIC_CLASS",
    "PARAM_INVALID",
    "READ",
    "RESOURCE_EXHAUSTED",
    "SUCCESS",
    "TIMEOUT",
    "UNSUPPORTED",
    "WRITE",
    "AsyncConnectStatus",
    "FeatureType",
    "GetTransferStatusArgs",
    "MemDesc",
    "MemType",
    "NotifyDesc",
    "TransferArgs",
    "TransferOp",
    "TransferOpDesc",
    "TransferResult",
    "TransferStatus",
]

SUCCESS = 0
PARAM_INVALID = 103900
TIMEOUT = 103901
NOT_CONNECTED = 103902
ALREADY_CONNECTED = 103903
NOTIFY_FAILED = 103904
UNSUPPORTED = 103905
RESOURCE_EXHAUSTED = 203900
FAILED = 503900

FEATURE_NOT_SUPPORTED = 0
FEATURE_SUPPORTED = 1

OPTION_ENABLE_USE_FABRIC_MEM = "EnableUseFabricMem"
OPTION_RDMA_TRAFFIC_CLASS = "RdmaTrafficClass"
OPTION_RDMA_SERVICE_LEVEL = "RdmaServiceLevel"
OPTION_BUFFER_POOL = "BufferPool"
OPTION_GLOBAL_RESOURCE_CONFIG = "GlobalResourceConfig"
OPTION_AUTO_CONNECT = "AutoConnect"
OPTION_LOCAL_COMM_RES = "LocalCommRes"


class _Enum(enum.IntEnum):
    """An enum that equals its number and still shows its name, as those of the binding do."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class MemType(_Enum):
    """What memory is."""

    MEM_DEVICE = 0
    MEM_HOST = 1


class TransferOp(_Enum):
    """READ is from the remote engine, WRITE to it."""

    READ = 0
    WRITE = 1


class TransferStatus(_Enum):
    """How far an asynchronous transfer is."""

    WAITING = 0
    COMPLETED = 1
    TIMEOUT = 2
    FAILED = 3


class AsyncConnectStatus(_Enum):
    """How far the latest asynchronous connect or disconnect is."""

    NOT_CONNECT = 0
    CONNECT_PENDING = 1
    CONNECTING = 2
    CONNECTED = 3
    CONNECT_FAILED = 4
    DISCONNECT_PENDING = 5
    DISCONNECTING = 6


class FeatureType(_Enum):
    """What `get_capability` can be asked for."""

    AUTO_CONNECT = 0
    CLIENT_SERVER_COMM = 1


# Module-level names as well, but for `TransferStatus`, whose members would clash with the statuses above.
MEM_DEVICE = MemType.MEM_DEVICE
MEM_HOST = MemType.MEM_HOST
READ = TransferOp.READ
WRITE = TransferOp.WRITE
NOT_CONNECT = AsyncConnectStatus.NOT_CONNECT
CONNECT_PENDING = AsyncConnectStatus.CONNECT_PENDING
CONNECTING = AsyncConnectStatus.CONNECTING
CONNECTED = AsyncConnectStatus.CONNECTED
CONNECT_FAILED = AsyncConnectStatus.CONNECT_FAILED
DISCONNECT_PENDING = AsyncConnectStatus.DISCONNECT_PENDING
DISCONNECTING = AsyncConnectStatus.DISCONNECTING
AUTO_CONNECT = FeatureType.AUTO_CONNECT
CLIENT_SERVER_COMM = FeatureType.CLIENT_SERVER_COMM


def _number(default: Any = attrs.NOTHING) -> Any:
    """An unsigned 64-bit field, checked when it is set as well."""

    def check(_: object, attribute: attrs.Attribute[int], value: Any) -> None:
        # A plain int within bounds is what nearly all are.
        if type(value) is not int or not 0 <= value < 2**64:
            address_of(attribute.name, value)

    return attrs.field(default=default, validator=check)


def _string() -> Any:
    return attrs.field(validator=lambda _, attribute, value: _checked_text(attribute.name, value))


def _checked_text(name: str, value: Any) -> None:
    text(name, value)


@attrs.define
class MemDesc:
    """A range of memory: first byte and bytes."""

    addr: int = _number()
    len: int = _number()


@attrs.define
class TransferOpDesc:
    """One piece: where it is here, where it is there, and its bytes."""

    local_addr: int = _number()
    remote_addr: int = _number()
    len: int = _number()


@attrs.define
class TransferArgs:
    """What an asynchronous transfer carries along for its caller."""

    user_data: int = attrs.field(default=0, init=False, validator=lambda _, at, value: _checked_user(at.name, value))


def _checked_user(name: str, value: Any) -> None:
    address_of(name, value)


@attrs.define
class GetTransferStatusArgs:
    """How many transfers to report at most, and whether unfinished ones are left out."""

    max_query_count: int = _number(2**32 - 1)
    skip_waiting: bool = attrs.field(default=False)

    @skip_waiting.validator
    def _is_bool(self, attribute: attrs.Attribute[bool], value: Any) -> None:
        if not isinstance(value, bool):
            raise refusal(RequestError, {TypeError}, f"{attribute.name} must be a bool, not {value!r}")


@attrs.define
class TransferResult:
    """One row of `get_all_transfer_status`."""

    req: int = attrs.field(default=0, init=False)
    user_data: int = attrs.field(default=0, init=False)
    _status: TransferStatus = attrs.field(default=TransferStatus.WAITING, init=False)

    @property
    def status(self) -> TransferStatus:
        """How far it is."""
        return self._status

    @classmethod
    def of(cls, req: int, user_data: int, status: TransferStatus) -> TransferResult:
        """A row."""
        made = cls()
        made.req, made.user_data, made._status = req, user_data, status
        return made


@attrs.define
class NotifyDesc:
    """A notification."""

    name: str = _string()
    notify_msg: str = _string()
