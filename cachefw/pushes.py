"""What a push asks for: the pieces that rows or blocks of a local cache make in a peer's."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import attrs
import numpy as np

from cachefw import layout, pulls
from cachefw.cache import BlocksCacheKey, Cache, CacheKey, CacheKeyByIdAndIndex
from cachefw.errors import CacheError, NotFoundError, RequestError, refusal
from cachefw.published import PublishedCache
from cachefw.ranges import Pieces

__all__ = ["Layers", "block_pieces", "blocks_between", "row_pieces", "row_to_blocks", "source_row"]

RowKey = CacheKey | CacheKeyByIdAndIndex


def _bad(text: str, builtin: type[Exception] = ValueError) -> CacheError:
    return refusal(RequestError, {builtin}, text, operation="push")


@attrs.frozen
class Layers:
    """Which layers of either cache take part. None is every layer of the source, on both sides."""

    source: Any
    target: Any
    per_layer: Any

    def pairs(self, source: Cache, target: PublishedCache) -> tuple[list[int], list[int]]:
        """Tensor addresses here and there, paired.

        Raises:
            RequestError: The ranges make no sense, or do not pair up; the tensors do not make whole layers.
            NotFoundError: A layer does not exist.
        """
        per_layer = pulls.integer("tensor_num_per_layer", self.per_layer, 1)
        tensors = len(source.tensor_addrs)
        if tensors % per_layer:
            raise _bad(
                f"{tensors} tensors of {source} do not make layers of {per_layer} tensors each; give "
                "tensor_num_per_layer"
            )
        every = range(tensors // per_layer)
        here = layout.layer_tensors(every if self.source is None else self.source, per_layer, tensors, "src")
        there = layout.layer_tensors(
            every if self.target is None else self.target, per_layer, len(target.tensors), "dst"
        )
        if len(there) != len(here):
            raise _bad(
                f"{len(here)} tensors of {source} do not pair with {len(there)} tensors of the peer's {target}; give "
                "src_layer_range and dst_layer_range of one length"
            )
        return [source.tensor_addrs[i] for i in here], [target.tensors[i] for i in there]


def source_row(source: Cache, batch_index: Any, fix: str) -> int:
    """The row of a contiguous local cache."""
    pulls.layout_is(source.is_blocks_cache, False, str(source), fix)
    row = pulls.integer("src_batch_index", batch_index, 0)
    if row >= source.cache_desc.batch_size:
        raise NotFoundError(
            f"src_batch_index {row}: {source} has rows 0 to {source.cache_desc.batch_size - 1}",
            code="not_found.row",
            operation="push",
        )
    return row


def row_pieces(
    source: Cache, batch_index: Any, size: Any, target: PublishedCache, key: RowKey, layers: Layers
) -> Pieces:
    """Pieces of `push_cache`: the start of one row of every tensor."""
    row = source_row(source, batch_index, "use push_blocks")
    pulls.layout_is(target.blocks, False, f"the peer's {target}", "use push_blocks")
    stride = source.cache_desc.stride
    length = stride if pulls.is_whole(size) else pulls.integer("size", size, 1)
    for what, room in ((f"a row of {source}", stride), (f"a row of the peer's {target}", target.stride)):
        if length > room:
            raise _bad(f"{length:,} bytes do not fit {what}, which has {room:,}; give size")
    here, there = layers.pairs(source, target)
    return layout.spread(here, there, row * stride, pulls.row_of(target, key) * target.stride, length)


def block_pieces(
    source: Cache,
    src_blocks: Any,
    batch_index: Any,
    target: PublishedCache,
    key: BlocksCacheKey | CacheKeyByIdAndIndex,
    dst_blocks: Any,
    layers: Layers,
) -> Pieces:
    """Pieces of `push_blocks`: blocks to blocks, or a row to blocks."""
    pulls.layout_is(target.blocks, True, f"the peer's {target}", "use push_cache")
    if isinstance(key, CacheKeyByIdAndIndex) and key.batch_index:
        raise _bad(f"{key}: the peer's {target} is a blocks cache and has no rows; leave batch_index at 0")
    to = layout.block_indices(dst_blocks, target.rows, "dst", f"the peer's {target}")
    if not len(to):
        raise _bad("dst_blocks is empty; name at least one block")
    layout.once(to)
    if source.is_blocks_cache:
        if pulls.integer("src_batch_index", batch_index, 0):
            raise _bad(f"{source} is a blocks cache and has no rows; leave src_batch_index at 0")
        begin = blocks_between(source, src_blocks, len(to), target.stride, f"the peer's {target}")
        lengths = np.full(len(to), target.stride, np.uint64)
    else:
        if not isinstance(src_blocks, Sized) or len(src_blocks):
            raise _bad(f"{source} is contiguous and has no blocks; leave src_blocks empty")
        begin, lengths = row_to_blocks(source, source_row(source, batch_index, ""), len(to), target.stride)
    here, there = layers.pairs(source, target)
    return layout.scatter(here, there, begin, to.astype(np.uint64) * np.uint64(target.stride), lengths)


def blocks_between(source: Cache, src_blocks: Any, count: int, stride: int, where: str) -> layout.U64:
    """Offsets of blocks to send, as many as there are to write."""
    begin = layout.block_indices(src_blocks, source.cache_desc.batch_size, "src", source)
    if len(begin) != count:
        raise _bad(f"src_blocks has {len(begin)} blocks and dst_blocks has {count}; give one for each")
    if source.cache_desc.stride != stride:
        raise _bad(f"a block of {source} has {source.cache_desc.stride:,} bytes, one of {where} has {stride:,}")
    offsets: layout.U64 = begin.astype(np.uint64) * np.uint64(stride)
    return offsets


def row_to_blocks(source: Cache, row: int, count: int, block: int) -> tuple[layout.U64, layout.U64]:
    """Offsets and lengths that fill blocks of `block` bytes in order from a row; the last may be filled in part."""
    stride = source.cache_desc.stride
    short = count * block - stride
    if short >= block:
        raise _bad(
            f"{count} blocks of {block:,} bytes are more than a row of {source}; {-(-stride // block)} blocks hold it"
        )
    begin = np.arange(count, dtype=np.uint64) * np.uint64(block) + np.uint64(row * stride)
    lengths = np.full(count, block, np.uint64)
    if short > 0:
        lengths[-1] -= np.uint64(short)
    return begin, lengths
