"""A second process for tests: a node or a bare transport that makes memory and does what it is told, line by line."""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

import cachefw
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.plugins import catalogue
from cachefw.testing.sessions import sessions


def main() -> None:
    settings = json.loads(sys.argv[1])
    serve_transport(settings) if sys.argv[2:] == ["bare"] else serve_node(settings)


def say(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


def serve_node(settings: dict[str, object]) -> None:
    kept = []
    device = DeviceMemory() if settings.pop("device_memory", False) else None
    with cachefw.Node(1, "127.0.0.1:0", transports=["rdma"], settings={"rdma": settings}) as node:
        if device is not None:
            node.cache_manager.register_memory(device.region, remote_accessible=True)
        say(address=node.address, pid=os.getpid(), device=device and device.region.address)
        for line in sys.stdin:
            order = json.loads(line)
            if order["do"] == "make":
                array = make(order)
                memory = node.cache_manager.register_memory(array, remote_accessible=True)
                kept.append((array, memory))
                say(address=memory.region.address, number=len(kept) - 1)
            elif order["do"] == "check":
                array = kept[order["number"]][0] if order["number"] is not None else device.bytes()
                say(same=check(array, order))
            elif order["do"] == "cache":
                say(tensors=make_cache(node.cache_manager, order, kept))
            elif order["do"] == "notified":
                # Looked at in the instant in which it is known.
                payload = notified(node)
                say(payload=payload, same=check(kept[order["number"]][0], {**order, "seed": int(payload or 0)}))
            elif order["do"] == "drop":
                node.cache_manager.unregister_memory(kept[order["number"]][1])
                say(dropped=order["number"])


def make_cache(manager: cachefw.CacheManager, order: dict[str, int], kept: list[object]) -> list[list[int]]:
    """A published cache whose blocks each have one byte value throughout; those values."""
    values = (
        np.arange(order["tensors"] * order["blocks"], dtype=np.uint8).reshape(order["tensors"], order["blocks"]) + 1
    )
    tensors = [np.repeat(row, order["block"]) for row in values]
    desc = cachefw.CacheDesc(
        order["tensors"], (order["blocks"], order["block"]), cachefw.DataType.DT_INT8, cachefw.Placement.HOST
    )
    addresses = [tensor.ctypes.data for tensor in tensors]
    cache = manager.register_blocks_cache(desc, addresses, cachefw.BlocksCacheKey(1), remote_accessible=True)
    kept.append((tensors, cache))
    return values.tolist()


def notified(node: cachefw.Node) -> str:
    """The next notification."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        for each in node.notifications():
            return each.payload.decode()
    return ""


class DeviceMemory:
    """A megabyte of a simulated device."""

    def __init__(self) -> None:
        from cachefw_ascendcl import CopyKind, Runtime

        self.kind = CopyKind.DEVICE_TO_HOST
        self.runtime = Runtime()
        self.device = self.runtime.device(1)
        self.memory = self.device.allocate(2**20)
        self.region = MemoryRegion(self.memory.address, 2**20, MemoryKind.DEVICE)
        data = pattern(7, 0, 2**20)
        self.device.copy(self.memory.address, data.ctypes.data, data.nbytes, CopyKind.HOST_TO_DEVICE)

    def bytes(self) -> np.ndarray:
        data = np.zeros(2**20, np.uint8)
        self.device.copy(data.ctypes.data, self.memory.address, data.nbytes, self.kind)
        return data


def serve_transport(settings: dict[str, object]) -> None:
    transport = open_transport(settings)
    kept = []
    say(card=transport.card().hex(), pid=os.getpid())
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "make":
            array = make(order)
            region = MemoryRegion(array.ctypes.data, array.nbytes)
            registered = transport.register(region)
            kept.append((array, registered))
            say(address=region.address, description=transport.describe(registered).hex(), number=len(kept) - 1)
        elif order["do"] == "check":
            say(same=check(kept[order["number"]][0], order))
        elif order["do"] == "dial":
            # Connects for ever, until it is killed.
            say(dialling=True)
            while True:
                transport.connect(bytes.fromhex(order["card"]), 5.0, sessions()[0]).close()
    transport.close()


def open_transport(settings: dict[str, object]) -> object:
    info = catalogue.get("rdma").info
    transport = info.factory()
    transport.info = info
    reason = transport.probe()
    assert reason is None, reason
    transport.open(settings)
    return transport


def make(order: dict[str, object]) -> np.ndarray:
    """Only the named stretches are touched: the rest of a sparse region costs nothing."""
    array = np.zeros(order["size"], np.uint8)
    for start, length in order["fill"]:
        array[start : start + length] = pattern(order["seed"], start, length)
    return array


def check(array: np.ndarray, order: dict[str, object]) -> bool:
    start, length = order["start"], order["length"]
    return bool((array[start : start + length] == pattern(order["seed"], start, length)).all())


def pattern(seed: int, start: int, length: int) -> np.ndarray:
    """Bytes that depend on their place, so that nothing can land elsewhere unseen."""
    places = np.arange(start, start + length, dtype=np.uint64) + np.uint64(seed)
    return ((places * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(56)).astype(np.uint8)


if __name__ == "__main__":
    main()
