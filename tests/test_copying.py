"""`CacheManager.copy`: what it copies, and what it refuses before a byte moves."""

import numpy as np
import pytest

import cachefw
from cachefw.memory import MemoryRegion


@pytest.fixture(params=["memory", "host"])
def manager(request, make_manager):
    return make_manager([request.param])


def test_arrays_and_allocations_are_copied_byte_by_byte(manager):
    source = np.arange(10_000, dtype=np.uint16)
    target = np.zeros(20_000, np.uint8)
    manager.copy(target, source)
    assert (target.view(np.uint16) == source).all()
    with manager.allocate(20_000) as memory:
        manager.copy(memory, target)
        manager.copy(target, bytes([7]) * 20_000)
        assert (np.asarray(memory).view(np.uint16) == source).all()
        assert (target == 7).all()


def test_a_region_has_to_be_registered(manager):
    array = np.zeros(4096, np.uint8)
    region = MemoryRegion(array.ctypes.data + 100, 50)
    with pytest.raises(cachefw.RequestError, match=r"dst 0: .* is not in registered memory"):
        manager.copy(region, np.ones(50, np.uint8))
    memory = manager.register_memory(array)
    manager.copy(region, np.ones(50, np.uint8))
    assert array[99:151].tolist() == [0, *[1] * 50, 0]
    manager.unregister_memory(memory)


@pytest.mark.parametrize(
    ("dst", "src", "error", "text"),
    [
        (np.zeros(5, np.uint8), np.zeros(6, np.uint8), ValueError, "piece 0: 6 bytes do not fill 5"),
        ([np.zeros(5, np.uint8)], [], ValueError, "1 places to copy to and 0 to copy from"),
        ([], [], ValueError, "at least one"),
        (None, np.zeros(5, np.uint8), AttributeError, "is None"),
        (5, np.zeros(5, np.uint8), TypeError, "is no memory"),
        (np.zeros((4, 4), np.uint8)[:, 1], np.zeros(4, np.uint8), ValueError, "is not contiguous"),
    ],
)
def test_what_cannot_be_copied_is_refused(manager, dst, src, error, text):
    with pytest.raises(error, match=text) as caught:
        manager.copy(dst, src)
    assert isinstance(caught.value, cachefw.RequestError)


def test_a_byte_is_written_once(manager):
    array = np.zeros(100, np.uint8)
    with pytest.raises(ValueError, match="write the same bytes"):
        manager.copy([array[:60], array[50:]], [np.ones(60, np.uint8), np.ones(50, np.uint8)])
    assert not array.any()


def test_a_byte_that_is_read_is_not_written_in_the_same_call(manager):
    array = np.arange(100, dtype=np.uint8)
    for dst, src in ((array[10:60], array[:50]), ([array[50:60], array[:10]], [array[:10], array[90:]])):
        with pytest.raises(ValueError, match="of which another writes"):
            manager.copy(dst, src)
    assert (array == np.arange(100)).all()
    manager.copy([array, array[:5]][:1], [array])
    manager.copy([array[:10], array[20:30]], [array[10:20], array[10:20]])
    assert array[:30].tolist() == [*range(10, 20)] * 3


def test_without_a_transport_that_copies_it_says_so(make_manager):
    with pytest.raises(
        cachefw.UnsupportedOperation, match="no open transport copies host memory to host memory; open are none"
    ):
        make_manager([]).copy(np.zeros(5, np.uint8), np.zeros(5, np.uint8))
