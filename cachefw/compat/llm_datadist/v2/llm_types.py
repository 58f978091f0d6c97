"""The values of the interface."""

from __future__ import annotations

from cachefw.cache import Placement
from cachefw.compat.llm_datadist.v2._caches import (
    Cache,
    CacheDesc,
    KvCache,
    MemInfo,
    Memtype,
    RegisterMemStatus,
    int_to_mem_status_dict,
)
from cachefw.compat.llm_datadist.v2._keys import BlocksCacheKey, CacheKey, CacheKeyByIdAndIndex
from cachefw.compat.llm_datadist.v2._transfers import (
    CacheTask,
    LayerSynchronizer,
    PushType,
    TransferConfig,
    TransferWithCacheKeyConfig,
    check_layer_range,
)

__all__ = [
    "BlocksCacheKey",
    "Cache",
    "CacheDesc",
    "CacheKey",
    "CacheKeyByIdAndIndex",
    "CacheTask",
    "KvCache",
    "LayerSynchronizer",
    "MemInfo",
    "Memtype",
    "Placement",
    "PushType",
    "RegisterMemStatus",
    "TransferConfig",
    "TransferWithCacheKeyConfig",
    "check_layer_range",
    "int_to_mem_status_dict",
]
