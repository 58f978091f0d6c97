"""From HIXL's numbers to cachefw's errors, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from cachefw.errors import (
    BrokenError,
    BusyError,
    CacheError,
    ClosedError,
    RequestError,
    TransferCancelled,
    TransferTimeout,
    TransportUnavailable,
    UnsupportedOperation,
    refusal,
)

from ..status import TRANSPORT

__all__ = ["STATES", "STATUSES", "TRANSPORT", "Status", "check", "name_of", "status_error", "status_text"]


@attrs.frozen
class Status:
    """What a number says, and whose doing it is.

    Attributes:
        name: The symbolic name.
        text: In words.
        family: The error that it is raised as.
        fix: What to do next.
    """

    name: str
    text: str
    family: type[CacheError]
    fix: str


_LOGS = "look into HIXL's log (ASCEND_PROCESS_LOG_PATH, by default ~/ascend/log)"

#: Every status that is known: HIXL's, and our own, which are negative.
STATUSES: Mapping[int, Status] = {
    103900: Status("HIXL_PARAM_INVALID", "HIXL refused an argument", RequestError, f"{_LOGS} for which one"),
    103901: Status(
        "HIXL_TIMEOUT",
        "the time was not enough",
        TransferTimeout,
        "see that the peer listens and is reachable, or wait longer",
    ),
    103902: Status("HIXL_NOT_CONNECTED", "there is no connection to the peer", BrokenError, "link again"),
    103903: Status("HIXL_ALREADY_CONNECTED", "there is a connection to this peer already", BusyError, "use that link"),
    103904: Status("HIXL_NOTIFY_FAILED", "a notification could not be sent", BrokenError, "link again"),
    103905: Status(
        "HIXL_UNSUPPORTED",
        "HIXL does not offer this here",
        UnsupportedOperation,
        "compare HIXL's version with its documentation",
    ),
    203900: Status(
        "HIXL_RESOURCE_EXHAUSTED", "too many transfers are under way", BusyError, "let some of them settle first"
    ),
    503900: Status("HIXL_FAILED", "HIXL or the device failed", BrokenError, _LOGS),
    -1: Status(
        "CFW_HIXL_MISSING",
        "the open library has no such function",
        UnsupportedOperation,
        "install a HIXL that has its C interface (CANN 9 or newer)",
    ),
    -2: Status("CFW_HIXL_CLOSED", "no HIXL library is open in this process", ClosedError, "open the transport"),
    -3: Status("CFW_HIXL_BUSY", "another HIXL library is open", BusyError, "close it first"),
    -4: Status(
        "CFW_HIXL_NOT_LOADED", "the loader refused the file", TransportUnavailable, "source the toolkit's set_env.sh"
    ),
    -5: Status(
        "CFW_HIXL_FOREIGN", "the file has not one function of HIXL", TransportUnavailable, "name libcann_hixl.so"
    ),
    -6: Status("CFW_HIXL_STOPPED", "the transfer was stopped", TransferCancelled, "link again"),
    -7: Status("CFW_HIXL_BAD_STATE", "a transfer ended in another state than completed", BrokenError, "link again"),
}

#: The states that a transfer can be in, by number.
STATES: Mapping[int, str] = {
    0: "HIXL_COMPLETE_STATUS_WAITING",
    1: "HIXL_COMPLETE_STATUS_COMPLETED",
    2: "HIXL_COMPLETE_STATUS_TIMEOUT",
    3: "HIXL_COMPLETE_STATUS_FAILED",
}

_UNKNOWN = Status("an unknown status", "HIXL answered something that nobody knows", BrokenError, _LOGS)


def name_of(status: int) -> str:
    """The symbolic name of a status, or ``"an unknown status"``."""
    return "HIXL_SUCCESS" if status == 0 else STATUSES.get(status, _UNKNOWN).name


def status_text(status: int) -> str:
    """A status in words, with its number and name."""
    known = STATUSES.get(status, _UNKNOWN)
    return f"{known.text} ({status}, {known.name})"


def status_error(
    status: int, operation: str, detail: str = "", family: type[CacheError] | None = None, **facts: Any
) -> CacheError:
    """The error for a status that is not 0.

    Args:
        status: What the function answered.
        operation: The function, or the public call that needed it.
        detail: Further words, such as the loader's.
        family: Another error than the table's.
        **facts: Values for the error's `facts`.
    """
    known = STATUSES.get(status, _UNKNOWN)
    text = f"{operation}: {status_text(status)}" + (f": {detail}" if detail else "")
    fields: dict[str, Any] = {
        "operation": operation,
        "transport": TRANSPORT,
        "status": status,
        "detail": detail or known.text,
        "facts": {"name": known.name, "fix": known.fix, **facts},
    }
    family = family or known.family
    if family is TransferTimeout:
        fields["facts"].setdefault("settled", False)
    text += f"; {known.fix}"
    if family is RequestError:
        return refusal(RequestError, {ValueError}, text, **fields)
    return family(text, **fields)


def check(status: int, operation: str, **facts: Any) -> None:
    """Return for 0, the one value that is success; else raise what the status means.

    Raises:
        CacheError: Of the family that `STATUSES` names; `BrokenError` for a status that nobody knows.
    """
    if status != 0:
        raise status_error(status, operation, **facts)
