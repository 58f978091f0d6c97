"""Owned handles: closing, closing twice, forgetting, using afterwards, forking."""

from __future__ import annotations

import gc
import os
import threading
import warnings
from collections.abc import Callable

import cachefw_ascendcl as acl
import pytest
from cachefw_ascendcl import simulator

from cachefw.errors import BrokenError, BusyError, CacheError, ClosedError, TransportUnavailable

MAKERS: dict[str, Callable[[acl.Device], acl.Handle]] = {
    "stream": lambda device: device.stream(),
    "event": lambda device: device.event(waitable=True),
    "allocation": lambda device: device.allocate(1 << 21),
    "pinned": lambda device: device.allocate_host(4096),
}
each_kind = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@each_kind
def test_closing_twice(device: acl.Device, make: Callable[[acl.Device], acl.Handle]) -> None:
    handle = make(device)
    assert not handle.closed
    handle.close()
    handle.close()
    assert handle.closed
    assert repr(handle).endswith(", closed>")
    with pytest.raises(ClosedError, match="is closed"):
        _ = handle.raw


@each_kind
def test_with_block(device: acl.Device, make: Callable[[acl.Device], acl.Handle]) -> None:
    with pytest.raises(KeyError), make(device) as handle:
        raise KeyError
    assert handle.closed


@each_kind
def test_forgotten_ones_are_reported_and_not_freed(
    device: acl.Device, make: Callable[[acl.Device], acl.Handle]
) -> None:
    frees = ("aclrtDestroyStream", "aclrtDestroyEvent", "aclrtFree", "aclrtFreeHost")
    handles = [make(device)]
    raw, described = handles[0].raw, repr(handles[0])
    before = [simulator.calls(name) for name in frees]
    with pytest.warns(ResourceWarning) as caught:
        handles.clear()
    assert [str(warning.message) for warning in caught] == [f"{described} was never closed"]
    assert [simulator.calls(name) for name in frees] == before
    _give_back(device, described, raw)


def _give_back(device: acl.Device, described: str, raw: object) -> None:
    lib = acl.lib
    frees = {"<stream>": lib.cfw_aclrtDestroyStream, "<event>": lib.cfw_aclrtDestroyEvent}
    free = frees.get(described) or (lib.cfw_aclrtFreeHost if "host" in described else lib.cfw_aclrtFree)
    with acl.bound(device):
        acl.check(free(raw), "free")  # type: ignore[arg-type]


@each_kind
def test_closing_leaves_no_warning(device: acl.Device, make: Callable[[acl.Device], acl.Handle]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make(device).close()
        gc.collect()
    assert not caught


def test_refused_closing_can_be_tried_again(device: acl.Device) -> None:
    allocation = device.allocate(1 << 21)
    simulator.fail("aclrtFree", 507899)
    with pytest.raises(BrokenError) as caught:
        allocation.close()
    assert (caught.value.status, caught.value.operation) == (507899, "aclrtFree")
    assert caught.value.facts["address"] == allocation.address
    assert not allocation.closed
    allocation.close()
    assert allocation.closed


def test_giving_up(device: acl.Device) -> None:
    stream = device.stream()
    raw, count = stream.raw, simulator.calls("aclrtDestroyStream")
    stream.abandon()
    stream.abandon()
    stream.close()
    assert stream.closed
    assert simulator.calls("aclrtDestroyStream") == count
    with acl.bound(device):
        acl.check(acl.lib.cfw_aclrtDestroyStream(raw), "aclrtDestroyStream")


def test_closing_all(device: acl.Device) -> None:
    first, second, third = device.stream(), device.allocate(1 << 21), device.allocate_host(4096)
    simulator.fail("aclrtDestroyStream", 507899)
    assert acl.close_all([first, second]) == [], "the second time it worked"
    raw = third.raw
    simulator.fail("aclrtFreeHost", 507899, 0)
    (error,) = acl.close_all([third, first])
    assert error.status == 507899
    assert first.closed
    assert second.closed
    assert third.closed
    simulator.clear()
    with acl.bound(device):
        acl.check(acl.lib.cfw_aclrtFreeHost(raw), "aclrtFreeHost")


def test_what_is_needed_is_not_closed(runtime: acl.Runtime) -> None:
    device = runtime.device(0)
    streams = [device.stream(), device.stream()]
    allocation = device.allocate(1 << 21)
    with pytest.raises(BusyError, match="this device is still needed by 1 allocation, 2 streams"):
        device.close()
    with pytest.raises(BusyError, match="this runtime is still needed by 1 device"):
        runtime.close()
    for handle in (*streams, allocation):
        handle.close()
    device.close()


def test_threads_closing_one_handle(device: acl.Device) -> None:
    allocation = device.allocate(1 << 21)
    count = simulator.calls("aclrtFree")
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        allocation.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert simulator.calls("aclrtFree") == count + 1


@pytest.mark.parametrize(
    ("call", "make"),
    [
        ("aclrtCreateStream", MAKERS["stream"]),
        ("aclrtCreateEventExWithFlag", MAKERS["event"]),
        ("aclrtMallocAlign32", MAKERS["allocation"]),
        ("aclrtMallocHost", MAKERS["pinned"]),
    ],
)
def test_failing_to_make_one(device: acl.Device, call: str, make: Callable[[acl.Device], acl.Handle]) -> None:
    simulator.fail(call, 507899)
    with pytest.raises(CacheError) as caught:
        make(device)
    assert (caught.value.status, caught.value.operation) == (507899, call)
    make(device).close()


@pytest.mark.parametrize("size", [0, -1, 1 << 64])
def test_sizes_that_are_none(fake_device: acl.Device, size: int) -> None:
    for allocate in (fake_device.allocate, fake_device.allocate_host):
        with pytest.raises(ValueError, match="cannot be allocated"):
            allocate(size)


def test_what_handles_say(device: acl.Device) -> None:
    with device.allocate(1 << 21) as allocation, device.allocate_host(4096) as pinned:
        assert repr(allocation) == f"<allocation of 2,097,152 bytes of device memory at {allocation.address:#x}>"
        assert repr(pinned) == f"<allocation of 4,096 bytes of host memory at {pinned.address:#x}>"
        assert repr(device) == "<device 0>"


def test_old_runtime_has_other_calls(build: Callable[..., object]) -> None:
    path = build("libascendcl.so", "-DaclrtCreateEventExWithFlag=a", "-DaclrtMallocAlign32=b")
    with acl.Runtime({acl.VARIABLE: str(path)}) as runtime, runtime.device() as device:
        device.event().close()
        device.allocate(64).close()
        assert simulator.calls("aclrtCreateEvent") == 1
        assert simulator.calls("aclrtMalloc") == 1


def test_old_runtime_does_not_know_the_flag(fake_device: acl.Device) -> None:
    simulator.fail("aclrtCreateEventExWithFlag", 107000)
    fake_device.event().close()
    assert acl.recent_message() is None
    simulator.fail("aclrtCreateEventExWithFlag", 107000, 0)
    with pytest.raises(ValueError, match="107000"):
        fake_device.event()


def test_children_cannot_use_what_the_parent_has(fake_device: acl.Device, fake: acl.Runtime) -> None:
    with fake_device.allocate(4096) as allocation:
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:  # pragma: no cover
            os.write(writer, _look(fake, fake_device, allocation).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            said = pipe.read().splitlines()
        os.waitpid(pid, 0)
        assert not allocation.closed
    assert said == ["ClosedError acl.forked", "ClosedError acl.forked", "TransportUnavailable acl.forked", "frees 0"]


def _look(runtime: acl.Runtime, device: acl.Device, allocation: acl.Allocation) -> str:
    said = []
    count = simulator.calls("aclrtFree")
    for attempt in (lambda: allocation.raw, device.stream, acl.Runtime):
        try:
            attempt()
        except (ClosedError, TransportUnavailable) as error:
            said.append(f"{type(error).__name__} {error.code}")
    for handle in (allocation, device, runtime):
        handle.close()
    return "\n".join([*said, f"frees {simulator.calls('aclrtFree') - count}"])
