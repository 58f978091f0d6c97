"""Twice the work costs twice as much, told by counting calls and bytes instead of by a clock."""

from __future__ import annotations

import gc
import sys
import tracemalloc

import numpy as np
import pytest

from cachefw import (
    BlocksCacheKey,
    CacheDesc,
    CacheManager,
    DataType,
    Limits,
    MemoryRegion,
    Placement,
    RegistrationError,
)

A = 0x7F00_0000_0000
STEP = 2**20
SIZES = (500, 1000, 2000)


def calls(function):
    """How many Python and C functions run in `function`."""
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def desc(count, size=4096):
    return CacheDesc(count, (1, size), DataType.DT_UINT8, Placement.HOST)


def addresses(count):
    return [A + i * STEP for i in range(count)]


def fresh(manager, count):
    return lambda: manager.plan(desc(count), addresses(count))


def beside_others(manager, count):
    manager.register_cache(desc(count), [address + STEP // 2 for address in addresses(count)])
    return fresh(manager, count)


def views(manager, count):
    manager.register_memory(MemoryRegion(A, count * STEP))
    return fresh(manager, count)


def duplicates(manager, count):
    return lambda: manager.plan(desc(count), [A] * count)


def taken(manager, count):
    manager.register_cache(desc(count), addresses(count))
    return fresh(manager, count)


def registered(manager, count):
    return lambda: manager.register_cache(desc(count), addresses(count))


def given_back(manager, count):
    number = manager.register_cache(desc(count), addresses(count)).cache_id
    return lambda: manager.unregister_cache(number)


@pytest.mark.parametrize(
    "prepare", [fresh, beside_others, views, duplicates, taken, registered, given_back], ids=lambda f: f.__name__
)
def test_work_grows_like_the_number_of_regions(prepare):
    counts = []
    for size in SIZES:
        with CacheManager((), limits=Limits(addresses=10_000)) as manager:
            counts.append(calls(prepare(manager, size)))
    assert counts[1] < 2.3 * counts[0]
    assert counts[2] < 2.3 * counts[1]


@pytest.mark.parametrize("size", SIZES)
def test_findings_are_as_many_as_what_is_wrong(size):
    with CacheManager((), limits=Limits(addresses=10_000)) as manager:
        plan = manager.plan(desc(size), [A] * size)
        assert len(plan.refused) == size - 1
        manager.register_cache(desc(size), addresses(size))
        with pytest.raises(RegistrationError) as caught:
            manager.register_cache(desc(size), addresses(size))
        assert len([f for f in caught.value.findings if f.outcome.value == "refused"]) == size


def test_looking_up_pieces_costs_a_few_calls_however_many_they_are():
    with CacheManager((), limits=Limits(addresses=10_000)) as manager:
        manager.register_cache(desc(1000), addresses(1000))
        table = manager.registry.table()
        costs = set()
        for size in (100, 10_000):
            pieces = A + np.arange(size, dtype=np.uint64) % 1000 * STEP
            costs.add(calls(lambda pieces=pieces: table.find(pieces, np.full(len(pieces), 64, np.uint64))))
        assert len(costs) == 1
        assert costs.pop() < 30


# ---------------------------------------------------------------------- memory of a pull

TENSORS, BLOCKS, STRIDE = 64, 1024, 16


@pytest.fixture
def cache_of_many_blocks(nodes):
    """Registers a blocks cache at both nodes; the pieces of pulling all its blocks are TENSORS * BLOCKS."""
    caches = []
    for node in nodes:
        memory = np.zeros(TENSORS * BLOCKS * STRIDE, np.uint8)
        node.cache_manager.register_memory(memory, remote_accessible=True)
        what = CacheDesc(TENSORS, (BLOCKS, STRIDE), DataType.DT_UINT8, Placement.HOST)
        addrs = [memory.ctypes.data + i * BLOCKS * STRIDE for i in range(TENSORS)]
        caches.append(node.cache_manager.register_blocks_cache(what, addrs, BlocksCacheKey(node.cluster_id)))
    return caches[0]


ORDERS = {
    "descending": lambda i: BLOCKS - 1 - i,
    "scattered": lambda i: i * 387 % BLOCKS,
    "some joined": lambda i: np.random.default_rng(1).permutation(BLOCKS),
    "half joined": lambda i: (i // 2 * 387 % (BLOCKS // 2)) * 2 + i % 2,
}


@pytest.mark.parametrize("transport", ["host"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_pull_takes_few_bytes_for_each_piece_and_no_copy_of_the_data(nodes, cache_of_many_blocks, order):
    source = np.arange(BLOCKS)
    target = ORDERS[order](source)
    pull = nodes[0].cache_manager.pull_blocks
    pull(BlocksCacheKey(2), cache_of_many_blocks, source[:2], target[:2])
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        transfer = pull(BlocksCacheKey(2), cache_of_many_blocks, source, target)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    # Before neighbours are joined.
    pieces = TENSORS * BLOCKS
    assert pieces // 2 <= transfer.pieces <= pieces
    assert transfer.nbytes == pieces * STRIDE
    assert peak <= 64 * pieces
