"""LLM-DataDist's transfers, byte by byte: pulls in both modes, pushes, transfers by layers, and keys used up."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from llm_datadist_kit import GET, HIXL, INVALID, LEGACY, LISTEN, OK, POOL, Cache, Instance, code, refuse

from cachefw.compat import llm_datadist as ld
from cachefw.compat.llm_datadist import llm_datadist_wrapper as wrapper

GONE = code("KV_CACHE_NOT_EXIST")
ABSENT = 2**64 - 1
MODES = {"get": GET, "legacy": LEGACY, "hixl": HIXL}


class Pair:
    """Two linked instances: 1 is here, 2 is there."""

    def __init__(self, here: Instance, there: Instance) -> None:
        self.here, self.there = here, there
        self.pull_blocks = here.manager.pull_blocks
        self.pull_cache = here.manager.pull_cache
        self.push_blocks = here.manager.push_blocks
        self.push_cache = here.manager.push_cache


def linked(stack: contextlib.ExitStack, mode: str) -> Pair:
    here, there = (Instance(n, **MODES[mode], **LISTEN, **POOL) for n in (1, 2))
    stack.callback(here.dist.finalize)
    stack.callback(there.dist.finalize)
    here.link(there)
    if mode == "hixl":
        there.link(here)
    return Pair(here, there)


@pytest.fixture(params=MODES)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        yield linked(stack, request.param)


@pytest.fixture(params=["get", "hixl"])
def get(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        yield linked(stack, request.param)


@pytest.fixture
def legacy() -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        yield linked(stack, "legacy")


def by_id(cache: Cache, row: int = 0) -> ld.CacheKeyByIdAndIndex:
    return ld.CacheKeyByIdAndIndex(2, cache.handle.cache_id, row)


def same(cache: Cache, wanted: list[np.ndarray]) -> None:
    for index, (array, was) in enumerate(zip(cache.arrays, wanted, strict=True)):
        assert (array == was).all(), f"tensor {index}"


KEY = ld.BlocksCacheKey(2)

# ---------------------------------------------------------------------- blocks to blocks

BLOCKS = [
    ([1, 2, 0], [2, 3, 0], {}, [(0, 0), (1, 1), (2, 2), (3, 3)]),
    ([0], [3], {"src_layer_range": range(1, 2), "dst_layer_range": range(0, 1)}, [(2, 0), (3, 1)]),
    (
        [3, 2],
        [0, 1],
        {"src_layer_range": range(1, 3), "dst_layer_range": range(2, 4), "tensor_num_per_layer": 1},
        [(1, 2), (2, 3)],
    ),
    # An empty range is every layer.
    ([0, 0], [1, 2], {"src_layer_range": range(0), "dst_layer_range": None}, [(0, 0), (1, 1), (2, 2), (3, 3)]),
    ((1,), (1,), {"tensor_num_per_layer": 4, "src_layer_range": range(1)}, [(0, 0), (1, 1), (2, 2), (3, 3)]),
]


@pytest.mark.parametrize(("src", "dst", "options", "tensors"), BLOCKS, ids=str)
def test_blocks_are_pulled(pair: Pair, src: Any, dst: Any, options: Any, tensors: list[tuple[int, int]]) -> None:
    there = pair.there.cache(4, 4, 32, blocks=True, key=KEY)
    here = pair.here.cache(4, 5, 32, blocks=True)
    wanted = here.copy()
    for source, target in tensors:
        wanted[target][list(dst)] = there.arrays[source][list(src)]
    pair.pull_blocks(KEY, here.handle, src, dst, **options)
    same(here, wanted)


def test_blocks_of_several_models_are_told_apart(pair: Pair) -> None:
    caches = {
        model: pair.there.cache(1, 4, 32, blocks=True, key=ld.BlocksCacheKey(0, model), fill=model)
        for model in (0, 1, 5)
    }
    here = pair.here.cache(1, 4, 32, blocks=True)
    for model in caches:
        pair.pull_blocks(ld.BlocksCacheKey(2, model), here.handle, [0], [0])
        assert (here.arrays[0][0] == model).all()
    refuse(GONE, lambda: pair.pull_blocks(ld.BlocksCacheKey(2, 9), here.handle, [0], [0]))


REFUSED_BLOCKS: list[tuple[Callable[[Pair, Cache], Any], Any]] = [
    (lambda p, c: p.pull_blocks(KEY, c.handle, [0, 1], [0]), INVALID),
    (lambda p, c: p.pull_blocks(KEY, c.handle, [4], [0]), INVALID),
    (lambda p, c: p.pull_blocks(KEY, c.handle, [0], [5]), INVALID),
    # A run that starts within the peer's tensors and ends past them.
    (lambda p, c: p.pull_blocks(KEY, c.handle, [2, 3, 4], [0, 1, 2]), INVALID),
    (lambda p, c: p.pull_blocks(KEY, c.handle, [-1], [0]), TypeError),
    (lambda p, c: p.pull_blocks(KEY, c.handle, [0], [-1]), TypeError),
    (lambda p, c: p.pull_blocks(KEY, c.handle, [0, 1], [2, 2]), INVALID),
    (lambda p, c: p.pull_blocks(KEY, c.handle, [0], [0], tensor_num_per_layer=3, src_layer_range=range(1)), INVALID),
    (lambda p, c: p.pull_blocks(KEY, c.handle, [0], [0], src_layer_range=range(3)), INVALID),
    (lambda p, c: p.pull_blocks(KEY, c.handle, [0], [0], dst_layer_range=range(1, 3)), INVALID),
    (lambda p, c: p.pull_blocks(KEY, c.handle, [0], [0], src_layer_range=range(1)), INVALID),
    (lambda p, c: p.pull_blocks(ld.CacheKeyByIdAndIndex(2, 99), c.handle, [], [0]), GONE),
    # Ids below 1 find no blocks cache by accident.
    (lambda p, c: p.pull_blocks(ld.CacheKeyByIdAndIndex(2, 0), c.handle, [], [0]), GONE),
    (lambda p, c: p.pull_blocks(ld.CacheKeyByIdAndIndex(2, -1), c.handle, [], [0]), GONE),
    (lambda p, c: p.pull_blocks(ld.CacheKey(2, 5), c.handle, [], [0]), GONE),
]


@pytest.mark.parametrize(("call", "wanted"), REFUSED_BLOCKS)
def test_pulls_of_blocks_that_cannot_be(pair: Pair, call: Callable[[Pair, Cache], Any], wanted: Any) -> None:
    pair.there.cache(4, 4, 32, blocks=True, key=KEY)
    here = pair.here.cache(4, 5, 32, blocks=True)
    before = here.copy()
    refuse(wanted, lambda: call(pair, here))
    same(here, before)


def test_blocks_of_another_size_or_number_are_refused(pair: Pair) -> None:
    pair.there.cache(2, 4, 32, blocks=True, key=KEY)
    for count, stride in ((2, 16), (2, 64), (3, 32)):
        here = pair.here.cache(count, 4, stride, blocks=True)
        before = here.copy()
        refuse(INVALID, lambda here=here: pair.pull_blocks(KEY, here.handle, [0], [0]))
        same(here, before)


# ---------------------------------------------------------------------- rows

ROWS = [
    (1, 2, {}, None),
    (3, 0, {"size": 5}, 5),
    (0, 1, {"size": 32}, 32),
    (2, 2, {"src_layer_range": range(1, 2), "dst_layer_range": range(0, 1)}, None),
]


@pytest.mark.parametrize(("row", "batch", "options", "size"), ROWS, ids=str)
def test_a_row_is_pulled(pair: Pair, row: int, batch: int, options: Any, size: int | None) -> None:
    there, here = pair.there.cache(4, 4, 32), pair.here.cache(4, 3, 32)
    wanted = here.copy()
    tensors = [(0, 2), (1, 3)] if "src_layer_range" in options else [(n, n) for n in range(4)]
    for target, source in tensors:
        wanted[target][batch, :size] = there.arrays[source][row, :size]
    pair.pull_cache(by_id(there, row), here.handle, batch, **options)
    same(here, wanted)


def test_a_smaller_row_here_takes_the_start_of_each_row_there(pair: Pair) -> None:
    there, here = pair.there.cache(1, 4, 48), pair.here.cache(1, 3, 32)
    wanted = here.copy()
    wanted[0][1] = there.arrays[0][3, :32]
    pair.pull_cache(by_id(there, 3), here.handle, 1)
    same(here, wanted)


REFUSED_ROWS: list[tuple[Callable[[Pair, Cache, Cache], Any], Any]] = [
    (lambda p, here, there: p.pull_cache(by_id(there, 4), here.handle), GONE),
    (lambda p, here, there: p.pull_cache(by_id(there), here.handle, 3), INVALID),
    (lambda p, here, there: p.pull_cache(by_id(there), here.handle, 0, 33), INVALID),
    (lambda p, here, there: p.pull_cache(ld.CacheKeyByIdAndIndex(2, 99), here.handle), GONE),
    (lambda p, here, there: p.pull_cache(ld.CacheKeyByIdAndIndex(2, 0), here.handle), GONE),
    (lambda p, here, there: p.pull_cache(ld.CacheKeyByIdAndIndex(2, -7), here.handle), GONE),
    (lambda p, here, there: p.pull_cache(by_id(there), p.here.cache(2, 3, 64).handle), INVALID),
    (lambda p, here, there: p.pull_cache(by_id(there), p.here.cache(3, 3, 32).handle), INVALID),
    (lambda p, here, there: p.pull_cache(by_id(p.there.cache(2, 4, 32, blocks=True)), here.handle), INVALID),
]


@pytest.mark.parametrize(("call", "wanted"), REFUSED_ROWS)
def test_pulls_of_rows_that_cannot_be(pair: Pair, call: Callable[[Pair, Cache, Cache], Any], wanted: Any) -> None:
    there, here = pair.there.cache(2, 4, 32), pair.here.cache(2, 3, 32)
    before = here.copy()
    refuse(wanted, lambda: call(pair, here, there))
    same(here, before)


# ---------------------------------------------------------------------- a row to blocks


def test_a_row_fills_blocks_in_order(pair: Pair) -> None:
    there, here = pair.there.cache(2, 3, 96), pair.here.cache(2, 4, 32, blocks=True)
    wanted = here.copy()
    for target, source in zip(wanted, there.arrays, strict=True):
        target[[3, 0, 2]] = source[1].reshape(3, 32)
    pair.pull_blocks(by_id(there, 1), here.handle, [], [3, 0, 2])
    same(here, wanted)


def test_a_row_that_ends_within_a_block_fills_it_in_part(pair: Pair) -> None:
    """The vendor's engine reads on into the next row, and past the tensor."""
    there, here = pair.there.cache(1, 2, 48), pair.here.cache(1, 4, 32, blocks=True)
    wanted = here.copy()
    wanted[0][3] = there.arrays[0][1, :32]
    wanted[0][0, :16] = there.arrays[0][1, 32:]
    pair.pull_blocks(by_id(there, 1), here.handle, [], [3, 0])
    same(here, wanted)
    refuse(INVALID, lambda: pair.pull_blocks(by_id(there, 1), here.handle, [], [0, 1, 2]))
    same(here, wanted)


def test_a_block_larger_than_a_row_is_refused(pair: Pair) -> None:
    there, here = pair.there.cache(1, 4, 16), pair.here.cache(1, 4, 32, blocks=True)
    refuse(INVALID, lambda: pair.pull_blocks(by_id(there), here.handle, [], [0]))


# ---------------------------------------------------------------------- what peers may reach


def test_what_is_not_for_peers_is_not_found(get: Pair) -> None:
    there = get.there.cache(2, 4, 32, remote_accessible=False)
    host = get.there.cache(2, 4, 32, placement=ld.Placement.HOST)
    here = get.here.cache(2, 4, 32)
    for cache in (there, host):
        refuse(GONE, lambda cache=cache: get.pull_cache(by_id(cache), here.handle))


@pytest.mark.parametrize("where", ["here", "there"])
def test_host_memory_is_pulled_without_get_mode(legacy: Pair, where: str) -> None:
    places = {name: ld.Placement.HOST if name == where else ld.Placement.DEVICE for name in ("here", "there")}
    there = legacy.there.cache(2, 4, 32, placement=places["there"])
    here = legacy.here.cache(2, 4, 32, placement=places["here"])
    wanted = here.copy()
    for target, source in zip(wanted, there.arrays, strict=True):
        target[0] = source[2]
    legacy.pull_cache(by_id(there, 2), here.handle)
    same(here, wanted)


# ---------------------------------------------------------------------- keys that are used up

DESC = ld.CacheDesc(4, [3, 32], ld.DataType.DT_UINT8)


def allocated(pair: Pair, keys: list[ld.CacheKey]) -> ld.Cache:
    return pair.there.manager.allocate_cache(DESC, keys)


def test_a_pull_uses_the_key_of_an_allocated_cache_up(legacy: Pair) -> None:
    keys = [ld.CacheKey(2, 1), ld.CacheKey(2, 2), ld.CacheKey(2, ABSENT)]
    cache = allocated(legacy, keys)
    here = legacy.here.cache(4, 3, 32)
    legacy.pull_cache(keys[0], here.handle, 1)
    refuse(GONE, lambda: legacy.pull_cache(keys[0], here.handle, 1))
    # Deallocated already, it lives until its last key is pulled.
    legacy.there.manager.deallocate_cache(cache)
    assert legacy.there.dist._engine.manager.caches
    legacy.pull_cache(keys[1], here.handle)
    assert not legacy.there.dist._engine.manager.caches
    again = allocated(legacy, keys)
    legacy.pull_cache(keys[0], here.handle)
    legacy.there.manager.deallocate_cache(again)


def test_a_key_is_used_up_by_its_last_layer(legacy: Pair) -> None:
    key = ld.CacheKey(2, 1)
    allocated(legacy, [key])
    here = legacy.here.cache(4, 3, 32)
    for layer in (0, 0, 1):
        ranges = {"src_layer_range": range(layer, layer + 1), "dst_layer_range": range(layer, layer + 1)}
        legacy.pull_cache(key, here.handle, **ranges)
    refuse(GONE, lambda: legacy.pull_cache(key, here.handle))


def test_a_key_is_used_up_by_a_pull_to_blocks_and_by_its_id(legacy: Pair) -> None:
    keys = [ld.CacheKey(2, 1), ld.CacheKey(2, 2)]
    cache = allocated(legacy, keys)
    blocks = legacy.here.cache(4, 3, 32, blocks=True)
    legacy.pull_blocks(keys[0], blocks.handle, [], [0])
    refuse(GONE, lambda: legacy.pull_blocks(keys[0], blocks.handle, [], [0]))
    here = legacy.here.cache(4, 3, 32)
    legacy.pull_cache(ld.CacheKeyByIdAndIndex(2, cache.cache_id, 1), here.handle)
    refuse(GONE, lambda: legacy.pull_cache(keys[1], here.handle))


def test_prefixes_and_registered_caches_keep_their_keys(legacy: Pair) -> None:
    prefix = ld.CacheKey(2, ABSENT, 0, 9)
    allocated(legacy, [prefix])
    named = ld.CacheKey(2, 5)
    there = legacy.there.cache(4, 3, 32, key=[ld.CacheKey(2, ABSENT), named])
    here = legacy.here.cache(4, 3, 32)
    for _ in range(2):
        legacy.pull_cache(prefix, here.handle)
        legacy.pull_cache(named, here.handle)
    assert (here.arrays[0][0] == there.arrays[0][1]).all()


def test_a_pull_that_fails_uses_nothing_up(legacy: Pair) -> None:
    key = ld.CacheKey(2, 1)
    allocated(legacy, [key])
    refuse(INVALID, lambda: legacy.pull_cache(key, legacy.here.cache(3, 3, 32).handle))
    legacy.pull_cache(key, legacy.here.cache(4, 3, 32).handle)


def test_in_get_mode_nothing_is_used_up(get: Pair) -> None:
    key = ld.CacheKey(2, 1)
    allocated(get, [key])
    blocks = get.here.cache(4, 3, 32, blocks=True)
    for _ in range(2):
        get.pull_blocks(key, blocks.handle, [], [0])


# ---------------------------------------------------------------------- pushes


def test_a_row_is_pushed(get: Pair) -> None:
    there, here = get.there.cache(4, 4, 32), get.here.cache(4, 3, 32)
    wanted = there.copy()
    for target, source in zip(wanted, here.arrays, strict=True):
        target[3] = source[1]
    get.push_cache(by_id(there, 3), here.handle, 1)
    same(there, wanted)
    wanted[3][0] = here.arrays[1][2]
    get.push_cache(by_id(there), here.handle, 2, range(1, 2), range(3, 4), -1, 1)
    same(there, wanted)


def test_blocks_are_pushed(get: Pair) -> None:
    there, here = get.there.cache(4, 4, 32, blocks=True, key=KEY), get.here.cache(4, 3, 32, blocks=True)
    wanted = there.copy()
    for target, source in zip(wanted, here.arrays, strict=True):
        target[[3, 0]] = source[[1, 2]]
    get.push_blocks(KEY, here.handle, [1, 2], [3, 0])
    same(there, wanted)
    for target, source in ((2, 0), (3, 1)):
        wanted[target][1] = here.arrays[source][0]
    get.push_blocks(KEY, here.handle, [0], [1], range(1), range(1, 2))
    same(there, wanted)


def test_a_smaller_cache_is_pushed_into_the_first_layers(get: Pair) -> None:
    there, here = get.there.cache(4, 4, 32, blocks=True, key=KEY), get.here.cache(2, 3, 32, blocks=True)
    wanted = there.copy()
    for target, source in zip(wanted, here.arrays, strict=False):
        target[2] = source[0]
    get.push_blocks(KEY, here.handle, [0], [2])
    same(there, wanted)


REFUSED_PUSHES: list[tuple[Callable[[Pair, Cache, Cache, Cache, Cache], Any], Any]] = [
    (lambda p, here, there, h, t: p.push_cache(by_id(there, 4), here.handle), INVALID),
    (lambda p, here, there, h, t: p.push_cache(by_id(there), here.handle, 3), INVALID),
    (lambda p, here, there, h, t: p.push_cache(by_id(t), here.handle), INVALID),
    (lambda p, here, there, h, t: p.push_cache(ld.CacheKeyByIdAndIndex(2, 99), here.handle), GONE),
    (lambda p, here, there, h, t: p.push_cache(ld.CacheKeyByIdAndIndex(2, 0), here.handle), GONE),
    # A larger row would overrun the row there.
    (lambda p, here, there, h, t: p.push_cache(by_id(there), p.here.cache(2, 3, 64).handle), INVALID),
    (lambda p, here, there, h, t: p.push_cache(by_id(there), here.handle, 0, range(1), range(1, 2)), INVALID),
    (lambda p, here, there, h, t: p.push_blocks(KEY, h.handle, [], [0]), INVALID),
    (lambda p, here, there, h, t: p.push_blocks(KEY, h.handle, [0, 1], [0]), INVALID),
    (lambda p, here, there, h, t: p.push_blocks(KEY, h.handle, [3], [0]), INVALID),
    (lambda p, here, there, h, t: p.push_blocks(KEY, h.handle, [0], [4]), INVALID),
    (lambda p, here, there, h, t: p.push_blocks(KEY, h.handle, [-1], [0]), TypeError),
    (lambda p, here, there, h, t: p.push_blocks(KEY, p.here.cache(2, 3, 16, blocks=True).handle, [0], [0]), INVALID),
    (lambda p, here, there, h, t: p.push_blocks(KEY, p.here.cache(4, 3, 32, blocks=True).handle, [0], [0]), INVALID),
    (lambda p, here, there, h, t: p.push_blocks(ld.BlocksCacheKey(2, 7), h.handle, [0], [0]), GONE),
]


@pytest.mark.parametrize(("call", "wanted"), REFUSED_PUSHES)
def test_pushes_that_cannot_be(get: Pair, call: Callable[..., Any], wanted: Any) -> None:
    there, here = get.there.cache(2, 4, 32), get.here.cache(2, 3, 32)
    t, h = get.there.cache(2, 4, 32, blocks=True, key=KEY), get.here.cache(2, 3, 32, blocks=True)
    before = [there.copy(), t.copy()]
    refuse(wanted, lambda: call(get, here, there, h, t))
    same(there, before[0])
    same(t, before[1])


# ---------------------------------------------------------------------- layer by layer


class Ready(ld.LayerSynchronizer):
    def __init__(self, at: dict[int, Any] | None = None) -> None:
        self.at = at or {}
        self.seen: list[tuple[int, Any]] = []

    def synchronize_layer(self, layer_index: int, timeout_in_millis: int | None) -> bool:
        self.seen.append((layer_index, timeout_in_millis))
        answer = self.at.get(layer_index, True)
        if isinstance(answer, threading.Event):
            return answer.wait(20)
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)


def keyed(key: Any, src: range, dst: range, row: int = 0) -> ld.TransferWithCacheKeyConfig:
    return ld.TransferWithCacheKeyConfig(key, src, dst, row)


def test_layers_go_where_they_are_meant_to(get: Pair) -> None:
    """Also from a later layer on, where the vendor's engine writes to a wrong one and its thread dies."""
    there, here = get.there.cache(8, 4, 32), get.here.cache(6, 3, 32)
    wanted = there.copy()
    for target, source in ((0, 2), (1, 3), (2, 4), (3, 5), (6, 4), (7, 5)):
        wanted[target][1 if target < 4 else 3] = here.arrays[source][2]
    ready = Ready()
    configs = [keyed(by_id(there, 1), range(1, 3), range(2), 2), keyed(by_id(there, 3), range(2, 3), range(3, 4), 2)]
    task = get.here.manager.transfer_cache_async(here.handle, ready, configs)
    assert task.get_results() == [OK, OK]
    assert task.synchronize(5000) is OK
    # A layer that nobody wants is not waited for, and one that two want is once.
    assert ready.seen == [(1, None), (2, None)]
    same(there, wanted)


def test_layers_of_blocks(get: Pair) -> None:
    there, here = get.there.cache(4, 4, 32, blocks=True, key=KEY), get.here.cache(4, 3, 32, blocks=True)
    wanted = there.copy()
    for target, source in zip(wanted, here.arrays, strict=True):
        target[[3, 1]] = source[[0, 2]]
    for size in (None, 0, 32):
        for array in there.arrays:
            array[[3, 1]] = 0
        task = get.here.manager.transfer_cache_async(
            here.handle, Ready(), [keyed(KEY, range(2), range(2))], [0, 2], [3, 1], size
        )
        assert task.get_results(10000) == [OK]
        same(there, wanted)


def test_a_blocks_cache_without_blocks_sends_its_first(get: Pair) -> None:
    there, here = get.there.cache(2, 4, 32, blocks=True, key=KEY), get.here.cache(2, 3, 32, blocks=True)
    wanted = there.copy()
    for target, source in zip(wanted, here.arrays, strict=True):
        target[0] = source[0]
    task = get.here.manager.transfer_cache_async(here.handle, Ready(), [keyed(KEY, range(1), range(1))])
    assert task.synchronize() is OK
    same(there, wanted)


def test_a_row_goes_to_blocks(get: Pair) -> None:
    there, here = get.there.cache(2, 4, 32, blocks=True, key=KEY), get.here.cache(2, 3, 64)
    wanted = there.copy()
    for target, source in zip(wanted, here.arrays, strict=True):
        target[[3, 0]] = source[0].reshape(2, 32)
    configs = [keyed(KEY, range(1), range(1))]
    task = get.here.manager.transfer_cache_async(here.handle, Ready(), configs, None, [3, 0], 32)
    assert task.get_results() == [OK]
    same(there, wanted)


def test_layers_go_to_addresses_without_get_mode(legacy: Pair) -> None:
    there, here = legacy.there.cache(4, 4, 32), legacy.here.cache(4, 3, 32)
    wanted = there.copy()
    for target, source in ((0, 2), (3, 3)):
        wanted[target][1] = here.arrays[source][2]
    addrs = there.handle.tensor_addrs
    config = ld.TransferConfig(2, [addrs[0] + 32, addrs[3] + 32], range(1, 2), 2)
    task = legacy.here.manager.transfer_cache_async(here.handle, Ready(), [config])
    assert task.get_results() == [OK]
    same(there, wanted)
    # Nobody's memory is not written to.
    outside = ld.TransferConfig(2, [addrs[0] + 100, 4096], range(1))
    assert legacy.here.manager.transfer_cache_async(here.handle, Ready(), [outside]).get_results() == [INVALID]
    same(there, wanted)


RESULTS: list[tuple[Any, Any]] = [
    ({1: False}, INVALID),
    ({0: ValueError("broken")}, code("FAILED")),
]


@pytest.mark.parametrize(("at", "status"), RESULTS, ids=str)
def test_a_layer_that_does_not_get_ready_is_a_result(get: Pair, at: dict[int, Any], status: ld.LLMStatusCode) -> None:
    """An exception in the synchronizer is success to the vendor's `synchronize`."""
    there, here = get.there.cache(4, 4, 32), get.here.cache(4, 3, 32)
    before = there.copy()
    task = get.here.manager.transfer_cache_async(here.handle, Ready(at), [keyed(by_id(there), range(2), range(2))])
    assert task.get_results() == [status]
    assert task.synchronize() is status
    same(Cache(there.handle, there.arrays[2:]), before[2:])


def test_each_destination_has_its_own_result(get: Pair) -> None:
    there, here = get.there.cache(2, 4, 32), get.here.cache(2, 3, 32)
    configs = [
        keyed(by_id(there), range(1), range(1)),
        keyed(ld.CacheKeyByIdAndIndex(2, 99), range(1), range(1)),
        keyed(ld.CacheKeyByIdAndIndex(9, 1), range(1), range(1)),
        keyed(by_id(there, 4), range(1), range(1)),
        keyed(by_id(there), range(1), range(1, 2)),
        keyed(ld.CacheKeyByIdAndIndex(2, 0), range(1), range(1)),
    ]
    task = get.here.manager.transfer_cache_async(here.handle, Ready(), configs)
    assert task.get_results() == [OK, GONE, code("NOT_YET_LINK"), INVALID, INVALID, GONE]
    assert task.synchronize() is GONE
    assert (there.arrays[0][0] == here.arrays[0][0]).all()


def test_waiting_in_vain_cancels_nothing(get: Pair) -> None:
    there, here = get.there.cache(2, 4, 32), get.here.cache(2, 3, 32)
    event = threading.Event()
    task = get.here.manager.transfer_cache_async(
        here.handle, Ready({0: event}), [keyed(by_id(there), range(1), range(1))]
    )
    started = time.monotonic()
    assert task.synchronize(20) is code("TIMEOUT")
    assert task.get_results(0) == [code("TIMEOUT")]
    assert time.monotonic() - started < 10
    event.set()
    assert task.synchronize() is OK


# ---------------------------------------------------------------------- below the Python layer


def test_the_native_modules_calls() -> None:
    there = Instance(2, **GET, **LISTEN)
    remote = there.cache(2, 4, 32, blocks=True, key=KEY)
    rows = there.cache(2, 4, 32)
    success = wrapper.kSuccess
    options = {
        "llm.EnableRemoteCacheAccessible": "1",
        "llm.MemPoolConfig": '{"memory_size": 1048576}',
        "cachefw.transports": "host",
    }
    arrays = [np.zeros((4, 32), np.uint8) for _ in range(6)]
    addrs = [int(array.ctypes.data) for array in arrays]
    assert wrapper.unregister_cache(1) == wrapper.kFailed
    assert wrapper.initialize_v2(1, options) == success
    try:
        assert wrapper.initialize_v2(1, options) == wrapper.kFailed
        status, (blocks, made) = wrapper.register_cache((2, 4, -1, [4, 32], 1, True), addrs[:2], [], True)
        assert (status, blocks, made) == (success, 1, [addrs[:2]])
        status, (plain, _) = wrapper.register_cache((2, 4, -1, [4, 32], 1, False), addrs[2:4], [], True)
        assert status == success
        assert wrapper.register_cache((2, 4, -1, [4, 32], 1, False), [0, 1], [], True)[0] == wrapper.kParamInvalid
        there_at = (2, 0, [(16777343, 0)], [(16777343, there.port)])
        key = (2, -1, 0, ABSENT, ABSENT, 0, True)
        param = (-1, 0, [1, 2], [0, 3], [], [], -1, -1, 2)
        assert wrapper.pull_cache_v2(blocks, key, param) == wrapper.kLLMNotYetLink
        assert wrapper.link_clusters_v2([there_at], 5000) == (success, [success])
        assert wrapper.link_clusters_v2([there_at], 5000) == (wrapper.kAlreadyLink, [wrapper.kAlreadyLink])
        assert wrapper.pull_cache_v2(blocks, key, param) == success
        assert all((a[[0, 3]] == b[[1, 2]]).all() for a, b in zip(arrays, remote.arrays, strict=False))
        row = (2, rows.handle.cache_id, 2, ABSENT, ABSENT, 0, False)
        assert wrapper.pull_cache_v2(plain, row, (-1, 1, [], [], [0, 1], [0, 1], -1, -1, 2)) == success
        assert all((a[1] == b[2]).all() for a, b in zip(arrays[2:], rows.arrays, strict=False))
        config = (blocks, 0, 0, [], 2, 0, 0, 1, 0, 2)
        assert wrapper.transfer_cache_v2(1, config, (0, [0], [0])) == success
        assert (remote.arrays[0][0] == arrays[0][0]).all()
        assert wrapper.copy_cache_v2((blocks, blocks, 0, 0, 0, 0, 0, [(0, 1), (0, 2)])) == success
        assert (arrays[0][1] == arrays[0][2]).all()
        assert wrapper.copy_cache_v2((plain, plain, 3, 1, 0, -1, 0, [])) == success
        assert (arrays[2][3] == arrays[2][1]).all()
        assert wrapper.swap_blocks_v2((-1, addrs[:2]), (-1, addrs[4:]), 32, 1, [(3, 1)]) == success
        assert (arrays[4][1] == arrays[0][3]).all()
        status, (own, _) = wrapper.allocate_cache_v2((1, 4, -1, [2, 8], 1, False), [(1, -1, 0, 5, ABSENT, 0, False)])
        assert status == success
        assert wrapper.remove_cache_key_v2((1, -1, 0, 5, ABSENT, 0, False)) == success
        assert wrapper.deallocate_cache_v2(own) == success
        assert wrapper.check_capacity_v2(1024) == success
        assert wrapper.check_capacity_v2(2**21) == wrapper.kLLMOutOfMemory
        assert wrapper.switch_role_v2("Prompt", {}) == wrapper.kLLMExistLink
        assert wrapper.unlink_clusters_v2([there_at], 5000, False) == (success, [success])
        assert wrapper.switch_role_v2("Prompt", {}) == success
        assert wrapper.query_register_mem_status(1) == (wrapper.kLLMNotYetLink, 2)
        assert wrapper.unlink(1) == wrapper.kLLMNotYetLink
        assert wrapper.link("x", {1: 0, 2: 1}, "{") == (wrapper.kLinKFailed, 0)
        assert wrapper.remap_registered_memory([(0, addrs[0], 128)]) == wrapper.kLLMNotYetLink
        assert wrapper.unregister_cache(blocks) == success
        with pytest.raises(TypeError):
            wrapper.link_clusters_v2([("2", 0, [], [])], 5000)
        assert wrapper.dict_to_vector({"a": "b"}) == [("a", "b")]
    finally:
        assert wrapper.finalize_v2() == success
        there.dist.finalize()
