"""From what was measured to rows: a ratio to the limit of the same path, the goal, and whether it is met."""

from __future__ import annotations

import os
import platform
import statistics
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console
from rich.table import Table

from benchmarks.paths import HCCS, RDMA, SIMULATED, TCP, TLS
from benchmarks.rdma import NIXL, PERFTEST
from benchmarks.shapes import MIB, SHAPES

_NOISY = 0.15
_GOALS = {"w1": 0.9, "w2": 0.9, "w3": 0.85}
_HCCS_GOALS = {"w1": 0.8, "w2": 0.8, "w3": None}
#: Against UCX's own benchmark on the same path, and against NIXL.
_UCX_GOAL, _NIXL_GOAL = 0.95, 1.0
_TCP_GOALS = {"w1": 0.9, "w2": 0.85, "w3": 0.8}
_TLS_GOALS = {"w1": 0.6, "w2": 0.6, "w3": None}
_SMALL_GOAL = 3.0
_SMALL_TCP_GOAL = 1.5
_PLAN_GOAL_MS = 5.0
_LINEAR_GOAL = 1.5
_START_GOAL = 2.0
_IMPORT_GOAL = 1.5


@attrs.define
class Row:
    """One line of the table.

    Attributes:
        workload, path, what: What was measured.
        ours: Our figure, in `unit`.
        raw: The limit's, in `unit`.
        best: Which raw way that was.
        ratio: Of the two; for times and throughputs alike, `more` says which way is good.
        goal: What `ratio`, or without one `ours`, is to reach.
        more: Whether more is better.
        fastest: The ratio of the fastest runs, which others on the machine disturb least.
        spread: Half the distance between our quartiles, as a part of the median.
        details: Everything else, for JSON.
        error: Why there is nothing.
        wrong: Bytes were wrong.
        simulated: Measured on the simulator: says something about cachefw, and nothing about a device.
    """

    workload: str
    path: str
    what: str
    ours: float | None = None
    raw: float | None = None
    unit: str = ""
    best: str = ""
    ratio: float | None = None
    goal: float | None = None
    more: bool = True
    fastest: float | None = None
    spread: float | None = None
    details: dict[str, Any] = attrs.field(factory=dict)
    error: str = ""
    wrong: bool = False
    simulated: bool = attrs.field(init=False)

    @simulated.default
    def _is_simulated(self) -> bool:
        return self.path == HCCS

    @property
    def shown_path(self) -> str:
        """The path, and what goes with it."""
        return f"{self.path} {SIMULATED}" if self.simulated else self.path

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without one."""
        value = self.ours if self.ratio is None else self.ratio
        if self.goal is None or value is None:
            return None
        return value >= self.goal if self.more else value <= self.goal

    @property
    def noisy(self) -> bool:
        """Whether something else was using the machine, so that `met` says little."""
        return self.met is not None and (self.spread or 0) > _NOISY

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {**attrs.asdict(self), "met": self.met, "noisy": self.noisy}


def rows(workload: str, path: str, outcome: dict[str, Any]) -> list[Row]:
    """The rows of one workload on one path."""
    if "wrong" in outcome:
        return [Row(workload, path, "", error=f"wrong data: {outcome['wrong']}", wrong=True)]
    if path in RDMA:
        return _over_ucx(workload, path, outcome)
    if workload in _GOALS:
        return _large(workload, path, outcome)
    return {"w4": _small, "w5": _registering, "w6": _starting}[workload](path, outcome)


def _spread(samples: list[float]) -> float | None:
    if len(samples) < 4:
        return None
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / 2 / middle


def _large(workload: str, path: str, outcome: dict[str, Any]) -> list[Row]:
    nbytes = SHAPES[workload].nbytes
    medians = {name: statistics.median(taken) for name, taken in outcome["ns"].items()}
    limits = {name: taken for name, taken in medians.items() if name not in ("as called", "prepared")}
    best = min(limits, key=limits.__getitem__)
    found = []
    goals: dict[str, Any] = {HCCS: _HCCS_GOALS, TCP: _TCP_GOALS, TLS: _TLS_GOALS}.get(path, _GOALS)
    for what, goal in (("as called", goals[workload]), ("prepared", None)):
        taken = outcome["ns"][what]
        row = Row(workload, path, what, nbytes / medians[what], nbytes / limits[best], "GB/s", best, goal=goal)
        row.ratio, row.spread = limits[best] / medians[what], _spread(taken)
        row.fastest = min(min(outcome["ns"][name]) for name in limits) / min(taken)
        if what == "as called":
            row.details = {
                "peak_bytes": outcome["peak_bytes"],
                "pieces": outcome["pieces"],
                "peak_bytes_per_piece": round(outcome["peak_bytes"] / outcome["pieces"], 1),
                "ns": outcome["ns"],
                "cold_ns": outcome["cold_ns"],
            }
        found.append(row)
    ours = statistics.median(outcome["cold_ns"].pop("as called"))
    (name, taken), *_ = outcome["cold_ns"].items()
    raw = statistics.median(taken)
    found.append(Row(workload, path, "cold", nbytes / ours, nbytes / raw, "GB/s", name, raw / ours))
    return found


def _over_ucx(workload: str, path: str, outcome: dict[str, Any]) -> list[Row]:
    nbytes, found = SHAPES[workload].nbytes, []
    ours = ("as called", "prepared")
    limits = {name: taken for name, taken in outcome["ns"].items() if name not in ours}
    theirs = outcome["nixl"].get("ns", {})
    for what in ours:
        taken = outcome["ns"][what]
        against = [(name, each, _UCX_GOAL if name == PERFTEST else None) for name, each in limits.items()]
        if what in theirs:
            against.append((NIXL, theirs[what], _NIXL_GOAL))
        for name, each, goal in against or [("", [], None)]:
            row = Row(workload, path, what, nbytes / statistics.median(taken), unit="GB/s", spread=_spread(taken))
            row.details = {"ns": taken}
            if each:
                row.raw, row.best = nbytes / statistics.median(each), name
                row.ratio = statistics.median(each) / statistics.median(taken)
                row.fastest = min(each) / min(taken)
                row.goal = goal if what == "as called" else None
                row.details["limit_ns"] = each
            found.append(row)
    for reason in (
        "" if limits else "no ucx_perftest to compare with: apt-get install ucx-utils",
        outcome["nixl"].get("error", ""),
    ):
        if reason:
            found.append(Row(workload, path, "", error=reason))
    return found


def _small(path: str, outcome: dict[str, Any]) -> list[Row]:
    found = []
    for kind, times in outcome["p50_p99_ns"].items():
        limits = {name: taken for name, taken in times.items() if name not in ("prepared", "read")}
        best = min(limits, key=lambda name: limits[name][0])
        for what, goal in (
            ("prepared", {HCCS: None, TCP: _SMALL_TCP_GOAL, TLS: None}.get(path, _SMALL_GOAL)),
            ("read", None),
        ):
            for index, percentile in enumerate(("p50", "p99")):
                ours, raw = times[what][index] / 1e3, limits[best][index] / 1e3
                text = f"{kind}, {what}, {percentile}"
                wanted = goal if percentile == "p50" else None
                row = Row("w4", path, text, ours, raw, "us", best, ours / max(raw, 1e-3), wanted, False)
                row.details = {"ns": {name: taken[index] for name, taken in times.items()}}
                found.append(row)
    return found


def _registering(path: str, outcome: dict[str, Any]) -> list[Row]:
    medians = {
        name: {step: statistics.median(taken) / 1e6 for step, taken in steps.items()}
        for name, steps in outcome["ns"].items()
    }
    found = []
    for name in (next(iter(medians)), list(medians)[-1]):
        for step, ours in medians[name].items():
            row = Row("w5", path, f"{step} {name}", ours, unit="ms", more=False)
            row.details = {"ns": outcome["ns"][name][step]}
            if step == "plan" and name.startswith("240 "):
                row.goal = _PLAN_GOAL_MS
            found.append(row)
    counts = {int(name.split()[0]): steps["plan"] for name, steps in medians.items() if not name.startswith("240 ")}
    each = {count: taken / count * 1e3 for count, taken in counts.items()}
    few, many = min(each), max(each)
    row = Row("w5", path, f"plan, each of {many:,} / of {few:,}", each[many], each[few], "us", "itself")
    row.ratio, row.goal, row.more = each[many] / each[few], _LINEAR_GOAL, False
    row.details = {"us_each": each}
    return [*found, row]


def _starting(path: str, outcome: dict[str, Any]) -> list[Row]:
    found, base = [], outcome["ms"]["import numpy"]
    for what, goal in (("first byte", _START_GOAL), ("import cachefw", _IMPORT_GOAL)):
        ours, samples = outcome["ms"][what], outcome["samples_ms"]
        row = Row("w6", path, what, ours, base, "ms", "import numpy", ours / base, goal, False, _spread(samples[what]))
        row.details = {"ms": {name: samples[name] for name in (what, "import numpy")}}
        found.append(row)
    return found


# ---------------------------------------------------------------------- the machine


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            model = line.partition(":")[2].strip()
            break
    pages = Path("/sys/kernel/mm/transparent_hugepage")
    chosen = {}
    for name in ("enabled", "shmem_enabled"):
        if (pages / name).exists():
            chosen[name] = (pages / name).read_text().partition("[")[2].partition("]")[0]
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "huge_pages": chosen,
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("cachefw", "numpy", "cffi")},
    }


# ---------------------------------------------------------------------- for people


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 10 else f"{value:.1f}"


def show(console: Console, about: dict[str, Any], found: list[Row], rounds: int) -> None:
    """Print the machine and the table."""
    huge = ", ".join(f"{name} {value}" for name, value in about["huge_pages"].items())
    console.print(
        f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, load {about['load']:.2f} at the start\n"
        f"Linux {about['kernel']}, transparent huge pages: {huge or 'none'}; Python {about['python']}, "
        f"cachefw {about['cachefw']}, numpy {about['numpy']}, cffi {about['cffi']}; medians of {rounds} rounds, "
        "GB = 1e9 bytes",
        highlight=False,
    )
    table = Table()
    for name in ("", "path", "what"):
        table.add_column(name, no_wrap=True)
    for name in ("ours", "limit"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("+-", justify="right", no_wrap=True)
    table.add_column("fastest", justify="right", no_wrap=True)
    table.add_column("goal", justify="right", no_wrap=True)
    table.add_column("met", no_wrap=True)
    table.add_column("the limit is", no_wrap=True)
    before = None
    for row in found:
        if before not in (None, row.workload):
            table.add_section()
        before = row.workload
        if row.error:
            table.add_row(row.workload.upper(), row.shown_path, f"[red]{row.error}")
            continue
        sign = ">=" if row.more else "<="
        unit = f" {row.unit}" if row.ratio is None else ""
        table.add_row(
            row.workload.upper(),
            row.shown_path,
            row.what,
            _number(row.ours),
            _number(row.raw),
            row.unit,
            "" if row.ratio is None else f"{row.ratio:.2f}",
            "" if row.spread is None else f"{row.spread:.0%}",
            "" if row.fastest is None else f"{row.fastest:.2f}",
            "" if row.goal is None else f"{sign} {row.goal:g}{unit}",
            {None: "", True: "[green]yes", False: "[red]no"}[row.met] + ("?" if row.noisy else ""),
            row.best,
        )
    console.print(table)
    for row in found:
        if "peak_bytes_per_piece" in row.details and row.details["pieces"] > 1:
            peak, each = row.details["peak_bytes"] / MIB, row.details["peak_bytes_per_piece"]
            console.print(
                f"{row.workload.upper()} {row.shown_path}: at most {peak:.2f} MiB beside the data, "
                f"{each:.0f} bytes for each of {row.details['pieces']:,} pieces",
                highlight=False,
            )
