"""A thousand rounds of all that two processes do with each other's memory leave nothing behind."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cachefw_ascendcl import CopyKind, Device, Runtime
from peer import held, pattern

import cachefw

MIB = 2**20
ROUNDS = 1000


class Other:
    """The process that exports."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("peer.py")), "[]"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = json.loads(self.process.stdout.readline())["address"]

    def __call__(self, do: str, **order: object) -> dict[str, Any]:
        self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> int:
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(30)


def read_once(node: cachefw.Node, device: Device, other: Other, number: int) -> None:
    """Export there, import here, copy, and give all of it back, on both sides."""
    there = other("make", size=2 * MIB, seed=number)["address"]
    with node.cache_manager.allocate(2 * MIB, cachefw.MemoryKind.DEVICE) as memory:
        registered = node.cache_manager.register_memory(memory)
        link = node.link(other.address)
        link.read(memory.address, there, 2 * MIB)
        data = ctypes.create_string_buffer(4096)
        device.copy(ctypes.addressof(data), memory.address, 4096, CopyKind.DEVICE_TO_HOST)
        assert data.raw == pattern(number, 4096)
        if number % 2:
            # Every other time it is withdrawn under an open link.
            other("unmake")
            node.unlink(link)
        else:
            node.unlink(link)
            other("unmake")
        node.cache_manager.unregister_memory(registered)


def test_a_thousand_rounds_leave_nothing_on_either_side() -> None:
    other = Other()
    try:
        with Runtime() as runtime, runtime.device(0) as device, cachefw.Node(2, transports=["hccs"]) as node:
            # The first ones start what stays: threads, streams, rooms for lists.
            for number in range(10):
                read_once(node, device, other, number)
            time.sleep(0.2)
            before = held(0), other("held")
            for number in range(ROUNDS):
                read_once(node, device, other, number)
            # The connection of the last round may take a moment longer to close.
            end = time.monotonic() + 10
            while time.monotonic() < end and (held(0), other("held")) != before:
                time.sleep(0.01)
            assert held(0) == before[0]
            assert other("held") == before[1]
    finally:
        code = other.end()
    assert code == 0
