"""Rows and blocks copied within a process, in host and device memory: what is copied, and what is refused before."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from cachefw import (
    BrokenError,
    BusyError,
    Cache,
    CacheDesc,
    ClosedError,
    DataType,
    MemoryKind,
    Placement,
    RequestError,
    UnsupportedOperation,
)

COUNT, ROWS, STRIDE = 3, 5, 48
HOST, DEVICE = Placement.HOST, Placement.DEVICE


@pytest.fixture
def manager(site, make_manager):
    """Host memory by one transport, device memory by another, which reaches host memory too."""
    site.install_memory("near", "[MemoryKind.HOST]")
    site.install_memory("far", "[MemoryKind.DEVICE]")
    return make_manager(["near", "far"])


@pytest.fixture
def held(manager):
    """Makes caches in either memory: the cache, and views of what its tensors hold."""

    def make(placement, *, blocks=True, rows=ROWS, stride=STRIDE, count=COUNT):
        desc = CacheDesc(count, (rows, stride), DataType.DT_UINT8, placement)
        cache = manager.allocate_blocks_cache(desc) if blocks else manager.allocate_cache(desc)
        # This "device" memory is ordinary memory.
        views = [np.ctypeslib.as_array((ctypes.c_uint8 * desc.size).from_address(a)) for a in cache.tensor_addrs]
        views = [view.reshape(rows, stride) for view in views]
        random = np.random.default_rng(cache.cache_id)
        for view in views:
            view[:] = random.integers(0, 256, view.shape, np.uint8)
        return cache, views

    return make


@pytest.fixture
def used(manager, monkeypatch):
    """Which transports copied."""
    names = []
    for name in manager.transports:
        transport = manager.transport(name)
        monkeypatch.setattr(
            transport, "copy", lambda batch, own=transport.copy, name=name: (names.append(name), own(batch))
        )
    return names


MIXES = [(HOST, HOST, "near"), (HOST, DEVICE, "far"), (DEVICE, HOST, "far"), (DEVICE, DEVICE, "far")]


@pytest.mark.parametrize(("into", "out_of", "by"), MIXES)
@pytest.mark.parametrize(("offset", "size"), [(0, -1), (0, 1), (7, -1), (7, 20), (47, -1)])
def test_part_of_a_row_is_copied_at_the_same_offset(manager, held, used, into, out_of, by, offset, size):
    target, theirs = held(into, blocks=False)
    source, mine = held(out_of, blocks=False)
    expected = [view.copy() for view in theirs]
    end = STRIDE if size == -1 else offset + size
    for array, view in zip(expected, mine, strict=True):
        array[4, offset:end] = view[2, offset:end]
    manager.copy_cache(target, source, 4, 2, offset, size)
    assert all((array == view).all() for array, view in zip(expected, theirs, strict=True))
    assert used == [by]


@pytest.mark.parametrize("placement", [HOST, DEVICE])
def test_blocks_are_copied_to_several(manager, held, used, placement):
    cache, views = held(placement)
    expected = [view.copy() for view in views]
    for array in expected:
        array[[0, 4]] = array[2]
        array[1] = array[3]
    manager.copy_blocks(cache, {2: [0, 4, 4, 2], 3: (1,)})
    assert all((array == view).all() for array, view in zip(expected, views, strict=True))
    manager.copy_blocks(cache, {})
    manager.copy_blocks(cache, {1: [1]})
    assert used == ["near" if placement is HOST else "far"]
    assert all((array == view).all() for array, view in zip(expected, views, strict=True))


@pytest.mark.parametrize(("into", "out_of"), [(HOST, DEVICE), (DEVICE, HOST)])
def test_swapping_copies_one_way(manager, held, used, into, out_of):
    target, theirs = held(into)
    source, mine = held(out_of, rows=7)
    kept, expected = [view.copy() for view in mine], [view.copy() for view in theirs]
    for array, view in zip(expected, mine, strict=True):
        array[[0, 3, 4]] = view[[6, 1, 2]]
    manager.swap_blocks(source, target, {6: 0, 1: 3, 2: 4})
    manager.swap_blocks(source, target, {})
    assert all((array == view).all() for array, view in zip(expected, theirs, strict=True))
    assert all((array == view).all() for array, view in zip(kept, mine, strict=True))
    assert used == ["far"]


def test_host_blocks_that_are_registered_nowhere_can_be_swapped(manager, held):
    device, views = held(DEVICE)
    arrays = [np.zeros((ROWS, STRIDE), np.uint8) for _ in range(COUNT)]
    desc = CacheDesc(COUNT, (ROWS, STRIDE), DataType.DT_UINT8, HOST)
    loose = Cache(-1, desc, tuple(array.ctypes.data for array in arrays), True, False)
    manager.swap_blocks(device, loose, {1: 0})
    assert all((array[0] == view[1]).all() and not array[1:].any() for array, view in zip(arrays, views, strict=True))
    with pytest.raises(ValueError, match="has 2 addresses; give one for each tensor"):
        manager.swap_blocks(device, Cache(-1, desc, loose.tensor_addrs[:2], True, False), {1: 0})


@pytest.mark.parametrize(
    ("args", "builtin", "words"),
    [
        ((5, 0), LookupError, "dst_batch_index 5: .* has rows 0 to 4"),
        ((0, 5), LookupError, "src_batch_index 5"),
        ((-1, 0), ValueError, "dst_batch_index must be at least 0"),
        ((None, 0), AttributeError, "dst_batch_index must be an int"),
        ((0, True), TypeError, "src_batch_index must be an int"),
        ((0, 1, 48), ValueError, "offset 48 .*not within a row"),
        ((0, 1, 40, 9), ValueError, "9 bytes from offset 40 are not within a row"),
        ((0, 1, -1), ValueError, "offset must be at least 0"),
        ((0, 1, 0, 0), ValueError, "size must be at least 1"),
        ((0, 1, 0, -2), ValueError, "size must be at least 1"),
    ],
)
def test_rows_that_cannot_be_copied_are_refused(manager, held, args, builtin, words):
    cache, views = held(HOST, blocks=False)
    before = [view.copy() for view in views]
    with pytest.raises(builtin, match=words) as caught:
        manager.copy_cache(cache, cache, *args)
    assert isinstance(caught.value, RequestError)
    assert caught.value.operation == "copy_cache"
    assert all((array == view).all() for array, view in zip(before, views, strict=True))


def test_a_row_onto_itself_is_no_copy(manager, held, used):
    cache, _ = held(HOST, blocks=False)
    manager.copy_cache(cache, cache, 1, 1)
    assert used == []


@pytest.mark.parametrize(
    ("mapping", "builtin", "words"),
    [
        (None, AttributeError, "src_to_dst must be a dict, not None"),
        ([(0, [1])], TypeError, "src_to_dst must be a dict"),
        ({0: 1}, TypeError, r"src_to_dst\[0\] must be a list of blocks"),
        ({0: None}, AttributeError, r"src_to_dst\[0\] must be a list of blocks"),
        ({"0": [1]}, TypeError, "must be an int"),
        ({0: [5]}, LookupError, "has blocks 0 to 4"),
        ({-1: [0]}, LookupError, "has blocks 0 to 4"),
        ({0: [2], 1: [2]}, ValueError, "block 2 more than once"),
        ({0: [1], 1: [2]}, ValueError, "of which another writes"),
        ({0: [1], 1: [0]}, ValueError, "of which another writes"),
    ],
)
def test_blocks_that_cannot_be_copied_are_refused(manager, held, mapping, builtin, words):
    cache, views = held(HOST)
    before = [view.copy() for view in views]
    with pytest.raises(builtin, match=words) as caught:
        manager.copy_blocks(cache, mapping)
    assert isinstance(caught.value, RequestError)
    assert caught.value.operation == "copy_blocks"
    assert all((array == view).all() for array, view in zip(before, views, strict=True))


@pytest.mark.parametrize(
    ("other", "mapping", "builtin", "words"),
    [
        ({"placement": HOST}, {0: 0}, ValueError, "are both in host memory"),
        ({"placement": DEVICE, "stride": 40}, {0: 0}, ValueError, "has 48 bytes, one of .* has 40"),
        ({"placement": DEVICE, "count": 2}, {0: 0}, ValueError, "unequal numbers of tensors"),
        ({"placement": DEVICE, "blocks": False}, {0: 0}, ValueError, "has no blocks; use copy_cache"),
        ({"placement": DEVICE}, {0: 5}, LookupError, r"dst_blocks\[0\] = 5"),
        ({"placement": DEVICE}, {5: 0}, LookupError, r"src_blocks\[0\] = 5"),
        ({"placement": DEVICE}, {0: 1, 2: 1}, ValueError, "block 1 more than once"),
        ({"placement": DEVICE}, {0: [1]}, TypeError, "must be an int"),
        ({"placement": DEVICE}, None, AttributeError, "must be a dict"),
    ],
)
def test_blocks_that_cannot_be_swapped_are_refused(manager, held, other, mapping, builtin, words):
    source, _ = held(HOST)
    target, views = held(**other)
    before = [view.copy() for view in views]
    with pytest.raises(builtin, match=words) as caught:
        manager.swap_blocks(source, target, mapping)
    assert caught.value.operation == "swap_blocks"
    assert all((array == view).all() for array, view in zip(before, views, strict=True))


def test_each_layout_has_its_call(manager, held):
    rows, _ = held(HOST, blocks=False)
    blocks, _ = held(HOST)
    with pytest.raises(ValueError, match=r"src .* is a blocks cache; use copy_blocks"):
        manager.copy_cache(rows, blocks)
    with pytest.raises(ValueError, match=r"dst .* is a blocks cache"):
        manager.copy_cache(blocks, rows)
    with pytest.raises(ValueError, match="has no blocks; use copy_cache"):
        manager.copy_blocks(rows, {0: [1]})
    manager.deallocate_cache(blocks)
    with pytest.raises(ClosedError):
        manager.copy_blocks(blocks, {0: [1]})


def test_what_no_transport_copies_is_refused_with_words(site, make_manager):
    site.install_memory("near", "[MemoryKind.HOST]")
    site.install_memory("far", "[MemoryKind.DEVICE]")
    near, both = make_manager(["near"]), make_manager(["far"])
    host, device = np.zeros(8, np.uint8), both.allocate(8, MemoryKind.DEVICE)
    with pytest.raises(UnsupportedOperation, match="no open transport copies host memory to device memory; open are n"):
        near.copy(device, host)
    with pytest.raises(UnsupportedOperation, match="copies host memory to host memory; open are far"):
        both.copy(host, np.ones(8, np.uint8))
    both.copy(device, np.ones(8, np.uint8))
    both.copy(host, device)
    assert host.all()


def test_pieces_of_one_copy_go_by_the_transports_that_can(manager, used):
    arrays = [np.arange(8, dtype=np.uint8), np.zeros(8, np.uint8), np.zeros(8, np.uint8)]
    device = manager.allocate(8, MemoryKind.DEVICE)
    manager.copy([device, arrays[1]], [arrays[0], arrays[0]])
    assert sorted(used) == ["far", "near"]
    manager.copy(arrays[2], device)
    assert all((array == arrays[0]).all() for array in arrays)
    # A bare region is what it is registered as.
    manager.register_memory(device)
    manager.copy(device.region, bytes(8))
    assert used[-1] == "far"


def test_a_failure_names_the_piece_of_the_call(manager):
    device = manager.allocate(8, MemoryKind.DEVICE)
    manager.transport("far").fail_next("move", after=1)
    targets = [np.zeros(8, np.uint8) for _ in range(4)]
    with pytest.raises(BrokenError, match="fails on request") as caught:
        manager.copy(targets, [bytes(8), device] * 2)
    assert caught.value.failed == (3,)


def test_memory_is_not_given_back_while_it_is_copied(manager, held, monkeypatch):
    cache, views = held(HOST)
    array = np.zeros(8, np.uint8)
    memory = manager.register_memory(array)
    near = manager.transport("near")
    refused = []

    def meanwhile(give_back, own=near.copy):
        def copy(batch):
            with pytest.raises(BusyError, match="a copy within this process uses this memory now"):
                give_back()
            refused.append(give_back)
            own(batch)

        monkeypatch.setattr(near, "copy", copy)

    meanwhile(lambda: manager.deallocate_cache(cache))
    manager.copy_blocks(cache, {0: [1]})
    assert all((view[0] == view[1]).all() for view in views)
    meanwhile(lambda: manager.unregister_memory(memory))
    manager.copy(memory.region, bytes(range(8)))
    assert array.tolist() == list(range(8))
    assert len(refused) == 2
    manager.unregister_memory(memory)
    manager.deallocate_cache(cache)
    assert manager.report() == ""
