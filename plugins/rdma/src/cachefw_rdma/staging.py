"""Device memory on its way: copied piece by piece through page-aligned host memory that UCX knows.

No card reaches device memory by itself, and UCX would take it for host memory. So a transfer with pieces of device
memory at this end goes in chunks: over the network into a buffer and from there to the device, or the other way round.
The buffers are ordinary memory, few, and shared by all peers.
"""

from __future__ import annotations

import logging
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from cachefw.errors import CacheError, ClosedError, UnsupportedOperation
from cachefw.memory import MemoryRegion
from cachefw.transport import Batch

from .engine import Engine
from .status import TRANSPORT

if TYPE_CHECKING:
    from cachefw_ascendcl import CopyKind, Device, Stream

__all__ = ["BUFFERS", "Buffer", "Chunk", "Stage", "chunks_of", "claim", "left", "no_device"]

U64 = NDArray[np.uint64]

#: Into how many buffers the host memory of a stage is parted.
BUFFERS = 8
#: How many of them one transfer takes at most: one that is copied while the others are on the network.
_EACH = 3
_SLICE = 0.1
_HUGE_PAGE = np.uint64(2 * 2**20)


@attrs.frozen(eq=False)
class Chunk:
    """What goes through a buffer at a time: piece i is ``length[i]`` bytes.

    Attributes:
        device: Addresses on the device.
        offset: Places in the buffer.
        remote: Addresses in the peer.
        length: Bytes.
        regions: The peer's memory ids.
        items: Whose part each piece is, by its place in the batch.
    """

    device: U64
    offset: U64
    remote: U64
    length: U64
    regions: U64
    items: U64


def chunks_of(batch: Batch, items: U64, size: int) -> Iterator[Chunk]:
    """Cut some pieces of a batch into chunks of `size` bytes, the last one smaller; long pieces are parted.

    Args:
        batch: The batch.
        items: Which of its pieces, by place.
        size: Bytes of a chunk.
    """
    length = batch.length[items]
    ends = np.cumsum(length, dtype=np.uint64)
    starts = ends - length
    total = int(ends[-1])
    # As if all pieces lay one behind the other: cut where one begins, and where a chunk does.
    cuts = np.union1d(starts, np.arange(0, total, size, dtype=np.uint64))
    piece = np.searchsorted(starts, cuts, side="right") - 1
    into = cuts - starts[piece]
    parts = np.diff(cuts, append=np.uint64(total))
    whose = items[piece]
    number = cuts // np.uint64(size)
    for rows in np.split(np.arange(len(cuts)), np.flatnonzero(np.diff(number)) + 1):
        of = whose[rows]
        yield Chunk(
            device=batch.local[of] + into[rows],
            offset=cuts[rows] % np.uint64(size),
            remote=batch.remote[of] + into[rows],
            length=parts[rows],
            regions=batch.regions[of],
            items=of,
        )


class Buffer:
    """Page-aligned host memory that UCX knows."""

    def __init__(self, engine: Engine, size: int) -> None:
        self._map = mmap.mmap(-1, size)
        self.address = int(np.frombuffer(self._map, np.uint8).ctypes.data)
        try:
            self.handle, _ = engine.register(self.address, size)
        except BaseException:
            self._map.close()
            raise
        self._engine = engine

    def close(self) -> None:
        """Give it back; UCX holds nothing of it."""
        self._engine.unregister(self.handle)
        self.handle = None
        self._map.close()


class Stage:
    """The device of an open transport, its memory that is registered, and the buffers.

    Thread safety: every method may be called from any thread.

    Args:
        engine: Where the buffers are made known.
        device: Who copies.
        size: Bytes of all buffers together, at most.
    """

    def __init__(self, engine: Engine, device: Device, size: int) -> None:
        self._engine = engine
        self._device = device
        self.size = max(mmap.PAGESIZE, size // BUFFERS // mmap.PAGESIZE * mmap.PAGESIZE)
        self._lock = threading.Condition()
        self._closed = False
        self._made: list[Buffer] = []
        self._free: list[Buffer] = []
        self._streams: list[Stream] = []
        self._idle: list[Stream] = []
        self._threads: set[threading.Thread] = set()
        self._regions: dict[int, int] = {}
        self._table: tuple[U64, U64] | None = None

    # ------------------------------------------------------------------ what is device memory

    def add(self, region: MemoryRegion) -> None:
        """Device memory that transfers may name from now on."""
        with self._lock:
            self._regions[region.address] = region.end
            self._table = None

    def remove(self, region: MemoryRegion) -> None:
        """No transfer names it any more."""
        with self._lock:
            self._regions.pop(region.address, None)
            self._table = None

    def holds(self, addresses: U64) -> NDArray[np.bool_] | None:
        """Which addresses lie in registered device memory; None when none does."""
        with self._lock:
            if not self._regions:
                return None
            if self._table is None:
                starts = np.array(sorted(self._regions), np.uint64)
                self._table = starts, np.array([self._regions[int(start)] for start in starts], np.uint64)
            starts, ends = self._table
        row = np.searchsorted(starts, addresses, side="right")
        inside = (row > 0) & (addresses < ends[np.maximum(row, 1) - 1])
        return inside if bool(inside.any()) else None

    # ------------------------------------------------------------------ buffers

    def take(self, wanted: int, given_up: Callable[[], bool]) -> list[Buffer]:
        """Up to `wanted` buffers, and at least one, as soon as one is free; none once `given_up` says so.

        Raises:
            CacheError: UCX refused a new one.
        """
        wanted = min(wanted, _EACH)
        got: list[Buffer] = []
        with self._lock:
            while not given_up() and not self._closed:
                # Those that were given back last, in the same order: what is posted again finds its own.
                got = self._free[-wanted:]
                del self._free[-wanted:]
                while len(got) < wanted and len(self._made) < BUFFERS:
                    try:
                        self._made.append(Buffer(self._engine, self.size))
                    except BaseException:
                        self._free.extend(got)
                        raise
                    got.append(self._made[-1])
                if got:
                    return got
                self._lock.wait(_SLICE)
            self._free.extend(got)
        return []

    def give_back(self, buffers: list[Buffer]) -> None:
        """Nothing of UCX's and nothing of the device's touches them any more."""
        with self._lock:
            self._free.extend(buffers)
            self._lock.notify_all()

    # ------------------------------------------------------------------ copies

    def stream(self) -> Stream:
        """A stream with nothing on it, for `done`.

        Raises:
            CacheError: The runtime has no more.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("this transport is closed", operation="post", transport=TRANSPORT)
            if self._idle:
                return self._idle.pop()
            made = self._device.stream()
            self._streams.append(made)
            return made

    def done(self, stream: Stream, *, spoiled: bool) -> None:
        """A stream that is empty again; one that failed is not used again."""
        with self._lock:
            if not spoiled:
                self._idle.append(stream)
                return
            self._streams.remove(stream)
        _close([stream])

    def copy(self, batch: Batch) -> None:
        """Copy within this process, between device and host memory too, done on return.

        Raises:
            CacheError: The runtime refused; ``facts["failed"]`` has the piece.
        """
        from cachefw_ascendcl import Copies, CopyKind

        here, there = self._on_device(batch.local), self._on_device(batch.remote)
        ways: list[tuple[bool, bool, CopyKind]] = [
            (True, True, CopyKind.DEVICE_TO_DEVICE),
            (True, False, CopyKind.HOST_TO_DEVICE),
            (False, True, CopyKind.DEVICE_TO_HOST),
        ]
        stream, failed = self.stream(), True
        try:
            for into, out_of, kind in ways:
                rows = np.flatnonzero((here == into) & (there == out_of))
                if len(rows):
                    try:
                        Copies(stream, batch.local[rows], batch.remote[rows], batch.length[rows], kind).post()
                    except CacheError as error:
                        raise claim(error, "copy", rows) from None
            try:
                stream.synchronize()
            except CacheError as error:
                raise claim(error, "copy") from None
            failed = False
        finally:
            self.done(stream, spoiled=failed)
        rows = np.flatnonzero(~(here | there))
        if len(rows):
            self._engine.copy(Batch(batch.local[rows], batch.remote[rows], batch.length[rows], batch.regions[:0]))

    def _on_device(self, addresses: U64) -> NDArray[np.bool_]:
        """Whether each lies on a device, asked once for each huge page, which is all of one kind."""
        from cachefw_ascendcl import Location

        _, first, inverse = np.unique(addresses // _HUGE_PAGE, return_index=True, return_inverse=True)
        answers = []
        for address in addresses[first].tolist():
            info = self._device.identify(address)
            answers.append(info is None or info.location is Location.DEVICE)
        return np.array(answers, np.bool_)[inverse]

    # ------------------------------------------------------------------ threads, closing

    def start(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Start a thread that `close` waits for."""
        thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        with self._lock:
            if self._closed:
                raise ClosedError("this transport is closed", operation="post", transport=TRANSPORT)
            self._threads.add(thread)
            thread.start()
        return thread

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def close(self) -> None:
        """Wait for the threads, and give everything back. The engine is closed: its jobs have settled."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in threads:
            thread.join()
        _close(self._streams)
        for buffer in self._made:
            buffer.close()
        self._made, self._streams, self._idle = [], [], []
        self._free.clear()


def claim(error: CacheError, operation: str, rows: NDArray[Any] | None = None) -> CacheError:
    """Say on an error of the runtime whose it is, doing what, and at which of the caller's pieces."""
    error.transport = TRANSPORT
    error.facts.setdefault("call", error.operation)
    error.operation = operation
    if rows is not None and error.facts.get("failed"):
        error.facts["failed"] = tuple(int(rows[item]) for item in error.facts["failed"])
    return error


def no_device(what: str, obstacle: str) -> CacheError:
    """The error of device memory without a runtime to copy it."""
    return UnsupportedOperation(
        f"{what} is device memory, which AscendCL has to copy through host memory; {obstacle or 'there is none here'}. "
        "pip install 'cachefw-rdma[ascendcl]', and set CACHEFW_ASCENDCL where the runtime is in no usual place",
        code="device.no_runtime",
        operation="register",
        transport=TRANSPORT,
    )


def _close(handles: list[Any]) -> None:
    from cachefw_ascendcl import close_all

    for error in close_all(list(handles)):
        logging.getLogger("cachefw.rdma").warning("the runtime did not take something back: %s", error)


def left(end: float | None) -> float:
    """Seconds of a wait that may pass before Python looks for signals again; 0 once it is over."""
    return _SLICE if end is None else max(0.0, min(_SLICE, end - time.monotonic()))
