"""Reports of a link's transfers, made only where somebody observes them.

A link whose transfers are observed is made on an `ObservedChannel`; nobody else's transfers know of it.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable

import attrs

from cachefw.copying import Flags
from cachefw.errors import CacheError, TransferCancelled
from cachefw.memory import MemoryRegion
from cachefw.reports import Finished
from cachefw.staging import Detour
from cachefw.transport import Batch, Channel, Operation, Prepared, Transfer

__all__ = ["ObservedChannel", "Observer"]


@attrs.frozen
class Observer:
    """Who is told of a node's transfers.

    Attributes:
        finished: Given each, in whatever thread it settles, with the context in which it was posted; must not wait.
        number: Gives each transfer its number.
        contexts: Whether the context is wanted.
    """

    finished: Callable[[Finished, contextvars.Context | None], None]
    number: Callable[[], int]
    contexts: bool


class _ObservedPrepared(Prepared):
    __slots__ = ("asked", "native", "staged")

    def __init__(self, native: Prepared, operation: Operation, pieces: int, staged: bool) -> None:
        self.native = native
        self.asked = operation.value, native.nbytes, pieces
        self.staged = staged

    @property
    def nbytes(self) -> int:
        return self.native.nbytes

    @property
    def path(self) -> str:
        return self.native.path


class ObservedChannel(Channel):
    """A channel that reports each of its transfers once it has settled.

    Args:
        channel: The transport's own.
        observer: Told of each.
        peer: The peer in words.
        cluster_id: The peer's.
        transport: The transport's name.

    Thread safety: as for `Channel`.
    """

    def __init__(self, channel: Channel, observer: Observer, peer: str, cluster_id: int, transport: str) -> None:
        self._channel = channel
        self._observer = observer
        self._whose = peer, cluster_id, transport

    @property
    def fences(self) -> bool:
        """As `Channel.fences`."""
        return self._channel.fences

    def attach(self, memory_id: int, region: MemoryRegion, description: bytes) -> None:
        """As `Channel.attach`."""
        self._channel.attach(memory_id, region, description)

    def detach(self, memory_id: int) -> None:
        """As `Channel.detach`."""
        self._channel.detach(memory_id)

    def close(self) -> None:
        """As `Channel.close`."""
        self._channel.close()

    def prepare(self, operation: Operation, batch: Batch) -> Prepared:
        """As `Channel.prepare`."""
        return _ObservedPrepared(self._channel.prepare(operation, batch), operation, len(batch), False)

    def post(self, prepared: Prepared) -> Transfer:
        """As `Channel.post`."""
        return self._post(self._channel.post, prepared)

    def around(self, make: Callable[[Channel], Detour]) -> Detour:
        """A detour over the transport's own channel that reports each of its transfers as one, not its parts."""
        return _ObservedDetour(make(self._channel), self._post)

    def _post(self, start: Callable[[Prepared], Transfer], prepared: Prepared) -> Transfer:
        assert isinstance(prepared, _ObservedPrepared)  # noqa: S101 - the link posts only what it prepared here
        context = contextvars.copy_context() if self._observer.contexts else None
        began = time.perf_counter()
        try:
            transfer = start(prepared.native)
        except CacheError as error:
            self._told(prepared, began, prepared.path, error, context)
            raise
        transfer.add_done_callback(lambda it: self._told(prepared, began, it.path, it.error, context))
        return transfer

    def _told(
        self,
        prepared: _ObservedPrepared,
        began: float,
        path: str,
        error: CacheError | None,
        context: contextvars.Context | None,
    ) -> None:
        seconds = time.perf_counter() - began
        outcome, code = "done", ""
        if error is not None:
            outcome, code = "cancelled" if isinstance(error, TransferCancelled) else "failed", error.code
        observer = self._observer
        whole = (
            observer.number(),
            time.time(),
            *self._whose,
            path,
            *prepared.asked,
            seconds,
            outcome,
            code,
            prepared.staged,
        )
        observer.finished(whole, context)


class _ObservedDetour:
    def __init__(self, detour: Detour, post: Callable[[Callable[[Prepared], Transfer], Prepared], Transfer]) -> None:
        self._detour = detour
        self._post = post

    def prepare(self, operation: Operation, batch: Batch, on_device: Flags) -> Prepared:
        native = self._detour.prepare(operation, batch, on_device)
        return _ObservedPrepared(native, operation, len(batch), True)

    def post(self, prepared: Prepared) -> Transfer:
        return self._post(self._detour.post, prepared)

    def close(self) -> None:
        self._detour.close()
