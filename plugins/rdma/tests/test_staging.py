"""Device memory over RDMA, on the simulator: through host memory at this end, refused at the other."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cachefw_rdma.staging import BUFFERS, chunks_of
from hypothesis import given, settings
from hypothesis import strategies as st

import cachefw
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.transport import Batch, Operation

KIB, MIB = 2**10, 2**20
#: Chunks of 64 KiB, so that a megabyte is many.
SMALL = {"staging_bytes": BUFFERS * 64 * KIB}
PEER = {"profile": "host-nic"}
WAYS = {"tcp": {"tls": "tcp,self"}, "shm": {"tls": "posix,cma,self"}}

#: Set where the simulator lets the CPU reach device memory.
OPEN = "CACHEFW_RDMA_TESTS_OPEN"

both = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
tcp = pytest.mark.parametrize("way", [WAYS["tcp"]], ids=["tcp"])


@pytest.fixture
def mode() -> str:
    """Whether the CPU reaches device memory: as on hardware, it does not."""
    return "open" if os.environ.get(OPEN) == "1" else "strict"


@pytest.fixture
def simulator(ucx: Any, monkeypatch: pytest.MonkeyPatch, mode: str) -> Any:
    pytest.importorskip("cachefw_ascendcl")
    from cachefw_ascendcl import simulator, simulator_path

    if simulator_path() is None:
        pytest.skip("cachefw-ascendcl was built without its simulator")
    monkeypatch.setenv("CACHEFW_ASCENDCL", "simulator")
    monkeypatch.setenv("ACLSIM_MODE", mode)
    monkeypatch.setenv("ACLSIM_MACHINE", f"rdma-tests-{os.getpid()}-{mode}")
    return simulator


class Device:
    """Memory of a device, and a way to its bytes that is not the transport's."""

    def __init__(self) -> None:
        from cachefw_ascendcl import Runtime

        self._runtime = Runtime()
        self._device = self._runtime.device()
        self._kept: list[Any] = []

    def make(self, size: int) -> MemoryRegion:
        self._kept.append(self._device.allocate(size))
        region = MemoryRegion(self._kept[-1].address, size, MemoryKind.DEVICE)
        self.put(region.address, np.zeros(size, np.uint8))
        return region

    def put(self, address: int, data: np.ndarray) -> None:
        from cachefw_ascendcl import CopyKind

        self._device.copy(address, data.ctypes.data, data.nbytes, CopyKind.HOST_TO_DEVICE)

    def get(self, address: int, size: int) -> np.ndarray:
        from cachefw_ascendcl import CopyKind

        data = ctypes.create_string_buffer(size)
        self._device.copy(ctypes.addressof(data), address, size, CopyKind.DEVICE_TO_HOST)
        return np.frombuffer(data.raw, np.uint8)

    def close(self) -> None:
        for allocation in self._kept:
            allocation.close()
        self._device.close()
        self._runtime.close()


@pytest.fixture
def device(simulator: Any) -> Iterator[Device]:
    device = Device()
    yield device
    simulator.clear()
    device.close()


@pytest.fixture
def node(device: Device, way: dict[str, Any]) -> Iterator[cachefw.Node]:
    settings = {**way, **SMALL, "profile": "host-nic"}
    with cachefw.Node(2, transports=["rdma"], settings={"rdma": settings}) as node:
        yield node


def register(node: cachefw.Node, region: MemoryRegion) -> int:
    node.cache_manager.register_memory(region, remote_accessible=False)
    return region.address


def scattered(count: int, slot: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of pieces, not two of them neighbours, and lengths that differ."""
    places = np.random.default_rng(3).permutation(count).astype(np.uint64) * np.uint64(slot)
    return places, np.array([length + 13 * (index % 5) for index in range(count)], np.uint64)


# --------------------------------------------------------------------------- bytes


@both
def test_device_memory_is_read_into_and_written_from(node, device, way, peer_of, peer_module) -> None:
    peer = peer_of(**way, **PEER)
    link = node.link(peer.about["address"])
    size = 3 * MIB + 11
    there = peer.make(size)
    region = device.make(size + 128)
    here = register(node, region) + 64
    read = link.read(here, there["address"], size)
    assert read.path.startswith(f"staged+{way['tls'].partition(',')[0]}")
    assert (device.get(here, size) == peer_module.pattern(7, 0, size)).all()
    # Nothing beside it.
    assert not device.get(region.address, 64).any()
    assert not device.get(here + size, 64).any()
    start, length = 4099, 2 * MIB + 5
    device.put(here + start, peer_module.pattern(9, start, length))
    link.write(here + start, there["address"] + start, length, notify=b"9")
    # Told of it, the peer has all of it, also of what was staged.
    assert peer.tell("notified", number=there["number"], start=start, length=length) == {"payload": "9", "same": True}
    assert node.cache_manager.transport("rdma").remark == "SIMULATED"
    for seed, first, count in ((9, start, length), (7, 0, start), (7, start + length, size - start - length)):
        assert peer.tell("check", number=there["number"], seed=seed, start=first, length=count)["same"]


@both
def test_many_pieces_of_device_and_of_host_memory(node, device, way, peer_of, peer_module) -> None:
    peer = peer_of(**way, **PEER)
    link = node.link(peer.about["address"])
    count, slot = 600, 4096
    there = peer.make(count * slot)
    region = device.make(count * slot)
    on_device, on_host = register(node, region), np.zeros(count * slot, np.uint8)
    node.cache_manager.register_memory(on_host)
    places, lengths = scattered(count, slot, 2500)
    bases = np.where(np.arange(count) % 3 == 1, on_host.ctypes.data, on_device).astype(np.uint64)
    prepared = link.prepare(Operation.READ, bases + places, places + np.uint64(there["address"]), lengths)
    for _ in range(2):  # posted again, it finds what it made
        prepared.post()
    image = [device.get(on_device, count * slot), on_host]
    for index, (place, length) in enumerate(zip(places.tolist(), lengths.tolist(), strict=True)):
        side = int(index % 3 == 1)
        expected = peer_module.pattern(7, place, length)
        assert (image[side][place : place + length] == expected).all(), index
        assert not image[side][place + length : place + slot].any()
        assert not image[1 - side][place : place + slot].any()


@tcp
def test_whole_caches_are_pulled_into_device_memory(node, device, way, peer_of) -> None:
    # The peer has host memory, this end device memory: blocks, as a cache.
    peer = peer_of(**way, **PEER)
    there = peer.tell("cache", tensors=3, blocks=8, block=50 * KIB)
    desc = cachefw.CacheDesc(3, (8, 50 * KIB), cachefw.DataType.DT_INT8, cachefw.Placement.DEVICE)
    regions = [device.make(desc.size) for _ in range(3)]
    manager = node.cache_manager
    cache = manager.register_blocks_cache(desc, [region.address for region in regions], remote_accessible=False)
    node.link(peer.about["address"])
    manager.pull_blocks(cachefw.BlocksCacheKey(1), cache, [1, 5, 6], [7, 0, 3], tensor_num_per_layer=1)
    for region, data in zip(regions, there["tensors"], strict=True):
        for source, target in zip([1, 5, 6], [7, 0, 3], strict=True):
            found = device.get(region.address + target * 50 * KIB, 50 * KIB)
            assert int(found[0]) == data[source]
            assert (found == found[0]).all()


@tcp
def test_copies_within_the_process(node, device, way, peer_module) -> None:
    one, two = (device.make(MIB) for _ in range(2))
    for region in (one, two):
        register(node, region)
    source, back = peer_module.pattern(3, 0, MIB), np.zeros(MIB, np.uint8)
    copy = node.cache_manager.copy
    copy(one, source)
    copy(two, one)
    copy(back, two)
    assert (back == source).all()
    other = np.zeros(MIB, np.uint8)
    copy([other, MemoryRegion(two.address, 4096, MemoryKind.DEVICE)], [source, back[4096:8192]])
    assert (other == source).all()
    assert (device.get(two.address, 4096) == source[4096:8192]).all()


# --------------------------------------------------------------------------- bounds


@tcp
def test_the_buffers_are_few_whatever_is_posted(node, device, way, peer_of) -> None:
    peer = peer_of(**way, **PEER)
    link = node.link(peer.about["address"])
    there = peer.make(8 * MIB)["address"]
    here = register(node, device.make(16 * MIB))
    transfers = [link.read(here + index * MIB, there + (index % 8) * MIB, MIB, wait=False) for index in range(16)]
    for transfer in transfers:
        transfer.result(30)
    stage = node.cache_manager.transport("rdma").provider._stage
    assert 1 <= len(stage._made) <= BUFFERS
    assert len(stage._free) == len(stage._made)
    assert all(buffer.address % 4096 == 0 for buffer in stage._made)


@tcp
def test_a_deadline_that_passes_says_that_nothing_has_settled(
    node, device, way, peer_of, peer_module, simulator
) -> None:
    peer = peer_of(**way, **PEER)
    link = node.link(peer.about["address"])
    there, region = peer.make(MIB), device.make(MIB)
    here = register(node, region)
    prepared = link.prepare(Operation.READ, here, there["address"], MIB)
    simulator.pause()
    with pytest.raises(cachefw.TransferTimeout) as caught:
        prepared.post(timeout=0.3)
    assert caught.value.settled is False
    (transfer,) = link.inflight
    assert not transfer.settled
    simulator.pause(False)
    assert transfer.wait(10)
    assert transfer.error is None
    assert (device.get(here, MIB) == peer_module.pattern(7, 0, MIB)).all()


@tcp
def test_a_frozen_peer_is_bounded_and_nothing_lands_later(node, device, way, peer_of) -> None:
    peer = peer_of(**way, **PEER)
    link = node.link(peer.about["address"])
    there, region = peer.make(4 * MIB), device.make(4 * MIB)
    here = register(node, region)
    link.read(here, there["address"], 4096)
    prepared = link.prepare(Operation.READ, here, there["address"], 4 * MIB)
    peer.signal(signal.SIGSTOP)
    with pytest.raises(cachefw.TransferTimeout):
        prepared.post(timeout=0.3)
    (transfer,) = link.inflight
    begin = time.monotonic()
    node.unlink(link)
    assert time.monotonic() - begin < 15
    assert transfer.settled
    assert isinstance(transfer.error, cachefw.CacheError)
    before = device.get(here, 4 * MIB)
    peer.signal(signal.SIGCONT)
    other = peer_of(**way, **PEER)
    again = node.link(other.about["address"])
    again.read(here, other.make(4096, seed=8)["address"], 4096)
    assert (device.get(here, 4 * MIB)[4096:] == before[4096:]).all()


@tcp
def test_a_killed_peer_ends_it(node, device, way, peer_of) -> None:
    peer = peer_of(**way, **PEER)
    link = node.link(peer.about["address"])
    there, region = peer.make(64 * MIB), device.make(64 * MIB)
    here = register(node, region)
    transfers = [link.read(here, there["address"], 64 * MIB, wait=False) for _ in range(6)]
    peer.kill()
    begin = time.monotonic()
    for transfer in transfers:
        assert transfer.wait(10)
    assert time.monotonic() - begin < 8
    assert isinstance(transfers[-1].error, cachefw.CacheError)
    stage = node.cache_manager.transport("rdma").provider._stage
    other = peer_of(**way, **PEER)
    node.link(other.about["address"]).read(here, other.make(MIB)["address"], MIB)
    assert len(stage._free) == len(stage._made)


@tcp
def test_a_device_that_fails_is_named_and_the_next_transfer_works(
    node, device, way, peer_of, peer_module, simulator
) -> None:
    peer = peer_of(**way, **PEER)
    link = node.link(peer.about["address"])
    there, region = peer.make(MIB), device.make(MIB)
    here = register(node, region)
    simulator.fail("task", 507899, 3)
    with pytest.raises(cachefw.BrokenError) as caught:
        link.read(here, there["address"], MIB)
    assert (caught.value.transport, caught.value.status) == ("rdma", 507899)
    simulator.clear()
    link.read(here, there["address"], MIB)
    assert (device.get(here, MIB) == peer_module.pattern(7, 0, MIB)).all()


@tcp
def test_a_cancelled_transfer_settles_and_says_where(node, device, way, peer_of, simulator) -> None:
    peer = peer_of(**way, **PEER)
    link = node.link(peer.about["address"])
    there, region = peer.make(8 * MIB), device.make(8 * MIB)
    here = register(node, region)
    simulator.pause()
    transfer = link.read(here, there["address"], 8 * MIB, wait=False)
    told = threading.Event()
    transfer.add_done_callback(lambda _: told.set())
    transfer.cancel()
    assert not transfer.settled  # the device still has a part of it
    simulator.pause(False)
    assert transfer.wait(10)
    assert told.wait(10)
    assert isinstance(transfer.error, cachefw.TransferCancelled)
    assert transfer.error.facts["failed"] == (0,)


@tcp
def test_rounds_leave_nothing_behind(device, way, peer_of) -> None:
    from cachefw.testing._usage import Usage

    peer = peer_of(**way, **PEER)
    there, region = peer.make(MIB), device.make(MIB)

    def once() -> None:
        with cachefw.Node(2, transports=["rdma"], settings={"rdma": {**way, **SMALL, **PEER}}) as node:
            here = register(node, region)
            node.link(peer.about["address"]).read(here, there["address"], MIB)

    once()
    before = Usage.now()
    for _ in range(5):
        once()
    assert not before.leaked()


# --------------------------------------------------------------------------- what is refused


@tcp
def test_device_memory_of_the_peer_is_refused_with_the_way_out(node, way, peer_of) -> None:
    peer = peer_of(**way, **PEER, device_memory=True)
    link = node.link(peer.about["address"])
    there, fine = peer.about["device"], peer.make(4096)
    here = np.zeros(4096, np.uint8)
    node.cache_manager.register_memory(here)
    for operation in (link.read, link.write):
        with pytest.raises(cachefw.BrokenError, match=r"Have the peer write it .*peer_memory") as caught:
            operation(here.ctypes.data, there, 4096)
        assert (caught.value.code, caught.value.failed) == ("memory.device", (0,))
    link.read(here.ctypes.data, fine["address"], 4096)
    assert peer.process.poll() is None


def child(code: str, **environment: str) -> str:
    """What a fresh process prints: in this one the simulator was loaded, which is seen."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CACHEFW_ASCENDCL", "ACLSIM"))}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**clean, **environment},
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


REGISTERS = """
import cachefw
from cachefw.memory import MemoryKind, MemoryRegion

region = MemoryRegion(2**44, 4096, MemoryKind.DEVICE)
with cachefw.Node(2, transports=["rdma"], settings={"rdma": {"tls": "tcp"}}) as node:
    for register in (
        lambda: node.cache_manager.register_memory(region, remote_accessible=False),
        lambda: node.cache_manager.transport("rdma").register(region),
    ):
        try:
            register()
        except cachefw.CacheError as error:
            refused = [finding.rule for finding in error.findings if finding.outcome is cachefw.Outcome.REFUSED]
            print(type(error).__name__, refused, "cachefw-rdma[ascendcl]" in str(error))
    assert not node.cache_manager.memories
"""


def test_without_a_runtime_device_memory_is_refused(ucx) -> None:
    assert child(REGISTERS).splitlines() == [
        "RegistrationValueError ['rdma.device_memory'] True",
        "UnsupportedOperation [] True",
    ]


def test_a_runtime_that_is_not_there_is_said_before_anything_is_registered(ucx) -> None:
    # Its rules are not known then, so that the transport itself has to refuse.
    assert child(REGISTERS, CACHEFW_ASCENDCL="/nowhere").splitlines() == [
        "RegistrationError [] True",
        "UnsupportedOperation [] True",
    ]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"device": -1}, "device must be"),
        ({"device": True}, "device must be"),
        ({"staging_bytes": 1}, "staging_bytes must be"),
        ({"staging_bytes": 2**40}, "staging_bytes must be"),
        ({"peer_memory": 1}, "peer_memory must be True or False"),
        ({"peer_memory": True}, "needs a network card"),
    ],
)
def test_wrong_settings(ucx, setting, said) -> None:
    with pytest.raises(cachefw.RequestError, match=said):
        cachefw.Node(2, transports=["rdma"], settings={"rdma": {"tls": "tcp", **setting}})


@both
@pytest.mark.skipif(os.environ.get(OPEN) != "1", reason="runs in a process of its own, by the test below")
def test_declared_peer_memory_is_reached_at_both_ends(device, way, peer_of, peer_module) -> None:
    declared = {**way, **PEER, "peer_memory": True}
    peer = peer_of(**declared, device_memory=True)
    region = device.make(MIB)
    with cachefw.Node(2, transports=["rdma"], settings={"rdma": declared}) as node:
        here, there = register(node, region), peer.about["device"]
        link = node.link(peer.about["address"])
        for size in (MIB, 24):
            read = link.read(here, there, size)
            assert not read.path.startswith("staged")
            assert (device.get(here, size) == peer_module.pattern(7, 0, size)).all()
        device.put(here, peer_module.pattern(5, 0, MIB))
        link.write(here, there, MIB)
        assert peer.tell("check", number=None, seed=5, start=0, length=MIB)["same"]


def test_declared_peer_memory() -> None:
    # In the simulator's open mode the CPU does what the driver's peer-memory module lets a card do. A process has one
    # mode for its whole life.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "test_declared_peer_memory_is",
        __file__,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, OPEN: "1"}, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout or "skipped" in done.stdout


# --------------------------------------------------------------------------- cutting


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3000), st.booleans()), min_size=1, max_size=40),
    st.sampled_from([1, 7, 64, 1000, 4096]),
)
def test_chunks_cover_every_byte_once_and_fit(pieces: list[tuple[int, bool]], size: int) -> None:
    length = np.array([piece for piece, _ in pieces], np.uint64)
    ends = np.cumsum(length)
    batch = Batch(
        10**6 + 3 * (ends - length), 10**9 + 5 * (ends - length), length, np.arange(len(length), dtype=np.uint64)
    )
    items = np.flatnonzero([chosen for _, chosen in pieces]).astype(np.uint64)
    if not len(items):
        return
    chunks = list(chunks_of(batch, items, size))
    moved: dict[int, list[tuple[int, int]]] = {}
    for index, chunk in enumerate(chunks):
        total = int(chunk.length.sum())
        assert total == size or index == len(chunks) - 1
        assert 0 < total <= size
        # Packed without a gap.
        assert (chunk.offset == np.cumsum(chunk.length) - chunk.length).all()
        assert (chunk.regions == chunk.items).all()
        for item, on_device, remote, count in zip(chunk.items, chunk.device, chunk.remote, chunk.length, strict=True):
            into = int(on_device - batch.local[item])
            assert into == int(remote - batch.remote[item])
            moved.setdefault(int(item), []).append((into, int(count)))
    assert sorted(moved) == items.tolist()
    for item, parts in moved.items():
        reached = 0
        for into, count in parts:
            assert into == reached
            reached += count
        assert reached == int(length[item])
