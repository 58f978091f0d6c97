"""What both children of the demo share: their task, their reports, and how they open their node."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from cachefw.cli import debugging, reports
from cachefw.cli.models import MODELS, Model
from cachefw.cli.pattern import Pattern, Places
from cachefw.cli.pool import kind_for
from cachefw.errors import CacheError, RequestError
from cachefw.memory import MemoryKind
from cachefw.node import Node
from cachefw.plugins import catalogue

__all__ = ["Bench", "run"]


class Bench:
    """The task of a child, what follows from it, and the way to report.

    Attributes:
        task: As the parent gave it.
        model: The model.
        places: Where the blocks lie on either side.
        pattern: What the blocks hold.
    """

    def __init__(self, task: reports.Task, out: Any) -> None:
        self.task = task
        self.model: Model = MODELS[task.model]
        self.places = Places.of(self.model, task.tokens, task.seed)
        self.pattern = Pattern(task.seed, self.places.decode_desc.stride)
        self._out = out

    def report(self, report: reports.Report) -> None:
        """Tell the parent."""
        self._out.write(reports.encode(report) + b"\n")
        self._out.flush()

    def step(self, name: str) -> None:
        """Tell the parent what begins."""
        self.report(reports.Step(name))

    def open_node(
        self, cluster_id: int, listen: str | None, given: dict[str, Any], device: int
    ) -> tuple[Node, dict[str, Any]]:
        """Open the node of this side.

        Args:
            cluster_id: As for `Node`.
            listen: As for `Node`.
            given: The transport's settings that the task asks for.
            device: Which device this side takes of a transport for device memory, unless the task says another, where
                the transport has such a setting and such a device.

        Returns:
            The node, and the settings that it was opened with.

        Raises:
            RequestError: The transport does not take the settings.
        """
        transport = self.task.transport
        info = catalogue.get(transport).info
        if info is not None and kind_for(info) is MemoryKind.DEVICE and "device" not in given:
            settings = {"device": device, **given}
            try:
                return Node(cluster_id, listen, transports=[transport], settings={transport: settings}), settings
            except RequestError:
                # No such setting, or no such device. What is wrong with the given ones is said by the next attempt.
                self.step("open the node without a device of its own")
        return Node(cluster_id, listen, transports=[transport], settings={transport: given}), given


def run(work: Callable[[Bench], None]) -> None:
    """Be a child: do the work that the first argument describes, and end the process's life accordingly."""
    # The reports have the pipe for themselves: whatever prints, prints to stderr.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        bench = Bench(msgspec.json.decode(sys.argv[1], type=reports.Task), out)
        try:
            work(bench)
        except CacheError as error:
            if debugging():
                traceback.print_exc()
            bench.report(reports.Failure(error.code, str(error)))
            sys.exit(1)
    except BrokenPipeError:
        # The parent is gone, and with it everybody who could want to know.
        os._exit(1)
