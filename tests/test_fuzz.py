"""Anything may come in at the control port: no crash, no hang, no memory beyond the limits, and the node stays well.

``pytest -s -m long -o faulthandler_timeout=900 tests/test_fuzz.py`` runs each for ten minutes, or for ``CACHEFW_LONG``
seconds, instead of a bounded number of inputs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import attrs
import hypothesis
import msgspec
import numpy as np
import pytest
from hypothesis import strategies as st

import cachefw
from cachefw.links import auth, messages
from cachefw.published import PublishedCache, PublishedMemory

INPUTS = 200
#: How much the process may grow by, whatever comes in.
LIMIT = 48 * 2**20

SETTINGS = hypothesis.settings(
    max_examples=INPUTS,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@attrs.define
class Target:
    """A node that is fuzzed, a good peer of its, and what went wrong in its loop."""

    node: cachefw.Node
    friend: cachefw.Node
    link: cachefw.Link
    faults: list[Any]
    began: float
    #: How long to go on; 0 for a bounded number of inputs.
    seconds: float = 0
    inputs: int = 0
    most: int = 0

    def connect(self) -> socket.socket:
        self.inputs += 1
        host, port = self.node.address.split(":")
        stranger = socket.create_connection((host, int(port)), 20)
        stranger.settimeout(20)
        return stranger

    def check(self) -> None:
        """The good link works, and nothing has gone wrong that nobody sees."""
        self.link.sync(20)
        self.most = max(self.most, _resident())
        assert self.faults == []

    def run(self, test: Any) -> None:
        """Once, or with one seed after the other: hypothesis remembers all inputs of one run."""
        if not self.seconds:
            test(self)
            return
        number = int(time.time())
        while time.monotonic() - self.began < self.seconds:
            hypothesis.seed(number)(test)(self)
            number += 1


#: For tests that call `Target.run`.
bounded_and_long = pytest.mark.parametrize(
    "target", ["bounded", pytest.param("long", marks=pytest.mark.long)], indirect=True
)


@pytest.fixture
def target(
    request: pytest.FixtureRequest, site: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Target]:
    seconds = request.getfixturevalue("long_seconds") if getattr(request, "param", "") == "long" else 0
    site.install_memory()
    for name, value in (("HANDSHAKE_FAILURES", "999999"), ("LINK_TIMEOUT", "5"), ("LEASE", "30")):
        monkeypatch.setenv(f"CACHEFW_{name}", value)
    caplog.set_level(logging.CRITICAL, "cachefw")
    faults: list[Any] = []
    with (
        cachefw.Node(1, "127.0.0.1:0", transports=["memory"]) as node,
        cachefw.Node(2, transports=["memory"]) as friend,
    ):
        node._loop.set_exception_handler(lambda _, context: faults.append(context))
        node.cache_manager.register_memory(np.zeros(4096, np.uint8), remote_accessible=True)
        fuzzed = Target(node, friend, friend.link(node.address), faults, time.monotonic(), seconds)
        fuzzed.check()
        before = fuzzed.most
        yield fuzzed
        fuzzed.check()
        # Every stranger has been let go.
        end = time.monotonic() + 20
        while node._door._gate.under_way or len(node.links) > 1:
            assert time.monotonic() < end, (node._door._gate.under_way, node.links)
            time.sleep(0.01)
        took = time.monotonic() - fuzzed.began
        assert fuzzed.most - before < LIMIT
        print(f"{fuzzed.inputs} connections in {took:.1f} s, {(fuzzed.most - before) / 2**20:.1f} MiB more at most")


def _end(stranger: socket.socket) -> bytes:
    """Say no more, and read what comes until the other side closes."""
    said = b""
    try:
        stranger.shutdown(socket.SHUT_WR)
        while data := stranger.recv(65536):
            said += data
    except ConnectionError:
        pass
    return said


def _frame(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


# ---------------------------------------------------------------------- strangers

_text = st.text(max_size=300)
_number = st.one_of(st.integers(-(2**63), 2**64 - 1), st.sampled_from([0, 1, 2**31, 2**32, 2**63, 2**64 - 1]))
_bytes = st.one_of(st.binary(max_size=100), st.sampled_from([bytes(16), bytes(32), bytes(4096), bytes(4097)]))
_anything = st.recursive(
    st.one_of(st.none(), st.booleans(), _number, st.floats(), _text, _bytes),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(_text, inner, max_size=5)),
    max_leaves=20,
)
_types = sorted(kind.__name__ for kind in messages._Message.__subclasses__())
_fields = sorted({field for kind in messages._Message.__subclasses__() for field in kind.__struct_fields__})
#: What looks like a message of ours, with anything in it.
_alike = st.builds(
    lambda kind, fields: {"type": kind, **fields},
    st.one_of(st.sampled_from(_types), _text),
    st.dictionaries(st.one_of(st.sampled_from(_fields), _text), _anything, max_size=6),
)
_bodies = st.one_of(st.binary(max_size=2000), st.builds(msgspec.msgpack.encode, st.one_of(_alike, _anything)))
_frames = st.one_of(
    st.builds(_frame, _bodies),
    # A length that is none, and a body that is cut off or goes on.
    st.builds(lambda length, body: struct.pack("<I", length) + body, st.integers(0, 2**32 - 1), _bodies),
    st.binary(max_size=300),
)


@SETTINGS
@hypothesis.given(
    preamble=st.one_of(st.just(messages.PREAMBLE), st.binary(max_size=40)), frames=st.lists(_frames, max_size=4)
)
def _strangers(target: Target, preamble: bytes, frames: list[bytes]) -> None:
    with target.connect() as stranger:
        with contextlib.suppress(ConnectionError):
            stranger.sendall(preamble + b"".join(frames))
        _end(stranger)
    if target.inputs % 20 == 0:
        target.check()


@bounded_and_long
def test_t25_strangers_get_nowhere(target: Target) -> None:
    target.run(_strangers)


# ---------------------------------------------------------------------- half way through the handshake


class Dialler:
    """Goes through the handshake by hand, as far as a test lets it."""

    def __init__(self, target: Target, cluster: int = 77, secret: bytes = b"") -> None:
        self.socket = target.connect()
        self.socket.sendall(messages.PREAMBLE)
        hello = messages.encode(messages.Hello(auth.nonce(), []))
        self.socket.sendall(hello)
        self._read(len(messages.PREAMBLE))
        challenge = self._read_frame()
        self.keys = auth.Keys(secret, hello[4:], challenge)
        self.cluster = cluster

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            assert more, "it was let go too early"
            data += more
        return data

    def _read_frame(self) -> bytes:
        (length,) = struct.unpack("<I", self._read(4))
        return self._read(length)

    def send(self, message: Any) -> None:
        self.socket.sendall(messages.encode(message))

    def link(self, card: bytes) -> None:
        """Become a linked peer."""
        self.send(messages.Introduce(self.cluster, os.urandom(16), "fuzz", 30.0, 0, ["memory"]))
        self._read_frame()
        self.send(messages.Choose("memory", card))
        self.send(messages.Ready())
        while b"Ready" not in self._read_frame():
            pass


@SETTINGS
@hypothesis.given(
    steps=st.lists(
        st.one_of(
            st.builds(
                messages.Introduce,
                st.integers(0, 2**64 - 1),
                st.just(bytes(range(16))),
                _text.filter(lambda text: len(text) <= 256),
                st.floats(0.001, 10**5),
                st.integers(0, 65535),
                st.lists(st.sampled_from(["memory", "host", "?"]), max_size=3),
            ),
            st.builds(
                messages.Choose, st.sampled_from(["memory", "host"]), _bytes.filter(lambda card: len(card) <= 4096)
            ),
            st.builds(messages.Refuse, _text, _text, _bytes, st.one_of(st.none(), _number)),
            st.just(messages.Ready()),
        ),
        max_size=4,
    ),
    tail=st.lists(_frames, max_size=2),
)
def _half_way(target: Target, steps: list[Any], tail: list[bytes]) -> None:
    dialler = Dialler(target)
    with dialler.socket:
        try:
            for step in steps:
                dialler.send(step)
            dialler.socket.sendall(b"".join(tail))
        except ConnectionError:
            pass
        _end(dialler.socket)
    if target.inputs % 20 == 0:
        target.check()


@bounded_and_long
def test_t25_half_a_handshake_gets_nowhere(target: Target) -> None:
    target.run(_half_way)


# ---------------------------------------------------------------------- linked peers

_small = st.integers(1, 9)
_memories = st.builds(
    PublishedMemory,
    st.one_of(_small, _number),
    st.one_of(_small, _number),
    st.one_of(_small, _number),
    st.one_of(st.sampled_from(["host memory", "device memory", "pinned host memory"]), _text),
    st.one_of(st.integers(0, 3), _number),
    st.dictionaries(st.one_of(st.just("memory"), _text), _bytes, max_size=2),
)
_names = st.tuples(st.one_of(st.sampled_from(["blocks", "req", "prefix"]), _text), _number, _number, _number)
_caches = st.builds(
    PublishedCache,
    st.one_of(_small, _number),
    st.booleans(),
    _number,
    _number,
    st.lists(_number, max_size=5).map(tuple),
    st.lists(_names, max_size=3).map(tuple),
)
_numbers = st.lists(st.one_of(_small, _number), max_size=5)
_messages = st.one_of(
    st.builds(messages.Publish, st.lists(_memories, max_size=3), st.lists(_caches, max_size=3)),
    st.builds(messages.Withdraw, _number, _numbers, _numbers),
    st.builds(messages.Withdrawn, _number),
    st.builds(messages.Sync, _number),
    st.builds(messages.Synced, _number),
    st.builds(messages.Notify, st.binary(max_size=200)),
    st.just(messages.Alive()),
    st.just(messages.Ready()),
    st.builds(messages.Goodbye, _text),
    st.just(messages.Settled()),
    st.builds(messages.Refuse, _text, _text, _bytes, st.one_of(st.none(), _number)),
)


@SETTINGS
@hypothesis.given(said=st.lists(st.one_of(_messages.map(messages.encode), _frames), max_size=12))
def _peers(target: Target, said: list[bytes]) -> None:
    dialler = Dialler(target, 1000 + target.inputs)
    with dialler.socket:
        dialler.link(target.friend.cache_manager.transport("memory").card())
        with contextlib.suppress(ConnectionError):
            dialler.socket.sendall(b"".join(said))
        for link in target.node.links:
            # Whatever it has published, this side can look at it.
            repr((link.memories, link.caches))
        _end(dialler.socket)
    target.node.notifications()
    if target.inputs % 20 == 0:
        target.check()


@bounded_and_long
def test_t25_linked_peers_harm_themselves_alone(target: Target) -> None:
    target.run(_peers)


def test_a_peer_that_floods_is_let_go(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    from cachefw import node as module
    from cachefw.links import table

    monkeypatch.setattr(table, "MOST", 2000)
    monkeypatch.setattr(module, "UNREAD", 2000)
    card = target.friend.cache_manager.transport("memory").card()
    cache = PublishedCache(1, True, 1, 1, tuple(range(1, 900)), ())
    floods = {
        "caches": (messages.Publish([], [attrs.evolve(cache, cache_id=number)]) for number in range(1, 50)),
        "notifications": (messages.Notify(b"x") for _ in range(5000)),
    }
    for number, (what, flood) in enumerate(floods.items()):
        dialler = Dialler(target, 500 + number)
        with dialler.socket:
            dialler.link(card)
            try:
                for message in flood:
                    dialler.send(message)
            except ConnectionError:
                pass
            said = _end(dialler.socket)
        assert b"Goodbye" in said or not said, what
        target.node.notifications()
        target.check()


def test_a_stranger_who_stops_in_the_middle_holds_nobody_up(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEFW_LINK_TIMEOUT", "1")
    strangers = []
    for cut in range(0, 60, 3):
        stranger = target.connect()
        sent = messages.PREAMBLE + messages.encode(messages.Hello(auth.nonce(), []))
        stranger.sendall(sent[:cut])
        strangers.append(stranger)
    threads = [threading.Thread(target=_end, args=(stranger,)) for stranger in strangers]
    began = time.monotonic()
    with cachefw.Node(3, transports=["memory"]) as late:
        assert late.link(target.node.address, timeout=20).state is cachefw.LinkState.UP
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert time.monotonic() - began < 20
    for stranger in strangers:
        stranger.close()
