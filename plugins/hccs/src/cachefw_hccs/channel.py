"""The way to one peer: its exported memory, imported when it is first needed, and copies between devices."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from cachefw.errors import BrokenError, CacheError, ClosedError
from cachefw.memory import MemoryRegion
from cachefw.transport import Batch, Channel, Operation, Prepared, Transfer

from .lanes import HccsPrepared, HccsTransfer, Lanes
from .status import TRANSPORT, claim, close_all, named

if TYPE_CHECKING:
    from cachefw_ascendcl import Device, IpcMapping

__all__ = ["Card", "Description", "HccsChannel"]

U64 = NDArray[np.uint64]


class Card(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Which process a transport lives in, as the driver counts, and its device."""

    magic: str
    host: bytes
    pid: int
    device: int
    soc: str
    nonce: bytes


class Description(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The key that a region can be imported by, and its address in its own process."""

    magic: str
    key: bytes
    address: int


class HccsChannel(Channel):
    """The way to one peer of this host."""

    def __init__(
        self, device: Device, lanes: Lanes, peer: Card, *, same_process: bool, on_close: Callable[[int], None]
    ) -> None:
        self._on_close = None if same_process else on_close
        self._device = device
        self._lanes = lanes
        self._peer = peer
        self._same_process = same_process
        self._lock = threading.Lock()
        self._closed = False
        self._running: set[HccsTransfer] = set()
        self._known: dict[int, tuple[MemoryRegion, Description]] = {}
        self._imported: dict[int, IpcMapping] = {}

    def attach(self, memory_id: int, region: MemoryRegion, description: bytes) -> None:
        """Note it; importing waits for the first transfer."""
        try:
            known = msgspec.msgpack.decode(description, type=Description)
            if known.magic != "hccs1" or known.address != region.address:
                raise msgspec.ValidationError("it is not this transport's, or of another region")
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
        """Close the import."""
        with self._lock:
            self._known.pop(memory_id, None)
            mapping = self._imported.pop(memory_id, None)
        if mapping is not None:
            close_all([mapping])

    def prepare(self, operation: Operation, batch: Batch) -> HccsPrepared:
        """Turn the peer's addresses into ones of this process."""
        from cachefw_ascendcl import CopyKind

        ids, inverse = np.unique(batch.regions, return_inverse=True)
        shifts = np.array([self._shift(int(number)) for number in ids.tolist()], np.uint64)
        remote = batch.remote + shifts[inverse]
        dst, src = (batch.local, remote) if operation is Operation.READ else (remote, batch.local)
        return HccsPrepared(self._lanes, dst, src, batch.length, CopyKind.DEVICE_TO_DEVICE)

    def post(self, prepared: Prepared) -> Transfer:
        """One native call that queues every copy."""
        if self._closed:
            raise ClosedError("this channel is closed", operation="post", transport=TRANSPORT)
        assert isinstance(prepared, HccsPrepared)  # noqa: S101 - made by `prepare`
        refused = None
        with named("post"):
            lane, copies = prepared.ready()
        try:
            copies.post()
        except CacheError as error:
            refused = claim(error, "post")
        return HccsTransfer(self._lanes, prepared, lane, refused, self._running)

    def close(self) -> None:
        """Wait for what runs, and close the imports."""
        first, self._closed = not self._closed, True
        for transfer in list(self._running):
            transfer.wait()
        if first and self._on_close is not None:
            self._on_close(self._peer.pid)
        with self._lock:
            self._known.clear()
            imported, self._imported = self._imported, {}
        close_all(imported.values())

    def _shift(self, memory_id: int) -> int:
        """What to add to the peer's addresses in one region, modulo 2^64."""
        with self._lock:
            if memory_id not in self._known:
                raise BrokenError(
                    f"the peer has no memory {memory_id}, or no longer",
                    code="memory.unknown",
                    operation="prepare",
                    transport=TRANSPORT,
                )
            region, known = self._known[memory_id]
            if self._same_process:
                return 0
            if memory_id not in self._imported:
                try:
                    with named("prepare"):
                        self._imported[memory_id] = self._device.import_key(known.key)
                except BrokenError as error:
                    raise BrokenError(
                        f"memory {memory_id} of the peer cannot be imported: {error}; its process may be gone, or have "
                        "given the memory back, or not allow this process",
                        code="memory.unreachable",
                        operation="prepare",
                        transport=TRANSPORT,
                        status=error.status,
                        detail=error.detail,
                    ) from error
            return (self._imported[memory_id].address - region.address) % 2**64
