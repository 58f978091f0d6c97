"""The demo's child processes: started together, listened to until a deadline, and never left behind."""

from __future__ import annotations

import collections
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import click
import msgspec

from cachefw.cli import debugging, reports
from cachefw.errors import CacheError

__all__ = ["Child", "DemoError", "Family"]

_TAIL = 8
#: Seconds that a child may take to end by itself once it is told to.
_PATIENCE = 5.0
#: Seconds in which the death of one child explains the failure of the other.
_GRACE = 0.3


class DemoError(CacheError):
    """The demo did not end well: a child failed, died or hung, or bytes differ.

    Not raised for arguments that could be checked before.
    """

    default_code = "demo"


class Child:
    """One running child.

    Attributes:
        name: What people call it.
        process: The process.
        step: What it said it was doing last.
    """

    def __init__(
        self, name: str, module: str, task: reports.Task, queue_: queue.Queue[tuple[Child, reports.Report | int]]
    ) -> None:
        self.name = name
        self.step = "start"
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL)
        # The child imports the package that runs here, whatever lies in the user's folder: `-m` puts `cwd` first.
        home = Path(__file__).resolve().parents[2]
        self.process = subprocess.Popen(  # noqa: S603 - this very interpreter
            [sys.executable, "-m", module, reports.encode(task).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=home,
            env=_environment(),
            # Ctrl-C is for the parent to handle. When the parent is gone, stdin ends and so do the children.
            start_new_session=True,
        )
        assert self.process.stdout and self.process.stderr and self.process.stdin  # noqa: S101, PT018 - for mypy
        self._stdin = self.process.stdin
        self._threads = [
            threading.Thread(target=self._read_errors, args=(self.process.stderr,), daemon=True),
            threading.Thread(target=self._read_reports, args=(self.process.stdout, queue_), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __str__(self) -> str:
        return f"{self.name} (process {self.process.pid})"

    def _read_errors(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                text = line.decode(errors="replace").rstrip()
                self._tail.append(text)
                if debugging():
                    click.echo(f"{self}: {text}", err=True)

    def _read_reports(self, stream: IO[bytes], queue_: queue.Queue[tuple[Child, reports.Report | int]]) -> None:
        with stream:
            for line in stream:
                try:
                    queue_.put((self, reports.decode(line)))
                except msgspec.MsgspecError:
                    self._tail.append(line.decode(errors="replace").rstrip())
        code = self.process.wait()
        self._threads[0].join(_PATIENCE)
        queue_.put((self, code))

    def tell(self, line: str) -> None:
        """Send a line; a child that is gone reports so itself."""
        try:
            self._stdin.write(line.encode() + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            return

    def finish(self) -> None:
        """Have it end by itself.

        Raises:
            DemoError: It did not, or not well.
        """
        self._stdin.close()
        try:
            code = self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            raise self.failed(f"did not end within {_PATIENCE:g} s") from None
        if code:
            raise self.died(code)

    def kill(self) -> None:
        """End it now, whatever it does, and collect it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(_PATIENCE)
        try:
            self._stdin.close()
        except BrokenPipeError:
            return

    def died(self, code: int) -> DemoError:
        """The error of its death."""
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return self.failed(how)

    def failed(self, how: str) -> DemoError:
        """An error about it: who, how, at which step, and its last lines on stderr."""
        words = "\n".join(f"  {line}" for line in self._tail)
        rest = f"the last lines of its stderr:\n{words}" if words else "it wrote nothing to stderr"
        return DemoError(f"{self} {how} at step {self.step!r}; {rest}", code="demo.child")


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    if environment.get("PYTHONPATH"):
        # The child starts in another folder.
        entries = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in entries if entry)
    return environment


class Family:
    """The children of one demo. Leaving it ends those that still run.

    Args:
        timeout: Seconds for everything.
    """

    def __init__(self, timeout: float) -> None:
        self.children: list[Child] = []
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._queue: queue.Queue[tuple[Child, reports.Report | int]] = queue.Queue()

    def start(self, name: str, module: str, task: reports.Task) -> Child:
        """Start a child."""
        child = Child(name, module, task, self._queue)
        self.children.append(child)
        return child

    def listen(self, first: Child, last: Child) -> Iterator[tuple[Child, reports.Report]]:
        """Every report, in order, until `last` has ended well.

        Args:
            first: Who is to blame when the time is over and it has not sent its card.
            last: Who is to blame afterwards.

        Raises:
            DemoError: A child failed, died, or was not done in time.
        """
        awaited = first
        while True:
            try:
                child, report = self._queue.get(timeout=max(0.0, self._deadline - time.monotonic()))
            except queue.Empty:
                raise awaited.failed(f"was not done within {self._timeout:g} s: it was") from None
            if isinstance(report, int):
                if report or child is not last:
                    raise child.died(report)
                return
            if isinstance(report, reports.Failure):
                raise self._failure(child, report)
            if isinstance(report, reports.Step):
                child.step = report.name
                if debugging():
                    click.echo(f"{child}: {child.step}", err=True)
            elif isinstance(report, reports.Card):
                awaited = last
            yield child, report

    def _failure(self, child: Child, failure: reports.Failure) -> DemoError:
        text = f"{child} failed at step {child.step!r}: {failure.message}"
        for other in self.children:
            if other is child:
                continue
            try:
                code = other.process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                text += f"\n  meanwhile {other} was at step {other.step!r}"
                continue
            if code < 0:
                # The failure is only what the other's death looks like from here.
                return DemoError(f"{other.died(code)}\n{text}", code="demo.child")
        return DemoError(text, code=failure.code)

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *exc: object) -> None:
        for child in self.children:
            child.kill()
