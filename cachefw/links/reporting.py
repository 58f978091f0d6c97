"""Reports of a link's transfers, made only where somebody observes them.

A link whose transfers are observed is made on an `ObservedChannel`; nobody else's transfers know of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cachefw.copying import Flags
from cachefw.errors import CacheError, TransferCancelled
from cachefw.memory import MemoryRegion
from cachefw.reports import TransferReport
from cachefw.staging import Detour
from cachefw.transport import Batch, Channel, Operation, Prepared, Transfer

__all__ = ["ObservedChannel", "Report"]

Report = Callable[[TransferReport], None]


class _ObservedPrepared(Prepared):
    __slots__ = ("native", "operation", "pieces")

    def __init__(self, native: Prepared, operation: Operation, pieces: int) -> None:
        self.native = native
        self.operation = operation
        self.pieces = pieces

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
        report: Given each report, in whatever thread the transfer settles; must not wait.
        peer: The peer in words.
        cluster_id: The peer's.
        transport: The transport's name.

    Thread safety: as for `Channel`.
    """

    def __init__(self, channel: Channel, report: Report, peer: str, cluster_id: int, transport: str) -> None:
        self._channel = channel
        self._report = report
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
        return _ObservedPrepared(self._channel.prepare(operation, batch), operation, len(batch))

    def post(self, prepared: Prepared) -> Transfer:
        """As `Channel.post`."""
        return self._post(self._channel.post, prepared)

    def around(self, make: Callable[[Channel], Detour]) -> Detour:
        """A detour over the transport's own channel that reports each of its transfers as one, not its parts."""
        return _ObservedDetour(make(self._channel), self._post)

    def _post(self, start: Callable[[Prepared], Transfer], prepared: Prepared) -> Transfer:
        assert isinstance(prepared, _ObservedPrepared)  # noqa: S101 - the link posts only what it prepared here
        began = time.perf_counter()
        try:
            transfer = start(prepared.native)
        except CacheError as error:
            self._told(prepared, began, prepared.path, error)
            raise
        transfer.add_done_callback(lambda it: self._told(prepared, began, it.path, it.error))
        return transfer

    def _told(self, prepared: _ObservedPrepared, began: float, path: str, error: CacheError | None) -> None:
        outcome = "done" if error is None else "cancelled" if isinstance(error, TransferCancelled) else "failed"
        self._report(
            TransferReport(
                *self._whose,
                path,
                prepared.operation.value,
                prepared.nbytes,
                prepared.pieces,
                time.perf_counter() - began,
                outcome,
                "" if error is None else error.code,
            )
        )


class _ObservedDetour:
    def __init__(self, detour: Detour, post: Callable[[Callable[[Prepared], Transfer], Prepared], Transfer]) -> None:
        self._detour = detour
        self._post = post

    def prepare(self, operation: Operation, batch: Batch, on_device: Flags) -> Prepared:
        return _ObservedPrepared(self._detour.prepare(operation, batch, on_device), operation, len(batch))

    def post(self, prepared: Prepared) -> Transfer:
        return self._post(self._detour.post, prepared)

    def close(self) -> None:
        self._detour.close()
