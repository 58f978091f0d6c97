"""What the kit's tests stand on: memory whose bytes can be seen, and two transports that are connected."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np
import pytest
from numpy.typing import NDArray

from cachefw.errors import CacheError
from cachefw.memory import Allocation, MemoryKind, MemoryRegion, aligned_empty, region_of
from cachefw.testing.sessions import sessions
from cachefw.transport import (
    Batch,
    Capability,
    Channel,
    Operation,
    Prepared,
    RegisteredMemory,
    Transfer,
    Transport,
    TransportInfo,
)

__all__ = [
    "GUARD",
    "TIMEOUT",
    "Bench",
    "KitMemory",
    "MakeMemory",
    "Piece",
    "Place",
    "chance",
    "check_error",
    "make_transport",
    "need",
    "noise",
    "refused",
    "same",
    "settle",
]

#: Seconds after which anything that has not happened is a hang.
TIMEOUT = float(os.environ.get("CACHEFW_TESTING_TIMEOUT", "30"))
#: Bytes on each side of what is moved that must stay as they are.
GUARD = 64


class KitMemory:
    """Memory that the kit registers, and a way to its bytes that is not the transport's.

    For memory that has no array, derive from it and override `read`, `write` and `close`.

    Attributes:
        region: All of it.
    """

    def __init__(
        self, region: MemoryRegion, array: NDArray[np.uint8] | None = None, owner: Allocation | None = None
    ) -> None:
        self.region = region
        self._array = array
        self._owner = owner

    @classmethod
    def ordinary(cls, size: int, alignment: int = 1) -> KitMemory:
        """Host memory that the transport did not make."""
        array = aligned_empty(size, alignment)
        return cls(region_of(array), array)

    @classmethod
    def allocated(cls, allocation: Allocation) -> KitMemory:
        """Host memory that a transport made; `close` gives it back."""
        return cls(allocation.region, np.asarray(allocation), allocation)

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """`length` bytes from `offset`; all when it is not given."""
        assert self._array is not None, "memory without an array must override read, or was closed"
        return self._array[offset:][:length].tobytes()

    def write(self, data: bytes, offset: int = 0) -> None:
        """Put `data` at `offset`."""
        assert self._array is not None, "memory without an array must override write, or was closed"
        self._array[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def close(self) -> None:
        """Give the memory back. Idempotent."""
        self._array = None
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.close()


#: How the kit asks for memory: for an open transport, so many bytes, of one of its kinds.
MakeMemory = Callable[[Transport, int, MemoryKind], KitMemory]


def chance(seed: int) -> random.Random:
    """Chance that is the same each time."""
    return random.Random(seed)


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes without a pattern, the same for the same arguments."""
    return chance(size << 32 | seed).randbytes(size)


def same(actual: bytes, expected: bytes | bytearray, what: str = "") -> None:
    """Fail unless the bytes are equal, and say where they are not; a full comparison of megabytes takes minutes."""
    if actual != expected:
        assert len(actual) == len(expected), f"{len(actual):,} bytes instead of {len(expected):,}; {what}"
        wrong = np.flatnonzero(np.frombuffer(actual, np.uint8) != np.frombuffer(expected, np.uint8))
        pytest.fail(
            f"{len(wrong):,} of {len(actual):,} bytes are wrong, the first at offset {wrong[0]:,}, the last at offset "
            f"{wrong[-1]:,}" + (f": {what}" if what else "")
        )


def make_transport(info: TransportInfo) -> Transport:
    """A transport as the core makes it, unopened; the test is skipped where its runtime is missing."""
    transport: Transport = info.factory()
    transport.info = info
    reason = transport.probe()
    if reason is not None:
        pytest.skip(f"transport {info.name!r} is not available here: {reason.splitlines()[0]}")
    return transport


def need(info: TransportInfo, *capabilities: Capability) -> None:
    """Skip the test unless all of `capabilities` are offered."""
    for capability in capabilities:
        if capability not in info.capabilities:
            pytest.skip(f"transport {info.name!r} does not offer Capability.{capability.name}")


def check_error(
    error: BaseException | None, info: TransportInfo, family: type[CacheError] = CacheError, naming: str = ""
) -> None:
    """Fail unless `error` is of `family`, says whose it is, and has `naming` in its text."""
    assert isinstance(error, family), f"a {family.__name__} was promised, not {error!r}"
    assert error.transport == info.name, f"the error's transport is {error.transport!r}: {error}"
    assert naming in str(error), f"{naming!r} is not named in: {error}"


@contextlib.contextmanager
def refused(info: TransportInfo, family: type[CacheError] = CacheError, naming: str = "") -> Iterator[None]:
    """Fail unless the block raises an error that `check_error` likes."""
    with pytest.raises(family) as caught:
        yield
    check_error(caught.value, info, family, naming)


def settle(transfer: Transfer) -> Transfer:
    """Wait until it is settled; a hang fails the test."""
    assert transfer.wait(TIMEOUT), f"not settled after {TIMEOUT} s"
    assert transfer.settled, "wait() was True but settled is False"
    return transfer


@attrs.define(eq=False)
class Place:
    """Registered memory; `memory_id` is what the initiator's channel calls it, if it lies in the target."""

    memory: KitMemory
    transport: Transport
    registered: RegisteredMemory
    memory_id: int | None = None

    @property
    def address(self) -> int:
        """Its first byte."""
        return self.memory.region.address

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of the memory."""
        return self.memory.read(offset, length)

    def fill(self, seed: int) -> bytes:
        """Put noise into all of it, and return that."""
        data = noise(self.memory.region.length, seed)
        self.memory.write(data)
        return data


@attrs.frozen
class Piece:
    """`length` bytes between `local` at offset `at` and `remote` at offset `there`."""

    local: Place
    at: int
    remote: Place
    there: int
    length: int


class Bench:
    """Two open transports of one kind, and the way from the first to the second.

    Memory is registered before the channel is opened, as a transport without `Capability.LATE_REGISTRATION` needs it:
    call `local` and `remote` first, and use `channel` after that.
    """

    def __init__(self, info: TransportInfo, settings: Mapping[str, Any], make_memory: MakeMemory) -> None:
        self.info = info
        self.settings = settings
        self.make_memory = make_memory
        self._channel: Channel | None = None
        # The target's ends, which move nothing but take part.
        self._back: list[Channel] = []
        self._places: list[Place] = []
        self._memory: list[KitMemory] = []
        self._next_id = 7001
        self._opened: list[Transport] = []

    def open(self) -> None:
        """Open both transports."""
        self.initiator = self.open_transport()
        self.target = self.open_transport()

    def open_transport(self) -> Transport:
        """Open one more transport; `close` closes it."""
        transport = make_transport(self.info)
        transport.open(self.settings)
        self._opened.append(transport)
        return transport

    @property
    def kind(self) -> MemoryKind:
        """The kind of memory that most tests use: the one whose bytes are seen most easily."""
        return next(kind for kind in MemoryKind if kind in self.info.kinds)

    @property
    def operations(self) -> list[Operation]:
        """What channels can do."""
        return [operation for operation in Operation if Capability[operation.name] in self.info.capabilities]

    @property
    def channel(self) -> Channel:
        """The way from the initiator to the target, opened when it is first asked for."""
        if self._channel is None:
            self._channel = self.connect()
            for place in self._places:
                if place.memory_id is not None:
                    self.attach(place)
        return self._channel

    def connect(self) -> Channel:
        """One more way from the initiator to the target, as a link opens it: at both ends."""
        ours, theirs = sessions()
        self._back.append(self.target.connect(self.initiator.card(), TIMEOUT, theirs))
        return self.initiator.connect(self.target.card(), TIMEOUT, ours)

    @property
    def back(self) -> Channel:
        """The target's end of `channel`."""
        _ = self.channel
        return self._back[0]

    def memory(self, size: int, transport: Transport | None = None, kind: MemoryKind | None = None) -> KitMemory:
        """Memory that is not registered yet."""
        memory = self.make_memory(transport or self.initiator, size, kind or self.kind)
        self._memory.append(memory)
        return memory

    def register(self, memory: KitMemory, transport: Transport) -> Place:
        """Register memory; what lies in the target gets an id."""
        place = Place(memory, transport, transport.register(memory.region))
        if transport is self.target:
            place.memory_id, self._next_id = self._next_id, self._next_id + 1
        self._memory.append(memory)
        self._places.append(place)
        return place

    def local(self, size: int) -> Place:
        """New memory in the initiator."""
        return self.register(self.memory(size, self.initiator), self.initiator)

    def remote(self, size: int) -> Place:
        """New memory in the target, known to the initiator."""
        place = self.register(self.memory(size, self.target), self.target)
        if self._channel is not None:
            self.attach(place)
        return place

    def attach(self, place: Place) -> None:
        """Tell the channel of memory in the target."""
        assert place.memory_id is not None
        self.channel.attach(place.memory_id, place.memory.region, self.target.describe(place.registered))

    def detach(self, place: Place) -> None:
        """Have the channel forget it."""
        assert place.memory_id is not None
        self.channel.detach(place.memory_id)

    def unregister(self, place: Place) -> None:
        """Give one registration back; its memory stays."""
        place.transport.unregister(place.registered)
        self._places.remove(place)

    def batch(self, pieces: Iterable[Piece]) -> Batch:
        """The pieces as a channel takes them, or `Transport.copy` when the remote side has no id."""
        rows = [(piece.local.address + piece.at, piece.remote.address + piece.there, piece.length) for piece in pieces]
        ids = [piece.remote.memory_id for piece in pieces if piece.remote.memory_id is not None]
        local, remote, length = np.array(rows, np.uint64).T.copy()
        return Batch(local, remote, length, np.array(ids, np.uint64))

    def prepare(self, operation: Operation, pieces: Iterable[Piece]) -> Prepared:
        """The pieces in native form."""
        channel = self.channel
        return channel.prepare(operation, self.batch(list(pieces)))

    def post(self, operation: Operation, pieces: Iterable[Piece]) -> Transfer:
        """Start moving the pieces."""
        return self.channel.post(self.prepare(operation, pieces))

    def move(self, operation: Operation, pieces: Iterable[Piece]) -> None:
        """Move the pieces; a failure fails the test."""
        error = settle(self.post(operation, pieces)).error
        assert error is None, f"the transfer failed: {error!r}"

    def close_own_channel(self) -> None:
        """Close the channel if there is one, and leave the target's end of it open."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def close_channel(self) -> None:
        """Close both ends of the channel if there is one; the next use of `channel` opens another."""
        self.close_own_channel()
        while self._back:
            self._back.pop().close()

    def close_transport(self, transport: Transport) -> None:
        """Close one side, with what it holds."""
        self._opened.remove(transport)
        self._places = [place for place in self._places if place.transport is not transport]
        transport.close()

    def close(self) -> None:
        """Give everything back, in order."""
        with contextlib.ExitStack() as stack:
            for memory in self._memory:
                stack.callback(memory.close)
            for transport in self._opened:
                stack.callback(transport.close)
            for place in self._places:
                stack.callback(place.transport.unregister, place.registered)
            stack.callback(self.close_channel)
        self._memory.clear()
        self._opened.clear()
        self._places.clear()
