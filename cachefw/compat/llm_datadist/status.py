"""Status codes and exceptions.

A wrong type is a `TypeError`, a number outside its machine range a `ValueError`, any other wrong argument an
`LLMException` that is a `ValueError` too, because LLM-DataDist's documentation and its behaviour name one each. All are
`cachefw.CacheError` as well.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any

from cachefw.errors import (
    AuthenticationError,
    BrokenError,
    BusyError,
    CacheError,
    ClosedError,
    NotFoundError,
    OutOfMemoryError,
    PluginError,
    RegistrationError,
    RequestError,
    TransferCancelled,
    TransferTimeout,
    TransportUnavailable,
    UnsupportedOperation,
    refusal,
)

__all__ = ["LLMException", "LLMStatusCode", "Status"]

_BASE = 0x5010B000


class LLMStatusCode(enum.IntEnum):
    """What a call came to. The values are those of the vendor's engine."""

    LLM_SUCCESS = 0
    LLM_FAILED = 0xFFFFFFFF
    LLM_WAIT_PROCESS_TIMEOUT = _BASE + 1
    LLM_KV_CACHE_NOT_EXIST = _BASE + 2
    LLM_REPEAT_REQUEST = _BASE + 3
    LLM_REQUEST_ALREADY_COMPLETED = _BASE + 4
    LLM_PARAM_INVALID = _BASE + 5
    LLM_ENGINE_FINALIZED = _BASE + 6
    LLM_NOT_YET_LINK = _BASE + 7
    LLM_ALREADY_LINK = _BASE + 8
    LLM_LINK_FAILED = _BASE + 9
    LLM_UNLINK_FAILED = _BASE + 10
    LLM_NOTIFY_PROMPT_UNLINK_FAILED = _BASE + 11
    LLM_CLUSTER_NUM_EXCEED_LIMIT = _BASE + 12
    LLM_PROCESSING_LINK = _BASE + 13
    LLM_DEVICE_OUT_OF_MEMORY = _BASE + 14
    LLM_PREFIX_ALREADY_EXIST = _BASE + 15
    LLM_PREFIX_NOT_EXIST = _BASE + 16
    LLM_SEQ_LENOVERLIMIT = _BASE + 17
    LLM_NO_FREE_BLOCK = _BASE + 18
    LLM_BLOCKS_OUT_OF_MEMORY = _BASE + 19
    LLM_EXIST_LINK = _BASE + 24
    LLM_FEATURE_NOT_ENABLED = _BASE + 25
    LLM_TIMEOUT = _BASE + 26
    LLM_LINK_BUSY = _BASE + 27
    LLM_OUT_OF_MEMORY = _BASE + 28
    LLM_DEVICE_MEM_ERROR = 507053
    LLM_SUSPECT_REMOTE_ERROR = 507057
    LLM_UNKNOWN_ERROR = -1

    def __str__(self) -> str:
        return f"LLMStatusCode.{self.name}"


class LLMException(CacheError, RuntimeError):
    """A call failed; `status_code` says how.

    Args:
        *args: The text first, as for any exception.
        status_code: How it failed. The default is success, as it is in the vendor's class.
        **fields: The attributes of `cachefw.CacheError`.
    """

    def __init__(self, *args: Any, status_code: LLMStatusCode = LLMStatusCode.LLM_SUCCESS, **fields: Any) -> None:
        # A name that `cachefw explain` knows, where nothing says it more closely.
        fields["code"] = fields.get("code") or status_code.name
        super().__init__(args[0] if args else "", **fields)
        self.args = args
        self._status_code = status_code

    @property
    def status_code(self) -> LLMStatusCode:
        """How it failed."""
        return self._status_code

    @property
    def message(self) -> str:
        """The text."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return Exception.__str__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args), dict(self.__dict__)


def _rebuild(cls: type[LLMException], args: tuple[Any, ...]) -> LLMException:
    return cls(*args)


class LLMValueError(LLMException, ValueError):
    """An argument has the right type and cannot be right."""


class LLMTypeError(LLMException, TypeError):
    """An argument of the wrong type, where the vendor's source raises an `LLMException` and its documentation this."""


class RoleError(RequestError, KeyError):
    """The role is None."""

    def __str__(self) -> str:
        return self.message


class Status:
    """A status code with a question."""

    def __init__(self, code: LLMStatusCode) -> None:
        self._code = code

    @property
    def status_code(self) -> LLMStatusCode:
        """The code."""
        return self._code

    def is_ok(self) -> bool:
        """Whether it is success."""
        return self._code == LLMStatusCode.LLM_SUCCESS

    def __repr__(self) -> str:
        return f"Status({self._code})"


def code_to_status(code: int) -> LLMStatusCode:
    """The status of a native code; one that is not known is `LLM_FAILED`."""
    try:
        status = LLMStatusCode(code)
    except ValueError:
        return LLMStatusCode.LLM_FAILED
    return LLMStatusCode.LLM_FAILED if status is LLMStatusCode.LLM_UNKNOWN_ERROR else status


def invalid(text: str, operation: str | None = None) -> LLMException:
    """What a wrong value gets."""
    return LLMValueError(text, status_code=LLMStatusCode.LLM_PARAM_INVALID, operation=operation)


def failed(status: LLMStatusCode, text: str, operation: str | None = None, **fields: Any) -> LLMException:
    """What a call that failed gets."""
    return LLMException(text, status_code=status, operation=operation, **fields)


def wrong_type(text: str, *more: type[Exception]) -> CacheError:
    """What a wrong type gets: a TypeError, and an AttributeError too where the documentation says so of None."""
    return refusal(RequestError, {TypeError, *more}, text)


def of_none(text: str) -> CacheError:
    """What None gets where an object is needed."""
    return refusal(RequestError, {AttributeError}, text)


def out_of_range(text: str) -> CacheError:
    """What a number outside its machine range gets."""
    return refusal(RequestError, {ValueError}, text)


def not_initialised(operation: str) -> CacheError:
    """What a call before `init` gets: a RuntimeError that is no LLMException."""
    return ClosedError(f"{operation}: call init() first", operation=operation)


_BY_CODE = {
    "not_found.link": LLMStatusCode.LLM_NOT_YET_LINK,
    "not_found.cache": LLMStatusCode.LLM_KV_CACHE_NOT_EXIST,
    "not_found.key": LLMStatusCode.LLM_KV_CACHE_NOT_EXIST,
    "registration.native": LLMStatusCode.LLM_FAILED,
    "link.closed": LLMStatusCode.LLM_NOT_YET_LINK,
    "link.listen": LLMStatusCode.LLM_FAILED,
    "request.rights": LLMStatusCode.LLM_PARAM_INVALID,
}
# In order: the first that fits decides.
_BY_FAMILY: tuple[tuple[type[CacheError], LLMStatusCode], ...] = (
    (NotFoundError, LLMStatusCode.LLM_PARAM_INVALID),
    (RegistrationError, LLMStatusCode.LLM_PARAM_INVALID),
    (RequestError, LLMStatusCode.LLM_PARAM_INVALID),
    # A peer that is gone and one that is late are one thing to a caller: this link is dead, make it anew.
    (TransferTimeout, LLMStatusCode.LLM_TIMEOUT),
    (TransferCancelled, LLMStatusCode.LLM_TIMEOUT),
    (BrokenError, LLMStatusCode.LLM_TIMEOUT),
    (AuthenticationError, LLMStatusCode.LLM_LINK_FAILED),
    (OutOfMemoryError, LLMStatusCode.LLM_OUT_OF_MEMORY),
    (UnsupportedOperation, LLMStatusCode.LLM_FEATURE_NOT_ENABLED),
    (TransportUnavailable, LLMStatusCode.LLM_FAILED),
    (PluginError, LLMStatusCode.LLM_FAILED),
    (BusyError, LLMStatusCode.LLM_LINK_BUSY),
    (ClosedError, LLMStatusCode.LLM_KV_CACHE_NOT_EXIST),
)
_PASSED_THROUGH = (LLMStatusCode.LLM_DEVICE_MEM_ERROR, LLMStatusCode.LLM_SUSPECT_REMOTE_ERROR)


def status_of(error: CacheError) -> LLMStatusCode:
    """The status that an error of cachefw's comes to."""
    if isinstance(error, LLMException):
        return error.status_code
    if error.status in _PASSED_THROUGH:
        return LLMStatusCode(error.status)
    known = _BY_CODE.get(error.code)
    if known is not None:
        return known
    return next((status for family, status in _BY_FAMILY if isinstance(error, family)), LLMStatusCode.LLM_FAILED)


def translated(error: CacheError, operation: str) -> CacheError:
    """An error of cachefw's as the `LLMException` of a public call; a wrong type stays one, and None too."""
    wrong_kind = isinstance(error, (TypeError, AttributeError)) and not isinstance(error, ValueError)
    if wrong_kind or isinstance(error, LLMException):
        return error
    status = status_of(error)
    cls = LLMValueError if status is LLMStatusCode.LLM_PARAM_INVALID else LLMException
    return cls(
        f"{operation} failed, {status}: {error}",
        status_code=status,
        code=error.code,
        operation=operation,
        transport=error.transport,
        peer=error.peer,
        status=error.status,
        detail=error.detail,
        findings=error.findings,
        facts=error.facts,
    )


def worst(statuses: Iterable[LLMStatusCode]) -> LLMStatusCode:
    """The last that is no success, or success."""
    overall = LLMStatusCode.LLM_SUCCESS
    for status in statuses:
        if status is not LLMStatusCode.LLM_SUCCESS:
            overall = status
    return overall
