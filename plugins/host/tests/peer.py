"""A second process for tests: opens a node, makes memory, and does what it is told, a line of JSON at a time."""

from __future__ import annotations

import json
import os
import sys

import numpy as np

import cachefw


def main() -> None:
    kept = []
    settings = {"host": json.loads(sys.argv[1])}
    listen = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
    # On a network of the test's own.
    insecure = listen != "127.0.0.1"
    with cachefw.Node(1, f"{listen}:0", transports=["host"], settings=settings, insecure=insecure) as node:
        print(json.dumps({"address": node.address, "pid": os.getpid()}), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            if order["do"] == "make":
                size, seed = order["size"], order["seed"]
                owner = node.cache_manager.allocate(size) if order["shared"] else np.zeros(size, np.uint8)
                # Only the named stretches are touched: the rest of a sparse region costs nothing.
                bytes_ = np.asarray(owner)
                for start, length in order["fill"]:
                    bytes_[start : start + length] = pattern(seed, start, length)
                memory = node.cache_manager.register_memory(owner, remote_accessible=True)
                kept.append((owner, memory))
                print(json.dumps({"address": memory.region.address, "number": len(kept) - 1}), flush=True)
            elif order["do"] == "check":
                bytes_ = np.asarray(kept[order["number"]][0])
                start, length = order["start"], order["length"]
                same = bool((bytes_[start : start + length] == pattern(order["seed"], start, length)).all())
                print(json.dumps({"same": same}), flush=True)
            elif order["do"] == "drop":
                node.cache_manager.unregister_memory(kept[order["number"]][1])
                print(json.dumps({"dropped": order["number"]}), flush=True)
            elif order["do"] == "user":
                os.setresuid(order["uid"], order["uid"], order["uid"])
                print(json.dumps({"uid": os.getuid()}), flush=True)


def pattern(seed: int, start: int, length: int) -> np.ndarray:
    """Bytes that depend on their place, so that nothing can land elsewhere unseen."""
    places = np.arange(start, start + length, dtype=np.uint64) + np.uint64(seed)
    return ((places * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(56)).astype(np.uint8)


if __name__ == "__main__":
    main()
