"""Transfers over one HIXL client: each batch is one native call, made by a thread of the channel's own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from cachefw.errors import BrokenError, BusyError, CacheError, ClosedError, TransferCancelled, UnsupportedOperation
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.transport import Batch, Channel, Operation, Prepared, Transfer, call_back

from .. import envelope
from ._hixl import ffi, lib
from .handles import Client, RemoteMemory
from .status import STATES, TRANSPORT, status_error

if TYPE_CHECKING:
    from ._hixl import CData

__all__ = ["HixlChannel", "HixlTransfer"]

# HIXL moves at most 4000 pieces of a client at once; as many calls in turn keep its queue filled.
_CHUNK = 1000
_IN_FLIGHT = 4

_PIECE = np.dtype([("remote", np.uint64), ("local", np.uint64), ("length", np.uint64)])


@attrs.define(eq=False)
class _Prepared(Prepared):
    put: bool
    pieces: np.ndarray[Any, Any]
    total: int
    busy: bool = False

    @property
    def nbytes(self) -> int:
        """Sum of the lengths."""
        return self.total


class HixlTransfer(Transfer):
    """One batch on its way."""

    __slots__ = ("_callbacks", "_error", "_lock", "_settled", "job", "prepared")

    def __init__(self, prepared: _Prepared, job: CData) -> None:
        self.prepared = prepared
        self.job = job
        self._settled = threading.Event()
        self._error: CacheError | None = None
        self._callbacks: list[Callable[[Transfer], None]] = []
        self._lock = threading.Lock()

    @property
    def settled(self) -> bool:
        """Whether no byte of it can move any more."""
        return self._settled.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it is settled, or `timeout` seconds have passed."""
        return self._settled.wait(timeout)

    @property
    def error(self) -> CacheError | None:
        """Why it failed, None when every byte moved."""
        if not self.settled:
            raise BusyError("the transfer has not settled yet", operation="error", transport=TRANSPORT)
        return self._error

    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        """Have it called once settled, at once if it is."""
        with self._lock:
            if not self.settled:
                self._callbacks.append(callback)
                return
        call_back(callback, self)

    def cancel(self) -> None:
        """Issue no further call of it; those under way still settle."""
        lib.cfw_hixl_stop(self.job, lib.CFW_STOP_CANCEL)

    @property
    def path(self) -> str:
        """How the bytes go."""
        return "hixl"

    def settle(self, error: CacheError | None) -> None:
        """It is over; for the channel alone."""
        with self._lock:
            self._error = error
            self.prepared.busy = False
            self._settled.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            call_back(callback, self)


class HixlChannel(Channel):
    """A connected client.

    A transfer that HIXL leaves open breaks the channel: only destroying the client keeps its bytes from moving later,
    and that is done before the transfer settles.
    """

    def __init__(
        self,
        client: Client,
        remote: list[RemoteMemory],
        nonce: bytes,
        bound: Callable[[], AbstractContextManager[Any]],
        on_close: Callable[[HixlChannel], None],
    ) -> None:
        self._client = client
        self._remote = remote
        self._nonce = nonce
        self._bound = bound
        self._on_close = on_close
        self._lock = threading.Lock()
        self._attached: dict[int, MemoryRegion] = {}
        self._queue: queue.SimpleQueue[HixlTransfer | None] = queue.SimpleQueue()
        self._running: HixlTransfer | None = None
        self._closing = False
        self._broken: CacheError | None = None
        self._worker = threading.Thread(target=self._work, name="cachefw-hixl", daemon=True)
        self._worker.start()

    @property
    def broken(self) -> CacheError | None:
        """Why no transfer can be posted any more, None while they can."""
        return self._broken

    def attach(self, memory_id: int, region: MemoryRegion, description: bytes) -> None:
        """See that HIXL knows the memory as the peer describes it."""
        told = envelope.open_description(description, memory_id)
        tag, device = told.key.decode(errors="replace"), region.kind is MemoryKind.DEVICE
        known = {(memory.tag, memory.address, memory.length, memory.on_device) for memory in self._remote}
        inside = told.address <= region.address and region.end <= told.address + told.length
        if told.nonce == self._nonce and inside and (tag, told.address, told.length, device) in known:
            self._attached[memory_id] = region
            return
        raise BrokenError(
            f"the peer publishes {region} as {tag!r}, which HIXL did not tell of when it connected; memory has to be "
            "registered before the link",
            code="hixl.unknown_memory",
            operation="attach",
            transport=TRANSPORT,
            facts={"offered": tuple(memory.tag for memory in self._remote)},
        )

    def detach(self, memory_id: int) -> None:
        """Forget it; HIXL keeps its own mapping until the link goes."""
        self._attached.pop(memory_id, None)

    def prepare(self, operation: Operation, batch: Batch) -> _Prepared:
        """Interleave the arrays as HIXL takes them."""
        if operation not in (Operation.READ, Operation.WRITE):
            raise UnsupportedOperation(f"HIXL has no {operation!r}", operation="prepare", transport=TRANSPORT)
        lost = sorted({int(number) for number in np.unique(batch.regions)} - self._attached.keys())
        if lost:
            text = f"memory {', '.join(map(str, lost))} of the peer is not attached"
            raise BrokenError(text, operation="prepare", transport=TRANSPORT)
        pieces = np.empty(len(batch), _PIECE)
        pieces["remote"], pieces["local"], pieces["length"] = batch.remote, batch.local, batch.length
        return _Prepared(operation is Operation.WRITE, pieces, int(batch.length.sum()))

    def post(self, prepared: Prepared) -> HixlTransfer:
        """Hand it to the channel's thread."""
        assert isinstance(prepared, _Prepared)  # noqa: S101
        job = ffi.new("cfw_hixl_job *")
        job.pieces = ffi.cast("HixlOneSideOpDesc *", prepared.pieces.__array_interface__["data"][0])
        job.count, job.put = len(prepared.pieces), prepared.put
        job.chunk, job.in_flight = _CHUNK, _IN_FLIGHT
        with self._lock:
            if self._closing:
                raise ClosedError("the channel is closed", operation="post", transport=TRANSPORT)
            if self._broken is not None:
                raise BrokenError(
                    f"the channel broke before: {self._broken}; link again",
                    operation="post",
                    transport=TRANSPORT,
                    status=self._broken.status,
                    detail=self._broken.detail,
                )
            if prepared.busy:
                raise BusyError("this batch is under way; one post at a time", operation="post", transport=TRANSPORT)
            prepared.busy = True
            job.client = self._client.raw
            transfer = HixlTransfer(prepared, job)
            self._queue.put(transfer)
        return transfer

    def close(self) -> None:
        """Stop what runs, destroy the client, and settle what had not ended."""
        with self._lock:
            first = not self._closing
            self._closing = True
            if first:
                self._queue.put(None)
            if self._running is not None:
                lib.cfw_hixl_stop(self._running.job, lib.CFW_STOP_ABANDON)
        if threading.current_thread() is not self._worker:
            self._worker.join()
            self._destroy()
        self._on_close(self)

    # ---- the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (transfer := self._queue.get()) is not None:
            transfer.settle(self._run(transfer))
        # A callback may have closed the channel from this very thread.
        self._destroy()

    def _run(self, transfer: HixlTransfer) -> CacheError | None:
        result = ffi.new("cfw_hixl_result *")
        with self._lock:
            if self._closing:
                return TransferCancelled("the channel was closed before the transfer began", transport=TRANSPORT)
            if self._broken is not None:
                return self._broken
            self._running = transfer
        entered = False
        try:
            with self._bound():
                entered = True
                lib.cfw_hixl_run(transfer.job, result)
        except Exception as failure:
            # A context that could not be left again changes nothing of what was moved in it.
            if not entered:
                text = f"the device's context cannot be entered, nothing was moved: {failure}"
                return BrokenError(text, operation="transfer", transport=TRANSPORT)
        finally:
            with self._lock:
                self._running = None
        if result.status == 0:
            return None
        error = _error(result, len(transfer.prepared.pieces))
        if result.unsettled:
            if result.status != lib.CFW_HIXL_STOPPED:
                with self._lock:
                    self._broken = error
            self._destroy()
        return error

    def _destroy(self) -> None:
        try:
            with self._bound():
                self._client.close()
        except CacheError as failure:
            # It is gone all the same; what HIXL had to say is kept for whoever asks.
            self._broken = self._broken or failure


def _error(result: CData, count: int) -> CacheError:
    status, first = int(result.status), int(result.failed)
    if status == lib.CFW_HIXL_STOPPED:
        return TransferCancelled(
            f"the transfer was cancelled when {result.done:,} of {count:,} pieces had moved", transport=TRANSPORT
        )
    detail = f"a call for pieces {first} to {min(first + _CHUNK, count) - 1} of {count} failed"
    if status == lib.CFW_HIXL_BAD_STATE:
        detail += f" in state {result.state} ({STATES.get(result.state, 'an unknown state')})"
    # Within the call HIXL does not tell which piece it was. Once asked to move, bytes and not arguments are at fault.
    facts = {"first": first, "done": int(result.done), "state": int(result.state), "unsettled": int(result.unsettled)}
    return status_error(status, "transfer", detail, BrokenError, **facts)
