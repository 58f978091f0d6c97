"""Tensors, arrays and buffers in the place of addresses: what is taken from them, and what is refused with words."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import weakref

import numpy as np
import pytest

from cachefw import (
    BlocksCacheKey,
    CacheDesc,
    DataType,
    MemoryKind,
    MemoryRegion,
    Operation,
    Placement,
    RegistrationError,
    RequestError,
)
from cachefw.memory import region_of

HALF, BYTES = DataType.DT_FLOAT16, DataType.DT_UINT8
SHAPE = (4, 8)


def desc(count=1, data_type=HALF, placement=Placement.HOST, shape=SHAPE):
    return CacheDesc(count, shape, data_type, placement)


class Shown:
    """A tensor of some library: all that it has is DLPack, of the old or the new form."""

    def __init__(self, held, device=(1, 0), *, versioned=True):
        self.held = held
        self.device = device
        self.versioned = versioned

    def __dlpack__(self, **options):
        if options and not self.versioned:
            raise TypeError("unexpected keyword argument")
        return self.held.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


# ---------------------------------------------------------------------- what is taken


def kinds_of_source():
    buffer = bytearray(64)
    half = np.zeros(SHAPE, np.float16)
    yield "array", half, half.ctypes.data, HALF
    yield "slice of rows", (wide := np.zeros((9, 8), np.float16))[2:6], wide.ctypes.data + 32, HALF
    yield "bytearray", buffer, ctypes.addressof(ctypes.c_char.from_buffer(buffer)), HALF
    yield "memoryview", memoryview(buffer), ctypes.addressof(ctypes.c_char.from_buffer(buffer)), HALF
    mapped = mmap.mmap(-1, 4096)
    yield "mmap", mapped, ctypes.addressof(ctypes.c_char.from_buffer(mapped)), HALF
    shorts = array.array("H", range(32))
    yield "array.array", shorts, shorts.buffer_info()[0], HALF
    native = (ctypes.c_uint16 * 32)()
    yield "ctypes", native, ctypes.addressof(native), HALF
    yield "region", MemoryRegion(half.ctypes.data, 64), half.ctypes.data, HALF
    yield "DLPack", Shown(half), half.ctypes.data, HALF
    yield "DLPack of old", Shown(half, versioned=False), half.ctypes.data, HALF
    yield "numpy's address", np.uint64(half.ctypes.data), half.ctypes.data, HALF


SOURCES = list(kinds_of_source())


@pytest.mark.parametrize(("source", "address", "kind"), [each[1:] for each in SOURCES], ids=[s[0] for s in SOURCES])
def test_the_address_is_taken_from_it(manager, source, address, kind):
    assert manager.plan(desc(data_type=kind), [source]).ok
    cache = manager.register_cache(desc(data_type=kind), [source])
    assert cache.tensor_addrs == (address,)
    assert [(m.region.address, m.region.length) for m in manager.memories] == [(address, 64)]


@pytest.mark.parametrize("blocks", [False, True])
def test_it_lives_as_long_as_its_cache(manager, blocks):
    held = [np.zeros(SHAPE, np.float16) for _ in range(2)]
    gone = [weakref.ref(each) for each in held]
    register = manager.register_blocks_cache if blocks else manager.register_cache
    cache = register(desc(2), held)
    del held
    gc.collect()
    assert all(each() is not None for each in gone)
    manager.unregister_cache(cache.cache_id)
    gc.collect()
    assert all(each() is None for each in gone)


def test_a_view_of_registered_memory_lives_as_long_as_its_cache(manager):
    whole = np.zeros((2, *SHAPE), np.float16)
    gone = weakref.ref(whole)
    memory = manager.register_memory(MemoryRegion(whole.ctypes.data, whole.nbytes))
    cache = manager.register_blocks_cache(desc(2), list(whole), BlocksCacheKey(1))
    del whole
    gc.collect()
    assert gone() is not None
    assert len(manager.memories) == 1
    manager.unregister_cache(cache.cache_id)
    gc.collect()
    assert gone() is None
    manager.unregister_memory(memory)


def test_many_views_of_one_storage_are_one_region(manager):
    storage = np.zeros((32, *SHAPE), np.float16)
    manager.register_memory(storage)
    cache = manager.register_cache(desc(32), list(storage))
    assert len(manager.memories) == 1
    assert cache.tensor_addrs == tuple(storage.ctypes.data + i * 64 for i in range(32))
    past = MemoryRegion(storage.ctypes.data + storage.nbytes - 63, 64)
    with pytest.raises(RegistrationError, match="it ends 1 byte past that end"):
        manager.register_cache(desc(), [past])


def test_registered_memory_and_allocations_stand_for_themselves(manager):
    made = manager.allocate(200)
    memory = manager.register_memory(made)
    cache = manager.register_cache(desc(), [memory])
    assert cache.tensor_addrs == (made.address,)
    del made
    gc.collect()
    assert manager.transport("memory")._allocated
    manager.unregister_cache(cache.cache_id)


# ---------------------------------------------------------------------- what is refused


READ_ONLY = np.zeros(SHAPE, np.float16)
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("source", "builtin", "words"),
    [
        (np.zeros((4, 16), np.float16)[:, ::2], ValueError, r"not contiguous in dimension 1: shape \[4, 8\], strides"),
        (np.zeros((4, 16), np.float16)[:, :8], ValueError, r"not contiguous in dimension 0: shape \[4, 8\], strides"),
        (np.zeros((8, 4), np.float16).T, ValueError, r"not contiguous .*strides \[2, 8\] in bytes"),
        (np.zeros(SHAPE, np.float16, order="F"), ValueError, "not contiguous"),
        (np.broadcast_to(np.zeros(8, np.float16), SHAPE), ValueError, r"is expanded \(stride 0\) in dimension 0"),
        (np.zeros((0, 8), np.float16), ValueError, r"is empty \(shape \[0, 8\]"),
        (READ_ONLY, ValueError, "is read-only"),
        (bytes(64), ValueError, "is read-only"),
        (np.zeros((4, 7), np.float16), ValueError, r"has 56 bytes, and a tensor of \[4, 8\] DT_FLOAT16 has 64 bytes"),
        (bytearray(63), ValueError, "has 63 bytes, and a tensor"),
        (np.zeros(SHAPE, np.float32), ValueError, "has elements of 4 bytes, and those of DT_FLOAT16 have 2 bytes"),
        (np.zeros(64, np.uint8), ValueError, "has elements of 1 byte, and those of DT_FLOAT16 have 2 bytes"),
        (Shown(np.zeros(SHAPE, np.float64)), ValueError, "has elements of 8 bytes"),
        (Shown(np.zeros((8, 4), np.float16).T), ValueError, "not contiguous"),
        (
            MemoryRegion(4096, 64, MemoryKind.DEVICE),
            ValueError,
            "is device memory, and the placement of cache_desc is H",
        ),
        (np.array([None] * 32), ValueError, "holds Python objects"),
        ("0x1000", TypeError, "is '0x1000'"),
        (object(), TypeError, "give the tensor, or its start address as an int"),
        (None, AttributeError, "is None"),
    ],
)
def test_what_is_no_tensor_of_the_description_is_refused(manager, refused, source, builtin, words):
    import re

    error = refused(manager, desc(), [source]).error
    assert isinstance(error, builtin)
    assert re.search(words, str(error)), str(error)


def test_everything_that_is_wrong_is_said_at_once(manager, refused):
    fine, twice = np.zeros(SHAPE, np.float16), np.zeros(SHAPE, np.float16)
    wrong = [fine, fine.T, bytes(64), twice, twice, 0]
    assert sorted(refused(manager, desc(6), wrong).rules) == [
        "core.address",
        "core.source",
        "core.source",
        "core.unique",
    ]


def test_a_tensor_that_cannot_be_shown_is_refused():
    class Odd:
        def __dlpack__(self, **options):
            return "no capsule"

    class Shy:
        def __dlpack__(self, **options):
            raise BufferError("it needs its gradient")

    for source, words in ((Odd(), "no DLPack capsule"), (Shy(), "it needs its gradient")):
        with pytest.raises(ValueError, match=words) as caught:
            region_of(source)
        assert isinstance(caught.value, RequestError)


def test_a_read_only_tensor_by_dlpack_may_be_read():
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":
        pytest.skip("this numpy cannot say by DLPack that an array is read-only")
    with pytest.raises(ValueError, match="is read-only"):
        region_of(Shown(READ_ONLY))
    assert region_of(Shown(READ_ONLY), writable=False) == MemoryRegion(READ_ONLY.ctypes.data, 64)


# ---------------------------------------------------------------------- reads and writes


@pytest.fixture
def ends(nodes):
    """A linked pair: the link, 64 bytes here, and 64 there that the peer published."""
    here, there = np.zeros(64, np.uint8), np.arange(64, dtype=np.uint8)
    nodes[0].cache_manager.register_memory(here)
    nodes[1].cache_manager.register_memory(there, remote_accessible=True)
    return nodes[0].links[0], here, there


def test_reads_and_writes_take_tensors(ends):
    link, here, there = ends
    far = there.ctypes.data
    link.read(here, far)
    assert (here == there).all()
    link.read([here[:4], here.ctypes.data + 8, memoryview(here)[20:24]], [far + 10, far + 30, far + 50], [4, 2, 3])
    assert here[:4].tolist() == [10, 11, 12, 13]
    assert here[8:10].tolist() == [30, 31]
    assert here[20:24].tolist() == [50, 51, 52, 23]
    assert link.read([here[40:42], here[50:53].view()], [far, far]).nbytes == 5
    here[:] = 7
    link.write(here[:5], far + 1)
    assert there[:7].tolist() == [0, 7, 7, 7, 7, 7, 6]


def test_what_is_read_only_may_be_sent_and_not_filled(ends):
    link, here, there = ends
    here[:] = 9
    shown = here[:8]
    shown.flags.writeable = False
    link.write(shown, there.ctypes.data)
    assert there[:9].tolist() == [9] * 8 + [8]
    with pytest.raises(ValueError, match="is read-only"):
        link.read(shown, there.ctypes.data)


def test_tensors_are_kept_until_the_transfer_is_over(ends):
    link, here, there = ends
    view = here.view()
    gone = weakref.ref(view)
    prepared = link.prepare(Operation.READ, view, there.ctypes.data)
    del view
    gc.collect()
    assert gone() is not None
    prepared.post()
    del prepared
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("local", "lengths", "builtin", "words"),
    [
        (lambda here: here, [65], ValueError, r"lengths\[0\] is 65, and local_addrs\[0\] has 64 bytes"),
        (lambda here: [here[:2], here[4:6]], [2, 3], ValueError, r"lengths\[1\] is 3, and local_addrs\[1\] has 2"),
        (lambda here: [here[:2], here.ctypes.data + 4], None, ValueError, "1 local addresses are plain; give lengths"),
        (lambda here: here.ctypes.data, None, AttributeError, "lengths is None"),
        (lambda here: here[::2], None, ValueError, "not contiguous"),
        (lambda here: [here[:2], None], [2, 2], AttributeError, r"local_addrs\[1\] must be an int"),
        (lambda here: np.zeros(64, np.uint8), None, ValueError, "not in registered memory"),
        (lambda here: 1.5, [1], TypeError, "must be an int"),
    ],
)
def test_what_cannot_be_moved_is_refused(ends, local, lengths, builtin, words):
    link, here, there = ends
    remote = [there.ctypes.data] * (2 if isinstance(local(here), list) else 1)
    with pytest.raises(builtin, match=words) as caught:
        link.read(local(here), remote, lengths)
    assert isinstance(caught.value, RequestError)
    assert not here.any()


def test_a_tensor_without_storage_is_refused():
    class Fake:
        device = type("Device", (), {"type": "cpu", "index": None})()
        shape = (4, 8)

        def element_size(self):
            return 2

        def stride(self):
            return (8, 1)

        def data_ptr(self):
            raise RuntimeError("a fake tensor has no storage")

    with pytest.raises(ValueError, match="does not say where its memory is: a fake tensor has no storage"):
        region_of(Fake())


# ---------------------------------------------------------------------- torch


@pytest.fixture(scope="session")
def torch():
    """Loaded before anything is counted, and without further devices: these tests are about torch's own tensors."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        module = pytest.importorskip("torch")
    module.equal(*[module.randn(64, 64).to(module.bfloat16) for _ in range(2)])
    return module


def test_torch_tensors_are_registered_and_kept(nodes, torch):
    one, two = (node.cache_manager for node in nodes)
    count, shape = 4, (6, 16, 8)
    wanted = CacheDesc(count, shape, DataType.DT_BF16, Placement.HOST)
    theirs = [torch.randn(shape).to(torch.bfloat16) for _ in range(count)]
    mine = [torch.zeros(shape, dtype=torch.bfloat16) for _ in range(count)]
    two.register_blocks_cache(wanted, theirs, BlocksCacheKey(2), True)
    cache = one.register_blocks_cache(wanted, mine)
    assert cache.tensor_addrs == tuple(tensor.data_ptr() for tensor in mine)
    one.pull_blocks(BlocksCacheKey(2), cache, [1, 3], [5, 0])
    for here, there in zip(mine, theirs, strict=True):
        assert torch.equal(here[[5, 0]], there[[1, 3]])
        assert not here[1:5].any()
    one.push_blocks(BlocksCacheKey(2), cache, [0], [2])
    assert torch.equal(mine[0][0], theirs[0][2])
    tensor = weakref.ref(mine[0])
    del mine, here
    gc.collect()
    assert tensor() is not None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda torch: torch.zeros(4, 16, dtype=torch.float16)[:, ::2], "is not contiguous in dimension 1"),
        (lambda torch: torch.zeros(8, 4, dtype=torch.float16).t(), "is not contiguous"),
        (lambda torch: torch.zeros(1, 8, dtype=torch.float16).expand(4, 8), "is expanded"),
        (lambda torch: torch.zeros(0, 8, dtype=torch.float16), "is empty"),
        (lambda torch: torch.zeros(4, 8, dtype=torch.float16, device="meta"), "'meta' device"),
        (lambda torch: torch.zeros(4, 8), "has elements of 4 bytes"),
        (lambda torch: torch.zeros(4, 7, dtype=torch.float16), "has 56 bytes"),
        (lambda torch: torch.zeros(4, 8, dtype=torch.float16).to_sparse(), "has the layout torch.sparse_coo"),
        (lambda torch: torch.tensor(4096), "has 8 bytes"),
    ],
)
def test_torch_tensors_that_are_no_run_of_bytes_are_refused(manager, refused, torch, make, words):
    assert words in str(refused(manager, desc(), [make(torch)]).error)
