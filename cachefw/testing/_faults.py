"""Tests: the system has no more descriptors or threads, at each call in turn."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Callable, Iterator

import pytest

from cachefw.errors import CacheError
from cachefw.testing._bench import Bench, Piece, check_error, same, settle
from cachefw.testing._fixtures import Fixtures
from cachefw.testing._usage import Usage
from cachefw.transport import Operation

__all__ = ["FaultTests"]

SIZE = 4096
#: Faults after which a transport is taken to need ever more.
MOST = 200

#: A context in which the first so many descriptors or threads are to be had, and no more; says whether one was missing.
Shortage = Callable[[int], contextlib.AbstractContextManager[Callable[[], bool]]]


@contextlib.contextmanager
def _few_descriptors(left: int) -> Iterator[Callable[[], bool]]:
    """Descriptors are numbered from the lowest that is free, so that the limit says exactly how many are left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The descriptor of the listing itself is gone by now.
    taken = {int(number) for number in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{number}")}
    free = [number for number in range(len(taken) + left + 1) if number not in taken]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[left], hard))
    try:
        yield lambda: True
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def _few_threads(left: int) -> Iterator[Callable[[], bool]]:
    """Python's threads; those that a library starts by itself are not seen."""
    start, asked = threading.Thread.start, 0

    def refuse(thread: threading.Thread) -> None:
        nonlocal asked
        asked += 1
        if asked > left:
            raise RuntimeError("can't start new thread")
        start(thread)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield lambda: asked > left


class FaultTests(Fixtures):
    """What a transport asks of the system can be refused at any call."""

    @pytest.mark.parametrize("shortage", [_few_descriptors, _few_threads], ids=["descriptors", "threads"])
    def test_system_refuses_at_each_call(self, bench: Bench, any_operation: Operation, shortage: Shortage) -> None:
        """With 0, 1, 2 ... descriptors or threads left, each call works or is a `CacheError`; then all works again.

        From opening a transport to a transfer between two; nothing is left behind by what failed.
        """
        if not os.path.isdir("/proc/self/fd"):
            pytest.skip("descriptors are counted in /proc, which is not here")
        self._round(bench, any_operation)
        for left in range(MOST):
            before = Usage.now()
            with shortage(left) as met:
                error = self._try(bench, any_operation)
                missing = met()
            if error is not None:
                check_error(error, bench.info)
            leaked = before.leaked()
            assert not leaked, f"with {left} left, the call that failed ({error}) left {leaked}"
            if error is None:
                if shortage is _few_threads and left == 0 and not missing:
                    pytest.skip(f"transport {bench.info.name!r} starts no thread of Python's")
                break
        else:
            pytest.fail(f"it failed with {MOST} left too: {error}")
        self._round(bench, any_operation)

    def _try(self, bench: Bench, operation: Operation) -> CacheError | None:
        try:
            self._round(bench, operation)
        except CacheError as error:
            # Without the frames, which hold what was made before the call that failed.
            return error.with_traceback(None)
        return None

    @staticmethod
    def _round(bench: Bench, operation: Operation) -> None:
        """Another pair of transports, from opening to closing, with memory of its own."""
        other = Bench(bench.info, bench.settings, bench.make_memory)
        try:
            other.open()
            local, remote = other.local(SIZE), other.remote(SIZE)
            local.fill(1)
            remote.fill(2)
            error = settle(other.post(operation, [Piece(local, 0, remote, 0, SIZE)])).error
            if error is not None:
                raise error
            same(local.read(), remote.read())
        finally:
            other.close()
