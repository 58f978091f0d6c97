"""Memory that is registered once, to be handed out in parts."""

from __future__ import annotations

import bisect
import threading

from cachefw.errors import OutOfMemoryError
from cachefw.memory import MemoryKind
from cachefw.registry import Memory

__all__ = ["Pool"]


class Pool:
    """One registered region; parts of it are taken at the first place where they fit.

    Thread safety: every method may be called from any thread.

    Args:
        memory: The region.
        page_size: Parts are multiples of it and begin at one.
    """

    def __init__(self, memory: Memory, page_size: int) -> None:
        self.memory = memory
        self._page = page_size
        self._lock = threading.Lock()
        #: Free runs as (start, length), by start; two runs never touch.
        self._free = [(memory.region.address, memory.region.length)]

    @property
    def kind(self) -> MemoryKind:
        """What memory it is."""
        return self.memory.region.kind

    @property
    def free(self) -> int:
        """Bytes that are not handed out."""
        with self._lock:
            return sum(length for _, length in self._free)

    def take(self, size: int) -> int:
        """The address of `size` bytes.

        Raises:
            OutOfMemoryError: No free run is long enough.
        """
        size = self._rounded(size)
        with self._lock:
            for position, (start, length) in enumerate(self._free):
                if length >= size:
                    self._free[position : position + 1] = [(start + size, length - size)] if length > size else []
                    return start
            longest = max((length for _, length in self._free), default=0)
            total = sum(length for _, length in self._free)
        raise OutOfMemoryError(
            f"{size:,} bytes do not fit the reserved {self.kind}: of {self.memory.region.length:,} bytes {total:,} are "
            f"free, {longest:,} in one run",
            operation="allocate_cache",
            facts={"size": size, "free": total, "longest": longest},
        )

    def give_back(self, address: int, size: int) -> None:
        """Free what `take` gave."""
        length = self._rounded(size)
        with self._lock:
            position = bisect.bisect(self._free, (address,))
            if position < len(self._free) and self._free[position][0] == address + length:
                length += self._free.pop(position)[1]
            if position and sum(self._free[position - 1]) == address:
                position -= 1
                start, before = self._free.pop(position)
                address, length = start, length + before
            self._free.insert(position, (address, length))

    def _rounded(self, size: int) -> int:
        return -(-size // self._page) * self._page
