"""What has become of requests, until the engine asks."""

from __future__ import annotations

import threading

import attrs
from vllm.logger import init_logger

from cachefw.errors import CacheError
from cachefw.integrations.vllm.stats import Counts

__all__ = ["Outcome", "Outcomes"]

_log = init_logger("vllm.cachefw")


@attrs.define
class Outcome:
    """What has become of requests since the last step, by name.

    Attributes:
        sent: Others have them, or do not want them any more: their blocks are free.
        received: Loaded, or not to be loaded.
        failed: Those of `received` whose blocks hold nothing.
    """

    sent: set[str] = attrs.field(factory=set)
    received: set[str] = attrs.field(factory=set)
    failed: set[str] = attrs.field(factory=set)


class Outcomes:
    """Collects what other threads find out, for the engine's thread to take.

    Attributes:
        lock: Guards this, and the state of all who report here: they call each other.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._outcome = Outcome()
        self._counts = Counts()

    def sent(self, name: str) -> None:
        """The blocks of a request are not kept any more."""
        with self.lock:
            self._outcome.sent.add(name)

    def received(self, name: str) -> None:
        """A request is loaded, or not to be loaded."""
        with self.lock:
            self._outcome.received.add(name)

    def fail(self, name: str, error: CacheError) -> None:
        """A request could not be loaded, and nothing is written to its blocks any more."""
        _log.warning("request %s: its cache could not be loaded: %s", name, error)
        with self.lock:
            self._outcome.received.add(name)
            self._outcome.failed.add(name)
            self._counts.add("failed")

    def count(self, name: str, value: float = 1) -> None:
        """Count something, by the names of `Counts`."""
        with self.lock:
            self._counts.add(name, value)

    def loaded(self, nbytes: int, pieces: int, seconds: float) -> None:
        """Count a load."""
        for name, value in (("loads", 1), ("bytes", nbytes), ("pieces", pieces), ("seconds", seconds)):
            self.count(name, value)

    def take(self) -> Outcome:
        """What has happened since the last call."""
        with self.lock:
            outcome, self._outcome = self._outcome, Outcome()
        return outcome

    def take_counts(self) -> Counts:
        """What was counted since the last call."""
        with self.lock:
            counts, self._counts = self._counts, Counts()
        return counts
