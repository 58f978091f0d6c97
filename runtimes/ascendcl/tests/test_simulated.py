"""The binding on the simulator: what only a library with the hardware's rules can answer."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import textwrap

import cachefw_ascendcl as acl
import numpy as np
import pytest
from cachefw_ascendcl import CopyKind, Location, MallocPolicy, simulator

from cachefw.errors import BrokenError, CacheError, OutOfMemoryError, RequestError, TransferTimeout

HUGE = 2 << 20


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


@pytest.fixture(autouse=True)
def nothing_stays(simulated: acl.Runtime) -> object:
    """No test leaves anything behind in the simulator."""
    yield
    simulator.clear()
    held = simulator.statistics()
    assert (held["allocations"], held["host_allocations"], held["streams"], held["events"]) == (0, 0, 0, 0)
    assert (held["imports"], held["exports"], held["registered"]) == (0, 0, 0)


def test_the_report_says_simulated(simulated: acl.Runtime) -> None:
    assert simulated.library.is_simulator
    assert "SIMULATED" in simulated.library.description
    assert "SIMULATED" in str(simulated.library)
    assert "SIMULATED" in repr(simulated)
    assert simulated.library.source == acl.VARIABLE


def test_questions(simulated: acl.Runtime, simulated_device: acl.Device) -> None:
    assert simulated.soc_name().startswith("Ascend")
    assert simulated.device_count() == simulated.library.device_count >= 2
    assert simulated.on_host()
    assert simulated_device.physical_index() >= 0
    assert simulated_device.attribute(acl.DeviceAttribute.TOTAL_MEMORY) == simulated_device.memory_info().total
    assert acl.Topology.HCCS in simulated_device.topology(1)


def test_memory_is_counted(simulated_device: acl.Device) -> None:
    before = simulated_device.memory_info()
    with simulated_device.allocate(8 * HUGE):
        assert simulated_device.memory_info().free <= before.free - 8 * HUGE
    assert simulated_device.memory_info() == before
    with pytest.raises(OutOfMemoryError) as caught:
        simulated_device.allocate(before.total + HUGE)
    assert caught.value.status == 207001


def test_what_an_address_is(simulated_device: acl.Device) -> None:
    with (
        simulated_device.allocate(2 * HUGE) as huge,
        simulated_device.allocate(8192, MallocPolicy.NORMAL_ONLY) as normal,
        simulated_device.allocate_host(8192) as pinned,
    ):
        assert simulated_device.identify(huge.address) == acl.PointerInfo(Location.DEVICE, 0, HUGE, raw_location=1)
        found = simulated_device.identify(normal.address)
        assert found is not None
        assert (found.location, found.page_size) == (Location.DEVICE, 4096)
        found = simulated_device.identify(pinned.address)
        assert found is not None
        assert (found.location, found.device, found.page_size) == (Location.HOST, -1, 4096)
        assert simulated_device.address_range(huge.address + 4096) == (huge.address, 2 * HUGE)
        assert huge.address % HUGE == 0
        freed = huge.address
    found = simulated_device.identify(address(np.zeros(4096, np.uint8)))
    assert found is not None
    assert found.location is Location.UNREGISTERED
    assert simulated_device.identify(freed) is None
    assert acl.recent_message() is None


def test_old_runtime_is_guessed(build: object, simulated_device: acl.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_device.allocate(HUGE) as memory:
        simulator.fail("aclrtPointerGetAttributes", acl.lib.CFW_ACL_MISSING, 0)
        found = simulated_device.identify(memory.address)
        assert found == acl.PointerInfo(Location.DEVICE, -1, 0, guessed=True)
        found = simulated_device.identify(address(np.zeros(1)))
        assert found == acl.PointerInfo(Location.UNREGISTERED, -1, 0, guessed=True)


def test_copying_there_and_back(simulated_device: acl.Device) -> None:
    data = np.random.default_rng(2).integers(0, 256, HUGE, dtype=np.uint8)
    back = np.zeros_like(data)
    with simulated_device.allocate(HUGE) as one, simulated_device.allocate(HUGE) as two:
        simulated_device.copy(one.address, address(data), HUGE, CopyKind.HOST_TO_DEVICE)
        with simulated_device.stream() as stream:
            stream.copy(two.address, one.address, HUGE, CopyKind.DEVICE_TO_DEVICE)
            stream.synchronize()
        simulated_device.copy(address(back), two.address, HUGE, CopyKind.DEVICE_TO_HOST)
        np.testing.assert_array_equal(back, data)
        simulated_device.fill(two.address, HUGE, 7)
        simulated_device.copy(address(back), two.address, HUGE, CopyKind.DEVICE_TO_HOST)
        assert (back == 7).all()


def test_batches(simulated_device: acl.Device) -> None:
    items, size = 32, 4096
    data = np.random.default_rng(3).integers(0, 256, (items, size), dtype=np.uint8)
    back = np.zeros_like(data)
    order = np.arange(items, dtype=np.uint64) * np.uint64(size)
    length = np.full(items, size, np.uint64)
    with (
        simulated_device.allocate(HUGE) as one,
        simulated_device.allocate(HUGE) as two,
        simulated_device.stream() as stream,
        simulated_device.event() as event,
    ):
        first, second = np.uint64(one.address) + order, np.uint64(two.address) + order
        there = acl.Copies(stream, first, np.uint64(address(data)) + order, length, CopyKind.HOST_TO_DEVICE)
        across = acl.Copies(stream, second, first[::-1].copy(), length, CopyKind.DEVICE_TO_DEVICE)
        home = acl.Copies(
            stream, np.uint64(address(back)) + order, second, length, CopyKind.DEVICE_TO_HOST, event=event
        )
        for copies in (there, across, home):
            copies.post()
        event.synchronize()
        assert event.query()
        stream.synchronize()
        assert stream.query()
        np.testing.assert_array_equal(back, data[::-1])
        assert (there.issued.batches, across.issued.batches, home.issued.batches) == (1, 0, 1)


def test_streams_take_their_time(simulated_device: acl.Device) -> None:
    with (
        simulated_device.allocate(HUGE) as one,
        simulated_device.allocate(HUGE) as two,
        simulated_device.stream() as stream,
        simulated_device.stream() as other,
        simulated_device.event(waitable=True) as event,
    ):
        simulator.pause()
        stream.copy(one.address, two.address, HUGE, CopyKind.DEVICE_TO_DEVICE)
        event.record(stream)
        other.wait_for(event)
        assert not event.query()
        assert not stream.query()
        with pytest.raises(TransferTimeout) as caught:
            stream.synchronize(0.01)
        assert (caught.value.status, caught.value.settled) == (507046, False)
        simulator.pause(False)
        other.synchronize(10)
        event.synchronize()
        assert event.query()


def test_what_fails_later_comes_out_of_synchronize(simulated_device: acl.Device) -> None:
    with (
        simulated_device.allocate(HUGE) as one,
        simulated_device.allocate(HUGE) as two,
        simulated_device.stream() as stream,
    ):
        simulator.fail("task", 507053)
        stream.copy(one.address, two.address, HUGE, CopyKind.DEVICE_TO_DEVICE)
        with pytest.raises(BrokenError) as caught:
            stream.synchronize()
        assert caught.value.status == 507053
        assert caught.value.detail


def test_host_memory_of_others(simulated_device: acl.Device) -> None:
    with mmap.mmap(-1, 4 * 4096) as pages:
        start = address(np.frombuffer(pages, np.uint8))
        with simulated_device.register_host(start, 8192) as registration:
            found = simulated_device.identify(start)
            assert found is not None
            assert found.location is Location.HOST
            assert registration.device_address
            with pytest.raises(RequestError) as caught:
                simulated_device.register_host(start + 4096, 4096)
            assert caught.value.status == 507910
        with pytest.raises(BrokenError) as refused:
            simulated_device.register_host(start + 1, 4096)
        assert refused.value.status == 507899


def test_exports_are_for_whole_pages_of_own_memory(simulated_device: acl.Device) -> None:
    with simulated_device.allocate(2 * HUGE) as memory, simulated_device.allocate_host(HUGE) as pinned:
        for place, size in ((memory.address + 4096, HUGE), (memory.address, 3 * HUGE), (pinned.address, 4096)):
            with pytest.raises(BrokenError) as caught:
                simulated_device.export(place, size)
            assert (caught.value.status, caught.value.operation) == (507899, "aclrtIpcMemGetExportKey")
            assert caught.value.facts["address"] == place
        with simulated_device.export(memory.address + HUGE, HUGE) as key:
            assert 0 < len(key.key) < 65
            with pytest.raises(ValueError, match="0 pids"):
                key.allow([])
            with pytest.raises(ValueError, match="32 pids"):
                key.allow(range(1, 33))
            key.allow([os.getppid()])


def test_keys_that_are_none(simulated_device: acl.Device) -> None:
    for key in (b"", b"x" * 65, b"a\0b"):
        with pytest.raises(ValueError, match="an IPC key has 1 to 64 bytes"):
            simulated_device.import_key(key)
    with pytest.raises(BrokenError) as caught:
        simulated_device.import_key(b"0000000100000000000000010000")
    assert caught.value.status == 507899


IMPORTER = """
    import sys
    import numpy as np
    import cachefw_ascendcl as acl

    with acl.Runtime({acl.VARIABLE: "simulator"}) as runtime, runtime.device(1) as device:
        print(acl.bare_pid(), flush=True)
        key = sys.stdin.readline().strip().encode()
        try:
            with device.import_key(key) as mapping, device.allocate(2 << 20) as memory:
                assert device.peer_access(0)
                device.copy(memory.address, mapping.address, 2 << 20, acl.CopyKind.DEVICE_TO_DEVICE)
                data = np.zeros(2 << 20, np.uint8)
                device.copy(data.ctypes.data, memory.address, data.size, acl.CopyKind.DEVICE_TO_HOST)
                print("read", set(data.tolist()), flush=True)
        except Exception as error:
            print(type(error).__name__, getattr(error, "status", error), flush=True)
"""


@pytest.mark.parametrize(
    ("any_process", "allowed", "said"),
    [(False, True, "read {5}"), (False, False, "BrokenError 507899"), (True, False, "read {5}")],
)
def test_memory_of_another_process(simulated_device: acl.Device, any_process: bool, allowed: bool, said: str) -> None:
    with simulated_device.allocate(HUGE) as memory:
        simulated_device.fill(memory.address, HUGE, 5)
        with simulated_device.export(memory.address, HUGE, any_process=any_process) as key:
            importer = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(IMPORTER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert importer.stdin
            assert importer.stdout
            pid = int(importer.stdout.readline())
            if allowed:
                key.allow([pid])
            answer, _ = importer.communicate(key.key.decode() + "\n", timeout=30)
    assert answer.strip() == said
    assert importer.returncode == 0


def test_peers(simulated: acl.Runtime, simulated_device: acl.Device) -> None:
    assert simulated_device.can_access(1)
    with simulated.device(1) as other, other.allocate(HUGE) as there, simulated_device.allocate(HUGE) as here:
        assert not simulated_device.peer_access(1)
        with pytest.raises(CacheError) as caught:
            simulated_device.copy(here.address, there.address, HUGE, CopyKind.DEVICE_TO_DEVICE)
        assert caught.value.status in {207000, 507899}
        simulated_device.enable_peer_access(1)
        assert simulated_device.peer_access(1)
        with simulated_device.stream() as stream:
            stream.copy(here.address, there.address, HUGE, CopyKind.DEVICE_TO_DEVICE)
            stream.synchronize()
        simulated_device.disable_peer_access(1)
        assert not simulated_device.peer_access(1)
        with pytest.raises(RequestError):
            simulated_device.enable_peer_access(0)


def test_further_context_may_be_the_callers(simulated_device: acl.Device) -> None:
    context = simulated_device.create_context()
    acl.check(acl.lib.cfw_aclrtSetCurrentContext(context.context), "aclrtSetCurrentContext")
    context.close()
    with simulated_device.stream() as stream:
        stream.synchronize()


def work(simulated: acl.Runtime) -> None:
    """Use every kind of handle once."""
    made: list[acl.Handle] = []

    def keep(handle: acl.Handle) -> None:
        made.insert(0, handle)

    try:
        keep(device := simulated.device(0))
        keep(memory := device.allocate(HUGE))
        keep(pinned := device.allocate_host(HUGE))
        keep(stream := device.stream())
        keep(event := device.event(waitable=True))
        keep(key := device.export(memory.address, HUGE))
        key.allow([os.getppid()])
        lists = [np.array(row, np.uint64) for row in ([memory.address], [pinned.address], [HUGE])]
        acl.Copies(stream, *lists, CopyKind.HOST_TO_DEVICE, event=event).post()
        stream.synchronize()
    finally:
        errors = acl.close_all(made)
    assert not errors


def failure_of(simulated: acl.Runtime) -> BrokenError | None:
    """How `work` ends."""
    try:
        work(simulated)
    except BrokenError as error:
        return error
    return None


def test_every_call_failing_in_turn(simulated: acl.Runtime) -> None:
    """Whatever fails is an error with its number, or mended by closing again; nothing is left behind."""
    names = [acl.ffi.string(acl.lib.cfw_acl_symbol(i)).decode() for i in range(acl.lib.cfw_acl_num_symbols())]

    def calls() -> dict[str, int]:
        return {name: simulator.calls(name) for name in names}

    # The thread has another context, so that every call has to change it and to give it back.
    with simulated.device(1) as other:

        def own() -> None:
            acl.check(acl.lib.cfw_aclrtSetCurrentContext(other.context), "aclrtSetCurrentContext")

        own()
        work(simulated)
        before = calls()
        work(simulated)
        used = {name: count - before[name] for name, count in calls().items()}
        expected = {"aclrtFree", "aclrtIpcMemClose", "aclrtResetDevice", "aclrtSetCurrentContext"}
        assert expected <= {name for name, count in used.items() if count}
        for name, count in used.items():
            for nth in range(1, count + 1):
                simulator.fail(name, 507899, nth)
                error = failure_of(simulated)
                assert error is None or (error.status == 507899 and error.detail), (name, nth)
                simulator.clear()
                acl.recent_message()
                own()
                held = simulator.statistics()
                left = (held["allocations"], held["host_allocations"], held["streams"], held["events"], held["exports"])
                assert left == (0, 0, 0, 0, 0), (name, nth)
