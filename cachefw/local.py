"""The calls of a CacheManager that copy within the process: ranges, rows, and blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cachefw import layout
from cachefw.cache import Cache, Placement, as_int
from cachefw.copying import LocalCopy, copy_of
from cachefw.errors import NotFoundError, RequestError, refusal
from cachefw.managed import Managed, during
from cachefw.ranges import Pieces
from cachefw.transport import Batch

__all__ = ["LocalCopies"]


class LocalCopies(Managed):
    """The part of `cachefw.CacheManager` that copies within the process."""

    def copy(self, dst: Any, src: Any, *, transport: str | None = None) -> None:
        """Copy within this process, between host and device memory too; done on return.

        Args:
            dst: Where to: an allocation, a tensor, an array, a buffer, or a `MemoryRegion` of registered memory; or a
                list of them.
            src: Where from: as many, each as long as its counterpart; may be read-only.
            transport: Whose copies; None takes for each piece the first open one that reaches both ends.

        Raises:
            RequestError: Also a `TypeError`, `ValueError` or `AttributeError`; nothing was copied.
            UnsupportedOperation: No open transport copies, or not between these kinds of memory.
            BrokenError: The runtime failed; ``failed`` names the piece.
        """
        self._check_open("copy")
        copy, memories = copy_of(self._registry, dst, src)
        with self._registry.using(memories, "copy"):
            self._copier.run(copy, transport)

    def copy_cache(
        self,
        dst: Cache,
        src: Cache,
        dst_batch_index: int = 0,
        src_batch_index: int = 0,
        offset: int = 0,
        size: int = -1,
    ) -> None:
        """Copy part of a row of each tensor of a contiguous cache into a row of another, or of the same.

        Tensor i gets the bytes of tensor i; shapes and element types need not match.

        Args:
            dst: A contiguous cache of this manager, in host or device memory.
            src: The same, with as many tensors.
            dst_batch_index: The row to write.
            src_batch_index: The row to read.
            offset: Where in both rows to begin, in bytes.
            size: Bytes; -1 is the rest of the source's row.

        Raises:
            RequestError: Also a `TypeError`, `ValueError` or `AttributeError`; nothing was copied.
            NotFoundError: No such row.
            UnsupportedOperation: No open transport copies between these kinds of memory.
            BrokenError: The runtime failed; the target is then undefined.
        """
        name = "copy_cache"
        self._check_open(name)
        with during(name):
            for which, cache in (("src", src), ("dst", dst)):
                if self._own(cache, name).is_blocks_cache:
                    raise _bad(f"{which} {cache} is a blocks cache; use copy_blocks or swap_blocks")
            _as_many(dst, src)
            into = _row("dst_batch_index", dst_batch_index, dst)
            out_of = _row("src_batch_index", src_batch_index, src)
            offset = _number("offset", offset, 0)
            whole = as_int(size) == -1
            length = src.cache_desc.stride - offset if whole else _number("size", size, 1)
            for which, cache in (("src", src), ("dst", dst)):
                stride = cache.cache_desc.stride
                if offset >= stride or offset + length > stride:
                    what = f"{length:,} bytes from offset {offset:,}" if length > 0 else f"offset {offset:,}"
                    raise _bad(f"{what} are not within a row of {which} {cache}, which has {stride:,} bytes")
            pieces = layout.spread(
                dst.tensor_addrs,
                src.tensor_addrs,
                into * dst.cache_desc.stride + offset,
                out_of * src.cache_desc.stride + offset,
                length,
            )
            self._run(pieces, dst, src, name)

    def copy_blocks(self, cache: Cache, src_to_dst: Mapping[int, Sequence[int]]) -> None:
        """Copy blocks within a blocks cache, in each of its tensors.

        Args:
            cache: A blocks cache of this manager.
            src_to_dst: For each block to read, the blocks that become like it. Empty does nothing.

        Raises:
            RequestError: Also a `TypeError`, `ValueError` or `AttributeError`; nothing was copied. A block would be
                written twice, or be read and written: the order of copies is not defined.
            NotFoundError: No such block.
            UnsupportedOperation: No open transport copies within this kind of memory.
            BrokenError: The runtime failed; the target is then undefined.
        """
        name = "copy_blocks"
        self._check_open(name)
        with during(name):
            own = self._own(cache, name)
            _blocks(own)
            sources, targets = [], []
            for source, several in _items("src_to_dst", src_to_dst):
                listed = several.tolist() if isinstance(several, np.ndarray) else several
                if not isinstance(listed, (list, tuple, range)):
                    raise _bad(f"src_to_dst[{source!r}] must be a list of blocks, not {several!r}", _kind(several))
                # Told twice to copy the same is told once.
                listed = list(dict.fromkeys(listed))
                sources += [source] * len(listed)
                targets += listed
            self._move_blocks(own, own, sources, targets, name)

    def swap_blocks(self, src_cache: Cache, dst_cache: Cache, src_to_dst: Mapping[int, int]) -> None:
        """Copy blocks between a cache in host and one in device memory, in each tensor. The source is unchanged.

        Args:
            src_cache: A blocks cache of this manager, or one that is registered nowhere (see `Cache`).
            dst_cache: The same, with as many tensors and blocks of the same size, in the other kind of memory.
            src_to_dst: For each block to read the block to write. Empty does nothing.

        Raises:
            RequestError: Also a `TypeError`, `ValueError` or `AttributeError`; nothing was copied. A block would be
                written twice.
            NotFoundError: No such block.
            UnsupportedOperation: No open transport copies between these kinds of memory.
            BrokenError: The runtime failed; the target is then undefined.
        """
        name = "swap_blocks"
        self._check_open(name)
        with during(name):
            for cache in (src_cache, dst_cache):
                if not (isinstance(cache, Cache) and cache.cache_id == -1):
                    self._own(cache, name)
                elif len(cache.tensor_addrs) != cache.cache_desc.num_tensors:
                    text = f"{cache} has {len(cache.tensor_addrs)} addresses; give one for each tensor"
                    raise _bad(text)
                _blocks(cache)
            _as_many(dst_cache, src_cache)
            one, other = src_cache.cache_desc, dst_cache.cache_desc
            if one.stride != other.stride:
                raise _bad(f"a block of {src_cache} has {one.stride:,} bytes, one of {dst_cache} has {other.stride:,}")
            if one.placement is other.placement:
                raise _bad(
                    f"{src_cache} and {dst_cache} are both in {one.placement.name.lower()} memory; blocks are "
                    "swapped between host and device memory"
                )
            pairs = list(_items("src_to_dst", src_to_dst))
            sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            self._move_blocks(dst_cache, src_cache, sources, targets, name)

    def _move_blocks(self, dst: Cache, src: Cache, sources: list[Any], targets: list[Any], operation: str) -> None:
        out_of = layout.block_indices(sources, src.cache_desc.batch_size, "src", src)
        into = layout.block_indices(targets, dst.cache_desc.batch_size, "dst", dst)
        if not len(into):
            return
        layout.once(into)
        stride = np.uint64(src.cache_desc.stride)
        lengths = np.full(len(into), stride, np.uint64)
        pieces = layout.scatter(
            dst.tensor_addrs,
            src.tensor_addrs,
            into.astype(np.uint64) * stride,
            out_of.astype(np.uint64) * stride,
            lengths,
        )
        self._run(pieces, dst, src, operation)

    def _run(self, pieces: Pieces, dst: Cache, src: Cache, operation: str) -> None:
        joined, _ = layout.join(pieces)
        batch = Batch(joined.local, joined.remote, joined.length, np.zeros(0, np.uint64))
        copy = LocalCopy(batch, *(cache.cache_desc.placement is Placement.DEVICE for cache in (dst, src)))
        held = self._registry.cache_memory
        memories = {memory for cache in (dst, src) for memory in held.get(cache.cache_id, ())}
        with self._registry.using(list(memories), operation):
            self._copier.run(copy.checked(operation))


def _bad(text: str, builtin: type[Exception] = ValueError) -> Exception:
    return refusal(RequestError, {builtin}, text)


def _kind(value: object) -> type[Exception]:
    return AttributeError if value is None else TypeError


def _number(name: str, value: Any, least: int) -> int:
    number = as_int(value)
    if number is None:
        raise _bad(f"{name} must be an int, not {value!r} ({type(value).__name__})", _kind(value))
    if number < least:
        raise _bad(f"{name} must be at least {least}, not {number}")
    return number


def _row(name: str, value: Any, cache: Cache) -> int:
    row = _number(name, value, 0)
    if row >= cache.cache_desc.batch_size:
        text = f"{name} {row}: {cache} has rows 0 to {cache.cache_desc.batch_size - 1}"
        raise NotFoundError(text, code="not_found.row")
    return row


def _blocks(cache: Cache) -> None:
    if not cache.is_blocks_cache:
        raise _bad(f"{cache} is a contiguous cache and has no blocks; use copy_cache")


def _as_many(dst: Cache, src: Cache) -> None:
    if len(dst.tensor_addrs) != len(src.tensor_addrs):
        raise _bad(f"{src} and {dst} have unequal numbers of tensors; tensor i is copied to tensor i")


def _items(name: str, mapping: Any) -> list[tuple[Any, Any]]:
    if not isinstance(mapping, Mapping):
        raise _bad(f"{name} must be a dict, not {mapping!r} ({type(mapping).__name__})", _kind(mapping))
    return list(mapping.items())
