"""Transfers and local copies, for caches whose arguments the public calls have checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from cachefw import cache as core
from cachefw import layout, tasks
from cachefw.compat.llm_datadist.engine.engine import Engine
from cachefw.compat.llm_datadist.engine.keys import cluster_of
from cachefw.compat.llm_datadist.status import LLMStatusCode, failed, invalid, status_of
from cachefw.compat.llm_datadist.v2._caches import Cache
from cachefw.compat.llm_datadist.v2._keys import BlocksCacheKey, CacheKey, CacheKeyByIdAndIndex
from cachefw.compat.llm_datadist.v2._transfers import (
    CacheTask,
    LayerSynchronizer,
    TransferConfig,
    TransferWithCacheKeyConfig,
)
from cachefw.errors import CacheError, NotFoundError
from cachefw.links.link import Link
from cachefw.published import PublishedCache
from cachefw.ranges import refuse_overlap
from cachefw.rules import Outcome
from cachefw.transport import Batch, Capability

__all__ = ["Layers", "Moves"]


@attrs.frozen
class Layers:
    """Which layers take part; None is all."""

    src: range | None = None
    dst: range | None = None
    per_layer: int = 2

    @property
    def words(self) -> dict[str, Any]:
        """As arguments."""
        return {"src_layer_range": self.src, "dst_layer_range": self.dst, "tensor_num_per_layer": self.per_layer}


class Moves:
    """What moves bytes. Every method raises the errors of cachefw, which `Engine.entered` translates.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._manager = engine.manager
        self._legacy = not engine.options.get_mode

    def own(self, cache: Cache) -> core.Cache:
        """The cache of cachefw's behind a handle.

        Raises:
            LLMException: With `LLM_KV_CACHE_NOT_EXIST`: there is none, or none any more.
        """
        native = self._manager.registry.caches.get(cache.cache_id)
        # Ids start again with each engine, and a handle of an earlier one may be at hand still.
        manager = cache._cache_manager
        foreign = manager is not None and manager._engine is not self._engine
        if native is None or foreign or not cache._valid:
            raise failed(LLMStatusCode.LLM_KV_CACHE_NOT_EXIST, f"{cache} is not registered here, or no longer")
        return native

    # ------------------------------------------------------------------ pulls

    def pull_cache(self, key: Any, cache: Cache, batch_index: int, size: int, layers: Layers) -> None:
        """A peer's row into a row here."""
        remote = self._remote(key)
        own = self.own(cache)
        used = self._used_up(key, remote, layers)
        try:
            self._manager.pull_cache(
                remote, own, batch_index, size, timeout=self._engine.options.timeout, **layers.words
            )
        except NotFoundError as error:
            if error.code == "not_found.row" and batch_index < own.cache_desc.batch_size:
                raise _no_row(error) from error
            raise
        self._tell(used)

    def pull_blocks(
        self, key: Any, cache: Cache, src_blocks: Sequence[int], dst_blocks: Sequence[int], layers: Layers
    ) -> None:
        """A peer's blocks, or row, into blocks here."""
        remote = self._remote(key)
        own = self.own(cache)
        used = None
        if not isinstance(key, BlocksCacheKey):
            link, source = self._source(remote)
            if not source.blocks and own.cache_desc.stride > source.stride:
                raise invalid(
                    f"a block of {own} has {own.cache_desc.stride:,} bytes, more than a row of the peer's {source}"
                )
            used = self._used_up(key, remote, layers, link, source)
        try:
            self._manager.pull_blocks(
                remote, own, src_blocks, dst_blocks, timeout=self._engine.options.timeout, **layers.words
            )
        except NotFoundError as error:
            raise _no_row(error) if error.code == "not_found.row" else error from None
        self._tell(used)

    def _remote(self, key: Any) -> Any:
        if cluster_of(key) == self._engine.cluster_id:
            raise invalid(f"{key} names this instance's own cluster; pulls are from others")
        return self._engine.keys.remote(key)

    def _source(self, remote: Any) -> tuple[Link, PublishedCache]:
        link = self._engine.node.link_to(remote.cluster_id)
        by_id = isinstance(remote, core.CacheKeyByIdAndIndex)
        return link, link.lookup(remote.cache_id if by_id else remote.local_name)

    def _used_up(
        self,
        key: Any,
        remote: Any,
        layers: Layers,
        link: Link | None = None,
        source: PublishedCache | None = None,
    ) -> tuple[Link, tuple[str, int, int], range] | None:
        """What a pull uses up: the key of a request, without get mode; also when the row is named by its id."""
        if not self._legacy:
            return None
        if link is None or source is None:
            link, source = self._source(remote)
        if isinstance(key, CacheKey):
            name = remote.local_name
        else:
            row = remote.batch_index
            name = next((each[:3] for each in source.names if each[3] == row and each[0] == "req"), None)
        if name is None or name[0] != "req":
            return None
        tensors = range(len(source.tensors))
        if layers.src is not None:
            tensors = tensors[layers.src.start * layers.per_layer : layers.src.stop * layers.per_layer]
        return link, name, tensors

    def _tell(self, used: tuple[Link, tuple[str, int, int], range] | None) -> None:
        if used is not None:
            self._engine.tell_consumed(*used)

    # ------------------------------------------------------------------ pushes

    def push_cache(self, key: CacheKeyByIdAndIndex, cache: Cache, row: int, layers: Layers) -> None:
        """A row here into a peer's row."""
        own = self.own(cache)
        self._manager.push_cache(
            self._engine.keys.remote(key),
            own,
            row,
            timeout=self._engine.options.timeout,
            **layers.words,
        )

    def push_blocks(
        self, key: BlocksCacheKey, cache: Cache, src_blocks: Sequence[int], dst_blocks: Sequence[int], layers: Layers
    ) -> None:
        """Blocks here into a peer's blocks."""
        own = self.own(cache)
        self._manager.push_blocks(
            self._engine.keys.remote(key),
            own,
            src_blocks,
            dst_blocks,
            timeout=self._engine.options.timeout,
            **layers.words,
        )

    # ------------------------------------------------------------------ layer by layer

    def transfer(
        self,
        cache: Cache,
        synchronizer: LayerSynchronizer,
        configs: Sequence[TransferConfig | TransferWithCacheKeyConfig],
        src_blocks: Sequence[int] | None,
        dst_blocks: Sequence[int] | None,
        block_size: int | None,
    ) -> CacheTask:
        """Push layer by layer, in the background."""
        own = self.own(cache)
        if own.is_blocks_cache and src_blocks is None and dst_blocks is None:
            # Without blocks the vendor's engine sends a row, which for a blocks cache is its first block.
            src_blocks, dst_blocks = [0], [0]
        early: dict[int, LLMStatusCode] = {}
        natives: list[Any] = []
        for index, config in enumerate(configs):
            try:
                natives.append(self._native_config(config))
            except CacheError as error:
                early[index] = status_of(error)
        task = self._manager.transfer_cache_async(
            own, _Synchronizer(synchronizer), natives, src_blocks, dst_blocks, block_size or None
        )

        def results(timeout: float | None) -> list[LLMStatusCode] | None:
            outcomes = task.get_results(timeout)
            if timeout is not None and not task.done:
                return None
            statuses = iter(_layer_status(error) for error in outcomes)
            return [early[index] if index in early else next(statuses) for index in range(len(configs))]

        return CacheTask(results, len(configs))

    def _native_config(self, config: TransferConfig | TransferWithCacheKeyConfig) -> Any:
        if isinstance(config, TransferConfig):
            return tasks.TransferConfig(
                self._engine.links.real_id(config.dst_cluster_id),
                config.dst_addrs,
                config.src_layer_range,
                config.src_batch_index,
            )
        return tasks.TransferWithCacheKeyConfig(
            self._engine.keys.remote(config.cache_key),
            config.src_layer_range,
            config.dst_layer_range,
            config.src_batch_index,
        )

    # ------------------------------------------------------------------ within the process

    def copy_cache(self, dst: Cache, src: Cache, dst_row: int, src_row: int, offset: int, size: int) -> None:
        """Part of a row into a row."""
        self._manager.copy_cache(self.own(dst), self.own(src), dst_row, src_row, offset, size)

    def copy_blocks(self, cache: Cache, info: Mapping[int, Sequence[int]]) -> None:
        """Blocks into blocks of the same cache."""
        self._manager.copy_blocks(self.own(cache), info)

    def swap_blocks(self, src: Cache, dst: Cache, pairs: Mapping[int, int]) -> None:
        """Blocks between host and device memory; the source is unchanged."""
        if not pairs:
            return
        one, other = self._sided(src), self._sided(dst)
        if self._engine.emulated:
            self._copy(one, other, pairs)
        else:
            self._manager.swap_blocks(one, other, pairs)

    def _sided(self, cache: Cache) -> core.Cache:
        """A side of a swap, which need not be registered; what is not is looked at as if it were to be."""
        native = self._manager.registry.caches.get(cache.cache_id)
        if native is not None and cache.cache_id > 0 and list(native.tensor_addrs) == cache.tensor_addrs:
            return native
        desc = self._engine.native_desc(cache.cache_desc)
        if not cache.tensor_addrs or len(cache.tensor_addrs) != desc.num_tensors:
            raise failed(LLMStatusCode.LLM_KV_CACHE_NOT_EXIST, f"{cache} has no memory, or no longer")
        plan = self._manager.plan(desc, cache.tensor_addrs, None, False, blocks=True)
        wrong = [f for f in plan.findings if f.outcome is Outcome.REFUSED and (f.transport or f.rule == "core.address")]
        if wrong:
            raise invalid(f"{cache} cannot be copied: " + "; ".join(finding.message for finding in wrong))
        return core.Cache(-1, desc, tuple(cache.tensor_addrs), True, False)

    def _copy(self, src: core.Cache, dst: core.Cache, pairs: Mapping[int, int]) -> None:
        """The same where both sides are host memory."""
        stride = np.uint64(src.cache_desc.stride)
        begin, to = (np.fromiter(each, np.uint64, len(pairs)) * stride for each in (pairs.keys(), pairs.values()))
        pieces = layout.scatter(dst.tensor_addrs, src.tensor_addrs, to, begin, np.full(len(pairs), stride, np.uint64))
        joined, _ = layout.join(pieces)
        refuse_overlap(joined.local, joined.length, "swap_blocks")
        for name in self._manager.transports:
            transport = self._manager.transport(name)
            if Capability.COPY in transport.info.capabilities:
                transport.copy(Batch(joined.local, joined.remote, joined.length, np.zeros(0, np.uint64)))
                return
        raise failed(LLMStatusCode.LLM_FEATURE_NOT_ENABLED, "no open transport copies within the process")


def _no_row(error: CacheError) -> CacheError:
    """A row there that does not exist; a row here is a wrong argument."""
    return failed(LLMStatusCode.LLM_KV_CACHE_NOT_EXIST, str(error), error.operation)


class _Synchronizer(tasks.LayerSynchronizer):
    """The caller's synchronizer, for cachefw."""

    def __init__(self, of: LayerSynchronizer) -> None:
        self._call: Callable[[int, int | None], bool] = of.synchronize_layer

    def synchronize_layer(self, layer_index: int, timeout_in_millis: int | None) -> bool:
        return self._call(layer_index, timeout_in_millis)


def _layer_status(error: CacheError | None) -> LLMStatusCode:
    if error is None:
        return LLMStatusCode.LLM_SUCCESS
    if error.code == "task.layer":
        return LLMStatusCode.LLM_PARAM_INVALID
    if error.code.startswith("task."):
        return LLMStatusCode.LLM_FAILED
    return status_of(error)
