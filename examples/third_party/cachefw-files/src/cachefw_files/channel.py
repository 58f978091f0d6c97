"""The way to one peer: its files, read and written at their offsets."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

import attrs

from cachefw.errors import BrokenError, BusyError, CacheError, ClosedError, TransferCancelled
from cachefw.memory import MemoryRegion
from cachefw.transport import Batch, Channel, Operation, Prepared, Transfer, call_back

from .store import NAME

__all__ = ["DESCRIPTION", "MAGIC", "FilesChannel"]

#: The number of the file, 0 for none; the offset in it; and the region.
DESCRIPTION = struct.Struct("<8sQQQQ")
MAGIC = b"cfwfile1"
#: What one system call takes.
_VECTORS = 1024
#: Bytes up to which `post` moves them itself: handing them over takes longer.
_INLINE = 64 * 2**10


@attrs.frozen(eq=False)
class _Run:
    """Pieces that lie one after the other in a file: one system call."""

    file: int
    offset: int
    views: tuple[memoryview, ...]
    #: Which item of the batch it begins with.
    first: int


class _Prepared(Prepared):
    def __init__(self, call: Callable[..., int], runs: list[_Run], memory: set[int], nbytes: int) -> None:
        self.call, self.runs, self.memory = call, runs, memory
        self._nbytes = nbytes

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def path(self) -> str:
        return "file"


class _Transfer(Transfer):
    """Carried out by the posting thread, or by one of the transport's."""

    def __init__(self, prepared: _Prepared) -> None:
        self._prepared = prepared
        self._dropped = False
        self.outcome: Future[CacheError | None] = Future()

    @property
    def settled(self) -> bool:
        return self.outcome.done()

    def wait(self, timeout: float | None = None) -> bool:
        wait_for([self.outcome], timeout)
        return self.settled

    @property
    def error(self) -> CacheError | None:
        if not self.settled:
            raise BusyError("the transfer has not settled yet", operation="error", transport=NAME)
        return self.outcome.result()

    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        self.outcome.add_done_callback(lambda _: call_back(callback, self))

    def cancel(self) -> None:
        self._dropped = True

    @property
    def path(self) -> str:
        return "file"

    def run(self) -> None:
        error: CacheError | None = None
        for run in self._prepared.runs:
            if self._dropped:
                text, facts = "cancelled before all of it had moved", {"failed": (run.first,)}
                error = TransferCancelled(text, operation="post", transport=NAME, facts=facts)
            else:
                error = _move(self._prepared.call, run)
            if error is not None:
                break
        self.outcome.set_result(error)


def _move(call: Callable[..., int], run: _Run) -> CacheError | None:
    offset, views = run.offset, list(run.views)
    try:
        while views:
            count = call(run.file, views[:_VECTORS], offset)
            if not count:
                return broken("post", f"the peer's file ends at byte {offset:,}", facts={"failed": (run.first,)})
            offset += count
            while views and count >= len(views[0]):
                count -= len(views.pop(0))
            if count:
                views[0] = views[0][count:]
    except OSError as error:
        text = f"the peer's file cannot be moved at byte {offset:,}: {error}"
        return broken("post", text, status=error.errno, detail=str(error), facts={"failed": (run.first,)})
    return None


class FilesChannel(Channel):
    """The docstrings of `cachefw.transport.Channel` are the specification of each method."""

    def __init__(self, folder: Path, executor: Executor, is_alive: Callable[[], bool]) -> None:
        self._folder = folder
        self._executor = executor
        self._is_alive = is_alive
        self._lock = threading.Lock()
        #: Attached memory: its file, and what to subtract from an address to get the place in it.
        self._attached: dict[int, tuple[int, int]] = {}
        self._running: set[_Transfer] = set()
        self._closed = False

    def attach(self, memory_id: int, region: MemoryRegion, description: bytes) -> None:
        what = f"memory {memory_id}"
        magic, number, offset, *place = (
            DESCRIPTION.unpack(description) if len(description) == DESCRIPTION.size else (b"", 0, 0)
        )
        if magic != MAGIC or place != [region.address, region.length]:
            raise broken("attach", f"the description of {what} is malformed")
        if not number:
            text = f"{what} lies in no file: the peer has to take it from allocate(size, transport={NAME!r})"
            raise broken("attach", text, code="files.not_allocated")
        try:
            file = os.open(self._folder / str(number), os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            text = f"the file of {what} cannot be opened: {error}"
            raise broken("attach", text, status=error.errno, detail=str(error)) from None
        if os.fstat(file).st_size < offset + region.length:
            os.close(file)
            raise broken("attach", f"the file of {what} is shorter than the memory")
        with self._lock:
            old = self._attached.get(memory_id)
            self._attached[memory_id] = file, region.address - offset
        if old is not None:
            os.close(old[0])

    def detach(self, memory_id: int) -> None:
        with self._lock:
            known = self._attached.pop(memory_id, None)
        if known is not None:
            os.close(known[0])

    def prepare(self, operation: Operation, batch: Batch) -> _Prepared:
        memory = set(batch.regions.tolist())
        self._check("prepare", memory)
        call: Callable[..., int] = os.preadv if operation is Operation.READ else os.pwritev
        return _Prepared(call, list(self._runs(batch)), memory, int(batch.length.sum()))

    def _runs(self, batch: Batch) -> Iterator[_Run]:
        rows: Any = zip(*(a.tolist() for a in (batch.local, batch.remote, batch.length, batch.regions)), strict=True)
        end: tuple[int, int] | None = None
        views: list[memoryview] = []
        start, first = (0, 0), 0
        for index, (local, remote, length, region) in enumerate(rows):
            file, shift = self._attached[region]
            if end != (file, remote - shift):
                if views:
                    yield _Run(*start, tuple(views), first)
                start, first, views = (file, remote - shift), index, []
            views.append(memoryview((ctypes.c_char * length).from_address(local)).cast("B"))
            end = file, remote - shift + length
        if views:
            yield _Run(*start, tuple(views), first)

    def post(self, prepared: Prepared) -> Transfer:
        assert isinstance(prepared, _Prepared)
        transfer = _Transfer(prepared)
        with self._lock:
            if self._closed:
                raise ClosedError("the channel is closed", operation="post", transport=NAME)
            self._running.add(transfer)
        try:
            self._check("post", prepared.memory)
            if prepared.nbytes > _INLINE:
                self._executor.submit(transfer.run)
            else:
                transfer.run()
        except BaseException:
            self._running.discard(transfer)
            raise
        transfer.outcome.add_done_callback(lambda _: self._running.discard(transfer))
        return transfer

    def close(self) -> None:
        with self._lock:
            self._closed = True
            running = list(self._running)
        for transfer in running:
            transfer.cancel()
        for transfer in running:
            transfer.wait()
        for memory_id in list(self._attached):
            self.detach(memory_id)

    def _check(self, operation: str, memory: set[int]) -> None:
        missing = memory - self._attached.keys()
        if missing:
            raise broken(operation, f"memory {min(missing)} is not attached: it is unknown, or was withdrawn")
        if operation == "prepare" and not self._is_alive():
            raise broken(operation, "the peer is gone")


def broken(operation: str, text: str, **fields: Any) -> BrokenError:
    """The outside world failed."""
    return BrokenError(text, operation=operation, transport=NAME, **fields)
