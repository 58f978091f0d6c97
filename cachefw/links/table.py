"""What the peer of one link has published: its memory and its caches."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from cachefw.errors import BrokenError, RequestError, refusal
from cachefw.memory import Access, MemoryKind, MemoryRegion
from cachefw.published import PublishedCache, PublishedMemory
from cachefw.registry import RangeTable
from cachefw.transport import Operation

__all__ = ["PeerTable", "check_memory", "name_words"]

#: What one peer may publish, in memory and in caches' tensors: more is no table but an attack.
MOST = 2**20


class PeerTable:
    """The peer's memory and caches, as known now. Changed in the loop's thread, read from any.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memories: dict[int, PublishedMemory] = {}
        self._strangers: dict[int, PublishedMemory] = {}
        self._caches: dict[int, PublishedCache] = {}
        self._names: dict[tuple[str, int, int], int] = {}
        self._ranges: RangeTable | None = None
        # Tensors and names of all caches.
        self._tensors = 0

    @property
    def caches(self) -> list[PublishedCache]:
        """The caches, in the order in which they came."""
        with self._lock:
            return list(self._caches.values())

    @property
    def memories(self) -> list[PublishedMemory]:
        """The memory, in the order in which it came."""
        with self._lock:
            return list(self._memories.values())

    @property
    def strangers(self) -> list[PublishedMemory]:
        """Memory that was published for other transports than the link's."""
        with self._lock:
            return list(self._strangers.values())

    def memory_ids(self) -> set[int]:
        """Ids of the memory."""
        with self._lock:
            return set(self._memories)

    def knows(self, memory_id: int) -> bool:
        """Whether memory of that id is published."""
        return memory_id in self._memories

    def ranges(self) -> RangeTable:
        """The memory, for finding many pieces at once."""
        with self._lock:
            if self._ranges is None:
                self._ranges = RangeTable((m.address, m.length, m.memory_id) for m in self._memories.values())
            return self._ranges

    def find(self, name: tuple[str, int, int] | int) -> PublishedCache | None:
        """The cache of that id, or that a key names."""
        with self._lock:
            number = name if isinstance(name, int) else self._names.get(name)
            return self._caches.get(number) if number is not None else None

    def check_rights(self, operation: Operation, memory_ids: Iterable[int], peer: str) -> None:
        """Refuse what the peer does not allow.

        Raises:
            RequestError: Also a `ValueError`.
        """
        wanted = Access.READ if operation is Operation.READ else Access.WRITE
        with self._lock:
            for number in memory_ids:
                memory = self._memories.get(number)
                if memory is not None and wanted not in Access(memory.access):
                    raise refusal(
                        RequestError,
                        {ValueError},
                        f"{peer} does not allow a {operation.value} of its memory {number}",
                        code="request.rights",
                        operation=operation.value,
                        peer=peer,
                    )

    def room(self, peer: str) -> None:
        """Refuse a peer that publishes without end.

        Raises:
            BrokenError: It has published as much as is taken.
        """
        if max(len(self._memories) + len(self._strangers), self._tensors) >= MOST:
            text = f"{peer} published more than {MOST:,} memories or tensors; nobody's cache has that many"
            raise BrokenError(text, code="link.protocol", peer=peer)

    def add_memory(self, memory: PublishedMemory) -> None:
        """File memory that can be reached."""
        with self._lock:
            self._memories[memory.memory_id] = memory
            self._ranges = None

    def add_stranger(self, memory: PublishedMemory) -> None:
        """File memory that the link's transport does not reach, to name it when it is asked for."""
        with self._lock:
            self._strangers[memory.memory_id] = memory

    def add_caches(self, caches: Iterable[PublishedCache]) -> None:
        """File caches under their ids and keys."""
        with self._lock:
            for cache in caches:
                self._forget(cache.cache_id)
                self._caches[cache.cache_id] = cache
                self._tensors += len(cache.tensors) + len(cache.names)
                self._names.update((name[:3], cache.cache_id) for name in cache.names)

    def remove(self, memory_ids: Iterable[int], cache_ids: Iterable[int]) -> None:
        """Forget what the peer withdraws."""
        with self._lock:
            for number in cache_ids:
                self._forget(number)
            for number in memory_ids:
                self._memories.pop(number, None)
                self._strangers.pop(number, None)
            self._ranges = None

    def _forget(self, cache_id: int) -> None:
        cache = self._caches.pop(cache_id, None)
        if cache is not None:
            self._tensors -= len(cache.tensors) + len(cache.names)
            for name in cache.names:
                self._names.pop(name[:3], None)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._memories.clear()
            self._strangers.clear()
            self._caches.clear()
            self._names.clear()
            self._tensors = 0
            self._ranges = None


def check_memory(memory: PublishedMemory, peer: str) -> MemoryRegion:
    """What the peer says of its memory, held against what can be.

    Raises:
        BrokenError: It cannot.
    """
    try:
        region = MemoryRegion(memory.address, memory.length, MemoryKind(memory.kind), Access(memory.access))
        possible = 0 < memory.memory_id < 2**63 and region.address > 0 and region.length > 0
        possible = possible and region.end <= 2**64
    except ValueError:
        possible = False
    if not possible:
        raise BrokenError(f"{peer} published memory that cannot be: {memory}", code="link.protocol", peer=peer)
    return region


def name_words(name: tuple[str, int, int] | int) -> str:
    """A cache's name in words."""
    if isinstance(name, int):
        return f"cache {name}"
    kind, number, model = name
    what = "a blocks key" if kind == "blocks" else f"{kind}_id {number}"
    return f"cache with {what} of model {model}"
