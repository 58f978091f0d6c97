"""Connects and disconnects that nobody waits for: in order for each remote engine, a few threads for all."""

from __future__ import annotations

import collections
import concurrent.futures
import threading
from collections.abc import Callable

import attrs

from cachefw.compat.hixl.values import SUCCESS, AsyncConnectStatus

__all__ = ["Connector"]


@attrs.frozen
class _Task:
    serial: int
    connecting: bool
    work: Callable[[], int]


class Connector:
    """Runs tasks, and knows how far the latest of each remote engine is.

    Args:
        threads: How many run at once.
        capacity: How many may wait.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, threads: int, capacity: int) -> None:
        self._capacity = capacity
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, "cachefw-hixl-connect")
        self._lock = threading.Lock()
        self._waiting: dict[str, collections.deque[_Task]] = {}
        self._count = 0
        self._serial = 0
        self._latest: dict[str, tuple[int, AsyncConnectStatus]] = {}
        self._closed = False

    def submit(self, remote: str, connecting: bool, work: Callable[[], int]) -> bool:
        """Queue a task whose `work` returns a status of HIXL's; False when the queue is full."""
        with self._lock:
            if self._closed or self._count >= self._capacity:
                return False
            self._count += 1
            self._serial += 1
            pending = AsyncConnectStatus.CONNECT_PENDING if connecting else AsyncConnectStatus.DISCONNECT_PENDING
            self._latest[remote] = self._serial, pending
            task = _Task(self._serial, connecting, work)
            if remote in self._waiting:
                self._waiting[remote].append(task)
            else:
                self._waiting[remote] = collections.deque([task])
                self._pool.submit(self._run, remote)
            return True

    def status(self, remote: str) -> AsyncConnectStatus:
        """How far the latest task of an engine is."""
        with self._lock:
            return self._latest.get(remote, (0, AsyncConnectStatus.NOT_CONNECT))[1]

    def statuses(self) -> dict[str, AsyncConnectStatus]:
        """The same for every engine that had a task."""
        with self._lock:
            return {remote: status for remote, (_, status) in self._latest.items()}

    def close(self) -> None:
        """Drop what waits, and wait for what runs."""
        with self._lock:
            self._closed = True
            for tasks in self._waiting.values():
                tasks.clear()
        self._pool.shutdown()

    def _run(self, remote: str) -> None:
        """One remote engine's tasks, one after the other."""
        while True:
            with self._lock:
                if not self._waiting[remote]:
                    del self._waiting[remote]
                    return
                task = self._waiting[remote].popleft()
                self._count -= 1
                running = AsyncConnectStatus.CONNECTING if task.connecting else AsyncConnectStatus.DISCONNECTING
                self._reached(remote, task, running)
            good = task.work() == SUCCESS
            if task.connecting:
                end = AsyncConnectStatus.CONNECTED if good else AsyncConnectStatus.CONNECT_FAILED
            else:
                end = AsyncConnectStatus.NOT_CONNECT
            with self._lock:
                self._reached(remote, task, end)

    def _reached(self, remote: str, task: _Task, status: AsyncConnectStatus) -> None:
        # A later task has the say.
        if self._latest[remote][0] == task.serial:
            self._latest[remote] = task.serial, status
