"""What a person with two NPUs should see: `CACHEFW_HCCS_HARDWARE=1 pytest -m hardware plugins/hccs`.

With ``CACHEFW_ASCENDCL=simulator`` besides, the same tests run on the simulator; that tells about the tests.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cachefw_ascendcl import CopyKind, Device, MallocPolicy, Runtime
from cachefw_hccs.profiles import UNKNOWN, for_soc

import cachefw
from cachefw.errors import BrokenError
from cachefw.memory import MemoryKind

pytestmark = pytest.mark.hardware

PEER = Path(__file__).with_name("peer.py")
MIB = 2**20
SIZE = 6 * MIB
REFUSED = 507899
SECONDS = 120

# A process that was not admitted: it says which code its import is refused with.
STRANGER = """
import sys
from cachefw_ascendcl import Runtime
from cachefw.errors import CacheError
with Runtime() as runtime, runtime.device(0) as device:
    try:
        device.import_key(bytes.fromhex(sys.argv[1])).close()
    except CacheError as error:
        print(error.status)
"""


@pytest.fixture
def device() -> Iterator[Device]:
    with Runtime() as runtime, runtime.device(0) as device:
        yield device


@pytest.fixture
def node() -> Iterator[cachefw.Node]:
    with cachefw.Node(2, transports=["hccs"], settings={"hccs": {"device": 0}}) as node:
        yield node


class Peer:
    """A node on device 1 in another process, with one piece of memory that holds the pattern of seed 0."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PEER), json.dumps([SIZE])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        about = self.answer()
        self.address: str = about["address"]
        (self.memory,) = about["memory"]

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        assert line, f"the peer ended with {self.process.wait(SECONDS)}"
        return json.loads(line)

    def holds(self, seed: int, start: int, length: int) -> bool:
        """Whether a part of its memory is that part of a pattern."""
        order = {"do": "check", "number": 0, "seed": seed, "start": start, "length": length}
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.answer()["same"]


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Runtime() as runtime:
        if runtime.device_count() < 2:
            pytest.skip("needs two devices")
    peer = Peer()
    with peer.process:
        try:
            yield peer
            peer.process.stdin.close()
            assert peer.process.wait(SECONDS) == 0
        finally:
            peer.process.kill()


def pattern(seed: int, length: int) -> bytes:
    """As in peer.py."""
    unit = bytes((seed * 37 + place * 7 + place // 251) % 256 for place in range(4099))
    return (unit * (length // len(unit) + 1))[:length]


def put(device: Device, address: int, data: bytes) -> None:
    buffer = ctypes.create_string_buffer(data, len(data))
    device.copy(address, ctypes.addressof(buffer), len(data), CopyKind.HOST_TO_DEVICE)


def get(device: Device, address: int, length: int) -> bytes:
    buffer = ctypes.create_string_buffer(length)
    device.copy(ctypes.addressof(buffer), address, length, CopyKind.DEVICE_TO_HOST)
    return buffer.raw


def test_the_machine_is_one_of_the_table() -> None:
    with Runtime() as runtime, runtime.device(0):
        soc = runtime.soc_name()
    profile = for_soc(soc)
    assert profile is not UNKNOWN, f"SoC {soc!r} is in no profile"
    assert profile.supported, f"SoC {soc!r} is {profile.products}, which is not supported"


def test_the_runtime_is_the_one_that_was_asked_for() -> None:
    with cachefw.CacheManager(["hccs"]) as manager:
        simulated = os.environ.get("CACHEFW_ASCENDCL") == "simulator"
        assert manager.transport("hccs").remark == ("SIMULATED" if simulated else "")


def test_allocated_memory_passes_every_rule_and_can_be_registered(node: cachefw.Node) -> None:
    manager = node.cache_manager
    desc = cachefw.CacheDesc(2, (2, MIB), cachefw.DataType.DT_INT8)
    with manager.allocate(2 * desc.size, MemoryKind.DEVICE, alignment=2 * MIB) as memory:
        assert memory.address % (2 * MIB) == 0
        assert manager.transport("hccs").identify(memory.address, memory.length) in (MemoryKind.DEVICE, None)
        addrs = [memory.address, memory.address + desc.size]
        plan = manager.plan(desc, addrs)
        assert plan.ok, str(plan)
        cache = manager.register_cache(desc, addrs)
        manager.unregister_cache(cache.cache_id)


def test_bytes_go_to_the_device_and_come_back(node: cachefw.Node) -> None:
    manager = node.cache_manager
    with manager.allocate(SIZE, MemoryKind.DEVICE) as memory:
        out, back = bytearray(pattern(3, SIZE)), bytearray(SIZE)
        manager.copy(memory, out)
        manager.copy(back, memory)
        assert back == out


def test_a_peer_on_another_device_is_read_and_written(node: cachefw.Node, peer: Peer, device: Device) -> None:
    manager = node.cache_manager
    with manager.allocate(SIZE, MemoryKind.DEVICE) as memory:
        registered = manager.register_memory(memory)
        link = node.link(peer.address)
        assert link.read(memory.address, peer.memory, SIZE).path == "ipc"
        assert get(device, memory.address, SIZE) == pattern(0, SIZE)
        start, length = 4097, 3 * MIB
        put(device, memory.address, pattern(5, SIZE))
        link.write(memory.address + start, peer.memory + start, length)
        assert peer.holds(0, 0, start)
        assert peer.holds(5, start, length)
        assert peer.holds(0, start + length, SIZE - start - length)
        node.unlink(link)
        manager.unregister_memory(registered)


def test_scattered_blocks_arrive_where_they_belong(node: cachefw.Node, peer: Peer, device: Device) -> None:
    block, count = 32768, SIZE // 32768
    manager = node.cache_manager
    with manager.allocate(SIZE, MemoryKind.DEVICE) as memory:
        registered = manager.register_memory(memory)
        link = node.link(peer.address)
        order = [(7 * number + 3) % count for number in range(count)]
        local = [memory.address + number * block for number in range(count)]
        link.read(local, [peer.memory + number * block for number in order], [block] * count)
        whole, found = pattern(0, SIZE), get(device, memory.address, SIZE)
        for number, there in enumerate(order):
            assert found[number * block :][:block] == whole[there * block :][:block], f"block {there} in {number}"
        node.unlink(link)
        manager.unregister_memory(registered)


@pytest.mark.parametrize("past", [32, 4096, MIB])
def test_a_misaligned_export_is_refused_by_the_driver_and_by_the_rule(device: Device, past: int) -> None:
    with device.allocate(2 * SIZE, MallocPolicy.HUGE_ONLY) as memory:
        device.export(memory.address, SIZE).close()
        with pytest.raises(BrokenError) as caught:
            device.export(memory.address + past, SIZE).close()
        assert caught.value.status == REFUSED
        desc = cachefw.CacheDesc(1, (2, MIB), cachefw.DataType.DT_INT8)
        with (
            cachefw.CacheManager(["hccs"]) as manager,
            pytest.raises(cachefw.RegistrationError, match=rf"{past:,} bytes past a multiple of 2,097,152"),
        ):
            manager.register_cache(desc, [memory.address + past])


def test_a_process_that_is_not_admitted_cannot_import(node: cachefw.Node, peer: Peer) -> None:
    manager = node.cache_manager
    with manager.allocate(2 * MIB, MemoryKind.DEVICE) as memory:
        registered = manager.register_memory(memory)
        link = node.link(peer.address)
        link.read(memory.address, peer.memory, 4096)
        (there,) = link.memories
        key: bytes = msgspec.msgpack.decode(there.descriptions["hccs"])[1]
        stranger = subprocess.run(
            [sys.executable, "-c", STRANGER, key.hex()], capture_output=True, text=True, timeout=SECONDS, check=True
        )
        assert stranger.stdout.strip() == str(REFUSED)
        node.unlink(link)
        manager.unregister_memory(registered)
