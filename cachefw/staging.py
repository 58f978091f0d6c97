"""Moving memory of a kind that a link's transport does not take: through a buffer that it does take, in chunks.

The transport moves between the buffer and the peer, and a transport of this process that reaches both kinds of memory
copies between the buffer and the caller's memory. The buffer has two halves, so that both can work at the same time.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

import attrs
import numpy as np

from cachefw import layout
from cachefw.config import setting
from cachefw.copying import Copier, Flags, LocalCopy
from cachefw.errors import BrokenError, BusyError, CacheError, ClosedError, TransferCancelled, UnsupportedOperation
from cachefw.logs import event
from cachefw.memory import MemoryKind, aligned_empty
from cachefw.ranges import Pieces
from cachefw.registrar import Registrar
from cachefw.registry import Memory
from cachefw.transport import Batch, Capability, Channel, Operation, Prepared, Transfer, Transport, call_back

__all__ = ["Detour", "Staging"]

_NONE = np.zeros(0, np.uint64)
_PREFERRED = (MemoryKind.HOST, MemoryKind.PINNED, MemoryKind.DEVICE)


@attrs.frozen(eq=False)
class _Chunk:
    """What fits half of the buffer."""

    native: Prepared
    copy: LocalCopy


class StagedPrepared(Prepared):
    """A batch cut into chunks."""

    __slots__ = ("_nbytes", "chunks", "operation")

    def __init__(self, operation: Operation, chunks: list[_Chunk], nbytes: int) -> None:
        self.operation = operation
        self.chunks = chunks
        self._nbytes = nbytes

    @property
    def nbytes(self) -> int:
        """Sum of the lengths."""
        return self._nbytes


class StagedTransfer(Transfer):
    """One posted batch, moved chunk by chunk in the staging thread."""

    __slots__ = ("_callbacks", "_cancelled", "_channel", "_copier", "_done", "_error", "_lock", "_native", "_prepared")

    def __init__(self, prepared: StagedPrepared, channel: Channel, copier: Copier) -> None:
        self._prepared = prepared
        self._channel = channel
        self._copier = copier
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._callbacks: list[Callable[[Transfer], None]] = []
        self._error: CacheError | None = None
        self._cancelled = False
        # The transport's transfer of a chunk, the latest.
        self._native: Transfer | None = None

    @property
    def settled(self) -> bool:
        """Whether no byte of it can move any more."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it is settled, or `timeout` seconds have passed."""
        return self._done.wait(timeout)

    @property
    def error(self) -> CacheError | None:
        """Why it failed, None when every byte moved."""
        if not self._done.is_set():
            raise BusyError("the transfer is not settled yet; wait for it", operation="error")
        return self._error

    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        """Called from the staging thread."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        call_back(callback, self)

    def cancel(self) -> None:
        """Drop the chunks that have not begun."""
        self._cancelled = True

    @property
    def path(self) -> str:
        """The transport's own path, once it is known, and that it is not the whole way."""
        native = self._native
        return f"staged+{native.path}" if native is not None and native.path else "staged"

    def run(self, closed: Callable[[], bool]) -> None:
        """Move it, and settle whatever happens."""
        error: CacheError | None = None
        try:
            move = self._read if self._prepared.operation is Operation.READ else self._write
            move(closed)
        except CacheError as failure:
            # The positions are those within a chunk, which mean nothing to the caller.
            failure.facts.pop("failed", None)
            error = failure
        except BaseException as failure:
            error = BrokenError(f"staging stopped: {failure!r}", code="staging.broken", operation="post")
            error.__cause__ = failure
            if not isinstance(failure, Exception):
                raise
        finally:
            self._settle(error)

    def _read(self, closed: Callable[[], bool]) -> None:
        arrived: _Chunk | None = None
        for chunk in self._prepared.chunks:
            self._go_on(closed)
            native = self._native = self._channel.post(chunk.native)
            try:
                if arrived is not None:
                    self._copier.run(arrived.copy)
            finally:
                native.wait()
            if native.error is not None:
                raise native.error
            arrived = chunk
        if arrived is not None:
            self._copier.run(arrived.copy)

    def _write(self, closed: Callable[[], bool]) -> None:
        native: Transfer | None = None
        try:
            for chunk in self._prepared.chunks:
                self._go_on(closed)
                self._copier.run(chunk.copy)
                if native is not None:
                    native.wait()
                    if native.error is not None:
                        raise native.error
                native = self._native = self._channel.post(chunk.native)
        finally:
            if native is not None:
                native.wait()
        if native is not None and native.error is not None:
            raise native.error

    def _go_on(self, closed: Callable[[], bool]) -> None:
        if self._cancelled or closed():
            raise TransferCancelled("cancelled before its last chunk", operation="post")

    def _settle(self, error: CacheError | None) -> None:
        with self._lock:
            self._error = error
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            call_back(callback, self)


class Detour(Protocol):
    """How a link moves memory that its transport does not take; see `Staging`."""

    def prepare(self, operation: Operation, batch: Batch, on_device: Flags) -> Prepared:
        """Turn a batch into what `post` takes."""

    def post(self, prepared: Prepared) -> Transfer:
        """Begin it."""

    def close(self) -> None:
        """Give everything back."""


class Staging:
    """The buffer of one link, made when it is first needed, and the thread that works with it.

    Args:
        transport: The link's.
        channel: The link's.
        registrar: Where the buffer is registered.
        copier: The process's copies.
        allocate: Makes memory of a kind, or raises UnsupportedOperation.

    Thread safety: every method may be called from any thread.
    """

    def __init__(
        self,
        transport: Transport,
        channel: Channel,
        registrar: Registrar,
        copier: Copier,
        allocate: Callable[[int, MemoryKind], Any],
    ) -> None:
        self._transport = transport
        self._channel = channel
        self._registrar = registrar
        self._copier = copier
        self._allocate = allocate
        self._lock = threading.Lock()
        # Held until it is done: who closes again waits for that.
        self._giving_back = threading.Lock()
        self._memory: Memory | None = None
        self._work: queue.SimpleQueue[StagedTransfer | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def prepare(self, operation: Operation, batch: Batch, on_device: Flags) -> StagedPrepared:
        """Cut a batch into chunks.

        Args:
            operation: Which way.
            batch: As for `Channel.prepare`, but for the kind of the local memory.
            on_device: For each piece, whether its local side is device memory.

        Raises:
            UnsupportedOperation: No open transport copies between the local memory and memory of the link's transport.
            RegistrationError: The buffer was refused.
        """
        room = self._room(operation, on_device).region
        half = np.uint64(room.length // 2)
        starts = np.cumsum(batch.length, dtype=np.uint64) - batch.length
        total = int(batch.length.sum())
        cuts = np.unique(np.concatenate([starts, np.arange(0, total, int(half), dtype=np.uint64)]))
        piece = np.searchsorted(starts, cuts, side="right") - 1
        inside = cuts - starts[piece]
        length = np.diff(cuts, append=np.uint64(total))
        number = cuts // half
        slot = np.uint64(room.address) + number % np.uint64(2) * half + cuts % half
        local, remote = batch.local[piece] + inside, batch.remote[piece] + inside
        regions, devices = batch.regions[piece], on_device[piece]
        edges = np.flatnonzero(np.diff(number, prepend=np.uint64(2**63), append=np.uint64(2**63)))
        chunks = []
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            part = slice(first, last)
            joined, (ids,) = layout.join(Pieces(slot[part], remote[part], length[part]), regions[part])
            native = self._channel.prepare(operation, Batch(joined.local, joined.remote, joined.length, ids))
            chunks.append(
                _Chunk(native, _copy(operation, room.kind, local[part], slot[part], length[part], devices[part]))
            )
        return StagedPrepared(operation, chunks, total)

    def post(self, prepared: Prepared) -> StagedTransfer:
        """Begin it, after what was posted before.

        Raises:
            ClosedError: The link is closed.
        """
        assert isinstance(prepared, StagedPrepared)  # noqa: S101 - made by `prepare`
        transfer = StagedTransfer(prepared, self._channel, self._copier)
        with self._lock:
            if self._closed:
                raise ClosedError("this channel is closed", operation="post", transport=self._transport.info.name)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="cachefw-staging", daemon=True)
                self._thread.start()
            self._work.put(transfer)
        return transfer

    def close(self) -> None:
        """Drop what has not begun, wait for the rest, give the buffer back. The channel is closed. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._work.put(None)
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            # A done callback, which runs there, may be what waits for this.
            thread.join(float(setting("link_timeout")))
        with self._giving_back:
            memory, self._memory = self._memory, None
            if memory is None:
                return
            if thread is not None and thread.is_alive() and thread is not threading.current_thread():
                text = "closing: the staging buffer %s is still in use and stays registered"
                event(logging.WARNING, "memory.kept", text, memory, memory_id=memory.memory_id)
                return
            try:
                self._registrar.unregister_memory(memory)
            except CacheError as error:
                text = "closing: the staging buffer %s could not be given back: %s"
                event(logging.WARNING, "memory.kept", text, memory, error, error=error, memory_id=memory.memory_id)

    def _serve(self) -> None:
        while (transfer := self._work.get()) is not None:
            transfer.run(lambda: self._closed)
            del transfer

    def _room(self, operation: Operation, on_device: Flags) -> Memory:
        """The buffer, of a kind between which and the local memory somebody copies."""
        read = operation is Operation.READ
        with self._lock:
            if self._memory is not None:
                self._check_copies(read, self._memory.region.kind, on_device)
                return self._memory
            if self._closed:
                raise ClosedError("this channel is closed", operation="prepare", transport=self._transport.info.name)
            kind = self._kind(read, on_device)
            name = self._transport.info.name
            if Capability.LATE_REGISTRATION not in self._transport.info.capabilities:
                raise UnsupportedOperation(
                    f"transport {name!r} of this link cannot register a buffer for memory that it does not take once a "
                    "link exists (no Capability.LATE_REGISTRATION)",
                    code="staging.unsupported",
                    operation=operation.value,
                    transport=name,
                )
            size = int(setting("staging"))
            try:
                source = self._allocate(size, kind)
            except UnsupportedOperation:
                if kind is not MemoryKind.HOST:
                    raise
                source = aligned_empty(size, 4096)
            self._memory = self._registrar.register_memory(source, None, False, f"staging for {name}", adopt=False)
            return self._memory

    def _kind(self, read: bool, on_device: Flags) -> MemoryKind:
        name, kinds = self._transport.info.name, self._transport.info.kinds
        refused: UnsupportedOperation | None = None
        for kind in _PREFERRED:
            if kind in kinds:
                try:
                    self._check_copies(read, kind, on_device)
                except UnsupportedOperation as error:
                    refused = error
                else:
                    return kind
        raise UnsupportedOperation(
            f"transport {name!r} of this link takes {' and '.join(sorted(map(str, kinds)))} only, and memory of "
            f"another kind cannot be brought there: {refused}",
            code="staging.unsupported",
            operation="read" if read else "write",
            transport=name,
        ) from refused

    def _check_copies(self, read: bool, kind: MemoryKind, on_device: Flags) -> None:
        for device in {bool(flag) for flag in np.unique(on_device)}:
            ends = (device, kind is MemoryKind.DEVICE)
            self._copier.pick(*(ends if read else ends[::-1]))


def _copy(
    operation: Operation, kind: MemoryKind, local: layout.U64, slot: layout.U64, length: layout.U64, on_device: Flags
) -> LocalCopy:
    """What has to be copied between the buffer and the local memory."""
    same = bool(on_device[0]) if (on_device == on_device[0]).all() else None
    into, out_of = (local, slot) if operation is Operation.READ else (slot, local)
    if same is not None:
        joined, _ = layout.join(Pieces(into, out_of, length))
        into, out_of, length = joined.local, joined.remote, joined.length
    ends: tuple[Flags | bool, Flags | bool] = (on_device if same is None else same, kind is MemoryKind.DEVICE)
    sides = ends if operation is Operation.READ else ends[::-1]
    return LocalCopy(Batch(into, out_of, length, _NONE), *sides)
