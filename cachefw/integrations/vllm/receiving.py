"""Blocks that the prefill instance writes here: asked for, and waited for until it says that it is done with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import attrs
from vllm.logger import init_logger

from cachefw.errors import BrokenError, CacheError
from cachefw.integrations.vllm import words
from cachefw.integrations.vllm.outcome import Outcomes
from cachefw.integrations.vllm.steps import Load
from cachefw.links.link import Link, LinkState

__all__ = ["Arrivals"]

_log = init_logger("vllm.cachefw")


@attrs.define(eq=False)
class _Expected:
    """A load that another instance writes."""

    name: str
    load: Load
    link: Link
    begun: float
    stopped: str | None = None


class Arrivals:
    """What is to be written here.

    Args:
        outcomes: Where requests are reported, each once, and never while anything may still be written.
        over: Called with a load that has failed.
        timeout: Seconds that one load may take.
        block_bytes: Bytes that a block has in all layers.
    """

    def __init__(self, outcomes: Outcomes, over: Callable[[Load], None], timeout: float, block_bytes: int) -> None:
        self._outcomes = outcomes
        self._over = over
        self._timeout = timeout
        self._block_bytes = block_bytes
        self._lock = outcomes.lock
        self._expected: dict[int, _Expected] = {}
        self._last = 0

    def begin(self, name: str, load: Load, link: Link | None, error: CacheError | None) -> None:
        """Ask for a load: from the engine's thread where the link is up, else from the one that made it."""
        if link is None:
            self._outcomes.fail(name, error or BrokenError("there is no link", operation="vllm"))
            return
        with self._lock:
            self._last += 1
            token = self._last
            self._expected[token] = _Expected(name, load, link, time.monotonic())
            try:
                for want in words.wants(token, load.request, load.slot, load.use, load.prompt, load.pairs):
                    link.notify(words.encode(want))
            except CacheError as failure:
                # The link is down; whether it was heard shows when its other end is.
                self._expected[token].stopped = str(failure)

    def done(self, cluster_id: int, word: words.Done) -> None:
        """Every byte of a load is here."""
        expected = self._take(cluster_id, word.token)
        if expected is not None:
            nbytes = len(expected.load.pairs) * self._block_bytes
            self._outcomes.received(expected.name)
            self._outcomes.loaded(nbytes, word.pieces, time.monotonic() - expected.begun)

    def failed(self, cluster_id: int, word: words.Failed) -> None:
        """Nothing is written for a load any more."""
        expected = self._take(cluster_id, word.token)
        if expected is not None:
            self._fail(expected, expected.stopped or word.reason)

    def _take(self, cluster_id: int, token: int) -> _Expected | None:
        with self._lock:
            expected = self._expected.get(token)
            # A token means something to the instance alone that was told it.
            if expected is None or expected.link.cluster_id != cluster_id:
                return None
            return self._expected.pop(token)

    def _fail(self, expected: _Expected, reason: str) -> None:
        error = BrokenError(reason, operation="vllm", peer=expected.link.peer_name)
        self._outcomes.fail(expected.name, error)
        self._over(expected.load)

    def give_up(self, now: float) -> None:
        """Stop loads that take too long, and report those whose writer can write no more."""
        with self._lock:
            late = [
                (token, one)
                for token, one in self._expected.items()
                if one.begun + self._timeout < now and one.stopped is None
            ]
            # A peer that has not said so may still write, however long it has been silent.
            gone = [
                token
                for token, one in self._expected.items()
                if one.link.state is not LinkState.UP and one.link.gone.is_set()
            ]
            lost = [self._expected.pop(token) for token in gone]
        for token, one in late:
            self._stop(token, one, f"it took longer than {self._timeout:g} s")
        for one in lost:
            self._fail(one, one.stopped or f"the link to {one.link.peer_name} has ended: {one.link.reason}")

    def cancel(self, names: Iterable[str]) -> None:
        """Nobody waits for these requests any more."""
        given_up = set(names)
        with self._lock:
            stop = [(token, one) for token, one in self._expected.items() if one.name in given_up]
        for token, one in stop:
            self._stop(token, one, "its request was cancelled")

    def _stop(self, token: int, expected: _Expected, reason: str) -> None:
        if expected.stopped is not None:
            return
        expected.stopped = reason
        try:
            expected.link.notify(words.encode(words.Stop(token)))
        except CacheError as error:
            _log.debug("%s was not told to stop: %s", expected.link.peer_name, error)
