"""Loads that the decode instance does itself: it reads the blocks, and then whether they were kept meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import attrs
from vllm.logger import init_logger

from cachefw.cache import BlocksCacheKey, Cache
from cachefw.errors import BrokenError, CacheError
from cachefw.integrations.vllm.ledger import LEDGER, Ledger
from cachefw.integrations.vllm.outcome import Outcomes
from cachefw.integrations.vllm.steps import Load
from cachefw.links.link import Link
from cachefw.links.transfers import LinkTransfer
from cachefw.node import Node

__all__ = ["Pulls"]

_log = init_logger("vllm.cachefw")


@attrs.define(eq=False)
class _Running:
    """A load under way: since when, and how many of its transfers have not settled.

    First the blocks are read, then the slot that says whether they were kept meanwhile, to the place `room`.
    """

    load: Load
    link: Link
    begun: float
    transfers: list[LinkTransfer] = attrs.field(factory=list)
    # The first is the posting itself.
    unsettled: int = 1
    error: CacheError | None = None
    late: bool = False
    room: int | None = None


class Pulls:
    """Reads blocks of other instances.

    Args:
        node: Whose links.
        caches: What is read to.
        ledger: Where slots are read to.
        outcomes: Where requests are reported, each once, and never while bytes may still land.
        over: Called with a load that has ended.
        timeout: Seconds that one load may take.
    """

    def __init__(
        self,
        node: Node,
        caches: Sequence[Cache],
        ledger: Ledger,
        outcomes: Outcomes,
        over: Callable[[Load], None],
        timeout: float,
    ) -> None:
        self._node = node
        self._caches = caches
        self._ledger = ledger
        self._outcomes = outcomes
        self._over = over
        self._timeout = timeout
        self._lock = outcomes.lock
        self._loads: dict[str, _Running] = {}

    def begin(self, name: str, load: Load, link: Link | None, error: CacheError | None) -> None:
        """Post a load: from the engine's thread where the link is up, else from the one that made it."""
        if link is None:
            self._outcomes.fail(name, error or BrokenError("there is no link", operation="vllm"))
            return
        running = _Running(load, link, time.monotonic())
        with self._lock:
            self._loads[name] = running
            try:
                for number, cache in enumerate(self._caches):
                    self._pull(name, running, number, cache, load.remote, load.local)
            except CacheError as failure:
                running.error = failure
        self._one_less(name, running)

    def _pull(self, name: str, running: _Running, model: int, cache: Cache, there: list[int], here: list[int]) -> None:
        """Post one transfer of a load; with the lock held."""
        key = BlocksCacheKey(running.link.cluster_id, model)
        transfer = self._node.cache_manager.pull_blocks(key, cache, there, here, wait=False)
        assert isinstance(transfer, LinkTransfer)  # noqa: S101 - a node's pulls go over links
        running.transfers.append(transfer)
        running.unsettled += 1
        transfer.add_done_callback(lambda _: self._settled(name, running, transfer))

    def _settled(self, name: str, running: _Running, transfer: LinkTransfer) -> None:
        """Called from any thread."""
        with self._lock:
            running.error = running.error or transfer.error
        self._one_less(name, running)

    def _one_less(self, name: str, running: _Running) -> None:
        """One thing less to wait for: a transfer, or the posting of all."""
        with self._lock:
            running.unsettled -= 1
            if running.unsettled:
                return
            if running.late and running.error is None:
                running.error = BrokenError(f"it took longer than {self._timeout:g} s", operation="vllm")
            if running.error is None and running.room is None:
                try:
                    running.room = self._ledger.take_room()
                    running.unsettled += 1
                    target, slot = self._ledger.target, running.load.slot
                    self._pull(name, running, LEDGER, target, [slot], [running.room])
                except CacheError as error:
                    running.error = error
                # Again, with the slot read, or with nothing more to wait for.
                self._one_less(name, running)
                return
            del self._loads[name]
            if running.room is not None and not self._ledger.kept(running.room, running.load.use):
                running.error = running.error or BrokenError(
                    "its blocks were given away before they were all read: the lease of the prefill instance ran out",
                    operation="vllm",
                )
        if running.error is not None:
            self._outcomes.fail(name, running.error)
        else:
            self._outcomes.received(name)
            transfers = running.transfers
            self._outcomes.loaded(
                sum(one.nbytes for one in transfers),
                sum(one.pieces for one in transfers),
                time.monotonic() - running.begun,
            )
        self._over(running.load)

    def give_up(self, now: float) -> None:
        """Cancel loads that take too long, where that is possible; they are reported when they have settled."""
        with self._lock:
            late = [one for one in self._loads.values() if one.begun + self._timeout < now and not one.late]
            transfers = [transfer for running in late for transfer in running.transfers]
            for running in late:
                running.late = True
        for transfer in transfers:
            try:
                transfer.cancel()
            except CacheError as error:
                _log.debug("cannot cancel: %s", error)
