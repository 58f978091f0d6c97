"""A second process for tests: a node on device 1 that registers device memory and does what it is told."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import threading
import time
from pathlib import Path

from cachefw_ascendcl import CopyKind, Runtime, simulator

import cachefw

#: Bytes of each of the simulator's windows, at most.
WINDOW = 2**40


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
            elif order["do"] == "make":
                unlinked(node)
                memory = node.cache_manager.allocate(order["size"], cachefw.MemoryKind.DEVICE)
                data = ctypes.create_string_buffer(pattern(order["seed"], 4096), 4096)
                device.copy(memory.address, ctypes.addressof(data), 4096, CopyKind.HOST_TO_DEVICE)
                kept.append((memory, node.cache_manager.register_memory(memory)))
                answer = {"address": memory.address}
            elif order["do"] == "unmake":
                memory, registered = kept.pop()
                node.cache_manager.unregister_memory(registered)
                memory.close()
                answer = {}
            elif order["do"] == "held":
                unlinked(node)
                answer = held(1)
            print(json.dumps(answer), flush=True)
        for memory, _ in kept:
            memory.close()
    device.close()
    runtime.close()


def pattern(seed: int, length: int) -> bytes:
    """Bytes that depend on their place, with a period that is no power of two."""
    unit = bytes((seed * 37 + place * 7 + place // 251) % 256 for place in range(4099))
    return (unit * (length // len(unit) + 1))[:length]


def unlinked(node: cachefw.Node) -> None:
    """The other side has unlinked; the news may be on its way."""
    end = time.monotonic() + 30
    while node.links and time.monotonic() < end:
        time.sleep(0.0005)


def held(device: int) -> dict[str, int]:
    """What this process has open, and what it holds of the device."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = {f"simulated {name}": count for name, count in simulator.statistics(device).items()}
    found["descriptors"] = len(list(Path("/proc/self/fd").iterdir()))
    # The event loop's own pool has as many threads as it once had calls at the same time, up to its limit.
    pool = sum(thread.name.startswith("asyncio_") for thread in threading.enumerate())
    found["threads"] = len(list(Path("/proc/self/task").iterdir())) - pool
    # Not all mappings: those of the heap come and go.
    found["shared mappings"] = sum(line.split()[1].endswith("s") for line in maps)
    found["windows' mappings"] = sum(_in_windows(int(line.partition("-")[0], 16), found) for line in maps)
    return found


def _in_windows(address: int, figures: dict[str, int]) -> bool:
    starts = (figures["simulated device_window"], figures["simulated host_window"])
    return any(start <= address < start + WINDOW for start in starts if start)


if __name__ == "__main__":
    main()
