"""From what a caller has to a region: only memory that is one run of writable bytes, and never a copy of it."""

from __future__ import annotations

import ctypes
import mmap
from array import array
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefw import Allocation, MemoryKind, MemoryRegion, RequestError, align_within, aligned_empty
from cachefw.memory import region_of


class Tensor:
    """As much of a torch tensor as is asked for."""

    def __init__(self, shape, strides, itemsize=2, device="cpu", index=None, address=0x5000):
        self.shape = shape
        self.device = SimpleNamespace(type=device, index=index)
        self._strides, self._itemsize, self._address = strides, itemsize, address

    def stride(self):
        return self._strides

    def element_size(self):
        return self._itemsize

    def data_ptr(self):
        return self._address

    def contiguous(self):
        raise AssertionError("a copy was made")

    clone = cpu = contiguous


FOUR = np.arange(16, dtype=np.float32).reshape(4, 4)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (FOUR[:, 1], "is not contiguous in dimension 0: shape [4], strides [16] in bytes"),
        (FOUR.T, "is not contiguous in dimension 1: shape [4, 4], strides [4, 16] in bytes"),
        (np.asfortranarray(FOUR), "is not contiguous in dimension 1: shape [4, 4], strides [4, 16] in bytes"),
        (FOUR[::-1], "is not contiguous in dimension 0: shape [4, 4], strides [-16, 4] in bytes"),
        (FOUR[::2], "is not contiguous in dimension 0"),
        (np.broadcast_to(FOUR, (3, 4, 4)), "is expanded (stride 0) in dimension 0: shape [3, 4, 4], strides [0, 16,"),
        (FOUR[:0], "is empty (shape [0, 4], strides [16, 4] in bytes); there is nothing to register"),
        (b"", "is empty (shape [0]"),
        (b"four", "is read-only"),
        (memoryview(b"four"), "is read-only"),
        (memoryview(bytearray(8))[::2], "is not contiguous in dimension 0: shape [4], strides [2] in bytes"),
        (np.array([object()]), "holds Python objects"),
        (Tensor((4, 4), (1, 4)), "is not contiguous in dimension 1: shape [4, 4], strides [2, 8] in bytes"),
        (Tensor((4,), (4,)), "is not contiguous in dimension 0: shape [4], strides [8] in bytes"),
        (Tensor((3, 4), (0, 1)), "is expanded (stride 0) in dimension 0: shape [3, 4], strides [0, 2] in bytes"),
        (Tensor((0, 4), (4, 1)), "is empty (shape [0, 4], strides [8, 2] in bytes)"),
        (Tensor((4, 4), (4, 1), device="meta"), "is on the 'meta' device: it has a shape and no memory"),
    ],
)
def test_t19_tensor_that_is_not_one_run_of_writable_bytes_is_refused(manager, source, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the words are below
        manager.register_memory(source)
    assert isinstance(caught.value, RequestError)
    assert words in str(caught.value)
    assert manager.memories == []


@pytest.mark.parametrize("wrong", [5, "text", [1, 2], object(), 1.5, {}])
def test_t19_tensor_is_what_has_memory(wrong):
    with pytest.raises(TypeError, match="is no memory: give a MemoryRegion, an Allocation, a torch tensor") as caught:
        region_of(wrong)
    assert isinstance(caught.value, RequestError)


def test_t19_tensor_none_is_refused():
    with pytest.raises(AttributeError, match="the memory to register is None"):
        region_of(None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros((3, 4), np.float64),
        lambda: np.zeros((3, 4), np.float64)[1:],
        lambda: np.zeros((3, 1, 4)).transpose(1, 0, 2),
        lambda: np.array(5),
        lambda: np.zeros(3, "V7"),
    ],
    ids=["whole", "rows", "dimension of one", "scalar", "records"],
)
def test_t19_tensor_of_one_run_is_taken_where_it_lies(make):
    source = make()
    assert region_of(source) == MemoryRegion(source.__array_interface__["data"][0], source.nbytes)


@pytest.mark.parametrize("make", [lambda: bytearray(100), lambda: array("q", range(5)), lambda: mmap.mmap(-1, 4096)])
def test_buffers_are_taken_where_they_lie(make):
    source = make()
    region = region_of(source)
    assert region.length == memoryview(source).nbytes
    ctypes.memset(region.address, 0x5A, 1)
    assert memoryview(source).cast("B")[0] == 0x5A


@pytest.mark.parametrize(
    ("tensor", "region"),
    [
        (Tensor((2, 3), (3, 1)), MemoryRegion(0x5000, 12)),
        (Tensor((2, 1, 3), (3, 99, 1)), MemoryRegion(0x5000, 12)),
        (Tensor((), ()), MemoryRegion(0x5000, 2)),
        (Tensor((8,), (1,), device="npu", index=3), MemoryRegion(0x5000, 16, MemoryKind.DEVICE, device=3)),
        (Tensor((8,), (1,), device="cuda"), MemoryRegion(0x5000, 16, MemoryKind.DEVICE, device=0)),
    ],
)
def test_tensors_on_host_and_device(tensor, region):
    assert region_of(tensor) == region


def test_t19_tensor_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    whole = torch.zeros(4, 6, dtype=torch.float16)
    assert region_of(whole) == MemoryRegion(whole.data_ptr(), 48)
    assert region_of(whole[2:]) == MemoryRegion(whole.data_ptr() + 24, 24)
    for wrong in (whole[:, 1], whole.t(), whole[:1].expand(3, 6), whole[:0], torch.zeros(2, device="meta")):
        before = wrong.data_ptr()
        with pytest.raises(ValueError, match=r"is (not contiguous|expanded|empty|on the 'meta' device)"):
            region_of(wrong)
        assert wrong.data_ptr() == before


# ---------------------------------------------------------------------- what the caller says it is


def test_pinned_memory_is_believed():
    source = np.zeros(8, np.uint8)
    assert region_of(source, MemoryKind.PINNED).kind is MemoryKind.PINNED
    assert region_of(source, MemoryKind.HOST).kind is MemoryKind.HOST


def test_numbers_are_what_the_caller_says():
    assert region_of(MemoryRegion(1, 1), MemoryKind.DEVICE) == MemoryRegion(1, 1, MemoryKind.DEVICE)


def test_a_kind_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"declared as device memory, but this numpy\.ndarray lies in host memory"):
        region_of(np.zeros(8), MemoryKind.DEVICE)


@pytest.mark.parametrize("source", [np.zeros(8), MemoryRegion(1, 1)], ids=["array", "region"])
def test_a_kind_is_a_member(source):
    with pytest.raises(TypeError, match="kind must be"):
        region_of(source, "device memory")


# ---------------------------------------------------------------------- allocations


def test_allocations_are_given_back_once():
    given_back = []
    allocation = Allocation(0x1000, 64, MemoryKind.DEVICE, lambda: given_back.append(1))
    assert region_of(allocation) == MemoryRegion(0x1000, 64, MemoryKind.DEVICE)
    with allocation:
        assert "at 0x1000" in repr(allocation)
    allocation.close()
    assert (allocation.closed, given_back) == (True, [1])
    assert "closed" in repr(allocation)
    with pytest.raises(ValueError, match="it was closed; its memory is gone"):
        region_of(allocation)


def test_allocations_are_given_back_with_the_last_reference(manager):
    transport = manager.transport("memory")
    allocation = manager.allocate(64, alignment=4096)
    assert allocation.address % 4096 == 0
    view = np.asarray(allocation)[8:16]
    del allocation
    assert len(transport._allocated) == 1
    view[:] = 7
    del view
    assert transport._allocated == {}


def test_allocations_that_are_registered_are_kept(manager):
    memory = manager.register_memory(manager.allocate(64))
    assert len(manager.transport("memory")._allocated) == 1
    manager.unregister_memory(memory)
    assert manager.transport("memory")._allocated == {}


def test_device_allocations_have_no_array():
    with Allocation(0x1000, 64, MemoryKind.DEVICE, lambda: None) as allocation:
        assert not hasattr(allocation, "__array_interface__")


@pytest.mark.parametrize(
    ("size", "alignment", "builtin"),
    [(0, 1, ValueError), (True, 1, TypeError), (1.5, 1, TypeError), (None, 1, AttributeError), (8, 3, ValueError)],
)
def test_allocate_refuses_what_makes_no_sense(manager, size, alignment, builtin):
    with pytest.raises(builtin, match="must be") as caught:
        manager.allocate(size, alignment=alignment)
    assert isinstance(caught.value, RequestError)


# ---------------------------------------------------------------------- alignment

POWERS = st.integers(0, 40).map(lambda n: 2**n)


@given(st.integers(1, 2**64), st.integers(0, 2**48), st.integers(1, 2**48), POWERS)
def test_aligned_ranges_lie_inside_the_buffer(address, length, need, alignment):
    fits = [start for start in (-(-address // alignment) * alignment,) if start + need <= address + length]
    if fits:
        assert [align_within(address, length, need, alignment)] == fits
        return
    with pytest.raises(ValueError, match="no room") as caught:
        align_within(address, length, need, alignment)
    assert f"Allocate {need + alignment - 1:,} bytes" in str(caught.value)


@given(st.integers(1, 2**64), st.integers(1, 2**48), POWERS)
def test_the_advised_size_is_always_enough(address, need, alignment):
    start = align_within(address, need + alignment - 1, need, alignment)
    assert start % alignment == 0
    assert address <= start <= start + need <= address + need + alignment - 1


@pytest.mark.parametrize("alignment", [0, -1, 3, 6])
def test_alignments_are_powers_of_two(alignment):
    with pytest.raises(ValueError, match="alignment must be a power of two"):
        align_within(1, 1, 1, alignment)


@pytest.mark.parametrize("alignment", [1, 64, 4096, 2**21])
def test_aligned_memory_keeps_what_it_is_a_slice_of(alignment):
    memory = aligned_empty(100, alignment)
    assert (memory.ctypes.data % alignment, memory.nbytes, memory.dtype) == (0, 100, np.uint8)
    memory[:] = 7
    assert region_of(memory).length == 100


@pytest.mark.parametrize("size", [0, -5])
def test_aligned_memory_has_bytes(size):
    with pytest.raises(ValueError, match="size must be at least 1 byte"):
        aligned_empty(size, 64)
