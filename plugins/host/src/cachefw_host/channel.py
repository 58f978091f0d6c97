"""The way to one peer: its mapped segments, its other memory, and batches over both."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cachefw.errors import BrokenError, ClosedError
from cachefw.memory import MemoryRegion
from cachefw.transport import Batch, Channel, Operation, Prepared, Session, Transfer

from .card import Card, Description
from .pool import HostPrepared, Pool
from .segments import Segments, fetch, link_token
from .status import TRANSPORT, cma_advice, transfer_error
from .streams import Streams

__all__ = ["HostChannel"]

U64 = NDArray[np.uint64]

#: Seconds that closing waits for posts under way, which take microseconds.
_PATIENCE = 1.0


#: How a region is reached that is not mapped: by cross-memory reads, or over streams.
CROSS, FAR = -1, -2


class Ways:
    """How each region of the peer is reached, for finding many pieces at once; never changed once made.

    Args:
        by_id: For each memory id what to add to the peer's address to get one here, or `CROSS` or `FAR`.
    """

    def __init__(self, by_id: dict[int, int]) -> None:
        self.by_id = by_id
        order = sorted(by_id)
        self._ids: U64 = np.array(order, np.uint64)
        self.mapped: NDArray[np.bool_] = np.array([by_id[number] >= 0 for number in order], np.bool_)
        self.far: NDArray[np.bool_] = np.array([by_id[number] == FAR for number in order], np.bool_)
        self.shift: U64 = np.array([max(by_id[number], 0) for number in order], np.uint64)

    def rows(self, regions: U64) -> NDArray[np.intp] | None:
        """The row of each region, or None when one is not here."""
        if not len(self._ids):
            return None
        rows = np.searchsorted(self._ids, regions)
        np.minimum(rows, len(self._ids) - 1, out=rows)
        return rows if bool((self._ids[rows] == regions).all()) else None


class HostChannel(Channel):
    """The way to one peer.

    On this host, memory that the peer took from `allocate` is mapped (path ``shm``), and other memory is reached by
    ``process_vm_readv`` and ``process_vm_writev`` (path ``cma``). On another, all of it by streams (path ``tcp``).
    """

    def __init__(
        self,
        native: Any,
        pool: Pool,
        segments: Segments,
        peer: Card,
        paths: tuple[str, ...],
        session: Session,
        streams: Streams | None,
    ) -> None:
        self._native = native
        self._pool = pool
        self._move = pool.move
        self._segments = segments
        self._peer = peer
        self._peers_token = link_token(session.key, dialler=not session.dialled)
        self._own_token = link_token(session.key, dialler=session.dialled)
        segments.admit(self._own_token)
        self._paths = paths
        self._streams = streams
        self._lock = threading.Lock()
        self._closed = False
        self._running: set[Transfer] = set()
        # As many items as threads are inside `post`; appending and popping are atomic.
        self._posting: list[HostPrepared] = []
        self._known: dict[int, tuple[MemoryRegion, Description]] = {}
        self._mapped: dict[int, tuple[int, int]] = {}
        self._cma_fault: str | None = None
        self._cma_checked = False
        self._ways = Ways({})

    @property
    def fences(self) -> bool:
        """Where streams alone lead to the peer, it reaches nothing but what this end serves."""
        return self._paths == ("tcp",)

    def attach(self, memory_id: int, region: MemoryRegion, description: bytes) -> None:
        """Note it; mapping waits for the first transfer."""
        try:
            known = msgspec.msgpack.decode(description, type=Description)
        except msgspec.MsgspecError as error:
            raise BrokenError(
                f"what the peer says of its memory {memory_id} makes no sense: {error}",
                code="description.malformed",
                operation="attach",
                transport=TRANSPORT,
            ) from None
        with self._lock:
            self._known[memory_id] = region, known

    def detach(self, memory_id: int) -> None:
        """Unmap the segment when this was the last of its memory."""
        with self._lock:
            known = self._known.pop(memory_id, None)
            if known is None:
                return
            # Whatever is still there settles anew, which costs a look at what is mapped already.
            self._ways = Ways({})
            segment = known[1].segment
            if segment in self._mapped and all(other.segment != segment for _, other in self._known.values()):
                self._native.lib.cfw_segment_unmap(*self._mapped.pop(segment))

    def prepare(self, operation: Operation, batch: Batch) -> HostPrepared:
        """Find the way for every piece; most batches take one way as a whole."""
        lib = self._native.lib
        read = operation is Operation.READ
        copy, cross = (lib.CFW_COPY_IN, lib.CFW_CMA_READ) if read else (lib.CFW_COPY_OUT, lib.CFW_CMA_WRITE)
        runs, counts = _runs(batch.regions)
        if len(runs) == 1:
            # Numbers instead of arrays: half of what preparing a single piece takes.
            way = self._way(int(runs[0]))
            if way == FAR:
                return self._send(operation, batch)
            if way == CROSS:
                return self._cross(cross, batch)
            return self._copy(copy, batch, batch.remote + np.uint64(way))
        mapped, far, shift = self._find(runs)
        if far.any():
            # The peer serves all its memory: nothing is gained by taking two ways at once.
            return self._send(operation, batch)
        if mapped.all():
            return self._copy(copy, batch, batch.remote + np.repeat(shift, counts))
        if not mapped.any():
            return self._cross(cross, batch)
        near = batch.remote + np.repeat(shift, counts)
        each = np.repeat(mapped, counts)
        here, there = np.flatnonzero(each), np.flatnonzero(~each)
        parts = [
            (copy, 0, batch.local[here], near[here], batch.length[here], here),
            (cross, self._peer.pid, batch.local[there], batch.remote[there], batch.length[there], there),
        ]
        return self._pool.prepare(parts, "shm+cma")

    def _copy(self, operation: int, batch: Batch, near: U64) -> HostPrepared:
        return self._pool.prepare([(operation, 0, batch.local, near, batch.length, None)], "shm")

    def _cross(self, operation: int, batch: Batch) -> HostPrepared:
        return self._pool.prepare([(operation, self._peer.pid, batch.local, batch.remote, batch.length, None)], "cma")

    def _send(self, operation: Operation, batch: Batch) -> HostPrepared:
        op = self._native.lib.CFW_NET_READ if operation is Operation.READ else self._native.lib.CFW_NET_WRITE
        return self._pool.prepare([(op, 0, batch.local, batch.remote, batch.length, None)], "tcp")

    def post(self, prepared: Prepared) -> Transfer:
        """One native call."""
        if TYPE_CHECKING:
            assert isinstance(prepared, HostPrepared)
        # Entered before the check below, and looked at after the channel was marked as closed: one side sees the other.
        self._posting.append(prepared)
        try:
            if self._closed:
                raise ClosedError("this channel is closed", operation="post", transport=TRANSPORT)
            if prepared.small:
                return self._move(prepared)
            if prepared.net:
                if self._streams is None:
                    raise ClosedError("this channel is closed", operation="post", transport=TRANSPORT)
                return self._streams.post(prepared)
            transfer = self._pool.post(prepared)
            self._running.add(transfer)
        finally:
            self._posting.pop()
        transfer.add_done_callback(self._running.discard)
        return transfer

    def close(self) -> None:
        """Cancel what runs, wait for it, and unmap everything."""
        self._closed = True
        self._segments.dismiss(self._own_token)
        if self._streams is not None:
            self._streams.close()
        end = time.monotonic() + _PATIENCE
        while self._posting and time.monotonic() < end:
            time.sleep(0.0005)
        for transfer in list(self._running):
            transfer.cancel()
            transfer.wait()
        with self._lock:
            self._known.clear()
            # Who closes from a signal handler may have interrupted a post for good: better a mapping that stays.
            mapped, self._mapped = ({} if self._posting else self._mapped), {}
        for address, size in mapped.values():
            self._native.lib.cfw_segment_unmap(address, size)

    # ------------------------------------------------------------------ ways

    def _find(self, regions: U64) -> tuple[NDArray[np.bool_], NDArray[np.bool_], U64]:
        """For each region whether it is mapped, whether it is far, and what to add to addresses if it is mapped."""
        ways = self._ways
        rows = ways.rows(regions)
        if rows is None:
            ways = self._learn(set(regions.tolist()))
            rows = ways.rows(regions)
        return ways.mapped[rows], ways.far[rows], ways.shift[rows]

    def _way(self, memory_id: int) -> int:
        """The same for one region: what has to be added, `CROSS` or `FAR`."""
        ways = self._ways.by_id
        return ways[memory_id] if memory_id in ways else self._learn({memory_id}).by_id[memory_id]

    def _learn(self, memory_ids: set[int]) -> Ways:
        with self._lock:
            known = dict(self._ways.by_id)
            for memory_id in sorted(memory_ids - known.keys()):
                known[memory_id] = self._settle(memory_id)
            # A new table: a transfer that is being prepared meanwhile goes on with the old one.
            self._ways = Ways(known)
            return self._ways

    def _settle(self, memory_id: int) -> int:
        """Decide how one region is reached: what to add to its addresses if it is mapped, `CROSS` or `FAR`.

        Raises:
            BrokenError: In no way; the text says why, and what to do.
        """
        if memory_id not in self._known:
            raise BrokenError(
                f"the peer has no memory {memory_id}, or no longer",
                code="memory.unknown",
                operation="prepare",
                transport=TRANSPORT,
            )
        region, known = self._known[memory_id]
        faults = []
        if known.segment and "shm" in self._paths:
            try:
                return (self._map(known.segment) + known.offset - region.address) % 2**64
            except BrokenError as error:
                faults.append(f"shm: {error}")
        elif "shm" in self._paths:
            faults.append("shm: the memory was not taken from CacheManager.allocate")
        fault = self._reach() if "cma" in self._paths else "not among the paths that lead there"
        if fault is None:
            return CROSS
        if self._streams is not None:
            return FAR
        faults.append(f"cma: {fault}")
        raise BrokenError(
            f"memory {memory_id} of the peer cannot be reached. " + ". ".join(faults),
            code="memory.unreachable",
            operation="prepare",
            transport=TRANSPORT,
        )

    def _map(self, segment: int) -> int:
        if segment not in self._mapped:
            fd, size = fetch(self._peer.socket, self._peers_token, segment)
            try:
                address = self._native.ffi.new("uint64_t *")
                status = self._native.lib.cfw_segment_map(fd, size, 1, address)
            finally:
                os.close(fd)
            if status:
                raise transfer_error(status, None, None)
            self._mapped[segment] = address[0], size
        return int(self._mapped[segment][0])

    def _reach(self) -> str | None:
        """Whether this process may read the peer's memory, found out once by reading the peer's beacon."""
        if not self._cma_checked:
            self._cma_checked = True
            found = self._native.ffi.new("char[]", len(self._peer.nonce))
            status = self._native.lib.cfw_cma_probe(self._peer.pid, self._peer.beacon, len(self._peer.nonce), found)
            if status == -1:
                self._cma_fault = cma_advice(self._peer.pid)
            elif status:
                self._cma_fault = str(transfer_error(status, None, self._peer.pid))
            elif bytes(self._native.ffi.buffer(found)) != self._peer.nonce:
                self._cma_fault = f"process {self._peer.pid} is not the peer any more"
        return self._cma_fault


def _runs(regions: U64) -> tuple[U64, NDArray[np.intp]]:
    """The regions as they change along a batch, and how many pieces each has in a row."""
    if len(regions) == 1:
        return regions, np.ones(1, np.intp)
    first = np.concatenate(([0], np.flatnonzero(regions[1:] != regions[:-1]) + 1))
    return regions[first], np.diff(first, append=len(regions))
