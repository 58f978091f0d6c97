"""A process that was forked: what it inherited is its parent's, and neither works nor is given back in it.

Threads do not survive a fork, and neither do a device's contexts or a card's queues. So a forked process is refused at
every call of what it inherited, with the same words; and nothing of that is ever taken apart in it, since a finalizer
there could undo what the parent uses.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from cachefw.errors import ClosedError

__all__ = ["Inheritable", "forked_error", "watch"]


class Inheritable(Protocol):
    """What has to know when it finds itself in another process."""

    def forked(self) -> None:
        """Called in the child, before anything else runs there. Must not wait, and takes no lock of the parent's."""


_watched: weakref.WeakSet[Inheritable] = weakref.WeakSet()


def watch(item: Inheritable) -> None:
    """Tell it when this process forks, as long as it lives."""
    _watched.add(item)


def forked_error(operation: str, what: str) -> ClosedError:
    """The error of a call in a forked process."""
    return ClosedError(
        f"{operation}: this process was forked from the one that made this {what}, and threads, links and "
        "registrations do not survive that; make one here, or start processes by 'spawn'",
        code="closed.forked",
        operation=operation,
    )


def _in_child() -> None:
    inherited = list(_watched)
    _watched.clear()
    if inherited:
        import ctypes

        for item in inherited:
            item.forked()
            # Never taken apart in this process, not even when the interpreter ends.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))


os.register_at_fork(after_in_child=_in_child)
