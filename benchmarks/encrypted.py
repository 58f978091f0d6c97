"""What encryption costs the streams: plain and encrypted pulls in turn, in wall time and in time of the processors.

`python -m benchmarks.encrypted [WORKLOAD [ROUNDS]]`. On a machine with other work the time of the processors is what
repeats: it is that of both processes, and where they share the machine it decides what the wall can show at best.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.paths import NETWORK
from benchmarks.paths import node as make_node
from benchmarks.puller import Puller
from benchmarks.shapes import SHAPES, Buffers

ROOT = Path(__file__).resolve().parent.parent


def _ran(pid: int) -> float:
    """Seconds that the threads of a process have had."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def main() -> None:
    workload = sys.argv[1] if len(sys.argv) > 1 else "w1"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    shape = SHAPES[workload]
    wall: dict[str, list[float]] = {path: [] for path in NETWORK}
    cpu: dict[str, list[float]] = {path: [] for path in NETWORK}
    with contextlib.ExitStack() as stack:
        turns = []
        for path in NETWORK:
            order = json.dumps({"workload": workload, "path": path})
            command = [sys.executable, "-m", "benchmarks.target", order]
            target = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(target)
            assert target.stdout is not None
            about = json.loads(target.stdout.readline())
            node = stack.enter_context(make_node(2, path))
            puller = Puller(node, about, shape, path, 0)
            into = stack.enter_context(contextlib.closing(Buffers(node, shape, path)))
            turns.append((path, target.pid, puller.prepared(into), puller, into))
        for turn in range(-1, rounds):
            turns.reverse()
            for path, pid, call, puller, into in turns:
                into.wipe()
                there, here, begin = _ran(pid), time.process_time(), time.perf_counter()
                call()
                taken = time.perf_counter() - begin
                ran = time.process_time() - here + _ran(pid) - there
                into.check(puller.there, puller.here)
                if turn >= 0:
                    wall[path].append(taken)
                    cpu[path].append(ran)
    for what, times in (("wall", wall), ("processors", cpu)):
        plain, tls = (statistics.median(times[path]) for path in NETWORK)
        ratios = sorted(a / b for a, b in zip(*(times[path] for path in NETWORK), strict=True))
        print(
            f"{workload} {what}: plain {plain / shape.nbytes * 1e9:.3f}, TLS {tls / shape.nbytes * 1e9:.3f} ns for a "
            f"byte; TLS at {plain / tls:.2f} (each round {ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
