"""Starts the two processes of a workload and collects what the pulling one measures."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import paths, raw

ROOT = Path(__file__).resolve().parent.parent
Told = Callable[[int, int], object]


class FailedError(Exception):
    """A process ended without an outcome; its own words are on the standard error."""


def run(workload: str, path: str, rounds: int, told: Told) -> dict[str, Any]:
    """Measure one workload on one path, in fresh processes."""
    if workload == "w6":
        return _starts(path, rounds, told)
    order = json.dumps({"workload": workload, "path": path, "rounds": rounds, "cold_rounds": min(rounds, 3)})
    with _process("target", order, path, stdin=subprocess.PIPE) as target:
        with _process("puller", order, path, stdin=target.stdout) as puller:
            outcome = None
            for line in puller.stdout:
                message = json.loads(line)
                outcome = message.get("outcome", outcome)
                if "step" in message:
                    told(message["step"], message["of"])
            code = puller.wait()
        target.stdin.close()
    if outcome is None:
        raise FailedError(f"could not be measured: the pulling process ended with {code}")
    return outcome


def _process(module: str, argument: str, path: str, **pipes: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", f"benchmarks.{module}", argument]
    return subprocess.Popen(command, cwd=ROOT, env=_environment(path), stdout=subprocess.PIPE, text=True, **pipes)


def _environment(path: str) -> dict[str, str]:
    # As installed: everybody's bytecode is there. In a checkout ours might have to be compiled at each start.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **paths.environment(path), "PYTHONPYCACHEPREFIX": str(raw.folder() / "bytecode")}


def _starts(path: str, rounds: int, told: Told) -> dict[str, Any]:
    """W6 and imports; milliseconds of wall time."""
    taken: dict[str, list[float]] = {"first byte": [], "import numpy": [], "import cachefw": []}
    wrong = None
    # The first time writes bytecode, and does not count.
    for done in range(-1, rounds):
        for name, times in taken.items():
            begin = time.perf_counter()
            if name == "first byte":
                elapsed, wrong = _first_byte(path, begin)
            else:
                subprocess.run([sys.executable, "-c", name], check=True, cwd=ROOT, env=_environment(path))
                elapsed = time.perf_counter() - begin
            if done >= 0:
                times.append(elapsed * 1e3)
        told(done + 1, rounds)
        if wrong:
            return {"wrong": wrong}
    return {"ms": {name: statistics.median(times) for name, times in taken.items()}, "samples_ms": taken}


def _first_byte(path: str, begin: float) -> tuple[float, str | None]:
    order = json.dumps({"workload": "w6", "path": path})
    with _process("target", order, path, stdin=subprocess.PIPE) as target:
        # Reads where the other listens from the other's own output, so that nothing stands between them.
        with _process("first", path, path, stdin=target.stdout) as puller:
            if puller.stdout.readline().strip() != "pulled":
                raise FailedError("could not be measured: nothing was pulled")
            elapsed = time.perf_counter() - begin
            right = puller.stdout.readline().strip() == "right"
        target.stdin.close()
    return elapsed, None if right else "the first block has wrong bytes"
