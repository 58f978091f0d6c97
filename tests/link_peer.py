"""A second process for tests of links: memory at a fixed address, filled with one value, until its input ends."""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
import threading

import numpy as np

import cachefw

ADDRESS = 0x7E00_0000_0000
SIZE = 2**20


def fixed(size: int) -> np.ndarray:
    """Ordinary memory that every start of this program has at the same address."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    fixed_no_replace = 0x100000
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed_no_replace
    address = libc.mmap(ADDRESS, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    assert address == ADDRESS, ctypes.get_errno()
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


def write_on(node: cachefw.Node, link: cachefw.Link, own: np.ndarray, wanted: threading.Event) -> None:
    """Write to the first memory that the peer has published, over and over, until the link ends."""
    (theirs,) = link.memories
    prepared = link.prepare(cachefw.Operation.WRITE, own.ctypes.data, theirs.address, theirs.length)
    wanted.set()
    try:
        while True:
            prepared.post()
    except cachefw.CacheError:
        return


def main() -> None:
    about = json.loads(sys.argv[1])
    memory = fixed(SIZE)
    memory[:] = about["value"]
    secret = about.get("secret")
    options = {"secret": secret.encode()} if secret else {}
    with cachefw.Node(about["cluster"], about["listen"], transports=["host"], **options) as node:
        shared = node.cache_manager.allocate(SIZE)
        np.asarray(shared)[:] = about["value"]
        node.cache_manager.register_memory(memory, remote_accessible=True, label="fixed")
        node.cache_manager.register_memory(shared, remote_accessible=True, label="shared")
        if about.get("write"):
            began = threading.Event()
            link = node.link(about["write"])
            threading.Thread(target=write_on, args=(node, link, memory, began), daemon=True).start()
            assert began.wait(20)
        print(json.dumps({"address": node.address, "shared": shared.address}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
