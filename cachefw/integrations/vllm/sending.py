"""Blocks that the prefill instance writes to whoever wants them: as they are computed, or when they are kept."""

from __future__ import annotations

import collections
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from vllm.logger import init_logger

from cachefw.cache import BlocksCacheKey, Cache
from cachefw.errors import CacheError
from cachefw.integrations.vllm import words
from cachefw.integrations.vllm.outcome import Outcomes
from cachefw.integrations.vllm.sources import Post, Sending, Source, Table, Waiting
from cachefw.integrations.vllm.steps import Computing
from cachefw.links.link import Link
from cachefw.node import Node
from cachefw.transport import Transfer

__all__ = ["Sends"]

_log = init_logger("vllm.cachefw")

#: Requests that are not kept any more, and answered so at once.
_REMEMBERED = 1000


class Sends:
    """Writes blocks to other instances, in a thread of its own.

    Args:
        node: Whose links.
        caches: What is read from.
        tables: By layer name, where its blocks are.
        block_size: Tokens in a block, where all layers make one group; else None, and only kept requests are written.
        outcomes: Whose lock guards this.
        over: Called with the name of a request that nobody else is to be written; with the lock held.
        gone: Whether the use of a slot is over: (slot, use).
        patience: Seconds for which a request that is wanted may take to arrive.
        listen: Called in the thread, whenever the node has notifications.
    """

    def __init__(
        self,
        node: Node,
        caches: Sequence[Cache],
        tables: dict[str, Table],
        block_size: int | None,
        outcomes: Outcomes,
        over: Callable[[str], None],
        gone: Callable[[int, int], bool],
        patience: float,
        listen: Callable[[], None],
    ) -> None:
        self._node = node
        self._caches = caches
        self._tables = tables
        # Once for layers that share their bytes.
        self._order = [(number, at) for number, cache in enumerate(caches) for at in range(len(cache.tensor_addrs))]
        self._block_size = block_size
        self._lock = outcomes.lock
        self._over = over
        self._gone = gone
        self._patience = patience
        self._listen = listen
        self._sources: dict[str, Source] = {}
        self._names: dict[str, str] = {}
        self._waiting: dict[tuple[int, int], Waiting] = {}
        self._running: list[str] = []
        # What has to have happened on the device before anything that was computed so far can be read.
        self._event: Any = None
        # Requests that were kept once, by what they were called.
        self._past: collections.deque[str] = collections.deque(maxlen=_REMEMBERED)
        self._queue: queue.SimpleQueue[Post | str] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="cachefw-vllm-push", daemon=True)
        node.when_notified(lambda: self._queue.put("listen"))
        self._thread.start()

    # ------------------------------------------------------------------ the engine's thread

    def step(self, computing: dict[str, Computing], preempted: Iterable[str], dropped: Mapping[str, str]) -> None:
        """A step of the engine is about to compute more of some requests, and takes the blocks of others away."""
        with self._lock:
            for name, transfer in dropped.items():
                self._drop(name, transfer)
            for name in preempted:
                self._restart(name)
            self._running = []
            for name, one in computing.items():
                source = self._sources.get(name)
                if source is None:
                    source = self._add(name, one)
                source.blocks = [np.asarray(group, np.int64) for group in one.blocks]
                source.coming, source.passed = one.after, set()
                self._running.append(name)

    def layer(self, layer_name: str, event: Any) -> None:
        """The step has computed a layer, or will have when `event` says so."""
        table = self._tables.get(layer_name)
        if table is None:
            return
        with self._lock:
            self._event = event
            for name in self._running:
                source = self._sources.get(name)
                if source is not None:
                    source.passed.add(table)
                    for sending in source.sendings:
                        self._advance(sending, [table])

    def end_step(self, event: Any) -> None:
        """The step has computed every layer, or will have when `event` says so."""
        with self._lock:
            self._event = event
            for name in self._running:
                source = self._sources.get(name)
                if source is not None:
                    source.ready = source.coming
                    self._advance_all(source)
            self._running = []

    def keep(self, name: str, one: Computing) -> None:
        """A request is whole, and kept."""
        with self._lock:
            source = self._sources.get(name) or self._add(name, one)
            source.blocks = [np.asarray(group, np.int64) for group in one.blocks]
            source.ready = source.coming = source.total
            self._advance_all(source)

    @property
    def running(self) -> bool:
        """Whether this step computes anything that may be wanted."""
        return bool(self._running)

    def busy(self, name: str) -> bool:
        """Whether blocks of a request are being read."""
        with self._lock:
            source = self._sources.get(name)
            return source is not None and bool(source.sendings)

    def forget(self, name: str) -> None:
        """A request is not kept any more."""
        with self._lock:
            self._forget(name, "its blocks are not kept any more: the lease of the prefill instance ran out")

    def name_of(self, called: str) -> str:
        """The request that a word of another instance's means."""
        return self._names.get(called, called)

    def close(self) -> None:
        """End the thread."""
        self._node.when_notified(None)
        self._queue.put("end")
        self._thread.join(10)

    # ------------------------------------------------------------------ with the lock held

    def _add(self, name: str, one: Computing) -> Source:
        names = (name, "@" + one.transfer) if one.transfer else (name,)
        # Blocks that were found in the prefix cache may be another request's, which this very step computes.
        source = Source(names, one.prompt, [], 0, one.after, one.total)
        source.blocks = [np.asarray(group, np.int64) for group in one.blocks]
        self._sources[name] = source
        for called in names:
            self._names[called] = name
        for key, waiting in list(self._waiting.items()):
            if waiting.parts[0].request in names and not waiting.parts[-1].more:
                del self._waiting[key]
                self._attach(source, waiting.link, waiting.parts)
        return source

    def _forget(self, name: str, reason: str) -> None:
        source = self._sources.pop(name, None)
        if source is None:
            return
        for called in source.names:
            self._names.pop(called, None)
        self._past.extend(source.names)
        for sending in source.sendings[:]:
            sending.error = sending.error or reason
            self._conclude(sending)

    def _drop(self, name: str, transfer: str) -> None:
        reason = "the prefill of the request was cancelled"
        if name in self._sources:
            self._forget(name, reason)
            return
        # It has never been computed.
        self._past.append("@" + transfer)
        for key, waiting in list(self._waiting.items()):
            if waiting.parts[0].request == "@" + transfer:
                del self._waiting[key]
                self._answer(waiting.link, words.Failed(key[1], reason))

    def _restart(self, name: str) -> None:
        source = self._sources.get(name)
        if source is not None:
            source.blocks, source.ready, source.coming = [], 0, 0
            for sending in source.sendings[:]:
                sending.again = True
                self._conclude(sending)

    def _attach(self, source: Source, link: Link, parts: Sequence[words.Want]) -> None:
        first = parts[0]
        try:
            pairs = words.pairs_of(parts)
        except ValueError as error:
            self._answer(link, words.Failed(first.token, f"its list of blocks cannot be read: {error}"))
            return
        if first.prompt and source.prompt and first.prompt != source.prompt:
            self._answer(
                link, words.Failed(first.token, "the prefill instance computed another prompt under this name")
            )
            return
        pairs = pairs[np.argsort(pairs[:, 1], kind="stable")]
        sending = Sending(source, link, first.token, pairs, dict.fromkeys(self._order, 0))
        source.sendings.append(sending)
        self._advance(sending, self._order)
        self._conclude(sending)

    def _advance_all(self, source: Source) -> None:
        for sending in source.sendings[:]:
            self._advance(sending, self._order)
            self._conclude(sending)

    def _advance(self, sending: Sending, tables: Sequence[Table]) -> None:
        """Post what has been computed since: neighbouring tables with the same blocks in one transfer."""
        source = sending.source
        if sending.error is not None or sending.again:
            return
        runs: list[tuple[int, int, int, int, int]] = []
        for table in tables:
            tokens = source.coming if table in source.passed else source.ready
            begin, end = sending.posted[table], self._reach(source, sending, tokens)
            if end <= begin:
                continue
            sending.posted[table] = end
            cache, tensor = table
            if runs and runs[-1][0] == cache and runs[-1][2:] == (tensor, begin, end):
                runs[-1] = cache, runs[-1][1], tensor + 1, begin, end
            else:
                runs.append((cache, tensor, tensor + 1, begin, end))
        for cache, first, last, begin, end in runs:
            try:
                here, there = source.blocks_of(sending.pairs[begin:end])
            except IndexError as error:
                sending.error = str(error)
                return
            if len(here):
                sending.pending += 1
                self._queue.put(Post(self._event, sending, cache, range(first, last), here, there))

    def _reach(self, source: Source, sending: Sending, tokens: int) -> int:
        """How many of the pairs lie in blocks that are full, or will not be filled further."""
        if tokens >= source.total:
            return len(sending.pairs)
        if self._block_size is None:
            return 0
        return int(np.searchsorted(sending.pairs[:, 1], tokens // self._block_size))

    def _conclude(self, sending: Sending) -> None:
        """Answer, if nothing of it moves any more and nothing is to come."""
        source = sending.source
        if sending.pending or sending not in source.sendings:
            return
        if sending.error is None and sending.again:
            sending.again, sending.posted = False, dict.fromkeys(self._order, 0)
            self._advance(sending, self._order)
            if sending.pending:
                return
        if sending.error is None:
            if source.ready < source.total or min(sending.posted.values()) < len(sending.pairs):
                return
            self._answer(sending.link, words.Done(sending.token, sending.pieces))
        else:
            self._answer(sending.link, words.Failed(sending.token, sending.error))
        source.sendings.remove(sending)
        if sending.error is None and not source.sendings:
            self._over(source.names[0])

    @staticmethod
    def _answer(link: Link, word: words.Word) -> None:
        try:
            link.notify(words.encode(word))
        except CacheError as error:
            # Whoever is gone sees so itself.
            _log.debug("%s was not told %s: %s", link.peer_name, word, error)

    # ------------------------------------------------------------------ words of other instances

    def wanted(self, cluster_id: int, want: words.Want) -> None:
        """Another instance has made room for a request."""
        link = next((one for one in self._node.links if one.cluster_id == cluster_id), None)
        if link is None:
            return
        with self._lock:
            key = cluster_id, want.token
            waiting = self._waiting.setdefault(key, Waiting(link, [], time.monotonic() + self._patience))
            waiting.parts.append(want)
            if want.more:
                return
            name = self._names.get(want.request)
            if name is not None:
                del self._waiting[key]
                self._attach(self._sources[name], link, waiting.parts)
            elif want.request in self._past or (want.slot >= 0 and self._gone(want.slot, want.use)):
                del self._waiting[key]
                reason = "its blocks were given away before it came for them: the lease of the prefill instance ran out"
                self._answer(link, words.Failed(want.token, reason))

    def stop(self, cluster_id: int, token: int) -> None:
        """Another instance does not want it any more, and has to know when nothing is written to it."""
        transfers: list[Transfer] = []
        with self._lock:
            waiting = self._waiting.pop((cluster_id, token), None)
            if waiting is not None:
                self._answer(waiting.link, words.Failed(token, "it was cancelled"))
                return
            for source in list(self._sources.values()):
                for sending in source.sendings[:]:
                    if (sending.link.cluster_id, sending.token) == (cluster_id, token):
                        sending.error = sending.error or "it was cancelled"
                        transfers += sending.transfers
                        self._conclude(sending)
        for transfer in transfers:
            try:
                transfer.cancel()
            except CacheError as error:
                _log.debug("cannot cancel: %s", error)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        while (job := self._next()) != "end":
            try:
                if isinstance(job, Post):
                    self._post(job)
                else:
                    self._listen()
                    self._refuse_late()
            except Exception as error:
                # Others wait for this thread's answers: one job that goes wrong must not end it.
                _log.exception("what others want could not be done")
                if isinstance(job, Post):
                    self._post_failed(job.sending, error)

    def _next(self) -> Post | str:
        while True:
            try:
                return self._queue.get(timeout=1.0 if self._waiting else None)
            except queue.Empty:
                self._refuse_late()

    def _refuse_late(self) -> None:
        now = time.monotonic()
        with self._lock:
            for key, waiting in list(self._waiting.items()):
                if waiting.until < now:
                    del self._waiting[key]
                    reason = f"no such request came to the prefill instance within {self._patience:g} s"
                    self._answer(waiting.link, words.Failed(key[1], reason))

    def _post(self, job: Post) -> None:
        sending = job.sending
        if sending.error is not None or sending.again:
            self._settled(sending, None)
            return
        if job.event is not None:
            job.event.synchronize()
        key = BlocksCacheKey(sending.link.cluster_id, job.cache)
        try:
            transfer = self._node.cache_manager.push_blocks(
                key,
                self._caches[job.cache],
                cast("Sequence[int]", job.here),
                cast("Sequence[int]", job.there),
                job.tensors,
                job.tensors,
                1,
                wait=False,
            )
        except CacheError as error:
            self._post_failed(sending, error)
            return
        with self._lock:
            sending.pieces += getattr(transfer, "pieces", 0)
            sending.transfers.add(transfer)
        transfer.add_done_callback(lambda _: self._settled(sending, transfer))

    def _post_failed(self, sending: Sending, error: Exception) -> None:
        with self._lock:
            sending.error = sending.error or str(error)
        self._settled(sending, None)

    def _settled(self, sending: Sending, transfer: Transfer | None) -> None:
        """A transfer moves nothing any more; called from any thread."""
        with self._lock:
            sending.pending -= 1
            if transfer is not None:
                sending.transfers.discard(transfer)
                if transfer.error is not None:
                    sending.error = sending.error or str(transfer.error)
            self._conclude(sending)
