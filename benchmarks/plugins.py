"""What many installed distributions cost: ``python -m benchmarks.plugins``.

Writes a hundred distributions, as an installer leaves them, and times ``cachefw transports`` and the first manager with
and without them, beside ``import numpy`` alone. Medians of interleaved rounds, in seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLUGIN = """
from cachefw.hookspecs import hookimpl
from cachefw.testing import MemoryTransport


@hookimpl
def cachefw_transports():
    yield MemoryTransport.info_named("many{number}")
"""
COMMANDS = {
    "import numpy": ["-c", "import numpy"],
    "cachefw transports": ["-m", "cachefw", "transports"],
    "first manager": ["-c", "import cachefw; cachefw.CacheManager().close()"],
}


def write(folder: Path, count: int, *, plugins: bool) -> None:
    """Distributions with a usual amount of metadata; with `plugins`, each brings a transport."""
    for number in range(count):
        info = folder / f"many{number}-1.0.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(
            f"Metadata-Version: 2.1\nName: many{number}\nVersion: 1.0\n\n" + "text\n" * 400
        )
        info.joinpath("RECORD").write_text("")
        group = "cachefw.plugins" if plugins else "console_scripts"
        info.joinpath("entry_points.txt").write_text(f"[{group}]\nmany{number} = many{number}\n")
        folder.joinpath(f"many{number}.py").write_text(PLUGIN.format(number=number))


def seconds(command: list[str], path: str) -> float:
    """How long one run takes."""
    start = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, *command], env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="distributions (default 100)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default 7)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = {"as it is": ""}
        for what, plugins in (("others", False), ("plugins", True)):
            paths[f"{options.count} {what}"] = str(Path(folder, what))
            Path(folder, what).mkdir()
            write(Path(folder, what), options.count, plugins=plugins)
        took: dict[tuple[str, str], list[float]] = {}
        for _ in range(options.rounds + 1):
            for name, command in COMMANDS.items():
                for where, path in paths.items():
                    took.setdefault((name, where), []).append(seconds(command, path))
    numpy = statistics.median(took["import numpy", "as it is"][1:])
    print(f"{'':20}{'installed':>16}{'seconds':>10}{'over numpy':>12}")
    for (name, where), times in took.items():
        median = statistics.median(times[1:])
        print(f"{name:20}{where:>16}{median:10.3f}{median - numpy:12.3f}")


if __name__ == "__main__":
    main()
