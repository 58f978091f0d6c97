"""`register_memory`: registered once however many users there are, and caches that are views of it."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from cachefw import (
    Access,
    BusyError,
    CacheDesc,
    ClosedError,
    DataType,
    MemoryKind,
    MemoryRegion,
    Placement,
    RegistrationError,
    RequestError,
)
from cachefw.registry import MemoryState

A = 0x12D4_FA00_0000


def desc(num_tensors=1, size=4096):
    return CacheDesc(num_tensors, (1, size), DataType.DT_UINT8, Placement.HOST)


@pytest.fixture
def native(manager):
    """The regions that the transport holds natively now."""
    return lambda: sorted(region.address for region in manager.transport("memory")._registered.values())


# ---------------------------------------------------------------------- the same region again


def test_t02_the_same_region_twice_is_one_memory_with_two_users(manager, native):
    region = MemoryRegion(A, 4096, MemoryKind.DEVICE, Access.READ, 3)
    first = manager.register_memory(region, label="attn")
    second = manager.register_memory(MemoryRegion(A, 4096, MemoryKind.DEVICE, Access.READ, 3), label="indexer")
    assert second is first
    assert (first.users, native()) == (2, [A])
    manager.unregister_memory(first)
    assert (first.users, native(), first.state) == (1, [A], MemoryState.LIVE)
    manager.unregister_memory(second)
    assert (native(), manager.memories, first.state) == ([], [], MemoryState.CLOSED)
    with pytest.raises(ClosedError, match="memory 1 'attn' registered at"):
        manager.unregister_memory(first)


@pytest.mark.parametrize(
    "other",
    [
        MemoryRegion(A, 4096, MemoryKind.PINNED),
        MemoryRegion(A, 4096, MemoryKind.DEVICE, device=1),
        MemoryRegion(A, 4096, access=Access.READ),
    ],
    ids=["kind", "device", "access"],
)
def test_t02_the_same_range_of_another_kind_device_or_access_is_refused(manager, native, other):
    manager.register_memory(MemoryRegion(A, 4096))
    with pytest.raises(RegistrationError, match=r"core\.unique"):
        manager.register_memory(other)
    assert native() == [A]


def test_t02_the_same_region_is_not_opened_to_peers_behind_its_owner(manager):
    memory = manager.register_memory(MemoryRegion(A, 4096), remote_accessible=False, label="private")
    with pytest.raises(RegistrationError, match=r"to be reached by peers, and is memory 1 'private'.*, which is not"):
        manager.register_memory(MemoryRegion(A, 4096), remote_accessible=True)
    assert manager.register_memory(MemoryRegion(A, 4096)) is memory
    assert not memory.remote_accessible


# ---------------------------------------------------------------------- the same start, another length

WIDE, NARROW = 138_289_728, 137_683_520


@pytest.mark.parametrize(
    ("first", "second", "word"), [(WIDE, NARROW, "shorter"), (NARROW, WIDE, "longer")], ids=["narrower", "wider"]
)
def test_t03_base_with_another_length_is_not_registered_already(manager, native, first, second, word):
    manager.register_memory(MemoryRegion(A, first), label="attn")
    with pytest.raises(RegistrationError) as caught:
        manager.register_memory(MemoryRegion(A, second), label="indexer")
    (found,) = [finding for finding in caught.value.findings if finding.outcome.value == "refused"]
    assert caught.value.code == found.rule == "core.unique"
    assert isinstance(caught.value, ValueError)
    assert (found.facts["difference"], found.facts["other_length"]) == (606_208, first)
    assert f"memory 1 'attn' registered at {__file__}:" in found.message
    assert f"606,208 bytes {word}" in found.message
    assert "agree on it" in found.fix
    assert native() == [A]


def test_t03_base_adopted_by_the_wider_only(manager, native):
    wide = manager.register_memory(MemoryRegion(A, WIDE))
    assert manager.register_memory(MemoryRegion(A, NARROW), adopt=True) is wide
    assert manager.register_memory(MemoryRegion(A + 4096, 1), adopt=True) is wide
    assert (wide.users, native()) == (3, [A])
    for _ in range(3):
        manager.unregister_memory(wide)
    assert native() == []
    manager.register_memory(MemoryRegion(A, NARROW))
    with pytest.raises(RegistrationError, match=r"core\.unique"):
        manager.register_memory(MemoryRegion(A, WIDE), adopt=True)


@pytest.mark.parametrize(
    "other",
    [
        MemoryRegion(A, 16, MemoryKind.DEVICE, device=1),
        MemoryRegion(A, 16, MemoryKind.PINNED),
        MemoryRegion(A, 16, MemoryKind.DEVICE, Access.BOTH, 0),
    ],
    ids=["device", "kind", "access"],
)
def test_adopt_takes_no_other_device_kind_or_wider_rights(manager, other):
    manager.register_memory(MemoryRegion(A, 4096, MemoryKind.DEVICE, Access.READ, 0))
    with pytest.raises(RegistrationError, match=r"core\.unique"):
        manager.register_memory(other, adopt=True)


def test_adopt_of_a_region_without_bytes_is_refused(manager):
    manager.register_memory(MemoryRegion(A, 4096))
    with pytest.raises(RegistrationError, match=r"core\.size: the region's length is 0"):
        manager.register_memory(MemoryRegion(A + 16, 0), adopt=True)


# ---------------------------------------------------------------------- views


def test_t05_views_of_one_storage(manager, native, refused):
    storage = np.zeros(32 * 4096, np.uint8)
    base = storage.ctypes.data
    manager.register_memory(storage, label="kv")
    addrs = [base + i * 4096 for i in range(32)]
    plan = manager.plan(desc(32), addrs)
    assert plan.ok
    assert (plan.regions, plan.views) == ((), 32)
    assert "0 native regions, 0 bytes, 32 views of memory registered already" in str(plan)
    cache = manager.register_cache(desc(32), addrs)
    assert cache.tensor_addrs == tuple(addrs)
    assert native() == [base]
    ids, missing = manager.registry.table().find(np.array(addrs, np.uint64), np.full(32, 4096, np.uint64))
    assert (missing, set(ids.tolist())) == (-1, {1})
    found = refused(manager, desc(), [base + 31 * 4096 + 1]).one("core.unique")
    assert "it ends 1 byte past that end" in found.message
    assert f"[{base:#x}, {base + 32 * 4096:#x})" in found.message
    assert found.facts["other_length"] == 32 * 4096


def test_views_may_share_bytes_and_outlive_nothing(manager, native):
    memory = manager.register_memory(MemoryRegion(A, 8192))
    one = manager.register_cache(desc(2), [A, A + 1024])
    two = manager.register_blocks_cache(desc(), [A])
    with pytest.raises(BusyError, match="still holds caches 1, 2; unregister them first"):
        manager.unregister_memory(memory)
    manager.unregister_cache(one.cache_id)
    manager.unregister_cache(two.cache_id)
    assert (memory.users, native()) == (1, [A])
    manager.unregister_memory(memory)
    assert native() == []


def test_views_and_memory_of_its_own_in_one_cache(manager, native):
    memory = manager.register_memory(MemoryRegion(A, 8192))
    plan = manager.plan(desc(3), [A, A + 2**20, A + 4096])
    assert (plan.views, [region.address for region in plan.regions]) == (2, [A + 2**20])
    cache = manager.register_cache(desc(3), [A, A + 2**20, A + 4096])
    assert native() == [A, A + 2**20]
    manager.unregister_cache(cache.cache_id)
    assert (native(), memory.users) == ([A], 1)


def test_views_are_given_up_when_their_registration_fails(manager, native):
    memory = manager.register_memory(MemoryRegion(A, 8192))
    manager.transport("memory").fail_next("register")
    with pytest.raises(RegistrationError, match="could not register"):
        manager.register_cache(desc(2), [A, A + 2**20])
    assert (memory.users, native(), manager.caches) == (1, [A], {})
    manager.unregister_memory(memory)


def test_memory_of_a_cache_is_not_shared(manager, refused):
    cache = manager.register_cache(desc(), [A])
    assert refused(manager, desc(1, 16), [A]).rules == ["core.unique"]
    with pytest.raises(ClosedError, match="not registered by register_memory"):
        manager.unregister_memory(manager.memories[0])
    assert manager.caches == {1: cache}


@pytest.mark.parametrize(
    ("memory", "cache", "result"), [(True, None, True), (None, None, False), (True, False, False), (True, True, True)]
)
def test_views_are_reached_by_peers_like_their_memory(manager, memory, cache, result):
    manager.register_memory(MemoryRegion(A, 4096), remote_accessible=memory)
    assert manager.register_cache(desc(), [A], remote_accessible=cache).remote_accessible is result


def test_views_are_not_opened_to_peers_behind_their_memory(manager, refused):
    manager.register_memory(MemoryRegion(A, 4096), label="private")
    found = refused(manager, desc(), [A], remote_accessible=True).one("core.access")
    assert "memory 1 'private'" in found.message


@pytest.mark.parametrize(("kind", "reached"), [(MemoryKind.DEVICE, True), (MemoryKind.HOST, False)])
def test_peers_reach_device_memory_by_default_and_host_memory_on_request(manager, kind, reached):
    assert manager.register_memory(MemoryRegion(A, 1, kind)).remote_accessible is reached
    assert manager.register_memory(MemoryRegion(A + 1, 1, kind), remote_accessible=True).remote_accessible
    assert not manager.register_memory(MemoryRegion(A + 2, 1, kind), remote_accessible=False).remote_accessible


# ---------------------------------------------------------------------- handles and owners


@pytest.mark.parametrize("wrong", [A, A + 10, "memory 1", [1], 1, None])
def test_t17_unregister_takes_the_handle_and_nothing_else(manager, wrong):
    memory = manager.register_memory(MemoryRegion(A, 4096))
    with pytest.raises(AttributeError if wrong is None else TypeError, match="give the Memory that") as caught:
        manager.unregister_memory(wrong)
    assert isinstance(caught.value, RequestError)
    with pytest.raises(TypeError, match="give the Memory that"):
        manager.unregister_memory([memory, memory])
    assert manager.memories == [memory]


def test_t17_unregister_with_the_handle_of_another_manager(make_manager):
    one, two = make_manager(), make_manager()
    memory = one.register_memory(MemoryRegion(A, 4096))
    mine = two.register_memory(MemoryRegion(A, 4096))
    with pytest.raises(ClosedError):
        two.unregister_memory(memory)
    assert (one.memories, two.memories) == ([memory], [mine])


def test_the_source_is_kept_alive_until_it_is_given_back(manager):
    array = np.zeros(64, np.uint8)
    gone = weakref.ref(array)
    memory = manager.register_memory(array)
    del array
    gc.collect()
    assert gone() is not None
    manager.unregister_memory(memory)
    gc.collect()
    assert gone() is None


def test_the_source_is_kept_alive_where_a_region_came_first(manager):
    array = np.zeros(64, np.uint8)
    gone = weakref.ref(array)
    memory = manager.register_memory(MemoryRegion(array.ctypes.data, 64))
    assert manager.register_memory(array) is memory
    del array
    gc.collect()
    assert gone() is not None


@pytest.mark.parametrize("wrong", [1, "yes", np.zeros(2)])
def test_remote_accessible_is_true_false_or_none(manager, wrong):
    with pytest.raises(RegistrationError, match=r"core\.arguments: remote_accessible is") as caught:
        manager.register_memory(MemoryRegion(A, 4096), remote_accessible=wrong)
    assert isinstance(caught.value, TypeError)
    assert manager.memories == []


def test_labels_are_in_the_report(manager):
    manager.register_memory(MemoryRegion(A, 4096), label="weights")
    manager.register_cache(desc(), [A])
    assert manager.report().splitlines()[0].startswith("cache 1: 1 tensors of [1, 4096] DT_UINT8 (4,096 bytes each)")
    assert "memory 1 'weights' registered at" in manager.report()
    assert "live, 2 users" in manager.report()
