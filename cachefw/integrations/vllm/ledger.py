"""Which blocks are still kept: a table that others read one-sidedly, after the blocks themselves.

A finished prefill is kept for a while, and then its blocks go to other requests. Whoever comes too late, or is slow,
would read those without noticing. So each kept request has a slot here, and the slot says that it is over before its
blocks are given away: who reads the blocks first and then the slot, and finds it not over, has read what was meant.
"""

from __future__ import annotations

import numpy as np

from cachefw.cache import BlocksCacheKey, Cache, CacheDesc, DataType, Placement
from cachefw.manager import CacheManager

__all__ = ["LEDGER", "Ledger", "Slots"]

#: The model id under which the table is registered.
LEDGER = 2**32
#: Requests that can be kept at the same time, and loads whose slots can be looked up at the same time.
SLOTS = 2**16


class Slots:
    """Hands out slots, each with a number that grows with every use. For the scheduler's thread."""

    def __init__(self, count: int = SLOTS) -> None:
        self._free = list(range(count - 1, -1, -1))
        self._uses = [0] * count

    def take(self) -> tuple[int, int] | None:
        """A slot and the number of its use, from 1; None when all are taken."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._uses[slot] += 1
        return slot, self._uses[slot]

    def give_back(self, slot: int) -> None:
        """The request of a slot is over."""
        self._free.append(slot)


class Ledger:
    """The slots of one rank, and room for those of others.

    Slot values: 0 at first; ``2 n`` while its n-th use is kept, ``2 n + 1`` from the moment at which that is over. A
    smaller value than ``2 n`` says that this rank has not heard of the n-th use yet; its blocks are kept all the same.

    Args:
        manager: Where it is registered.
        cluster_id: The node's.
    """

    def __init__(self, manager: CacheManager, cluster_id: int) -> None:
        self._own = np.zeros(SLOTS, np.uint64)
        self._read = np.zeros(SLOTS, np.uint64)
        self._room = list(range(SLOTS - 1, -1, -1))
        desc = CacheDesc(1, (SLOTS, 1), DataType.DT_UINT64, Placement.HOST)
        manager.register_memory(self._own, remote_accessible=True, label="ledger")
        manager.register_blocks_cache(desc, [self._own.ctypes.data], BlocksCacheKey(cluster_id, LEDGER), True)
        manager.register_memory(self._read, remote_accessible=False, label="ledgers read")
        self.target: Cache = manager.register_blocks_cache(
            desc, [self._read.ctypes.data], BlocksCacheKey(cluster_id, LEDGER + 1), False
        )

    def keep(self, slot: int, use: int) -> None:
        """Note that the n-th use of a slot is kept from now on."""
        self._own[slot] = 2 * use

    def over(self, slot: int, use: int) -> None:
        """Note that it is over, before its blocks are given away."""
        self._own[slot] = 2 * use + 1

    def is_over(self, slot: int, use: int) -> bool:
        """Whether the n-th use of a slot is over, or there is no such slot."""
        return not 0 <= slot < SLOTS or int(self._own[slot]) > 2 * use

    def take_room(self) -> int:
        """Where the slot of another instance can be read to: a block of `target`.

        Raises:
            IndexError: So many are being read already.
        """
        return self._room.pop()

    def kept(self, room: int, use: int) -> bool:
        """Whether the slot read to `room` says that its n-th use was not over. Gives the room back."""
        value = int(self._read[room])
        self._room.append(room)
        return value <= 2 * use
