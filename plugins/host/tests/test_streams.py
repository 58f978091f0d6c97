"""Memory over TCP between two processes of this host: bytes, ends, deadlines, and what one link costs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachefw
from cachefw.memory import Access, MemoryKind, MemoryRegion
from cachefw.plugins import catalogue
from cachefw.testing.sessions import sessions
from cachefw.transport import Batch, Operation

TCP = {"paths": ["tcp"]}
MIB = 2**20


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"host_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


processes = _load("test_processes")
pattern, running_peer = processes.pattern, processes.running_peer


@contextlib.contextmanager
def linked(**settings: Any) -> Iterator[tuple[Any, cachefw.Node, cachefw.Link]]:
    """A process, a node here, and their link."""
    chosen = {**TCP, **settings}
    with (
        running_peer(**chosen) as peer,
        cachefw.Node(2, transports=["host"], settings={"host": chosen}) as node,
    ):
        yield peer, node, node.link(peer.about["address"])


def target(node: cachefw.Node, size: int) -> tuple[np.ndarray, cachefw.Memory]:
    owner = np.zeros(size, np.uint8)
    return owner, node.cache_manager.register_memory(owner)


@pytest.mark.parametrize("shared", [True, False])
def test_bytes_are_read_and_written_where_they_belong(shared: bool) -> None:
    size = 9 * MIB + 13
    with linked() as (peer, node, link):
        there = peer.make(size, shared=shared)
        here, memory = target(node, size)
        address = memory.region.address
        read = link.read(address, there["address"], size)
        assert read.path == "tcp"
        assert (here == pattern(7, 0, size)).all()
        start, length = 4097, 5 * MIB + 1
        here[start : start + length] = pattern(8, start, length)
        assert link.write(address + start, there["address"] + start, length).path == "tcp"
        end = start + length
        for seed, first, count in ((8, start, length), (7, 0, start), (7, end, size - end)):
            assert peer.tell("check", number=there["number"], seed=seed, start=first, length=count)["same"]


def test_scattered_pieces_in_one_call() -> None:
    count, length = 5000, 300
    with linked() as (peer, node, link):
        there = peer.make(count * 512, shared=False)
        here, memory = target(node, count * 512)
        order = np.random.default_rng(5).permutation(count).astype(np.uint64) * np.uint64(512)
        link.read(order + np.uint64(memory.region.address), order + np.uint64(there["address"]), [length] * count)
        whole, expected = here.reshape(count, 512), pattern(7, 0, count * 512).reshape(count, 512)
        assert (whole[:, :length] == expected[:, :length]).all()
        assert not whole[:, length:].any()


def test_the_end_that_was_dialled_reads_and_writes_too() -> None:
    settings = {"host": {**TCP, "streams": 3}}
    with (
        cachefw.Node(1, "127.0.0.1:0", transports=["host"], settings=settings) as one,
        cachefw.Node(2, transports=["host"], settings=settings) as two,
    ):
        two.link(one.address)
        link = one.links[0]
        size = 20 * MIB
        here, there = np.zeros(size, np.uint8), pattern(3, 0, size)
        own = one.cache_manager.register_memory(here)
        other = two.cache_manager.register_memory(there, remote_accessible=True)
        for _ in range(3):
            here[:] = 0
            link.read(own.region.address, other.region.address, size)
            assert (here == there).all()
        here[:] = pattern(4, 0, size)
        link.write(own.region.address, other.region.address, size)
        assert (there == here).all()


def test_tcp_is_not_taken_on_one_host_unless_it_is_named() -> None:
    with running_peer() as peer, cachefw.Node(2, transports=["host"]) as node:
        link = node.link(peer.about["address"])
        there = peer.make(4096, shared=False)
        _, memory = target(node, 4096)
        assert link.read(memory.region.address, there["address"], 4096).path == "cma"
    named = {"host": {"paths": ["shm", "tcp"]}}
    with running_peer() as peer, cachefw.Node(2, transports=["host"], settings=named) as node:
        link = node.link(peer.about["address"])
        foreign, shared = peer.make(4096, shared=False), peer.make(4096, shared=True)
        _, memory = target(node, 4096)
        assert link.read(memory.region.address, foreign["address"], 4096).path == "tcp"
        assert link.read(memory.region.address, shared["address"], 4096).path == "shm"


def test_withdrawn_memory_is_not_served_any_more() -> None:
    with linked() as (peer, node, link):
        there = peer.make(MIB, shared=False)
        _, memory = target(node, MIB)
        prepared = link.prepare(Operation.READ, memory.region.address, there["address"], 4096)
        prepared.post()
        peer.tell("drop", number=there["number"])
        with pytest.raises(cachefw.BrokenError, match="withdrew memory"):
            prepared.post()
        again = peer.make(MIB, shared=False)
        link.read(memory.region.address, again["address"], MIB)


def test_a_killed_peer_breaks_its_link_and_no_other() -> None:
    with linked() as (peer, node, link), running_peer(**TCP) as healthy:
        size = 16 * MIB
        there = peer.make(size, shared=True)
        _, memory = target(node, size)
        prepared = link.prepare(Operation.READ, memory.region.address, there["address"], size)
        prepared.post()
        transfer = prepared.post(wait=False)
        os.kill(peer.about["pid"], signal.SIGKILL)
        peer.process.wait(30)
        assert transfer.wait(30)
        with pytest.raises(cachefw.BrokenError):
            post_often(prepared)
        # Both peers have the same cluster id: the new one takes the dead one's place.
        again = healthy.make(4096, shared=False)
        node.link(healthy.about["address"]).read(memory.region.address, again["address"], 4096)


def test_a_frozen_peer_is_waited_for_no_longer_than_was_said() -> None:
    with linked(tcp_timeout=60) as (peer, node, link):
        size = 12 * MIB
        there = peer.make(size, shared=False)
        here, memory = target(node, size)
        prepared = link.prepare(Operation.READ, memory.region.address, there["address"], size)
        prepared.post()
        here[:] = 0
        freeze(peer.about["pid"])
        try:
            with pytest.raises(cachefw.TransferTimeout) as caught:
                prepared.post(timeout=0.5)
            assert caught.value.facts["settled"] is False
            # Bytes may still land: the memory cannot be given back, and so not be used again.
            with pytest.raises(cachefw.CacheError):
                node.cache_manager.unregister_memory(memory)
        finally:
            os.kill(peer.about["pid"], signal.SIGCONT)
        deadline = time.monotonic() + 30
        while not (here == pattern(7, 0, size)).all():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        here[:] = 0
        prepared.post()
        assert (here == pattern(7, 0, size)).all()


@pytest.mark.parametrize("operation", list(Operation))
def test_a_silent_peer_breaks_the_transfer_in_time(operation: Operation) -> None:
    with linked(tcp_timeout=0.5) as (peer, node, link):
        size = 16 * MIB
        there = peer.make(size, shared=False)
        _, memory = target(node, size)
        prepared = link.prepare(operation, memory.region.address, there["address"], size)
        prepared.post()
        freeze(peer.about["pid"])
        try:
            with pytest.raises(cachefw.BrokenError) as caught:
                prepared.post(timeout=30)
            assert caught.value.code == "peer.silent"
            assert caught.value.transport == "host"
        finally:
            os.kill(peer.about["pid"], signal.SIGCONT)


def test_no_late_byte_lands_once_the_link_is_closed() -> None:
    """A read is settled by closing the sockets here: what the peer sends afterwards meets nobody."""
    with linked(tcp_timeout=60) as (peer, node, link):
        size = 12 * MIB
        there = peer.make(size, shared=False)
        here, memory = target(node, size)
        prepared = link.prepare(Operation.READ, memory.region.address, there["address"], size)
        prepared.post()
        freeze(peer.about["pid"])
        try:
            with pytest.raises(cachefw.TransferTimeout):
                prepared.post(timeout=0.2)
            link.channel.close()
            here[:] = 0x5A
        finally:
            os.kill(peer.about["pid"], signal.SIGCONT)
        time.sleep(0.5)
        assert (here == 0x5A).all()


def freeze(pid: int) -> None:
    """Stop a child, and return when all of its threads have stopped, which takes a moment."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def post_often(prepared: cachefw.PreparedTransfer) -> None:
    for _ in range(1000):
        prepared.post()


def use_often(channel: Any, prepared: Any) -> cachefw.CacheError | None:
    """Why a channel does not work, None when it does."""
    try:
        for _ in range(3):
            transfer = channel.post(prepared)
            assert transfer.wait(20)
            if transfer.error is not None:
                return transfer.error
    except cachefw.CacheError as error:
        return error
    return None


def cut_everything() -> int:
    """Cut each TCP connection of this process; how many ends there were."""
    cut = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(path.name))) as copy:
                    if copy.family == socket.AF_INET and copy.getpeername():
                        copy.shutdown(socket.SHUT_RDWR)
                        cut += 1
    return cut


class Ends:
    """Two transports of this process, which dial each other over TCP."""

    def __init__(self, **settings: Any) -> None:
        self.info = catalogue.get("host").info
        self.one, self.two = (self._open(settings) for _ in "12")

    def _open(self, settings: Any) -> Any:
        transport = self.info.factory()
        transport.info = self.info
        transport.open({**TCP, **settings})
        return transport

    def connect(self) -> tuple[Any, Any]:
        """A channel from one to two, and back; two was dialled."""
        ours, theirs = sessions()
        back = self.two.connect(self.one.card(), 5.0, theirs)
        return self.one.connect(self.two.card(), 5.0, ours), back

    def close(self) -> None:
        self.one.close()
        self.two.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def region(array: np.ndarray, access: Access = Access.BOTH) -> MemoryRegion:
    return MemoryRegion(int(array.ctypes.data), array.nbytes, MemoryKind.HOST, access)


def batch(local: int, remote: int, length: int) -> Batch:
    return Batch(*(np.array([value], np.uint64) for value in (local, remote, length, 1)))


@pytest.mark.parametrize("access", [Access.NONE, Access.READ, Access.WRITE, Access.BOTH])
def test_rights_are_held_where_memory_is_served(ends: Ends, access: Access) -> None:
    there, here = np.full(4096, 3, np.uint8), np.full(4096, 4, np.uint8)
    held = ends.two.register(region(there, access))
    ends.one.register(region(here))
    channel, _ = ends.connect()
    # What the initiator believes does not count.
    channel.attach(1, region(there), ends.two.describe(held))
    for operation, right in ((Operation.READ, Access.READ), (Operation.WRITE, Access.WRITE)):
        here[:], there[:] = 4, 3
        transfer = channel.post(channel.prepare(operation, batch(region(here).address, region(there).address, 4096)))
        assert transfer.wait(20)
        if right in access:
            assert transfer.error is None
            assert (here == there).all()
        else:
            assert transfer.error.code == "memory.rights"
            assert transfer.error.facts["failed"] == (0,)
            assert (here == 4).all()
            assert (there == 3).all()


def test_memory_that_was_not_described_is_not_served(ends: Ends) -> None:
    there, secret, here = (np.full(4096, value, np.uint8) for value in (3, 9, 4))
    held = ends.two.register(region(there))
    ends.two.register(region(secret))
    channel, _ = ends.connect()
    channel.attach(1, region(there), ends.two.describe(held))
    for address in (region(secret).address, region(there).address + 1, region(there).address - 1):
        transfer = channel.post(channel.prepare(Operation.READ, batch(region(here).address, address, 4096)))
        assert transfer.wait(20)
        assert transfer.error.code == "memory.withdrawn"
        assert (here == 4).all()
    ends.two.unregister(held)
    transfer = channel.post(channel.prepare(Operation.READ, batch(region(here).address, region(there).address, 4096)))
    assert transfer.wait(20)
    assert transfer.error.code == "memory.withdrawn"


def test_nothing_is_served_once_the_other_end_closed_its_channel(ends: Ends) -> None:
    there, here = np.full(4096, 3, np.uint8), np.full(4096, 4, np.uint8)
    held = ends.two.register(region(there))
    channel, back = ends.connect()
    channel.attach(1, region(there), ends.two.describe(held))
    prepared = channel.prepare(Operation.READ, batch(region(here).address, region(there).address, 4096))
    assert channel.post(prepared).wait(20)
    here[:] = 4
    back.close()
    assert use_often(channel, prepared) is not None
    assert (here == 4).all()


def test_a_hundred_links_cost_little_and_no_thread(ends: Ends) -> None:
    there, here = np.full(4096, 3, np.uint8), np.full(4096, 4, np.uint8)
    held = ends.two.register(region(there))

    def use(channel: Any) -> None:
        channel.attach(1, region(there), ends.two.describe(held))
        transfer = channel.post(
            channel.prepare(Operation.READ, batch(region(here).address, region(there).address, 4096))
        )
        assert transfer.wait(20)
        assert transfer.error is None

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    kept = [ends.connect()]
    use(kept[0][0])
    threads, before = len(os.listdir("/proc/self/task")), resident()
    for _ in range(100):
        kept.append(ends.connect())
        use(kept[-1][0])
    assert len(os.listdir("/proc/self/task")) == threads
    # Both ends are in this process.
    assert resident() - before <= 100 * 2 * 2 * MIB
    for channel, back in kept:
        channel.close()
        back.close()


def test_a_link_ends_while_threads_post(ends: Ends) -> None:
    there, here = np.full(MIB, 3, np.uint8), np.full(MIB, 4, np.uint8)
    held = ends.two.register(region(there))
    for size in (64, 4096, MIB):
        channel, back = ends.connect()
        channel.attach(1, region(there), ends.two.describe(held))
        prepared = channel.prepare(Operation.READ, batch(region(here).address, region(there).address, size))
        failures: list[BaseException] = []

        def work() -> None:
            try:
                while True:
                    transfer = channel.post(prepared)  # noqa: B023 - joined below
                    assert transfer.wait(20)
                    if transfer.error is not None:
                        raise transfer.error
            except cachefw.CacheError as error:
                failures.append(error)  # noqa: B023

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        (channel if size != 4096 else back).close()
        for thread in threads:
            thread.join(30)
        assert len(failures) == 2
        channel.close()


def test_the_end_that_was_dialled_can_ask_again_after_its_streams_were_cut() -> None:
    made = Ends(tcp_timeout=0.5)
    try:
        there, here = np.full(MIB, 3, np.uint8), np.full(MIB, 4, np.uint8)
        held = made.one.register(region(there))
        _, back = made.connect()
        back.attach(1, region(there), made.one.describe(held))
        prepared = back.prepare(Operation.READ, batch(region(here).address, region(there).address, MIB))
        assert use_often(back, prepared) is None
        # Whatever cuts connections on the way.
        # One end at least: the other may have seen it before its turn came.
        assert cut_everything() >= 1
        deadline = time.monotonic() + 30
        while use_often(back, prepared) is not None:
            assert time.monotonic() < deadline
        assert (here == 3).all()
    finally:
        made.close()
