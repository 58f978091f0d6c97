"""Who gets in by the data port, what strangers get, and slow networks in between."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cachefw
from cachefw.plugins import catalogue
from cachefw.session import TlsContexts
from cachefw.testing.sessions import sessions
from cachefw.transport import Operation

_spec = importlib.util.spec_from_file_location("host_test_streams", Path(__file__).with_name("test_streams.py"))
streams = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(streams)
Ends, batch, region = streams.Ends, streams.batch, streams.region

# The package has two names: this is the one that is in use.
_package = type(catalogue.get("host").info.factory()).__module__.rpartition(".")[0]
greeting = importlib.import_module(f"{_package}.greeting")
card = importlib.import_module(f"{_package}.card")
gate = importlib.import_module(f"{_package}.gate")


class Served:
    """A page that `two` serves, and a link over which `one` reads it."""

    def __init__(self) -> None:
        self.ends = Ends()
        self.there, self.here = np.full(4096, 3, np.uint8), np.zeros(4096, np.uint8)
        self.held = self.ends.two.register(region(self.there))
        self.key = sessions()[0]
        self.port = msgspec.msgpack.decode(self.ends.two.card(), type=card.Card).data_port
        self.channel, self.back = self.ends.connect()
        self.channel.attach(1, region(self.there), self.ends.two.describe(self.held))

    def check(self) -> None:
        """A new link works."""
        channel, back = self.ends.connect()
        channel.attach(1, region(self.there), self.ends.two.describe(self.held))
        self.here[:] = 0
        piece = batch(region(self.here).address, region(self.there).address, 4096)
        transfer = channel.post(channel.prepare(Operation.READ, piece))
        assert transfer.wait(30)
        assert transfer.error is None
        assert (self.here == 3).all()
        channel.close()
        back.close()

    def dial(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), 20)
        connection.settimeout(20)
        return connection


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.check()
    made.ends.close()


def drained(connection: socket.socket) -> bytes:
    got = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        while data := connection.recv(65536):
            got += data
    return got


HELLO = greeting.HELLO_BYTES


def hello_for(served: Served, role: int = 0) -> bytes:
    key = served.channel._streams.key
    return next(greeting.dial(key, greeting.Role(role)))[0]


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_strangers_get_nothing(served: Served, data: st.DataObject) -> None:
    """Whatever is said to the port: no byte of memory comes back, and no answer to what is no hello."""
    real = hello_for(served)
    kind = data.draw(st.sampled_from(["noise", "turned", "cut", "unproved"]))
    if kind == "noise":
        said = data.draw(st.binary(max_size=4 * HELLO))
    elif kind == "turned":
        said = bytearray(real)
        said[data.draw(st.integers(0, HELLO - 1 - 32))] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        said = real[: data.draw(st.integers(0, HELLO - 1))]
    else:
        said = real + data.draw(st.binary(min_size=32, max_size=200))
    with served.dial() as connection:
        with contextlib.suppress(OSError):
            connection.sendall(bytes(said))
            connection.shutdown(socket.SHUT_WR)
        # An unknown session is waited for: it may be about to open.
        connection.settimeout(0.05 if kind == "turned" else 20)
        got = drained(connection)
    # To the name of a session, which is no secret, its own proof is the answer; nothing follows without the other's.
    assert len(got) in ((0, 64) if kind == "unproved" or kind == "turned" else (0,))
    assert b"\x03" * 64 not in got


def greeted(served: Served) -> socket.socket:
    """A stream of the open link that this test, and not the transport, asks on."""
    connection = served.dial()
    talk = greeting.dial(served.channel._streams.key, greeting.Role.ASK)
    words, need = next(talk)
    with contextlib.suppress(StopIteration):
        while True:
            connection.sendall(words)
            words, need = talk.send(connection.recv(need, socket.MSG_WAITALL))
    return connection


@st.composite
def frames(draw: st.DrawFn) -> tuple[bytes, bool]:
    """A request, and whether nothing in it was turned; addresses are told from the page that is served."""
    numbers = st.one_of(st.integers(0, 8192), st.integers(0, 2**64 - 1), st.sampled_from([4096, 2**63, 2**64 - 4096]))
    kind, count = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    pieces = [(draw(numbers), draw(numbers)) for _ in range(count)]
    total = sum(length for _, length in pieces) if draw(st.booleans()) else draw(numbers)
    head = kind | count << 16 | 0x31574643 << 32
    return b"".join(
        (value % 2**64).to_bytes(8, "little")
        for value in (head, draw(numbers), total, *(part for piece in pieces for part in piece))
    ), draw(st.booleans())


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(made=frames(), turned=st.integers(0, 119), by=st.integers(0, 255), cut=st.integers(0, 400))
def test_who_holds_the_key_gets_what_is_served_and_no_more(
    served: Served, made: tuple[bytes, bool], turned: int, by: int, cut: int
) -> None:
    frame, whole = bytearray(made[0]), made[1]
    base = region(served.there).address
    for at in range(24, len(frame), 16):
        address = int.from_bytes(frame[at : at + 8], "little")
        frame[at : at + 8] = ((base + address) % 2**64).to_bytes(8, "little")
    if not whole:
        frame[turned % len(frame)] ^= by
        del frame[cut:]
    with greeted(served) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(bytes(frame) + bytes(cut))
        # Not half closed: who closes gets nothing more.
        connection.settimeout(0.02)
        got = drained(connection)
    while got:
        assert len(got) >= 24
        kind, status = got[0], int.from_bytes(got[4:8], "little", signed=True)
        size = int.from_bytes(got[16:24], "little")
        assert kind in (1, 2)
        assert status <= 0
        assert size == 0 if status else size <= 4096 * 6
        body, got = (got[24 : 24 + size], got[24 + size :]) if kind == 1 else (b"", got[24:])
        # Only the page holds nothing but threes, or zeros that a write has put there.
        assert len(body) == (size if kind == 1 else 0)
        assert set(body) <= {0, 3}
    served.there[:] = 3


def test_what_was_said_before_is_worth_nothing(served: Served) -> None:
    """The whole of a good greeting, said again, is refused: the other end's random number has changed."""
    key = served.channel._streams.key
    said = []
    with served.dial() as connection:
        talk = greeting.dial(key, greeting.Role.ASK)
        words, need = next(talk)
        while need:
            said.append(words)
            connection.sendall(words)
            heard = connection.recv(need, socket.MSG_WAITALL)
            try:
                words, need = talk.send(heard)
            except StopIteration:
                break
    with served.dial() as connection:
        connection.sendall(b"".join(said))
        assert len(drained(connection)) == 64


@pytest.mark.parametrize("role", list(greeting.Role))
def test_neither_end_passes_with_another_key(role: Any) -> None:
    good, bad = bytes(32), bytes([1]) * 32
    for ours, theirs in ((good, good), (good, bad), (bad, good)):
        here = greeting.dial(ours, role)
        hello, need = next(here)
        there = greeting.answer(theirs, hello)
        words, wanted = next(there)
        assert len(words) == need
        if ours != theirs:
            with pytest.raises(cachefw.AuthenticationError):
                here.send(words)
            with pytest.raises(cachefw.AuthenticationError):
                there.send(bytes(wanted))
            continue
        proof, need = here.send(words)
        # An end's own words, sent back to it, prove nothing.
        with pytest.raises(cachefw.AuthenticationError):
            greeting_again(ours, hello).send(words[32:])
        welcome, _ = there.send(proof)
        with pytest.raises(StopIteration) as done:
            here.send(welcome)
        assert done.value.value is role


def greeting_again(key: bytes, hello: bytes) -> Any:
    other = greeting.answer(key, hello)
    next(other)
    return other


def test_many_that_say_nothing_keep_nobody_out(served: Served) -> None:
    silent = [served.dial() for _ in range(3 * gate.HALF_OPEN)]
    served.check()
    closed = 0
    for connection in silent:
        connection.settimeout(0.2)
        try:
            closed += connection.recv(1) == b""
        except ConnectionError:
            closed += 1
        except TimeoutError:
            pass
        connection.close()
    # As many as may wait are left; all others had to make room.
    assert closed >= 2 * gate.HALF_OPEN


class SlowNetwork:
    """Passes bytes on in small stretches, some of them late."""

    def __init__(self, port: int, seed: int) -> None:
        self._target, self._seed = port, seed
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self._open = [self._door]
        self.seen = bytearray()
        self.held = threading.Event()
        self.held.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._door.accept()
                other = socket.create_connection(("127.0.0.1", self._target))
                self._open += [one, other]
                for pair in ((one, other), (other, one)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        draw = random.Random(self._seed)
        with contextlib.suppress(OSError):
            while data := source.recv(draw.choice((1, 7, 24, 1000, 65536))):
                if draw.random() < 0.02:
                    time.sleep(0.005)
                self.held.wait()
                self.seen += data
                sink.sendall(data)
        for connection in (source, sink):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.held.set()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


@contextlib.contextmanager
def through_a_slow_network(
    seed: int, size: int, tls: TlsContexts | None = None
) -> Iterator[tuple[Any, np.ndarray, np.ndarray, SlowNetwork]]:
    made = Ends(streams=2, tcp_timeout=20)
    told = msgspec.msgpack.decode(made.two.card(), type=card.Card)
    network = SlowNetwork(told.data_port, seed)
    there, here = np.random.default_rng(seed).integers(0, 256, size, np.uint8), np.zeros(size, np.uint8)
    held = made.two.register(region(there))
    ours, theirs = (attrs.evolve(end, tls=tls) for end in sessions())
    try:
        made.two.connect(made.one.card(), 5.0, theirs)
        changed = msgspec.structs.replace(told, data_port=network.port)
        channel = made.one.connect(msgspec.msgpack.encode(changed), 5.0, ours)
        channel.attach(1, region(there), made.two.describe(held))
        yield channel, here, there, network
    finally:
        network.close()
        made.close()


@pytest.mark.parametrize("seed", range(3))
def test_bytes_survive_a_slow_network_that_cuts_them_anyhow(seed: int) -> None:
    with through_a_slow_network(seed, 300_007) as (channel, here, there, _):
        cuts = sorted({0, 300_007, *random.Random(seed).sample(range(300_007), 500)})
        low = np.array(cuts[:-1], np.uint64)
        lengths = np.diff(np.array(cuts)).astype(np.uint64)
        pieces = streams.Batch(
            low + np.uint64(region(here).address),
            low + np.uint64(region(there).address),
            lengths,
            np.ones(len(low), np.uint64),
        )
        for operation in (Operation.READ, Operation.WRITE, Operation.READ):
            transfer = channel.post(channel.prepare(operation, pieces))
            assert transfer.wait(60)
            assert transfer.error is None
            assert (here == there).all()
            here[:] = ~here
        assert not (here == there).any()


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_link_with_tls_shows_no_byte_to_the_network(encrypted: bool) -> None:
    contexts = TlsContexts(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    size = 50_000
    with through_a_slow_network(7, size, contexts if encrypted else None) as (channel, here, there, network):
        piece = batch(region(here).address, region(there).address, size)
        for operation in (Operation.READ, Operation.WRITE):
            transfer = channel.post(channel.prepare(operation, piece))
            assert transfer.wait(60)
            assert transfer.error is None
            assert (here == there).all()
        shown = bytes(network.seen)
    # Any 32 bytes of the memory, wherever a record may have been cut.
    found = sum(there[at : at + 32].tobytes() in shown for at in range(0, size - 32, 997))
    assert found == 0 if encrypted else found > 30


def test_a_late_answer_never_lands_in_memory_that_is_used_again() -> None:
    size = 300_007
    with through_a_slow_network(5, size) as (channel, here, there, network):
        prepared = channel.prepare(Operation.READ, batch(region(here).address, region(there).address, size))
        assert channel.post(prepared).wait(60)
        network.held.clear()
        transfer = channel.post(prepared)
        assert not transfer.wait(0.2)
        transfer.cancel()
        # Cancelled is not settled: the answer is on its way, and may still land.
        assert not transfer.settled
        channel.close()
        assert transfer.settled
        assert isinstance(transfer.error, cachefw.TransferCancelled)
        here[:] = 0x5A
        network.held.set()
        time.sleep(0.3)
        assert (here == 0x5A).all()


OWN = card.Card(b"boot", 10, 1, 0, b"", "", ["shm", "cma", "tcp"], 2, False, "", 7)


@pytest.mark.parametrize(
    ("change", "paths"),
    [
        ({}, ("shm", "cma")),
        ({"net_namespace": 3}, ("cma",)),
        ({"pid_namespace": 3}, ("shm",)),
        ({"pid_namespace": 3, "net_namespace": 3}, ("tcp",)),
        ({"host": b"other"}, ("tcp",)),
        ({"asked": True}, ("shm", "cma", "tcp")),
        ({"asked": True, "paths": ["tcp"]}, ("tcp",)),
        ({"paths": ["cma", "tcp"]}, ("cma",)),
    ],
)
def test_which_ways_lead_to_a_peer(change: dict[str, Any], paths: tuple[str, ...]) -> None:
    assert card.ways_between(OWN, msgspec.structs.replace(OWN, **change)) == paths


@pytest.mark.parametrize(
    "change",
    [{"host": b"other", "paths": ["shm", "cma"]}, {"paths": ["tcp"]}, {"pid_namespace": 3, "paths": ["cma"]}],
)
def test_no_way_is_an_error_that_says_why(change: dict[str, Any]) -> None:
    with pytest.raises(cachefw.UnsupportedOperation, match="no path leads there"):
        card.ways_between(OWN, msgspec.structs.replace(OWN, **change))


@pytest.mark.parametrize(
    "wrong",
    [
        {"streams": 0},
        {"streams": True},
        {"streams": 33},
        {"tcp_timeout": 0},
        {"tcp_timeout": "1"},
        {"listen": "here"},
        {"listen": "127.0.0.1:70000"},
        {"listen": 5},
        {"paths": ["udp"]},
    ],
)
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    transport = catalogue.get("host").info.factory()
    with pytest.raises(cachefw.RequestError, match=next(iter(wrong))):
        transport.open(wrong)


def test_a_data_port_that_is_taken_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        made = Ends(listen=f"127.0.0.1:{taken.getsockname()[1]}")
        try:
            with pytest.raises(cachefw.BrokenError, match="cannot be opened"):
                made.two.card()
        finally:
            made.close()


def test_a_data_port_that_nobody_listens_on_is_an_error_when_linking() -> None:
    made = Ends()
    try:
        told = msgspec.msgpack.decode(made.two.card(), type=card.Card)
        with socket.create_server(("127.0.0.1", 0)) as gone:
            port = gone.getsockname()[1]
        changed = msgspec.msgpack.encode(msgspec.structs.replace(told, data_port=port))
        with pytest.raises(cachefw.BrokenError, match=f"data port 127.0.0.1:{port} cannot be reached"):
            made.one.connect(changed, 5.0, sessions()[0])
    finally:
        made.close()
