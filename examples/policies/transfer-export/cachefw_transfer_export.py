"""Keeps the file ``TRANSFER_EXPORT`` up to date with counts of all transfers, as text that Prometheus reads."""

import atexit
import collections
import os
import time
from pathlib import Path

from cachefw import hookimpl

_totals = collections.defaultdict(lambda: [0, 0, 0.0])
_lost = 0
_written = 0.0


@hookimpl
def cachefw_transfer_finished(report):
    global _lost, _written  # noqa: PLW0603 - one process, one file
    total = _totals[report.cluster_id, report.transport, report.path, report.operation, report.outcome, report.code]
    for index, value in enumerate((1, report.nbytes, report.seconds)):
        total[index] += value
    _lost += report.lost
    # Every transfer of a busy engine is no reason to write; this thread belongs to observers alone.
    if time.monotonic() - _written > 1:
        _written = time.monotonic()
        write()


@atexit.register
def write():
    path = os.environ.get("TRANSFER_EXPORT")
    if not path or not _totals:
        return
    lines = [f"cachefw_reports_lost_total {_lost}"]
    for labels, values in sorted(_totals.items()):
        names = ("cluster", "transport", "path", "operation", "outcome", "code")
        where = ",".join(f'{name}="{value}"' for name, value in zip(names, labels, strict=True))
        for name, value in zip(("transfers", "bytes", "seconds"), values, strict=True):
            lines.append(f"cachefw_{name}_total{{{where}}} {value}")
    draft = Path(f"{path}.{os.getpid()}")
    draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
    draft.replace(path)
