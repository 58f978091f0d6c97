"""Peers that fall silent, die and come back: leases, incarnations, relinking, and what is held for the dead."""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachefw

PEER = Path(__file__).with_name("link_peer.py")
FIXED, SIZE = 0x7E00_0000_0000, 2**20


class Peer:
    """A node in another process."""

    def __init__(self, cluster: int, value: int, listen: str = "127.0.0.1:0", **about: Any) -> None:
        about |= {"cluster": cluster, "value": value, "listen": listen}
        self.process = subprocess.Popen(
            [sys.executable, str(PEER), json.dumps(about)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        line = self.process.stdout.readline()
        assert line, f"the peer ended with {self.process.wait(10)}"
        told = json.loads(line)
        self.address: str = told["address"]
        self.shared: int = told["shared"]

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Peer]]:
    started: list[Peer] = []

    def make(*args: Any, **options: Any) -> Peer:
        started.append(Peer(*args, **options))
        return started[-1]

    yield make
    for peer in started:
        if peer.process.poll() is None:
            peer.process.send_signal(signal.SIGCONT)
            peer.kill()


def until(condition: Callable[[], bool], what: str = "it") -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen"
        time.sleep(0.005)


@contextlib.contextmanager
def frozen(node: cachefw.Node) -> Iterator[None]:
    """Have a node of this process say and hear nothing."""
    stopped, thaw = threading.Event(), threading.Event()

    def freeze() -> None:
        stopped.set()
        thaw.wait(30)

    node._loop.call_soon_threadsafe(freeze)
    assert stopped.wait(20)
    try:
        yield
    finally:
        thaw.set()


def mappings() -> int:
    """Segments of peers that this process has mapped."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        return maps.read().count("memfd:")


# ---------------------------------------------------------------------- leases


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch, leaves_nothing: None) -> Iterator[tuple[cachefw.Node, cachefw.Node]]:
    monkeypatch.setenv("CACHEFW_LEASE", "0.4")
    with cachefw.Node(1, "127.0.0.1:0") as one, cachefw.Node(2, "127.0.0.1:0") as two:
        yield one, two


def test_idle_links_stay_up(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    link = two.link(one.address)
    time.sleep(1.5)
    assert link.state is one.links[0].state is cachefw.LinkState.UP
    link.sync()


def test_a_silent_peer_breaks_its_link_and_no_other(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    with cachefw.Node(3, "127.0.0.1:0") as three:
        link, other = two.link(one.address), two.link(three.address)
        with frozen(one):
            until(lambda: link.state is cachefw.LinkState.BROKEN, "the end of the lease")
            with pytest.raises(cachefw.BrokenError, match=r"it was silent for 0\.4 s \(setting lease\)"):
                link.sync()
            other.sync()
        # It hears of it when it runs again, and can link anew: nobody is blacklisted.
        until(lambda: one.links == [])
        assert two.relink(link).state is cachefw.LinkState.UP
        assert other.state is cachefw.LinkState.UP


def test_each_bears_silence_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEFW_LEASE", "60")
    with cachefw.Node(1, "127.0.0.1:0") as patient:
        monkeypatch.setenv("CACHEFW_LEASE", "0.4")
        with cachefw.Node(2) as hasty:
            link = hasty.link(patient.address)
            # The patient one speaks as often as the hasty one needs it.
            time.sleep(1.2)
            assert link.state is cachefw.LinkState.UP


def test_who_stood_still_itself_does_not_blame_its_peers(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    link = two.link(one.address)
    # Its peers give it up if it takes too long; shorter than that, nobody notices.
    with frozen(two):
        time.sleep(0.3)
    time.sleep(0.6)
    assert link.state is cachefw.LinkState.UP


def test_memory_of_a_silent_peer_is_kept_until_it_has_said_that_it_is_done(
    pair: tuple[cachefw.Node, cachefw.Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    array = np.zeros(4096, np.uint8)
    memory = two.cache_manager.register_memory(array, remote_accessible=True)
    hidden = two.cache_manager.register_memory(np.zeros(4096, np.uint8))
    link = two.link(one.address)
    monkeypatch.setenv("CACHEFW_LINK_TIMEOUT", "0.3")
    with frozen(one):
        until(lambda: link.state is cachefw.LinkState.BROKEN)
        with pytest.raises(cachefw.TransferTimeout, match="could reach this memory when its link ended") as caught:
            two.cache_manager.unregister_memory(memory)
        assert caught.value.code == "link.unsettled"
        assert memory.state.value == "live"
        # What it could not reach, and what came later, is nobody's but this node's.
        two.cache_manager.unregister_memory(hidden)
        late = two.cache_manager.register_memory(np.zeros(4096, np.uint8), remote_accessible=True)
        two.cache_manager.unregister_memory(late)
    monkeypatch.delenv("CACHEFW_LINK_TIMEOUT")
    two.cache_manager.unregister_memory(memory)
    assert two.cache_manager.memories == []


def test_where_this_end_serves_the_peer_its_memory_is_free_when_the_link_has_ended(
    monkeypatch: pytest.MonkeyPatch, leaves_nothing: None
) -> None:
    monkeypatch.setenv("CACHEFW_LEASE", "0.4")
    settings = {"host": {"paths": ["tcp"]}}
    with (
        cachefw.Node(1, "127.0.0.1:0", settings=settings) as one,
        cachefw.Node(2, settings=settings) as two,
    ):
        memory = two.cache_manager.register_memory(np.zeros(4096, np.uint8), remote_accessible=True)
        link = two.link(one.address)
        with frozen(one):
            until(lambda: link.state is cachefw.LinkState.BROKEN)
            # The peer says nothing, and can reach nothing any more.
            two.cache_manager.unregister_memory(memory)


# ---------------------------------------------------------------------- T21 between processes


@pytest.mark.parametrize("shared", [False, True])
def test_t21_a_stopped_writer_never_writes_into_memory_that_was_given_back(
    start: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    monkeypatch.setenv("CACHEFW_LEASE", "0.5")
    with cachefw.Node(2, "127.0.0.1:0", transports=["host"]) as node:
        owner = node.cache_manager.allocate(SIZE) if shared else np.zeros(SIZE, np.uint8)
        bytes_ = np.asarray(owner)
        memory = node.cache_manager.register_memory(owner, remote_accessible=True)
        peer = start(1, 200, write=node.address)
        (link,) = node.links
        until(lambda: bool((bytes_ == 200).all()), "the peer's writing")
        # Stopped in the middle of it, most likely.
        peer.process.send_signal(signal.SIGSTOP)
        until(lambda: link.state is cachefw.LinkState.BROKEN, "the end of the lease")
        monkeypatch.setenv("CACHEFW_LINK_TIMEOUT", "0.3")
        with pytest.raises(cachefw.TransferTimeout) as caught:
            node.cache_manager.unregister_memory(memory)
        assert caught.value.code == "link.unsettled"
        monkeypatch.delenv("CACHEFW_LINK_TIMEOUT")
        peer.process.send_signal(signal.SIGCONT)
        node.cache_manager.unregister_memory(memory)
        bytes_[:] = 1
        time.sleep(0.5)
        assert (bytes_ == 1).all()
        # It runs, and was not blacklisted.
        assert node.link(peer.address).state is cachefw.LinkState.UP


def test_a_stopped_writer_that_is_killed_frees_the_memory(
    start: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEFW_LEASE", "0.4")
    with cachefw.Node(2, "127.0.0.1:0", transports=["host"]) as node:
        memory = node.cache_manager.register_memory(np.zeros(SIZE, np.uint8), remote_accessible=True)
        peer = start(1, 200, write=node.address)
        (link,) = node.links
        peer.process.send_signal(signal.SIGSTOP)
        until(lambda: link.state is cachefw.LinkState.BROKEN)
        peer.kill()
        node.cache_manager.unregister_memory(memory)


# ---------------------------------------------------------------------- T22


def test_t22_a_peer_is_killed_and_restarted_twenty_times(start: Callable[..., Peer]) -> None:
    before = mappings()
    healthy = start(3, 33)
    stop, moved, failures = threading.Event(), [0], []
    with cachefw.Node(2, transports=["host"]) as node:
        target, other = np.zeros(SIZE, np.uint8), np.zeros(SIZE, np.uint8)
        node.cache_manager.register_memory(target)
        node.cache_manager.register_memory(other)

        def traffic() -> None:
            link = node.link(healthy.address)
            places = FIXED, healthy.shared
            prepared = [link.prepare(cachefw.Operation.READ, other.ctypes.data, at, SIZE) for at in places]
            while not stop.is_set():
                for each in prepared:
                    try:
                        each.post()
                        moved[0] += 1
                    except cachefw.CacheError as error:
                        failures.append(error)
                        return
                if not (other == 33).all():
                    failures.append("wrong bytes")

        thread = threading.Thread(target=traffic)
        thread.start()
        address, seen, old, prepared = "127.0.0.1:0", set(), None, None
        try:
            for round_ in range(20):
                peer = start(1, round_ + 1, address)
                address = peer.address
                link = node.relink(address if old is None or round_ % 2 else old, timeout=20)
                assert link.incarnation not in seen
                seen.add(link.incarnation)
                # At the same addresses as before, and other bytes.
                for there in (FIXED, peer.shared):
                    link.read(target.ctypes.data, there, SIZE)
                    assert (target == round_ + 1).all()
                if old is not None:
                    with pytest.raises(cachefw.BrokenError) as caught:
                        prepared.post()
                    assert caught.value.code == "link.broken"
                    with pytest.raises(cachefw.BrokenError, match="is broken"):
                        old.read(target.ctypes.data, FIXED, 16)
                prepared = link.prepare(cachefw.Operation.READ, target.ctypes.data, FIXED, SIZE)
                prepared.post()
                before_kill = moved[0]
                peer.kill()
                until(lambda link=link: link.state is cachefw.LinkState.BROKEN, "the end of the link")
                # What was mapped of the dead one is given back without anybody asking.
                until(lambda: mappings() == before + 1, "giving back")
                until(lambda least=before_kill: moved[0] > least or bool(failures), "traffic")
                old = link
        finally:
            stop.set()
            thread.join(30)
        assert failures == []
        assert [link.cluster_id for link in node.links] == [3]
    assert mappings() == before
    healthy.end()


# ---------------------------------------------------------------------- relinking


def test_relink_waits_for_a_peer_that_is_being_restarted() -> None:
    with cachefw.Node(2) as two:
        with cachefw.Node(1, "127.0.0.1:0") as one:
            address = one.address
            link = two.link(address)
        # Nobody is there for a while; who listens there then and says nothing is not the peer either.
        started: list[cachefw.Node] = []
        timer = threading.Timer(0.4, lambda: started.append(cachefw.Node(1, address)))
        timer.start()
        again = two.relink(link, timeout=20)
        timer.join()
        assert again.state is cachefw.LinkState.UP
        assert again.incarnation != link.incarnation
        # Of a link that is up, it makes a new one.
        third = two.relink(again)
        assert (again.state, third.state) == (cachefw.LinkState.CLOSED, cachefw.LinkState.UP)
        started[0].close()


def test_relink_gives_up_at_its_deadline_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with cachefw.Node(2) as two, pytest.raises(cachefw.BrokenError, match=f"cannot reach 127.0.0.1:{port}") as caught:
        two.relink(f"127.0.0.1:{port}", timeout=0.4)
    assert caught.value.code == "link.unreachable"


def test_who_takes_no_links_has_to_link_itself() -> None:
    with cachefw.Node(1, "127.0.0.1:0") as one, cachefw.Node(2) as two:
        two.link(one.address)
        with pytest.raises(ValueError, match="takes no links itself, so this node cannot dial it"):
            one.relink(one.links[0])
        assert two.relink(two.links[0]).state is cachefw.LinkState.UP


def test_a_second_process_does_not_take_over_a_cluster_id() -> None:
    with cachefw.Node(2, "127.0.0.1:0") as two, cachefw.Node(1, "127.0.0.1:0") as first, cachefw.Node(1) as second:
        link = first.link(two.address)
        with pytest.raises(cachefw.BrokenError, match=r"cluster id 1 is taken: .* is linked, and answers") as caught:
            second.link(two.address)
        assert caught.value.code == "link.same_cluster"
        assert link.state is cachefw.LinkState.UP
        link.sync()
        first.close()
        assert second.link(two.address).state is cachefw.LinkState.UP


def test_crossed_links_with_a_secret_end_in_one() -> None:
    """And at once with many: nobody waits for a lock of another's."""
    secret = b"0123456789abcdef"
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(cachefw.Node(number, "127.0.0.1:0", secret=secret)) for number in range(1, 6)]
        pending = [one.link(two.address, wait=False) for one in nodes for two in nodes if one is not two]
        for each in pending:
            each.result(30)
        for node in nodes:
            assert sorted(link.cluster_id for link in node.links) == [n.cluster_id for n in nodes if n is not node]
