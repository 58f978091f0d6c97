"""What the methods of `TransferEngine` take and answer."""

from __future__ import annotations

import enum
import functools
import logging
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import attrs

from cachefw.compat.engine import encode_note, log_error, named_arguments, text
from cachefw.errors import CacheError, RegistrationError, RequestError, UnsupportedOperation, refusal
from cachefw.links.address import parse_address
from cachefw.rules import Outcome
from cachefw.transport import Operation

__all__ = [
    "ABSENT",
    "DONE",
    "FAILED",
    "NOT_REGISTERED",
    "OK",
    "OVERLAPPED",
    "RUNNING",
    "TIMED_OUT",
    "UNREACHABLE",
    "TransferNotify",
    "TransferOpcode",
    "UnsupportedOperationAttribute",
    "answers",
    "bad",
    "device_number",
    "is_device",
    "listen_address",
    "note_of",
    "operation_of",
    "transfer_timeout",
]

_log = logging.getLogger("cachefw.compat")
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

#: Mooncake's numbers.
OK, FAILED = 0, -1
NOT_REGISTERED, OVERLAPPED, UNREACHABLE = -3, -7, -102
DONE, RUNNING, TIMED_OUT = 1, 0, -2


class TransferOpcode(enum.Enum):
    """READ is from the target, WRITE to it."""

    Read = 0
    Write = 1

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def __str__(self) -> str:
        return f"TransferOpcode.{self.name}"


@attrs.define(eq=False)
class TransferNotify:
    """A notification: two strings."""

    name: str = attrs.field(default="", validator=lambda _, at, value: _check_text(at.name, value))
    msg: str = attrs.field(default="", validator=lambda _, at, value: _check_text(at.name, value))


def _check_text(name: str, value: Any) -> None:
    text(name, value)


_OPERATIONS = {TransferOpcode.Read: Operation.READ, TransferOpcode.Write: Operation.WRITE}


def answers(
    failed: int = FAILED,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Answer an error with a number and say in the log what it was; a wrong type stays a `TypeError`."""

    def decorate(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        @functools.wraps(method)
        def answer(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            try:
                return method(*args, **kwargs)
            except CacheError as error:
                if isinstance(error, TypeError):
                    raise
                overlap = isinstance(error, RegistrationError) and _refused_by(error) == {"core.unique"}
                code = OVERLAPPED if overlap else failed
                log_error("mooncake", method.__name__, error, code)
                return code  # type: ignore[return-value]

        return named_arguments(answer)

    return decorate


def _refused_by(error: RegistrationError) -> set[str]:
    return {finding.rule for finding in error.findings if finding.outcome is Outcome.REFUSED}


def bad(message: str) -> CacheError:
    """An error of the arguments."""
    return refusal(RequestError, {ValueError}, message)


def transfer_timeout() -> float:
    """Seconds a transfer may take: Mooncake's variable, which means at least 5, or its default."""
    value = os.environ.get("MC_TRANSFER_TIMEOUT", "")
    return float(max(5, int(value))) if value.isascii() and value.isdigit() else 30.0


def operation_of(opcode: Any) -> Operation:
    """The direction.

    Raises:
        RequestError: Also a `TypeError`.
    """
    if not isinstance(opcode, TransferOpcode):
        raise refusal(RequestError, {TypeError}, f"opcode must be a TransferOpcode, not {opcode!r}")
    return _OPERATIONS[opcode]


def note_of(notify: Any) -> bytes | None:
    """A notification as it travels.

    Raises:
        RequestError: Also a `TypeError`.
    """
    if notify is None:
        return None
    if not isinstance(notify, TransferNotify):
        raise refusal(RequestError, {TypeError}, f"notify must be a TransferNotify or None, not {notify!r}")
    return encode_note(notify.name, notify.msg)


def listen_address(local_hostname: str) -> str:
    """The address to listen on; a free port unless Mooncake too would take the one that is given."""
    if not local_hostname:
        raise bad("local_hostname is empty")
    host, port = local_hostname, 0
    if local_hostname.count(":") == 1 or "]:" in local_hostname:
        host, port = parse_address(local_hostname, "initialize")
        if not os.environ.get("MC_LEGACY_RPC_PORT_BINDING"):
            port = 0
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def device_number(device_name: str, protocol: str) -> int:
    """The number of the device that a name means."""
    number = device_name.rpartition(":")[2]
    if protocol == "ascend" and number.isascii() and number.isdigit():
        return int(number)
    if device_name:
        _log.warning("mooncake: device_name %r is passed over; the transport chooses", device_name)
    return 0


def is_device(location: str) -> bool | None:
    """Whether a location names a device; None when it leaves that open."""
    kind = location.partition(":")[0]
    if kind in ("cpu", "*", ""):
        return False if kind == "cpu" else None
    return True


class UnsupportedOperationAttribute(UnsupportedOperation, AttributeError):
    """A call of Mooncake's that cachefw does not offer; `hasattr` sees that it is not there."""


_CUDA = "cachefw has no transport for CUDA; use the calls without a stream"
_NATIVE = "there is no native engine of Mooncake's behind this one, so its store cannot share it"
ABSENT = {
    "batch_transfer_read_on_cuda": _CUDA,
    "batch_transfer_write_on_cuda": _CUDA,
    "get_engine": _NATIVE,
    "get_engine_ptr": _NATIVE,
    "transfer_read_on_cuda": _CUDA,
    "transfer_write_on_cuda": _CUDA,
    "warmup_efa_segment": "cachefw has no transport for EFA",
}
