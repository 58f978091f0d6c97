"""The way to one peer over UCX: its memory, and batches over it."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachefw.errors import BrokenError, CacheError, ClosedError, RequestError, refusal
from cachefw.memory import MemoryRegion
from cachefw.transport import Batch, Channel, Operation, Prepared, Transfer

from . import envelope
from .engine import Engine, Job, UcxPrepared
from .keys import ROOM, fits
from .staged import Carrier, StagedPrepared
from .staging import Stage
from .status import TRANSPORT, connect_error, transfer_error

__all__ = ["UcxChannel"]

U64 = NDArray[np.uint64]

_TIMED_OUT = -1007

#: How long what runs may take to end by itself when a channel closes; then the connection is cut, which ends it. Where
#: UCX does not watch over the peer nothing else would.
_GRACE_NS = 200_000_000
_GRACE_UNWATCHED_NS = 3_000_000_000
#: Seconds that the thread of staged transfers may take after the connection was cut.
_JOIN = 2.0
_LANE = re.compile(r"lane\[\d+\]:\s*\d+:(\w+)/")


class _Table:
    """The attached memory as the native side wants it; never changed once made."""

    def __init__(self, engine: Engine, remotes: dict[int, Any]) -> None:
        order = sorted(remotes)
        self._ids: U64 = np.array(order, np.uint64)
        self.remotes = engine.ffi.new("cfw_remote *[]", [remotes[number] for number in order])
        self._kept = remotes

    def rows(self, regions: U64) -> NDArray[np.uint32]:
        """For each memory id its place in `remotes`.

        Raises:
            BrokenError: One is not attached.
        """
        found = np.searchsorted(self._ids, regions)
        np.minimum(found, max(len(self._ids) - 1, 0), out=found)
        missing = self._ids[found] != regions if len(self._ids) else np.ones(len(regions), np.bool_)
        if missing.any():
            item = int(np.flatnonzero(missing)[0])
            raise BrokenError(
                f"the peer has no memory {int(regions[item])}, or no longer",
                code="memory.unknown",
                operation="prepare",
                transport=TRANSPORT,
                facts={"failed": (item,)},
            )
        return found.astype(np.uint32)


class UcxChannel(Channel):
    """A connection to one peer's UCX worker.

    Args:
        engine: This end's worker.
        handle: The native channel.
        peer: The peer's card.
        tls: Which transports were asked for, where UCX does not tell the one that it took.
        stage: Gives what device memory at this end goes through, None before there is any.
    """

    def __init__(
        self, engine: Engine, handle: Any, peer: envelope.Card, tls: str, stage: Callable[[], Stage | None]
    ) -> None:
        self._engine = engine
        self._handle = handle
        self._peer = peer
        self._nonce = peer.nonce
        self._lock = threading.Lock()
        self._closed = False
        self._remotes: dict[int, Any] = {}
        self._table: _Table | None = None
        self._device_memory: dict[int, MemoryRegion] = {}
        self._stage = stage
        self._carrier: Carrier | None = None
        self._path = _path(engine, handle) or tls or "ucx"

    @property
    def path(self) -> str:
        """UCX's transports on the way, e.g. ``tcp``."""
        return self._path

    @property
    def watched(self) -> bool:
        """Whether UCX notices the peer's end by itself."""
        lib = self._engine.lib
        return bool(lib.cfw_channel_error_mode(self._handle) == lib.CFW_ERRORS_PEER)

    def greet(self, left: float, timeout: float) -> CacheError | None:
        """Read the nonce in the peer's memory: the connection works both ways, and leads to the one who made the card.

        Until then UCX may still have messages of its own to exchange, and 1.13 does not survive to be closed then.
        """
        beacon, key = self._peer.beacon, self._peer.key
        here = np.zeros(len(self._nonce), np.uint8)
        place, length = np.array([here.ctypes.data], np.uint64), np.array([len(here)], np.uint64)
        self._add(0, beacon, len(here), key)
        batch = Batch(place, np.array([beacon], np.uint64), length, np.zeros(1, np.uint64))
        transfer = self.post(self.prepare(Operation.READ, batch))
        if not transfer.wait(max(left, 0.0)):
            self.close()
            if not transfer.settled:
                self._engine.kept.append(here)
            return connect_error(_TIMED_OUT, "", timeout)
        self.detach(0)
        error = transfer.error
        if error is None and here.tobytes() != self._nonce:
            return BrokenError(
                "at the address in the card there is another process, not the peer",
                code="peer.gone",
                operation="connect",
                transport=TRANSPORT,
            )
        return error if error is None else connect_error(error.status or 0, error.detail or "", timeout)

    def attach(self, memory_id: int, region: MemoryRegion, description: bytes) -> None:
        """Unpack the key of the peer's memory."""
        known = envelope.open_description(description, memory_id)
        if (known.nonce, known.address, known.length) != (self._nonce, region.address, region.length):
            raise BrokenError(
                f"what the peer says of its memory {memory_id} is about other memory, not {region}",
                code="description.malformed",
                operation="attach",
                transport=TRANSPORT,
            )
        if not known.key:
            self._device_memory = {**self._device_memory, memory_id: region}
            return
        self._add(memory_id, known.address, known.length, known.key)

    def _add(self, memory_id: int, address: int, length: int, key: bytes) -> None:
        ffi, lib = self._engine.ffi, self._engine.lib
        if self._engine.checks_keys and not fits(key):
            raise BrokenError(
                f"the key of the peer's memory {memory_id} is not whole ({len(key)} bytes)",
                code="description.malformed",
                operation="attach",
                transport=TRANSPORT,
            )
        with self._lock:
            made = ffi.new("cfw_remote **")
            roomy = ffi.from_buffer(key + ROOM)
            status = lib.cfw_channel_attach(self._handle, address, length, roomy, len(key), made)
            if status:
                raise transfer_error(status, self._engine.text(status), None)
            before = self._remotes.get(memory_id)
            self._remotes = {**self._remotes, memory_id: ffi.gc(made[0], lib.cfw_remote_release)}
            self._table = None
        if before is not None:
            lib.cfw_remote_detach(before)

    def detach(self, memory_id: int) -> None:
        """Give the key back."""
        with self._lock:
            self._device_memory = {number: r for number, r in self._device_memory.items() if number != memory_id}
            if memory_id not in self._remotes:
                return
            remotes = dict(self._remotes)
            remote = remotes.pop(memory_id)
            self._remotes, self._table = remotes, None
        self._engine.lib.cfw_remote_detach(remote)

    def prepare(self, operation: Operation, batch: Batch) -> Prepared:
        """Find the key for every piece, and hold each against its region; device memory here is staged."""
        if self._device_memory:
            self._refuse_device_memory(batch)
        stage = self._stage()
        mask = None if stage is None else stage.holds(batch.local)
        if stage is None or mask is None:
            return self.prepare_host(operation, batch)
        return StagedPrepared(self, stage, operation, batch, mask, self._path)

    def _refuse_device_memory(self, batch: Batch) -> None:
        known = self._device_memory
        rows = np.flatnonzero(np.isin(batch.regions, np.fromiter(known, np.uint64, len(known))))
        if len(rows):
            number = int(batch.regions[rows[0]])
            raise BrokenError(
                f"piece {int(rows[0])} lies in {known[number]} of the peer, which no network card there reads: that "
                "end has to copy it through its own host memory, and does so only for transfers that it starts itself. "
                "Have the peer write it (push) instead of reading it from here, or register host memory there, or "
                "declare peer_memory there where the driver's module is loaded",
                code="memory.device",
                operation="prepare",
                transport=TRANSPORT,
                facts={"failed": (int(rows[0]),), "memory": number},
            )

    def prepare_host(self, operation: Operation, batch: Batch) -> UcxPrepared:
        """Put a batch whose local memory is the host's into native form."""
        with self._lock:
            table = self._table
            if table is None:
                table = self._table = _Table(self._engine, self._remotes)
        rows = table.rows(batch.regions)
        lib = self._engine.lib
        native = lib.CFW_READ if operation is Operation.READ else lib.CFW_WRITE
        return self._engine.prepare(self._handle, native, batch, table.remotes, rows, self._path)

    def post(self, prepared: Prepared) -> Transfer:
        """One native call."""
        if not isinstance(prepared, (UcxPrepared, StagedPrepared)):
            raise refusal(
                RequestError,
                {TypeError},
                f"a batch that channel.prepare gave is needed, not a {type(prepared).__name__}",
                operation="post",
                transport=TRANSPORT,
            )
        if self._closed:
            raise _closed()
        return self._post_staged(prepared) if isinstance(prepared, StagedPrepared) else self.post_host(prepared)

    def _post_staged(self, prepared: StagedPrepared) -> Transfer:
        status = self._engine.lib.cfw_channel_status(self._handle)
        if status:
            raise _closed() if self._closed else transfer_error(status, self._engine.text(status), None)
        with self._lock:
            if self._carrier is None:
                self._carrier = Carrier(prepared.stage)
            carrier = self._carrier
            if self._closed:
                carrier.stop()
        return carrier.post(prepared)

    def post_host(self, prepared: UcxPrepared) -> Job:
        """Post a batch of host memory."""
        try:
            return self._engine.post(prepared)
        except BrokenError:
            if self._closed:  # meanwhile, by another thread
                raise _closed() from None
            raise

    def close(self) -> None:
        """Stop what runs, and wait a moment for it; if it does not end, cut the connection, which ends it.

        A connection without troubles is kept for the next channel to the same peer. Where UCX does not watch over the
        peer (`watched`) and the peer hangs, transfers may stay unsettled until the transport is closed.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            carrier = self._carrier
        if carrier is not None:
            carrier.stop()
        grace = _GRACE_NS if self.watched else _GRACE_UNWATCHED_NS
        if carrier is not None and self.watched:
            carrier.join(grace / 1e9)
        self._engine.give_back(self._peer.address, self._handle, grace)
        if carrier is not None:
            carrier.join(_JOIN)
        with self._lock:
            self._remotes, self._table = {}, None


def _closed() -> CacheError:
    return ClosedError("this channel is closed", operation="post", transport=TRANSPORT)


def _path(engine: Engine, handle: Any) -> str:
    """The transports of a connection, from UCX's own description of it."""
    text = engine.ffi.new("char[]", 8192)
    engine.lib.cfw_channel_describe(handle, text, len(text))
    described = bytes(engine.ffi.string(text)).decode(errors="replace")
    return "+".join(dict.fromkeys(name for name in _LANE.findall(described) if name != "self"))
