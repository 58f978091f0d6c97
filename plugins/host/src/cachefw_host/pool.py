"""Batches in native form, and the threads that move large ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachefw.errors import BusyError, CacheError, ClosedError
from cachefw.transport import Prepared, Transfer, call_back

from .status import TRANSPORT, net_error, transfer_error

__all__ = ["HostPrepared", "Job", "NetJob", "Pool"]

U64 = NDArray[np.uint64]

#: A transfer up to this size is moved by the caller before `post` returns: handing it to a thread would take longer.
INLINE_BYTES = 256 * 2**10
#: How much the waiting thread moves before it looks whether a signal or the deadline came.
HELP_BYTES = 64 * 2**20
_SLICE_NS = 100_000_000
#: `cfw_job_help`: there is more to take.
_MORE = 2


class HostPrepared(Prepared):
    """A batch in native form, with the arrays it points to.

    Attributes:
        nbytes: Sum of the lengths.
        path: ``shm``, ``cma``, both, or ``tcp``.
        batch: The native batch.
        pid: The peer's process where one is concerned, else 0.
        net: To be moved by the streams of a peer.
        small: To be moved by `Pool.move`.
        done: What every `Pool.move` without an error returns.
        unread: Where a batch that cannot fail leaves its result, which then says nothing; None when it can fail.
    """

    __slots__ = ("_arrays", "_positions", "batch", "done", "nbytes", "net", "path", "pid", "small", "unread")

    nbytes: int
    path: str

    def __init__(
        self, batch: Any, arrays: Any, positions: list[Any], size: int, pid: int, done: Done, unread: Any, *, net: bool
    ) -> None:
        self.batch = batch
        self.pid = pid
        self.net = net
        self.small = size <= INLINE_BYTES and not net
        self.done = done
        self.unread = unread
        self._arrays = arrays
        self._positions = positions
        self.nbytes = size
        self.path = done.path

    def item(self, part: int, index: int) -> int:
        """Position in the caller's batch of an item of a native part."""
        positions = self._positions[part]
        return index if positions is None else int(positions[index])


class Done(Transfer):
    """A transfer that was over when `post` returned."""

    __slots__ = ("error", "path")

    settled = True
    error: CacheError | None
    path: str

    def __init__(self, path: str, error: CacheError | None) -> None:
        self.path = path
        self.error = error

    def wait(self, timeout: float | None = None) -> bool:
        return True

    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        call_back(callback, self)

    def cancel(self) -> None:
        """Too late, which is no error."""


class Job(Transfer):
    """A transfer that the pool's threads work on."""

    __slots__ = ("_failure", "_job", "_lib", "_pool", "_prepared", "_result")

    def __init__(self, pool: Pool, prepared: HostPrepared, job: Any) -> None:
        self._pool = pool
        self._lib = pool.lib
        self._prepared = prepared
        self._job = job
        self._result: Any = None
        self._failure: CacheError | None = None

    @property
    def settled(self) -> bool:
        """Whether every thread is done with it."""
        return bool(self._lib.cfw_job_settled(self._job))

    def wait(self, timeout: float | None = None) -> bool:
        """Move bytes too, then sleep until the others are done."""
        end = None if timeout is None else time.monotonic() + timeout
        lib, job = self._lib, self._job
        helping = timeout is None or timeout > 0
        while not lib.cfw_job_settled(job):
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return bool(lib.cfw_job_settled(job))
            if helping:
                # Moves bytes as long as there are any to take; afterwards only others' last pieces are waited for.
                outcome = lib.cfw_job_help(job, HELP_BYTES)
                helping = outcome == _MORE
                if outcome:
                    continue
            slice_ns = _SLICE_NS if left is None else min(_SLICE_NS, int(left * 1e9))
            lib.cfw_job_wait(job, max(slice_ns, 1))
        return True

    @property
    def error(self) -> CacheError | None:
        """What went wrong, with the piece at which it did."""
        if self._result is None:
            result = self._pool.new_result()
            if self._lib.cfw_job_result(self._job, result):
                raise BusyError("the transfer is not settled yet; wait for it", transport=TRANSPORT)
            self._result = result
            if result.status:
                self._failure = self._failed(result)
        return self._failure

    def _failed(self, result: Any) -> CacheError:
        return _error(self._prepared, result)

    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        """Called from the thread that tells of finished transfers, unless it is settled already."""
        if self.settled:
            call_back(callback, self)
        else:
            self._pool.watch(self, self._job, callback)

    def cancel(self) -> None:
        """Hand out no more of it."""
        self._lib.cfw_job_cancel(self._job)

    @property
    def path(self) -> str:
        """``shm``, ``cma``, or both."""
        return self._prepared.path


class NetJob(Job):
    """A transfer that streams to a peer carry."""

    __slots__ = ("_looked", "_timeout")

    def __init__(self, pool: Pool, prepared: HostPrepared, job: Any, timeout: float) -> None:
        super().__init__(pool, prepared, job)
        self._looked = False
        self._timeout = timeout

    @property
    def settled(self) -> bool:
        """Whether no stream carries any of it any more."""
        if self._lib.cfw_job_settled(self._job):
            return True
        # Who waits for a small one reads its answer without a change of threads. Who looks instead, and looks again,
        # does not wait: from then on the threads read it.
        if self._looked:
            self._lib.cfw_job_attend(self._job)
        self._looked = True
        return False

    def wait(self, timeout: float | None = None) -> bool:
        """Read its answer, or sleep while the threads do."""
        end = None if timeout is None else time.monotonic() + timeout
        lib, job = self._lib, self._job
        slice_ns = _SLICE_NS if timeout is None else max(min(_SLICE_NS, int(timeout * 1e9)), 0)
        while lib.cfw_job_wait(job, slice_ns):
            if end is not None:
                left = end - time.monotonic()
                if left <= 0:
                    return bool(lib.cfw_job_settled(job))
                slice_ns = max(min(_SLICE_NS, int(left * 1e9)), 1)
        return True

    def _failed(self, result: Any) -> CacheError:
        return net_error(result.status, self._prepared.item(result.part, result.item), self._timeout)


def _error(prepared: HostPrepared, result: Any) -> CacheError:
    return transfer_error(result.status, prepared.item(result.part, result.item), prepared.pid)


class Pool:
    """The native threads of one open transport, and the thread that tells of finished transfers.

    Args:
        native: The native module.
        workers: Threads besides the caller of `wait`; they start with the first large transfer.
        cpus: Processors they keep to.
    """

    def __init__(self, native: Any, workers: int, cpus: Sequence[int]) -> None:
        self.ffi, self.lib = native.ffi, native.lib
        made = self.ffi.new("cfw_pool **")
        status = self.lib.cfw_pool_create(workers, list(cpus) or self.ffi.NULL, len(cpus), made)
        if status:
            raise transfer_error(status, None, None)
        self._pool = made[0]
        # Looking these up takes longer than moving a small block.
        self._run = self.lib.cfw_batch_run
        self._unread = self.ffi.new("cfw_result *")
        # By path. There is nothing to tell two transfers apart that are over and went well.
        self._done: dict[str, Done] = {}
        self.new_result = partial(self.ffi.new, self.ffi.typeof("cfw_result *"))
        self._lock = threading.Lock()
        self._teller: threading.Thread | None = None
        self._watched: dict[int, tuple[Transfer, Callable[[Transfer], None]]] = {}
        self._tokens = 0

    @property
    def handle(self) -> Any:
        """The native pool."""
        return self._pool

    def prepare(
        self, parts: Sequence[tuple[int, int, U64, U64, U64, NDArray[np.intp] | None]], path: str
    ) -> HostPrepared:
        """Turn parts into a native batch: (operation, pid, local, remote, length, positions in the caller's batch)."""
        ffi = self.ffi
        arrays = [
            [ffi.from_buffer("uint64_t[]", array) for array in (local, remote, length)]
            for _, _, local, remote, length, _ in parts
        ]
        table = ffi.new(
            "cfw_part[]",
            [[part[0], part[1], *ends, len(part[2])] for part, ends in zip(parts, arrays, strict=True)],
        )
        made = ffi.new("cfw_batch **")
        status = self.lib.cfw_batch_create(table, len(parts), made)
        if status:
            raise transfer_error(status, None, None)
        batch = ffi.gc(made[0], self.lib.cfw_batch_destroy)
        size = int(self.lib.cfw_batch_bytes(batch))
        pid = max(part[1] for part in parts)
        # Copies between mapped addresses have no way to fail, and then nobody looks at the result.
        net = parts[0][0] in (self.lib.CFW_NET_READ, self.lib.CFW_NET_WRITE)
        unread = None if pid else self._unread
        done = self._done.setdefault(path, Done(path, None))
        return HostPrepared(batch, arrays, [part[5] for part in parts], size, pid, done, unread, net=net)

    def move(self, prepared: HostPrepared) -> Done:
        """Move a batch in this thread, which a small one is not worth leaving for."""
        result = prepared.unread or self.new_result()
        if self._run(prepared.batch, result):
            return Done(prepared.path, _error(prepared, result))
        return prepared.done

    def post(self, prepared: HostPrepared) -> Job:
        """Have the threads move a batch."""
        made = self.ffi.new("cfw_job **")
        status = self.lib.cfw_job_post(self._pool, prepared.batch, made)
        if status:
            raise ClosedError("this transport is closed", operation="post", transport=TRANSPORT, status=-status)
        return Job(self, prepared, self.ffi.gc(made[0], self.lib.cfw_job_release))

    def watch(self, transfer: Transfer, job: Any, callback: Callable[[Transfer], None]) -> None:
        """Have a callback called once a job is settled."""
        with self._lock:
            self._tokens += 1
            token = self._tokens
            self._watched[token] = transfer, callback
            if self._teller is None:
                self._teller = threading.Thread(target=self._tell, args=(job,), name="cachefw-host-done", daemon=True)
                self._teller.start()
        if self.lib.cfw_job_watch(job, token):
            # The pool is gone, and with it every unfinished job.
            del self._watched[token]
            call_back(callback, transfer)

    def _tell(self, _job: Any) -> None:
        # A destroyed pool goes with its last job; this one keeps it until the thread has heard that it is over.
        token = self.ffi.new("uint64_t *")
        while self.lib.cfw_pool_next(self._pool, -1, token) == 0:
            with self._lock:
                transfer, callback = self._watched.pop(token[0])
            call_back(callback, transfer)
            del transfer, callback

    def close(self) -> None:
        """Finish what is queued and end the threads."""
        self.lib.cfw_pool_destroy(self._pool)
        if self._teller is not None and self._teller is not threading.current_thread():
            self._teller.join()
