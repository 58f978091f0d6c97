"""The cache manager: registration, allocation, transfers and local copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachefw.compat.llm_datadist.engine.engine import Engine
from cachefw.compat.llm_datadist.engine.moves import Moves
from cachefw.compat.llm_datadist.status import of_none
from cachefw.compat.llm_datadist.utils.utils import check_int64, check_isinstance, check_uint32, require
from cachefw.compat.llm_datadist.v2._caches import Cache, check_cache
from cachefw.compat.llm_datadist.v2._copying import Copying
from cachefw.compat.llm_datadist.v2._keys import BlocksCacheKey, CacheKey, CacheKeyByIdAndIndex
from cachefw.compat.llm_datadist.v2._registering import Registering
from cachefw.compat.llm_datadist.v2._transfers import (
    CacheTask,
    LayerSynchronizer,
    TransferConfig,
    TransferWithCacheKeyConfig,
)
from cachefw.compat.llm_datadist.v2.layerwise import check_transfer
from cachefw.compat.llm_datadist.v2.llm_utils import check_blocks, check_one_id, pull_layers, push_layers
from cachefw.errors import CacheError

__all__ = ["CacheManager"]


class CacheManager(Registering, Copying):
    """Registers, allocates and moves caches. Reached as `LLMDataDist.cache_manager`.

    Every method raises `TypeError` for a wrong type, `ValueError` for a number outside its machine range, and
    `LLMException` for everything else; `status_code` says what.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._moves = Moves(engine)
        self._get_mode = engine.options.get_mode
        self._is_call_linked = False

    @property
    def _initialized(self) -> bool:
        return self._engine.gate.open

    def set_is_call_linked(self) -> None:
        """Note that `LLMDataDist.link` was called: device memory registered later is not for peers."""
        self._is_call_linked = True

    @staticmethod
    def check_cache_key(cache_key: Any) -> None:
        """Check that a `CacheKey` has exactly one of req_id and prefix_id."""
        check_one_id(cache_key)

    # ------------------------------------------------------------------ pulls

    def pull_cache(
        self,
        cache_key: CacheKey | CacheKeyByIdAndIndex,
        cache: Cache,
        batch_index: int = 0,
        size: int = -1,
        **kwargs: Any,
    ) -> None:
        """Copy a row of a peer's contiguous cache into a row here.

        Args:
            cache_key: The peer's row. In get mode only by id.
            cache: A contiguous cache.
            batch_index: The row here.
            size: Bytes; -1 is one row of this side.
            **kwargs: ``src_layer_range``, ``dst_layer_range`` (ranges; empty is all), ``tensor_num_per_layer`` (2).
        """
        kinds = CacheKeyByIdAndIndex if self._get_mode else (CacheKeyByIdAndIndex, CacheKey)
        check_isinstance("cache_key", cache_key, kinds)
        check_cache("cache", cache)
        check_uint32("batch_index", batch_index)
        check_int64("size", size)
        require(not cache.is_blocks_cache, f"{cache} is a blocks cache; use pull_blocks")
        require(size == -1 or size > 0, f"size must be -1 or above 0, not {size}")
        layers = pull_layers("pull_cache", kwargs, cache_key)
        with self._engine.entered("pull_cache"):
            self._moves.pull_cache(cache_key, cache, batch_index, size, layers)

    def pull_blocks(
        self,
        src_cache_key: BlocksCacheKey | CacheKey | CacheKeyByIdAndIndex,
        dst_cache: Cache,
        src_blocks: Sequence[int] = (),
        dst_blocks: Sequence[int] = (),
        **kwargs: Any,
    ) -> None:
        """Copy blocks, or a row, of a peer's cache into blocks here.

        Args:
            src_cache_key: The peer's blocks cache, or the row of a contiguous one.
            dst_cache: A blocks cache.
            src_blocks: Blocks there; none for a row.
            dst_blocks: Blocks here.
            **kwargs: As for `pull_cache`.
        """
        check_isinstance("src_cache_key", src_cache_key, (CacheKey, CacheKeyByIdAndIndex, BlocksCacheKey))
        if src_cache_key is None:
            raise of_none("src_cache_key is None; it must be a cache key")
        check_cache("dst_cache", dst_cache)
        _check_lists(src_blocks, dst_blocks)
        try:
            require(dst_cache.is_blocks_cache, f"{dst_cache} is a contiguous cache; use pull_cache")
            require(len(dst_blocks), "dst_blocks is empty; name at least one block")
            layers = pull_layers("pull_blocks", kwargs, src_cache_key)
            if isinstance(src_cache_key, BlocksCacheKey):
                require(len(src_blocks), "src_blocks is empty; a BlocksCacheKey needs one for each of dst_blocks")
            else:
                require(
                    not len(src_blocks), f"{src_cache_key} names a row, which has no blocks; leave src_blocks empty"
                )
            with self._engine.entered("pull_blocks"):
                self._moves.pull_blocks(src_cache_key, dst_cache, src_blocks, dst_blocks, layers)
        except CacheError:
            check_blocks("src_blocks", src_blocks)
            check_blocks("dst_blocks", dst_blocks)
            raise

    # ------------------------------------------------------------------ pushes

    def push_cache(
        self,
        dst_cache_key: CacheKeyByIdAndIndex,
        src_cache: Cache,
        src_batch_index: int = 0,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        size: int = -1,
        tensor_num_per_layer: int = 2,
    ) -> None:
        """Copy a row here into a row of a peer's contiguous cache. Get mode only.

        Args:
            dst_cache_key: The peer's row.
            src_cache: A contiguous cache.
            src_batch_index: The row here.
            src_layer_range: Layers here; None is all.
            dst_layer_range: Layers there, as many; None is as many as this side has.
            size: -1.
            tensor_num_per_layer: Tensors of a layer.
        """
        self._require_get_mode("push_cache")
        check_isinstance("dst_cache_key", dst_cache_key, CacheKeyByIdAndIndex, allow_none=False)
        check_isinstance("src_cache", src_cache, Cache, allow_none=False)
        check_uint32("src_batch_index", src_batch_index)
        require(not src_cache.is_blocks_cache, f"{src_cache} is a blocks cache; use push_blocks")
        tensors = src_cache.cache_desc.num_tensors
        layers = push_layers(src_layer_range, dst_layer_range, tensor_num_per_layer, tensors)
        check_int64("size", size)
        require(size == -1, f"size must be -1, not {size}")
        with self._engine.entered("push_cache"):
            self._moves.push_cache(dst_cache_key, src_cache, src_batch_index, layers)

    def push_blocks(
        self,
        dst_cache_key: BlocksCacheKey,
        src_cache: Cache,
        src_blocks: Sequence[int] = (),
        dst_blocks: Sequence[int] = (),
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        tensor_num_per_layer: int = 2,
    ) -> None:
        """Copy blocks here into blocks of a peer's cache. Get mode only.

        Args:
            dst_cache_key: The peer's blocks cache.
            src_cache: A blocks cache.
            src_blocks: Blocks here.
            dst_blocks: Blocks there, as many.
            src_layer_range: As for `push_cache`.
            dst_layer_range: As for `push_cache`.
            tensor_num_per_layer: As for `push_cache`.
        """
        self._require_get_mode("push_blocks")
        check_isinstance("dst_cache_key", dst_cache_key, BlocksCacheKey)
        if dst_cache_key is None:
            raise of_none("dst_cache_key is None; it must be a BlocksCacheKey")
        check_cache("src_cache", src_cache)
        _check_lists(src_blocks, dst_blocks)
        try:
            require(src_cache.is_blocks_cache, f"{src_cache} is a contiguous cache; use push_cache")
            require(len(dst_blocks), "dst_blocks is empty; name at least one block")
            tensors = src_cache.cache_desc.num_tensors
            layers = push_layers(src_layer_range, dst_layer_range, tensor_num_per_layer, tensors)
            with self._engine.entered("push_blocks"):
                self._moves.push_blocks(dst_cache_key, src_cache, src_blocks, dst_blocks, layers)
        except CacheError:
            check_blocks("src_blocks", src_blocks)
            check_blocks("dst_blocks", dst_blocks)
            raise

    def _require_get_mode(self, operation: str) -> None:
        require(self._get_mode, f"{operation} needs llm.EnableRemoteCacheAccessible = '1'")

    def transfer_cache_async(
        self,
        src_cache: Cache,
        layer_synchronizer: LayerSynchronizer,
        transfer_configs: Sequence[TransferConfig | TransferWithCacheKeyConfig],
        src_block_indices: Sequence[int] | None = None,
        dst_block_indices: Sequence[int] | None = None,
        dst_block_memory_size: int | None = None,
    ) -> CacheTask:
        """Push a cache layer by layer, two tensors each, as soon as each is ready.

        Args:
            src_cache: A device cache.
            layer_synchronizer: Says when a layer is ready.
            transfer_configs: Destinations: `TransferWithCacheKeyConfig` in get mode, else `TransferConfig`.
            src_block_indices: Blocks here; None sends a row, or the first block of a blocks cache.
            dst_block_indices: Blocks there.
            dst_block_memory_size: Bytes of a block there, to fill blocks from a row.

        Returns:
            The task, which says what comes of it.
        """
        check_transfer(
            src_cache,
            layer_synchronizer,
            transfer_configs,
            src_block_indices,
            dst_block_indices,
            dst_block_memory_size,
            TransferWithCacheKeyConfig if self._get_mode else TransferConfig,
        )
        with self._engine.entered("transfer_cache_async"):
            return self._moves.transfer(
                src_cache,
                layer_synchronizer,
                transfer_configs,
                src_block_indices,
                dst_block_indices,
                dst_block_memory_size,
            )


def _check_lists(src_blocks: Any, dst_blocks: Any) -> None:
    check_isinstance("src_blocks", src_blocks, (list, tuple), allow_none=False)
    check_isinstance("dst_blocks", dst_blocks, (list, tuple), allow_none=False)
