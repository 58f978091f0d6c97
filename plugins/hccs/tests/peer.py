"""A second process for tests: a node on device 1 that registers device memory and does what it is told."""

from __future__ import annotations

import ctypes
import json
import sys

from cachefw_ascendcl import CopyKind, Runtime, simulator

import cachefw


def main() -> None:
    runtime = Runtime()
    device = runtime.device(1)
    settings = {"hccs": {"device": 1}}
    with cachefw.Node(1, "127.0.0.1:0", transports=["hccs"], settings=settings) as node:
        # Device memory is registered before linking, so all of it at once.
        sizes = json.loads(sys.argv[1])
        kept = []
        for seed, size in enumerate(sizes):
            memory = node.cache_manager.allocate(size, cachefw.MemoryKind.DEVICE)
            data = ctypes.create_string_buffer(pattern(seed, size), size)
            device.copy(memory.address, ctypes.addressof(data), size, CopyKind.HOST_TO_DEVICE)
            kept.append((memory, node.cache_manager.register_memory(memory)))
        about = {"address": node.address, "memory": [memory.address for memory, _ in kept]}
        print(json.dumps(about), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            if order["do"] == "check":
                memory, _ = kept[order["number"]]
                start, length = order["start"], order["length"]
                data = ctypes.create_string_buffer(length)
                device.copy(ctypes.addressof(data), memory.address + start, length, CopyKind.DEVICE_TO_HOST)
                answer = {"same": data.raw == pattern(order["seed"], start + length)[start:]}
            elif order["do"] == "drop":
                node.cache_manager.unregister_memory(kept[order["number"]][1])
                answer = {"exports": simulator.statistics(1)["exports"]}
            print(json.dumps(answer), flush=True)
        for memory, _ in kept:
            memory.close()
    device.close()
    runtime.close()


def pattern(seed: int, length: int) -> bytes:
    """Bytes that depend on their place, with a period that is no power of two."""
    unit = bytes((seed * 37 + place * 7 + place // 251) % 256 for place in range(4099))
    return (unit * (length // len(unit) + 1))[:length]


if __name__ == "__main__":
    main()
