"""Calls from any thread, and the caller's context left as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable

import cachefw_ascendcl as acl
import pytest
from cachefw_ascendcl import simulator

from cachefw.errors import BrokenError, CacheError, ClosedError, RequestError


def current() -> int:
    """The calling thread's context as a number; 0 without one."""
    context_p = acl.ffi.new("aclrtContext *")
    if acl.lib.cfw_aclrtGetCurrentContext(context_p):
        acl.recent_message()
        return 0
    return int(acl.ffi.cast("uintptr_t", context_p[0]))


def number(scope: acl.Scope) -> int:
    return int(acl.ffi.cast("uintptr_t", scope.context))


def in_thread(work: Callable[[], object]) -> object:
    """What `work` returns or raises in a new thread, which has no context."""
    got: list[object] = []

    def run() -> None:
        try:
            got.append(work())
        except BaseException as error:
            got.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(got[0], BaseException):
        raise got[0]
    return got[0]


def test_threads_have_no_context(device: acl.Device) -> None:
    def work() -> None:
        acl.check(acl.lib.cfw_aclrtSynchronizeDevice(), "aclrtSynchronizeDevice")
        acl.check(acl.lib.cfw_aclrtMalloc(acl.ffi.new("void **"), 64, 0), "aclrtMalloc")

    with pytest.raises(BrokenError, match="no context") as caught:
        in_thread(work)
    assert (caught.value.status, caught.value.code) == (107002, "acl.no_context")
    assert caught.value.detail


def test_everything_works_in_a_thread_without_context(device: acl.Device) -> None:
    def work() -> bool:
        with device.allocate(1 << 21), device.allocate_host(4096), device.stream() as stream, device.event() as event:
            event.record(stream)
            stream.synchronize()
        return True

    assert in_thread(work)


def test_thread_without_context_keeps_the_last(device: acl.Device) -> None:
    def work() -> tuple[int, int, int]:
        before = current()
        with acl.bound(device):
            inside = current()
        return before, inside, current()

    assert in_thread(work) == (0, number(device), number(device))


def test_own_context_is_back(runtime: acl.Runtime, device: acl.Device) -> None:
    with runtime.device(1) as other:
        acl.check(acl.lib.cfw_aclrtSetCurrentContext(other.context), "aclrtSetCurrentContext")
        with acl.bound(device):
            assert current() == number(device)
            with acl.bound(other), acl.bound(device):
                assert current() == number(device)
            assert current() == number(device)
        assert current() == number(other)
        device.allocate(1 << 21).close()
        assert current() == number(other)


def test_own_context_is_back_after_an_exception(runtime: acl.Runtime, device: acl.Device) -> None:
    with runtime.device(1) as other:
        acl.check(acl.lib.cfw_aclrtSetCurrentContext(other.context), "aclrtSetCurrentContext")
        with pytest.raises(KeyError), acl.bound(device):
            raise KeyError
        assert current() == number(other)
        simulator.fail("aclrtMallocAlign32", 207001)
        with pytest.raises(MemoryError):
            device.allocate(1 << 21)
        assert current() == number(other)


def test_opening_a_device_leaves_the_context(runtime: acl.Runtime, device: acl.Device) -> None:
    acl.check(acl.lib.cfw_aclrtSetCurrentContext(device.context), "aclrtSetCurrentContext")
    with runtime.device(1) as other:
        assert current() == number(device) != number(other)
    assert current() == number(device)


def test_further_context(simulated_device: acl.Device) -> None:
    acl.check(acl.lib.cfw_aclrtSetCurrentContext(simulated_device.context), "aclrtSetCurrentContext")
    with simulated_device.create_context() as context:
        assert current() == number(simulated_device) != number(context)
        with acl.bound(context):
            assert current() == number(context)
        with context.stream() as stream:
            stream.synchronize()
        assert current() == number(simulated_device)


def test_no_such_device(runtime: acl.Runtime) -> None:
    with pytest.raises(RequestError) as caught:
        runtime.device(77)
    assert (caught.value.status, caught.value.facts["device"]) == (107001, 77)


def test_closed_scopes_bind_nothing(runtime: acl.Runtime) -> None:
    device = runtime.device(0)
    device.close()
    with pytest.raises(ClosedError, match="this device is closed"):
        acl.bound(device)
    with pytest.raises(ClosedError):
        device.allocate(64)


def test_context_that_cannot_be_made_current(runtime: acl.Runtime, device: acl.Device) -> None:
    def work() -> None:
        simulator.fail("aclrtSetCurrentContext", 507000)
        with acl.bound(device):
            pytest.fail("the block is not entered")

    with pytest.raises(BrokenError) as caught:
        in_thread(work)
    assert (caught.value.status, caught.value.operation) == (507000, "aclrtSetCurrentContext")


@pytest.mark.parametrize("make", ["stream", "event", "allocate", "allocate_host"])
def test_nothing_is_lost_when_the_context_cannot_be_given_back(
    runtime: acl.Runtime, device: acl.Device, make: str
) -> None:
    with runtime.device(1) as other:
        acl.check(acl.lib.cfw_aclrtSetCurrentContext(other.context), "aclrtSetCurrentContext")
        arguments = (1 << 21,) if make.startswith("allocate") else ()
        # The first makes the device's context current, the second gives the caller's back.
        simulator.fail("aclrtSetCurrentContext", 507000, 2)
        with pytest.raises(CacheError) as caught:
            getattr(device, make)(*arguments)
        assert caught.value.status == 507000
        acl.check(acl.lib.cfw_aclrtSetCurrentContext(other.context), "aclrtSetCurrentContext")
        handle = getattr(device, make)(*arguments)
        simulator.fail("aclrtSetCurrentContext", 507000, 2)
        with pytest.raises(CacheError):
            handle.close()
        assert handle.closed, "it was given back, whatever came afterwards"
    if runtime.library.is_simulator:
        held = simulator.statistics()
        assert (held["allocations"], held["host_allocations"], held["streams"], held["events"]) == (0, 0, 0, 0)


def test_threads_work_side_by_side(runtime: acl.Runtime, device: acl.Device) -> None:
    with runtime.device(1) as other:
        errors: list[BaseException] = []
        start = threading.Barrier(4)

        def work(scope: acl.Device) -> None:
            try:
                start.wait()
                for _ in range(50):
                    with acl.bound(scope), scope.allocate(1 << 21):
                        assert current() == number(scope)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(scope,)) for scope in (device, other) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
