"""The table of registered memory: who has which range, how often, and what may not be touched now.

The registry knows ranges and counts, not transports or rules. Everything here is under one lock and calls nothing
outside; native calls happen in the manager, between `reserve` and `commit`.
"""

from __future__ import annotations

import bisect
import contextlib
import enum
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from cachefw.cache import Cache
from cachefw.errors import ClosedError
from cachefw.memory import MemoryKind, MemoryRegion, probe_of
from cachefw.quarantine import Quarantine
from cachefw.transport import RegisteredMemory

__all__ = ["Memory", "MemoryState", "RangeTable", "Registry"]


class MemoryState(enum.Enum):
    """The life of a `Memory`."""

    #: Its range is taken and native registration is under way.
    RESERVED = "reserved"
    #: Usable.
    LIVE = "live"
    #: Being given back: no new transfer may touch it.
    LEAVING = "leaving"
    #: Gone.
    CLOSED = "closed"
    #: Its owner has released it, and will have it again: see `CacheManager.suspend`.
    SUSPENDED = "suspended"
    #: Its owner has released it for good: only unregistering is left.
    DANGLING = "dangling"
    #: A native call failed half way; the range stays taken because nobody knows what still reaches it.
    QUARANTINED = "quarantined"


@attrs.define(eq=False)
class Memory:
    """Registered memory: one native region, shared by everyone who registered exactly it. Made by `CacheManager`.

    Attributes:
        memory_id: Counts from 1 in its manager.
        region: The range.
        label: The owner's name for it, for messages.
        origin: File and line of the registration.
        shared: Registered by `register_memory`: caches inside it are views, and the same region may come again.
        remote_accessible: Whether linked peers may reach it.
        owner: The object whose memory it is; kept alive.
        registered: The native registration of each transport, by name.
        users: How many registrations and caches hold it.
        state: See `MemoryState`.
        probe: Asks the owner whether the memory is still its own and still there; None when nobody can tell.
    """

    memory_id: int
    region: MemoryRegion
    label: str
    origin: str
    shared: bool
    remote_accessible: bool
    owner: object = None
    registered: dict[str, RegisteredMemory] = attrs.field(factory=dict)
    users: int = 1
    state: MemoryState = MemoryState.RESERVED
    probe: Callable[[], bool] | None = None

    def gone(self) -> bool:
        """Whether the owner is known to have released or moved it."""
        return self.probe is not None and not self.probe()

    def __str__(self) -> str:
        name = f"{self.label!r} " if self.label else ""
        return f"memory {self.memory_id} {name}registered at {self.origin}"

    def __repr__(self) -> str:
        return f"<{self}: {self.region}, {self.state.value}>"


class RangeTable:
    """Ranges that do not overlap, for finding many pieces at once.

    Args:
        ranges: (address, length, id) in any order.
    """

    def __init__(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        self._rows = rows = sorted(ranges)
        self._firsts = [row[0] for row in rows]
        self.starts: NDArray[np.uint64] = np.array(self._firsts, np.uint64)
        self.lengths: NDArray[np.uint64] = np.array([row[1] for row in rows], np.uint64)
        self.ids: NDArray[np.uint64] = np.array([row[2] for row in rows], np.uint64)

    def find(self, addresses: NDArray[np.uint64], lengths: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], int]:
        """For each piece the id of the range that holds it whole.

        Returns:
            The ids, and the position of the first piece that no range holds, or -1.
        """
        if not len(self.starts):
            return np.zeros(len(addresses), np.uint64), 0 if len(addresses) else -1
        if len(addresses) == 1:
            return self._find_one(int(addresses[0]), int(lengths[0]))
        row = np.searchsorted(self.starts, addresses, side="right")
        row -= 1
        # An address below the first start has row -1, wraps to the last range, and fails the test on its offset.
        # In place and let go early: a pull of many blocks has its peak of memory here.
        offset = self.starts[row]
        np.subtract(addresses, offset, out=offset)
        room = self.lengths[row]
        inside = offset < room
        room -= offset
        del offset
        inside &= lengths <= room
        del room
        first = -1 if inside.all() else int(np.argmin(inside))
        return self.ids[row], first

    def _find_one(self, address: int, length: int) -> tuple[NDArray[np.uint64], int]:
        """The same for one piece, where arrays take several times as long as numbers."""
        row = bisect.bisect_right(self._firsts, address) - 1
        start, size, _ = self._rows[row]
        # Row -1 means the last range, which begins behind the address.
        inside = start <= address and address + length <= start + size
        return self.ids[row : row + 1 or None], -1 if inside else 0


class Registry:
    """All registered memory and caches of one manager.

    Thread safety: every method may be called from any thread; none calls out.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._settled = threading.Condition(self.lock)
        #: Changes whenever memory comes, goes or turns unusable. Read without the lock on the transfer path.
        self.version = 0
        #: What transfers of any link may still touch although their deadlines have passed.
        self.quarantine = Quarantine()
        self.caches: dict[int, Cache] = {}
        self.cache_memory: dict[int, tuple[Memory, ...]] = {}
        self.cache_calls: dict[int, str] = {}
        self.cache_owners: dict[int, tuple[object, ...]] = {}
        self.names: dict[tuple[str, int, int], int] = {}
        #: Ids of caches that are given back once nothing names them.
        self.parting: set[int] = set()
        self._starts: list[int] = []
        self._memories: dict[int, Memory] = {}
        self._by_id: dict[int, Memory] = {}
        # How many copies within the process use each memory now.
        self._copying: dict[Memory, int] = {}
        self._memory_ids = itertools.count(1)
        self._cache_ids = itertools.count(1)
        self._table: tuple[int, RangeTable] | None = None

    def touch(self) -> None:
        """Have everything that was prepared looked at again before it is posted."""
        with self.lock:
            self.version += 1

    def memories(self) -> list[Memory]:
        """Everything that takes a range, by address."""
        with self.lock:
            return [self._memories[start] for start in self._starts]

    def memory(self, memory_id: int) -> Memory:
        """The memory of that id, which `table` gave."""
        return self._by_id[memory_id]

    def holds(self, memory: Memory) -> bool:
        """Whether it is this registry's, and not given back."""
        with self.lock:
            return self._by_id.get(memory.memory_id) is memory

    def counts(self) -> dict[str, int]:
        """Addresses registered, by register call."""
        with self.lock:
            counts: dict[str, int] = {}
            for cache_id, call in self.cache_calls.items():
                counts[call] = counts.get(call, 0) + len(self.caches[cache_id].tensor_addrs)
            return counts

    def bytes(self, *, device: bool) -> int:
        """Bytes registered of device memory, or of all host memory."""
        with self.lock:
            kinds = (m.region for m in self._memories.values())
            return sum(r.length for r in kinds if (r.kind is MemoryKind.DEVICE) == device)

    def overlapping(self, address: int, end: int) -> Iterator[Memory]:
        """Memory that shares a byte with [address, end), by address."""
        first = bisect.bisect_right(self._starts, address) - 1
        if first >= 0 and self._memories[self._starts[first]].region.end > address:
            yield self._memories[self._starts[first]]
        # By position: a slice would copy the rest, and an iterator walk up to it, for every address of a plan.
        for position in range(first + 1, len(self._starts)):
            start = self._starts[position]
            if start >= end:
                return
            yield self._memories[start]

    def table(self) -> RangeTable:
        """The memory that transfers may touch now."""
        with self.lock:
            if self._table is None or self._table[0] != self.version:
                live = [m for m in self._memories.values() if m.state is MemoryState.LIVE]
                rows = RangeTable((m.region.address, m.region.length, m.memory_id) for m in live)
                self._table = (self.version, rows)
            return self._table[1]

    def reserve(
        self,
        regions: Sequence[MemoryRegion],
        *,
        label: str,
        origin: str,
        shared: bool,
        remote_accessible: bool,
        owners: Sequence[object] | None = None,
    ) -> list[Memory]:
        """Take ranges that a plan found free, each with its owner. The caller holds `lock` since that plan."""
        made = [
            Memory(
                next(self._memory_ids),
                region,
                label,
                origin,
                shared,
                remote_accessible,
                owner,
                probe=probe_of(owner, region),
            )
            for region, owner in zip(regions, owners or [None] * len(regions), strict=True)
        ]
        self._memories.update((memory.region.address, memory) for memory in made)
        self._by_id.update((memory.memory_id, memory) for memory in made)
        self._starts.extend(memory.region.address for memory in made)
        self._starts.sort()
        self.version += 1
        return made

    def release(self, memory: Memory, *, quarantined: bool = False) -> None:
        """Free a range, or keep it taken for good when nobody knows what still reaches it."""
        with self.lock:
            self._moved()
            if quarantined:
                memory.state = MemoryState.QUARANTINED
                return
            memory.state = MemoryState.CLOSED
            memory.owner = memory.probe = None
            del self._memories[memory.region.address]
            del self._by_id[memory.memory_id]
            del self._starts[bisect.bisect_left(self._starts, memory.region.address)]

    def renew(self, memory: Memory) -> None:
        """Give memory another id; what knows it by the old one knows it no more."""
        with self.lock:
            del self._by_id[memory.memory_id]
            memory.memory_id = next(self._memory_ids)
            self._by_id[memory.memory_id] = memory

    def go_live(self, memories: Iterable[Memory]) -> None:
        """Open memory to transfers."""
        with self.lock:
            for memory in memories:
                memory.state = MemoryState.LIVE
            self._moved()

    def leave(self, memories: Iterable[Memory]) -> None:
        """Close memory to new transfers; `restore` takes it back."""
        with self.lock:
            for memory in memories:
                memory.state = MemoryState.LEAVING
            self._moved()

    def put(self, memories: Iterable[Memory], state: MemoryState) -> None:
        """Put memory in a state in which no transfer may touch it."""
        with self.lock:
            for memory in memories:
                memory.state = state
            self._moved()

    def restore(self, before: Mapping[Memory, MemoryState]) -> None:
        """Put memory back in the state it had."""
        with self.lock:
            for memory, state in before.items():
                memory.state = state
            self._moved()

    @contextlib.contextmanager
    def using(self, memories: Sequence[Memory], operation: str) -> Iterator[None]:
        """Keep memory from being given back while a copy within the process uses it.

        Raises:
            ClosedError: Some of it is being given back, or was.
        """
        with self.lock:
            for memory in memories:
                if memory.state is not MemoryState.LIVE:
                    raise ClosedError(f"{operation}: {memory} is {memory.state.value}", operation=operation)
            for memory in memories:
                self._copying[memory] = self._copying.get(memory, 0) + 1
        try:
            yield
        finally:
            with self.lock:
                for memory in memories:
                    self._copying[memory] -= 1
                    if not self._copying[memory]:
                        del self._copying[memory]

    def copied(self, memories: Iterable[Memory]) -> bool:
        """Whether a copy within the process uses some of the memory now."""
        with self.lock:
            return not self._copying.keys().isdisjoint(memories)

    def _moved(self) -> None:
        self.version += 1
        self._settled.notify_all()

    def await_settled(self, region: MemoryRegion, until: float) -> None:
        """Wait while exactly this region is on its way in or out by another thread's doing. The caller holds `lock`.

        Args:
            region: Which.
            until: When to wait no longer, by `time.monotonic`.
        """
        on_its_way = (MemoryState.RESERVED, MemoryState.LEAVING)
        while (held := self._memories.get(region.address)) is not None and held.state in on_its_way:
            left = until - time.monotonic()
            if held.region != region or left <= 0 or not self._settled.wait(left):
                return

    def forked(self) -> None:
        """Have locks that no thread of the parent's can hold."""
        self.lock = threading.RLock()
        self._settled = threading.Condition(self.lock)

    def next_cache_id(self) -> int:
        """A fresh id; none is used twice."""
        return next(self._cache_ids)

    def add_cache(self, cache: Cache, memories: tuple[Memory, ...], call: str, owners: tuple[object, ...] = ()) -> None:
        """File a cache under its id and its keys, and keep the owners of its memory."""
        with self.lock:
            self.cache_owners[cache.cache_id] = owners
            self.caches[cache.cache_id] = cache
            self.cache_memory[cache.cache_id] = memories
            self.cache_calls[cache.cache_id] = call
            for name in key_names(cache):
                self.names[name[:3]] = cache.cache_id
            self.version += 1

    def names_of(self, cache: Cache) -> list[tuple[str, int, int, int]]:
        """What keys call a cache now."""
        with self.lock:
            return [name for name in key_names(cache) if self.names.get(name[:3]) == cache.cache_id]

    def remove_name(self, name: tuple[str, int, int]) -> Cache | None:
        """Take a name away; the cache that had it, or None."""
        with self.lock:
            number = self.names.pop(name, None)
            return None if number is None else self.caches[number]

    def remove_cache(self, cache_id: int) -> None:
        """Forget a cache and its keys."""
        with self.lock:
            self.parting.discard(cache_id)
            for table in (self.caches, self.cache_memory, self.cache_calls, self.cache_owners):
                del table[cache_id]
            self.names = {name: owner for name, owner in self.names.items() if owner != cache_id}
            self.version += 1


def key_names(cache: Cache) -> list[tuple[str, int, int, int]]:
    """What keys called a cache when it was registered: (kind, id, model id, row)."""
    return [(*key.local_name, row) for row, key in enumerate(cache.keys) if not getattr(key, "is_placeholder", False)]
