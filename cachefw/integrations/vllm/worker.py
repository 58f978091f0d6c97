"""The half of the connector that moves bytes: registered caches, links, transfers, and leases on what others fetch."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import attrs
import torch
from vllm.logger import init_logger

from cachefw.cache import BlocksCacheKey, Cache
from cachefw.errors import BrokenError, CacheError
from cachefw.integrations.vllm import caches
from cachefw.integrations.vllm.exchange import Handshake, Hold
from cachefw.integrations.vllm.ledger import LEDGER, Ledger
from cachefw.integrations.vllm.memory import TransportMemory
from cachefw.integrations.vllm.peers import Peers
from cachefw.integrations.vllm.settings import Settings
from cachefw.integrations.vllm.stats import Counts
from cachefw.integrations.vllm.steps import Load, Step
from cachefw.links.link import Link
from cachefw.links.transfers import LinkTransfer
from cachefw.memory import MemoryKind
from cachefw.node import Node
from cachefw.rules import Limits

__all__ = ["Outcome", "Worker"]

_log = init_logger("vllm.cachefw")

_RELEASE, _RENEW = b"free:", b"keep:"
#: The engine is what limits how much memory there is.
_LIMITS = Limits(addresses=2**20, device_bytes=2**62, host_bytes=2**62, source="the engine's own configuration")


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


@attrs.define(eq=False)
class _Running:
    """A load under way: since when, and how many of its transfers have not settled.

    First the blocks are read, then the slot that says whether they were kept meanwhile, to the place `room`.
    """

    load: Load
    link: Link
    begun: float
    transfers: list[LinkTransfer] = attrs.field(factory=list)
    unsettled: int = 0
    error: CacheError | None = None
    late: bool = False
    room: int | None = None


class Worker:
    """One rank's node and caches.

    Every public method is called from the engine's thread; none of them waits.

    Args:
        settings: The instance's settings.
        rank: Which of the instance's ranks this is: it fetches from the same rank of others.
        shape: What is known of the caches before they are made; see `exchange.differences`.
    """

    def __init__(self, settings: Settings, rank: int, shape: Mapping[str, Any]) -> None:
        self._settings = settings
        self._rank = rank
        self._shape = dict(shape)
        # 63 bits of chance tell apart all instances that ever meet.
        cluster = int.from_bytes(os.urandom(8), "little") >> 1
        self._node = Node(
            cluster, settings.listen, transports=settings.transports, settings=settings.settings, limits=_LIMITS
        )
        self._peers = Peers(self._node, settings.link_timeout)
        self._memory: TransportMemory | None = None
        self._caches: list[Cache] = []
        # Guards what transfers and links, which are posted and made in other threads too, leave for the next step.
        self._lock = threading.Lock()
        self._loads: dict[str, _Running] = {}
        self._names: dict[LinkTransfer, str] = {}
        self._outcome = Outcome()
        self._counts = Counts()
        self._held: dict[str, tuple[float, Hold]] = {}
        self._early: dict[str, float] = {}

    # ------------------------------------------------------------------ memory

    def memory(self) -> TransportMemory | None:
        """A context for the engine to make its cache in; None leaves it to the engine."""
        if self._settings.memory == "engine":
            return None
        self._memory = TransportMemory(partial(self._node.cache_manager.allocate, kind=MemoryKind.HOST))
        return self._memory

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Register the engine's tensors, by layer.

        Raises:
            RegistrationError: They break a rule of the transport; the text lists all that do.
            RequestError: Their layout is not supported.
        """
        manager = self._node.cache_manager
        self._caches = caches.register(manager, self._node.cluster_id, kv_caches)
        self._ledger = Ledger(manager, self._node.cluster_id)
        self._shape["tensors"] = [[len(cache.tensor_addrs), cache.cache_desc.stride] for cache in self._caches]
        made = (
            "memory of the transport"
            if self._memory is not None and self._memory.allocations
            else "the engine's memory"
        )
        _log.info(
            "%d layers in %s, reached at %s over %s",
            len(kv_caches),
            made,
            self._node.address,
            ", ".join(self._node.cache_manager.transports),
        )

    def handshake(self) -> Handshake:
        """How other instances reach this rank, and what its caches are."""
        return Handshake(self._node.card(), self._shape)

    # ------------------------------------------------------------------ a step

    def start(self, step: Step) -> None:
        """Begin what the scheduler asks for."""
        now = time.monotonic()
        with self._lock:
            for name, hold in step.holds.items():
                self._ledger.keep(hold.slot, hold.use)
                self._held[name] = now + hold.seconds, hold
                if self._early.pop(name, None) is not None:
                    self._let_go(name)
        for name, load in step.loads.items():
            if load.fault is not None:
                self._fail(name, BrokenError(load.fault, operation="vllm"))
            elif not load.local:
                self._tell(load.cards, _RELEASE + load.request.encode())
                with self._lock:
                    self._outcome.received.add(name)
            else:
                self._peers.with_link(load.cards[self._rank], partial(self._begin, name, load))
        for cards, request in step.releases:
            self._tell(cards, _RELEASE + request.encode())
        for cards, request in step.renewals:
            self._tell(cards, _RENEW + request.encode())

    def _begin(self, name: str, load: Load, link: Link | None, error: CacheError | None) -> None:
        """Post a load: from the engine's thread where the link is up, else from the one that made it."""
        if link is None:
            self._fail(name, error or BrokenError("there is no link", operation="vllm"))
            return
        running = _Running(load, link, time.monotonic())
        with self._lock:
            self._loads[name] = running
            try:
                for number, cache in enumerate(self._caches):
                    self._pull(name, running, number, cache, load.remote, load.local)
            except CacheError as failure:
                running.error = failure
            if not running.unsettled:
                del self._loads[name]
        if not running.unsettled:
            self._fail(name, running.error or BrokenError("there is nothing to load", operation="vllm"))

    def _pull(self, name: str, running: _Running, model: int, cache: Cache, there: list[int], here: list[int]) -> None:
        """Post one transfer of a load; with the lock held, so that it is known before anybody hears that it settled."""
        key = BlocksCacheKey(running.link.cluster_id, model)
        transfer = self._node.cache_manager.pull_blocks(key, cache, there, here, wait=False)
        assert isinstance(transfer, LinkTransfer)  # noqa: S101 - a node's pulls go over links
        self._names[transfer] = name
        running.transfers.append(transfer)
        running.unsettled += 1

    def _fail(self, name: str, error: CacheError) -> None:
        _log.warning("request %s: its cache could not be loaded: %s", name, error)
        with self._lock:
            self._outcome.received.add(name)
            self._outcome.failed.add(name)
            self._counts.add("failed")

    def _tell(self, cards: list[bytes], payload: bytes) -> None:
        def send(link: Link | None, _error: CacheError | None) -> None:
            if link is None:
                # Whoever cannot be reached lets go when the lease runs out.
                return
            try:
                link.notify(payload)
            except CacheError as error:
                _log.debug("%s was not told %r: %s", link.peer_name, payload, error)

        self._peers.with_link(cards[self._rank], send)

    def outcome(self) -> Outcome:
        """What has happened since the last call. Each request is named once, and never while bytes may still land."""
        while settled := self._node.completed():
            for transfer in settled:
                self._settled(transfer)
        for notification in self._node.notifications():
            self._heard(notification.payload)
        now = time.monotonic()
        with self._lock:
            for name in [name for name, (until, _) in self._held.items() if until < now]:
                self._let_go(name)
                self._counts.add("expired")
                _log.warning("request %s: nobody came for its cache in time; its blocks are free", name)
            self._early = {name: until for name, until in self._early.items() if until >= now}
            late = [
                running
                for running in self._loads.values()
                if running.begun + self._settings.timeout < now and not running.late
            ]
            outcome, self._outcome = self._outcome, Outcome()
        for running in late:
            self._give_up(running)
        return outcome

    def _let_go(self, name: str) -> None:
        """Blocks that were kept are free from now on; with the lock held. Whoever reads them still will see it."""
        _, hold = self._held.pop(name)
        self._ledger.over(hold.slot, hold.use)
        self._outcome.sent.add(name)

    def _settled(self, transfer: LinkTransfer) -> None:
        with self._lock:
            name = self._names.pop(transfer, None)
            if name is None:
                return
            running = self._loads[name]
            running.unsettled -= 1
            running.error = running.error or transfer.error
            if running.unsettled:
                return
            if running.late and running.error is None:
                running.error = BrokenError(f"it took longer than {self._settings.timeout:g} s", operation="vllm")
            if running.error is None and running.room is None:
                try:
                    running.room = self._ledger.take_room()
                    target, slot = self._ledger.target, running.load.slot
                    self._pull(name, running, LEDGER, target, [slot], [running.room])
                    return
                except CacheError as error:
                    running.error = error
            del self._loads[name]
            if running.room is not None and not self._ledger.kept(running.room, running.load.use):
                running.error = running.error or BrokenError(
                    "its blocks were given away before they were all read: the lease of the prefill instance ran out",
                    operation="vllm",
                )
            if running.error is None:
                self._outcome.received.add(name)
                self._count(running)
        if running.error is not None:
            self._fail(name, running.error)
        self._tell(running.load.cards, _RELEASE + running.load.request.encode())

    def _count(self, running: _Running) -> None:
        self._counts.add("loads")
        self._counts.add("bytes", sum(transfer.nbytes for transfer in running.transfers))
        self._counts.add("pieces", sum(transfer.pieces for transfer in running.transfers))
        self._counts.add("seconds", time.monotonic() - running.begun)

    def take_counts(self) -> Counts:
        """What was counted since the last call."""
        with self._lock:
            counts, self._counts = self._counts, Counts()
        return counts

    def _give_up(self, running: _Running) -> None:
        """A load that takes too long is cancelled where that is possible, and reported when it has settled."""
        running.late = True
        for transfer in running.transfers:
            try:
                transfer.cancel()
            except CacheError as error:
                _log.debug("cannot cancel: %s", error)

    def _heard(self, payload: bytes) -> None:
        kind, name = payload[:5], payload[5:].decode(errors="replace")
        with self._lock:
            if kind == _RELEASE:
                if name in self._held:
                    self._let_go(name)
                else:
                    # It came before the step in which the scheduler says that the blocks are kept, or long after.
                    self._early[name] = time.monotonic() + self._settings.lease
            elif kind == _RENEW and name in self._held:
                hold = self._held[name][1]
                self._held[name] = time.monotonic() + hold.seconds, hold

    def close(self) -> None:
        """Give everything back."""
        self._peers.close()
        self._node.close()
