"""What people see of the demo: progress on a terminal's stderr, and the table."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from cachefw.cli import reports
from cachefw.cli.children import Child
from cachefw.memory import MemoryKind

__all__ = ["progress", "show"]


@contextlib.contextmanager
def progress(nbytes: int) -> Iterator[Callable[[Child, reports.Report], None]]:
    """A listener that draws what the children report, if stderr is a terminal.

    Args:
        nbytes: Bytes of one pull.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        now = bars.add_task("start", total=None, amount="")
        pulls: dict[str, TaskID] = {}

        def listen(child: Child, report: reports.Report) -> None:
            if isinstance(report, reports.Step):
                bars.update(now, description=f"{child.name}: {report.name}")
            elif isinstance(report, reports.Progress):
                if report.pull not in pulls:
                    pulls[report.pull] = bars.add_task(f"{report.pull} pull", total=nbytes, amount="")
                amount = f"{report.done / 1e6:,.1f} of {nbytes / 1e6:,.1f} MB"
                bars.update(pulls[report.pull], completed=report.done, amount=amount)

        yield listen


def show(facts: dict[str, Any]) -> None:
    """Print the table and one sentence on stdout."""
    table = Table(
        show_header=False, title="A KV cache from a prefill process to a decode process", title_justify="left"
    )
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    way = Text(f"{facts['transport']}, path {facts['path']}" if facts["path"] else facts["transport"])
    if facts["remark"]:
        way.append(f"; {facts['remark']}", "bold yellow")
    first = "into memory never touched" if facts["memory"] == MemoryKind.HOST.value else "the first of this link"
    verified = Text("yes, every byte", "green") if facts["verified"] else Text("NO", "bold red")
    for name, value in (
        ("transport", way),
        ("memory", facts["memory"] + _sides(facts)),
        ("model", f"{facts['model']}, {facts['tokens']:,} tokens"),
        ("moved", f"{facts['bytes']:,} bytes: {facts['blocks']:,} scattered blocks of {facts['tensors']} tensors"),
        ("cold pull", f"{facts['cold_gb_per_s']:.2f} GB/s in {facts['cold_seconds']:.4f} s, {first}"),
        ("warm pull", f"{facts['gb_per_s']:.2f} GB/s in {facts['seconds']:.4f} s"),
        ("memcpy", f"{facts['memcpy_gb_per_s']:.2f} GB/s, one thread, two warm buffers of host memory"),
        ("share of memcpy", f"{facts['share_of_memcpy']:.0%}, warm"),
        ("verified", verified),
    ):
        table.add_row(name, value)
    console = Console()
    console.print(table)
    if facts["verified"]:
        console.print(
            f"All {facts['checked_blocks']:,} blocks of both pulls arrived as they were filled, and the "
            f"{facts['untouched_blocks']:,} that were not asked for stayed as they were.",
            highlight=False,
        )
    if facts["remark"]:
        console.print(
            f"{facts['remark']}: figures of a simulation say nothing about the hardware it stands for.", highlight=False
        )


def _sides(facts: dict[str, Any]) -> str:
    """The settings of both sides in words, as far as there are any."""
    said = [
        f"{side} {', '.join(f'{name}={json.dumps(value)}' for name, value in facts[f'{side}_settings'].items())}"
        for side in ("prefill", "decode")
        if facts[f"{side}_settings"]
    ]
    return "".join(f"; {text}" for text in said)
