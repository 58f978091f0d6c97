"""What a node tells its peers: the memory they may reach, and the caches that are views of it."""

from __future__ import annotations

import attrs

__all__ = ["PublishedCache", "PublishedMemory"]


@attrs.frozen
class PublishedMemory:
    """A remote-accessible region.

    Attributes:
        memory_id: Counts from 1 on its node; never used again.
        address, length: The range, as its owner sees it.
        kind: Value of `cachefw.memory.MemoryKind`.
        access: Value of `cachefw.memory.Access`.
        descriptions: What each transport says a peer needs, by the transport's name.
    """

    memory_id: int
    address: int
    length: int
    kind: str
    access: int
    descriptions: dict[str, bytes]


@attrs.frozen
class PublishedCache:
    """A remote-accessible cache.

    Attributes:
        cache_id: As on its node.
        blocks: Whether dimension 0 counts blocks.
        rows: Batch rows, or blocks.
        stride: Bytes of one row, or block.
        tensors: Start address of each tensor, as its owner sees it.
        names: What keys can call it, each with the row it means: (kind, id, model id, row).
    """

    cache_id: int
    blocks: bool
    rows: int
    stride: int
    tensors: tuple[int, ...]
    names: tuple[tuple[str, int, int, int], ...]

    def __str__(self) -> str:
        what = "blocks" if self.blocks else "rows"
        return f"cache {self.cache_id} ({len(self.tensors)} tensors of {self.rows} {what} of {self.stride:,} bytes)"
