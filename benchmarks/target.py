"""The process that is pulled from: makes memory, publishes it, and waits until its input ends."""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    order = json.loads(sys.argv[1])
    from benchmarks.paths import NETWORK, SHARED
    from benchmarks.paths import node as make_node

    with make_node(1, order["path"], "127.0.0.1:0") as node:
        about = {"address": node.address, "pid": os.getpid()}
        if order["workload"] == "w6":
            memory = _one_block(node, order["path"])
            about["block"] = memory.region.address
        elif order["workload"] in ("w1", "w2", "w3", "w4"):
            from benchmarks.raw import load, shared_files
            from benchmarks.shapes import SHAPES, Buffers

            buffers = Buffers(node, SHAPES[order["workload"]], order["path"], published=True)
            buffers.fill()
            about["buffers"] = buffers.addresses
            if order["path"] in SHARED:
                about["files"] = shared_files(os.getpid(), buffers.addresses)
            if order["path"] in NETWORK:
                about["port"] = load().lib.raw_tcp_serve()
        print(json.dumps(about), flush=True)
        sys.stdin.read()


def _one_block(node: object, path: str) -> object:
    import numpy as np

    manager = node.cache_manager
    owner = manager.allocate(4096) if path == "shm" else np.empty(4096, np.uint8)
    np.asarray(owner)[:] = 0x5A
    return manager.register_memory(owner, remote_accessible=True)


if __name__ == "__main__":
    main()
