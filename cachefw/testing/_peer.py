"""The other process of the kit: a node with registered memory, which waits to be killed."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from cachefw.memory import MemoryKind, aligned_empty
from cachefw.node import Node
from cachefw.transport import Capability, TransportInfo

#: Bytes registered at each end.
SIZE = 32 * 2**20


def memory_of(node: Node, info: TransportInfo) -> Any:
    """Memory of a kind that the transport takes, with bytes in it where they can be set."""
    kind = next(kind for kind in MemoryKind if kind in info.kinds)
    if Capability.ALLOCATE not in info.capabilities:
        return aligned_empty(SIZE, 4096)
    memory = node.cache_manager.allocate(SIZE, kind, 2 * 2**20, transport=info.name)
    if kind is not MemoryKind.DEVICE:
        np.asarray(memory)[:] = 1
    return memory


def main() -> None:
    """Open, register, say where, and wait."""
    order = json.loads(sys.argv[1])
    name = order["transport"]
    with Node(order["cluster"], "127.0.0.1:0", transports=[name], settings={name: order["settings"]}) as node:
        owner = memory_of(node, node.cache_manager.transport(name).info)
        memory = node.cache_manager.register_memory(owner, remote_accessible=True)
        print(json.dumps({"address": node.address, "memory": memory.region.address}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
