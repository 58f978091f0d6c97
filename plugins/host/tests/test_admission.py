"""Who gets a segment's descriptor: only the other end of an open link, and only while it is open."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

import cachefw
from cachefw.memory import MemoryKind, region_of
from cachefw.plugins import catalogue
from cachefw.testing.sessions import sessions
from cachefw.transport import Batch, Operation

SIZE = 4096


@pytest.fixture
def ends() -> Iterator[tuple[Any, Any]]:
    """Two open transports that may only map each other's memory."""
    info = catalogue.get("host").info
    opened = [info.factory() for _ in range(2)]
    for transport in opened:
        transport.info = info
        assert transport.probe() is None
        transport.open({"paths": ["shm"]})
    yield opened[0], opened[1]
    for transport in opened:
        transport.close()


class Published:
    """Shared memory of one transport, and the batch that reads it into memory of another."""

    def __init__(self, here: Any, there: Any) -> None:
        self.source = there.allocate(SIZE, MemoryKind.HOST, 4096, {})
        self.target = np.zeros(SIZE, np.uint8)
        np.asarray(self.source)[:] = 7
        self.description = there.describe(there.register(region_of(self.source)))
        here.register(region_of(self.target))

    def read_by(self, channel: Any) -> None:
        channel.attach(1, region_of(self.source), self.description)
        rows = [[self.target.ctypes.data], [self.source.address], [SIZE], [1]]
        channel.post(channel.prepare(Operation.READ, Batch(*(np.array(row, np.uint64) for row in rows)))).wait()


def test_the_other_end_of_a_link_gets_it_and_a_stranger_does_not(ends: tuple[Any, Any]) -> None:
    here, there = ends
    memory = Published(here, there)
    ours, theirs = sessions()
    back = there.connect(here.card(), 5.0, theirs)
    # It knows the card, which is no secret, and has a key of its own.
    stranger = here.connect(there.card(), 5.0, sessions()[0])
    with pytest.raises(cachefw.BrokenError, match="does not accept this link's token"):
        memory.read_by(stranger)
    # It sends back what it is asked for.
    reflected = here.connect(there.card(), 5.0, theirs)
    with pytest.raises(cachefw.BrokenError, match="does not accept this link's token"):
        memory.read_by(reflected)
    assert not memory.target.any()
    channel = here.connect(there.card(), 5.0, ours)
    memory.read_by(channel)
    assert (memory.target == 7).all()
    for each in (stranger, reflected, channel, back):
        each.close()


def test_a_link_that_ended_opens_nothing(ends: tuple[Any, Any]) -> None:
    here, there = ends
    memory = Published(here, there)
    ours, theirs = sessions()
    there.connect(here.card(), 5.0, theirs).close()
    channel = here.connect(there.card(), 5.0, ours)
    with pytest.raises(cachefw.BrokenError, match="does not accept this link's token"):
        memory.read_by(channel)
    channel.close()


@pytest.mark.parametrize("sent", [b"", b"\x80\x04N.", bytes(39), bytes(40), b"\xff" * 400])
def test_nonsense_to_the_socket_gets_nothing_and_harms_nobody(ends: tuple[Any, Any], sent: bytes) -> None:
    here, there = ends
    memory = Published(here, there)
    name = msgspec.msgpack.decode(there.card())[5]
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.settimeout(20)
        stranger.connect("\0" + name)
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        try:
            answer, fds, _, _ = socket.recv_fds(stranger, 64, 4)
        except ConnectionResetError:
            answer, fds = b"", []
        assert fds == []
        assert answer[:1] in (b"", b"\x01")
    ours, theirs = sessions()
    back, channel = there.connect(here.card(), 5.0, theirs), here.connect(there.card(), 5.0, ours)
    memory.read_by(channel)
    assert (memory.target == 7).all()
    for each in (channel, back):
        each.close()
