"""What RDMA is held against: UCX's own benchmark over the same transports, and NIXL over UCX, doing the same pulls."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.shapes import MIB, Shape

__all__ = ["NIXL", "OWN_MEMORY", "PERFTEST", "TLS", "limits", "nixl", "perftest"]

#: UCX's transports of each path.
TLS = {"rdma-tcp": "tcp,self", "rdma-shm": "posix,cma,self"}
PERFTEST, OWN_MEMORY, NIXL = "ucx_perftest", "ucx_perftest, its own memory", "NIXL"
#: Names the Python of an environment with ``nixl-cu12``.
_PYTHON = "CACHEFW_BENCHMARKS_NIXL"
#: UCX's default makes perftest allocate memory that its peer maps, which ordinary memory is not.
_ORDINARY = {"UCX_ALLOC_PRIO": "heap"}


def limits(path: str, shape: Shape) -> dict[str, dict[str, str]]:
    """The ways to run `perftest` on a path: name -> further variables."""
    if shutil.which("ucx_perftest") is None:
        return {}
    if path != "rdma-shm":
        return {PERFTEST: {}}
    # Smaller blocks of one mapping, again and again, never leave the caches.
    return {PERFTEST: _ORDINARY, **({OWN_MEMORY: {}} if shape.take == 1 else {})}


def perftest(path: str, shape: Shape, variables: dict[str, str]) -> int:
    """Nanoseconds in which `ucx_perftest -t ucp_get` reads as many bytes in messages as large as a block.

    It reads into one buffer again and again, so that small messages stay in the processor's caches.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    whole = shape.nbytes // shape.block
    count = max(4, min(whole, 2048))
    command = ["ucx_perftest", "-t", "ucp_get", "-s", str(shape.block), "-n", str(count), "-f"]
    command += ["-w", str(max(1, count // 10)), "-O", "32" if whole > 1 else "1", "-p", str(port)]
    environment = {**os.environ, "UCX_TLS": TLS[path], "UCX_WARN_UNUSED_ENV_VARS": "n", **variables}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 10
        while True:
            done = subprocess.run(
                [*command, "127.0.0.1"], env=environment, capture_output=True, text=True, timeout=300, check=False
            )
            lines = [line.split() for line in done.stdout.splitlines() if re.match(r"\s*\d+\s", line)]
            if lines:
                # Iterations, three times in us, then the mean and the overall bandwidth in MiB/s.
                return int(shape.nbytes / (float(lines[-1][5]) * MIB) * 1e9)
            if time.monotonic() > end:
                raise RuntimeError(f"ucx_perftest: {done.stdout[-300:]}{done.stderr[-300:]}")
            time.sleep(0.1)
    finally:
        server.kill()
        server.wait()


def nixl(path: str, shape: Shape, rounds: int) -> dict[str, Any]:
    """The same pulls by NIXL, in two processes of its own: ``{"ns": {...}}``, or ``{"error": ...}``.

    ``{}`` where no environment with it is named.
    """
    python = os.environ.get(_PYTHON)
    if not python:
        return {}
    there, here = shape.blocks()
    order = {
        "rounds": rounds,
        "buffers": shape.buffers,
        "slots": shape.slots,
        "block": shape.block,
        "there": there,
        "here": here,
    }
    # Its own UCX, which does not know settings of older ones.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UCX_")}
    environment.update(UCX_LOG_LEVEL="error", NIXL_LOG_LEVEL="ERROR")
    if path != "rdma-shm":
        environment["UCX_TLS"] = TLS[path]  # else its UCX finds no way; left alone, it takes cross-memory reads
    script = Path(__file__).with_name("nixl_pull.py")
    try:
        done = subprocess.run(
            [python, str(script)],
            input=json.dumps(order),
            env=environment,
            capture_output=True,
            text=True,
            timeout=120 + 20 * rounds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": f"NIXL: {error}"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return {"error": f"NIXL ended with {done.returncode}: {done.stderr[-300:]}"}
