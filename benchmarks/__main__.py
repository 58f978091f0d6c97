"""The command line: runs the workloads one after the other and shows what came out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import raw, report, running
from benchmarks.paths import HCCS, HCCS_WORKLOADS, PATHS, RDMA, RDMA_WORKLOADS, installed

WORKLOADS = ("w1", "w2", "w3", "w4", "w5", "w6")

_PATHS_HELP = (
    "Paths: shm, cma, tcp, tls, hccs (w1 to w4 alone, between emulated devices, SIMULATED), and rdma (w1 to w3 alone, "
    "over UCX: rdma-tcp and rdma-shm, beside ucx_perftest, and beside NIXL where CACHEFW_BENCHMARKS_NIXL names its "
    "Python)."
)
_GROUPS = {"rdma": RDMA}
_ONLY = {HCCS: HCCS_WORKLOADS, **dict.fromkeys(RDMA, RDMA_WORKLOADS)}


def _names(allowed: tuple[str, ...]) -> click.ParamType:
    class Names(click.ParamType):
        name = ",".join(allowed)

        def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
            if isinstance(value, tuple):
                return value
            wanted = tuple(part.strip().lower() for part in str(value).split(",") if part.strip())
            wanted = tuple(each for part in wanted for each in _GROUPS.get(part, (part,)))
            unknown = [part for part in wanted if part not in allowed]
            if unknown or not wanted:
                self.fail(f"{', '.join(unknown) or 'nothing'}: choose from {', '.join(allowed)}", param, ctx)
            return tuple(part for part in allowed if part in wanted)

    return Names()


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--only", type=_names(WORKLOADS), default=WORKLOADS, help="Workloads, e.g. w1,w2.", show_default="all")
@click.option("--path", "paths", type=_names(PATHS), default=installed, help=_PATHS_HELP, show_default="all installed")
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True, help="Times everything is measured.")
@click.option("--quick", is_flag=True, help="Three rounds: a look, not a measurement.")
@click.option("--json", "into", metavar="FILE", help="Write everything measured as JSON; - is the standard output.")
def main(only: tuple[str, ...], paths: tuple[str, ...], rounds: int, quick: bool, into: str | None) -> None:
    """Measure cachefw between two processes of this machine, against what the machine can do.

    Timing never fails: the exit code is 1 when a pull delivered wrong bytes, else 0.
    """
    rounds = 3 if quick else rounds
    try:
        raw.load()
    except raw.NoCompilerError as error:
        raise click.ClickException(str(error)) from None
    machine = report.machine()
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    rows: list[report.Row] = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for workload in only:
            for path in paths:
                if workload not in _ONLY.get(path, WORKLOADS):
                    continue
                task = progress.add_task(f"{workload} {path}", total=None)
                try:
                    outcome = running.run(
                        workload,
                        path,
                        rounds,
                        lambda done, of, task=task: progress.update(task, completed=done, total=of),
                    )
                    rows += report.rows(workload, path, outcome)
                except running.FailedError as error:
                    rows.append(report.Row(workload, path, "", error=str(error)))
                progress.remove_task(task)
    found = {"machine": machine, "rounds": rounds, "rows": [row.plain() for row in rows]}
    if into:
        text = json.dumps(found, indent=1)
        if into == "-":
            print(text)
        else:
            Path(into).write_text(text + "\n")
    # What is read by a program stays free of what is read by people.
    console = Console(stderr=into == "-", width=None if sys.stdout.isatty() else 132)
    report.show(console, machine, rows, rounds)
    sys.exit(any(row.wrong for row in rows))


if __name__ == "__main__":
    main()
