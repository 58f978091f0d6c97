"""The calls of the cache manager that copy within the process."""

from __future__ import annotations

from cachefw.cache import Placement
from cachefw.compat.llm_datadist.engine.engine import Engine
from cachefw.compat.llm_datadist.engine.moves import Moves
from cachefw.compat.llm_datadist.utils.utils import (
    check_dict,
    check_int64,
    check_isinstance,
    check_uint32,
    check_uint64,
    require,
)
from cachefw.compat.llm_datadist.v2._caches import Cache, CacheDesc, check_cache

__all__ = ["Copying"]


class Copying:
    """The part of `CacheManager` that copies within the process."""

    _engine: Engine
    _moves: Moves

    # ------------------------------------------------------------------ within the process

    def copy_cache(
        self,
        dst: Cache,
        src: Cache,
        dst_batch_index: int = 0,
        src_batch_index: int = 0,
        offset: int = 0,
        size: int = -1,
        req_id: int | None = None,
    ) -> None:
        """Copy part of a row of one contiguous cache into a row of another; same offset on both sides."""
        check_isinstance("dst", dst, Cache)
        check_isinstance("src", src, Cache)
        check_uint32("dst_batch_index", dst_batch_index)
        check_uint32("src_batch_index", src_batch_index)
        check_uint64("offset", offset)
        check_int64("size", size)
        for name, cache in (("src", src), ("dst", dst)):
            check_cache(name, cache)
            require(not cache.is_blocks_cache, f"{name} {cache} is a blocks cache; use copy_blocks")
        require(size == -1 or size > 0, f"size must be -1 or above 0, not {size}")
        if req_id is not None:
            check_uint64("req_id", req_id)
        with self._engine.entered("copy_cache"):
            self._moves.copy_cache(dst, src, dst_batch_index, src_batch_index, offset, size)

    def copy_blocks(self, cache: Cache, copy_block_info: dict[int, list[int]]) -> None:
        """Copy blocks within a blocks cache: each key's block into each of its list."""
        check_cache("cache", cache)
        check_isinstance("copy_block_info", copy_block_info, dict, allow_none=False)
        check_dict("copy_block_info", copy_block_info, int, list, int)
        require(cache.is_blocks_cache, f"{cache} is a contiguous cache; use copy_cache")
        with self._engine.entered("copy_blocks"):
            self._moves.copy_blocks(cache, copy_block_info)

    def swap_blocks(self, src_cache: Cache, dst_cache: Cache, src_to_dst: dict[int, int]) -> None:
        """Copy blocks from host to device memory or back; the source is unchanged.

        Args:
            src_cache: A blocks cache; one of `Cache.create_cpu_cache` will do.
            dst_cache: A blocks cache in the other memory, with as many tensors and blocks of the same size.
            src_to_dst: For each block to read the block to write.
        """
        for name, cache in (("src_cache", src_cache), ("dst_cache", dst_cache)):
            check_cache(name, cache)
        for name, cache in (("src_cache", src_cache), ("dst_cache", dst_cache)):
            require(cache.is_blocks_cache, f"{name} {cache} is a contiguous cache; use copy_cache")
        check_isinstance("src_to_dst", src_to_dst, dict, int, allow_none=False)
        for source, target in src_to_dst.items():
            check_isinstance(f"src_to_dst[{source}]", target, int, allow_none=False)
        one, other = src_cache.cache_desc, dst_cache.cache_desc
        _check_swap(one, other)
        for name, desc, blocks in (("src", one, src_to_dst.keys()), ("dst", other, src_to_dst.values())):
            outside = [block for block in blocks if not 0 <= block < desc.shape[0]]
            require(not outside, f"{name}_cache has blocks 0 to {desc.shape[0] - 1}, not {outside[:5]}")
        require(
            {one.placement, other.placement} == {Placement.HOST, Placement.DEVICE},
            f"one cache must be in host and one in device memory, not {one.placement} and {other.placement}",
        )
        with self._engine.entered("swap_blocks"):
            self._moves.swap_blocks(src_cache, dst_cache, src_to_dst)


def _check_swap(one: CacheDesc, other: CacheDesc) -> None:
    sizes = [desc.size // desc.shape[0] if desc.shape[0] else 0 for desc in (one, other)]
    require(sizes[0] == sizes[1], f"a block of src_cache has {sizes[0]:,} bytes, one of dst_cache has {sizes[1]:,}")
    require(
        one.num_tensors == other.num_tensors,
        f"src_cache has {one.num_tensors} tensors, dst_cache has {other.num_tensors}",
    )
