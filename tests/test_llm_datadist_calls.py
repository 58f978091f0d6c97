"""LLM-DataDist's cache manager: what each call checks, in which order, and what it raises."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from llm_datadist_kit import GET, HOST_POOL, INVALID, LEGACY, POOL, Cache, Instance, code, refuse

from cachefw.compat import llm_datadist as ld
from cachefw.compat.llm_datadist.engine import engine
from cachefw.compat.llm_datadist.v2.cache_manager import CacheManager

DESC = ld.CacheDesc(2, [4, 32], ld.DataType.DT_UINT8)
ONE = ld.CacheDesc(1, [4, 32], ld.DataType.DT_UINT8)
KEY = ld.CacheKey(1, 7)
BLOCKS_KEY = ld.BlocksCacheKey(1)
GONE = ld.Cache(99, DESC, [1, 2], None, True, True)
BY_ID = ld.CacheKeyByIdAndIndex(2, 1)
Call = Callable[["Bench"], Any]


class Bench:
    """An instance with one cache of each kind, for calls that must not do anything."""

    def __init__(self, **options: Any) -> None:
        self.instance = Instance(1, **options)
        self.manager = self.instance.manager
        self.rows = self.instance.cache()
        self.blocks = self.instance.cache(blocks=True)
        self.host = self.instance.cache(blocks=True, placement=ld.Placement.HOST)
        self.c, self.b, self.h = self.rows.handle, self.blocks.handle, self.host.handle
        self.memory = np.zeros((8, 4, 32), np.uint8)
        self.addrs = [int(each.ctypes.data) for each in self.memory]


@pytest.fixture(scope="module")
def get() -> Iterator[Bench]:
    bench = Bench(**GET)
    yield bench
    bench.instance.dist.finalize()


@pytest.fixture(scope="module")
def legacy() -> Iterator[Bench]:
    bench = Bench(**LEGACY)
    yield bench
    bench.instance.dist.finalize()


@pytest.fixture
def pooled() -> Iterator[Instance]:
    instance = Instance(1, **LEGACY, **POOL, **HOST_POOL)
    yield instance
    instance.dist.finalize()


def unchanged(bench: Bench, wanted: Any, call: Call) -> None:
    """It is refused, and nothing is registered or moved."""
    before = [cache.copy() for cache in (bench.rows, bench.blocks, bench.host)]
    known = dict(bench.instance.dist._engine.manager.caches)
    refuse(wanted, lambda: call(bench))
    assert bench.instance.dist._engine.manager.caches == known
    for cache, old in zip((bench.rows, bench.blocks, bench.host), before, strict=True):
        assert all((array == was).all() for array, was in zip(cache.arrays, old, strict=True))


# ---------------------------------------------------------------------- register_cache, register_blocks_cache

NONE = (AttributeError, TypeError)
REGISTER: list[tuple[Call, Any]] = [
    (lambda t: t.manager.register_cache("desc", t.addrs[:2]), TypeError),
    (lambda t: t.manager.register_cache(DESC, tuple(t.addrs[:2])), TypeError),
    (lambda t: t.manager.register_cache(DESC, [1, None]), TypeError),
    (lambda t: t.manager.register_cache(DESC, [1, 2.0]), TypeError),
    (lambda t: t.manager.register_cache(DESC, t.addrs[:2], KEY), TypeError),
    (lambda t: t.manager.register_cache(DESC, t.addrs[:2], [BLOCKS_KEY]), TypeError),
    (lambda t: t.manager.register_cache(DESC, t.addrs[:2], (), 1), TypeError),
    (lambda t: t.manager.register_cache(DESC, []), INVALID),
    (lambda t: t.manager.register_cache(DESC, None), NONE),
    (lambda t: t.manager.register_cache(None, t.addrs[:2]), AttributeError),
    (lambda t: t.manager.register_cache(DESC, t.addrs[:1]), INVALID),
    (lambda t: t.manager.register_cache(ld.CacheDesc(0, [4], ld.DataType.DT_INT8), [1]), INVALID),
    (lambda t: t.manager.register_cache(DESC, [t.addrs[0], 0]), INVALID),
    (lambda t: t.manager.register_cache(DESC, t.addrs[:2], None), NONE),
    (lambda t: t.manager.register_cache(ld.CacheDesc(1, [0, 4], ld.DataType.DT_INT8), t.addrs[:1]), INVALID),
    (lambda t: t.manager.register_cache(ld.CacheDesc(1, [-1, 4], ld.DataType.DT_INT8), t.addrs[:1]), INVALID),
    (lambda t: t.manager.register_cache(ld.CacheDesc(1, [1] * 32, ld.DataType.DT_INT8), t.addrs[:1]), INVALID),
    (lambda t: t.manager.register_cache(ld.CacheDesc(1, [2**40, 2**40], ld.DataType.DT_INT8), t.addrs[:1]), INVALID),
    (lambda t: t.manager.register_cache(ld.CacheDesc(1, [4], None), t.addrs[:1]), AttributeError),
    (lambda t: t.manager.register_cache(ld.CacheDesc(1, [4], ld.DataType.DT_INT8, None), t.addrs[:1]), AttributeError),
    # More keys than rows, and one key twice: the vendor's engine files them under rows that do not exist.
    (lambda t: t.manager.register_cache(DESC, t.addrs[:2], [ld.CacheKey(1, i) for i in range(5)]), INVALID),
    (lambda t: t.manager.register_cache(DESC, t.addrs[:2], [KEY, KEY]), INVALID),
    # The same address twice, in one call and over calls, and half of what is registered.
    (lambda t: t.manager.register_cache(DESC, [t.addrs[0]] * 2), INVALID),
    (lambda t: t.manager.register_cache(ONE, [t.c.tensor_addrs[0]]), INVALID),
    (lambda t: t.manager.register_cache(ONE, [t.c.tensor_addrs[0] + 32]), INVALID),
    # What is not mapped cannot be moved.
    (lambda t: t.manager.register_cache(ONE, [4096]), INVALID),
    (lambda t: t.manager.register_blocks_cache("desc", t.addrs[:2]), TypeError),
    (lambda t: t.manager.register_blocks_cache(DESC, tuple(t.addrs[:2])), TypeError),
    (lambda t: t.manager.register_blocks_cache(DESC, t.addrs[:2], KEY), TypeError),
    (lambda t: t.manager.register_blocks_cache(DESC, t.addrs[:2], BLOCKS_KEY, "yes"), TypeError),
    (lambda t: t.manager.register_blocks_cache(DESC, []), INVALID),
    (lambda t: t.manager.register_blocks_cache(DESC, None), NONE),
    (lambda t: t.manager.register_blocks_cache(None, t.addrs[:2]), AttributeError),
    (lambda t: t.manager.register_blocks_cache(DESC, t.addrs[:1]), INVALID),
    (lambda t: t.manager.register_blocks_cache(DESC, [t.addrs[0], 0]), INVALID),
    (lambda t: t.manager.register_blocks_cache(DESC, [t.addrs[0], 0], None, False), INVALID),
    (lambda t: t.manager.register_blocks_cache(DESC, t.addrs[:2], ld.BlocksCacheKey(1, -1)), TypeError),
    (lambda t: t.manager.unregister_cache(None), TypeError),
    (lambda t: t.manager.unregister_cache("1"), TypeError),
    (lambda t: t.manager.unregister_cache(2**63), ValueError),
]


@pytest.mark.parametrize(("call", "wanted"), REGISTER)
def test_registration_refuses(get: Bench, call: Call, wanted: Any) -> None:
    unchanged(get, wanted, call)


def test_every_broken_rule_is_in_the_error(get: Bench) -> None:
    error = refuse(INVALID, lambda: get.manager.register_cache(DESC, [4096, 8192], [KEY, KEY]))
    assert {"core.keys", "host.mapped"} <= {finding.rule for finding in error.findings}


def test_the_limit_of_addresses_holds(get: Bench) -> None:
    memory = np.zeros((240, 32), np.uint8)
    desc = ld.CacheDesc(240, [1, 32], ld.DataType.DT_UINT8)
    error = refuse(INVALID, lambda: get.manager.register_cache(desc, [int(row.ctypes.data) for row in memory]))
    assert "240" in str(error)


def test_ids_start_at_1_and_count_up() -> None:
    instance = Instance(1, **LEGACY, **POOL)
    try:
        first = instance.cache().handle
        second = instance.manager.allocate_cache(DESC)
        third = instance.cache(blocks=True).handle
        assert [first.cache_id, second.cache_id, third.cache_id] == [1, 2, 3]
        assert (first.is_blocks_cache, third.is_blocks_cache, first._is_registered, second._is_registered) == (
            False,
            True,
            True,
            False,
        )
    finally:
        instance.dist.finalize()


def test_registration_gives_back_what_it_was_given(get: Bench) -> None:
    desc = ld.CacheDesc(2, (4, 32), ld.DataType.DT_UINT8)
    addrs = get.addrs[:2]
    cache = get.manager.register_cache(desc, addrs, [ld.CacheKey(5, 2**64 - 1), ld.CacheKey(5, 1)])
    assert cache.tensor_addrs == addrs
    assert cache.cache_desc is desc
    assert not desc._is_blocks
    get.manager.unregister_cache(cache.cache_id)
    get.manager.unregister_cache(cache.cache_id)
    get.manager.unregister_cache(-5)
    again = get.manager.register_blocks_cache(desc, addrs, BLOCKS_KEY)
    assert desc._is_blocks
    get.manager.unregister_cache(again.cache_id)
    # A description that once was of blocks still makes a contiguous cache.
    once_more = get.manager.register_cache(desc, addrs)
    assert not once_more.is_blocks_cache
    assert not get.instance.dist._engine.manager.caches[once_more.cache_id].is_blocks_cache
    get.manager.unregister_cache(once_more.cache_id)


@pytest.mark.parametrize("name", ld.DataType.__members__)
def test_every_data_type_can_be_registered(get: Bench, name: str) -> None:
    desc = ld.CacheDesc(1, [2, 4], ld.DataType[name])
    memory = np.zeros(desc.size, np.uint8)
    cache = get.manager.register_cache(desc, [int(memory.ctypes.data)])
    native = get.instance.dist._engine.manager.caches[cache.cache_id]
    assert native.cache_desc.size == desc.size
    get.manager.unregister_cache(cache.cache_id)


ACCESSIBLE = [
    (GET, ld.Placement.DEVICE, None, True),
    (GET, ld.Placement.HOST, None, False),
    (GET, ld.Placement.HOST, True, True),
    (GET, ld.Placement.DEVICE, False, False),
    (LEGACY, ld.Placement.DEVICE, None, True),
    (LEGACY, ld.Placement.HOST, None, True),
]


@pytest.mark.parametrize(("options", "placement", "told", "wanted"), ACCESSIBLE, ids=str)
def test_who_may_reach_a_cache(options: Any, placement: ld.Placement, told: bool | None, wanted: bool) -> None:
    instance = Instance(1, **options)
    try:
        cache = instance.cache(placement=placement, remote_accessible=told)
        assert instance.dist._engine.manager.caches[cache.handle.cache_id].remote_accessible is wanted
    finally:
        instance.dist.finalize()


def test_after_link_device_memory_is_not_for_peers() -> None:
    instance = Instance(1, **GET)
    try:
        instance.manager.set_is_call_linked()
        refuse(INVALID, lambda: instance.cache(remote_accessible=True))
        cache = instance.cache()
        assert not instance.dist._engine.manager.caches[cache.handle.cache_id].remote_accessible
    finally:
        instance.dist.finalize()


def test_the_last_blocks_cache_of_a_model_has_its_name() -> None:
    instance = Instance(1, **GET)
    try:
        first, second = (instance.cache(blocks=True, key=ld.BlocksCacheKey(n, 3)) for n in (1, 2))
        names = instance.dist._engine.manager.registry.names
        assert names == {("blocks", 0, 3): second.handle.cache_id}
        # One that cannot be registered takes no name away.
        refuse(INVALID, lambda: instance.manager.register_blocks_cache(DESC, [4096, 8192], ld.BlocksCacheKey(1, 3)))
        assert names == {("blocks", 0, 3): second.handle.cache_id}
        instance.manager.unregister_cache(first.handle.cache_id)
        assert names == instance.dist._engine.manager.registry.names
    finally:
        instance.dist.finalize()


def test_memory_of_a_device_is_not_taken_for_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "device_runtime", lambda: "libascendcl.so")
    instance = Instance(1, **GET)
    try:
        error = refuse(INVALID, instance.cache)
        assert "libascendcl.so is loaded" in str(error)
        instance.cache(placement=ld.Placement.HOST)
    finally:
        instance.dist.finalize()


# ---------------------------------------------------------------------- allocation

ALLOCATE: list[tuple[Callable[[Instance], Any], Any]] = [
    (lambda i: i.manager.allocate_cache("desc"), TypeError),
    (lambda i: i.manager.allocate_cache(None), AttributeError),
    (lambda i: i.manager.allocate_cache(DESC, KEY), TypeError),
    (lambda i: i.manager.allocate_cache(DESC, [1]), TypeError),
    (lambda i: i.manager.allocate_cache(DESC, None), NONE),
    (lambda i: i.manager.allocate_cache(ld.CacheDesc(0, [4], ld.DataType.DT_INT8)), INVALID),
    (lambda i: i.manager.allocate_cache(ld.CacheDesc(1, [0, 4], ld.DataType.DT_INT8)), INVALID),
    (lambda i: i.manager.allocate_cache(ld.CacheDesc(1, [2, 2**20], ld.DataType.DT_INT8)), code("OUT_OF_MEMORY")),
    (lambda i: i.manager.allocate_cache(DESC, [ld.CacheKey(1, n) for n in range(5)]), INVALID),
    (lambda i: i.manager.allocate_cache(DESC, [KEY, KEY]), INVALID),
    (lambda i: [i.manager.allocate_cache(DESC, [KEY]) for _ in range(2)], INVALID),
    (lambda i: i.manager.allocate_blocks_cache(DESC, KEY), TypeError),
    (lambda i: i.manager.allocate_blocks_cache(None), AttributeError),
    (lambda i: [i.manager.allocate_blocks_cache(DESC, BLOCKS_KEY) for _ in range(2)], INVALID),
    (lambda i: i.manager.deallocate_cache(None), AttributeError),
    (lambda i: i.manager.deallocate_cache(1), TypeError),
    (lambda i: i.manager.deallocate_cache(i.manager.allocate_blocks_cache(DESC)), INVALID),
    (lambda i: i.manager.deallocate_blocks_cache(i.manager.allocate_cache(DESC)), INVALID),
    (lambda i: i.manager.remove_cache_key(None), TypeError),
    (lambda i: i.manager.remove_cache_key(BY_ID), TypeError),
]


@pytest.mark.parametrize(("call", "wanted"), ALLOCATE)
def test_allocation_refuses(pooled: Instance, call: Callable[[Instance], Any], wanted: Any) -> None:
    refuse(wanted, lambda: call(pooled))


NO_POOL: list[Call] = [
    lambda t: t.manager.allocate_cache(DESC),
    lambda t: t.manager.allocate_blocks_cache(DESC),
    lambda t: t.manager.deallocate_cache(t.c),
    lambda t: t.manager.deallocate_blocks_cache(t.b),
    lambda t: t.manager.remove_cache_key(KEY),
]


@pytest.mark.parametrize("call", NO_POOL)
def test_without_a_pool_there_is_no_allocation(legacy: Bench, call: Call) -> None:
    unchanged(legacy, code("FEATURE_NOT_ENABLED"), call)
    assert legacy.c.tensor_addrs


def test_what_is_allocated_can_be_given_back_and_had_again(pooled: Instance) -> None:
    manager = pooled.manager
    big = ld.CacheDesc(1, [4, 2**18], ld.DataType.DT_UINT8)
    for placement in (ld.Placement.DEVICE, ld.Placement.HOST) * 3:
        big = ld.CacheDesc(1, [4, 2**17], ld.DataType.DT_UINT8, placement)
        cache = manager.allocate_cache(big, [KEY, ld.CacheKey(1, 2**64 - 1), ld.CacheKey(1, 2**64 - 1)])
        assert len(cache.tensor_addrs) == 1
        manager.remove_cache_key(KEY)
        manager.remove_cache_key(KEY)
        manager.deallocate_cache(cache)
        assert (cache.tensor_addrs, cache._valid) == ([], False)
        manager.deallocate_cache(cache)
    blocks = manager.allocate_blocks_cache(big, BLOCKS_KEY)
    manager.deallocate_blocks_cache(blocks)
    assert not pooled.dist._engine.manager.caches


def test_a_cache_is_freed_with_its_last_key(pooled: Instance) -> None:
    caches = pooled.dist._engine.manager
    cache = pooled.manager.allocate_cache(DESC, [KEY, ld.CacheKey(1, 8)])
    pooled.manager.deallocate_cache(cache)
    pooled.manager.remove_cache_key(KEY)
    assert list(caches.caches) == [cache.cache_id]
    pooled.manager.remove_cache_key(ld.CacheKey(1, 8))
    assert not caches.caches


def test_registered_caches_keep_their_keys_and_their_memory(pooled: Instance) -> None:
    cache = pooled.cache(key=[KEY])
    pooled.manager.remove_cache_key(KEY)
    assert pooled.dist._engine.manager.registry.names
    pooled.manager.deallocate_cache(cache.handle)
    assert pooled.dist._engine.manager.caches
    assert cache.handle.tensor_addrs == []


DEVICE = ld.Memtype.MEM_TYPE_DEVICE
REMAP: list[tuple[Any, Any]] = [
    (None, INVALID),
    (5, INVALID),
    ((ld.MemInfo(DEVICE, 1, 1),), INVALID),
    ([1], INVALID),
    ([ld.MemInfo(ld.Memtype.MEM_TYPE_HOST, 1, 1)], INVALID),
    (ld.MemInfo(DEVICE, 0, 1), INVALID),
    (ld.MemInfo(DEVICE, 1, 0), INVALID),
    ([], INVALID),
    (ld.MemInfo(DEVICE, 1, 1), code("NOT_YET_LINK")),
]


@pytest.mark.parametrize(("infos", "wanted"), REMAP, ids=str)
def test_remapping_refuses(get: Bench, infos: Any, wanted: Any) -> None:
    error = refuse(wanted, lambda: get.manager.remap_registered_memory(infos))
    assert isinstance(error, TypeError) is (not isinstance(infos, (list, ld.MemInfo)) or infos == [1])


# ---------------------------------------------------------------------- pulls

PULL: list[tuple[str, Call, Any]] = [
    ("get", lambda t: t.manager.pull_cache(ld.CacheKey(2, 1), t.c), TypeError),
    ("both", lambda t: t.manager.pull_cache(BLOCKS_KEY, t.c), TypeError),
    ("both", lambda t: t.manager.pull_cache(None, t.c), AttributeError),
    ("both", lambda t: t.manager.pull_cache(BY_ID, 1), TypeError),
    ("both", lambda t: t.manager.pull_cache(BY_ID, None), AttributeError),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.c, None), TypeError),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.c, -1), ValueError),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.c, 0, "1"), TypeError),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.c, 0, 2**63), ValueError),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.b), INVALID),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.c, 0, 0), INVALID),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.c, 0, -2), INVALID),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.c, tensor_num_per_layer=None), TypeError),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.c, tensor_num_per_layer=-1), ValueError),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.c, tensor_num_per_layer=0), INVALID),
    ("legacy", lambda t: t.manager.pull_cache(ld.CacheKey(2, 2**64 - 1), t.c), INVALID),
    ("legacy", lambda t: t.manager.pull_cache(ld.CacheKey(2, 1, 0, 1), t.c), INVALID),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.c, src_layer_range=[0]), TypeError),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.c, src_layer_range=range(0, 2, 2)), INVALID),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.c, dst_layer_range=range(-1, 1)), INVALID),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.c, dst_layer_range=range(0, 2**33)), ValueError),
    ("both", lambda t: t.manager.pull_cache(BY_ID, t.c), code("NOT_YET_LINK")),
    ("both", lambda t: t.manager.pull_cache(ld.CacheKeyByIdAndIndex(1, 1), t.c), INVALID),
    ("both", lambda t: t.manager.pull_cache(BY_ID, ld.Cache(99, DESC, [1, 2])), code("KV_CACHE_NOT_EXIST")),
    ("both", lambda t: t.manager.pull_blocks("key", t.b, [0], [0]), TypeError),
    ("both", lambda t: t.manager.pull_blocks(None, t.b, [0], [0]), AttributeError),
    ("both", lambda t: t.manager.pull_blocks(BLOCKS_KEY, "cache", [0], [0]), TypeError),
    ("both", lambda t: t.manager.pull_blocks(BLOCKS_KEY, None, [0], [0]), AttributeError),
    ("both", lambda t: t.manager.pull_blocks(BLOCKS_KEY, t.b, None, [0]), TypeError),
    ("both", lambda t: t.manager.pull_blocks(BLOCKS_KEY, t.b, [0], None), TypeError),
    ("both", lambda t: t.manager.pull_blocks(BLOCKS_KEY, t.b, range(1), [0]), TypeError),
    ("both", lambda t: t.manager.pull_blocks(BLOCKS_KEY, t.b, [0], ["0"]), TypeError),
    ("both", lambda t: t.manager.pull_blocks(BLOCKS_KEY, t.c, [None], [0]), TypeError),
    ("both", lambda t: t.manager.pull_blocks(BLOCKS_KEY, t.c, [0], [0]), INVALID),
    ("both", lambda t: t.manager.pull_blocks(BLOCKS_KEY, t.b, [0], []), INVALID),
    ("both", lambda t: t.manager.pull_blocks(BLOCKS_KEY, t.b, [0], [0], tensor_num_per_layer=0), INVALID),
    ("both", lambda t: t.manager.pull_blocks(BLOCKS_KEY, t.b, [], [0]), INVALID),
    ("both", lambda t: t.manager.pull_blocks(BY_ID, t.b, [0], [0]), INVALID),
    ("both", lambda t: t.manager.pull_blocks(ld.CacheKey(2, 2**64 - 1), t.b, [], [0]), INVALID),
    ("both", lambda t: t.manager.pull_blocks(ld.BlocksCacheKey(2), t.b, [0], [0]), code("NOT_YET_LINK")),
    ("both", lambda t: t.manager.pull_blocks(BLOCKS_KEY, t.b, [0], [0]), INVALID),
    ("both", lambda t: t.manager.pull_blocks(ld.BlocksCacheKey(None), t.b, [0], [0]), TypeError),
    (
        "both",
        lambda t: t.manager.pull_blocks(ld.BlocksCacheKey(2), GONE, [0], [0]),
        code("KV_CACHE_NOT_EXIST"),
    ),
]


@pytest.mark.parametrize(("mode", "call", "wanted"), PULL)
def test_pulls_refuse(get: Bench, legacy: Bench, mode: str, call: Call, wanted: Any) -> None:
    for name, bench in (("get", get), ("legacy", legacy)):
        if mode in (name, "both"):
            unchanged(bench, wanted, call)


@pytest.mark.parametrize("call", ["pull_cache", "pull_blocks"])
def test_an_unknown_argument_of_a_pull_is_named(get: Bench, call: str) -> None:
    arguments = (BY_ID, get.c) if call == "pull_cache" else (ld.BlocksCacheKey(2), get.b, [0], [0])
    with pytest.raises(TypeError, match="did you mean 'src_layer_range'") as caught:
        getattr(get.manager, call)(*arguments, src_layers_range=range(1))
    assert isinstance(caught.value, ld.LLMException)
    assert caught.value.status_code is INVALID


# ---------------------------------------------------------------------- pushes

PUSH: list[tuple[Call, Any]] = [
    (lambda t: t.manager.push_cache(ld.CacheKey(2, 1), t.c), TypeError),
    (lambda t: t.manager.push_cache(None, t.c), TypeError),
    (lambda t: t.manager.push_cache(BY_ID, None), TypeError),
    (lambda t: t.manager.push_cache(BY_ID, 1), TypeError),
    (lambda t: t.manager.push_cache(BY_ID, t.c, None), TypeError),
    (lambda t: t.manager.push_cache(BY_ID, t.c, 2**32), ValueError),
    (lambda t: t.manager.push_cache(BY_ID, t.b), INVALID),
    (lambda t: t.manager.push_cache(BY_ID, t.c, tensor_num_per_layer=0), INVALID),
    (lambda t: t.manager.push_cache(BY_ID, t.c, tensor_num_per_layer="2"), TypeError),
    (lambda t: t.manager.push_cache(BY_ID, t.c, 0, [0]), TypeError),
    (lambda t: t.manager.push_cache(BY_ID, t.c, 0, range(0)), INVALID),
    (lambda t: t.manager.push_cache(BY_ID, t.c, 0, range(0, 2, 2)), INVALID),
    (lambda t: t.manager.push_cache(BY_ID, t.c, 0, None, range(1, 1)), INVALID),
    (lambda t: t.manager.push_cache(BY_ID, t.c, 0, range(1), range(2)), INVALID),
    (lambda t: t.manager.push_cache(BY_ID, t.c, size=5), INVALID),
    (lambda t: t.manager.push_cache(BY_ID, t.c, size="5"), TypeError),
    # The vendor's engine moves nothing and calls it success.
    (lambda t: t.manager.push_cache(BY_ID, t.c, tensor_num_per_layer=3), INVALID),
    (lambda t: t.manager.push_cache(BY_ID, t.c), code("NOT_YET_LINK")),
    (lambda t: t.manager.push_cache(ld.CacheKeyByIdAndIndex(1, 1), t.c), code("NOT_YET_LINK")),
    (lambda t: t.manager.push_cache(BY_ID, ld.Cache(99, DESC, [1, 2])), code("KV_CACHE_NOT_EXIST")),
    (lambda t: t.manager.push_blocks(BY_ID, t.b, [0], [0]), TypeError),
    (lambda t: t.manager.push_blocks(None, t.b, [0], [0]), AttributeError),
    (lambda t: t.manager.push_blocks(BLOCKS_KEY, None, [0], [0]), AttributeError),
    (lambda t: t.manager.push_blocks(BLOCKS_KEY, 1, [0], [0]), TypeError),
    (lambda t: t.manager.push_blocks(BLOCKS_KEY, t.b, [0], None), TypeError),
    (lambda t: t.manager.push_blocks(BLOCKS_KEY, t.b, [0.0], [0]), TypeError),
    (lambda t: t.manager.push_blocks(BLOCKS_KEY, t.c, [0], [0]), INVALID),
    (lambda t: t.manager.push_blocks(BLOCKS_KEY, t.b, [0], []), INVALID),
    (lambda t: t.manager.push_blocks(BLOCKS_KEY, t.b, [0], [0], range(1), range(2)), INVALID),
    (lambda t: t.manager.push_blocks(BLOCKS_KEY, t.b, [0], [0], tensor_num_per_layer=4), INVALID),
    (lambda t: t.manager.push_blocks(ld.BlocksCacheKey(2), t.b, [0], [0]), code("NOT_YET_LINK")),
    (lambda t: t.manager.push_blocks(BLOCKS_KEY, t.b, [0], [0]), code("NOT_YET_LINK")),
]


@pytest.mark.parametrize(("call", "wanted"), PUSH)
def test_pushes_refuse(get: Bench, call: Call, wanted: Any) -> None:
    unchanged(get, wanted, call)


def test_without_get_mode_there_is_no_push(legacy: Bench) -> None:
    # Before anything else is looked at.
    unchanged(legacy, INVALID, lambda t: t.manager.push_cache(None, None))
    unchanged(legacy, INVALID, lambda t: t.manager.push_blocks(None, None))


# ---------------------------------------------------------------------- layer by layer


class Ready(ld.LayerSynchronizer):
    def synchronize_layer(self, layer_index: int, timeout_in_millis: int | None) -> bool:
        return True


KEYED = ld.TransferWithCacheKeyConfig(ld.BlocksCacheKey(2), range(1), range(1))
PLAIN = ld.TransferConfig(2, [1, 2])
LAYERS: list[tuple[Callable[[Any], tuple[Any, ...]], Any]] = [
    (lambda t: (None, Ready(), [KEYED]), TypeError),
    (lambda t: (1, Ready(), [KEYED]), TypeError),
    (lambda t: (t.h, Ready(), [KEYED]), INVALID),
    (lambda t: (t.b, Ready(), [KEYED], None, 5), TypeError),
    (lambda t: (t.b, Ready(), [KEYED], None, ["0"]), TypeError),
    (lambda t: (t.b, Ready(), [KEYED], None, [-1]), ValueError),
    (lambda t: (t.b, Ready(), [KEYED], [2**64], [0]), ValueError),
    (lambda t: (t.b, Ready(), [KEYED], [0], [0], "1"), TypeError),
    (lambda t: (t.b, Ready(), [KEYED], [0], [0], -1), ValueError),
    (lambda t: (t.b, Ready(), [KEYED], [0]), INVALID),
    (lambda t: (t.b, Ready(), [KEYED], [0], [0, 1]), INVALID),
    (lambda t: (t.c, Ready(), [KEYED], None, [0]), INVALID),
    (lambda t: (t.b, None, [KEYED]), TypeError),
    (lambda t: (t.b, lambda *_: True, [KEYED]), TypeError),
    (lambda t: (t.b, Ready(), None), TypeError),
    (lambda t: (t.b, Ready(), KEYED), TypeError),
    (lambda t: (t.b, Ready(), [PLAIN]), TypeError),
    (lambda t: (t.b, Ready(), [None]), TypeError),
    (lambda t: (t.b, Ready(), [KEYED], None, None, 5), INVALID),
    (lambda t: (t.b, Ready(), [ld.TransferWithCacheKeyConfig(BY_ID, range(1), range(1), 1)], [0], [0]), INVALID),
    (lambda t: (t.b, Ready(), [ld.TransferWithCacheKeyConfig(BY_ID, range(1, 2), range(1))]), INVALID),
]


@pytest.mark.parametrize(("arguments", "wanted"), LAYERS)
def test_a_transfer_by_layers_refuses(get: Bench, arguments: Callable[[Bench], Any], wanted: Any) -> None:
    unchanged(get, wanted, lambda t: t.manager.transfer_cache_async(*arguments(t)))


def test_a_transfer_by_layers_refuses_without_get_mode(legacy: Bench) -> None:
    unchanged(legacy, TypeError, lambda t: t.manager.transfer_cache_async(t.b, Ready(), [KEYED]))
    short = ld.TransferConfig(2, [1, 2, 3])
    unchanged(legacy, INVALID, lambda t: t.manager.transfer_cache_async(t.b, Ready(), [short]))
    # The range that was left out is filled in on the caller's object.
    assert short.src_layer_range == range(1)


def test_an_odd_cache_has_no_layers(get: Bench) -> None:
    cache = get.manager.register_blocks_cache(ONE, get.addrs[:1])
    refuse(INVALID, lambda: get.manager.transfer_cache_async(cache, Ready(), [KEYED]))
    get.manager.unregister_cache(cache.cache_id)


def test_what_goes_wrong_later_is_the_tasks_result(get: Bench) -> None:
    task = get.manager.transfer_cache_async(get.b, Ready(), [KEYED])
    assert task.get_results() == [code("NOT_YET_LINK")]
    assert task.synchronize() is code("NOT_YET_LINK")
    nothing = get.manager.transfer_cache_async(get.b, Ready(), [])
    assert (nothing.get_results(), nothing.synchronize()) == ([], ld.LLMStatusCode.LLM_SUCCESS)
    refuse(TypeError, lambda: task.synchronize("1"))
    refuse(ValueError, lambda: task.get_results(-1))


# ---------------------------------------------------------------------- within the process

LOCAL: list[tuple[Call, Any]] = [
    (lambda t: t.manager.copy_cache(1, t.c), TypeError),
    (lambda t: t.manager.copy_cache(t.c, 1), TypeError),
    (lambda t: t.manager.copy_cache(None, t.c), AttributeError),
    (lambda t: t.manager.copy_cache(t.c, None), AttributeError),
    (lambda t: t.manager.copy_cache(t.c, t.c, -1), ValueError),
    (lambda t: t.manager.copy_cache(t.c, t.c, 0, "1"), TypeError),
    (lambda t: t.manager.copy_cache(t.c, t.c, 0, 1, -1), ValueError),
    (lambda t: t.manager.copy_cache(t.c, t.c, 0, 1, 0, 2**63), ValueError),
    (lambda t: t.manager.copy_cache(t.b, t.c), INVALID),
    (lambda t: t.manager.copy_cache(t.c, t.b), INVALID),
    (lambda t: t.manager.copy_cache(t.c, t.c, 0, 1, 0, 0), INVALID),
    (lambda t: t.manager.copy_cache(t.c, t.c, 0, 1, 0, -1, "x"), TypeError),
    (lambda t: t.manager.copy_cache(t.c, t.c, 0, 1, 0, -1, 2**64), ValueError),
    (lambda t: t.manager.copy_cache(t.c, t.c, 4, 1), INVALID),
    (lambda t: t.manager.copy_cache(t.c, t.c, 0, 4), INVALID),
    (lambda t: t.manager.copy_cache(t.c, t.c, 0, 1, 32), INVALID),
    (lambda t: t.manager.copy_cache(t.c, t.c, 0, 1, 1, 32), INVALID),
    (lambda t: t.manager.copy_cache(t.c, ld.Cache(99, DESC, [1, 2])), code("KV_CACHE_NOT_EXIST")),
    (lambda t: t.manager.copy_blocks(None, {}), AttributeError),
    (lambda t: t.manager.copy_blocks(1, {}), TypeError),
    (lambda t: t.manager.copy_blocks(t.b, None), TypeError),
    (lambda t: t.manager.copy_blocks(t.b, []), TypeError),
    (lambda t: t.manager.copy_blocks(t.b, {"0": [1]}), TypeError),
    (lambda t: t.manager.copy_blocks(t.b, {0: 1}), TypeError),
    (lambda t: t.manager.copy_blocks(t.b, {0: ["1"]}), TypeError),
    (lambda t: t.manager.copy_blocks(t.c, {0: [1]}), INVALID),
    (lambda t: t.manager.copy_blocks(t.b, {0: [4]}), INVALID),
    (lambda t: t.manager.copy_blocks(t.b, {4: [0]}), INVALID),
    # A chain has no defined order, so it is refused.
    (lambda t: t.manager.copy_blocks(t.b, {0: [1], 1: [2]}), INVALID),
    (lambda t: t.manager.swap_blocks(1, t.b, {}), TypeError),
    (lambda t: t.manager.swap_blocks(None, t.b, {}), AttributeError),
    (lambda t: t.manager.swap_blocks(t.h, None, {}), AttributeError),
    (lambda t: t.manager.swap_blocks(t.c, t.h, {0: 0}), INVALID),
    (lambda t: t.manager.swap_blocks(t.h, t.b, [0]), TypeError),
    (lambda t: t.manager.swap_blocks(t.h, t.b, {"0": 0}), TypeError),
    (lambda t: t.manager.swap_blocks(t.h, t.b, {0: "0"}), TypeError),
    (lambda t: t.manager.swap_blocks(t.h, t.b, {4: 0}), INVALID),
    (lambda t: t.manager.swap_blocks(t.h, t.b, {0: 4}), INVALID),
    (lambda t: t.manager.swap_blocks(t.h, t.b, {-1: 0}), INVALID),
    (lambda t: t.manager.swap_blocks(t.h, t.h, {0: 1}), INVALID),
    (lambda t: t.manager.swap_blocks(t.b, t.b, {0: 1}), INVALID),
    (lambda t: t.manager.swap_blocks(cpu(2, 5, 16), t.b, {0: 0}), INVALID),
    (lambda t: t.manager.swap_blocks(cpu(1, 4, 32), t.b, {0: 0}), INVALID),
    # Nobody's memory, and no crash.
    (lambda t: t.manager.swap_blocks(cpu(2, 4, 32, 4096), t.b, {0: 0}), INVALID),
    (lambda t: t.manager.swap_blocks(t.h, t.b, {0: 1, 2: 1}), INVALID),
]


def cpu(count: int, rows: int, stride: int, address: int = 1) -> ld.Cache:
    desc = ld.CacheDesc(count, [rows, stride], ld.DataType.DT_UINT8, ld.Placement.HOST)
    return ld.Cache.create_cpu_cache(desc, [address + rows * stride * i for i in range(count)])


@pytest.mark.parametrize(("call", "wanted"), LOCAL)
def test_local_copies_refuse(get: Bench, call: Call, wanted: Any) -> None:
    unchanged(get, wanted, call)


def test_local_copies_of_nothing_succeed(get: Bench) -> None:
    get.manager.copy_blocks(get.b, {})
    get.manager.swap_blocks(get.h, get.b, {})


def test_rows_are_copied_from_an_offset(get: Bench) -> None:
    one, other = get.instance.cache(2, 3, 32), get.instance.cache(2, 5, 64, placement=ld.Placement.HOST)
    wanted = other.copy()
    for array, target in zip(one.arrays, wanted, strict=True):
        target[4, 8:32] = array[2, 8:32]
    get.manager.copy_cache(other.handle, one.handle, 4, 2, 8, req_id=1)
    assert all((array == was).all() for array, was in zip(other.arrays, wanted, strict=True))
    for array, target in zip(one.arrays, wanted, strict=True):
        target[0, :5] = array[0, :5]
    get.manager.copy_cache(other.handle, one.handle, size=5)
    assert all((array == was).all() for array, was in zip(other.arrays, wanted, strict=True))
    forget(get, one, other)


def test_blocks_are_copied_within_a_cache(get: Bench) -> None:
    cache = get.instance.cache(3, 8, 32, blocks=True)
    wanted = cache.copy()
    for array in wanted:
        array[[1, 2, 5]] = array[[0, 0, 7]]
    get.manager.copy_blocks(cache.handle, {0: [1, 2], 7: [5]})
    assert all((array == was).all() for array, was in zip(cache.arrays, wanted, strict=True))
    forget(get, cache)


@pytest.mark.parametrize("registered", [True, False])
def test_blocks_are_swapped_one_way(get: Bench, registered: bool) -> None:
    device = get.instance.cache(2, 6, 32, blocks=True)
    host = get.instance.cache(2, 4, 32, blocks=True, placement=ld.Placement.HOST)
    handle = host.handle
    if not registered:
        handle = ld.Cache.create_cpu_cache(host.handle.cache_desc, list(host.handle.tensor_addrs))
        get.manager.unregister_cache(host.handle.cache_id)
    before = host.copy()
    wanted = device.copy()
    for array, source in zip(wanted, before, strict=True):
        array[[5, 0, 1]] = source[[0, 1, 2]]
    get.manager.swap_blocks(handle, device.handle, {0: 5, 1: 0, 2: 1})
    assert all((array == was).all() for array, was in zip(device.arrays, wanted, strict=True))
    assert all((array == was).all() for array, was in zip(host.arrays, before, strict=True))
    get.manager.swap_blocks(device.handle, handle, {3: 3})
    assert all((there[3] == here[3]).all() for there, here in zip(host.arrays, device.arrays, strict=True))
    get.manager.unregister_cache(device.handle.cache_id)
    get.manager.unregister_cache(host.handle.cache_id)


def forget(bench: Bench, *caches: Cache) -> None:
    for cache in caches:
        bench.manager.unregister_cache(cache.handle.cache_id)


# ---------------------------------------------------------------------- after finalize

AFTER: list[tuple[Call, str]] = [
    (lambda t: t.manager.register_cache(DESC, t.addrs[:2]), "FAILED"),
    (lambda t: t.manager.register_blocks_cache(DESC, t.addrs[:2]), "FAILED"),
    (lambda t: t.manager.unregister_cache(1), "FAILED"),
    (lambda t: t.manager.allocate_cache(DESC), "FAILED"),
    (lambda t: t.manager.allocate_blocks_cache(DESC), "FAILED"),
    (lambda t: t.manager.deallocate_cache(t.c), "PARAM_INVALID"),
    (lambda t: t.manager.remove_cache_key(KEY), "PARAM_INVALID"),
    (lambda t: t.manager.pull_cache(BY_ID, t.c), "PARAM_INVALID"),
    (lambda t: t.manager.pull_blocks(ld.BlocksCacheKey(2), t.b, [0], [0]), "PARAM_INVALID"),
    (lambda t: t.manager.push_cache(BY_ID, t.c), "PARAM_INVALID"),
    (lambda t: t.manager.push_blocks(ld.BlocksCacheKey(2), t.b, [0], [0]), "PARAM_INVALID"),
    (lambda t: t.manager.transfer_cache_async(t.b, Ready(), [KEYED]), "PARAM_INVALID"),
    (lambda t: t.manager.copy_cache(t.c, t.c), "PARAM_INVALID"),
    (lambda t: t.manager.copy_blocks(t.b, {}), "PARAM_INVALID"),
    (lambda t: t.manager.swap_blocks(t.h, t.b, {0: 0}), "PARAM_INVALID"),
    (lambda t: t.manager.remap_registered_memory(ld.MemInfo(DEVICE, 1, 1)), "PARAM_INVALID"),
]


def test_a_manager_that_was_kept_after_finalize() -> None:
    bench = Bench(**GET)
    bench.instance.dist.finalize()
    assert not bench.manager._initialized
    for call, status in AFTER:
        with pytest.raises(ld.LLMException) as caught:
            call(bench)
        assert caught.value.status_code is code(status)
    # Its checks of types still come first.
    refuse(TypeError, lambda: bench.manager.unregister_cache("1"))
    bench.instance.dist.init({"llm.LocalCommRes": "", "cachefw.transports": "host"})
    assert bench.instance.dist.cache_manager is not bench.manager
    bench.manager = bench.instance.dist.cache_manager
    fresh = bench.manager.register_cache(DESC, bench.addrs[:2])
    assert fresh.cache_id == 1
    # A handle of the engine before has the same id, and is another cache.
    refuse(code("KV_CACHE_NOT_EXIST"), lambda: bench.manager.copy_cache(bench.c, bench.c, 0, 1))
    bench.instance.dist.finalize()


# ---------------------------------------------------------------------- signatures

SIGNATURES = {
    ld.LLMDataDist: {
        "__init__": "role, cluster_id",
        "init": "options",
        "finalize": "",
        "check_link_status": "remote_cluster_id",
        "link_clusters": "clusters, timeout=3000",
        "unlink_clusters": "clusters, timeout=3000, force=False",
        "link": "comm_name, cluster_rank_info, rank_table",
        "unlink": "comm_id",
        "query_register_mem_status": "comm_id",
        "switch_role": "role, switch_options=None",
    },
    CacheManager: {
        "register_cache": "cache_desc, addrs, cache_keys=(), remote_accessible=None",
        "register_blocks_cache": "cache_desc, addrs, blocks_cache_key=None, remote_accessible=None",
        "unregister_cache": "cache_id",
        "allocate_cache": "cache_desc, cache_keys=()",
        "allocate_blocks_cache": "cache_desc, blocks_cache_key=None",
        "deallocate_cache": "cache",
        "deallocate_blocks_cache": "cache",
        "remove_cache_key": "cache_key",
        "pull_cache": "cache_key, cache, batch_index=0, size=-1, **kwargs",
        "pull_blocks": "src_cache_key, dst_cache, src_blocks=(), dst_blocks=(), **kwargs",
        "push_cache": "dst_cache_key, src_cache, src_batch_index=0, src_layer_range=None, dst_layer_range=None, "
        "size=-1, tensor_num_per_layer=2",
        "push_blocks": "dst_cache_key, src_cache, src_blocks=(), dst_blocks=(), src_layer_range=None, "
        "dst_layer_range=None, tensor_num_per_layer=2",
        "copy_cache": "dst, src, dst_batch_index=0, src_batch_index=0, offset=0, size=-1, req_id=None",
        "copy_blocks": "cache, copy_block_info",
        "swap_blocks": "src_cache, dst_cache, src_to_dst",
        "transfer_cache_async": "src_cache, layer_synchronizer, transfer_configs, src_block_indices=None, "
        "dst_block_indices=None, dst_block_memory_size=None",
        "remap_registered_memory": "mem_infos",
        "check_cache_key": "cache_key",
        "set_is_call_linked": "",
    },
    ld.CacheDesc: {
        "__init__": "num_tensors, shape, data_type, placement=Placement.DEVICE, batch_dim_index=0, "
        "seq_len_dim_index=-1, kv_tensor_format=None",
    },
    ld.CacheKeyByIdAndIndex: {"__init__": "cluster_id, cache_id, batch_index=0"},
    ld.TransferConfig: {"__init__": "dst_cluster_id, dst_addrs, src_layer_range=None, src_batch_index=0"},
    ld.TransferWithCacheKeyConfig: {
        "__init__": "cache_key, src_layer_range=None, dst_layer_range=None, src_batch_index=0"
    },
    ld.CacheTask: {"synchronize": "timeout_in_millis=None", "get_results": "timeout_in_millis=None"},
    ld.LayerSynchronizer: {"synchronize_layer": "layer_index, timeout_in_millis"},
    ld.MemInfo: {"__init__": "mem_type, addr, size"},
}


@pytest.mark.parametrize(("cls", "name"), [(cls, name) for cls, calls in SIGNATURES.items() for name in calls])
def test_calls_have_the_vendors_signatures(cls: type, name: str) -> None:
    found = inspect.signature(getattr(cls, name)).parameters.values()
    shown = [
        f"{'**' if each.kind is each.VAR_KEYWORD else ''}{each.name}"
        + ("" if each.default is each.empty else f"={each.default!s}")
        for each in found
        if each.name != "self"
    ]
    assert ", ".join(shown) == SIGNATURES[cls][name]
