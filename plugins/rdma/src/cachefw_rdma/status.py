"""From UCX's one-byte statuses, and our own, to cachefw's errors, in one place."""

from __future__ import annotations

from cachefw.errors import (
    BrokenError,
    CacheError,
    ClosedError,
    OutOfMemoryError,
    RegistrationError,
    TransferCancelled,
    TransferTimeout,
    TransportUnavailable,
)

__all__ = [
    "NAMES",
    "TRANSPORT",
    "advice_of",
    "connect_error",
    "name_of",
    "open_error",
    "register_error",
    "transfer_error",
]

TRANSPORT = "rdma"

#: UCX's names, by number (`ucs_status_t`).
NAMES: dict[int, str] = {
    0: "UCS_OK",
    1: "UCS_INPROGRESS",
    -1: "UCS_ERR_NO_MESSAGE",
    -2: "UCS_ERR_NO_RESOURCE",
    -3: "UCS_ERR_IO_ERROR",
    -4: "UCS_ERR_NO_MEMORY",
    -5: "UCS_ERR_INVALID_PARAM",
    -6: "UCS_ERR_UNREACHABLE",
    -7: "UCS_ERR_INVALID_ADDR",
    -8: "UCS_ERR_NOT_IMPLEMENTED",
    -9: "UCS_ERR_MESSAGE_TRUNCATED",
    -10: "UCS_ERR_NO_PROGRESS",
    -11: "UCS_ERR_BUFFER_TOO_SMALL",
    -12: "UCS_ERR_NO_ELEM",
    -13: "UCS_ERR_SOME_CONNECTS_FAILED",
    -14: "UCS_ERR_NO_DEVICE",
    -15: "UCS_ERR_BUSY",
    -16: "UCS_ERR_CANCELED",
    -17: "UCS_ERR_SHMEM_SEGMENT",
    -18: "UCS_ERR_ALREADY_EXISTS",
    -19: "UCS_ERR_OUT_OF_RANGE",
    -20: "UCS_ERR_TIMED_OUT",
    -21: "UCS_ERR_EXCEEDS_LIMIT",
    -22: "UCS_ERR_UNSUPPORTED",
    -23: "UCS_ERR_REJECTED",
    -24: "UCS_ERR_NOT_CONNECTED",
    -25: "UCS_ERR_CONNECTION_RESET",
    -80: "UCS_ERR_ENDPOINT_TIMEOUT",
    # Ours, see native/rdma.h.
    -1001: "NOT_LOADED",
    -1002: "FOREIGN",
    -1003: "TOO_OLD",
    -1004: "NO_MEMORY",
    -1005: "SYSTEM",
    -1006: "CLOSED",
    -1007: "TIMED_OUT",
    -1008: "BUSY",
    -1009: "OUTSIDE",
    -1010: "DETACHED",
    -1011: "CANCELLED",
    -1012: "INVALID",
    -1013: "NO_SETTING",
}

_CLOSED = -1006
_TIMED_OUT = -1007
_OUTSIDE = -1009
_DETACHED = -1010
_CANCELLED = -1011
_NO_SETTING = -1013
_LAST_OF_UCX = -100
#: Statuses that say: the other end, or the way to it, is gone.
_GONE = {-24, -25, -80, *range(-59, -39)}
_MEMORY = (
    "the memory could not be made known to the network card. Frequent causes: the limit of locked memory (ulimit -l; "
    "raise it with LimitMEMLOCK= or in /etc/security/limits.conf), memory that is not mapped or not writable, or a "
    "card that takes no more"
)
_ADVICE: dict[int, str] = {
    -3: "the path or the memory at one end failed; see whether the peer still runs and its memory is still mapped",
    -4: _MEMORY,
    -6: (
        "no path leads there with the transports that both ends may use; see the settings tls, net_devices and "
        "error_mode, and `ucx_info -d` for what this machine has"
    ),
    -14: ("no device fits the settings tls and net_devices; `ucx_info -d` lists what there is, such as 'mlx5_0:1'"),
    -22: "this UCX, or its transport, cannot do that; see `ucx_info -v` and the setting tls",
}


def name_of(status: int) -> str:
    """The name of a status; its number where it has none."""
    if status in NAMES:
        return NAMES[status]
    if -59 <= status <= -40:
        return f"UCS_ERR_LINK_FAILURE ({status})"
    if -89 <= status <= -60:
        return f"UCS_ERR_ENDPOINT_FAILURE ({status})"
    return f"unknown status {status}"


def advice_of(status: int) -> str:
    """What is said beside a status, or ""."""
    return _ADVICE.get(status, "")


def _words(status: int, text: str) -> str:
    owner = "UCX " if status > _LAST_OF_UCX else ""
    return f"{owner}{name_of(status)}" + (f" ({status}): {text}" if text else f" ({status})")


def _advice(status: int) -> str:
    return f"; {_ADVICE[status]}" if status in _ADVICE else ""


def transfer_error(status: int, text: str, item: int | None, *, count: int = 0, pending: str = "") -> CacheError:
    """The error of a transfer, or of preparing one.

    Args:
        status: What UCX or the native side gave.
        text: UCX's own words for it.
        item: Index of the failing piece, None when none is known.
        count: How many pieces there are.
        pending: What is known of the memory concerned.
    """
    where = "" if item is None else f" at piece {item}"
    failed = () if item is None else (item,)
    code = "transfer.failed"
    if status == _CANCELLED:
        until = "the peer had all of it" if item is None else f"piece {item} of {count}"
        return TransferCancelled(
            f"the transfer was cancelled before {until}",
            transport=TRANSPORT,
            facts={"failed": failed},
        )
    if status == _CLOSED:
        return ClosedError("this channel is closed", operation="post", transport=TRANSPORT)
    if status == _OUTSIDE:
        code = "memory.outside"
        message = f"piece {item} reaches beyond the peer's memory{pending}; nothing was posted"
    elif status == _DETACHED:
        code = "memory.unknown"
        message = f"the peer withdrew memory of this batch{where}{pending}; prepare it again"
    elif status in _GONE:
        code = "peer.gone"
        message = f"the peer is gone, or the way to it{where} ({_words(status, text)})"
    else:
        message = f"the transfer stopped{where}: {_words(status, text)}{_advice(status)}"
    return BrokenError(
        message, code=code, transport=TRANSPORT, status=status, detail=_words(status, text), facts={"failed": failed}
    )


def connect_error(status: int, text: str, timeout: float) -> CacheError:
    """The error of connecting to a peer."""
    if status in (_TIMED_OUT, -20):
        return TransferTimeout(
            f"the peer did not answer within {timeout:g} s: it hangs, or the way to it drops packets",
            operation="connect",
            transport=TRANSPORT,
            status=status,
            detail=_words(status, text),
        )
    if status == _CLOSED:
        return ClosedError("connect: this transport is not open", operation="connect", transport=TRANSPORT)
    code = "peer.unreachable" if status in (-6, -22) else "peer.gone" if status in _GONE else "connect.failed"
    return BrokenError(
        f"no connection to the peer: {_words(status, text)}{_advice(status)}",
        code=code,
        operation="connect",
        transport=TRANSPORT,
        status=status,
        detail=_words(status, text),
    )


def register_error(status: int, text: str, address: int, length: int) -> CacheError:
    """The error of registering memory."""
    if status == _CLOSED:
        return ClosedError("register: this transport is not open", operation="register", transport=TRANSPORT)
    if status == -1004:
        return OutOfMemoryError("no memory for the registration itself", operation="register", transport=TRANSPORT)
    advice = _ADVICE.get(status) or _MEMORY
    return RegistrationError(
        f"{length:,} bytes at {address:#x} could not be registered: {_words(status, text)}; {advice}",
        code="registration.failed",
        operation="register",
        transport=TRANSPORT,
        status=status,
        detail=_words(status, text),
        facts={"address": address, "length": length},
    )


def open_error(status: int, text: str, settings: dict[str, str]) -> CacheError:
    """The error of opening UCX with settings (UCX's names without UCX_)."""
    given = ", ".join(f"{name}={value}" for name, value in settings.items()) or "no settings of ours"
    if status == _NO_SETTING:
        advice = "; this UCX does not know one of them, or not that value: `ucx_info -cf` lists them"
    else:
        advice = _advice(status)
    return TransportUnavailable(
        f"UCX could not be started with {given}: {_words(status, text)}{advice}",
        code="ucx.refused",
        operation="open",
        transport=TRANSPORT,
        status=status,
        detail=_words(status, text),
        facts=dict(settings),
    )
