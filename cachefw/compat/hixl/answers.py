"""How the methods of `Hixl` answer: a status number, and the reason in the log."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from cachefw.compat.engine import log_error, named_arguments
from cachefw.compat.hixl.values import (
    FAILED,
    NOT_CONNECTED,
    PARAM_INVALID,
    RESOURCE_EXHAUSTED,
    TIMEOUT,
    UNSUPPORTED,
)
from cachefw.errors import (
    BrokenError,
    CacheError,
    ClosedError,
    OutOfMemoryError,
    RegistrationError,
    RequestError,
    TransferTimeout,
    TransportUnavailable,
    UnsupportedOperation,
)

__all__ = ["Answer", "answers"]

_log = logging.getLogger("cachefw.compat")
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Answer(Exception):
    """A status that is no error of cachefw's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def status_of(error: CacheError) -> int:
    """The number that says most nearly what an error says."""
    if isinstance(error, TransferTimeout):
        return TIMEOUT
    if isinstance(error, (RequestError, RegistrationError)):
        return FAILED if error.code == "registration.native" else PARAM_INVALID
    if isinstance(error, (ClosedError, BrokenError)) and error.code in ("link.closed", "link.broken"):
        return NOT_CONNECTED
    if isinstance(error, OutOfMemoryError):
        return RESOURCE_EXHAUSTED
    if isinstance(error, (UnsupportedOperation, TransportUnavailable)):
        return UNSUPPORTED
    return FAILED


def answers(
    wrap: Callable[[int], Any] = lambda status: status,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Turn what a method raises into a status, `wrap` into what it returns; a wrong type stays a `TypeError`."""

    def decorate(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        @functools.wraps(method)
        def answer(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            try:
                return method(*args, **kwargs)
            except Answer as told:
                status = told.status
                _log.error("hixl: %s returns %s: %s", method.__name__, status, told)
            except CacheError as error:
                if isinstance(error, TypeError):
                    raise
                status = status_of(error)
                log_error("hixl", method.__name__, error, status)
            return wrap(status)  # type: ignore[no-any-return]

        return named_arguments(answer)

    return decorate
