"""The host transport between two real processes: shared mappings, cross-memory reads, and what forbids them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachefw

PEER = Path(__file__).with_name("peer.py")
GIB = 2**30


def _load_pattern() -> Any:
    spec = importlib.util.spec_from_file_location("host_test_peer", PEER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pattern


pattern = _load_pattern()


class Peer:
    """The other process."""

    def __init__(self, *prefix: str, listen: str = "127.0.0.1", **settings: object) -> None:
        command = [*prefix, sys.executable, str(PEER), json.dumps(settings), listen]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        assert line, f"the peer ended with {self.process.wait(10)}"
        return json.loads(line)

    def tell(self, do: str, **order: object) -> dict[str, Any]:
        self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def make(
        self, size: int, *, shared: bool, seed: int = 7, fill: list[tuple[int, int]] | None = None
    ) -> dict[str, Any]:
        return self.tell("make", size=size, shared=shared, seed=seed, fill=[(0, size)] if fill is None else fill)

    def end(self) -> None:
        self.process.stdin.close()
        if self.process.wait(30) != 0 and self.process.returncode not in (-signal.SIGKILL,):
            raise AssertionError(f"the peer ended with {self.process.returncode}")
        self.process.stdout.close()


@contextlib.contextmanager
def running_peer(*prefix: str, **settings: Any) -> Iterator[Peer]:
    peer = Peer(*prefix, **settings)
    try:
        yield peer
    finally:
        peer.end()


@pytest.fixture
def peer() -> Iterator[Peer]:
    with running_peer() as peer:
        yield peer


@pytest.fixture
def node(peer: Peer) -> Iterator[cachefw.Node]:
    with cachefw.Node(2, transports=["host"]) as node:
        node.link(peer.about["address"])
        yield node


def _target(node: cachefw.Node, size: int) -> tuple[np.ndarray, int]:
    memory = node.cache_manager.allocate(size)
    node.cache_manager.register_memory(memory)
    return np.asarray(memory), memory.address


@pytest.mark.parametrize(("shared", "path"), [(True, "shm"), (False, "cma")])
def test_memory_of_either_kind_is_read_and_written(peer: Peer, node: cachefw.Node, shared: bool, path: str) -> None:
    size = 9 * 2**20 + 13
    there = peer.make(size, shared=shared)
    here, address = _target(node, size)
    link = node.links[0]
    read = link.read(address, there["address"], size)
    assert read.path == path
    assert (here == pattern(7, 0, size)).all()
    start, length = 4097, 5 * 2**20 + 1
    here[start : start + length] = pattern(8, start, length)
    written = link.write(address + start, there["address"] + start, length)
    assert written.path == path
    assert peer.tell("check", number=there["number"], seed=8, start=start, length=length)["same"]
    assert peer.tell("check", number=there["number"], seed=7, start=0, length=start)["same"]
    end = start + length
    assert peer.tell("check", number=there["number"], seed=7, start=end, length=size - end)["same"]


def test_one_transfer_over_both_kinds_takes_both_paths(peer: Peer, node: cachefw.Node) -> None:
    size, pieces = 64 * 2**10, 24
    one, other = peer.make(size, shared=True, seed=1), peer.make(size, shared=False, seed=2)
    here, address = _target(node, 2 * size)
    offsets = np.arange(pieces, dtype=np.uint64) * np.uint64(size // pieces)
    length = 100
    local = np.concatenate((offsets, offsets + np.uint64(size))) + np.uint64(address)
    remote = np.concatenate((offsets + np.uint64(one["address"]), offsets + np.uint64(other["address"])))
    # Alternating, so that neither kind comes in one run.
    order = np.arange(2 * pieces).reshape(2, pieces).T.ravel()
    done = node.links[0].read(local[order], remote[order], np.full(2 * pieces, length))
    assert done.path == "shm+cma"
    for index in range(pieces):
        start = int(offsets[index])
        assert (here[start : start + length] == pattern(1, start, length)).all()
        assert (here[size + start : size + start + length] == pattern(2, start, length)).all()


@pytest.mark.parametrize("shared", [True, False])
def test_offsets_past_4_gib_reach_the_right_bytes(peer: Peer, node: cachefw.Node, shared: bool) -> None:
    size, length = 5 * GIB, 3 * 2**20 + 5
    starts = [0, 4 * GIB - 11, size - length]
    there = peer.make(size, shared=shared, fill=[(start, length) for start in starts])
    memory = node.cache_manager.allocate(size)
    node.cache_manager.register_memory(memory)
    here = np.asarray(memory)
    local = [memory.address + start for start in starts]
    remote = [there["address"] + start for start in starts]
    node.links[0].read(local, remote, [length] * 3)
    for start in starts:
        assert (here[start : start + length] == pattern(7, start, length)).all()
    del here


def test_more_pieces_than_one_system_call_takes(peer: Peer, node: cachefw.Node) -> None:
    count, length = 5000, 300
    there = peer.make(count * 512, shared=False)
    here, address = _target(node, count * 512)
    order = np.random.default_rng(5).permutation(count).astype(np.uint64) * np.uint64(512)
    node.links[0].read(order + np.uint64(address), order + np.uint64(there["address"]), np.full(count, length))
    whole = here.reshape(count, 512)
    expected = pattern(7, 0, count * 512).reshape(count, 512)
    assert (whole[:, :length] == expected[:, :length]).all()
    assert not whole[:, length:].any()


def test_withdrawn_memory_is_refused_and_its_mapping_is_gone(peer: Peer, node: cachefw.Node) -> None:
    there = peer.make(2**20, shared=True)
    _, address = _target(node, 2**20)
    link = node.links[0]
    prepared = link.prepare(cachefw.Operation.READ, address, there["address"], 4096)
    prepared.post()
    mapped = Path("/proc/self/maps").read_text().count("memfd:")
    peer.tell("drop", number=there["number"])
    assert Path("/proc/self/maps").read_text().count("memfd:") < mapped
    with pytest.raises(cachefw.BrokenError, match="withdrew memory"):
        prepared.post()
    with pytest.raises(cachefw.RequestError, match="nothing published is there"):
        link.read(address, there["address"], 4096)


def _post_until_it_fails(prepared: cachefw.PreparedTransfer) -> None:
    # A mapping outlives its maker; the link does not, and the loop has to notice first.
    for _ in range(100_000):
        prepared.post()


@pytest.mark.parametrize("shared", [True, False])
def test_a_killed_peer_breaks_the_link_and_nothing_else(shared: bool) -> None:
    with running_peer() as peer, cachefw.Node(2, transports=["host"]) as node:
        link = node.link(peer.about["address"])
        there = peer.make(2**20, shared=shared)
        _, address = _target(node, 2**20)
        prepared = link.prepare(cachefw.Operation.READ, address, there["address"], 2**20)
        prepared.post()
        os.kill(peer.about["pid"], signal.SIGKILL)
        peer.process.wait(30)
        with pytest.raises(cachefw.BrokenError) as caught:
            _post_until_it_fails(prepared)
        assert caught.value.peer is not None
        with pytest.raises(cachefw.BrokenError):
            link.sync()
        assert link not in node.links
        with running_peer() as other:
            node.link(other.about["address"])
            again = other.make(4096, shared=shared)
            node.links[0].read(address, again["address"], 4096)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become a user whom the kernel keeps out")
def test_a_forbidden_process_says_which_setting_forbids_it() -> None:
    # The peer stays root; the reader is another user and lacks CAP_SYS_PTRACE.
    with running_peer() as peer:
        foreign, shared = peer.make(4096, shared=False), peer.make(4096, shared=True)
        script = f"""
import os, sys, json, numpy as np, cachefw
with cachefw.Node(2, transports=["host"]) as node:
    link = node.link({peer.about["address"]!r})
    memory = node.cache_manager.allocate(4096)
    node.cache_manager.register_memory(memory)
    link.sync()
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    done = link.read(memory.address, {shared["address"]}, 4096)
    try:
        link.read(memory.address, {foreign["address"]}, 4096)
    except cachefw.BrokenError as error:
        print(json.dumps([done.path, str(error), error.code, error.transport]))
"""
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    path, text, code, transport = json.loads(run.stdout)
    assert (path, code, transport) == ("shm", "memory.unreachable", "host")
    for word in ("user 65534", "user 0", "CAP_SYS_PTRACE", "run both as the same user", "CacheManager.allocate"):
        assert word in text


def test_shared_memory_alone_says_what_foreign_memory_lacks() -> None:
    with running_peer() as peer, cachefw.Node(2, transports=["host"], settings={"host": {"paths": ["shm"]}}) as node:
        link = node.link(peer.about["address"])
        there = peer.make(4096, shared=False)
        _, address = _target(node, 4096)
        with pytest.raises(cachefw.BrokenError, match=r"not taken from CacheManager\.allocate.*not among the paths"):
            link.read(address, there["address"], 4096)
