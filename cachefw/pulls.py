"""What a pull asks for: the peer's cache by its key, and the pieces that rows or blocks of it make."""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, Protocol

import attrs
import numpy as np

from cachefw import layout
from cachefw.cache import BlocksCacheKey, Cache, CacheKey, CacheKeyByIdAndIndex, as_int
from cachefw.errors import NotFoundError, RequestError, refusal
from cachefw.published import PublishedCache
from cachefw.ranges import Pieces
from cachefw.transport import Transfer

__all__ = ["Layers", "Peer", "block_pieces", "find", "integer", "is_whole", "layout_is", "row_of", "row_pieces"]


class Peer(Protocol):
    """What pulls and pushes need of a link."""

    def lookup(self, name: tuple[str, int, int] | int) -> PublishedCache:
        """The peer's cache of that id or name; raises NotFoundError with what there is."""

    def read_pieces(self, pieces: Pieces, *, wait: bool, timeout: float | None, notify: bytes | None) -> Transfer:
        """Move pieces from the peer."""

    def write_pieces(self, pieces: Pieces, *, wait: bool, timeout: float | None, notify: bytes | None) -> Transfer:
        """Move pieces to the peer."""

    def launch_pieces(self, pieces: Pieces) -> Transfer:
        """Begin to move pieces to the peer, for somebody who looks after the transfer."""

    def check_notification(self, payload: Any) -> None:
        """Refuse what `notify` could not send."""

    def notify(self, payload: bytes) -> None:
        """Send bytes to the peer's application."""

    @property
    def peer_name(self) -> str:
        """The peer in words."""


@attrs.frozen
class Layers:
    """Which tensors of either cache take part."""

    source: Any
    target: Any
    per_layer: Any

    def pairs(self, source: PublishedCache, target: Cache) -> tuple[list[int], list[int]]:
        """Tensor addresses there and here, paired.

        Raises:
            RequestError: The ranges make no sense, or do not pair up.
            NotFoundError: A layer does not exist.
        """
        per_layer = integer("tensor_num_per_layer", self.per_layer, 1)
        there = layout.layer_tensors(self.source, per_layer, len(source.tensors), "src")
        here = layout.layer_tensors(self.target, per_layer, len(target.tensor_addrs), "dst")
        if len(there) != len(here):
            raise _bad(
                f"{len(there)} tensors of the peer's {source} do not pair with {len(here)} tensors of {target}; give "
                "src_layer_range and dst_layer_range of one length"
            )
        return [source.tensors[i] for i in there], [target.tensor_addrs[i] for i in here]


def _bad(text: str, builtin: type[Exception] = ValueError) -> Exception:
    return refusal(RequestError, {builtin}, text, operation="pull")


def integer(name: str, value: Any, least: int) -> int:
    """A number that an argument has to be."""
    number = as_int(value)
    if number is None:
        found = "None" if value is None else f"{value!r} ({type(value).__name__})"
        raise _bad(f"{name} must be an int, not {found}", AttributeError if value is None else TypeError)
    if number < least:
        raise _bad(f"{name} must be at least {least}, not {number}")
    return number


def find(
    peer_of: Callable[[int], Peer], key: Any, operation: str, kinds: tuple[type[Any], ...]
) -> tuple[Peer, PublishedCache]:
    """The link and the peer's cache that a key means."""
    if not isinstance(key, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        builtin = AttributeError if key is None else TypeError
        raise _bad(f"{operation} takes a {wanted}, not {key!r} ({type(key).__name__})", builtin)
    if isinstance(key, CacheKey) and key.has_request == key.has_prefix:
        which = "both req_id and prefix_id" if key.has_request else "neither req_id nor prefix_id"
        raise _bad(f"{key} has {which}; give exactly one of them")
    if isinstance(key, CacheKeyByIdAndIndex) and key.cache_id < 1:
        raise _bad(f"{key}: cache ids start at 1")
    peer = peer_of(key.cluster_id)
    return peer, peer.lookup(key.cache_id if isinstance(key, CacheKeyByIdAndIndex) else key.local_name)


def row_of(source: PublishedCache, key: CacheKey | CacheKeyByIdAndIndex) -> int:
    """The row of the peer's cache that a key means."""
    if isinstance(key, CacheKeyByIdAndIndex):
        if key.batch_index >= source.rows:
            raise NotFoundError(
                f"{key}: the peer's {source} has rows 0 to {source.rows - 1}", code="not_found.row", operation="pull"
            )
        return key.batch_index
    return next(name[3] for name in source.names if name[:3] == key.local_name)


def is_whole(size: Any) -> bool:
    """Whether a size stands for the whole row."""
    return as_int(size) == -1


def layout_is(blocks: bool, wanted: bool, what: str, fix: str) -> None:
    """Refuse a cache of the other layout."""
    if blocks != wanted:
        raise _bad(f"{what} is a {'blocks' if blocks else 'contiguous'} cache; {fix}")


def row_pieces(
    target: Cache,
    batch_index: Any,
    size: Any,
    source: PublishedCache,
    key: CacheKey | CacheKeyByIdAndIndex,
    layers: Layers,
) -> Pieces:
    """Pieces of `pull_cache`: the start of one row of every tensor."""
    layout_is(target.is_blocks_cache, False, str(target), "use pull_blocks")
    layout_is(source.blocks, False, f"the peer's {source}", "use pull_blocks")
    desc = target.cache_desc
    row = integer("batch_index", batch_index, 0)
    if row >= desc.batch_size:
        raise NotFoundError(
            f"batch_index {row}: {target} has rows 0 to {desc.batch_size - 1}",
            code="not_found.row",
            operation="pull_cache",
        )
    length = desc.stride if is_whole(size) else integer("size", size, 1)
    for what, stride in ((f"a row of {target}", desc.stride), (f"a row of the peer's {source}", source.stride)):
        if length > stride:
            raise _bad(f"{length:,} bytes do not fit {what}, which has {stride:,}; give size")
    there, here = layers.pairs(source, target)
    return layout.spread(here, there, row * desc.stride, row_of(source, key) * source.stride, length)


def block_pieces(
    target: Cache,
    dst_blocks: Any,
    source: PublishedCache,
    key: BlocksCacheKey | CacheKey | CacheKeyByIdAndIndex,
    src_blocks: Any,
    layers: Layers,
) -> Pieces:
    """Pieces of `pull_blocks`: blocks to blocks, or a row to blocks."""
    layout_is(target.is_blocks_cache, True, str(target), "use pull_cache")
    stride = target.cache_desc.stride
    to = layout.block_indices(dst_blocks, target.cache_desc.batch_size, "dst", target)
    if not len(to):
        raise _bad("dst_blocks is empty; name at least one block")
    layout.once(to)
    if source.blocks:
        if isinstance(key, CacheKeyByIdAndIndex) and key.batch_index:
            raise _bad(f"{key}: the peer's {source} is a blocks cache and has no rows; leave batch_index at 0")
        start = layout.block_indices(src_blocks, source.rows, "src", f"the peer's {source}")
        if len(start) != len(to):
            raise _bad(f"src_blocks has {len(start)} blocks and dst_blocks has {len(to)}; give one for each")
        if source.stride != stride:
            raise _bad(f"a block of the peer's {source} has {source.stride:,} bytes, one of {target} has {stride:,}")
        begin = start.astype(np.uint64) * np.uint64(stride)
        lengths = np.full(len(to), stride, np.uint64)
    else:
        assert not isinstance(key, BlocksCacheKey)  # noqa: S101 - such a key only ever names a blocks cache
        if not isinstance(src_blocks, Sized) or len(src_blocks):
            raise _bad(f"the peer's {source} is contiguous and has no blocks; leave src_blocks empty")
        short = len(to) * stride - source.stride
        if short >= stride:
            raise _bad(
                f"{len(to)} blocks of {stride:,} bytes are more than a row of the peer's {source}; "
                f"{-(-source.stride // stride)} blocks hold it"
            )
        begin = np.arange(len(to), dtype=np.uint64) * np.uint64(stride) + np.uint64(row_of(source, key) * source.stride)
        lengths = np.full(len(to), stride, np.uint64)
        if short > 0:
            lengths[-1] -= np.uint64(short)
    there, here = layers.pairs(source, target)
    return layout.scatter(here, there, to.astype(np.uint64) * np.uint64(stride), begin, lengths)
