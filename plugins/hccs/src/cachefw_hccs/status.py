"""The transport's name on every error that the runtime gives."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any

from cachefw.errors import CacheError

__all__ = ["TRANSPORT", "claim", "close_all", "named"]

TRANSPORT = "hccs"

_log = logging.getLogger("cachefw.hccs")


@contextlib.contextmanager
def named(operation: str, positions: Any = None) -> Iterator[None]:
    """Say on errors of the block that this transport met them, and doing what.

    Args:
        operation: What was being done.
        positions: Where the items of the native list stand in the caller's, if they are not the same.
    """
    try:
        yield
    except CacheError as error:
        claim(error, operation, positions)
        raise


def claim(error: CacheError, operation: str, positions: Any = None) -> CacheError:
    """Complete one error; see `named`."""
    error.transport = TRANSPORT
    error.facts.setdefault("call", error.operation)
    error.operation = operation
    failed = error.facts.get("failed")
    if failed and positions is not None:
        error.facts["failed"] = tuple(int(positions[item]) for item in failed)
    return error


def close_all(handles: Iterable[Any]) -> None:
    """Close handles where nobody could do anything about a refusal: each is tried, and said in the log."""
    from cachefw_ascendcl import close_all as close_each

    for error in close_each(list(handles)):
        _log.warning("the runtime did not take something back: %s", error)
