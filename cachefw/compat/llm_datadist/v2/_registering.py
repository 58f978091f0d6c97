"""The calls of the cache manager that register and allocate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachefw.cache import Cache as NativeCache
from cachefw.compat.llm_datadist.engine.engine import Engine
from cachefw.compat.llm_datadist.status import LLMStatusCode, LLMTypeError, of_none, wrong_type
from cachefw.compat.llm_datadist.utils.utils import check_int64, check_isinstance, require
from cachefw.compat.llm_datadist.v2._caches import Cache, CacheDesc, MemInfo, Memtype, check_addresses, check_cache
from cachefw.compat.llm_datadist.v2._keys import BlocksCacheKey, CacheKey
from cachefw.errors import CacheError

__all__ = ["Registering"]

_FAILED = LLMStatusCode.LLM_FAILED


class Registering:
    """The part of `CacheManager` that registers and allocates."""

    _engine: Engine
    _is_call_linked: bool

    # ------------------------------------------------------------------ registration

    def _check_registration(
        self, cache_desc: Any, addrs: Any, keys: Any, key_classes: Any, remote_accessible: Any
    ) -> None:
        check_isinstance("cache_desc", cache_desc, CacheDesc)
        check_addresses(addrs)
        check_isinstance(*key_classes(keys))
        check_isinstance("remote_accessible", remote_accessible, bool)
        require(
            not (self._is_call_linked and remote_accessible),
            "memory that peers are to reach is registered before link(); leave remote_accessible out",
        )
        if addrs is None:
            raise wrong_type("addrs is None; it must be a list of addresses", AttributeError)
        require(len(addrs), "addrs is empty; give one address for each tensor")
        if cache_desc is None:
            raise of_none("cache_desc is None; it must be a CacheDesc")

    def register_cache(
        self,
        cache_desc: CacheDesc,
        addrs: list[int],
        cache_keys: Sequence[CacheKey] = (),
        remote_accessible: bool | None = None,
    ) -> Cache:
        """Register a contiguous cache.

        Args:
            cache_desc: What the tensors are.
            addrs: Start address of each.
            cache_keys: Key i names row i.
            remote_accessible: Whether peers may reach it; None is yes for device memory, no for host memory.

        Raises:
            LLMException: Broken rules, all of them, in ``findings``; a ValueError too.
        """
        self._check_registration(
            cache_desc,
            addrs,
            cache_keys,
            lambda keys: ("cache_keys", keys, (tuple, list), CacheKey),
            remote_accessible,
        )
        require(
            len(addrs) == cache_desc.num_tensors,
            f"cache_desc.num_tensors is {cache_desc.num_tensors} and addrs has {len(addrs)}",
        )
        require(all(addrs), "an address of addrs is 0")
        if cache_keys is None:
            raise wrong_type("cache_keys is None; leave it out, or give a tuple of CacheKey", AttributeError)
        with self._engine.entered("register_cache", _FAILED):
            accessible = self._engine.accessible(cache_desc, remote_accessible, linked=self._is_call_linked)
            native = self._engine.register(cache_desc, addrs, cache_keys, accessible)
        return self._handle(native, cache_desc, addrs, registered=True)

    def register_blocks_cache(
        self,
        cache_desc: CacheDesc,
        addrs: list[int],
        blocks_cache_key: BlocksCacheKey | None = None,
        remote_accessible: bool | None = None,
    ) -> Cache:
        """Register a blocks cache; as for `register_cache`.

        Args:
            cache_desc: What the tensors are.
            addrs: Start address of each.
            blocks_cache_key: Its model id names it, for each the cache that was registered last.
            remote_accessible: As for `register_cache`.
        """
        self._check_registration(
            cache_desc,
            addrs,
            blocks_cache_key,
            lambda key: ("blocks_cache_key", key, BlocksCacheKey),
            remote_accessible,
        )
        cache_desc._is_blocks = True
        with self._engine.entered("register_blocks_cache", _FAILED):
            accessible = self._engine.accessible(cache_desc, remote_accessible, linked=self._is_call_linked)
            native = self._engine.register_blocks(cache_desc, addrs, blocks_cache_key, accessible)
        return self._handle(native, cache_desc, addrs, registered=True)

    def _handle(self, native: NativeCache, desc: CacheDesc, addrs: list[int], *, registered: bool) -> Cache:
        return Cache(native.cache_id, desc, addrs, self, registered, native.is_blocks_cache)

    def unregister_cache(self, cache_id: int) -> None:
        """Give a cache back; one that is unknown is none. Peers let go of it first."""
        check_isinstance("cache_id", cache_id, int, allow_none=False)
        check_int64("cache_id", cache_id)
        with self._engine.entered("unregister_cache", _FAILED):
            self._engine.unregister(cache_id)

    # ------------------------------------------------------------------ allocation

    def allocate_cache(self, cache_desc: CacheDesc, cache_keys: Sequence[CacheKey] = ()) -> Cache:
        """Allocate a contiguous cache from the pool of its placement.

        Raises:
            LLMException: With `LLM_FEATURE_NOT_ENABLED`: there is no pool. With `LLM_OUT_OF_MEMORY`: it is full.
        """
        check_isinstance("cache_desc", cache_desc, CacheDesc)
        check_isinstance("cache_keys", cache_keys, (tuple, list), CacheKey)
        if cache_keys is None:
            raise wrong_type("cache_keys is None; leave it out, or give a tuple of CacheKey", AttributeError)
        return self._allocate("allocate_cache", cache_desc, cache_keys, blocks=False)

    def allocate_blocks_cache(self, cache_desc: CacheDesc, blocks_cache_key: BlocksCacheKey | None = None) -> Cache:
        """Allocate a blocks cache; as for `allocate_cache`."""
        check_isinstance("cache_desc", cache_desc, CacheDesc)
        check_isinstance("blocks_cache_key", blocks_cache_key, BlocksCacheKey)
        cache = self._allocate("allocate_blocks_cache", cache_desc, blocks_cache_key, blocks=True)
        cache_desc._is_blocks = True
        return cache

    def _allocate(self, operation: str, cache_desc: CacheDesc, keys: Any, *, blocks: bool) -> Cache:
        if cache_desc is None:
            raise of_none("cache_desc is None; it must be a CacheDesc")
        require(cache_desc.num_tensors > 0, "cache_desc.num_tensors must be at least 1")
        with self._engine.entered(operation, _FAILED):
            native = self._engine.allocate(cache_desc, keys, blocks=blocks)
        return self._handle(native, cache_desc, list(native.tensor_addrs), registered=False)

    def deallocate_cache(self, cache: Cache) -> None:
        """Give an allocated contiguous cache back; its memory goes once its keys are pulled or removed."""
        self._deallocate("deallocate_cache", cache, blocks=False)

    def deallocate_blocks_cache(self, cache: Cache) -> None:
        """Give an allocated blocks cache back."""
        self._deallocate("deallocate_blocks_cache", cache, blocks=True)

    def _deallocate(self, operation: str, cache: Cache, *, blocks: bool) -> None:
        check_cache("cache", cache)
        require(
            cache.is_blocks_cache is blocks,
            f"{operation} takes a {'blocks' if blocks else 'contiguous'} cache, not {cache}",
        )
        with self._engine.entered(operation):
            self._engine.require_pool(operation)
            if not cache._is_registered and cache._valid:
                self._engine.keys.deallocate(cache.cache_id)
        cache._tensor_addrs = []
        cache._valid = False

    def remove_cache_key(self, cache_key: CacheKey) -> None:
        """Forget the key of an allocated cache; one that is unknown is none."""
        check_isinstance("cache_key", cache_key, CacheKey, allow_none=False)
        with self._engine.entered("remove_cache_key"):
            self._engine.require_pool("remove_cache_key")
            self._engine.keys.remove(cache_key)

    def remap_registered_memory(self, mem_infos: MemInfo | list[MemInfo]) -> None:
        """Tell peers that the mapping below device memory has changed.

        Raises:
            LLMException: With `LLM_NOT_YET_LINK`: there is no link. With `LLM_PARAM_INVALID`: no device memory that is
                registered.
        """
        infos = [mem_infos] if isinstance(mem_infos, MemInfo) else mem_infos
        if not isinstance(infos, list):
            raise _not_infos(f"mem_infos must be a MemInfo or a list of them, not {mem_infos!r}")
        for index, info in enumerate(infos):
            if not isinstance(info, MemInfo):
                raise _not_infos(f"mem_infos[{index}] must be a MemInfo, not {info!r}")
            require(info.mem_type is Memtype.MEM_TYPE_DEVICE, f"mem_infos[{index}] {info} is not of a device")
            require(info.addr, f"mem_infos[{index}] {info}: the address is 0")
            require(info.size is not None and info.size > 0, f"mem_infos[{index}] {info}: the size must be above 0")
        require(infos, "mem_infos is empty")
        with self._engine.entered("remap_registered_memory"):
            self._engine.remap([(info.addr, info.size) for info in infos])


def _not_infos(text: str) -> CacheError:
    return LLMTypeError(text, status_code=LLMStatusCode.LLM_PARAM_INVALID)
