"""Copies within this process: which ranges they name, and that nothing else is touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cachefw.errors import RequestError, refusal
from cachefw.memory import MemoryRegion, region_of
from cachefw.ranges import refuse_overlap
from cachefw.registry import Registry
from cachefw.transport import Batch

__all__ = ["copy_batch"]


def copy_batch(registry: Registry, dst: Any, src: Any) -> Batch:
    """The batch of a local copy, from `src` to `dst`.

    Args:
        registry: A `MemoryRegion` among the ranges has to lie in memory that is registered here.
        dst: A `MemoryRegion`, an allocation, a tensor, an array or a buffer; or a list of them.
        src: As many, each as long as its counterpart.

    Raises:
        RequestError: Also a `TypeError`, `ValueError` or `AttributeError`: no usable memory, unequal lengths, a byte
            written twice, or a bare region that is not registered.
    """
    targets, sources = (item if isinstance(item, (list, tuple)) else [item] for item in (dst, src))
    if len(targets) != len(sources) or not targets:
        raise _bad(f"{len(targets)} places to copy to and {len(sources)} to copy from; give as many, and at least one")
    into, out_of = _regions(registry, "dst", targets), _regions(registry, "src", sources)
    for index, (to, of) in enumerate(zip(into, out_of, strict=True)):
        if to.length != of.length:
            raise _bad(f"piece {index}: {of.length:,} bytes do not fill {to.length:,}; give ranges of one length")
    local = np.array([region.address for region in into], np.uint64)
    length = np.array([region.length for region in into], np.uint64)
    refuse_overlap(local, length, "copy")
    remote = np.array([region.address for region in out_of], np.uint64)
    return Batch(local, remote, length, np.zeros(0, np.uint64))


def _regions(registry: Registry, side: str, sources: Sequence[Any]) -> list[MemoryRegion]:
    regions = [region_of(source) for source in sources]
    bare = [index for index, source in enumerate(sources) if isinstance(source, MemoryRegion)]
    if bare:
        # An object keeps its memory; a number does not, and copying to or from what is not there ends the process.
        starts = np.array([regions[index].address for index in bare], np.uint64)
        lengths = np.array([regions[index].length for index in bare], np.uint64)
        _, first = registry.table().find(starts, lengths)
        if first >= 0:
            region = regions[bare[first]]
            raise _bad(f"{side} {bare[first]}: {region} is not in registered memory; give its owner, or register it")
    return regions


def _bad(text: str) -> Exception:
    return refusal(RequestError, {ValueError}, text, operation="copy")
