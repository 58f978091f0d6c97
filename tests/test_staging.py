"""Memory of a kind that a link's transport does not take: moved through a buffer in chunks, or refused with words."""

from __future__ import annotations

import contextlib
import ctypes
import threading

import numpy as np
import pytest

from cachefw import (
    BlocksCacheKey,
    BrokenError,
    CacheDesc,
    CacheKey,
    CacheKeyByIdAndIndex,
    ClosedError,
    DataType,
    LayerSynchronizer,
    MemoryKind,
    Node,
    Operation,
    Placement,
    RegistrationError,
    TransferCancelled,
    TransferWithCacheKeyConfig,
    UnsupportedOperation,
    hookimpl,
)

ROOM = 128 * 1024
HOST, DEVICE = Placement.HOST, Placement.DEVICE


def view(address, length):
    """Bytes at an address; the "device" memory here is ordinary memory."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(address))


@pytest.fixture
def kinds(site, monkeypatch):
    """One transport for host memory and one for device memory, which copies between both."""
    site.install_memory("near", "[MemoryKind.HOST]")
    site.install_memory("far", "[MemoryKind.DEVICE]")
    monkeypatch.setenv("CACHEFW_STAGING", str(ROOM))


@pytest.fixture
def linked(kinds, leaves_nothing):
    """Makes linked nodes; the first transport that both name is the link's."""
    with contextlib.ExitStack() as stack:

        def make(here, there=None):
            one = stack.enter_context(Node(1, transports=here))
            two = stack.enter_context(Node(2, "127.0.0.1:0", transports=there or here))
            return one, two

        yield make


# ---------------------------------------------------------------------- what moves


def scattered(seed, total, pieces, longest):
    """Ranges within `total` bytes that do not overlap, in any order."""
    random = np.random.default_rng(seed)
    starts = np.sort(random.choice(total // longest, pieces, replace=False)) * longest
    lengths = random.integers(1, longest, pieces)
    order = random.permutation(pieces)
    return starts[order], lengths[order]


@pytest.mark.parametrize("transports", [["near", "far"], ["far", "near"]], ids=["host link", "device link"])
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
@pytest.mark.parametrize(
    ("pieces", "longest"),
    [(1, 10), (1, ROOM // 2), (1, ROOM // 2 + 1), (1, 5 * ROOM + 77), (300, 3000), (7, ROOM), (4, 2 * ROOM)],
)
def test_bytes_pass_through_the_buffer(linked, transports, write, pieces, longest):
    near = MemoryKind.HOST if transports[0] == "near" else MemoryKind.DEVICE
    other = MemoryKind.DEVICE if near is MemoryKind.HOST else MemoryKind.HOST
    one, two = linked(transports)
    total = 2 * longest * pieces
    mine, theirs = one.cache_manager.allocate(total, other), two.cache_manager.allocate(total, near)
    here, there = view(mine.address, total), view(theirs.address, total)
    random = np.random.default_rng(1)
    for memory in (here, there):
        memory[:] = random.integers(0, 256, total, np.uint8)
    one.cache_manager.register_memory(mine, remote_accessible=False)
    two.cache_manager.register_memory(theirs, remote_accessible=True)
    link = one.link(two.address)
    assert link.transport == transports[0]
    (local, lengths), (remote, _) = scattered(2, total, pieces, longest), scattered(3, total, pieces, longest)
    expected_here, expected_there = here.copy(), there.copy()
    for at, of, length in zip(local, remote, lengths, strict=True):
        if write:
            expected_there[of : of + length] = here[at : at + length]
        else:
            expected_here[at : at + length] = there[of : of + length]
    call = link.write if write else link.read
    transfer = call(local + mine.address, remote + theirs.address, lengths)
    assert transfer.path == "staged+inline"
    assert transfer.nbytes == lengths.sum()
    assert (here == expected_here).all()
    assert (there == expected_there).all()
    (buffer,) = [m for m in one.cache_manager.memories if m.label.startswith("staging")]
    assert buffer.region.length == ROOM
    assert not buffer.remote_accessible
    one.unlink(link)
    assert [m for m in one.cache_manager.memories if m.label.startswith("staging")] == []
    # Not freed before the views of it are done with.
    del here, there


def test_local_memory_of_both_kinds_in_one_call(linked):
    one, two = linked(["near", "far"])
    device, host = one.cache_manager.allocate(5000, MemoryKind.DEVICE), np.zeros(5000, np.uint8)
    source = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8)
    two.cache_manager.register_memory(source, remote_accessible=True)
    one.cache_manager.register_memory(device)
    one.cache_manager.register_memory(host)
    link = one.link(two.address)
    at = source.ctypes.data
    link.read([device, host], [at, at + 5000])
    assert (view(device.address, 5000) == source[:5000]).all()
    assert (host == source[5000:]).all()
    assert link.read(host, at).path == "inline"
    prepared = link.prepare(Operation.WRITE, [host, device], [at, at + 5000])
    source[:] = 0
    for _ in range(2):
        prepared.post()
    assert (source[:5000] == host).all()
    assert (source[5000:] == view(device.address, 5000)).all()


class Ready(LayerSynchronizer):
    def synchronize_layer(self, layer_index, timeout_in_millis):
        return True


def test_caches_are_pulled_and_pushed_whatever_their_placement(linked):
    """The peer's cache is in the link's kind of memory, the local one in the other."""
    one, two = linked(["far", "near"])
    count, rows, stride = 4, 5, 30_000

    def held(manager, placement, blocks, key):
        desc = CacheDesc(count, (rows, stride), DataType.DT_UINT8, placement)
        cache = manager.allocate_blocks_cache(desc, key) if blocks else manager.allocate_cache(desc, key)
        tensors = [view(address, desc.size).reshape(rows, stride) for address in cache.tensor_addrs]
        random = np.random.default_rng(cache.cache_id)
        for tensor in tensors:
            tensor[:] = random.integers(0, 256, tensor.shape, np.uint8)
        return cache, tensors

    rows_there, theirs = held(two.cache_manager, DEVICE, False, [CacheKey(2, 1)])
    _, blocks_theirs = held(two.cache_manager, DEVICE, True, BlocksCacheKey(2))
    rows_here, mine = held(one.cache_manager, HOST, False, [])
    blocks_here, blocks_mine = held(one.cache_manager, HOST, True, None)
    link = one.link(two.address)
    assert link.transport == "far"
    manager = one.cache_manager
    assert manager.pull_cache(CacheKey(2, 1), rows_here, 3).path == "staged+inline"
    assert all((array[3] == other[0]).all() for array, other in zip(mine, theirs, strict=True))
    manager.pull_blocks(BlocksCacheKey(2), blocks_here, [4, 0], [1, 2])
    pairs = list(zip(blocks_mine, blocks_theirs, strict=True))
    assert all((array[[1, 2]] == other[[4, 0]]).all() for array, other in pairs)
    manager.push_blocks(BlocksCacheKey(2), blocks_here, [0, 3], [3, 1])
    assert all((other[[3, 1]] == array[[0, 3]]).all() for array, other in pairs)
    manager.push_cache(CacheKeyByIdAndIndex(2, rows_there.cache_id, 4), rows_here, 1)
    assert all((other[4] == array[1]).all() for array, other in zip(mine, theirs, strict=True))
    config = TransferWithCacheKeyConfig(CacheKeyByIdAndIndex(2, rows_there.cache_id, 2))
    manager.transfer_cache_async(rows_here, Ready(), [config]).synchronize(30)
    assert all((other[2] == array[0]).all() for array, other in zip(mine, theirs, strict=True))


def test_posts_that_nobody_waits_for_go_one_after_the_other(linked):
    one, two = linked(["near", "far"])
    device = one.cache_manager.allocate(8 * ROOM, MemoryKind.DEVICE)
    source = np.random.default_rng(0).integers(0, 256, 8 * ROOM, np.uint8)
    two.cache_manager.register_memory(source, remote_accessible=True)
    one.cache_manager.register_memory(device)
    link = one.link(two.address)
    step = ROOM
    transfers = [
        link.read(device.address + i * step, source.ctypes.data + i * step, step, wait=False, notify=b"%d" % i)
        for i in range(8)
    ]
    assert all(transfer.wait(30) for transfer in transfers)
    assert (view(device.address, 8 * ROOM) == source).all()
    link.sync()
    assert [note.payload for note in two.notifications()] == [b"%d" % i for i in range(8)]
    assert len(one.completed()) == 8


def test_an_observer_is_told_of_the_whole_and_not_of_the_chunks(kinds, leaves_nothing):
    told = []

    class Observer:
        @hookimpl
        def cachefw_transfer_finished(self, report):
            told.append(report)

    with (
        Node(1, transports=["near", "far"], plugins=[Observer()]) as one,
        Node(2, "127.0.0.1:0", transports=["near"]) as two,
    ):
        device, source = one.cache_manager.allocate(3 * ROOM, MemoryKind.DEVICE), np.ones(3 * ROOM, np.uint8)
        two.cache_manager.register_memory(source, remote_accessible=True)
        one.cache_manager.register_memory(device)
        one.link(two.address).read(device, source.ctypes.data)
        assert view(device.address, 3 * ROOM).all()
    (report,) = told
    assert (report.path, report.nbytes, report.pieces, report.outcome) == ("staged+inline", 3 * ROOM, 1, "done")


# ---------------------------------------------------------------------- what fails, and ends


@pytest.fixture
def staged(linked):
    """A node whose device memory goes over a link for host memory, four chunks at a time."""
    one, two = linked(["near", "far"])
    device, source = one.cache_manager.allocate(2 * ROOM, MemoryKind.DEVICE), np.ones(2 * ROOM, np.uint8)
    two.cache_manager.register_memory(source, remote_accessible=True)
    one.cache_manager.register_memory(device)
    return one, two, device, source, one.link(two.address)


@pytest.mark.parametrize("way", [Operation.READ, Operation.WRITE])
@pytest.mark.parametrize(("transport", "step"), [("near", "move"), ("far", "move"), ("near", "post")])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_failure_of_either_transport_is_the_transfers(staged, way, transport, step, after):
    one, _, device, source, link = staged
    prepared = link.prepare(way, device, source.ctypes.data)
    one.cache_manager.transport(transport).fail_next(step, after=after)
    with pytest.raises(BrokenError, match="fails on request") as caught:
        prepared.post()
    assert caught.value.failed == ()
    assert caught.value.peer == link.peer_name
    # The next one is not touched by it.
    prepared.post()
    assert not link.inflight


def test_memory_under_way_is_in_use(staged):
    one, _, device, source, link = staged
    near = one.cache_manager.transport("near")
    near.pause()
    transfer = link.read(device, source.ctypes.data, wait=False)
    assert not transfer.wait(0.05)
    (memory,) = [m for m in one.cache_manager.memories if m.region.kind is MemoryKind.DEVICE]
    with pytest.raises(RuntimeError, match="uses this memory now"):
        one.cache_manager.unregister_memory(memory)
    near.resume()
    transfer.result(30)
    assert view(device.address, 2 * ROOM).all()
    one.cache_manager.unregister_memory(memory)


@pytest.mark.parametrize("how", ["unlink", "close", "peer"])
def test_an_end_in_the_middle_settles_everything(staged, how):
    one, two, device, source, link = staged
    near = one.cache_manager.transport("near")
    near.pause()
    transfers = [link.read(device, source.ctypes.data, wait=False) for _ in range(3)]
    call = {"unlink": lambda: one.unlink(link), "close": one.close, "peer": two.close}[how]
    ending = threading.Thread(target=call)
    ending.start()
    for transfer in transfers:
        assert transfer.wait(30)
        assert isinstance(transfer.error, (BrokenError, ClosedError, TransferCancelled))
    ending.join(30)
    near.resume()
    with pytest.raises((BrokenError, ClosedError)):
        link.read(device, source.ctypes.data)


def test_cancelling_drops_what_has_not_begun(staged):
    one, _, device, source, link = staged
    near = one.cache_manager.transport("near")
    near.pause()
    first, second = (link.read(device, source.ctypes.data, wait=False) for _ in range(2))
    second.cancel()
    near.resume()
    first.result(30)
    assert second.wait(30)
    assert isinstance(second.error, TransferCancelled)


# ---------------------------------------------------------------------- what cannot be


def test_what_nobody_copies_is_refused_with_words(site, linked):
    site.install_memory("mute", "[MemoryKind.DEVICE], capabilities=~Capability.COPY")
    one, two = linked(["near", "mute"], ["near"])
    device, source = one.cache_manager.allocate(64, MemoryKind.DEVICE), np.ones(64, np.uint8)
    two.cache_manager.register_memory(source, remote_accessible=True)
    one.cache_manager.register_memory(device)
    link = one.link(two.address)
    for call in (link.read, link.write):
        with pytest.raises(UnsupportedOperation, match="cannot be brought there: no open transport copies") as caught:
            call(device, source.ctypes.data)
        assert caught.value.transport == "near"
    assert len(one.cache_manager.memories) == 1
    assert source.all()


def test_a_transport_that_registers_nothing_late_has_no_buffer(site, linked):
    site.install_memory("early", "[MemoryKind.HOST], capabilities=~Capability.LATE_REGISTRATION")
    one, two = linked(["early", "far"])
    device, source = one.cache_manager.allocate(64, MemoryKind.DEVICE), np.ones(64, np.uint8)
    two.cache_manager.register_memory(source, remote_accessible=True)
    one.cache_manager.register_memory(device)
    with pytest.raises(UnsupportedOperation, match=r"no Capability\.LATE_REGISTRATION"):
        one.link(two.address).read(device, source.ctypes.data)


def test_memory_of_the_peer_that_the_link_does_not_take_is_named(linked):
    one, two = linked(["near", "far"])
    device, here = two.cache_manager.allocate(64, MemoryKind.DEVICE), np.zeros(64, np.uint8)
    two.cache_manager.register_memory(device)
    one.cache_manager.register_memory(here)
    link = one.link(two.address)
    with pytest.raises(ValueError, match=r"memory 1 there is device memory, which the transport .*reached by far"):
        link.read(here, device.address)
    assert [memory.memory_id for memory in link.strangers] == [1]
    two.cache_manager.unregister_memory(two.cache_manager.memories[0])
    assert link.strangers == []


def test_a_buffer_that_is_refused_is_said(staged):
    one, _, device, source, link = staged
    one.cache_manager.transport("near").fail_next("register")
    with pytest.raises(RegistrationError, match="could not register"):
        link.read(device, source.ctypes.data)
    link.read(device, source.ctypes.data)
    assert view(device.address, 2 * ROOM).all()
