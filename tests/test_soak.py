"""Random links, transfers, deaths and stops, for a while: no wrong byte, nothing left behind, nothing that hangs.

``pytest -s -m long -o faulthandler_timeout=900 tests/test_soak.py`` goes on for ten minutes, or for ``CACHEFW_LONG``
seconds, and ``CACHEFW_SOAK_SEED`` repeats a run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachefw
from cachefw.testing._usage import Usage

PEER = Path(__file__).with_name("link_peer.py")
FIXED, SIZE = 0x7E00_0000_0000, 2**20
SECONDS = 8.0
SEED = int(os.environ.get("CACHEFW_SOAK_SEED", "20"))
SECRET = b"a secret of the soak, long enough"


class Peer:
    """A node in another process that comes and goes. Each start fills its memory with another value."""

    def __init__(self, cluster: int) -> None:
        self.cluster = cluster
        self.address = "127.0.0.1:0"
        self.value = cluster
        self.stopped = False
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.value = self.value % 200 + 3
        about = {"cluster": self.cluster, "value": self.value, "listen": self.address, "secret": SECRET.decode()}
        self.process = subprocess.Popen(
            [sys.executable, str(PEER), json.dumps(about)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        told = json.loads(self.process.stdout.readline())
        self.address, self.shared = told["address"], told["shared"]

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.stdin.close()
            self.process.wait(30)
            self.process.stdout.close()
        self.process, self.stopped = None, False

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.stopped = False


def only_if(expected: bool, error: Exception) -> None:
    """An error that may come in some states alone."""
    if not expected:
        raise AssertionError("it should not have failed") from error


class Soak:
    """One node, its peers, and what happens to them."""

    def __init__(self, node: cachefw.Node, chance: random.Random) -> None:
        self.node = node
        self.chance = chance
        self.peers = [Peer(cluster) for cluster in (11, 12, 13)]
        self.links: dict[int, cachefw.Link] = {}
        self.counts: dict[str, int] = {}

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def step(self) -> None:
        peer = self.chance.choice(self.peers)
        if peer.process is None:
            peer.start()
            self.count("started")
        act = self.chance.choices(
            [self.move, self.kill, self.stop, self.unlink, self.late, self.register], [60, 4, 4, 6, 12, 14]
        )[0]
        self.count(act.__name__)
        act(peer)

    def link(self, peer: Peer) -> cachefw.Link | None:
        if peer.stopped:
            peer.go_on()
        link = self.links.get(peer.cluster)
        try:
            if link is None or link.state is not cachefw.LinkState.UP:
                link = self.links[peer.cluster] = self.node.relink(link or peer.address, timeout=20)
        except cachefw.BrokenError as error:
            # The link was on its way down: the peer has just been let go on, and has heard that it was given up.
            only_if(error.code in ("link.lost", "link.broken", "link.crossed", "link.hangup"), error)
            self.count("link failed")
            self.links.pop(peer.cluster, None)
            return None
        return link

    def move(self, peer: Peer) -> None:
        link = self.link(peer)
        if link is None:
            return
        target = np.zeros(SIZE, np.uint8)
        memory = self.node.cache_manager.register_memory(target)
        try:
            at = sorted(self.chance.sample(range(0, SIZE, 64), 8))
            lengths = [self.chance.randint(1, 64) for _ in at]
            base = self.chance.choice([FIXED, peer.shared])
            try:
                link.read([target.ctypes.data + a for a in at], [base + a for a in at], lengths)
            except (cachefw.BrokenError, cachefw.RequestError) as error:
                only_if(link.state is not cachefw.LinkState.UP, error)
                self.count("moved on a link that ended")
                return
            wanted = np.zeros(SIZE, np.uint8)
            for a, length in zip(at, lengths, strict=True):
                wanted[a : a + length] = peer.value
            assert (target == wanted).all(), "wrong bytes"
        finally:
            self.node.cache_manager.unregister_memory(memory)

    def late(self, peer: Peer) -> None:
        link = self.link(peer)
        if link is None:
            return
        target = np.zeros(SIZE, np.uint8)
        memory = self.node.cache_manager.register_memory(target)
        try:
            link.read(target.ctypes.data, FIXED, SIZE, timeout=self.chance.choice([1e-6, 1e-4, 1e-3]))
        except cachefw.TransferTimeout:
            self.count("timed out")
        except (cachefw.BrokenError, cachefw.RequestError) as error:
            only_if(link.state is not cachefw.LinkState.UP, error)
        end = time.monotonic() + 20
        while True:
            try:
                self.node.cache_manager.unregister_memory(memory)
                break
            except cachefw.BusyError:
                assert time.monotonic() < end
                time.sleep(0.001)
        target[:] = 1
        time.sleep(0.002)
        assert (target == 1).all(), "a late byte"

    def register(self, _: Peer) -> None:
        """Publish something, and take it back, while a peer may be stopped."""
        memory = self.node.cache_manager.register_memory(np.zeros(4096, np.uint8), remote_accessible=True)
        for peer in self.peers:
            if peer.stopped:
                peer.go_on()
        self.node.cache_manager.unregister_memory(memory)

    def kill(self, peer: Peer) -> None:
        peer.kill()

    def stop(self, peer: Peer) -> None:
        peer.stop()
        if self.chance.random() < 0.3:
            # Longer than the lease.
            time.sleep(0.6)

    def unlink(self, peer: Peer) -> None:
        link = self.links.pop(peer.cluster, None)
        if link is not None:
            if peer.stopped:
                peer.go_on()
            self.node.unlink(link)


def _soak(length: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEFW_LEASE", "0.5")
    before: Any = None
    chance = random.Random(SEED)
    # Once around without counting: what a process takes once and keeps is no leak.
    for seconds in (1.0, length):
        with cachefw.Node(1, "127.0.0.1:0", transports=["host"], secret=SECRET) as node:
            soak = Soak(node, chance)
            end = time.monotonic() + seconds
            try:
                while time.monotonic() < end:
                    soak.step()
            finally:
                for peer in soak.peers:
                    peer.kill()
            assert node.cache_manager.memories == []
        if before is None:
            before = Usage.now()
    assert not before.leaked()
    print(f"seed {SEED}, {length:g} s: {dict(sorted(soak.counts.items()))}")


def test_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    _soak(SECONDS, monkeypatch)


@pytest.mark.long
def test_soak_for_ten_minutes(long_seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    _soak(long_seconds, monkeypatch)


@pytest.mark.parametrize(
    ("asked", "ran"),
    [([], False), (["-m", "long"], True), (["-m", "not (softroce or hardware)"], False), (["-m", "softroce"], False)],
)
def test_what_takes_long_runs_when_it_is_asked_for(asked: list[str], ran: bool) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", __file__, *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ("::test_soak_for_ten_minutes" in done.stdout) is ran, done.stdout + done.stderr
    assert ("::test_soak\n" in done.stdout) is ("softroce" not in asked and "long" not in asked)
