"""Streams to queue copies on: one for each transfer under way, then for the next one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cachefw.errors import BusyError, CacheError, ClosedError, TransferTimeout
from cachefw.transport import Prepared, Transfer, call_back

from .status import TRANSPORT, claim, close_all

if TYPE_CHECKING:
    from cachefw_ascendcl import Copies, CopyKind, Device, Stream

__all__ = ["HccsPrepared", "HccsTransfer", "Lane", "Lanes"]

#: How long one wait in the runtime lasts before Python may handle a signal.
_SLICE = 0.1


class Lane:
    """A stream of its own, so that waiting for one transfer is waiting for it alone.

    Attributes:
        stream: The stream.
        spoiled: Something failed on it; it is not used again.
    """

    __slots__ = ("spoiled", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.spoiled = False

    def copies(self, dst: Any, src: Any, length: Any, kind: CopyKind) -> Copies:
        """A list of copies on this stream."""
        from cachefw_ascendcl import Copies

        return Copies(self.stream, dst, src, length, kind)


class Lanes:
    """The lanes of one open transport, and the thread that tells of finished transfers.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Condition()
        self._idle: list[Lane] = []
        # Those lent out too: what holds one may live on, and the device may not be closed before its streams.
        self._all: set[Lane] = set()
        self._closed = False
        self._watched: list[HccsTransfer] = []
        self._teller: threading.Thread | None = None

    def take(self) -> Lane:
        """An idle lane, or a new one.

        Raises:
            ClosedError: The transport is closed.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("this transport is closed", operation="post", transport=TRANSPORT)
            if self._idle:
                return self._idle.pop()
            lane = Lane(self._device.stream())
            self._all.add(lane)
            return lane

    def give_back(self, lane: Lane) -> None:
        """A lane on which nothing is queued any more."""
        with self._lock:
            if self._closed:
                return
            if not lane.spoiled:
                self._idle.append(lane)
                return
            self._all.discard(lane)
        close_all([lane.stream])

    def watch(self, transfer: HccsTransfer) -> None:
        """Wait for a transfer in the background, so that its callbacks are called."""
        with self._lock:
            self._watched.append(transfer)
            if self._teller is None:
                self._teller = threading.Thread(target=self._tell, name="cachefw-hccs-done", daemon=True)
                self._teller.start()
            self._lock.notify_all()

    def _tell(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._watched or self._closed)
                if not self._watched:
                    return
                transfer = self._watched.pop(0)
            transfer.wait()
            del transfer

    def close(self) -> None:
        """Finish telling, and close the streams. No transfer is under way any more."""
        with self._lock:
            self._closed = True
            lanes, self._all, self._idle = self._all, set(), []
            teller = self._teller
            self._lock.notify_all()
        if teller is not None and teller is not threading.current_thread():
            teller.join()
        close_all(lane.stream for lane in lanes)


class HccsPrepared(Prepared):
    """Addresses that are valid on this device. Each post takes a lane; what is not under way holds none."""

    __slots__ = ("_copies", "_lanes", "_on", "_size", "dst", "kind", "length", "src")

    def __init__(self, lanes: Lanes, dst: Any, src: Any, length: Any, kind: CopyKind) -> None:
        self._lanes = lanes
        self._size = int(length.sum())
        self.dst, self.src, self.length, self.kind = dst, src, length, kind
        # Made for the lane of the last post, which usually is the idle one of the next, too.
        self._on: Lane | None = None
        self._copies: Copies | None = None

    @property
    def nbytes(self) -> int:
        """Sum of the lengths."""
        return self._size

    @property
    def path(self) -> str:
        """The one way there is."""
        return "ipc"

    def ready(self) -> tuple[Lane, Copies]:
        """A lane, which the caller has to give back, and the list of copies on it."""
        lane = self._lanes.take()
        copies = self._copies
        if copies is None or self._on is not lane:
            try:
                copies = lane.copies(self.dst, self.src, self.length, self.kind)
            except BaseException:
                self._lanes.give_back(lane)
                raise
            self._on, self._copies = lane, copies
        return lane, copies


class HccsTransfer(Transfer):
    """One posted batch: over when its stream has nothing left to do."""

    __slots__ = ("_asking", "_callbacks", "_done", "_error", "_lane", "_lanes", "_lock", "_prepared", "_running")

    def __init__(
        self,
        lanes: Lanes,
        prepared: HccsPrepared,
        lane: Lane,
        refused: CacheError | None,
        running: set[HccsTransfer],
    ) -> None:
        # Kept alive there until it is over, whatever the caller does with it.
        self._running = running
        running.add(self)
        self._lanes = lanes
        self._prepared = prepared
        self._lane = lane
        # Refused while it was issued: what was issued before that still has to end.
        self._error = refused
        self._done = False
        # The runtime tells of a failure once: who asks has to be the one that notes the answer, and nobody may still
        # be asking about the stream when the next transfer has it.
        self._asking = threading.Lock()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[Transfer], None]] = []

    @property
    def settled(self) -> bool:
        """Whether the stream is empty."""
        if not self._done and self._asking.acquire(blocking=False):
            try:
                # An empty stream may have failed: only synchronising tells, which takes no time then.
                if not self._done and self._lane.stream.query():
                    self._lane.stream.synchronize()
                    self._note(None)
            except CacheError as error:
                self._note(error)
            finally:
                self._asking.release()
            self._tell()
        return self._done

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep in the runtime, a slice at a time."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._done:
            left = _SLICE if end is None else min(_SLICE, end - time.monotonic())
            if left <= 0:
                return self.settled
            if not self._asking.acquire(timeout=left):
                continue
            try:
                if not self._done:
                    self._lane.stream.synchronize(left)
                    self._note(None)
            except TransferTimeout:
                continue
            except CacheError as error:
                self._note(error)
            finally:
                self._asking.release()
            self._tell()
        return True

    @property
    def error(self) -> CacheError | None:
        """What the runtime said."""
        if not self._done:
            raise BusyError("the transfer is not settled yet; wait for it", transport=TRANSPORT)
        return self._error

    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        """Called from the thread that first sees that it is settled."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                if len(self._callbacks) == 1:
                    self._lanes.watch(self)
                return
        call_back(callback, self)

    @property
    def path(self) -> str:
        """The one way there is."""
        return self._prepared.path

    def _note(self, error: CacheError | None) -> None:
        """It is over. Called once, by the one that asks."""
        if error is not None:
            claim(error, "post")
            self._error = self._error or error
        self._lane.spoiled = self._lane.spoiled or self._error is not None
        with self._lock:
            self._done = True
        self._lanes.give_back(self._lane)
        self._running.discard(self)

    def _tell(self) -> None:
        with self._lock:
            if not self._done:
                return
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            call_back(callback, self)
