"""LLM-DataDist's Python interface, on cachefw: ``import llm_datadist`` with another name before it.

What is the same, better or refused: docs/moving-from-llm-datadist.md.
"""

from __future__ import annotations

import os
from typing import Any

from cachefw.cache import Placement
from cachefw.compat.llm_datadist.configs import LLMClusterInfo, LLMConfig, LlmConfig, LLMRole
from cachefw.compat.llm_datadist.data_type import DataType
from cachefw.compat.llm_datadist.status import LLMException, LLMStatusCode, Status
from cachefw.compat.llm_datadist.v2.llm_datadist import LLMDataDist
from cachefw.compat.llm_datadist.v2.llm_types import (
    BlocksCacheKey,
    Cache,
    CacheDesc,
    CacheKey,
    CacheKeyByIdAndIndex,
    CacheTask,
    KvCache,
    LayerSynchronizer,
    MemInfo,
    Memtype,
    RegisterMemStatus,
    TransferConfig,
    TransferWithCacheKeyConfig,
)

os.environ.setdefault("AUTO_USE_UC_MEMORY", "0")

v2_list = [
    "LLMClusterInfo",
    "LLMStatusCode",
    "LLMException",
    "LLMRole",
    "LlmConfig",
    "LLMConfig",
    "DataType",
    "Status",
    "CacheDesc",
    "CacheKey",
    "CacheKeyByIdAndIndex",
    "KvCache",
    "Cache",
    "BlocksCacheKey",
    "LLMDataDist",
    "Placement",
    "RegisterMemStatus",
    "LayerSynchronizer",
    "TransferConfig",
    "CacheTask",
    "TransferWithCacheKeyConfig",
    "Memtype",
    "MemInfo",
]
_V1 = ("TensorDesc", "Tensor", "KvCacheManager")

__all__ = [  # noqa: RUF022 - the vendor's list, in its order; the last three are those of the first generation
    "LLMClusterInfo",
    "LLMStatusCode",
    "LLMException",
    "LLMRole",
    "LlmConfig",
    "LLMConfig",
    "DataType",
    "Status",
    "CacheDesc",
    "CacheKey",
    "CacheKeyByIdAndIndex",
    "KvCache",
    "Cache",
    "BlocksCacheKey",
    "LLMDataDist",
    "Placement",
    "RegisterMemStatus",
    "LayerSynchronizer",
    "TransferConfig",
    "CacheTask",
    "TransferWithCacheKeyConfig",
    "Memtype",
    "MemInfo",
    "TensorDesc",
    "Tensor",
    "KvCacheManager",
]


def __getattr__(name: str) -> Any:
    if name in _V1:
        raise ModuleNotFoundError(
            f"{name} belongs to the first generation's interface (llm_datadist_v1), which is not here; `CacheManager` "
            "does what its managers did",
            name="llm_datadist_v1",
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
