"""A second process for the tests of `cachefw.compat`: one engine, one buffer, and orders, a line of JSON at a time."""

from __future__ import annotations

import json
import sys

import numpy as np


def pattern(seed: int, start: int, length: int) -> np.ndarray:
    """Bytes that depend on their place, so that nothing can land elsewhere unseen."""
    places = np.arange(start, start + length, dtype=np.uint64) + np.uint64(seed)
    return ((places * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(56)).astype(np.uint8)


def main() -> None:
    library, address, size, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    buffer = pattern(seed, 0, size)
    if library == "hixl":
        from cachefw.compat import hixl

        engine = hixl.Hixl()
        answer = engine.initialize(address)
        registered, _ = engine.register_mem(hixl.MemDesc(buffer.ctypes.data, size), hixl.MemType.MEM_HOST)
    else:
        from cachefw.compat.mooncake.engine import TransferEngine

        engine = TransferEngine()
        answer = engine.initialize(address, "P2PHANDSHAKE", "tcp", "")
        registered = engine.register_memory(buffer.ctypes.data, size)
        address = f"127.0.0.1:{engine.get_rpc_port()}"
    say(answer=answer, registered=registered, address=address, buffer=buffer.ctypes.data)
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "check":
            got = buffer[order["start"] : order["start"] + order["length"]]
            say(same=bool((got == pattern(order["seed"], order["start"], order["length"])).all()))
        elif order["do"] == "notifies" and library == "hixl":
            say(notes=[[note.name, note.notify_msg] for note in engine.get_notifies()[1]])
        elif order["do"] == "notifies":
            say(notes=[[note.name, note.msg] for note in engine.get_notifies()])
        elif order["do"] == "call":
            say(answer=getattr(engine, order["name"])(*order["args"]))


def say(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
