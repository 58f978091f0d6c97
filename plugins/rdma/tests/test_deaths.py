"""Peers that are killed, at each step of a channel's and of a link's life, over tcp and over shared memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cachefw
from cachefw.memory import MemoryRegion
from cachefw.testing._usage import Usage
from cachefw.testing.sessions import sessions
from cachefw.transport import Batch, Channel, Operation, Transport

#: Seconds in which a peer's death has to be known. Two are promised, and UCX looks after processes in shared memory
#: twice a second; a busy machine is given more.
DEATH = 8.0
MIB = 2**20
WAYS = {"tcp": {"tls": "tcp,self"}, "shm": {"tls": "posix,cma,self"}}

both = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


class Near:
    """This end: an open transport, some memory, and a peer that stays alive."""

    def __init__(self, transport: Transport, alive: Any) -> None:
        self.transport = transport
        self.array = np.zeros(64 * MIB, np.uint8)
        transport.register(MemoryRegion(self.array.ctypes.data, self.array.nbytes))
        self._alive = self.connect(alive)
        self._there = self.attach(self._alive, alive.make(4096))

    def connect(self, peer: Any) -> Channel:
        return self.transport.connect(bytes.fromhex(peer.about["card"]), 10.0, sessions()[0])

    def attach(self, channel: Channel, there: dict[str, Any], size: int = 4096) -> int:
        channel.attach(1, MemoryRegion(there["address"], size), bytes.fromhex(there["description"]))
        return int(there["address"])

    def start(self, channel: Channel, there: int, size: int, operation: Operation = Operation.READ) -> Any:
        arrays = [np.array([value], np.uint64) for value in (self.array.ctypes.data, there, size, 1)]
        return channel.post(channel.prepare(operation, Batch(*arrays)))

    def goes_on(self) -> None:
        """Fail unless the peer that is alive is still reached, and a new channel to it can be opened."""
        transfer = self.start(self._alive, self._there, 4096)
        assert transfer.wait(10)
        assert transfer.error is None


@pytest.fixture
def near(ucx: Any, way: dict[str, Any], peer_of: Any, peer_module: Any) -> Iterator[Near]:
    transport = peer_module.open_transport(way)
    yield Near(transport, peer_of(bare=True, **way))
    transport.close()


def dies(action: Callable[[], Any]) -> cachefw.BrokenError:
    """The error with which something ends in time."""
    begin = time.monotonic()
    with pytest.raises(cachefw.BrokenError) as caught:
        action()
    assert time.monotonic() - begin < DEATH
    error = caught.value
    assert error.transport == "rdma"
    assert error.status is not None
    assert error.status < 0
    assert "UCS_ERR" in str(error)
    return error


def moved(transfer: Any) -> None:
    assert transfer.wait(DEATH), "not settled in time"
    if transfer.error is not None:
        raise transfer.error


@both
def test_before_it_is_connected_to(near: Near, way: Any, peer_of: Any) -> None:
    peer = peer_of(bare=True, **way)
    peer.kill()
    for _ in range(3):
        dies(lambda: near.connect(peer))
    near.goes_on()


@both
@pytest.mark.parametrize("operation", Operation, ids=lambda operation: operation.value)
def test_between_connecting_and_attaching(near: Near, way: Any, peer_of: Any, operation: Operation) -> None:
    peer = peer_of(bare=True, **way)
    there = peer.make(4096)
    channel = near.connect(peer)
    peer.kill()
    # A key is unpacked here, without the peer: this end may learn of the death only when bytes are to move.
    address = near.attach(channel, there)
    dies(lambda: moved(near.start(channel, address, 4096, operation)))
    dies(lambda: near.start(channel, address, 4096, operation))
    channel.detach(1)
    channel.close()
    near.goes_on()


@both
def test_between_attaching_and_posting(near: Near, way: Any, peer_of: Any) -> None:
    peer = peer_of(bare=True, **way)
    channel = near.connect(peer)
    address = near.attach(channel, peer.make(4096))
    moved(near.start(channel, address, 4096))
    peer.kill()
    dies(lambda: moved(near.start(channel, address, 4096)))
    channel.close()
    near.goes_on()


@both
def test_before_its_memory_is_detached_and_before_the_channel_is_closed(near: Near, way: Any, peer_of: Any) -> None:
    for step in ("detach", "close"):
        peer = peer_of(bare=True, **way)
        channel = near.connect(peer)
        near.attach(channel, peer.make(4096))
        begin = time.monotonic()
        if step == "close":
            channel.detach(1)
        peer.kill()
        if step == "detach":
            channel.detach(1)
        channel.close()
        assert time.monotonic() - begin < DEATH
        near.goes_on()


@both
def test_while_nobody_uses_the_connection_that_is_kept(near: Near, way: Any, peer_of: Any) -> None:
    peer = peer_of(bare=True, **way)
    near.connect(peer).close()
    peer.kill()
    dies(lambda: near.connect(peer))
    near.goes_on()


@pytest.mark.parametrize("way", [WAYS["tcp"]], ids=["tcp"])
@pytest.mark.parametrize("operation", Operation, ids=lambda operation: operation.value)
def test_during_a_transfer(near: Near, way: Any, peer_of: Any, operation: Operation) -> None:
    size = near.array.nbytes
    for delay in (0.0, 0.005, 0.05):
        peer = peer_of(bare=True, **way)
        channel = near.connect(peer)
        address = near.attach(channel, peer.make(size, fill=[]), size)
        running = [near.start(channel, address, size, operation) for _ in range(6)]
        time.sleep(delay)
        peer.kill()
        dies(lambda running=running: [moved(transfer) for transfer in running])
        assert all(transfer.wait(DEATH) for transfer in running)
        channel.close()
        near.goes_on()


@pytest.mark.parametrize("way", [WAYS["shm"]], ids=["shm"])
def test_during_a_transfer_in_shared_memory(near: Near, way: Any, peer_of: Any) -> None:
    # UCX 1.13 may lose such requests, and a peer that dies while it writes into a queue here may block that queue. So
    # what is promised is less: closing is quick, settles everything, and a new transport works.
    size = near.array.nbytes
    peer = peer_of(bare=True, **way)
    channel = near.connect(peer)
    address = near.attach(channel, peer.make(size, fill=[]), size)
    running = [near.start(channel, address, size) for _ in range(6)]
    peer.kill()
    begin = time.monotonic()
    channel.close()
    near.transport.close()
    assert time.monotonic() - begin < 10
    for transfer in running:
        assert transfer.settled
        assert transfer.error is None or isinstance(transfer.error, cachefw.CacheError)
    near.transport.open(way)
    other = peer_of(bare=True, **way)
    channel = near.connect(other)
    moved(near.start(channel, near.attach(channel, other.make(4096)), 4096))


@pytest.mark.parametrize("way", [WAYS["tcp"]], ids=["tcp"])
def test_deaths_leave_nothing_behind(near: Near, way: Any, peer_of: Any) -> None:
    def once() -> None:
        peer = peer_of(bare=True, **way)
        channel = near.connect(peer)
        address = near.attach(channel, peer.make(MIB), MIB)
        running = near.start(channel, address, MIB)
        peer.kill()
        assert running.wait(DEATH)
        dies(lambda: moved(near.start(channel, address, MIB)))
        channel.close()
        peer.end()

    once()
    before = Usage.now()
    for _ in range(5):
        once()
    near.goes_on()
    assert not before.leaked()


# --------------------------------------------------------------------------- over a link


@pytest.fixture
def node(ucx: Any, way: dict[str, Any]) -> Iterator[cachefw.Node]:
    with cachefw.Node(2, transports=["rdma"], settings={"rdma": way}) as node:
        yield node


def gone(node: cachefw.Node, link: cachefw.Link) -> None:
    """The link is known to be broken."""
    end = time.monotonic() + 10
    while link in node.links and time.monotonic() < end:
        time.sleep(0.01)
    assert link not in node.links


@both
def test_of_a_link_before_during_and_after(node: cachefw.Node, way: Any, peer_of: Any) -> None:
    manager = node.cache_manager
    array = np.zeros(MIB, np.uint8)
    memory = manager.register_memory(array, remote_accessible=True)
    # Before there is a link.
    peer = peer_of(**way)
    peer.kill()
    with pytest.raises(cachefw.CacheError):
        node.link(peer.about["address"], timeout=5)
    # With a link, before the memory that it knows of is given back: nobody is left to answer.
    peer = peer_of(**way)
    link = node.link(peer.about["address"])
    there = peer.make(MIB)["address"]
    link.read(array.ctypes.data, there, MIB)
    prepared = link.prepare(Operation.READ, array.ctypes.data, there, MIB)
    peer.kill()
    begin = time.monotonic()
    manager.unregister_memory(memory)
    assert time.monotonic() - begin < 6
    gone(node, link)
    with pytest.raises(cachefw.CacheError):
        prepared.post(timeout=5)
    # The node is as it was.
    memory = manager.register_memory(array, remote_accessible=True)
    peer = peer_of(**way)
    link = node.link(peer.about["address"])
    link.read(array.ctypes.data, peer.make(MIB)["address"], MIB)
    peer.kill()
    gone(node, link)
    node.unlink(link)
    assert not node.links
