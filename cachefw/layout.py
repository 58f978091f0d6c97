"""Which bytes a pull moves: caches, blocks and layers in, arrays of pieces out.

Pure functions over numbers. For tensor addresses A, a row or block s starts at ``A + s * stride``. Pieces that follow
each other on both sides are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachefw.cache import as_int
from cachefw.errors import NotFoundError, RequestError, refusal
from cachefw.ranges import Pieces

__all__ = ["block_indices", "join", "layer_tensors", "once", "scatter", "spread"]

U64 = NDArray[np.uint64]


def _bad(text: str, builtin: type[Exception] = ValueError, **facts: Any) -> Exception:
    return refusal(RequestError, {builtin}, text, operation="pull", facts=facts)


def layer_tensors(layers: Any, per_layer: int, tensors: int, side: str) -> NDArray[np.intp]:
    """The tensors of a range of layers: layer l has tensors ``l * per_layer ... (l + 1) * per_layer - 1``.

    Args:
        layers: A `range` with step 1, or None for every tensor.
        per_layer: Tensors of one layer.
        tensors: How many the cache has.
        side: ``"src"`` or ``"dst"``, for messages.
    """
    if layers is None:
        return np.arange(tensors)
    name = f"{side}_layer_range"
    if not isinstance(layers, range):
        raise _bad(f"{name} must be a range or None, not {layers!r} ({type(layers).__name__})", TypeError)
    if layers.step != 1 or layers.start < 0 or not len(layers):
        raise _bad(f"{name} must have step 1, start at 0 or later and name a layer, not {layers}; None is every layer")
    if tensors % per_layer:
        raise _bad(f"{tensors} tensors of the {side} cache do not make layers of {per_layer} tensors each")
    if layers.stop > tensors // per_layer:
        raise NotFoundError(
            f"{name} {layers} names layer {layers.stop - 1}; the {side} cache has layers 0 to "
            f"{tensors // per_layer - 1} of {per_layer} tensors each",
            code="not_found.layer",
            operation="pull",
        )
    return np.arange(layers.start * per_layer, layers.stop * per_layer)


def block_indices(blocks: Any, count: int, side: str, cache: object) -> NDArray[np.int64]:
    """Check a list of block numbers against a cache of `count` blocks."""
    name = f"{side}_blocks"
    if blocks is None:
        raise _bad(f"{name} is None; give a list of block numbers", AttributeError)
    if isinstance(blocks, np.ndarray) and blocks.ndim == 1 and blocks.dtype.kind in "iu":
        wide = blocks
    elif isinstance(blocks, (list, tuple, range)):
        if not isinstance(blocks, range) and set(map(type, blocks)) - {int}:
            for position, block in enumerate(blocks):
                if as_int(block) is None:
                    raise _bad(f"{name}[{position}] must be an int, not {block!r} ({type(block).__name__})", TypeError)
        try:
            wide = np.array(blocks, np.int64)
        except OverflowError:
            raise _bad(f"{name} has a number past 2^63") from None
    else:
        kind = type(blocks).__name__
        raise _bad(f"{name} must be a list, tuple, range or integer array of block numbers, not {kind}", TypeError)
    outside = np.flatnonzero((wide < 0) | (wide >= count))
    if len(outside):
        named = ", ".join(f"{name}[{i}] = {wide[i]}" for i in outside[:5])
        more = f" and {len(outside) - 5} more" if len(outside) > 5 else ""
        raise NotFoundError(
            f"{named}{more}: {cache} has blocks 0 to {count - 1}",
            code="not_found.block",
            operation="pull_blocks",
            facts={"indices": outside[:100].tolist(), "blocks": count},
        )
    return wide.astype(np.int64, copy=False)


def once(blocks: NDArray[np.int64], name: str = "dst_blocks") -> None:
    """Refuse a destination that is written twice: the last writer would win, and which that is would be chance."""
    # Not `np.unique`, whose first call imports for several milliseconds.
    ordered = np.sort(blocks)
    again = ordered[1:] == ordered[:-1]
    if again.any():
        twice = np.array(sorted(set(ordered[1:][again].tolist())))
        raise _bad(
            f"{name} has block {twice[0]} more than once ({len(twice)} such blocks); each can be named only once",
            blocks=twice[:100].tolist(),
        )


def spread(local: Sequence[int], remote: Sequence[int], local_offset: int, remote_offset: int, length: int) -> Pieces:
    """One piece for each pair of tensors, at the same offsets in all of them."""
    return Pieces(
        np.array(local, np.uint64) + np.uint64(local_offset),
        np.array(remote, np.uint64) + np.uint64(remote_offset),
        np.full(len(local), length, np.uint64),
        scratch=True,
    )


def scatter(
    local: Sequence[int], remote: Sequence[int], local_offsets: U64, remote_offsets: U64, length: U64
) -> Pieces:
    """For each pair of tensors the same list of pieces; `length` and the offsets count bytes within a tensor."""
    return Pieces(
        np.add.outer(np.array(local, np.uint64), local_offsets).ravel(),
        np.add.outer(np.array(remote, np.uint64), remote_offsets).ravel(),
        np.tile(length, len(local)),
        len(length),
        scratch=True,
    )


def join(pieces: Pieces, *sides: U64) -> tuple[Pieces, list[U64]]:
    """Join pieces that follow each other in memory on both sides, in the order given.

    Args:
        pieces: What to move.
        *sides: For each piece the region it lies in, on either side; pieces of different regions stay apart. They are
            overwritten, and so are pieces that are `scratch`: who asks for a million has no room for a second set.

    Returns:
        The joined pieces and the regions that belong to them.
    """
    local, remote, length = pieces.local, pieces.remote, pieces.length
    if len(length) < 2:
        return pieces, list(sides)
    follows = local[1:] == local[:-1] + length[:-1]
    follows &= remote[1:] == remote[:-1] + length[:-1]
    for side in sides:
        follows &= side[1:] == side[:-1]
    if not follows.any():
        return pieces, list(sides)
    begins = np.ones(len(length), np.bool_)
    np.logical_not(follows, out=begins[1:])
    del follows
    first = np.flatnonzero(begins)
    local, remote = (_keep(side, first, overwrite=pieces.scratch) for side in (local, remote))
    total = np.add.reduceat(length, first)
    if pieces.scratch:
        length[: len(first)] = total
        total = length[: len(first)]
    return Pieces(local, remote, total), [_keep(side, first, overwrite=True) for side in sides]


def _keep(values: U64, which: NDArray[np.intp], *, overwrite: bool) -> U64:
    kept = values[which]
    if not overwrite:
        return kept
    values[: len(which)] = kept
    return values[: len(which)]
