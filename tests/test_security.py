"""Who may link: secrets and certificates, and that neither leaks; what strangers get, and how much of it."""

from __future__ import annotations

import logging
import os
import pathlib
import pickle
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import cachefw
from cachefw.links import auth, messages
from cachefw.links.gate import Gate

SECRET = b"correct horse battery staple, longer"
OTHER = b"wrong horse battery staple, longer."


def _address(node: cachefw.Node) -> tuple[str, int]:
    host, port = node.address.split(":")
    return host, int(port)


def _works(link: cachefw.Link, node: cachefw.Node, peer: cachefw.Node) -> None:
    source, target = np.full(4096, 7, np.uint8), np.zeros(4096, np.uint8)
    peer.cache_manager.register_memory(source, remote_accessible=True)
    node.cache_manager.register_memory(target)
    link.read(target.ctypes.data, source.ctypes.data, 4096)
    assert (target == 7).all()


def _fails(*links: cachefw.Link) -> None:
    """Have both ends say something, until the link is down at both."""
    for link in links:
        try:
            link.notify(b"one hundred" * 10)
            link.sync()
        except cachefw.BrokenError:
            continue
    end = time.monotonic() + 20
    while any(link.state is cachefw.LinkState.UP for link in links):
        assert time.monotonic() < end, links
        time.sleep(0.01)


class Tap:
    """Stands between two nodes: hears what they say, and may change it.

    Args:
        port: Of the node that listens.
        change: Given which way bytes go ("there" or "back") and the bytes, gives what goes on.
    """

    def __init__(self, port: int, change: Callable[[str, bytes], bytes] = lambda way, data: data) -> None:
        self.heard = bytearray()
        self._port = port
        self._change = change
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            near, _ = self._server.accept()
        except OSError:
            return
        far = socket.create_connection(("127.0.0.1", self._port), 20)
        with near, far:
            back = threading.Thread(target=self._pass, args=(far, near, "back"))
            back.start()
            self._pass(near, far, "there")
            back.join(20)

    def _pass(self, source: socket.socket, target: socket.socket, way: str) -> None:
        try:
            while data := source.recv(65536):
                self.heard += data
                target.sendall(self._change(way, data))
            target.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, target):
                end.close()

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(20)
        assert not self._thread.is_alive()


# ---------------------------------------------------------------------- a secret


@pytest.mark.usefixtures("leaves_nothing")
def test_a_shared_secret_links_and_is_never_sent(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    file.chmod(0o600)
    # Given in two ways, and the same.
    with cachefw.Node(1, "127.0.0.1:0", secret=SECRET) as one, cachefw.Node(2, secret=file) as two:
        tap = Tap(_address(one)[1])
        link = two.link(tap.address)
        _works(link, two, one)
        link.notify(b"hello")
        link.sync()
        assert [note.payload for note in one.notifications()] == [b"hello"]
        assert link.security == one.links[0].security == one.security == "secret"
        two.unlink(link)
        tap.close()
    assert b"hello" in tap.heard
    for part in (SECRET, SECRET[:16], SECRET.hex().encode()):
        assert part not in tap.heard


def test_both_ends_have_the_same_key_and_each_link_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    connect = cachefw.CacheManager(transports=["host"])
    kind = type(connect.transport("host"))
    connect.close()
    was = kind.connect

    def spy(self: Any, card: bytes, timeout: float, session: Any) -> Any:
        seen.append(session)
        return was(self, card, timeout, session)

    monkeypatch.setattr(kind, "connect", spy)
    for secret in (None, SECRET):
        with cachefw.Node(1, "127.0.0.1:0", secret=secret) as one, cachefw.Node(2, secret=secret) as two:
            for _ in range(2):
                two.unlink(two.link(one.address))
    keys = [session.key for session in seen]
    assert len(keys) == 8
    assert len(set(keys)) == 4
    for start in range(0, 8, 2):
        pair = seen[start : start + 2]
        assert pair[0].key == pair[1].key
        assert {session.dialled for session in pair} == {True, False}
        assert pair[0].incarnation != pair[1].incarnation
        assert {session.peer_host for session in pair} == {"127.0.0.1"}
    assert [session.secure for session in seen] == [False] * 4 + [True] * 4
    assert all(key.hex() not in repr(seen) and repr(key) not in repr(seen) for key in keys)


@pytest.mark.parametrize(
    ("listening", "dialling", "code", "text"),
    [
        (SECRET, OTHER, "authentication.mismatch", "the two nodes have different secrets"),
        (SECRET, None, "authentication.missing", "the node that listens has a secret and the node that dials has none"),
        (None, SECRET, "authentication.missing", "the node that dials has a secret and the node that listens has none"),
    ],
)
@pytest.mark.usefixtures("leaves_nothing")
def test_who_lacks_what_is_said_without_saying_it(
    listening: bytes | None, dialling: bytes | None, code: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with cachefw.Node(1, "127.0.0.1:0", secret=listening) as one, cachefw.Node(2, secret=dialling) as two:
        with pytest.raises(cachefw.AuthenticationError, match=text) as caught:
            two.link(one.address)
        assert caught.value.code == code
        assert isinstance(caught.value, PermissionError)
        assert one.links == two.links == []
        assert pickle.loads(pickle.dumps(caught.value)).code == code
        told = caplog.text + repr(caught.value) + str(caught.value.__dict__) + repr(one) + repr(vars(one)) + repr(two)
    for secret in (SECRET, OTHER):
        assert secret.decode() not in told
        assert secret.hex() not in told


def _flip_sealed(way: str, data: bytes, which: str, at: int) -> bytes:
    """Change one bit of the last byte but `at`, of what goes one way once a link is up."""
    if way != which or len(data) <= at:
        return data
    return data[: -1 - at] + bytes([data[-1 - at] ^ 1]) + data[len(data) - at :]


@pytest.mark.parametrize("way", ["there", "back"])
@pytest.mark.parametrize("at", [0, 20])
def test_a_frame_that_was_changed_on_the_way_ends_the_link(way: str, at: int) -> None:
    armed = threading.Event()

    def change(which: str, data: bytes) -> bytes:
        return _flip_sealed(which, data, way, at) if armed.is_set() else data

    with cachefw.Node(1, "127.0.0.1:0", secret=SECRET) as one, cachefw.Node(2, secret=SECRET) as two:
        tap = Tap(_address(one)[1], change)
        link = two.link(tap.address)
        back = one.links[0]
        armed.set()
        _fails(link, back)
        ended = link if way == "back" else back
        assert "does not fit" in ended.reason
        # A frame before the changed one may have come through, as it was sent.
        got = [note.payload for node in (one, two) for note in node.notifications()]
        assert set(got) <= {b"one hundred" * 10}
        armed.clear()
        two.unlink(link)
        tap.close()


def test_frames_cannot_be_replayed_or_reflected() -> None:
    hello, challenge = os.urandom(40), os.urandom(40)
    keys = auth.Keys(SECRET, hello, challenge)
    same = auth.Keys(SECRET, hello, challenge)
    (ours, _), (_, heard) = keys.seals(dialler=True), same.seals(dialler=False)
    first, second = ours.code(b"first"), ours.code(b"second")
    assert heard.fits(b"first", first)
    assert not heard.fits(b"first", first), "replayed"
    assert not heard.fits(b"second", second), "out of its place"
    (mine, theirs), body = keys.seals(dialler=True), b"body"
    assert not theirs.fits(body, mine.code(body)), "reflected"
    # Another handshake, whose numbers differ at either end, has other keys; so has another secret.
    others = [
        auth.Keys(SECRET, os.urandom(40), challenge),
        auth.Keys(SECRET, hello, os.urandom(40)),
        auth.Keys(OTHER, hello, challenge),
    ]
    assert len({each.session for each in (keys, *others)}) == 4
    assert len({each.seals(dialler=True)[0].code(body) for each in (keys, *others)}) == 4


def test_a_recorded_handshake_opens_nothing() -> None:
    """Whoever says again what a node with the secret said once gets no further than the answer to the first frame."""
    with cachefw.Node(1, "127.0.0.1:0", secret=SECRET) as one, cachefw.Node(2, secret=SECRET) as two:
        sent = bytearray()

        def record(way: str, data: bytes) -> bytes:
            if way == "there":
                sent.extend(data)
            return data

        tap = Tap(_address(one)[1], record)
        two.unlink(two.link(tap.address))
        tap.close()
        with socket.create_connection(_address(one), 20) as thief:
            thief.settimeout(20)
            thief.sendall(sent)
            said = b""
            while data := thief.recv(65536):
                said += data
        assert b"authentication.mismatch" in said
        # Neither a card nor a key was given to it.
        assert b"Accept" not in said
        assert one.links == []


@pytest.mark.parametrize(
    ("secret", "error", "text"),
    [
        (b"short", ValueError, "secret has 5 bytes; a secret has 16 to 4096"),
        (bytes(5000), ValueError, "has 5000 bytes"),
        ("hunter2-hunter2-hunter2", ValueError, "the file that secret names cannot be read: No such file or directory"),
        ("a\0b", ValueError, "it is no path"),
        ("/dev/null", ValueError, "is no ordinary file"),
        (12345, TypeError, "not int"),
        (True, TypeError, "not bool"),
    ],
)
def test_secrets_that_are_none_are_refused_and_not_repeated(
    secret: Any, error: type[Exception], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(error, match=re.escape(text)) as caught:
        cachefw.Node(1, secret=secret)
    assert isinstance(caught.value, cachefw.RequestError)
    if isinstance(secret, str):
        assert secret not in str(caught.value) + caplog.text
        assert caught.value.__cause__ is None


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o602])
def test_a_secret_that_others_may_read_is_refused(tmp_path: pathlib.Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(mode)
    with pytest.raises(ValueError, match=f"has mode {mode:04o}.*chmod 600"):
        cachefw.Node(1, secret=file)


def test_the_secret_comes_from_the_environment(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    monkeypatch.setenv("CACHEFW_SECRET_FILE", str(file))
    with cachefw.Node(1, "127.0.0.1:0") as one, cachefw.Node(2, secret=SECRET) as two:
        assert one.security == "secret"
        assert two.link(one.address).security == "secret"
    monkeypatch.setenv("CACHEFW_SECRET_FILE", str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="the file that CACHEFW_SECRET_FILE names cannot be read"):
        cachefw.Node(1)


# ---------------------------------------------------------------------- certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str, str]]:
    """For each of two nodes of one CA, and a stranger of another: certificate, key, CA."""
    trustme = pytest.importorskip("trustme")
    folder, made = tmp_path_factory.mktemp("certificates"), {}
    cas = {"ours": trustme.CA(), "theirs": trustme.CA()}
    for name, ca in (("one", "ours"), ("two", "ours"), ("stranger", "theirs")):
        issued = cas[ca].issue_cert(f"{name}.example")
        paths = [str(folder / f"{name}.{kind}") for kind in ("cert", "key", "ca")]
        issued.cert_chain_pems[0].write_to_path(paths[0])
        issued.private_key_pem.write_to_path(paths[1])
        cas[ca].cert_pem.write_to_path(paths[2])
        made[name] = tuple(paths)
    return made


@pytest.mark.usefixtures("leaves_nothing")
def test_tls_links_and_hides_what_is_said(certificates: dict[str, Any]) -> None:
    with (
        cachefw.Node(1, "127.0.0.1:0", tls=certificates["one"]) as one,
        cachefw.Node(2, "127.0.0.1:0", tls=certificates["two"]) as two,
    ):
        tap = Tap(_address(one)[1])
        link = two.link(tap.address)
        assert link.security == one.links[0].security == "tls"
        _works(link, two, one)
        link.notify(b"not for every ear")
        link.sync()
        assert [note.payload for note in one.notifications()] == [b"not for every ear"]
        one.unlink(one.links[0])
        with pytest.raises(cachefw.BrokenError, match="the peer closed it: it was unlinked"):
            link.sync()
        tap.close()
        _works(one.link(two.address), one, two)
    assert b"not for every ear" not in tap.heard
    assert b"cachefw" not in tap.heard


def test_a_secret_and_tls_go_together(certificates: dict[str, Any]) -> None:
    with cachefw.Node(1, "127.0.0.1:0", tls=certificates["one"], secret=SECRET) as one:
        with cachefw.Node(2, tls=certificates["two"], secret=SECRET) as two:
            assert two.link(one.address).security == "secret+tls"
        with (
            cachefw.Node(2, tls=certificates["two"], secret=OTHER) as two,
            pytest.raises(cachefw.AuthenticationError, match="different secrets"),
        ):
            two.link(one.address)


@pytest.mark.parametrize(
    ("listening", "dialling"), [("one", "stranger"), ("stranger", "two"), ("one", None), (None, "two")]
)
@pytest.mark.usefixtures("leaves_nothing")
def test_who_cannot_show_a_certificate_is_refused(
    certificates: dict[str, Any], listening: str | None, dialling: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEFW_LINK_TIMEOUT", "1.5")
    with (
        cachefw.Node(1, "127.0.0.1:0", tls=certificates.get(listening or "")) as one,
        cachefw.Node(2, tls=certificates.get(dialling or "")) as two,
    ):
        with pytest.raises((cachefw.AuthenticationError, cachefw.BrokenError)) as caught:
            two.link(one.address)
        assert one.links == two.links == []
        if listening is None or "stranger" in (listening, dialling):
            assert caught.value.code == "authentication.tls"


def test_contexts_that_take_anybody_are_refused(certificates: dict[str, Any]) -> None:
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with pytest.raises(ValueError, match="the server context takes peers without a certificate"):
        cachefw.Node(1, tls=(server, client))
    with pytest.raises(TypeError, match="tls must be"):
        cachefw.Node(1, tls="cert.pem")
    with pytest.raises(ValueError, match="the certificates cannot be used"):
        cachefw.Node(1, tls=(certificates["one"][0], certificates["two"][1], certificates["one"][2]))


def test_half_of_tls_is_refused(certificates: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key, ca = certificates["one"]
    monkeypatch.setenv("CACHEFW_TLS_CERT", cert)
    with pytest.raises(ValueError, match="by half: CACHEFW_TLS_KEY, CACHEFW_TLS_CA is missing"):
        cachefw.Node(1)
    monkeypatch.setenv("CACHEFW_TLS_KEY", key)
    monkeypatch.setenv("CACHEFW_TLS_CA", ca)
    with cachefw.Node(1) as node:
        assert node.security == "tls"


# ---------------------------------------------------------------------- beyond loopback


def test_other_hosts_are_let_in_only_with_proof_or_on_purpose(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="would let other hosts in, and nothing would tell whom"):
        cachefw.Node(9, "0.0.0.0:0")
    with cachefw.Node(9, "0.0.0.0:0", secret=SECRET) as node:
        assert node.security == "secret"
    assert not caplog.records
    with cachefw.Node(9, "0.0.0.0:0", insecure=True) as node, cachefw.Node(8, insecure=True) as other:
        assert node.security == "INSECURE"
        assert "INSECURE" in repr(node)
        assert "insecure=True" in caplog.text
        link = other.link(f"127.0.0.1:{_address(node)[1]}")
        assert link.security == "INSECURE"
        assert "INSECURE" in repr(link)
    with pytest.raises(ValueError, match="leave one of the two out"):
        cachefw.Node(9, insecure=True, secret=SECRET)
    with pytest.raises(TypeError, match="insecure must be True or False"):
        cachefw.Node(9, insecure="no")


def _own_address() -> str | None:
    """An address of this host that is not loopback, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            address = str(probe.getsockname()[0])
        except OSError:
            return None
    return None if address.startswith(("127.", "0.")) else address


def test_dialling_another_host_demands_proof_too() -> None:
    address = _own_address()
    if address is None:
        pytest.skip("this host has no address but loopback")
    with cachefw.Node(1, f"{address}:0", insecure=True) as one:
        with (
            cachefw.Node(2) as two,
            pytest.raises(cachefw.AuthenticationError, match="is another host, and this node proves nothing") as caught,
        ):
            two.link(one.address)
        assert caught.value.code == "authentication.open"
        with cachefw.Node(2, insecure=True) as two:
            assert two.link(one.address).state is cachefw.LinkState.UP


# ---------------------------------------------------------------------- rights


@pytest.mark.parametrize(
    "access", [cachefw.Access.NONE, cachefw.Access.READ, cachefw.Access.WRITE, cachefw.Access.BOTH]
)
def test_each_region_has_its_rights(access: cachefw.Access) -> None:
    with cachefw.Node(1, "127.0.0.1:0", secret=SECRET) as one, cachefw.Node(2, secret=SECRET) as two:
        there, here = np.full(4096, 1, np.uint8), np.full(4096, 2, np.uint8)
        region = cachefw.MemoryRegion(there.ctypes.data, 4096, access=access)
        one.cache_manager.register_memory(region, remote_accessible=True)
        two.cache_manager.register_memory(here)
        link = two.link(one.address)
        for name, move in (("READ", link.read), ("WRITE", link.write)):
            if cachefw.Access[name] in access:
                move(here.ctypes.data, there.ctypes.data, 100)
            else:
                with pytest.raises(cachefw.RequestError, match=f"does not allow a {name.lower()}|published are none"):
                    move(here.ctypes.data, there.ctypes.data, 100)
        assert (there[0], here[0]) == {
            cachefw.Access.NONE: (1, 2),
            cachefw.Access.READ: (1, 1),
            cachefw.Access.WRITE: (2, 2),
            cachefw.Access.BOTH: (1, 1),
        }[access]


# ---------------------------------------------------------------------- the gate


def test_the_gate_counts_by_address_and_forgives() -> None:
    now = 0.0
    gate = Gate(8, 6, lambda: now)
    assert [gate.enter("10.0.0.1") for _ in range(2)] == [None, None]
    assert gate.enter("10.0.0.1") == "2 handshakes from 10.0.0.1 are under way here already"
    assert gate.enter("10.0.0.2") is None
    assert gate.under_way == 3
    for _ in range(2):
        gate.blame("10.0.0.1")
        gate.leave("10.0.0.1")
    for _ in range(4):
        assert gate.enter("10.0.0.1") is None
        gate.blame("10.0.0.1")
        gate.leave("10.0.0.1")
    assert gate.enter("10.0.0.1") == "more than 6 handshakes from 10.0.0.1 failed within a minute"
    assert gate.enter("10.0.0.2") is None
    now = 11.0
    assert gate.enter("10.0.0.1") is None
    gate.leave("10.0.0.1")
    assert gate.under_way == 2


def test_the_gate_is_full_for_all_and_knows_networks() -> None:
    gate = Gate(8, 1)
    for number in range(8):
        assert gate.enter(f"10.0.0.{number}") is None
    assert gate.enter("10.0.0.9") == "8 handshakes are under way here already"
    gate = Gate(8, 1)
    assert gate.enter("2001:db8::1") is None
    gate.blame("2001:db8::1")
    gate.leave("2001:db8::1")
    assert gate.enter("2001:db8::ffff:2") == "more than 1 handshakes from 2001:db8::/64 failed within a minute"
    assert gate.enter("2001:db8:0:1::1") is None
    assert gate.enter("::ffff:10.1.1.1") is None
    gate.blame("::ffff:10.1.1.1")
    gate.leave("::ffff:10.1.1.1")
    assert gate.enter("10.1.1.1") is not None
    # What is remembered is bounded.
    for number in range(5000):
        address = f"11.{number // 256}.{number % 256}.1"
        assert gate.enter(address) is None
        gate.blame(address)
        gate.leave(address)
    assert len(gate._left) <= 1024


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[cachefw.Node, list[socket.socket]]]:
    """A node that takes four handshakes at once and one from each address, and strangers who hold the place."""
    monkeypatch.setenv("CACHEFW_HANDSHAKES", "4")
    monkeypatch.setenv("CACHEFW_LINK_TIMEOUT", "1")
    with cachefw.Node(1, "127.0.0.1:0", secret=SECRET) as node:
        stranger = socket.create_connection(_address(node), 20)
        assert stranger.recv(64)
        yield node, [stranger]
        stranger.close()


def test_who_finds_no_room_is_told_and_tries_again(crowded: tuple[cachefw.Node, list[socket.socket]]) -> None:
    node, strangers = crowded
    with socket.create_connection(_address(node), 20) as late:
        late.settimeout(20)
        said = b""
        while data := late.recv(4096):
            said += data
        assert b"link.busy" in said
        assert b"are under way here already" in said
    with cachefw.Node(2, secret=SECRET) as two:
        # The stranger is let go at the end of its time, and then there is room.
        assert two.link(node.address, timeout=20).state is cachefw.LinkState.UP
    assert strangers[0].fileno() >= 0


def test_a_peer_cannot_link_where_there_is_never_room(crowded: tuple[cachefw.Node, list[socket.socket]]) -> None:
    node, _ = crowded
    with (
        cachefw.Node(2, secret=SECRET) as two,
        pytest.raises((cachefw.BrokenError, cachefw.TransferTimeout)) as caught,
    ):
        two.link(node.address, timeout=0.2)
    assert caught.value.code in ("link.busy", "link.timeout")


def test_an_address_that_fails_often_has_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEFW_HANDSHAKE_FAILURES", "5")
    with cachefw.Node(1, "127.0.0.1:0") as node, cachefw.Node(2) as two:
        said = []
        for _ in range(7):
            with socket.create_connection(_address(node), 20) as stranger:
                stranger.settimeout(20)
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
                stranger.shutdown(socket.SHUT_WR)
                got = b""
                while data := stranger.recv(4096):
                    got += data
                said.append(got)
        assert [b"link.protocol" in each for each in said] == [True] * 5 + [False] * 2
        assert all(b"link.busy" in each for each in said[5:])
        with pytest.raises(cachefw.BrokenError, match="failed within a minute; try again") as caught:
            two.link(node.address, timeout=0.3)
        assert caught.value.code == "link.busy"


def test_a_taken_port_names_its_holder() -> None:
    with (
        cachefw.Node(1, "127.0.0.1:0") as one,
        pytest.raises(cachefw.BrokenError, match=rf"Address already in use \(process {os.getpid()}, .*listens there\)"),
    ):
        cachefw.Node(2, one.address)


def test_a_frame_without_a_code_is_taken_from_nobody() -> None:
    """Once secrets are shared, neither end takes an unsealed frame, a refusal of a linked peer included."""
    extra: list[bytes] = []

    def inject(way: str, data: bytes) -> bytes:
        return data + extra.pop() if way == "there" and extra else data

    for message in (messages.Sync(1), messages.Refuse("transport.none_shared", "go away", bytes(16))):
        with cachefw.Node(1, "127.0.0.1:0", secret=SECRET) as one, cachefw.Node(2, secret=SECRET) as two:
            tap = Tap(_address(one)[1], inject)
            link = two.link(tap.address)
            back = one.links[0]
            extra.append(messages.encode(message))
            _fails(link, back)
            assert "without the code that the shared secret gives it" in back.reason
            two.unlink(link)
            tap.close()


def test_a_length_is_refused_before_anything_is_allocated_for_it() -> None:
    with cachefw.Node(1, "127.0.0.1:0") as one, socket.create_connection(_address(one), 20) as stranger:
        stranger.settimeout(20)
        for length in (2**31 - 1, 2**32 - 1, messages.HANDSHAKE_LIMIT + 1):
            with socket.create_connection(_address(one), 20) as each:
                each.settimeout(20)
                each.sendall(messages.PREAMBLE + struct.pack("<I", length))
                said = b""
                while data := each.recv(4096):
                    said += data
                assert b"at most 65,536 are taken" in said
