"""Every call of the runtime fails in turn, at each of its uses: a clear error, nothing left, and the node goes on."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

import numpy as np
import pytest
from cachefw_ascendcl import Runtime, simulator

import cachefw
from cachefw.memory import MemoryKind

MIB = 2**20
CODE = 507899


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    # Held open, so that the simulator's state and its faults outlive each round.
    with Runtime() as runtime, runtime.device(0):
        yield runtime
        simulator.clear()


def _round() -> None:
    """Everything the transport does, in one process: register, link, read, copy here and there, and give back."""
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(cachefw.Node(1, "127.0.0.1:0", transports=["hccs"]))
        two = stack.enter_context(cachefw.Node(2, transports=["hccs"]))
        there = stack.enter_context(one.cache_manager.allocate(2 * MIB, MemoryKind.DEVICE))
        here = stack.enter_context(two.cache_manager.allocate(2 * MIB, MemoryKind.DEVICE))
        desc = cachefw.CacheDesc(1, [4, 2**19], cachefw.DataType.DT_INT8)
        cache = one.cache_manager.register_blocks_cache(desc, [there.address], cachefw.BlocksCacheKey(1))
        own = two.cache_manager.register_blocks_cache(desc, [here.address])
        two.link(one.address)
        two.cache_manager.pull_blocks(cachefw.BlocksCacheKey(1), own, [0, 2], [3, 1])
        transfer = two.cache_manager.pull_blocks(cachefw.BlocksCacheKey(1), own, [1], [0], wait=False)
        transfer.result()
        one.cache_manager.unregister_cache(cache.cache_id)


def _held() -> dict[str, int]:
    return {name: count for name, count in simulator.statistics().items() if name not in ("spaces", "processes")}


USED = (
    "aclrtSetDevice",
    "aclrtGetDevice",
    "aclrtGetDeviceCount",
    "aclrtResetDevice",
    "aclrtGetSocName",
    "aclrtGetCurrentContext",
    "aclrtSetCurrentContext",
    "aclrtMalloc",
    "aclrtMallocAlign32",
    "aclrtFree",
    "aclrtPointerGetAttributes",
    "aclrtMemGetAddressRange",
    "aclrtIpcMemGetExportKey",
    "aclrtIpcMemSetImportPid",
    "aclrtIpcMemImportByKey",
    "aclrtIpcMemClose",
    "aclrtDeviceGetBareTgid",
    "aclrtCreateStream",
    "aclrtCreateStreamWithConfig",
    "aclrtDestroyStream",
    "aclrtSynchronizeStream",
    "aclrtSynchronizeStreamWithTimeout",
    "aclrtStreamQuery",
    "aclrtMemcpyAsync",
    "aclrtMemcpyBatchAsync",
    "task",
)


@pytest.mark.parametrize("function", USED)
def test_a_fault_at_each_call_is_said_and_leaves_nothing(runtime: Runtime, function: str) -> None:
    _round()
    before = _held()
    failures = 0
    for nth in range(1, 40):
        uses = simulator.calls(function) if function != "task" else 0
        simulator.fail(function, CODE, nth)
        error: cachefw.CacheError | None = None
        try:
            _round()
        except cachefw.CacheError as caught:
            error = caught
        reached = function == "task" or simulator.calls(function) - uses >= nth
        simulator.clear()
        if error is not None:
            failures += 1
            assert _status(error) == CODE or function == "aclrtGetSocName", f"{function} {nth}: {error!r}"
            assert str(error)
            # An allocation whose closing failed stays open until nobody has it: neither the frames of a traceback nor a
            # manager that is closed but not collected.
            _forget(error)
            del error
            gc.collect()
        assert _held() == before, f"{function}, call {nth}, left something behind"
        _round()
        if not reached or (function == "task" and nth > 3):
            break
    if function in ("aclrtIpcMemGetExportKey", "aclrtMemcpyAsync", "task"):
        assert failures


def _forget(error: BaseException | None) -> None:
    while error is not None:
        error.__traceback__ = None
        _forget(error.__cause__)
        error = error.__context__


def _status(error: BaseException | None) -> int | None:
    while error is not None:
        if getattr(error, "status", None):
            return error.status
        error = error.__cause__ or error.__context__
    return None


def test_memory_of_another_device_and_freed_memory_are_refused(runtime: Runtime) -> None:
    with cachefw.CacheManager(["hccs"]) as manager, runtime.device(1) as other:
        foreign = other.allocate(2 * MIB)
        desc = cachefw.CacheDesc(1, [2, MIB], cachefw.DataType.DT_INT8)
        with pytest.raises(cachefw.RegistrationError, match="lies on device 1; this transport is open on device 0"):
            manager.register_cache(desc, [foreign.address])
        foreign.close()
        memory = manager.allocate(2 * MIB, MemoryKind.DEVICE)
        address = memory.address
        memory.close()
        plan = manager.plan(desc, [address])
        assert not plan.ok or plan.not_checked
        with pytest.raises(cachefw.CacheError):
            manager.register_cache(desc, [address])
        assert manager.memories == []


def test_host_memory_declared_as_device_is_contradicted_by_the_runtime(runtime: Runtime) -> None:
    buffer = ctypes.create_string_buffer(6 * MIB)
    address = -(-ctypes.addressof(buffer) // (2 * MIB)) * 2 * MIB
    desc = cachefw.CacheDesc(1, [2, MIB], cachefw.DataType.DT_INT8)
    with cachefw.CacheManager(["hccs"]) as manager:
        with pytest.raises(cachefw.RegistrationError, match="is declared device memory, the runtime says host memory"):
            manager.register_cache(desc, [address])
        with pytest.raises(cachefw.OutOfMemoryError) as caught:
            manager.allocate(2**50, MemoryKind.DEVICE)
        assert caught.value.status == 207001
        assert caught.value.transport == "hccs"


def test_a_cut_link_fails_the_transfer_and_mending_it_is_enough(runtime: Runtime) -> None:
    with (
        cachefw.Node(1, "127.0.0.1:0", transports=["hccs"], settings={"hccs": {"device": 1}}) as one,
        cachefw.Node(2, transports=["hccs"]) as two,
        one.cache_manager.allocate(2 * MIB, MemoryKind.DEVICE) as there,
        two.cache_manager.allocate(2 * MIB, MemoryKind.DEVICE) as here,
    ):
        source = one.cache_manager.register_memory(there)
        target = two.cache_manager.register_memory(here)
        link = two.link(one.address)
        link.read(here.address, there.address, MIB)
        simulator.link(0, 1, False)
        with pytest.raises(cachefw.BrokenError) as caught:
            link.read(here.address, there.address, MIB)
        assert caught.value.status
        assert caught.value.detail
        simulator.link(0, 1, True)
        link.read(here.address, there.address, MIB)
        two.unlink(link)
        two.cache_manager.unregister_memory(target)
        one.cache_manager.unregister_memory(source)


def test_local_copies_go_every_way_but_host_to_host(runtime: Runtime) -> None:
    source, target = np.arange(3 * MIB, dtype=np.uint32).view(np.uint8), np.zeros(12 * MIB, np.uint8)
    with (
        cachefw.CacheManager(["hccs"]) as manager,
        manager.allocate(12 * MIB, MemoryKind.DEVICE) as one,
        manager.allocate(12 * MIB, MemoryKind.DEVICE) as other,
    ):
        manager.copy(one, source)
        manager.copy(other, one)
        manager.copy(target, other)
        assert (target == source).all()
        # Every way at once, in one call.
        third = manager.allocate(12 * MIB, MemoryKind.DEVICE)
        back = np.zeros(12 * MIB, np.uint8)
        manager.copy([third, other, back], [one, source[::-1].copy(), one])
        manager.copy([target, back], [other, third])
        assert (target == source[::-1]).all()
        assert (back == source).all()
        third.close()
        with pytest.raises(cachefw.UnsupportedOperation, match="no open transport copies host memory to host memory"):
            manager.copy(target, source)


def test_memory_that_is_freed_while_it_is_registered_is_withdrawn_from_the_peer(runtime: Runtime) -> None:
    with (
        cachefw.Node(1, "127.0.0.1:0", transports=["hccs"]) as one,
        cachefw.Node(2, transports=["hccs"]) as two,
        two.cache_manager.allocate(2 * MIB, MemoryKind.DEVICE) as here,
    ):
        there = one.cache_manager.allocate(2 * MIB, MemoryKind.DEVICE)
        address = there.address
        source = one.cache_manager.register_memory(there)
        two.cache_manager.register_memory(here)
        link = two.link(one.address)
        link.read(here.address, address, MIB)
        there.close()
        with pytest.raises(cachefw.RequestError, match="nothing published is there"):
            link.read(here.address, address, MIB)
        with contextlib.suppress(cachefw.CacheError):
            # The runtime may say that the key went with its memory.
            one.cache_manager.unregister_memory(source)
        with one.cache_manager.allocate(2 * MIB, MemoryKind.DEVICE) as again:
            assert again.address
