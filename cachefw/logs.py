"""Log records with fields: what happened has a name, and what it happened to is not only in the text."""

from __future__ import annotations

import logging
from typing import Any

from cachefw.errors import CacheError

__all__ = ["event", "log"]

log = logging.getLogger("cachefw")


def event(
    level: int, name: str, text: str, /, *args: Any, error: CacheError | None = None, trace: bool = False, **fields: Any
) -> None:
    """Log something that happened.

    Args:
        level: One of `logging`'s.
        name: What happened, short and stable; the record's ``cachefw_event``.
        text: For people, with ``%s`` for `args`.
        *args: Its values.
        error: Its code, operation, peer and transport become fields, where `fields` does not have them.
        trace: Whether the exception that is being handled is shown, too.
        **fields: Further attributes of the record, each after ``cachefw_``.
    """
    if not log.isEnabledFor(level):
        return
    if error is not None:
        known = {name: getattr(error, name) for name in ("code", "operation", "peer", "transport", "status")}
        fields = {**{name: value for name, value in known.items() if value is not None}, **fields}
    extra = {"cachefw_event": name, **{f"cachefw_{field}": value for field, value in fields.items()}}
    log.log(level, text, *args, extra=extra, exc_info=trace, stacklevel=2)
