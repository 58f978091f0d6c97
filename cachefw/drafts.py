"""One registration on its way, as the core's rules see it."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from cachefw.cache import CacheDesc
from cachefw.errors import CacheError
from cachefw.memory import MemoryRegion
from cachefw.rules import Limits

__all__ = ["Draft", "Holder", "Overlap"]


@attrs.frozen
class Holder:
    """Who has a range of registered memory: its place, its owner in words, and whether peers may reach it."""

    region: MemoryRegion
    owner: str
    remote_accessible: bool = False


@attrs.frozen
class Overlap:
    """A new region that meets memory which is taken."""

    index: int
    region: MemoryRegion
    holder: Holder
    holder_index: int | None = None


@attrs.define(eq=False)
class Draft:
    """One registration on its way: what was given, what it amounts to, and how things stand.

    Attributes:
        operation: The public call.
        desc, addrs, keys, remote_accessible: As given, of any type.
        blocks: Whether it is about a blocks cache.
        limits: The node's limits.
        linked: Whether a link exists.
        counts: Addresses registered already, by call.
        device_bytes, host_bytes: Registered already.
        taken_keys: Names in use already, each with the id of its cache.
        length: Bytes at each address, None while unknown.
        given: The addresses as a list, [] when they are none.
        usable: (index, address) of each address that could be one.
        regions: (index, region) of what has to be registered anew.
        views: (index, holder) of what lies in memory that is registered already.
        overlaps: What `regions` collide with.
        sources: For each index that was given as a tensor or the like: the object, and its region or why it has none.
    """

    operation: str
    desc: Any
    addrs: Any
    keys: Any
    remote_accessible: Any
    blocks: bool
    limits: Limits
    linked: bool
    counts: dict[str, int]
    device_bytes: int = 0
    host_bytes: int = 0
    taken_keys: dict[tuple[str, int, int], int] = attrs.field(factory=dict)
    length: int | None = None
    given: list[Any] = attrs.field(factory=list)
    usable: list[tuple[int, int]] = attrs.field(factory=list)
    regions: list[tuple[int, MemoryRegion]] = attrs.field(factory=list)
    views: list[tuple[int, Holder]] = attrs.field(factory=list)
    overlaps: list[Overlap] = attrs.field(factory=list)
    sources: dict[int, tuple[object, MemoryRegion | CacheError]] = attrs.field(factory=dict)

    @property
    def sized(self) -> CacheDesc | None:
        """The description, if it is one and its size is a positive number of bytes."""
        desc = self.desc
        if isinstance(desc, CacheDesc) and desc.shape and min(desc.shape) > 0 and desc.size < 2**63:
            return desc
        return None

    def place(self, index: int) -> str:
        """What the caller calls the address at `index`."""
        return f"addrs[{index}]" if isinstance(self.addrs, (list, tuple, np.ndarray)) else "the region"

    @property
    def key_list(self) -> list[Any]:
        """The keys as a list, whatever the call."""
        if self.keys is None:
            return []
        if self.blocks:
            return [self.keys]
        return list(self.keys) if isinstance(self.keys, (list, tuple)) else []
