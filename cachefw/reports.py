"""What observers are told of a transfer, and how it reaches them without holding the transfer up."""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeAlias

import attrs

from cachefw.logs import event

__all__ = ["Finished", "Reporter", "TransferReport", "report_of"]


#: A transfer that is over, as it is handed on: number, end in seconds of the epoch, peer, cluster id, transport, path,
#: operation, bytes, pieces, seconds, outcome, code, staged. A value with names takes as long as a small transfer.
Finished: TypeAlias = tuple[int, float, str, int, str, str, str, int, int, float, str, str, bool]


@attrs.frozen
class TransferReport:
    """One transfer over a link that has settled, or could not be started.

    Attributes:
        peer: The peer in words, ``"cluster 2 at 10.0.0.2:26000"``.
        cluster_id: The peer's.
        transport: Name of the transport.
        path: How the bytes went, in the transport's own word; "" where it tells none.
        operation: ``"read"`` or ``"write"``.
        nbytes: Bytes asked for.
        pieces: Ranges moved, after neighbours were joined.
        seconds: From posting until it had settled.
        outcome: ``"done"``, ``"failed"`` or ``"cancelled"``.
        code: The error's code; "" when every byte moved.
        lost: Reports that were dropped since the one before, because the observers were too slow.
        number: Counts the node's transfers that were observed, from 1. Not compared, like all that follows.
        ended: When it had settled, in seconds of the epoch.
        staged: Whether it went through host memory, because the transport does not take the memory.
        context: What the caller's context variables were when it was posted, e.g. for spans of a trace; None where no
            plugin observes transfers.
    """

    peer: str
    cluster_id: int
    transport: str
    path: str
    operation: str
    nbytes: int
    pieces: int
    seconds: float
    outcome: str
    code: str = ""
    lost: int = 0
    number: int = attrs.field(default=0, eq=False)
    ended: float = attrs.field(default=0.0, eq=False)
    staged: bool = attrs.field(default=False, eq=False)
    context: contextvars.Context | None = attrs.field(default=None, eq=False, repr=False)


def report_of(finished: Finished, context: contextvars.Context | None) -> TransferReport:
    """What observers get."""
    return TransferReport(*finished[2:12], 0, finished[0], finished[1], finished[12], context)


class Reporter:
    """Hands reports to observers in a thread of its own, in the order in which transfers settled.

    Args:
        deliver: Called with each report.
        name: For the thread.
        limit: Reports that wait at most; what comes beyond is dropped and counted.

    Thread safety: `put` may be called from any thread, `close` once.
    """

    LIMIT = 4096

    def __init__(self, deliver: Callable[[TransferReport], None], name: str, limit: int = LIMIT) -> None:
        self._deliver = deliver
        self._waiting: queue.Queue[TransferReport | None] = queue.Queue(limit)
        self._lock = threading.Lock()
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, report: TransferReport) -> None:
        """Hand one over; never waits."""
        try:
            self._waiting.put_nowait(report)
        except queue.Full:
            with self._lock:
                self._lost += 1

    def close(self, timeout: float) -> None:
        """Deliver what waits, for at most `timeout` seconds, and end the thread.

        An observer that does not return keeps its thread, and what waits is lost; the log says so.
        """
        try:
            self._waiting.put(None, timeout=timeout)
        except queue.Full:
            self._lost += self._waiting.qsize()
        else:
            self._thread.join(timeout)
        if self._thread.is_alive():
            text = "%s: an observer of transfers did not return within %g s"
            event(logging.WARNING, "observer.stuck", text, self._thread.name, timeout)
        if self._lost:
            text = "%s: %d reports of transfers were dropped"
            event(logging.WARNING, "observer.lost", text, self._thread.name, self._lost, lost=self._lost)

    def _run(self) -> None:
        while (report := self._waiting.get()) is not None:
            with self._lock:
                lost, self._lost = self._lost, 0
            self._deliver(attrs.evolve(report, lost=lost) if lost else report)
