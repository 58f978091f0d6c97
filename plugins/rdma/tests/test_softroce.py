"""The RDMA transport on a real verbs device: for the virtual machine of ``tests/softroce/run``, skipped elsewhere."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachefw
from cachefw.errors import BrokenError, CacheError, RequestError, TransportUnavailable
from cachefw.plugins import catalogue
from cachefw.testing import TransportTests
from cachefw.transport import TransportInfo

DEVICE = os.environ.get("SOFTROCE_DEVICE", "")
ETHERNET = os.environ.get("SOFTROCE_ETHERNET", "")
GID = Path(f"/sys/class/infiniband/{DEVICE.partition(':')[0]}/ports/1/gids", os.environ.get("SOFTROCE_GID_INDEX", ""))
MIB = 2**20
SIZE = 4 * MIB
#: Seconds within which a failure has to be known. UCX is told to give up after some 4 s (see `verbs`); where everything
#: is emulated and others use the machine too, that may be many times as long.
LIMIT = 60.0
RELIABLE, DATAGRAM = "rc_v", "ud_v"
#: Reliable connections that are made over TCP instead of datagrams: UCX 1.13 ends the process when one fails.
STURDY = "rc_verbs,tcp"

pytestmark = pytest.mark.softroce
if not DEVICE:
    pytest.skip("needs the soft-RoCE device of tests/softroce/run", allow_module_level=True)


def settings(tls: str) -> dict[str, object]:
    return {"tls": tls, "net_devices": f"{DEVICE},lo" if "tcp" in tls else DEVICE}


@pytest.fixture(autouse=True)
def verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long UCX waits for a peer that does not answer, here and in peers: 7 times this for rc, this for ud."""
    monkeypatch.setenv("UCX_RC_VERBS_TIMEOUT", "500ms")
    monkeypatch.setenv("UCX_UD_VERBS_TIMEOUT", "3s")


class TestReliable(TransportTests):
    """The kit over reliable connections: one-sided operations that the device itself carries out."""

    # The order of calls is no business of the device; over tcp it takes a tenth of this minute.
    test_against_model = None

    @pytest.fixture
    def transport_info(self) -> TransportInfo:
        return catalogue.get("rdma").info

    @pytest.fixture
    def transport_settings(self) -> dict[str, object]:
        return settings(RELIABLE)


class TestDatagram(TestReliable):
    """What of the kit moves a megabyte at most, over datagrams. They stand still for long at larger reads.

    That is UCX 1.13 on this device: `ucx_perftest -t ucp_get -s 16777216 -E sleep` over `ud_v` does so too.
    """

    @pytest.fixture
    def transport_settings(self) -> dict[str, object]:
        return settings(DATAGRAM)


for _name in dir(TransportTests):
    if _name.startswith("test_") and _name not in (
        "test_every_byte_moves_and_no_other",
        "test_unaligned_addresses",
        "test_scattered_pieces",
        "test_regions_are_not_mixed_up",
        "test_many_are_in_flight",
        "test_four_threads_post",
        "test_two_channels_at_once",
        "test_memory_withdrawn_while_the_channel_is_open",
        "test_malformed_description_is_an_error",
        "test_target_closes_first",
    ):
        setattr(TestDatagram, _name, None)


# --------------------------------------------------------------------------- a second process

PEER = """
import json, sys
import numpy as np
import cachefw

def pattern(seed, size):
    return ((np.arange(size // 8, dtype=np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)).view(np.uint8)

if __name__ == "__main__":
    kept = []
    with cachefw.Node(1, "127.0.0.1:0", transports=["rdma"], settings={"rdma": json.loads(sys.argv[1])}) as node:
        print(json.dumps(node.address), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            if order["do"] == "make":
                kept.append(pattern(order["seed"], order["size"]))
                node.cache_manager.register_memory(kept[-1], remote_accessible=True)
                answer = kept[-1].ctypes.data
            else:
                answer = bool((kept[-1] == pattern(order["seed"], len(kept[-1]))).all())
            print(json.dumps(answer), flush=True)
"""


def pattern(seed: int, size: int) -> np.ndarray:
    """What a peer fills memory with: bytes that depend on their place."""
    return ((np.arange(size // 8, dtype=np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)).view(np.uint8)


class Peer:
    """The other process."""

    def __init__(self, tls: str) -> None:
        command = [sys.executable, "-c", PEER, json.dumps(settings(tls))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @functools.cached_property
    def address(self) -> str:
        """Where it listens. Asked late, so that both ends start at the same time, which takes long in here."""
        address: str = self._answer()
        return address

    def _answer(self) -> Any:
        line = self.process.stdout.readline()
        assert line, f"the peer ended with {self.process.wait(10)}"
        return json.loads(line)

    def make(self, size: int, seed: int = 1) -> int:
        """The address of new memory that holds a pattern and is published."""
        self._tell({"do": "make", "size": size, "seed": seed})
        return self._answer()

    def holds(self, seed: int) -> bool:
        """Whether the memory made last holds a pattern."""
        self._tell({"do": "compare", "seed": seed})
        return self._answer()

    def _tell(self, order: dict[str, object]) -> None:
        assert self.address
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.process.stdin.close()
        try:
            assert self.process.wait(60) in (0, -signal.SIGKILL)
        finally:
            self.kill()
            self.process.stdout.close()


@contextlib.contextmanager
def running_peer(tls: str = RELIABLE) -> Iterator[Peer]:
    peer = Peer(tls)
    try:
        yield peer
    finally:
        peer.end()


def open_node(tls: str = RELIABLE) -> cachefw.Node:
    return cachefw.Node(2, transports=["rdma"], settings={"rdma": settings(tls)})


def local(node: cachefw.Node, size: int = SIZE) -> np.ndarray:
    """Registered memory of this process."""
    array = np.zeros(size, np.uint8)
    node.cache_manager.register_memory(array)
    return array


def reads(node: cachefw.Node, peer: Peer, size: int = MIB) -> None:
    """Fail unless the node can link to a peer and read from it."""
    link = node.link(peer.address, timeout=LIMIT)
    here, there = local(node, size), peer.make(size, seed=3)
    link.read(here.ctypes.data, there, size, timeout=LIMIT)
    assert (here == pattern(3, size)).all()


def outcome(prepared: cachefw.PreparedTransfer) -> CacheError | None:
    """Post it; how it ended, which has to be known in time."""
    begin = time.monotonic()
    try:
        prepared.post(timeout=LIMIT)
    except BrokenError as error:
        assert time.monotonic() - begin < LIMIT
        return error
    return None


@pytest.mark.parametrize(("tls", "size"), [(RELIABLE, SIZE), (DATAGRAM, MIB)])
def test_two_processes_read_and_write(tls: str, size: int) -> None:
    with running_peer(tls) as peer, open_node(tls) as node:
        link = node.link(peer.address, timeout=LIMIT)
        there, here = peer.make(size), local(node, size)
        link.read(here.ctypes.data, there, size)
        assert (here == pattern(1, size)).all()
        here[:] = pattern(2, size)
        link.write(here.ctypes.data, there, size)
        assert peer.holds(2)


def test_the_device_itself_reads_memory_of_a_peer_that_is_stopped() -> None:
    with running_peer() as peer, open_node() as node:
        link = node.link(peer.address, timeout=LIMIT)
        there, here = peer.make(MIB), local(node, MIB)
        prepared = link.prepare(cachefw.Operation.READ, here.ctypes.data, there, MIB)
        prepared.post()
        here[:] = 0
        peer.process.send_signal(signal.SIGSTOP)
        try:
            prepared.post(timeout=LIMIT)
        finally:
            peer.process.send_signal(signal.SIGCONT)
        assert (here == pattern(1, MIB)).all()


# --------------------------------------------------------------------------- what goes wrong


@contextlib.contextmanager
def pulled_cable() -> Iterator[None]:
    """Ethernet without a carrier; afterwards, back until the device has its address again."""
    subprocess.run(["ip", "link", "set", ETHERNET, "down"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", ETHERNET, "up"], check=True)
        for _ in range(200):
            if "ffff" in GID.read_text() and "ACTIVE" in GID.parents[1].joinpath("state").read_text():
                break
            time.sleep(0.05)


def test_a_pulled_cable_breaks_the_transfer_and_not_the_node() -> None:
    with running_peer(STURDY) as peer, open_node(STURDY) as node:
        link = node.link(peer.address, timeout=LIMIT)
        here, there = local(node), peer.make(SIZE)
        prepared = link.prepare(cachefw.Operation.READ, here.ctypes.data, there, SIZE)
        prepared.post()
        with pulled_cable():
            error = outcome(prepared)
        assert isinstance(error, BrokenError)
        assert error.transport == "rdma"
        assert error.peer
        # UCX's number and its text for it.
        assert error.status
        assert error.detail
        if link in node.links:
            node.unlink(link)
        reads(node, peer)


def test_a_cable_pulled_during_a_transfer_ends_it() -> None:
    size = 16 * MIB
    with running_peer(STURDY) as peer, open_node(STURDY) as node:
        link = node.link(peer.address, timeout=LIMIT)
        here, there = local(node, size), peer.make(size)
        transfer = link.read(here.ctypes.data, there, size, wait=False)
        with pulled_cable():
            assert transfer.wait(LIMIT)
        error = transfer.error
        assert isinstance(error, BrokenError) if error else (here == pattern(1, size)).all()
        if link in node.links:
            node.unlink(link)
        reads(node, peer)


@pytest.mark.parametrize("tls", [RELIABLE, DATAGRAM])
def test_a_killed_peer_breaks_its_link_and_nothing_else(tls: str) -> None:
    size = 8 * MIB
    with running_peer(tls) as other, open_node(tls) as node:
        with running_peer(tls) as peer:
            link = node.link(peer.address, timeout=LIMIT)
            here, there = local(node, size), peer.make(size)
            prepared = link.prepare(cachefw.Operation.READ, here.ctypes.data, there, size)
            transfer = prepared.post(wait=False)
            peer.kill()
            # The device may have finished before: most of the work is done when a request is posted.
            assert transfer.wait(LIMIT)
            assert transfer.error is None or isinstance(transfer.error, BrokenError)
            assert isinstance(outcome(prepared), BrokenError)
            assert link not in node.links
        # Peers of these tests have the same cluster id: a restarted peer, as far as the node knows.
        reads(node, other)


def test_more_than_may_be_pinned_is_refused_up_front_with_the_numbers() -> None:
    # Root may pin anything. The rest of this test is in a process that becomes somebody else.
    script = f"""
import json, os, resource
from pathlib import Path
import numpy as np
import cachefw

with cachefw.Node(2, transports=["rdma"], settings={{"rdma": {settings(RELIABLE)!r}}}) as node:
    (pinned,) = [int(line.split()[1]) * 1024 for line in Path("/proc/self/status").open() if line.startswith("VmPin")]
    limit = pinned + {MIB}
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    large, small = np.zeros({SIZE}, np.uint8), np.zeros({MIB // 4}, np.uint8)
    try:
        node.cache_manager.register_memory(large)
    except cachefw.RegistrationError as error:
        findings = [finding for finding in error.findings if finding.rule == "rdma.memlock"]
        said = {{"text": str(error), "facts": [dict(finding.facts) for finding in findings]}}
    node.cache_manager.register_memory(small)
    print(json.dumps({{**said, "limit": limit, "address": large.ctypes.data}}))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout)
    assert len(said["facts"]) == 1, f"no rule has refused it, but: {said['text']}"
    facts = said["facts"][0]
    page = resource.getpagesize()
    need = -(-(said["address"] % page + SIZE) // page) * page
    assert (facts["limit"], facts["need"]) == (said["limit"], need)
    for word in (f"{need:,}", f"{said['limit']:,}", "RLIMIT_MEMLOCK", "prlimit", "ulimit -l"):
        assert word in said["text"]


def test_an_unknown_net_device_is_named() -> None:
    with pytest.raises((RequestError, TransportUnavailable)) as caught:
        cachefw.Node(2, transports=["rdma"], settings={"rdma": {"tls": RELIABLE, "net_devices": "mlx9_0:1"}})
    assert "mlx9_0:1" in str(caught.value)


# --------------------------------------------------------------------------- beside UCX's own


def perftest(size: int, count: int) -> float:
    """Bytes per second that UCX's benchmark gets, with as many requests at a time, between two processes of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["ucx_perftest", "-t", "ucp_get", "-s", str(size), "-n", str(count), "-O", str(count)]
    command += ["-w", "2", "-p", str(port), "-f"]
    environment = {**os.environ, "UCX_TLS": RELIABLE, "UCX_NET_DEVICES": DEVICE, "UCX_WARN_UNUSED_ENV_VARS": "n"}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + LIMIT
        while True:
            done = subprocess.run(
                [*command, "127.0.0.1"], env=environment, capture_output=True, text=True, timeout=120, check=False
            )
            lines = [line.split() for line in done.stdout.splitlines() if re.match(r"\s*\d+\s", line)]
            if lines:
                # Iterations, then three times, then the mean and the overall bandwidth in MiB/s.
                return float(lines[-1][5]) * MIB
            # The server may not listen yet.
            assert time.monotonic() < end, done.stdout + done.stderr
            time.sleep(0.2)
    finally:
        server.kill()
        server.wait()


@pytest.mark.skipif(shutil.which("ucx_perftest") is None, reason="needs ucx_perftest, which is in Debian's ucx-utils")
def test_reads_of_a_megabyte_beside_ucx_perftest(capsys: pytest.CaptureFixture[str]) -> None:
    # Printed for people and not judged: emulated time says little, and a busy machine even less.
    rounds, count = 3, 8
    ours: list[float] = []
    theirs: list[float] = []
    with running_peer() as peer, open_node() as node:
        link = node.link(peer.address, timeout=LIMIT)
        there, here = peer.make(count * MIB), local(node, count * MIB)
        places = np.random.default_rng(1).permutation(count).astype(np.uint64) * np.uint64(MIB)
        prepared = link.prepare(
            cachefw.Operation.READ, places + np.uint64(here.ctypes.data), places + np.uint64(there), np.full(count, MIB)
        )
        prepared.post(timeout=LIMIT)
        for _ in range(rounds):
            theirs.append(perftest(MIB, count))
            begin = time.perf_counter()
            prepared.post(timeout=LIMIT)
            ours.append(count * MIB / (time.perf_counter() - begin))
        assert (here == pattern(1, count * MIB)).all()
    mine, yours = (statistics.median(rates) / 1e6 for rates in (ours, theirs))
    with capsys.disabled():
        print(
            f"\nreads of 1 MiB over {RELIABLE}: {mine:.1f} MB/s, ucx_perftest -t ucp_get {yours:.1f} MB/s, ratio "
            f"{mine / yours:.2f} (goal 0.8; medians of {rounds} rounds)"
        )
