"""What the transport is for: blocks of ordinary tensors are spilled to a store's files, and pulled back by others."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from cachefw_files import store, transport

import cachefw
from cachefw import BlocksCacheKey, CacheDesc, DataType, Node, Placement
from cachefw.plugins import catalogue
from cachefw.testing.sessions import sessions

DESC = CacheDesc(2, (64, 4096), DataType.DT_UINT8, Placement.HOST)
STORE = """
import sys
from cachefw import BlocksCacheKey, CacheDesc, DataType, Node, Placement

desc = CacheDesc(2, (64, 4096), DataType.DT_UINT8, Placement.HOST)
with Node(9, "127.0.0.1:0", transports=["files"], settings={"files": {"directory": sys.argv[1]}}) as node:
    memory = node.cache_manager.allocate(2 * desc.size)
    addrs = [memory.address, memory.address + desc.size]
    node.cache_manager.register_blocks_cache(desc, addrs, BlocksCacheKey(9), remote_accessible=True)
    print(node.address, memory.address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def shared(tmp_path):
    """A directory that is as empty at the end as it was."""
    yield tmp_path
    catalogue.forget()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def engine(shared):
    """Makes nodes on the directory, and closes them."""
    nodes = []

    def make(number, listen=None):
        nodes.append(Node(number, listen, transports=["files"], settings={"files": {"directory": str(shared)}}))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def keeper(shared):
    """A store in a process of its own: its address, and where its memory is there."""
    process = subprocess.Popen(
        [sys.executable, "-c", STORE, str(shared)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            address, start = process.stdout.readline().split()
            yield address, int(start)
            process.communicate("", timeout=20)
        finally:
            process.kill()
    assert process.returncode == 0


def tensors(node, seed=None):
    """Ordinary memory, registered: what a model runs on."""
    random = np.random.default_rng(seed)
    arrays = [random.integers(0, 256, (64, 4096), np.uint8) if seed else np.zeros((64, 4096), np.uint8) for _ in "kv"]
    return arrays, node.cache_manager.register_blocks_cache(DESC, [array.ctypes.data for array in arrays])


def test_blocks_are_spilled_by_one_engine_and_pulled_by_another(engine, keeper):
    address, start = keeper
    one, two = engine(1), engine(2)
    spilled, _ = tensors(one, seed=1)
    link = one.link(address)
    link.sync()
    blocks, places = [3, 60, 7], [0, 1, 2]
    here = [array.ctypes.data + 4096 * block for array in spilled for block in blocks]
    there = [start + DESC.size * number + 4096 * place for number in range(2) for place in places]
    transfer = link.write(here, there, [4096] * 6)
    assert (transfer.path, transfer.nbytes) == ("file", 6 * 4096)
    pulled, cache = tensors(two)
    two.link(address)
    two.cache_manager.pull_blocks(BlocksCacheKey(9), cache, src_blocks=places, dst_blocks=[40, 41, 42])
    for before, after in zip(spilled, pulled, strict=True):
        assert (after[[40, 41, 42]] == before[blocks]).all()
        assert not np.delete(after, [40, 41, 42], axis=0).any()


def test_what_peers_are_to_reach_comes_from_allocate(engine):
    node = engine(1, "127.0.0.1:0")
    with pytest.raises(cachefw.RegistrationError) as caught:
        node.cache_manager.register_memory(np.zeros(4096, np.uint8), remote_accessible=True)
    assert caught.value.code == "files.allocated"
    assert "take it from allocate(size, transport='files')" in str(caught.value)
    node.cache_manager.register_memory(np.zeros(4096, np.uint8), remote_accessible=False)
    memory = node.cache_manager.allocate(10_000)
    node.cache_manager.register_memory(memory, remote_accessible=True)


def test_what_a_killed_process_left_is_removed_by_the_next(engine, shared):
    code = (
        "import os, signal, sys; from cachefw import CacheManager\n"
        "manager = CacheManager(['files'], settings={'files': {'directory': sys.argv[1]}})\n"
        "memory = manager.allocate(1 << 20); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(shared)], timeout=60, check=False)
    assert done.returncode == -9
    (left,) = shared.iterdir()
    assert (left / "1").stat().st_size >= 1 << 20
    engine(1)
    assert not left.exists()


def test_a_living_owner_is_left_alone(engine, shared):
    engine(1)
    assert store.sweep(shared) == []
    assert store.alive(next(shared.iterdir()))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "directory must name the shared directory, not None; or set CACHEFW_FILES_DIRECTORY"),
        ({"directory": "/nowhere/at/all"}, "/nowhere/at/all cannot be used: .*No such file or directory"),
        ({"directory": "/tmp", "threads": 0}, "threads must be 1 to 64, not 0"),
        ({"directory": "/tmp", "speed": 9}, "there is no setting 'speed'; there are directory, threads"),
    ],
    ids=["none", "missing", "threads", "unknown"],
)
def test_wrong_settings_are_refused(monkeypatch, settings, words):
    monkeypatch.delenv("CACHEFW_FILES_DIRECTORY", raising=False)
    with pytest.raises(cachefw.CacheError, match=words):
        cachefw.CacheManager(["files"], settings={"files": settings})


def test_the_directory_may_come_from_the_environment(shared, monkeypatch):
    monkeypatch.setenv("CACHEFW_FILES_DIRECTORY", str(shared))
    with cachefw.CacheManager(["files"]) as manager:
        memory = manager.allocate(5000, alignment=2**21)
        assert memory.address % 2**21 == 0
        memory.close()


def test_a_full_disk_is_refused_before_anything_is_touched(engine):
    manager = engine(1).cache_manager
    with pytest.raises(cachefw.OutOfMemoryError, match=r"1,152,921,504,606,846,976 bytes cannot be had in .* are free"):
        manager.allocate(2**60)


@pytest.mark.parametrize(("kind", "reached"), [("nfs4", False), ("lustre", True)])
def test_a_peer_on_another_host_needs_coherent_mappings(shared, monkeypatch, kind, reached):
    """The file system is made up here; no second host was at hand."""
    here, there = transport.FilesTransport(), transport.FilesTransport()
    for one in (here, there):
        one.info = catalogue.get("files").info
        one.open({"directory": str(shared)})
    there._boot = b"b" * 36
    monkeypatch.setattr(transport, "_file_system", lambda directory: kind)
    try:
        if reached:
            here.connect(there.card(), 1.0, sessions()[0]).close()
        else:
            with pytest.raises(cachefw.UnsupportedOperation, match="is nfs4, on which a mapping does not see"):
                here.connect(there.card(), 1.0, sessions()[0])
    finally:
        here.close()
        there.close()


def test_the_file_system_is_found():
    assert transport._file_system(transport.Path("/proc/self")) == "proc"
