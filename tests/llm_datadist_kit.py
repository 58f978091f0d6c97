"""What the tests of LLM-DataDist's calls share: several instances in one process, with caches over arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cachefw
from cachefw.compat import llm_datadist as ld

INVALID = ld.LLMStatusCode.LLM_PARAM_INVALID
OK = ld.LLMStatusCode.LLM_SUCCESS
GET = {"local_comm_res": ""}
LEGACY = {"enable_cache_manager": True}
HIXL = {"enable_cache_manager": True, "transfer_backend": "hixl"}
LISTEN = {"listen_ip_info": "127.0.0.1:0"}
POOL = {"mem_pool_cfg": '{"memory_size": 1048576, "page_shift": 12}'}
HOST_POOL = {"host_mem_pool_cfg": '{"memory_size": 1048576, "page_shift": 12}'}


def code(status: str) -> ld.LLMStatusCode:
    return ld.LLMStatusCode[f"LLM_{status}"]


def refuse(wanted: Any, call: Callable[[], Any]) -> Any:
    """The call raises a builtin, all of several, or an LLMException with a status; always a CacheError."""
    if isinstance(wanted, ld.LLMStatusCode):
        with pytest.raises(ld.LLMException) as caught:
            call()
        assert caught.value.status_code is wanted
        assert isinstance(caught.value, ValueError) is (wanted is INVALID and not isinstance(caught.value, TypeError))
    else:
        kinds = wanted if isinstance(wanted, tuple) else (wanted,)
        with pytest.raises(kinds[0]) as caught:
            call()
        assert all(isinstance(caught.value, kind) for kind in kinds)
        assert not isinstance(caught.value, ld.LLMException)
    assert isinstance(caught.value, cachefw.CacheError)
    assert len(str(caught.value)) > 10
    return caught.value


class Instance:
    """An `LLMDataDist` that lets others live beside it."""

    def __init__(self, cluster_id: int, **options: Any) -> None:
        self.dist = ld.LLMDataDist(ld.LLMRole.PROMPT, cluster_id)
        config = ld.LLMConfig()
        config.sync_kv_timeout = 10000
        # Whatever else is there, on this machine or in this process.
        config.ge_options = {"cachefw.transports": "host"}
        for name, value in options.items():
            setattr(config, name, value)
        self.dist.init(config.generate_options())
        ld.LLMDataDist.llm_engine_instance = None
        self.manager = self.dist.cache_manager
        self.cluster_id = cluster_id
        self._kept: list[Any] = []

    @property
    def port(self) -> int:
        return int(self.dist._engine.node.address.rpartition(":")[2])

    def info(self, cluster_id: int | None = None) -> ld.LLMClusterInfo:
        """How others reach it."""
        info = ld.LLMClusterInfo()
        info.remote_cluster_id = self.cluster_id if cluster_id is None else cluster_id
        info.append_local_ip_info("127.0.0.1", 0)
        info.append_remote_ip_info("127.0.0.1", self.port)
        return info

    def link(self, other: Instance) -> None:
        assert self.dist.link_clusters([other.info()], 5000) == (OK, [OK])

    def cache(
        self,
        count: int = 2,
        rows: int = 4,
        stride: int = 32,
        *,
        blocks: bool = False,
        key: Any = None,
        placement: ld.Placement = ld.Placement.DEVICE,
        fill: int | None = None,
        **options: Any,
    ) -> Cache:
        """A registered cache over arrays of random bytes, or of one value."""
        random = np.random.default_rng([self.cluster_id, count, rows])
        arrays = [random.integers(0, 256, (rows, stride), np.uint8) for _ in range(count)]
        if fill is not None:
            for array in arrays:
                array[:] = fill
        # Registered memory has to outlive its registration.
        self._kept += arrays
        desc = ld.CacheDesc(count, [rows, stride], ld.DataType.DT_UINT8, placement)
        addrs = [int(array.ctypes.data) for array in arrays]
        if blocks:
            handle = self.manager.register_blocks_cache(desc, addrs, key, **options)
        else:
            handle = self.manager.register_cache(desc, addrs, key or (), **options)
        return Cache(handle, arrays)


class Cache:
    """A handle and its arrays."""

    def __init__(self, handle: ld.Cache, arrays: list[np.ndarray]) -> None:
        self.handle = handle
        self.arrays = arrays

    def copy(self) -> list[np.ndarray]:
        return [array.copy() for array in self.arrays]
