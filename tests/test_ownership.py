"""Whose memory it is: kept alive while registered, refused once it is released, let go and taken back on request."""

from __future__ import annotations

import gc
import logging
import mmap
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cachefw

SIZE = 64 * 1024


@pytest.fixture
def pair(leaves_nothing: None) -> Iterator[tuple[cachefw.Node, cachefw.Node]]:
    with cachefw.Node(1, "127.0.0.1:0") as one, cachefw.Node(2) as two:
        two.link(one.address)
        yield one, two


class Storage:
    """What a tensor's bytes lie in, as torch has it."""

    def __init__(self, size: int) -> None:
        self.array = np.zeros(size, np.uint8)

    def data_ptr(self) -> int:
        return self.array.ctypes.data if self.array.nbytes else 0

    def nbytes(self) -> int:
        return self.array.nbytes

    def resize_(self, size: int) -> None:
        self.array = np.zeros(size, np.uint8)


class Tensor:
    """As much of a torch tensor as registration looks at."""

    shape = (SIZE,)

    device = SimpleNamespace(type="cpu", index=None)

    def __init__(self) -> None:
        self._storage = Storage(SIZE)

    def untyped_storage(self) -> Storage:
        return self._storage

    def data_ptr(self) -> int:
        return self._storage.data_ptr()

    def element_size(self) -> int:
        return 1

    def stride(self) -> tuple[int, ...]:
        return (1,)


# ---------------------------------------------------------------------- kept alive


def test_registered_memory_keeps_its_owner(manager: cachefw.CacheManager) -> None:
    array = np.zeros(SIZE, np.uint8)
    alive = weakref.ref(array)
    memory = manager.register_memory(array)
    del array
    gc.collect()
    assert alive() is not None
    manager.unregister_memory(memory)
    gc.collect()
    assert alive() is None


def test_a_registered_buffer_cannot_be_resized_or_closed(manager: cachefw.CacheManager) -> None:
    buffer, mapped = bytearray(SIZE), mmap.mmap(-1, SIZE)
    memories = [manager.register_memory(source) for source in (buffer, mapped)]
    with pytest.raises(BufferError):
        buffer.extend(b"more")
    with pytest.raises(BufferError):
        mapped.close()
    for memory in memories:
        manager.unregister_memory(memory)
    del memories, memory
    gc.collect()
    buffer.extend(b"more")
    mapped.close()


# ---------------------------------------------------------------------- released too early


def test_closing_an_allocation_early_leaves_its_registration_dangling(
    pair: tuple[cachefw.Node, cachefw.Node], caplog: pytest.LogCaptureFixture
) -> None:
    one, two = pair
    (link,) = two.links
    theirs, ours = one.cache_manager.allocate(SIZE), two.cache_manager.allocate(SIZE)
    far = one.cache_manager.register_memory(theirs, remote_accessible=True, label="far")
    near = two.cache_manager.register_memory(ours, label="near")
    prepared = link.prepare(cachefw.Operation.READ, ours.address, theirs.address, SIZE)
    prepared.post()
    # The peer's: it lets go before the memory is gone, so no transfer of its can meet what is not there.
    theirs.close()
    assert far.state.value == "dangling"
    assert link.memories == []
    with pytest.raises(cachefw.BrokenError, match="the peer withdrew memory"):
        prepared.post()
    # This side's.
    ours.close()
    assert near.state.value == "dangling"
    for use in (prepared.post, lambda: link.read(near.region.address, far.region.address, SIZE)):
        with pytest.raises(cachefw.CacheError):
            use()
    with pytest.raises(ValueError, match=r"memory 1 'near' registered at .*test_ownership\.py:\d+ is dangling"):
        link.read(near.region.address, far.region.address, SIZE)
    assert "test_ownership.py" in caplog.text
    assert "its allocation was closed before it was unregistered" in caplog.text
    assert "dangling" in two.cache_manager.report()
    # The range stays taken until it is unregistered, and that is all that is left.
    two.cache_manager.unregister_memory(near)
    one.cache_manager.unregister_memory(far)
    assert two.cache_manager.memories == one.cache_manager.memories == []
    assert theirs.closed


def test_an_allocation_is_not_closed_under_a_transfer(site: Any, leaves_nothing: None) -> None:
    site.install_memory()
    with (
        cachefw.Node(1, "127.0.0.1:0", transports=["memory"]) as one,
        cachefw.Node(2, transports=["memory"]) as two,
    ):
        theirs, ours = one.cache_manager.allocate(SIZE), two.cache_manager.allocate(SIZE)
        one.cache_manager.register_memory(theirs, remote_accessible=True)
        desc = cachefw.CacheDesc(1, [1, SIZE], cachefw.DataType.DT_UINT8, cachefw.Placement.HOST)
        # By address alone: the manager knows what it has allocated.
        two.cache_manager.register_cache(desc, [ours.address])
        link = two.link(one.address)
        transport = two.cache_manager.transport("memory")
        transport.pause()
        transfer = link.read(ours.address, theirs.address, SIZE, wait=False)
        with pytest.raises(cachefw.BusyError, match="close: the read of"):
            ours.close()
        assert not ours.closed
        transport.resume()
        transfer.result(20)
        ours.close()
        assert [memory.state.value for memory in two.cache_manager.memories] == ["dangling"]
        two.cache_manager.unregister_cache(1)


def test_a_tensor_whose_storage_was_released_or_moved_is_refused(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    (link,) = two.links
    source = np.ones(SIZE, np.uint8)
    one.cache_manager.register_memory(source, remote_accessible=True)
    for size in (0, 2 * SIZE):
        tensor = Tensor()
        kept = tensor.untyped_storage().array
        memory = two.cache_manager.register_memory(tensor, label="tensor")
        address = memory.region.address
        link.read(address, source.ctypes.data, SIZE)
        assert (kept == 1).all()
        kept[:] = 2
        tensor.untyped_storage().resize_(size)
        with pytest.raises(cachefw.ClosedError, match="is dangling: its owner has released or moved it") as caught:
            link.read(address, source.ctypes.data, SIZE)
        assert caught.value.code == "closed.dangling"
        assert memory.state.value == "dangling"
        assert (kept == 2).all()
        two.cache_manager.unregister_memory(memory)


def test_peers_are_kept_from_tensors_that_moved(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    tensor, target = Tensor(), np.zeros(SIZE, np.uint8)
    kept = tensor.untyped_storage().array
    memory = one.cache_manager.register_memory(tensor, remote_accessible=True)
    two.cache_manager.register_memory(target)
    (link,) = two.links
    assert one.cache_manager.check_owners() == []
    link.read(target.ctypes.data, memory.region.address, SIZE)
    tensor.untyped_storage().resize_(0)
    assert one.cache_manager.check_owners() == [memory]
    assert one.cache_manager.check_owners() == [memory]
    with pytest.raises(ValueError, match="published are none"):
        link.read(target.ctypes.data, memory.region.address, SIZE)
    one.cache_manager.unregister_memory(memory)
    assert one.cache_manager.check_owners() == []
    del kept


# ---------------------------------------------------------------------- released for a while


def test_memory_is_suspended_and_resumed(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    (link,) = two.links
    manager = one.cache_manager
    block, target = manager.allocate(2 * SIZE), np.zeros(2 * SIZE, np.uint8)
    desc = cachefw.CacheDesc(2, [4, SIZE // 4], cachefw.DataType.DT_UINT8, cachefw.Placement.HOST)
    key = cachefw.BlocksCacheKey(1)
    manager.register_blocks_cache(desc, [block.address, block.address + SIZE], key, remote_accessible=True)
    own = two.cache_manager.register_blocks_cache(desc, [target.ctypes.data, target.ctypes.data + SIZE])
    np.asarray(block)[:] = 1
    two.cache_manager.pull_blocks(key, own, range(4), range(4))
    prepared = link.prepare(cachefw.Operation.READ, target.ctypes.data, block.address, SIZE)
    suspended = manager.suspend()
    assert len(suspended) == 2
    assert {memory.state.value for memory in suspended} == {"suspended"}
    assert all(not memory.registered for memory in suspended)
    assert manager.suspend() == []
    for use in (prepared.post, lambda: two.cache_manager.pull_blocks(key, own, [0], [0])):
        with pytest.raises(cachefw.CacheError):
            use()
    # The ranges stay taken.
    with pytest.raises(cachefw.RegistrationError):
        manager.register_memory(block)
    np.asarray(block)[:] = 2
    assert manager.resume() == suspended
    assert manager.resume() == []
    with pytest.raises(cachefw.BrokenError, match="prepare again"):
        prepared.post()
    two.cache_manager.pull_blocks(key, own, range(4), range(4))
    assert (target == 2).all()
    # What is suspended can be unregistered.
    manager.suspend(suspended)
    manager.unregister_cache(1)
    assert manager.memories == []


def test_suspending_is_all_or_nothing_and_refuses_nonsense(site: Any, leaves_nothing: None) -> None:
    site.install_memory()
    with (
        cachefw.Node(1, "127.0.0.1:0", transports=["memory"]) as one,
        cachefw.Node(2, transports=["memory"]) as two,
    ):
        source, arrays = np.zeros(SIZE, np.uint8), [np.zeros(SIZE, np.uint8) for _ in range(2)]
        one.cache_manager.register_memory(source, remote_accessible=True)
        memories = [two.cache_manager.register_memory(array) for array in arrays]
        link = two.link(one.address)
        transport = two.cache_manager.transport("memory")
        transport.pause()
        transfer = link.read(arrays[1].ctypes.data, source.ctypes.data, SIZE, wait=False)
        with pytest.raises(cachefw.BusyError, match="suspend: the read of"):
            two.cache_manager.suspend()
        assert [memory.state.value for memory in memories] == ["live", "live"]
        transport.resume()
        transfer.result(20)
        with pytest.raises(TypeError):
            two.cache_manager.suspend([memories[0], "memory"])
        with pytest.raises(cachefw.ClosedError, match="is not registered here"):
            one.cache_manager.suspend(memories)
        assert two.cache_manager.suspend(memories[0]) == memories[:1]
        transport.fail_next("register")
        with pytest.raises(cachefw.RegistrationError, match="could not register"):
            two.cache_manager.resume()
        assert two.cache_manager.memories == memories[1:]


# ---------------------------------------------------------------------- what is left over


def test_what_is_registered_at_close_is_reported_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with cachefw.Node(1) as node:
        node.cache_manager.register_memory(np.zeros(SIZE, np.uint8), label="forgotten")
    (record,) = [record for record in caplog.records if "still registered" in record.getMessage()]
    assert record.levelno == logging.INFO
    assert "'forgotten' registered at " in record.getMessage()
    assert "test_ownership.py" in record.getMessage()


def test_what_is_registered_at_exit_is_reported_with_its_place(site: Any) -> None:
    done = site.run(
        """
        import logging, numpy, cachefw
        logging.basicConfig()
        node = cachefw.Node(1)
        array = numpy.zeros(4096, numpy.uint8)
        node.cache_manager.register_memory(array, label="forgotten")
        """
    )
    assert done.returncode == 0
    assert "still registered at exit" in done.stderr
    assert "'forgotten' registered at <string>:6" in done.stderr
