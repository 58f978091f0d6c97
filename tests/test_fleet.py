"""Peers by name: from a static list, and from etcd, with entries that go when their node does."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

from cachefw import BrokenError, BusyError, ClosedError, Node, NotFoundError, RequestError, UnsupportedOperation
from cachefw.fleet import Entry, Member, Static

SECONDS = 20


def soon(condition, seconds=SECONDS):
    """Wait for what happens elsewhere in a moment."""
    tick, end = threading.Event(), time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        tick.wait(0.05)
    return condition()


# ---------------------------------------------------------------------- a static list


def test_peers_of_a_list_are_linked_by_name(leaves_nothing):
    with Node(1, "127.0.0.1:0") as one, Node(2) as two:
        directory = Static({"prefill-0": one.address})
        with Member(one, directory, "prefill-0"), Member(two, directory) as member:
            assert member.link("prefill-0").cluster_id == 1
            assert member.names() == ["prefill-0"]
            assert member.link("prefill-0") is two.links[0]


def test_the_setting_is_the_default(monkeypatch, leaves_nothing):
    with Node(1, "127.0.0.1:0") as one, Node(2) as two:
        monkeypatch.setenv("CACHEFW_PEERS", f"a={one.address}, b=127.0.0.1:1")
        member = Member(two)
        assert member.names() == ["a", "b"]
        assert member.link("a").cluster_id == 1
        with pytest.raises(BrokenError) as caught:
            member.link("b", timeout=0.3)
        assert caught.value.code == "link.unreachable"


@pytest.mark.parametrize("text", ["a", "a=", "=x:1", "a=x:1,a=y:1"])
def test_a_setting_that_makes_no_sense_is_refused(monkeypatch, text):
    monkeypatch.setenv("CACHEFW_PEERS", text)
    with pytest.raises(RequestError, match="CACHEFW_PEERS"):
        Static()


@pytest.mark.parametrize(
    ("peers", "kind", "said"),
    [
        ({"a b": "x:1"}, ValueError, "'a b' is no name"),
        ({3: "x:1"}, TypeError, "a name is a str"),
        ({"a": "x"}, ValueError, "'x' is no address"),
        (["a"], TypeError, "must map names to addresses"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(peers, kind, said):
    with pytest.raises(RequestError, match=said) as caught:
        Static(peers)
    assert isinstance(caught.value, kind)


def test_a_name_that_nobody_has_lists_those_that_are_there(leaves_nothing):
    with Node(2) as two, pytest.raises(NotFoundError, match="'c' now; there are: a, b") as caught:
        Member(two, Static({"b": "x:1", "a": "x:2"})).link("c", timeout=0.1)
    assert (caught.value.code, caught.value.facts) == ("not_found.peer", {"names": ["a", "b"]})


def test_a_list_takes_no_other_address(leaves_nothing):
    with Node(1, "127.0.0.1:0") as one:
        with pytest.raises(UnsupportedOperation, match=r"it has 'a' at 127\.0\.0\.1:1, not"):
            Member(one, Static({"a": "127.0.0.1:1"}), "a")
        with pytest.raises(UnsupportedOperation, match="it has no 'b'"):
            Member(one, Static({"a": "127.0.0.1:1"}), "b")


def test_nodes_that_nobody_can_reach_are_not_announced(leaves_nothing):
    with Node(1) as silent, pytest.raises(RequestError, match="no card"):
        Member(silent, Static({}), "a")
    with Node(1, "0.0.0.0:0", secret=b"0123456789abcdef") as everywhere:
        with pytest.raises(RequestError, match="give host="):
            Member(everywhere, Static({}), "a")
        port = everywhere.address.rpartition(":")[2]
        Member(everywhere, Static({"a": f"127.0.0.1:{port}"}), "a", host="127.0.0.1").close()


# ---------------------------------------------------------------------- etcd


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Etcd:
    """An etcd process on loopback, with TLS where it is given (CA, certificate, key)."""

    def __init__(self, folder, tls=None):
        self.folder, self.port, self.peer_port, self.tls, self.process = folder, free_port(), free_port(), tls, None
        self.address = f"127.0.0.1:{self.port}"

    def start(self):
        client, peer = f"{'https' if self.tls else 'http'}://{self.address}", f"http://127.0.0.1:{self.peer_port}"
        options = {
            "data-dir": self.folder / "data",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        if self.tls:
            ca, cert, key = self.tls
            options |= {"trusted-ca-file": ca, "cert-file": cert, "key-file": key, "client-cert-auth": "true"}
        with self.folder.joinpath("log").open("ab") as log:
            self.process = subprocess.Popen(
                ["etcd", *(f"--{name}={value}" for name, value in options.items())],
                stdout=log,
                stderr=log,
                # What is no amd64 has to be asked for.
                env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"},
            )
        assert soon(self.healthy, 30), self.folder.joinpath("log").read_text()[-2000:]

    def healthy(self):
        context = None
        if self.tls:
            ca, cert, key = self.tls
            context = ssl.create_default_context(cafile=ca)
            context.load_cert_chain(cert, key)
        handler = urllib.request.HTTPSHandler(context=context) if context else urllib.request.HTTPHandler()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), handler)
        try:
            with opener.open(f"{'https' if self.tls else 'http'}://{self.address}/health", timeout=1) as answer:
                return b"true" in answer.read()
        except OSError:
            return False

    def kill(self):
        self.process.kill()
        self.process.wait(SECONDS)


def needs_etcd():
    pytest.importorskip("etcd3gw", reason="etcd3gw is not installed: pip install 'cachefw[etcd]'")
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed: apt-get install etcd-server; names in etcd are NOT TESTED")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    needs_etcd()
    running = Etcd(tmp_path_factory.mktemp("etcd"))
    running.start()
    yield running
    running.kill()


@pytest.fixture
def directory(etcd, request):
    """Makes directories of one group that no other test uses, and closes them."""
    from cachefw.etcd import EtcdDirectory

    made = []

    def make(**options):
        made.append(EtcdDirectory(etcd.address, prefix=f"/{request.node.name}/", **{"ttl": 2, **options}))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_nodes_find_each_other_through_etcd(directory, leaves_nothing):
    with Node(1, "127.0.0.1:0") as one, Node(2) as two, directory() as theirs, directory() as ours:
        with Member(one, theirs, "prefill-0"), Member(two, ours) as member:
            assert member.names() == ["prefill-0"]
            assert member.link("prefill-0").cluster_id == 1
        # Withdrawn at the end, and not only when the lease ends.
        assert member.names() == []
        assert two.links


def test_an_entry_outlives_its_lease_while_its_process_lives(directory):
    ours, theirs = directory(), directory()
    ours.announce("a", Entry("127.0.0.1:1"))
    lease = ours._announced["a"].lease
    time.sleep(3 * 2)
    assert theirs.find("a") == Entry("127.0.0.1:1")
    assert ours._announced["a"].lease is lease


def test_the_entry_of_a_dead_process_expires(etcd, directory, request):
    prefix = f"/{request.node.name}/"
    code = f"""
import sys
from cachefw import Node
from cachefw.etcd import EtcdDirectory
from cachefw.fleet import Member
with Node(1, "127.0.0.1:0") as node:
    Member(node, EtcdDirectory({etcd.address!r}, prefix={prefix!r}, ttl=2), "a")
    print("there", flush=True)
    sys.stdin.read()
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout.readline() == "there\n"
        ours = directory()
        with Node(2) as two:
            member = Member(two, ours)
            member.link("a", timeout=SECONDS)
            os.kill(child.pid, signal.SIGKILL)
            child.wait(SECONDS)
            assert soon(lambda: ours.names() == [])
            with pytest.raises(NotFoundError):
                member.link("a", timeout=0.2)


def test_a_node_that_is_started_anew_takes_its_entry_over(directory):
    theirs, ours = directory(ttl=60), directory()
    with Node(2) as two:
        member = Member(two, ours)
        first = Node(1, "127.0.0.1:0")
        with first:
            address = first.address
            theirs.announce("a", Entry(address, first.card()))
            assert member.link("a").incarnation
        # Its entry is still there, and the one of the next start replaces it.
        with pytest.raises(BrokenError):
            member.link("a", timeout=0.2)
        with Node(1, address) as second, directory() as anew, Member(second, anew, "a"):
            assert member.link("a", timeout=SECONDS).state.value == "up"
            theirs.withdraw("a")
            assert ours.names() == ["a"]


def test_a_link_waits_for_a_name(directory):
    ours, theirs = directory(), directory()
    with Node(1, "127.0.0.1:0") as one, Node(2) as two:
        got = []
        waiting = threading.Thread(target=lambda: got.append(Member(two, ours).link("late", timeout=SECONDS)))
        waiting.start()
        time.sleep(0.3)
        with Member(one, theirs, "late"):
            waiting.join(SECONDS)
        assert got[0].cluster_id == 1


def test_a_name_is_one_nodes(directory):
    ours, theirs = directory(), directory()
    theirs.announce("a", Entry("10.0.0.1:1"))
    with pytest.raises(BusyError, match=r"'a' is taken by a node at 10\.0\.0\.1:1") as caught:
        ours.announce("a", Entry("10.0.0.2:1"))
    assert caught.value.code == "directory.taken"
    ours.withdraw("a")
    assert ours.find("a").address == "10.0.0.1:1"


def test_an_entry_that_was_lost_is_made_again(directory, caplog):
    ours, theirs = directory(), directory()
    ours.announce("a", Entry("127.0.0.1:1"))
    ours._announced["a"].lease.revoke()
    assert soon(lambda: theirs.names() == ["a"])


def test_what_is_no_entry_is_refused(directory):
    ours = directory()
    ours._clients[0].put(ours._prefix + "a", "nonsense")
    with pytest.raises(BrokenError, match="no entry of cachefw's") as caught:
        ours.find("a")
    assert caught.value.code == "directory.entry"


def test_an_etcd_that_is_away_is_an_error_and_comes_back(tmp_path, caplog):
    needs_etcd()
    from cachefw.etcd import EtcdDirectory

    running = Etcd(tmp_path)
    running.start()
    try:
        with EtcdDirectory(["127.0.0.1:1", running.address], ttl=2) as ours:
            ours.announce("a", Entry("127.0.0.1:1"))
            with caplog.at_level(logging.INFO, "cachefw"):
                running.kill()
                with pytest.raises(BrokenError, match=r"etcd cannot be reached at 127\.0\.0\.1:1, ") as caught:
                    ours.find("a")
                assert caught.value.code == "directory.unreachable"
                told = lambda: [getattr(record, "cachefw_event", "") for record in caplog.records]  # noqa: E731
                assert soon(lambda: "directory.lost" in told())
                running.start()
                assert soon(lambda: "directory.kept" in told())
            assert ours.find("a").address == "127.0.0.1:1"
            running.kill()
    finally:
        running.kill()


def test_an_etcd_that_demands_certificates(tmp_path):
    needs_etcd()
    trustme = pytest.importorskip("trustme")
    from cachefw.etcd import EtcdDirectory

    ca = trustme.CA()
    issued = ca.issue_cert("127.0.0.1", "localhost")
    paths = [str(tmp_path / name) for name in ("ca.pem", "cert.pem", "key.pem")]
    ca.cert_pem.write_to_path(paths[0])
    issued.cert_chain_pems[0].write_to_path(paths[1])
    issued.private_key_pem.write_to_path(paths[2])
    running = Etcd(tmp_path, paths)
    running.start()
    try:
        with EtcdDirectory(running.address, ttl=2, tls=tuple(paths)) as ours:
            ours.announce("a", Entry("127.0.0.1:1"))
            assert ours.find("a").address == "127.0.0.1:1"
        with EtcdDirectory(running.address) as plain, pytest.raises(BrokenError) as caught:
            plain.names()
        assert caught.value.code.startswith("directory.")
    finally:
        running.kill()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (((),), "no endpoint"),
        (("nowhere",), "no address"),
        (("x:1", 1), "ttl"),
        (("x:1", 5, "/x"), "ends with '/'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, said):
    pytest.importorskip("etcd3gw")
    from cachefw.etcd import EtcdDirectory

    names = ("endpoints", "ttl", "prefix")
    with pytest.raises(RequestError, match=said):
        EtcdDirectory(**dict(zip(names, arguments, strict=False)))


def test_a_closed_directory_says_so(directory, leaves_nothing):
    ours = directory()
    ours.announce("a", Entry("127.0.0.1:1"))
    ours.close()
    ours.close()
    for call in (ours.names, lambda: ours.find("a"), lambda: ours.announce("a", Entry("x:1"))):
        with pytest.raises(ClosedError):
            call()


def test_a_forked_process_leaves_the_entry_alone(directory):
    ours = directory()
    ours.announce("a", Entry("127.0.0.1:1"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ours.close()
            try:
                ours.names()
            except ClosedError as error:
                code = 0 if error.code == "closed.forked" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ours.names() == ["a"]
