"""What is moved: buffers, blocks, and the bytes that say where each belongs."""

from __future__ import annotations

import random
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

import cachefw
from benchmarks.paths import HCCS, DeviceMemory

U64 = NDArray[np.uint64]

KIB, MIB = 2**10, 2**20
_EMPTY = 0xEEEEEEEEEEEEEEEE
#: Words checked at a time: small enough to stay in a core's own cache.
_CHUNK = 16 * KIB
#: Words wiped at a time; every buffer has a multiple of them, or fewer.
_WIPED = 128 * KIB


@attrs.frozen
class Shape:
    """Buffers of blocks, of which some are moved.

    Attributes:
        title: What the table calls it.
        buffers: How many.
        slots: Blocks of each.
        take: Blocks of each that are moved, scattered on both sides.
        block: Bytes of a block.
    """

    title: str
    buffers: int
    slots: int
    take: int
    block: int

    @property
    def nbytes(self) -> int:
        """Bytes moved."""
        return self.buffers * self.take * self.block

    def blocks(self) -> tuple[list[int], list[int]]:
        """Block numbers there and here; no two in a row are neighbours on both sides, so that none can be joined."""
        draw = random.Random(20261201)
        while True:
            there, here = (draw.sample(range(self.slots), self.take) for _ in "12")
            steps = zip(there, there[1:], here, here[1:], strict=False)
            if not any(b - a == 1 and d - c == 1 for a, b, c, d in steps):
                return there, here


SHAPES = {
    "w1": Shape("1 x 256 MiB", 1, 1, 1, 256 * MIB),
    "w2": Shape("64 x 128 blocks of 128 KiB", 64, 192, 128, 128 * KIB),
    "w3": Shape("64 x 128 blocks of 16 KiB", 64, 192, 128, 16 * KIB),
    "w4": Shape("1 block of 4 KiB", 1, 1024, 1024, 4 * KIB),
}


class Buffers:
    """The buffers of a shape in this process, registered as one blocks cache."""

    def __init__(self, node: cachefw.Node, shape: Shape, path: str, *, published: bool = False) -> None:
        manager = node.cache_manager
        size = shape.slots * shape.block
        self.shape = shape
        self._manager = manager
        self._owners: list[Any] = [_memory(manager, path, size) for _ in range(shape.buffers)]
        self._device: DeviceMemory | None = None
        self._views: list[U64] = []
        placement = cachefw.Placement.HOST
        if path == HCCS:
            self._device = DeviceMemory(node.cluster_id - 1)
            self.addresses = [owner.address for owner in self._owners]
            placement = cachefw.Placement.DEVICE
        else:
            self._views = [np.asarray(owner).view(np.uint64) for owner in self._owners]
            self.addresses = [int(view.ctypes.data) for view in self._views]
        desc = cachefw.CacheDesc(shape.buffers, (shape.slots, shape.block), cachefw.DataType.DT_INT8, placement)
        key = cachefw.BlocksCacheKey(node.cluster_id) if published else None
        self.cache = manager.register_blocks_cache(desc, self.addresses, key, remote_accessible=published)

    def close(self) -> None:
        """Give the memory back."""
        self._manager.unregister_cache(self.cache.cache_id)
        self._views.clear()
        for owner in self._owners:
            if isinstance(owner, cachefw.Allocation):
                owner.close()
        self._owners.clear()
        if self._device is not None:
            self._device.close()

    def fill(self) -> None:
        """Give every word the number of its buffer, its block and its place."""
        words = np.arange(self.shape.block // 8, dtype=np.uint64)
        for number in range(self.shape.buffers):
            for slot in range(self.shape.slots):
                self._put(number, slot * len(words), words + _mark(number, slot))

    def wipe(self) -> None:
        """Make every word wrong."""
        empty = np.full(min(_WIPED, self.shape.slots * self.shape.block // 8), _EMPTY, np.uint64)
        for number in range(self.shape.buffers):
            for start in range(0, self.shape.slots * self.shape.block // 8, len(empty)):
                self._put(number, start, empty)

    def check(self, there: list[int], here: list[int]) -> None:
        """Hold every word of the blocks moved against what the other side has.

        Raises:
            WrongDataError: One differs.
        """
        words = np.arange(self.shape.block // 8, dtype=np.uint64)
        for number in range(self.shape.buffers):
            for source, target in zip(there, here, strict=True):
                mark = _mark(number, source)
                for start in range(0, len(words), _CHUNK):
                    right = words[start : start + _CHUNK] + mark
                    if not np.array_equal(self._get(number, target * len(words) + start, len(right)), right):
                        raise WrongDataError(f"buffer {number}, block {target}: wrong bytes from word {start} on")

    def _put(self, number: int, start: int, words: U64) -> None:
        if self._device is not None:
            self._device.put(self.addresses[number] + 8 * start, words)
        else:
            self._views[number][start : start + len(words)] = words

    def _get(self, number: int, start: int, count: int) -> U64:
        if self._device is None:
            return self._views[number][start : start + count]
        words = np.empty(count, np.uint64)
        self._device.get(self.addresses[number] + 8 * start, words)
        return words


def _memory(manager: cachefw.CacheManager, path: str, size: int) -> Any:
    if path == HCCS:
        return manager.allocate(size, cachefw.MemoryKind.DEVICE)
    return manager.allocate(size) if path == "shm" else np.empty(size, np.uint8)


class WrongDataError(Exception):
    """A pull did not deliver what it should have."""


def _mark(buffer: int, slot: int) -> np.uint64:
    return np.uint64(buffer << 48 | slot << 32)
