"""What every owned handle has in common, and the context that calls need."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from cachefw.errors import BusyError, CacheError, ClosedError

from ._acl import ffi, lib
from .status import check

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._acl import CData

__all__ = ["Bound", "Handle", "Owned", "Scope", "address_of", "bound", "close_all", "forks", "pointer"]

_epoch = 0


def _after_fork() -> None:
    global _epoch  # noqa: PLW0603
    _epoch += 1


os.register_at_fork(after_in_child=_after_fork)


def forks() -> int:
    """How many forks lie between this process and the one that imported the module."""
    return _epoch


def pointer(address: int) -> CData:
    """An address as C's ``void *``."""
    return ffi.cast("void *", address)


def address_of(value: CData) -> int:
    """A C pointer as an address."""
    return int(ffi.cast("uintptr_t", value))


class Handle:
    """Something that the runtime made and that has to be given back.

    `close` gives it back: idempotent, from any thread. When the runtime refuses, `close` raises and the handle stays
    open, so that it can be tried again; `abandon` gives it up instead. A handle that others were made from cannot be
    closed before them: `BusyError` names them. Using a closed handle is a `ClosedError`.

    A handle that is forgotten is reported with a `ResourceWarning` and *not* given back: the finalizer may run in any
    thread, in between the calls of another context, while the device still works on the memory. The runtime frees what
    was forgotten when the device is reset or the process ends.

    In a forked child every handle of the parent is closed: it can be neither used nor given back there.
    """

    kind: ClassVar[str] = "handle"

    def __init__(self, owner: Handle | None, raw: Any) -> None:
        self._raw = raw
        self._owner = owner
        self._epoch = _epoch
        self._children: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._lock = threading.RLock()
        if owner is not None:
            with owner._lock:
                owner._children.add(self)

    @property
    def closed(self) -> bool:
        """Whether it was given back, or belongs to the parent of this process."""
        return self._raw is None or self._epoch != _epoch

    @property
    def raw(self) -> Any:
        """The runtime's own handle.

        Raises:
            ClosedError: It was closed.
        """
        raw = self._raw
        if raw is None:
            raise ClosedError(f"this {self.kind} is closed", operation=self.kind)
        if self._epoch != _epoch:
            raise ClosedError(
                f"this {self.kind} belongs to the parent of this process: a device cannot be used across fork(); "
                "start processes with 'spawn'",
                code="acl.forked",
                operation=self.kind,
            )
        return raw

    def close(self) -> None:
        """Give it back.

        Raises:
            BusyError: Others that were made from it are still open.
            CacheError: The runtime refused; the handle is still open.
        """
        if self.closed:
            self._raw = None
            return
        with self._lock:
            if self._raw is None:
                return
            self._refuse_while_needed()
            self._release(self._raw)
            self._forget()

    def abandon(self) -> None:
        """Give it up without a call of the runtime: for what `close` could not give back. Idempotent."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self._raw = None
        if self._owner is not None:
            with self._owner._lock:
                self._owner._children.discard(self)

    def _release(self, raw: Any) -> None:
        raise NotImplementedError

    def _refuse_while_needed(self) -> None:
        kinds = Counter(child.kind for child in self._children if not child.closed)
        if kinds:
            names = ", ".join(f"{count} {kind}{'s' * (count > 1)}" for kind, count in sorted(kinds.items()))
            raise BusyError(f"this {self.kind} is still needed by {names}; close them first", operation="close")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{self._describe()}{', closed' if self.closed else ''}>"

    def _describe(self) -> str:
        return self.kind

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if getattr(self, "_raw", None) is not None and self._epoch == _epoch:
            _warn(f"{self!r} was never closed", ResourceWarning, source=self)


def close_all(handles: Iterable[Handle]) -> list[CacheError]:
    """Close handles in the order given, whatever some of them answer: for cleaning up.

    What the runtime refuses is tried a second time, and given up when it is refused again.

    Returns:
        The errors of those that were given up.
    """
    errors = []
    for handle in handles:
        try:
            try:
                handle.close()
            except CacheError:
                handle.close()
        except CacheError as error:
            errors.append(error)
            handle.abandon()
    return errors


class Bound:
    """A ``with`` block in whose thread a context is current.

    On leaving, also by an exception, the thread has again the context that it had. A thread that had none keeps this
    one, since AscendCL has no call that takes it away. Blocks nest. An object serves one block at a time.
    """

    __slots__ = ("_context", "_previous")

    def __init__(self, context: CData) -> None:
        self._context = context
        self._previous = ffi.new("aclrtContext *")

    def __enter__(self) -> None:
        status = lib.cfw_acl_enter(self._context, self._previous)
        if status:
            check(status, "aclrtSetCurrentContext")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        status = lib.cfw_acl_leave(self._previous[0])
        # What went wrong inside is the better news.
        if status and error is None:
            check(status, "aclrtSetCurrentContext")


class Scope(Handle):
    """A device or a context: what calls are made in."""

    def __init__(self, owner: Handle | None, raw: Any, context: CData, index: int) -> None:
        super().__init__(owner, raw)
        self._context = context
        self.index = index

    @property
    def context(self) -> CData:
        """The context's raw handle, as ``cfw_acl_copies.context`` needs it."""
        _ = self.raw
        return self._context

    def bound(self) -> Bound:
        """A ``with`` block in whose thread this context is current."""
        return Bound(self.context)


class Owned(Handle):
    """A handle that is made and given back in a context.

    Args:
        scope: The context.
        create: Makes it, in that context, or raises.
    """

    def __init__(self, scope: Scope, create: Callable[[], Any]) -> None:
        self.scope = scope
        try:
            with scope.bound():
                super().__init__(scope, create())
        except BaseException:
            # Made, but the caller's context could not be brought back: the error must not cost what was made.
            if getattr(self, "_raw", None) is not None:
                with contextlib.suppress(CacheError):
                    self._destroy(self._raw)
                self._forget()
            raise

    def _release(self, raw: Any) -> None:
        with self.scope.bound():
            self._destroy(raw)
            # It is gone, even if the caller's context cannot be brought back.
            self._forget()

    def _destroy(self, raw: Any) -> None:
        raise NotImplementedError


def bound(scope: Scope) -> Bound:
    """Make a device's or context's calls possible in the calling thread, for a ``with`` block.

    The caller's own context is back afterwards, also after an exception. A thread that had none keeps this one:
    AscendCL has no call that takes a context away.

    Args:
        scope: A `Device` or a `Context`.

    Raises:
        ClosedError: It is closed.
    """
    return scope.bound()
