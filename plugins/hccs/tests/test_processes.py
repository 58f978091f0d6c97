"""HCCS between two processes on two devices, over the simulator."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from cachefw_ascendcl import CopyKind, Device, Runtime, simulator

import cachefw
from cachefw.memory import MemoryKind

PEER = Path(__file__).with_name("peer.py")
MIB = 2**20


def _load_pattern() -> Any:
    spec = importlib.util.spec_from_file_location("hccs_test_peer", PEER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pattern


pattern = _load_pattern()


class Peer:
    """The other process."""

    def __init__(self, *sizes: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PEER), json.dumps(sizes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.about = self.answer()

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        assert line, f"the peer ended with {self.process.wait(10)}"
        return json.loads(line)

    def tell(self, do: str, **order: object) -> dict[str, Any]:
        self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self) -> None:
        self.process.stdin.close()
        assert self.process.wait(30) in (0, -signal.SIGKILL)
        self.process.stdout.close()


@contextlib.contextmanager
def running_peer(*sizes: int) -> Iterator[Peer]:
    peer = Peer(*sizes)
    try:
        yield peer
    finally:
        peer.end()


@pytest.fixture
def device() -> Iterator[Device]:
    with Runtime() as runtime, runtime.device(0) as device:
        yield device


@contextlib.contextmanager
def target(node: cachefw.Node, size: int) -> Iterator[int]:
    memory = node.cache_manager.allocate(size, MemoryKind.DEVICE)
    registered = node.cache_manager.register_memory(memory)
    yield memory.address
    if not node.closed:
        node.cache_manager.unregister_memory(registered)


def put(device: Device, address: int, data: bytes) -> None:
    buffer = ctypes.create_string_buffer(data, len(data))
    device.copy(address, ctypes.addressof(buffer), len(data), CopyKind.HOST_TO_DEVICE)


def get(device: Device, address: int, length: int) -> bytes:
    buffer = ctypes.create_string_buffer(length)
    device.copy(ctypes.addressof(buffer), address, length, CopyKind.DEVICE_TO_HOST)
    return buffer.raw


def test_device_memory_is_read_and_written_between_two_devices(device: Device) -> None:
    size = 6 * MIB
    with running_peer(size) as peer, cachefw.Node(2, transports=["hccs"]) as node, target(node, size) as here:
        link = node.link(peer.about["address"])
        assert link.transport == "hccs"
        done = link.read(here, peer.about["memory"][0], size)
        assert done.path == "ipc"
        assert get(device, here, size) == pattern(0, size)
        put(device, here + 4097, pattern(5, MIB))
        link.write(here + 4097, peer.about["memory"][0] + 4097, MIB)
        whole = pattern(0, size)
        whole = whole[:4097] + pattern(5, MIB) + whole[4097 + MIB :]
        assert peer.tell("check", number=0, seed=0, start=0, length=4097)["same"]
        link.read(here, peer.about["memory"][0], size)
        assert get(device, here, size) == whole


def test_scattered_blocks_of_many_regions_in_one_call(device: Device) -> None:
    regions, block, count = 5, 3000, 200
    with (
        running_peer(*[2 * MIB] * regions) as peer,
        cachefw.Node(2, transports=["hccs"]) as node,
        target(node, 4 * MIB) as here,
    ):
        link = node.link(peer.about["address"])
        chance = np.random.default_rng(3)
        where = chance.integers(0, regions, count)
        offsets = chance.integers(0, 2 * MIB - block, count)
        remote = [peer.about["memory"][r] + int(o) for r, o in zip(where, offsets, strict=True)]
        local = [here + int(slot) * 4096 for slot in chance.permutation(count)]
        link.read(local, remote, [block] * count)
        for at, region, offset in zip(local, where, offsets, strict=True):
            assert get(device, at, block) == pattern(int(region), int(offset) + block)[-block:]


def test_memory_that_is_withdrawn_is_closed_here_before_it_is_freed_there() -> None:
    with running_peer(2 * MIB) as peer, cachefw.Node(2, transports=["hccs"]) as node, target(node, 2 * MIB) as here:
        link = node.link(peer.about["address"])
        prepared = link.prepare(cachefw.Operation.READ, here, peer.about["memory"][0], MIB)
        prepared.post()
        assert peer.tell("drop", number=0) == {"exports": 0}
        with pytest.raises(cachefw.BrokenError, match="withdrew memory"):
            prepared.post()


def test_a_process_that_is_not_allowed_cannot_import() -> None:
    with running_peer(2 * MIB) as peer, cachefw.Node(2, transports=["hccs"]) as node, target(node, 2 * MIB) as here:
        link = node.link(peer.about["address"])
        link.read(here, peer.about["memory"][0], 4096)
        script = f"""
import sys
from cachefw_ascendcl import Runtime
from cachefw.errors import CacheError
with Runtime() as runtime, runtime.device(0) as device:
    try:
        device.import_key({_key_of(link)!r})
    except CacheError as error:
        print(error.status)
"""
        stranger = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
        )
    assert stranger.stdout.strip() == "507899"


def _key_of(link: cachefw.Link) -> bytes:
    (memory,) = link.memories
    return msgspec.msgpack.decode(memory.descriptions["hccs"])[1]


def test_a_peer_killed_before_its_memory_is_imported_is_named_and_the_node_goes_on(device: Device) -> None:
    with cachefw.Node(2, transports=["hccs"]) as node, target(node, 2 * MIB) as here:
        with running_peer(2 * MIB) as peer:
            link = node.link(peer.about["address"])
            os.kill(peer.process.pid, signal.SIGKILL)
            peer.process.wait(30)
            with pytest.raises(cachefw.BrokenError) as caught:
                link.read(here, peer.about["memory"][0], 4096)
            assert caught.value.peer or caught.value.transport == "hccs"
        with running_peer(2 * MIB) as other:
            again = node.link(other.about["address"])
            again.read(here, other.about["memory"][0], MIB)
            assert get(device, here, MIB) == pattern(0, MIB)


def test_a_peer_killed_after_its_memory_was_imported_breaks_the_link_alone(device: Device) -> None:
    with cachefw.Node(2, transports=["hccs"]) as node, target(node, 2 * MIB) as here:
        with running_peer(2 * MIB) as peer:
            link = node.link(peer.about["address"])
            link.read(here, peer.about["memory"][0], 4096)
            os.kill(peer.process.pid, signal.SIGKILL)
            peer.process.wait(30)
            with pytest.raises(cachefw.BrokenError):
                link.sync()
            assert node.links == []
        assert get(device, here, 4096) == pattern(0, 4096)


def test_two_hundred_rounds_leave_nothing_on_either_device() -> None:
    with cachefw.Node(2, transports=["hccs"]) as node, running_peer(2 * MIB) as peer:

        def round_() -> None:
            with target(node, 2 * MIB) as here:
                link = node.link(peer.about["address"])
                link.read(here, peer.about["memory"][0], 65536)
                node.unlink(link)

        round_()
        fds, used = len(os.listdir("/proc/self/fd")), simulator.statistics(0)
        for _ in range(200):
            round_()
        assert simulator.statistics(0) == used
        assert len(os.listdir("/proc/self/fd")) == fds


def test_registering_after_linking_is_refused_for_device_memory() -> None:
    with running_peer(2 * MIB) as peer, cachefw.Node(2, transports=["hccs"]) as node:
        memory = node.cache_manager.allocate(2 * MIB, MemoryKind.DEVICE)
        node.link(peer.about["address"])
        with pytest.raises(cachefw.RegistrationError, match="a link exists already") as caught:
            node.cache_manager.register_memory(memory)
        assert caught.value.code == "core.order"
        node.cache_manager.register_memory(memory, remote_accessible=False)
