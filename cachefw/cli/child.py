"""What both children of the demo share: their task, their reports, and their memory."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from cachefw.cache import CacheDesc
from cachefw.cli import debugging, reports
from cachefw.cli.models import MODELS, Model
from cachefw.cli.pattern import Pattern, Places
from cachefw.errors import CacheError
from cachefw.manager import CacheManager
from cachefw.memory import Allocation, align_within
from cachefw.plugins import catalogue
from cachefw.transport import Capability

__all__ = ["Bench", "Pool", "run"]

_PAGE = 4096


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


@attrs.define(eq=False)
class Pool:
    """Memory for one blocks cache, all zero and never touched.

    Attributes:
        addrs: Start of each tensor.
        blocks: Its bytes as [tensor, block, byte].
    """

    addrs: list[int]
    blocks: NDArray[np.uint8]
    _allocation: Allocation | None

    @classmethod
    def make(cls, desc: CacheDesc, manager: CacheManager, task: reports.Task) -> Pool:
        """Take it from the transport where that allocates, unless the task asks for the path of ordinary memory.

        Raises:
            OutOfMemoryError: There is not enough.
        """
        info = catalogue.get(task.transport).info
        size = desc.size * desc.num_tensors
        allocation = None
        if task.path != "cma" and info is not None and Capability.ALLOCATE in info.capabilities:
            allocation = manager.allocate(size, transport=task.transport)
            whole = np.asarray(allocation)[:size]
        else:
            room = np.zeros(size + _PAGE, np.uint8)
            base = int(room.ctypes.data)
            start = align_within(base, room.nbytes, size, _PAGE) - base
            whole = room[start : start + size]
        first = int(whole.ctypes.data)
        addrs = [first + index * desc.size for index in range(desc.num_tensors)]
        return cls(addrs, whole.reshape(desc.num_tensors, desc.batch_size, desc.stride), allocation)

    def close(self) -> None:
        """Give the memory back; no registration may be left."""
        self.blocks = np.empty((0, 0, 0), np.uint8)
        allocation, self._allocation = self._allocation, None
        if allocation is not None:
            allocation.close()


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
