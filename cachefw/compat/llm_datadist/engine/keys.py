"""Keys: for cachefw, and used up by pulls.

Without get mode a pull by `CacheKey` uses the key up: the owner forgets it, and a cache that was deallocated before is
freed with its last key. Only allocated caches do so; registered ones keep their keys.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, overload

from cachefw import cache as core
from cachefw.cache import ABSENT_ID
from cachefw.compat.llm_datadist.engine.linking import Links
from cachefw.compat.llm_datadist.status import LLMStatusCode, failed, of_none, wrong_type
from cachefw.compat.llm_datadist.v2._keys import BlocksCacheKey, CacheKey, CacheKeyByIdAndIndex
from cachefw.manager import CacheManager

__all__ = ["Keys", "native_key"]

Name = tuple[str, int, int]


@overload
def native_key(key: BlocksCacheKey, cluster_id: int) -> core.BlocksCacheKey: ...
@overload
def native_key(key: CacheKey, cluster_id: int) -> core.CacheKey: ...
@overload
def native_key(key: CacheKeyByIdAndIndex, cluster_id: int) -> core.CacheKeyByIdAndIndex: ...
def native_key(key: Any, cluster_id: int) -> Any:
    """A key for cachefw, with another cluster id.

    Raises:
        TypeError: An id of a blocks key is none of 64 bits.
        LLMException: With `LLM_KV_CACHE_NOT_EXIST`: no cache has such an id.
    """
    if isinstance(key, BlocksCacheKey):
        number = key.model_id
        if number is None or not 0 <= number < 2**64:
            raise wrong_type(f"model_id of {key} must lie in 0 ... 2^64 - 1")
        return core.BlocksCacheKey(cluster_id, number)
    if isinstance(key, CacheKey):
        return core.CacheKey(cluster_id, key.req_id, key.model_id, key.prefix_id)
    if key.cache_id < 1:
        text = f"{key}: cache ids start at 1"
        raise failed(LLMStatusCode.LLM_KV_CACHE_NOT_EXIST, text)
    return core.CacheKeyByIdAndIndex(cluster_id, key.cache_id, key.batch_index)


def cluster_of(key: Any) -> int:
    """The cluster that a key names.

    Raises:
        AttributeError: The key is None.
        TypeError: The id is none of 64 bits.
    """
    if key is None:
        raise of_none("the cache key is None")
    number: int = key.cluster_id
    if number is None or not 0 <= number < 2**64:
        raise wrong_type(f"cluster_id of {key} must lie in 0 ... 2^64 - 1")
    return number


class Keys:
    """The keys of allocated caches, and what was pulled by them.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, manager: CacheManager, links: Links) -> None:
        self._manager = manager
        self._links = links
        self._lock = threading.Lock()
        #: For each key in use its tensors that were not pulled yet.
        self._left: dict[Name, set[int]] = {}

    def allocate(self, desc: core.CacheDesc, keys: Sequence[core.CacheKey]) -> core.Cache:
        """Allocate a contiguous cache, and follow its keys."""
        cache = self._manager.allocate_cache(desc, keys)
        with self._lock:
            for key in keys:
                if not key.is_placeholder:
                    self._left[key.local_name] = set(range(desc.num_tensors))
        return cache

    def remote(self, key: Any) -> Any:
        """A peer's cache by key, for cachefw: with the id under which the link is filed."""
        return native_key(key, self._links.real_id(cluster_of(key)))

    def deallocate(self, cache_id: int) -> None:
        """Give an allocated cache back; a contiguous one when its last key is used up. Unknown ids are none."""
        cache = self._manager.registry.caches.get(cache_id)
        if cache is not None:
            self._manager.deallocate_cache(cache, keep_named=not cache.is_blocks_cache)

    def remove(self, key: CacheKey) -> None:
        """Forget the key of an allocated cache; one that is unknown, or of a registered cache, is left alone."""
        name = native_key(key, 0).local_name
        with self._lock:
            known = self._left.pop(name, None) is not None
        if known:
            self._forget(name)

    def consume(self, name: Name, tensors: range) -> None:
        """Note that tensors were pulled by a key."""
        with self._lock:
            left = self._left.get(name)
            if left is None:
                return
            left.difference_update(tensors[: max(left) + 1])
            if left:
                return
            del self._left[name]
        self._forget(name)

    def _forget(self, name: Name) -> None:
        kind, number, model = name
        request, prefix = (number, ABSENT_ID) if kind == "req" else (ABSENT_ID, number)
        self._manager.remove_cache_key(core.CacheKey(0, request, model, prefix))
