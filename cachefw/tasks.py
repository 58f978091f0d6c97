"""Pushing a cache layer by layer while it is being computed: what is asked for, and the task that does it."""

from __future__ import annotations

import abc
import collections
import logging
import threading
import time
from collections.abc import Callable, Sequence

import attrs

from cachefw.cache import BlocksCacheKey, CacheKeyByIdAndIndex
from cachefw.config import setting
from cachefw.errors import BrokenError, BusyError, CacheError, ClosedError, TransferCancelled, TransferTimeout
from cachefw.logs import event
from cachefw.transport import Transfer

__all__ = ["CacheTask", "LayerSynchronizer", "Leg", "TransferConfig", "TransferWithCacheKeyConfig", "Workers"]


class LayerSynchronizer(abc.ABC):
    """Tells when a layer has been computed. Derived from by the caller."""

    @abc.abstractmethod
    def synchronize_layer(self, layer_index: int, timeout_in_millis: int | None) -> bool:
        """Wait until a layer may be read. Called once for each layer, in order, in a thread of cachefw's.

        Args:
            layer_index: The layer, from 0.
            timeout_in_millis: What is left of the task's deadline; None when it has none.

        Returns:
            True when the layer may be sent. False, or an exception, ends the task.
        """


@attrs.frozen
class TransferConfig:
    """Where layers go: plain addresses in the memory of a peer.

    Attributes:
        dst_cluster_id: The peer.
        dst_addrs: Two addresses (keys, values) for each layer of `src_layer_range`: where the row goes, or the start
            of the tensors that hold the blocks.
        src_layer_range: Layers of the local cache; None is all.
        src_batch_index: The local row.
    """

    dst_cluster_id: int
    dst_addrs: Sequence[int]
    src_layer_range: range | None = None
    src_batch_index: int = 0


@attrs.frozen
class TransferWithCacheKeyConfig:
    """Where layers go: a cache of a peer.

    Attributes:
        cache_key: The peer's blocks cache, or a row of a cache.
        src_layer_range: Layers of the local cache; None is all.
        dst_layer_range: Layers of the peer's cache, as many; None is as many from the first.
        src_batch_index: The local row.
    """

    cache_key: BlocksCacheKey | CacheKeyByIdAndIndex
    src_layer_range: range | None = None
    dst_layer_range: range | None = None
    src_batch_index: int = 0

    @property
    def dst_cluster_id(self) -> int:
        """The peer."""
        return self.cache_key.cluster_id


_NAME = "transfer_cache_async"


@attrs.define(eq=False)
class Leg:
    """What one config asks for.

    Attributes:
        peer: The peer in words.
        steps: For each layer that has not been sent what sends it.
        error: Why it ended early; None while it goes well.
        running: Transfers that have not settled.
    """

    peer: str
    steps: dict[int, Callable[[], Transfer]] = attrs.field(factory=dict)
    error: CacheError | None = None
    running: set[Transfer] = attrs.field(factory=set)

    @property
    def arrived(self) -> bool:
        """Whether every layer has been sent and has settled without error."""
        return not (self.steps or self.running or self.error)


class CacheTask:
    """A cache on its way to its peers, layer by layer. Made by `CacheManager.transfer_cache_async`.

    Each peer has an outcome of its own: one that fails does not stop the others.

    Thread safety: every method may be called from any thread.
    """

    def __init__(
        self, synchronizer: LayerSynchronizer, legs: Sequence[Leg], layers: int, timeout: float | None
    ) -> None:
        self._synchronizer = synchronizer
        self._legs = list(legs)
        self._layers = layers
        self._patience = float(setting("timeout")) if timeout is None else timeout
        # The deadline. Without a timeout it is set once the last layer was sent: until then the caller's code decides.
        self._end = None if timeout is None else time.monotonic() + timeout
        self._changed = threading.Condition()
        # Nothing more is going to be sent.
        self._issued = False

    # ------------------------------------------------------------------ for callers

    @property
    def done(self) -> bool:
        """Whether nothing more is sent and no byte can move any more."""
        return self._issued and not any(leg.running for leg in self._legs)

    def get_results(self, timeout: float | None = None) -> list[CacheError | None]:
        """The outcome for each peer, in the order of the configs.

        Args:
            timeout: Seconds to wait; None waits until the task is done or its deadline has passed. Passing either
                cancels nothing that is on its way.

        Returns:
            For each config None when every layer has arrived, else why not: a `TransferTimeout` when that is not known
            yet, a `TransferCancelled` when the task ended before its last layer was sent.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self.done:
                ends = [end for end in (until, self._end) if end is not None]
                left = min(ends) - time.monotonic() if ends else None
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            return [leg.error if leg.error or leg.arrived else self._late(leg, timeout) for leg in self._legs]

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait until every layer has arrived everywhere.

        Args:
            timeout: As for `get_results`.

        Raises:
            TransferTimeout: Not yet; the task goes on.
            CacheError: The first outcome that is none; `get_results` has all.
        """
        for error in self.get_results(timeout):
            if error is not None:
                raise error

    # ------------------------------------------------------------------ for the worker

    def run(self) -> None:
        """Wait for each layer, and send it; in a worker's thread."""
        try:
            for layer in range(self._layers):
                going = [leg for leg in self._legs if layer in leg.steps and leg.error is None]
                if going and not self._ready(layer):
                    break
                for leg in going:
                    self._send(leg, layer)
        finally:
            self.end("it broke", "task.broken")

    def end(self, why: str, code: str, cause: BaseException | None = None) -> None:
        """Send nothing more. What is on its way settles by itself."""
        with self._changed:
            for leg in self._legs:
                if leg.steps and leg.error is None:
                    leg.error = TransferCancelled(
                        f"the transfer to {leg.peer} ended before its last layer was sent: {why}",
                        code=code,
                        operation=_NAME,
                        peer=leg.peer,
                    )
                    leg.error.__cause__ = cause
                leg.steps.clear()
            self._issued = True
            if self._end is None:
                self._end = time.monotonic() + self._patience
            self._changed.notify_all()

    def _ready(self, layer: int) -> bool:
        left = None if self._end is None else self._end - time.monotonic()
        ready = False
        if left is None or left > 0:
            try:
                ready = self._synchronizer.synchronize_layer(layer, None if left is None else int(left * 1000) + 1)
            except Exception as failure:
                self.end(f"the synchronizer raised {failure!r} at layer {layer}", "task.synchronizer", failure)
                return False
        if self._end is not None and time.monotonic() > self._end:
            self._expire(layer)
            return False
        if not ready:
            self.end(f"the synchronizer said that layer {layer} failed", "task.layer")
        return bool(ready)

    def _send(self, leg: Leg, layer: int) -> None:
        with self._changed:
            # Ended while the synchronizer waited, it has none left.
            step = leg.steps.pop(layer, None)
        if step is None:
            return
        try:
            transfer = step()
        except CacheError as error:
            self._fail(leg, error, layer)
            return
        except Exception as failure:
            # A fault of cachefw's or of a transport's; it may not pass for an arrival.
            broken = BrokenError(f"sending layer {layer} to {leg.peer} broke: {failure!r}", code="task.broken")
            broken.__cause__ = failure
            self._fail(leg, broken, layer)
            return
        with self._changed:
            leg.running.add(transfer)
        transfer.add_done_callback(lambda done: self._settled(leg, done, layer))

    def _settled(self, leg: Leg, transfer: Transfer, layer: int) -> None:
        error = transfer.error
        if error is not None:
            self._fail(leg, error, layer)
        with self._changed:
            leg.running.discard(transfer)
            self._changed.notify_all()

    def _fail(self, leg: Leg, error: CacheError, layer: int) -> None:
        error.facts.setdefault("layer", layer)
        with self._changed:
            leg.error = leg.error or error
            leg.steps.clear()

    def _expire(self, layer: int) -> None:
        with self._changed:
            for leg in self._legs:
                if leg.steps and leg.error is None:
                    leg.error = TransferTimeout(
                        f"layer {layer} was not ready for {leg.peer} within {self._patience:g} s",
                        operation=_NAME,
                        peer=leg.peer,
                        facts={"settled": not leg.running, "timeout": self._patience, "layer": layer},
                    )

    def _late(self, leg: Leg, timeout: float | None) -> TransferTimeout:
        limit = self._patience if timeout is None else timeout
        return TransferTimeout(
            f"not every layer had arrived at {leg.peer} within {limit:g} s",
            operation=_NAME,
            peer=leg.peer,
            facts={"settled": False, "timeout": limit},
        )

    def __repr__(self) -> str:
        state = "done" if self.done else "running"
        return f"<CacheTask of {self._layers} layers to {len(self._legs)} peers, {state}>"


class Workers:
    """A few threads that run tasks in the order they came, started when there is work.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, threads: int = 4, waiting: int = 256) -> None:
        self._threads = threads
        self._most = waiting
        self._changed = threading.Condition()
        self._queue: collections.deque[CacheTask] = collections.deque()
        self._running: dict[threading.Thread, CacheTask | None] = {}
        self._closed = False

    def submit(self, task: CacheTask) -> None:
        """Have a task run.

        Raises:
            BusyError: Too many wait already.
            ClosedError: `close` was called.
        """
        with self._changed:
            if self._closed:
                raise ClosedError(f"{_NAME}: this CacheManager is closed", operation=_NAME)
            if len(self._queue) >= self._most:
                raise BusyError(
                    f"{len(self._queue)} tasks wait for {self._threads} threads already; wait for some of them",
                    operation=_NAME,
                )
            self._queue.append(task)
            idle = sum(running is None for running in self._running.values())
            if idle < len(self._queue) and len(self._running) < self._threads:
                # A daemon: it may be inside the caller's synchronizer for as long as that likes.
                thread = threading.Thread(target=self._work, name="cachefw-layers", daemon=True)
                self._running[thread] = None
                thread.start()
            self._changed.notify()

    def close(self, patience: float = 1.0) -> None:
        """End every task, and wait `patience` seconds for threads that are inside a caller's synchronizer."""
        with self._changed:
            self._closed = True
            tasks = [*self._queue, *(task for task in self._running.values() if task is not None)]
            threads = list(self._running)
            self._queue.clear()
            self._changed.notify_all()
        for task in tasks:
            task.end("its CacheManager was closed", "task.closed")
        end = time.monotonic() + patience
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                self._running[me] = None
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    del self._running[me]
                    return
                self._running[me] = task = self._queue.popleft()
            try:
                task.run()
            except Exception:
                event(logging.ERROR, "task.broken", "a layer-wise transfer broke; its outcome says so", trace=True)
            del task
