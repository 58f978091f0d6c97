"""W6, the pulling side: the shortest program that pulls a block. Its input is the other process's first line."""

from __future__ import annotations

import json
import sys


def main() -> None:
    import numpy as np

    from benchmarks.paths import node as make_node

    with make_node(2, sys.argv[1]) as node:
        manager = node.cache_manager
        owner = manager.allocate(4096) if sys.argv[1] == "shm" else np.empty(4096, np.uint8)
        memory = manager.register_memory(owner)
        about = json.loads(sys.stdin.readline())
        link = node.link(about["address"])
        link.read(memory.region.address, about["block"], 4096)
        print("pulled", flush=True)
        right = bool((np.asarray(owner) == 0x5A).all())
        print("right" if right else "wrong", flush=True)


if __name__ == "__main__":
    main()
