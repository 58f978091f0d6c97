"""The RDMA transport between two real processes, over tcp and shared memory: bytes, failures, and their bounds."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cachefw
from cachefw.memory import MemoryRegion
from cachefw.testing.sessions import sessions
from cachefw.transport import Batch, Operation, Transport

TCP = {"tls": "tcp,self"}
SHM = {"tls": "posix,cma,self"}
GIB = 2**30
#: Seconds in which a peer's death has to be known.
DEATH = 2.0

both = pytest.mark.parametrize("settings", [TCP, SHM], ids=["tcp", "shm"])


@pytest.fixture
def pattern(peer_module: Any) -> Callable[[int, int, int], np.ndarray]:
    return peer_module.pattern


@pytest.fixture
def node(ucx: tuple[int, int, int], settings: dict[str, object]) -> Iterator[cachefw.Node]:
    with cachefw.Node(2, transports=["rdma"], settings={"rdma": settings}) as node:
        yield node


def target(node: cachefw.Node, size: int) -> tuple[np.ndarray, int]:
    array = np.zeros(size, np.uint8)
    memory = node.cache_manager.register_memory(array)
    return array, memory.region.address


@both
def test_bytes_are_read_and_written(peer_of: Any, node: Any, settings: Any, pattern: Any) -> None:
    peer = peer_of(**settings)
    link = node.link(peer.about["address"])
    size = 9 * 2**20 + 13
    there = peer.make(size)
    here, address = target(node, size)
    read = link.read(address, there["address"], size)
    assert read.path.startswith(settings["tls"].partition(",")[0])
    assert (here == pattern(7, 0, size)).all()
    start, length = 4097, 5 * 2**20 + 1
    here[start : start + length] = pattern(8, start, length)
    link.write(address + start, there["address"] + start, length)
    end = start + length
    for seed, first, count in ((8, start, length), (7, 0, start), (7, end, size - end)):
        assert peer.tell("check", number=there["number"], seed=seed, start=first, length=count)["same"]


@both
def test_more_pieces_than_are_in_flight(peer_of: Any, node: Any, settings: Any, pattern: Any) -> None:
    peer = peer_of(**settings)
    link = node.link(peer.about["address"])
    count, length = 5000, 300
    there = peer.make(count * 512)
    here, address = target(node, count * 512)
    order = np.random.default_rng(5).permutation(count).astype(np.uint64) * np.uint64(512)
    link.read(order + np.uint64(address), order + np.uint64(there["address"]), np.full(count, length))
    whole, expected = here.reshape(count, 512), pattern(7, 0, count * 512).reshape(count, 512)
    assert (whole[:, :length] == expected[:, :length]).all()
    assert not whole[:, length:].any()


@both
def test_offsets_past_4_gib_reach_the_right_bytes(peer_of: Any, node: Any, settings: Any, pattern: Any) -> None:
    peer = peer_of(**settings)
    link = node.link(peer.about["address"])
    size, length = 5 * GIB, 3 * 2**20 + 5
    starts = [0, 4 * GIB - 11, size - length]
    there = peer.make(size, fill=[(start, length) for start in starts])
    here, address = target(node, size)
    link.read([address + s for s in starts], [there["address"] + s for s in starts], [length] * 3)
    for start in starts:
        assert (here[start : start + length] == pattern(7, start, length)).all()


@both
@pytest.mark.parametrize("wait", [True, False], ids=["waiting", "background"])
def test_notification_comes_after_the_last_byte(
    peer_of: Any, node: Any, settings: Any, pattern: Callable[[int, int, int], np.ndarray], wait: bool
) -> None:
    peer = peer_of(**settings)
    link = node.link(peer.about["address"])
    pieces, length = 96, 40 * 2**10 + 8
    size = pieces * length
    there = peer.make(size)
    here, address = target(node, size)
    order = np.random.default_rng(1).permutation(pieces).astype(np.uint64) * np.uint64(length)
    prepared = link.prepare(
        cachefw.Operation.WRITE,
        order + np.uint64(address),
        order + np.uint64(there["address"]),
        np.full(pieces, length),
    )
    for seed in range(10, 22):
        here[:] = pattern(seed, 0, size)
        transfer = prepared.post(wait=wait, notify=str(seed).encode())
        # The peer looks at all bytes as soon as it is told, whatever this end does meanwhile.
        told = peer.tell("notified", number=there["number"], start=0, length=size)
        assert told == {"payload": str(seed), "same": True}
        assert transfer.wait(10)
        assert transfer.error is None


@pytest.mark.parametrize("settings", [TCP], ids=["tcp"])
def test_a_range_beyond_published_memory_is_refused(peer_of: Any, node: Any, settings: Any) -> None:
    peer = peer_of(**settings)
    link = node.link(peer.about["address"])
    there = peer.make(2**20)
    _, address = target(node, 32 * 2**20)
    for start, length in ((0, 2**20 + 1), (2**20, 1), (-1, 16), (16 * 2**20, 4096)):
        with pytest.raises(cachefw.RequestError):
            link.read(address, there["address"] + start, length)
    link.read(address, there["address"], 2**20)
    assert peer.process.poll() is None


# ---------------------------------------------------------------- below the core


@pytest.fixture
def transport(ucx: tuple[int, int, int], peer_module: Any) -> Iterator[Transport]:
    transport = peer_module.open_transport(TCP)
    yield transport
    transport.close()


def batch(local: Any, remote: Any, length: Any, memory: int = 1) -> Batch:
    arrays = [np.atleast_1d(np.array(values, np.uint64)) for values in (local, remote, length)]
    return Batch(*arrays, np.full(len(arrays[0]), memory, np.uint64))


class Way:
    """A channel to a bare peer, with memory at both ends."""

    def __init__(self, transport: Transport, peer: Any, size: int = 64 * 2**20) -> None:
        self.there = peer.make(size, fill=[(0, 4096)])
        self.array = np.zeros(size, np.uint8)
        self.registered = transport.register(MemoryRegion(self.array.ctypes.data, size))
        self.channel = transport.connect(bytes.fromhex(peer.about["card"]), 10.0, sessions()[0])
        self.attach(size)

    def attach(self, size: int) -> None:
        region = MemoryRegion(self.there["address"], size)
        self.channel.attach(1, region, bytes.fromhex(self.there["description"]))

    def read(self, offset: int = 0, length: int = 4096) -> Any:
        address = self.array.ctypes.data
        return self.channel.prepare(Operation.READ, batch(address, self.there["address"] + offset, length))


def test_native_code_refuses_what_the_core_let_pass(transport: Transport, peer_of: Any) -> None:
    # Over tcp the target copies whatever it is asked for: out of range it would die.
    peer = peer_of(bare=True, **TCP)
    way = Way(transport, peer)
    size = way.array.nbytes
    for offset, length in ((0, size + 1), (size, 1), (-1, 16), (size - 15, 16), (2**40, 4096), (0, 2**64 - 1)):
        with pytest.raises(cachefw.BrokenError, match=r"piece 0 reaches beyond .*\(memory 1\)") as caught:
            way.read(offset, length)
        assert caught.value.failed == (0,)
        assert caught.value.code == "memory.outside"
    assert way.channel.post(way.read()).wait(10)
    assert peer.process.poll() is None


def test_a_description_of_more_memory_than_there_is_gets_refused(transport: Transport, peer_of: Any) -> None:
    peer = peer_of(bare=True, **TCP)
    way = Way(transport, peer)
    with pytest.raises(cachefw.BrokenError, match="about other memory"):
        way.attach(way.array.nbytes * 2)


def test_a_killed_peer_is_known_soon_and_others_go_on(transport: Transport, peer_of: Any) -> None:
    first, other = (peer_of(bare=True, **TCP) for _ in range(2))
    way, second = Way(transport, first), Way(transport, other)
    prepared = way.read(0, way.array.nbytes)
    running = [way.channel.post(prepared) for _ in range(8)]
    first.kill()
    began = time.monotonic()
    for transfer in running:
        assert transfer.wait(DEATH)
    error = running[-1].error
    assert isinstance(error, cachefw.BrokenError)
    assert error.code in ("peer.gone", "transfer.failed")
    assert error.status is not None
    assert error.status < 0
    assert "UCS_ERR" in (error.detail or "")
    assert time.monotonic() - began < DEATH
    with pytest.raises(cachefw.BrokenError):
        way.channel.post(way.read())
    way.channel.close()
    last = second.channel.post(second.read())
    assert last.wait(10)
    assert last.error is None


def test_a_frozen_peer_is_bounded_by_the_deadline(transport: Transport, peer_of: Any) -> None:
    frozen, other = (peer_of(bare=True, **TCP) for _ in range(2))
    way, second = Way(transport, frozen), Way(transport, other)
    frozen.signal(signal.SIGSTOP)
    transfer = way.channel.post(way.read(0, way.array.nbytes))
    began = time.monotonic()
    assert not transfer.wait(0.3)
    assert not transfer.settled
    with pytest.raises(cachefw.BusyError):
        _ = transfer.error
    # Others do not wait for it.
    assert second.channel.post(second.read()).wait(10)
    with pytest.raises(cachefw.TransferTimeout, match=r"did not answer within 0\.5 s"):
        transport.connect(bytes.fromhex(frozen.about["card"]), 0.5, sessions()[0])
    way.channel.close()
    assert time.monotonic() - began < 5
    assert transfer.settled
    assert isinstance(transfer.error, (cachefw.BrokenError, cachefw.TransferCancelled))
    after = way.array.copy()
    frozen.signal(signal.SIGCONT)
    assert second.channel.post(second.read()).wait(10)
    assert (way.array == after).all()


def test_a_cancelled_transfer_settles(transport: Transport, peer_of: Any) -> None:
    way = Way(transport, peer_of(bare=True, **TCP), 256 * 2**20)
    address, there = way.array.ctypes.data, way.there["address"]
    places = np.arange(0, way.array.nbytes, 2**16, dtype=np.uint64)
    prepared = way.channel.prepare(
        Operation.READ, batch(places + np.uint64(address), places + np.uint64(there), np.full(len(places), 2**16))
    )
    transfer = way.channel.post(prepared)
    transfer.cancel()
    assert transfer.wait(10)
    if transfer.error is not None:
        assert isinstance(transfer.error, cachefw.TransferCancelled)
    assert way.channel.post(way.read()).wait(10)


def test_peers_killed_while_they_connect_harm_nobody(
    transport: Transport, peer_of: Any, ucx: tuple[int, int, int]
) -> None:
    if ucx < (1, 14):
        pytest.skip("UCX before 1.14 aborts when a peer dies in the moment in which it connects over tcp")
    peer = peer_of(bare=True, **TCP)
    for _ in range(5):
        other = peer_of(bare=True, **TCP)
        other.tell("dial", card=peer.about["card"])
        other.kill()
    way = Way(transport, peer)
    assert way.channel.post(way.read()).wait(10)
    assert peer.process.poll() is None


def post_until_it_fails(prepared: cachefw.PreparedTransfer) -> None:
    for _ in range(1000):
        prepared.post()


@pytest.mark.parametrize("settings", [TCP], ids=["tcp"])
def test_a_killed_peer_breaks_the_link_and_nothing_else(peer_of: Any, node: Any, settings: Any) -> None:
    peer = peer_of(**settings)
    link = node.link(peer.about["address"])
    there = peer.make(2**20)
    _, address = target(node, 2**20)
    prepared = link.prepare(cachefw.Operation.READ, address, there["address"], 2**20)
    prepared.post()
    peer.kill()
    with pytest.raises(cachefw.BrokenError) as caught:
        post_until_it_fails(prepared)
    assert caught.value.peer is not None
    other = peer_of(**settings)
    node.link(other.about["address"])
    again = other.make(4096)
    node.links[-1].read(address, again["address"], 4096)


# ---------------------------------------------------------------- leaks


def test_rounds_leak_nothing(transport: Transport, peer_of: Any) -> None:
    from cachefw.testing._usage import Usage

    peer = peer_of(bare=True, **TCP)
    card = bytes.fromhex(peer.about["card"])
    array = np.zeros(2**16, np.uint8)
    region = MemoryRegion(array.ctypes.data, array.nbytes)

    def register() -> None:
        transport.unregister(transport.register(region))

    def connect() -> None:
        transport.connect(card, 10.0, sessions()[0]).close()

    for rounds, once in ((1000, register), (100, connect)):
        once()
        before = Usage.now()
        for _ in range(rounds):
            once()
        assert not before.leaked()
