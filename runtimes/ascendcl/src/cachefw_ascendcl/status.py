"""From AscendCL's numbers to cachefw's errors, in one place."""

from __future__ import annotations

from typing import Any

import attrs

from cachefw.errors import (
    BrokenError,
    CacheError,
    ClosedError,
    OutOfMemoryError,
    RequestError,
    TransferTimeout,
    TransportUnavailable,
    UnsupportedOperation,
    refusal,
)

from ._acl import ffi, lib

__all__ = ["NAMES", "check", "meanings", "name_of", "recent_message", "status_error"]


@attrs.frozen
class _Meaning:
    """What a code says, and whose doing it is."""

    family: type[CacheError]
    text: str
    code: str | None = None


_OF: dict[str, _Meaning] = {
    "CFW_ACL_MISSING": _Meaning(
        UnsupportedOperation, "the open library has no such function; its CANN is older than the call", "acl.missing"
    ),
    "CFW_ACL_CLOSED": _Meaning(ClosedError, "no AscendCL library is open in this process", "acl.closed"),
    "ACL_ERROR_INVALID_PARAM": _Meaning(RequestError, "an argument is NULL, empty, or reserved and not 0"),
    "ACL_ERROR_UNINITIALIZE": _Meaning(BrokenError, "AscendCL is not initialised", "acl.uninitialised"),
    "ACL_ERROR_REPEAT_INITIALIZE": _Meaning(BrokenError, "AscendCL is initialised already"),
    "ACL_ERROR_REPEAT_FINALIZE": _Meaning(BrokenError, "AscendCL was finalised already"),
    "ACL_ERROR_COMPILING_STUB_MODE": _Meaning(
        TransportUnavailable, "this is the toolkit's library for linking only", "acl.stub"
    ),
    "ACL_ERROR_RT_PARAM_INVALID": _Meaning(RequestError, "the driver's own checks refused an argument"),
    "ACL_ERROR_RT_INVALID_DEVICEID": _Meaning(RequestError, "there is no such device"),
    "ACL_ERROR_RT_CONTEXT_NULL": _Meaning(
        BrokenError, "the calling thread has no context of a device; use bound()", "acl.no_context"
    ),
    "ACL_ERROR_RT_STREAM_CONTEXT": _Meaning(RequestError, "the stream belongs to another context"),
    "ACL_ERROR_RT_ADDR_UNALIGNED": _Meaning(RequestError, "an address is not aligned as the call needs it"),
    "ACL_ERROR_RT_INVALID_MEMORY_TYPE": _Meaning(RequestError, "memory of this type is not accepted"),
    "ACL_ERROR_RT_INVALID_HANDLE": _Meaning(RequestError, "the handle is not, or no longer, valid"),
    "ACL_ERROR_RT_INVALID_MALLOC_TYPE": _Meaning(RequestError, "there is no such way to allocate"),
    "ACL_ERROR_RT_WAIT_TIMEOUT": _Meaning(TransferTimeout, "the wait took too long; work may still be running"),
    "ACL_ERROR_BAD_ALLOC": _Meaning(OutOfMemoryError, "host memory ran out inside AscendCL"),
    "ACL_ERROR_API_NOT_SUPPORT": _Meaning(UnsupportedOperation, "the call is not offered here"),
    "ACL_ERROR_MEMORY_ADDRESS_UNALIGNED": _Meaning(RequestError, "an address is not aligned as the call needs it"),
    "ACL_ERROR_FEATURE_UNSUPPORTED": _Meaning(UnsupportedOperation, "the feature, or a flag, is not offered here"),
    "ACL_ERROR_RT_FEATURE_NOT_SUPPORT": _Meaning(
        UnsupportedOperation, "the feature is not offered by this device or driver"
    ),
    "ACL_ERROR_RT_MEMORY_ALLOCATION": _Meaning(OutOfMemoryError, "memory of that kind ran out"),
    "ACL_ERROR_RT_MEMORY_FREE": _Meaning(BrokenError, "memory could not be given back"),
    "ACL_ERROR_RT_NO_DEVICE": _Meaning(TransportUnavailable, "there is no device", "acl.no_device"),
    "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL": _Meaning(BrokenError, "the runtime has no resource of that kind left"),
    "ACL_ERROR_RT_NO_PERMISSION": _Meaning(BrokenError, "this process may not do that"),
    "ACL_ERROR_RT_OVER_LIMIT": _Meaning(BrokenError, "a limit of the runtime was passed"),
    "ACL_ERROR_RT_DEVICE_OOM": _Meaning(OutOfMemoryError, "the device ran out of memory"),
    "ACL_ERROR_RT_LINK_TYPE_NOT_SUPPORTED": _Meaning(UnsupportedOperation, "the link between the devices is no fit"),
    "ACL_ERROR_INTERNAL_ERROR": _Meaning(BrokenError, "AscendCL failed inside"),
    "ACL_ERROR_RT_FAILURE": _Meaning(BrokenError, "the runtime failed inside"),
    "ACL_ERROR_RT_INTERNAL_ERROR": _Meaning(BrokenError, "the runtime failed inside"),
    "ACL_ERROR_RT_IPC_ERROR": _Meaning(BrokenError, "sharing between processes failed"),
    "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT": _Meaning(TransferTimeout, "the stream is still working"),
    "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT": _Meaning(TransferTimeout, "the event has not come yet"),
    "ACL_ERROR_RT_DEVICE_MEM_ERROR": _Meaning(BrokenError, "the device's memory has a fault"),
    "ACL_ERROR_RT_LINK_ERROR": _Meaning(BrokenError, "the link between the devices has a fault"),
    "ACL_ERROR_RT_SUSPECT_REMOTE_ERROR": _Meaning(BrokenError, "the other device seems to have a fault"),
    "ACL_ERROR_RT_DRV_INTERNAL_ERROR": _Meaning(BrokenError, "the kernel's driver refused the call"),
    "ACL_ERROR_RT_HOST_MEMORY_ALREADY_REGISTERED": _Meaning(RequestError, "the host memory is registered already"),
    "ACL_ERROR_RT_HOST_MEMORY_NOT_REGISTERED": _Meaning(RequestError, "the host memory is not registered"),
}

_BY_NUMBER: dict[int, tuple[str, _Meaning]] = {getattr(lib, name): (name, meaning) for name, meaning in _OF.items()}

#: Symbolic name of every code that is known.
NAMES: dict[int, str] = {0: "ACL_SUCCESS"} | {number: name for number, (name, _) in _BY_NUMBER.items()}

_SHORT = 300


def name_of(status: int) -> str:
    """The symbolic name of a code, or ``"an unknown code"``."""
    return NAMES.get(status, "an unknown code")


def recent_message() -> str | None:
    """What AscendCL has to say about the calling thread's failures since the last time; reading takes it."""
    text = lib.cfw_aclGetRecentErrMsg()
    if not text:
        return None
    return ffi.string(text).decode(errors="replace").strip() or None


def status_error(
    status: int, operation: str, *, where: str = "", detail: str | None = None, **facts: Any
) -> CacheError:
    """The error for a status that is not 0.

    Args:
        status: What the function answered.
        operation: The function, or the public call that needed it.
        where: Said behind the operation, e.g. ``" at item 3 of 8"``.
        detail: The vendor's text; None asks for it, which is right only in the thread that made the call.
        **facts: Further values for the error's `facts`.
    """
    name, meaning = _BY_NUMBER.get(status, ("an unknown code", _Meaning(BrokenError, "AscendCL failed")))
    if detail is None:
        detail = recent_message()
    text = f"{operation}{where}: {meaning.text} ({status}, {name})"
    if detail:
        line = " ".join(detail.split())
        text += ": " + (line if len(line) <= _SHORT else line[: _SHORT - 3] + "...")
    fields: dict[str, Any] = {
        "code": meaning.code,
        "operation": operation,
        "status": status,
        "detail": detail,
        "facts": {"name": name, **facts},
    }
    if meaning.family is TransferTimeout:
        # The device was not stopped: bytes can still land.
        fields["facts"].setdefault("settled", False)
    if meaning.family is RequestError:
        return refusal(RequestError, {ValueError}, text, **fields)
    return meaning.family(text, **fields)


def check(status: int, operation: str, **facts: Any) -> None:
    """Return at once for 0; else raise what the status means.

    Call it in the thread that made the call, before any other: AscendCL keeps its texts per thread.

    Args:
        status: What the function answered.
        operation: The function, or the public call that needed it.
        **facts: Values for the error's `facts`.

    Raises:
        RequestError: The arguments are at fault; also a `ValueError`.
        OutOfMemoryError: Memory of the device or the host ran out.
        UnsupportedOperation: The library, driver or device does not offer it.
        TransferTimeout: A wait passed its deadline.
        TransportUnavailable: There is no device, or the library is a stub.
        ClosedError: No library is open.
        BrokenError: Everything else, codes that nobody knows included.
    """
    if status == 0:
        return
    raise status_error(status, operation, **facts)


def meanings() -> dict[int, tuple[str, str]]:
    """Name and text of every code that is known, by its number."""
    return {number: (name, meaning.text) for number, (name, meaning) in _BY_NUMBER.items()}
