"""Two network namespaces with a cable between them stand for two hosts: cut, slow, lossy."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make network namespaces"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs the command ip (Debian: iproute2)"),
]

# Runs in the other namespace, so that the two ends share no loopback.
SCRIPT = """
import json, sys, time
import numpy as np
import cachefw

address, remote, size, settings = json.loads(sys.argv[1])
said = lambda **words: print(json.dumps(words), flush=True)
with cachefw.Node(2, transports=["host"], settings={"host": settings}, insecure=True) as node:
    link = node.link(address, timeout=20)
    here = np.zeros(size, np.uint8)
    memory = node.cache_manager.register_memory(here)
    prepared = {op: link.prepare(op, memory.region.address, remote, size) for op in cachefw.Operation}
    for line in sys.stdin:
        op = cachefw.Operation(line.split()[0])
        here[:] = 0 if op is cachefw.Operation.READ else 8
        begin = time.monotonic()
        try:
            if line.split()[1] == "until-broken":
                said(going=True)
                while True:
                    done = prepared[op].post(timeout=60)
            else:
                done = prepared[op].post(timeout=120)
            said(path=done.path, sum=int(here.sum()))
        except cachefw.CacheError as error:
            said(error=type(error).__name__, code=error.code, seconds=time.monotonic() - begin, text=str(error))
"""


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"host_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


processes = _load("test_processes")


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)


@attrs.frozen
class Cable:
    """Two namespaces, ends of one cable."""

    spaces: tuple[str, str]
    devices: tuple[str, str]
    addresses: tuple[str, str] = ("10.213.77.1", "10.213.77.2")

    def inside(self, end: int) -> tuple[str, ...]:
        """What to put before a command to run it there."""
        return ("ip", "netns", "exec", self.spaces[end])

    def cut(self) -> None:
        """Pull it out."""
        run(*self.inside(0), "ip", "link", "set", self.devices[0], "down")

    def shape(self, *how: str) -> None:
        """Make both directions bad; skips the test where the kernel cannot."""
        for end in (0, 1):
            command = [*self.inside(end), "tc", "qdisc", "add", "dev", self.devices[end], "root", "netem", *how]
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
            if done.returncode:
                pytest.skip(f"the kernel has no netem ({done.stderr.strip() or done.returncode}): sch_netem is missing")


@pytest.fixture
def cable() -> Iterator[Cable]:
    mark = secrets.token_hex(3)
    made = Cable((f"cfw{mark}a", f"cfw{mark}b"), (f"cf{mark}a", f"cf{mark}b"))
    with contextlib.ExitStack() as stack:
        for space in made.spaces:
            try:
                run("ip", "netns", "add", space)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")
            stack.callback(run, "ip", "netns", "delete", space)
        first, second = made.devices
        try:
            run("ip", "link", "add", first, "netns", made.spaces[0], "type", "veth", "peer", "name", second)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no veth pair can be made here: {error.stderr.decode().strip()}")
        run("ip", "link", "set", second, "netns", made.spaces[1])
        for end in (0, 1):
            run(*made.inside(end), "ip", "address", "add", f"{made.addresses[end]}/24", "dev", made.devices[end])
            run(*made.inside(end), "ip", "link", "set", made.devices[end], "up")
        yield made


class Puller:
    """The process at the other end of the cable."""

    def __init__(self, cable: Cable, *prefix: str, order: list[Any]) -> None:
        command = [*cable.inside(1), *prefix, sys.executable, "-c", SCRIPT, json.dumps(order)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self, operation: str, what: str = "once") -> None:
        self.process.stdin.write(f"{operation} {what}\n")
        self.process.stdin.flush()

    def said(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait(10)}"
        return json.loads(line)

    def end(self) -> None:
        self.process.stdin.close()
        # Whoever is cut off takes the timeouts of its link to close.
        self.process.wait(60)
        self.process.stdout.close()


@contextlib.contextmanager
def two_hosts(cable: Cable, size: int, settings: dict[str, Any], *prefix: str) -> Iterator[tuple[Any, Any, Puller]]:
    with processes.running_peer(*cable.inside(0), listen=cable.addresses[0], **settings) as peer:
        there = peer.make(size, shared=False)
        puller = Puller(cable, *prefix, order=[peer.about["address"], there["address"], size, settings])
        try:
            yield peer, there, puller
        finally:
            puller.end()


SIZE = 3 * 2**20 + 5


def check_both_ways(peer: Any, there: Any, puller: Puller, path: str = "tcp") -> None:
    puller.tell("read")
    expected = int(processes.pattern(7, 0, SIZE).sum())
    assert puller.said() == {"path": path, "sum": expected}
    puller.tell("write")
    assert puller.said() == {"path": path, "sum": 8 * SIZE}
    puller.tell("read")
    assert puller.said() == {"path": path, "sum": 8 * SIZE}


def test_two_hosts_move_both_ways(cable: Cable) -> None:
    with two_hosts(cable, SIZE, {"paths": ["tcp"]}) as (peer, there, puller):
        check_both_ways(peer, there, puller)


def test_containers_that_share_no_namespace_are_two_hosts(cable: Cable) -> None:
    """One kernel, but neither descriptors nor process numbers reach across: TCP is taken without being named."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs the command unshare (Debian: util-linux)")
    prefix = (unshare, "--pid", "--fork", "--mount-proc", "--kill-child")
    with two_hosts(cable, SIZE, {}, *prefix) as (peer, there, puller):
        check_both_ways(peer, there, puller)


def test_one_pid_namespace_is_one_host_whatever_the_network(cable: Cable) -> None:
    with two_hosts(cable, SIZE, {}) as (peer, there, puller):
        check_both_ways(peer, there, puller, "cma")


@pytest.mark.parametrize("operation", ["read", "write"])
def test_a_cut_cable_is_a_clean_error(cable: Cable, operation: str) -> None:
    with two_hosts(cable, SIZE, {"paths": ["tcp"], "tcp_timeout": 1.5}) as (_, _, puller):
        puller.tell(operation, "until-broken")
        assert puller.said() == {"going": True}
        cable.cut()
        said = puller.said()
        assert said["error"] == "BrokenError", said


@pytest.mark.parametrize(
    "how",
    [("delay", "20ms", "5ms"), ("loss", "2%"), ("delay", "5ms", "4ms", "reorder", "25%", "50%"), ("corrupt", "1%")],
    ids=["delay", "loss", "reordering", "corruption"],
)
def test_a_bad_network_costs_time_and_no_byte(cable: Cable, how: tuple[str, ...]) -> None:
    cable.shape(*how)
    with two_hosts(cable, SIZE, {"paths": ["tcp"]}) as (peer, there, puller):
        check_both_ways(peer, there, puller)
