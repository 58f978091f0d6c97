"""Transfers layer by layer: where each goes, who says that a layer is ready, and what came of it."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Sequence
from typing import Any

from cachefw.compat.llm_datadist.status import LLMStatusCode, worst
from cachefw.compat.llm_datadist.utils.utils import (
    check_isinstance,
    check_uint32,
    check_uint64,
    require,
)
from cachefw.compat.llm_datadist.v2._keys import BlocksCacheKey, CacheKeyByIdAndIndex

__all__ = [
    "CacheTask",
    "LayerSynchronizer",
    "PushType",
    "TransferConfig",
    "TransferWithCacheKeyConfig",
    "check_layer_range",
]


class PushType(enum.Enum):
    """How the far end of a push is named."""

    NO_CACHE_KEY = 0
    BLOCKS_CACHE_KEY = 1
    CACHE_KEY_BY_ID = 2


def check_layer_range(name: str, layers: Any, *, allow_none: bool = True) -> None:
    """Check a range of layers: step 1, ``0 <= start < stop``.

    Raises:
        TypeError: No range.
        LLMException: Another step, or an empty or negative range.
    """
    check_isinstance(name, layers, range, allow_none=allow_none)
    if layers is not None:
        require(layers.step == 1, f"{name} must have step 1, not {layers}")
        require(0 <= layers.start < layers.stop, f"{name} must name layers from 0 on, at least one, not {layers}")


class TransferConfig:
    """A destination given by its addresses.

    Args:
        dst_cluster_id: The cluster's id.
        dst_addrs: Addresses there, two for each layer.
        src_layer_range: Layers here; None is all.
        src_batch_index: The row here.
    """

    def __init__(
        self,
        dst_cluster_id: int,
        dst_addrs: Sequence[int],
        src_layer_range: range | None = None,
        src_batch_index: int = 0,
    ) -> None:
        self.dst_cluster_id = dst_cluster_id
        self.dst_addrs = dst_addrs
        self.src_layer_range = src_layer_range
        self.src_batch_index = src_batch_index
        self.dst_layer_range: range | None = None

    @property
    def dst_cluster_id(self) -> int:
        """The cluster's id."""
        return self._dst_cluster_id

    @dst_cluster_id.setter
    def dst_cluster_id(self, value: int) -> None:
        self._dst_cluster_id = check_uint64("dst_cluster_id", value)

    @property
    def dst_addrs(self) -> Sequence[int]:
        """Addresses there."""
        return self._dst_addrs

    @dst_addrs.setter
    def dst_addrs(self, value: Sequence[int]) -> None:
        check_isinstance("dst_addrs", value, (list, tuple), int, allow_none=False)
        for index, address in enumerate(value):
            check_uint64(f"dst_addrs[{index}]", address)
        self._dst_addrs = value

    @property
    def src_layer_range(self) -> range | None:
        """Layers here."""
        return self._src_layer_range

    @src_layer_range.setter
    def src_layer_range(self, value: range | None) -> None:
        check_layer_range("src_layer_range", value)
        self._src_layer_range = value

    @property
    def src_batch_index(self) -> int:
        """The row here."""
        return self._src_batch_index

    @src_batch_index.setter
    def src_batch_index(self, value: int) -> None:
        self._src_batch_index = check_uint32("src_batch_index", value)


class TransferWithCacheKeyConfig:
    """A destination given by a key.

    Args:
        cache_key: The cache there.
        src_layer_range: Layers here; needed.
        dst_layer_range: Layers there, as many; needed.
        src_batch_index: The row here; 0 for a blocks cache.
    """

    def __init__(
        self,
        cache_key: BlocksCacheKey | CacheKeyByIdAndIndex,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        src_batch_index: int = 0,
    ) -> None:
        check_isinstance("cache_key", cache_key, (BlocksCacheKey, CacheKeyByIdAndIndex), allow_none=False)
        check_layer_range("src_layer_range", src_layer_range, allow_none=False)
        check_layer_range("dst_layer_range", dst_layer_range, allow_none=False)
        assert src_layer_range is not None and dst_layer_range is not None  # noqa: S101, PT018 - checked just now
        require(
            len(src_layer_range) == len(dst_layer_range),
            f"src_layer_range {src_layer_range} and dst_layer_range {dst_layer_range} must be of one length",
        )
        check_uint32("src_batch_index", src_batch_index)
        require(
            not isinstance(cache_key, BlocksCacheKey) or src_batch_index == 0,
            f"with a BlocksCacheKey src_batch_index must be 0, not {src_batch_index}",
        )
        self._cache_key: BlocksCacheKey | CacheKeyByIdAndIndex | None = cache_key
        self._src_layer_range: range | None = src_layer_range
        self._dst_layer_range: range | None = dst_layer_range
        self._src_batch_index = src_batch_index
        self.dst_cluster_id = cache_key.cluster_id

    @property
    def cache_key(self) -> BlocksCacheKey | CacheKeyByIdAndIndex | None:
        """The cache there."""
        return self._cache_key

    @cache_key.setter
    def cache_key(self, value: BlocksCacheKey | CacheKeyByIdAndIndex | None) -> None:
        check_isinstance("cache_key", value, (BlocksCacheKey, CacheKeyByIdAndIndex))
        self._cache_key = value

    @property
    def src_layer_range(self) -> range | None:
        """Layers here."""
        return self._src_layer_range

    @src_layer_range.setter
    def src_layer_range(self, value: range | None) -> None:
        check_layer_range("src_layer_range", value)
        self._src_layer_range = value

    @property
    def dst_layer_range(self) -> range | None:
        """Layers there."""
        return self._dst_layer_range

    @dst_layer_range.setter
    def dst_layer_range(self, value: range | None) -> None:
        check_layer_range("dst_layer_range", value)
        self._dst_layer_range = value

    @property
    def src_batch_index(self) -> int:
        """The row here."""
        return self._src_batch_index

    @src_batch_index.setter
    def src_batch_index(self, value: int) -> None:
        self._src_batch_index = check_uint32("src_batch_index", value)


class LayerSynchronizer(abc.ABC):
    """Says when a layer of the source is ready."""

    @abc.abstractmethod
    def synchronize_layer(self, layer_index: int, timeout_in_millis: int | None) -> bool:
        """Wait for a layer; False is a failure and stops the task.

        Args:
            layer_index: The layer here.
            timeout_in_millis: Always None.
        """


class CacheTask:
    """What `transfer_cache_async` returns. Made by the manager.

    Args:
        results: Waits for so many seconds, or until the end, and tells what came of each config; None: not over yet.
    """

    def __init__(self, results: Callable[[float | None], list[LLMStatusCode] | None], configs: int) -> None:
        self._results = results
        self._configs = configs

    def synchronize(self, timeout_in_millis: int | None = None) -> LLMStatusCode:
        """Wait for the end.

        Returns:
            The first failure, or success; `LLM_TIMEOUT` when it is not over in time. That cancels nothing.

        Raises:
            TypeError: The timeout is no integer.
            ValueError: It is not within 32 bits.
        """
        return worst(reversed(self.get_results(timeout_in_millis)))

    def get_results(self, timeout_in_millis: int | None = None) -> list[LLMStatusCode]:
        """Wait for the end.

        Returns:
            For each config, in order, what came of it. `LLM_TIMEOUT` everywhere when it is not over in time.

        Raises:
            TypeError: The timeout is no integer.
            ValueError: It is not within 32 bits.
        """
        seconds = None if timeout_in_millis is None else check_uint32("timeout_in_millis", timeout_in_millis) / 1000
        results = self._results(seconds)
        return [LLMStatusCode.LLM_TIMEOUT] * self._configs if results is None else results
