"""Transfers of device memory through host memory: prepared, posted, and carried out by a thread of the channel."""

from __future__ import annotations

import collections
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cachefw.errors import BrokenError, BusyError, CacheError, ClosedError, TransferCancelled
from cachefw.transport import Batch, Operation, Prepared, Transfer, call_back

from .engine import Job, UcxPrepared
from .staging import Buffer, Stage, chunks_of, claim, left
from .status import TRANSPORT

if TYPE_CHECKING:
    from cachefw_ascendcl import Copies, Stream

__all__ = ["Carrier", "Native", "StagedPrepared", "StagedTransfer"]

_SLICE = 0.1


class Native(Protocol):
    """The channel below: batches of host memory."""

    def prepare_host(self, operation: Operation, batch: Batch) -> UcxPrepared:
        """Put a batch whose local memory is the host's into native form."""

    def post_host(self, prepared: UcxPrepared) -> Job:
        """Post one."""


class StagedPrepared(Prepared):
    """Chunks of device memory, and what of the batch is host memory."""

    __slots__ = (
        "_copies",
        "_path",
        "_ready",
        "_size",
        "chunks",
        "direct",
        "host_items",
        "native",
        "operation",
        "stage",
    )

    def __init__(
        self, native: Native, stage: Stage, operation: Operation, batch: Batch, mask: np.ndarray, path: str
    ) -> None:
        self.native, self.stage, self.operation = native, stage, operation
        self._size = int(batch.length.sum())
        self._path = f"staged+{path}"
        self.chunks = list(chunks_of(batch, np.flatnonzero(mask).astype(np.uint64), stage.size))
        self.host_items = np.flatnonzero(~mask)
        rows = self.host_items
        self.direct = (
            native.prepare_host(
                operation, Batch(batch.local[rows], batch.remote[rows], batch.length[rows], batch.regions[rows])
            )
            if len(rows)
            else None
        )
        # Whatever is wrong with the peer's memory is refused now, before anything moves.
        native.prepare_host(operation, batch)
        # For each chunk its native form, and that of its copies, with the buffer and the stream they are for.
        self._ready: list[tuple[Buffer, UcxPrepared] | None] = [None] * len(self.chunks)
        self._copies: list[tuple[Buffer, Stream, Copies] | None] = [None] * len(self.chunks)

    @property
    def nbytes(self) -> int:
        """Sum of the lengths."""
        return self._size

    @property
    def path(self) -> str:
        """``staged+`` and UCX's transports."""
        return self._path

    def through(self, number: int, buffer: Buffer) -> UcxPrepared:
        """A chunk between the peer and a buffer."""
        known = self._ready[number]
        if known is None or known[0] is not buffer:
            chunk = self.chunks[number]
            batch = Batch(chunk.offset + np.uint64(buffer.address), chunk.remote, chunk.length, chunk.regions)
            known = self._ready[number] = buffer, self.native.prepare_host(self.operation, batch)
        return known[1]

    def copies(self, number: int, buffer: Buffer, stream: Stream) -> Copies:
        """A chunk between a buffer and the device."""
        from cachefw_ascendcl import Copies, CopyKind

        known = self._copies[number]
        if known is None or known[0] is not buffer or known[1] is not stream:
            chunk = self.chunks[number]
            host = chunk.offset + np.uint64(buffer.address)
            if self.operation is Operation.READ:
                made = Copies(stream, chunk.device, host, chunk.length, CopyKind.HOST_TO_DEVICE)
            else:
                made = Copies(stream, host, chunk.device, chunk.length, CopyKind.DEVICE_TO_HOST)
            known = self._copies[number] = buffer, stream, made
        return known[2]


class StagedTransfer(Transfer):
    """One posted batch. Settled when neither UCX nor the device holds anything of it."""

    __slots__ = ("_callbacks", "_cond", "_done", "_error", "_jobs", "cancelled", "prepared")

    def __init__(self, prepared: StagedPrepared) -> None:
        self.prepared = prepared
        self.cancelled = False
        self._cond = threading.Condition()
        self._done = False
        self._error: CacheError | None = None
        self._jobs: set[Job] = set()
        self._callbacks: list[Callable[[Transfer], None]] = []

    @property
    def settled(self) -> bool:
        """Whether it is over."""
        return self._done

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it is over, a slice at a time."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._cond:
            while not self._done:
                slice_ = left(end)
                if slice_ <= 0:
                    return self._done
                self._cond.wait(slice_)
        return True

    @property
    def error(self) -> CacheError | None:
        """What went wrong first."""
        if not self._done:
            raise BusyError("the transfer is not settled yet; wait for it", transport=TRANSPORT)
        return self._error

    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        """Called from the channel's thread, unless it is over already."""
        with self._cond:
            if not self._done:
                self._callbacks.append(callback)
                return
        call_back(callback, self)

    def cancel(self) -> None:
        """Begin with no further chunk, and ask UCX for no more of those that are on their way."""
        with self._cond:
            self.cancelled = True
            jobs = list(self._jobs)
        for job in jobs:
            job.cancel()

    @property
    def path(self) -> str:
        """As prepared."""
        return self.prepared.path

    # ------------------------------------------------------------------ for the channel's thread

    def begun(self, job: Job) -> None:
        """UCX works on a part of it."""
        with self._cond:
            self._jobs.add(job)
            cancelled = self.cancelled
        if cancelled:
            job.cancel()

    def ended(self, job: Job) -> None:
        """UCX does not any more."""
        with self._cond:
            self._jobs.discard(job)

    def settle(self, error: CacheError | None) -> None:
        """It is over."""
        with self._cond:
            self._error, self._done = error, True
            callbacks, self._callbacks = self._callbacks, []
            self._cond.notify_all()
        for callback in callbacks:
            call_back(callback, self)


class Carrier:
    """Carries out the transfers of one channel, one after the other, in a thread that starts with the first.

    Other channels have theirs, so that a peer that hangs holds up nobody else as long as buffers are left.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[StagedTransfer | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._running: set[StagedTransfer] = set()
        self._closed = False

    def post(self, prepared: StagedPrepared) -> StagedTransfer:
        """Queue it.

        Raises:
            ClosedError: The channel is closed.
        """
        transfer = StagedTransfer(prepared)
        with self._lock:
            if self._closed:
                raise ClosedError("this channel is closed", operation="post", transport=TRANSPORT)
            if self._thread is None:
                self._thread = self._stage.start("cachefw-rdma-staging", self._work)
            self._running.add(transfer)
            self._queue.put(transfer)
        return transfer

    def stop(self) -> None:
        """Take no more, and drop what has not begun."""
        with self._lock:
            first, self._closed = not self._closed, True
            running, thread = list(self._running), self._thread
        for transfer in running:
            transfer.cancel()
        if first and thread is not None:
            self._queue.put(None)

    def join(self, timeout: float) -> None:
        """Wait for the thread after `stop`; where UCX never lets go of a request it ends with the transport."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _work(self) -> None:
        while (transfer := self._queue.get()) is not None:
            error = _Run(self._stage, transfer).whole()
            with self._lock:
                self._running.discard(transfer)
            transfer.settle(error)
            del transfer


class _Run:
    """One transfer being carried out."""

    def __init__(self, stage: Stage, transfer: StagedTransfer) -> None:
        self._stage = stage
        self._transfer = transfer
        self._prepared = transfer.prepared
        self._error: CacheError | None = None
        self._first = len(self._prepared.chunks)  # chunk that did not arrive, of those known
        self._waiting: collections.deque[tuple[int, Buffer, Job]] = collections.deque()
        self._free: list[Buffer] = []
        self._stream: Stream | None = None
        self._spoiled = False

    def whole(self) -> CacheError | None:
        """Do all of it; what went wrong first. On return nothing moves any more."""
        prepared, transfer = self._prepared, self._transfer
        direct: Job | None = None
        buffers: list[Buffer] = []
        try:
            if not transfer.cancelled and prepared.direct is not None:
                direct = prepared.native.post_host(prepared.direct)
                transfer.begun(direct)
            buffers = self._stage.take(len(prepared.chunks), lambda: transfer.cancelled)
            self._free = list(buffers)
            if buffers:
                self._stream = self._stage.stream()
                self._chunks()
            else:
                self._first = 0
        except Exception as error:
            self._note(_named(error), 0)
        while self._waiting:
            self._finish()
        if direct is not None:
            self._settle(direct)
            if direct.error is not None:
                self._note(claim(direct.error, "post", prepared.host_items), -1)
        if self._stream is not None:
            self._stage.done(self._stream, spoiled=self._spoiled)
        self._stage.give_back(buffers)
        if self._error is None and transfer.cancelled and self._first < len(prepared.chunks):
            item = int(prepared.chunks[self._first].items[0])
            self._error = TransferCancelled(
                f"the transfer was cancelled before all of piece {item} had moved",
                transport=TRANSPORT,
                facts={"failed": (item,)},
            )
        return self._error

    def _chunks(self) -> None:
        for number in range(len(self._prepared.chunks)):
            while not self._free:
                self._finish()
            if self._error is not None or self._transfer.cancelled:
                self._first = min(self._first, number)
                return
            buffer = self._free.pop()
            try:
                if self._prepared.operation is Operation.WRITE:
                    self._copy(number, buffer)
                job = self._prepared.native.post_host(self._prepared.through(number, buffer))
            except Exception as error:
                self._note(_named(error), number)
                self._free.append(buffer)
                return
            self._transfer.begun(job)
            self._waiting.append((number, buffer, job))

    def _finish(self) -> None:
        """Wait for the oldest request, and bring a read's bytes to the device."""
        number, buffer, job = self._waiting.popleft()
        self._settle(job)
        failure = job.error
        self._free.append(buffer)
        if isinstance(failure, TransferCancelled):
            self._first = min(self._first, number)
        elif failure is not None:
            self._note(claim(failure, "post", self._prepared.chunks[number].items), number)
        elif self._prepared.operation is Operation.READ:
            if self._error is not None or self._transfer.cancelled:
                self._first = min(self._first, number)
                return
            try:
                self._copy(number, buffer)
            except Exception as error:
                self._note(_named(error), number)

    def _settle(self, job: Job) -> None:
        while not job.wait(_SLICE):
            continue
        self._transfer.ended(job)

    def _copy(self, number: int, buffer: Buffer) -> None:
        """Between a buffer and the device, done on return."""
        assert self._stream is not None  # noqa: S101 - taken before the first chunk
        copies = self._prepared.copies(number, buffer, self._stream)
        items = self._prepared.chunks[number].items
        refused: CacheError | None = None
        try:
            copies.post()
        except CacheError as error:
            refused = claim(error, "post", items)
        try:
            # Also after a refusal: what was queued before it still has to end.
            self._stream.synchronize()
        except CacheError as error:
            refused = refused or claim(error, "post")
        if refused is not None:
            self._spoiled = True
            raise refused

    def _note(self, error: CacheError, number: int) -> None:
        self._first = min(self._first, max(number, 0))
        if self._error is None:
            self._error = error


def _named(error: Exception) -> CacheError:
    """The error of a transfer: nobody else would hear what goes wrong in this thread."""
    if isinstance(error, CacheError):
        return error
    failure = BrokenError(
        f"staging device memory failed: {error!r}", code="transfer.failed", operation="post", transport=TRANSPORT
    )
    failure.__cause__ = error
    return failure
