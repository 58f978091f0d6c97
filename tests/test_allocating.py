"""Caches in memory of the manager's own, names that are taken away, and memory that is mapped anew."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

from cachefw import (
    ABSENT_ID,
    BlocksCacheKey,
    BrokenError,
    BusyError,
    CacheDesc,
    CacheKey,
    ClosedError,
    DataType,
    Limits,
    MemoryKind,
    MemoryRegion,
    Node,
    NotFoundError,
    Operation,
    OutOfMemoryError,
    Placement,
    RegistrationError,
    RequestError,
    UnsupportedOperation,
)
from cachefw.pools import Pool

HOST, DEVICE = Placement.HOST, Placement.DEVICE


def desc(tensors=2, shape=(4, 100), placement=HOST):
    return CacheDesc(tensors, shape, DataType.DT_UINT8, placement)


@pytest.fixture
def kinds(site, make_manager):
    """A manager for host and for device memory, each by a transport of its own."""
    site.install_memory("near", "[MemoryKind.HOST]")
    site.install_memory("far", "[MemoryKind.DEVICE]")
    return make_manager(["near", "far"])


def made(manager):
    """How many allocations each transport has out."""
    gc.collect()
    return {name: len(manager.transport(name)._allocated) for name in manager.transports}


# ---------------------------------------------------------------------- allocating


@pytest.mark.parametrize("placement", [HOST, DEVICE])
@pytest.mark.parametrize("blocks", [False, True])
def test_a_cache_is_one_region_of_the_kind_asked_for(kinds, placement, blocks):
    if blocks:
        cache = kinds.allocate_blocks_cache(desc(3, placement=placement), BlocksCacheKey(1, 4))
    else:
        cache = kinds.allocate_cache(desc(3, placement=placement), [CacheKey(1, 7)])
    (memory,) = kinds.memories
    assert memory.region.kind is (MemoryKind.DEVICE if placement is DEVICE else MemoryKind.HOST)
    assert memory.region.address == cache.tensor_addrs[0]
    assert np.diff(cache.tensor_addrs).tolist() == [512, 512]
    assert cache.is_blocks_cache is blocks
    assert cache.remote_accessible
    assert kinds.caches == {cache.cache_id: cache}
    kinds.deallocate_cache(cache if blocks else cache.cache_id)
    assert kinds.report() == ""
    assert made(kinds) == {"near": 0, "far": 0}
    for again in (cache, cache.cache_id):
        with pytest.raises(NotFoundError, match="is allocated, or no longer"):
            kinds.deallocate_cache(again)


def test_addresses_of_allocated_caches_are_not_counted(make_manager):
    manager = make_manager(limits=Limits(addresses=4))
    manager.allocate_cache(desc(10))
    arrays = [np.zeros((4, 100), np.uint8) for _ in range(4)]
    manager.register_cache(desc(4), arrays)
    manager.allocate_blocks_cache(desc(10))
    with pytest.raises(RegistrationError, match="5 addresses exceed the limit of 4: 1 new, 4 held"):
        manager.register_cache(desc(1), [np.zeros((4, 100), np.uint8)])


@pytest.mark.parametrize(
    ("args", "builtin", "rule"),
    [
        ((None,), AttributeError, "core.arguments"),
        (("desc",), TypeError, "core.arguments"),
        ((desc(0),), ValueError, "core.count"),
        ((desc(2, (4, 0)),), ValueError, "core.size"),
        ((desc(2, ()),), ValueError, "core.size"),
        ((desc(), None), AttributeError, "core.arguments"),
        ((desc(), [CacheKey(1, 7)] * 2), ValueError, "core.keys"),
        ((desc(), [CacheKey(1, number) for number in range(5)]), ValueError, "core.keys"),
        ((desc(), [CacheKey(1, 1, prefix_id=2)]), ValueError, "core.keys"),
        ((desc(), [CacheKey(1, 99)]), ValueError, "core.keys"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_allocated(manager, args, builtin, rule):
    manager.allocate_cache(desc(), [CacheKey(1, 99)])
    before = made(manager)
    with pytest.raises(builtin) as caught:
        manager.allocate_cache(*args)
    assert isinstance(caught.value, RegistrationError)
    assert caught.value.operation == "allocate_cache"
    assert [f.rule for f in caught.value.findings if f.outcome.value == "refused"] == [rule]
    assert made(manager) == before


def test_placeholders_keep_rows_free(manager):
    free = CacheKey(1, ABSENT_ID)
    manager.allocate_cache(desc(), [free, free, CacheKey(1, 5)])
    manager.allocate_blocks_cache(desc(), BlocksCacheKey(1, 0))


def test_a_registered_cache_is_not_deallocated(manager):
    cache = manager.register_cache(desc(1), [np.zeros((4, 100), np.uint8)])
    with pytest.raises(ValueError, match="was made by register_cache; give it back by unregister_cache"):
        manager.deallocate_cache(cache)
    for wrong, builtin in ((None, AttributeError), ("1", TypeError)):
        with pytest.raises(builtin, match="give a Cache or its id"):
            manager.deallocate_cache(wrong)


def test_memory_that_there_is_not_is_said(make_manager, kinds):
    manager = make_manager(settings={"memory": {"limit": 4096}})
    with pytest.raises(OutOfMemoryError):
        manager.allocate_cache(desc(8, (4, 1000)))
    assert manager.report() == ""
    near = make_manager(["near"])
    with pytest.raises(UnsupportedOperation, match="allocates device memory"):
        near.allocate_cache(desc(placement=DEVICE))


def test_a_cache_that_cannot_be_registered_leaves_no_memory(manager):
    manager.transport("memory").fail_next("register")
    with pytest.raises(RegistrationError, match="could not register"):
        manager.allocate_cache(desc())
    assert manager.report() == ""
    assert made(manager) == {"memory": 0}


def test_deallocating_what_a_transfer_uses_is_refused_and_done_later(nodes, transport):
    if transport != "memory":
        pytest.skip("only this transport can hold a transfer")
    one, two = (node.cache_manager for node in nodes)
    there = two.allocate_cache(desc(), [CacheKey(2, 1)])
    here = one.allocate_cache(desc())
    one.transport("memory").pause()
    transfer = one.pull_cache(CacheKey(2, 1), here, wait=False)
    with pytest.raises(BusyError):
        one.deallocate_cache(here)
    one.transport("memory").resume()
    transfer.result(30)
    one.deallocate_cache(here)
    two.deallocate_cache(there)
    assert one.report() == two.report() == ""


# ---------------------------------------------------------------------- reserving


def test_caches_come_from_what_was_set_aside(kinds):
    kinds.reserve(20_000, HOST, 4096)
    first, second = kinds.allocate_cache(desc(4)), kinds.allocate_cache(desc(9))
    (memory,) = kinds.memories
    assert memory.region.length == 16384
    assert first.tensor_addrs[0] == memory.region.address
    assert second.tensor_addrs[0] == memory.region.address + 4096
    with pytest.raises(OutOfMemoryError, match="of 16,384 bytes 4,096 are free, 4,096 in one run") as caught:
        kinds.allocate_cache(desc(9))
    assert caught.value.facts["size"] == 8192
    kinds.deallocate_cache(first)
    kinds.deallocate_cache(second)
    whole = kinds.allocate_blocks_cache(desc(32))
    assert whole.tensor_addrs[0] == memory.region.address
    # Of the other kind nothing was set aside.
    kinds.allocate_cache(desc(1, placement=DEVICE))
    kinds.reserve(4096, HOST, 1024)
    assert kinds.allocate_cache(desc(1)).tensor_addrs[0] != memory.region.address


def test_what_a_failed_registration_took_is_free_again(kinds, monkeypatch):
    kinds.reserve(4096, HOST, 4096)

    def fail(*args, **more):
        raise BrokenError("it fails on request")

    with monkeypatch.context() as patched:
        patched.setattr(kinds._registrar, "register", fail)
        with pytest.raises(BrokenError):
            kinds.allocate_cache(desc(1, (1, 8)))
    kinds.allocate_cache(desc(1, (1, 8)))
    with pytest.raises(OutOfMemoryError):
        kinds.allocate_cache(desc(1, (1, 8)))


@pytest.mark.parametrize(
    ("args", "builtin", "words"),
    [
        ((0,), ValueError, "at least one page"),
        ((None,), TypeError, "must be ints"),
        ((2**20, 1), TypeError, "placement must be a Placement"),
        ((2**20, HOST, 3000), ValueError, "power of two from 1024"),
        ((2**20, HOST, 512), ValueError, "power of two from 1024"),
    ],
)
def test_what_cannot_be_set_aside_is_refused(kinds, args, builtin, words):
    with pytest.raises(builtin, match=words) as caught:
        kinds.reserve(*args)
    assert isinstance(caught.value, RequestError)
    assert kinds.report() == ""


def test_device_memory_is_set_aside_before_linking(site, kinds):
    transports = ["near", "far"]
    with Node(1, "127.0.0.1:0", transports=transports) as one, Node(2, transports=transports) as two:
        one.cache_manager.reserve(2**20)
        two.link(one.address)
        with pytest.raises(RegistrationError, match=r"set it aside before by reserve\(size\)") as caught:
            two.cache_manager.allocate_cache(desc(placement=DEVICE))
        assert caught.value.code == "core.order"
        cache = one.cache_manager.allocate_cache(desc(placement=DEVICE), [CacheKey(1, 7)])
        two.links[0].sync()
        assert [published.cache_id for published in two.links[0].caches] == [cache.cache_id]
        two.cache_manager.allocate_cache(desc())


def test_a_pool_is_whole_again_whatever_the_order(manager):
    random = np.random.default_rng(0)
    memory = manager.register_memory(np.zeros(64 * 1024, np.uint8))
    pool = Pool(memory, 1024)
    taken: list[tuple[int, int]] = []
    for _ in range(500):
        if taken and random.random() < 0.5:
            pool.give_back(*taken.pop(int(random.integers(len(taken)))))
        else:
            size = int(random.integers(1, 9000))
            try:
                taken.append((pool.take(size), size))
            except OutOfMemoryError:
                continue
        ends = sorted((start, start + -(-size // 1024) * 1024) for start, size in taken)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
        assert pool.free == 64 * 1024 - sum(end - start for start, end in ends)
    for part in taken:
        pool.give_back(*part)
    assert pool.take(64 * 1024) == memory.region.address


# ---------------------------------------------------------------------- names


def test_a_name_that_is_taken_away_is_gone_at_the_peer(nodes, tensors):
    one, two = (node.cache_manager for node in nodes)
    here = tensors(2, 2, 8)
    target = one.register_cache(here.desc, here.arrays)
    source = two.allocate_cache(desc(2, (2, 8)), [CacheKey(2, 5), CacheKey(2, prefix_id=6)])
    one.pull_cache(CacheKey(2, 5), target)
    assert two.remove_cache_key(CacheKey(77, 5))
    with pytest.raises(NotFoundError, match="no cache with req_id 5"):
        one.pull_cache(CacheKey(2, 5), target)
    one.pull_cache(CacheKey(2, prefix_id=6), target)
    assert not two.remove_cache_key(CacheKey(2, 5))
    # The name is free for another cache.
    other = two.allocate_cache(desc(2, (2, 8)), [CacheKey(2, 5)])
    one.pull_cache(CacheKey(2, 5), target)
    two.deallocate_cache(other)
    with pytest.raises(NotFoundError):
        one.pull_cache(CacheKey(2, 5), target)
    two.deallocate_cache(source)
    with pytest.raises(NotFoundError, match="it has published nothing"):
        one.pull_cache(CacheKey(2, prefix_id=6), target)


def test_a_named_cache_can_be_left_until_its_last_name_is_gone(nodes, tensors):
    one, two = (node.cache_manager for node in nodes)
    here = tensors(2, 2, 8)
    target = one.register_cache(here.desc, here.arrays)
    source = two.allocate_cache(desc(2, (2, 8)), [CacheKey(2, 5), CacheKey(2, 6)])
    two.deallocate_cache(source, keep_named=True)
    one.pull_cache(CacheKey(2, 6), target)
    two.remove_cache_key(CacheKey(2, 5))
    one.pull_cache(CacheKey(2, 6), target)
    two.remove_cache_key(CacheKey(2, 6))
    assert two.report() == ""
    with pytest.raises(NotFoundError):
        one.pull_cache(CacheKey(2, 6), target)
    unnamed = two.allocate_cache(desc())
    two.deallocate_cache(unnamed, keep_named=True)
    assert two.report() == ""


@pytest.mark.parametrize(("key", "builtin"), [(None, AttributeError), (5, TypeError)])
def test_only_keys_are_names(manager, key, builtin):
    with pytest.raises(builtin, match="give a CacheKey or a BlocksCacheKey"):
        manager.remove_cache_key(key)
    assert not manager.remove_cache_key(BlocksCacheKey(1))


# ---------------------------------------------------------------------- mapping anew


@pytest.fixture
def devices(site, leaves_nothing):
    """Two linked nodes with device memory, each with a cache in it that is named."""
    site.install_memory("far", "[MemoryKind.DEVICE]")
    with Node(1, transports=["far"]) as one, Node(2, "127.0.0.1:0", transports=["far"]) as two:
        caches = [
            node.cache_manager.allocate_cache(desc(placement=DEVICE), [CacheKey(node.cluster_id, 1)])
            for node in (one, two)
        ]
        yield one, two, caches


def test_memory_is_registered_anew_and_peers_learn_of_it(devices):
    one, two, (here, there) = devices
    with pytest.raises(NotFoundError, match="no link exists"):
        two.cache_manager.remap_registered_memory(two.cache_manager.memories)
    link = one.link(two.address)
    (memory,) = two.cache_manager.memories
    (mine,) = one.cache_manager.memories
    before = [memory.memory_id, memory.registered["far"].token]
    prepared = [
        node.links[0].prepare(way, local.tensor_addrs[0], remote.tensor_addrs[0], 8)
        for node, local, remote in ((one, here, there), (two, there, here))
        for way in (Operation.READ, Operation.WRITE)
    ]
    part = MemoryRegion(memory.region.address + 10, 5, MemoryKind.DEVICE)
    two.cache_manager.remap_registered_memory([part, memory])
    assert memory.memory_id != before[0]
    assert memory.registered["far"].token != before[1]
    assert [published.memory_id for published in link.memories] == [memory.memory_id]
    one.cache_manager.pull_cache(CacheKey(2, 1), here)
    two.cache_manager.push_cache(CacheKey(1, 1), there)
    for old in prepared:
        with pytest.raises((RuntimeError, ConnectionError), match="prepare again"):
            old.post()
    assert mine.memory_id == 1
    two.cache_manager.deallocate_cache(there)
    assert two.cache_manager.report() == ""


def test_a_transport_that_does_not_register_again_is_named(devices):
    one, two, (here, there) = devices
    one.link(two.address)
    two.cache_manager.transport("far").fail_next("register")
    with pytest.raises(RegistrationError, match="could not register"):
        two.cache_manager.remap_registered_memory(two.cache_manager.memories)
    with pytest.raises(RequestError, match="out of reach"):
        one.cache_manager.pull_cache(CacheKey(2, 1), here)
    two.cache_manager.deallocate_cache(there)
    assert two.cache_manager.report() == ""


@pytest.mark.parametrize(
    ("regions", "builtin", "words"),
    [
        ([], ValueError, "no region is given"),
        (None, AttributeError, "region 0 must be a MemoryRegion or a Memory, not None"),
        ([5], TypeError, "region 0 must be a MemoryRegion or a Memory"),
        (MemoryRegion(4096, 8), ValueError, "only device memory is mapped anew"),
        (MemoryRegion(0, 8, MemoryKind.DEVICE), ValueError, "has to begin at 1 or later"),
        (MemoryRegion(4096, 0, MemoryKind.DEVICE), ValueError, "at least 1 byte"),
        (MemoryRegion(4096, 8, MemoryKind.DEVICE), LookupError, "does not lie in one registered region"),
    ],
)
def test_what_cannot_be_mapped_anew_is_refused(devices, regions, builtin, words):
    one, two, _ = devices
    one.link(two.address)
    with pytest.raises(builtin, match=words) as caught:
        two.cache_manager.remap_registered_memory(regions)
    assert isinstance(caught.value, RequestError)


def test_a_closed_manager_does_nothing_more(manager):
    manager.close()
    for call in (
        lambda: manager.allocate_cache(desc()),
        lambda: manager.reserve(2**20),
        lambda: manager.deallocate_cache(1),
        lambda: manager.remove_cache_key(CacheKey(1, 1)),
        lambda: manager.remap_registered_memory(MemoryRegion(1, 1, MemoryKind.DEVICE)),
        lambda: manager.copy_blocks(None, {}),
    ):
        with pytest.raises(ClosedError):
            call()
