"""The half of the connector that moves bytes: registered caches, links, and leases on what others fetch."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
import torch
from vllm.logger import init_logger

from cachefw.cache import Cache
from cachefw.errors import BrokenError, CacheError
from cachefw.integrations.vllm import caches, words
from cachefw.integrations.vllm.exchange import Handshake, Hold
from cachefw.integrations.vllm.ledger import Ledger
from cachefw.integrations.vllm.memory import TransportMemory
from cachefw.integrations.vllm.outcome import Outcome, Outcomes
from cachefw.integrations.vllm.peers import Peers
from cachefw.integrations.vllm.pulling import Pulls
from cachefw.integrations.vllm.receiving import Arrivals
from cachefw.integrations.vllm.sending import Sends
from cachefw.integrations.vllm.settings import Settings
from cachefw.integrations.vllm.stats import Counts
from cachefw.integrations.vllm.steps import Load, Step
from cachefw.links.link import Link
from cachefw.memory import MemoryKind
from cachefw.node import Node
from cachefw.rules import Limits

__all__ = ["Worker"]

_log = init_logger("vllm.cachefw")

#: The engine is what limits how much memory there is.
_LIMITS = Limits(addresses=2**20, device_bytes=2**62, host_bytes=2**62, source="the engine's own configuration")


class Worker:
    """One rank's node and caches.

    Every public method is called from the engine's thread; none of them waits.

    Args:
        settings: The instance's settings.
        rank: Which of the instance's ranks this is: it fetches from the same rank of others.
        shape: What is known of the caches before they are made; see `exchange.differences`.
        block_size: Tokens in a block, where all layers make one group; else None.
    """

    def __init__(self, settings: Settings, rank: int, shape: Mapping[str, Any], block_size: int | None) -> None:
        self._settings = settings
        self._rank = rank
        self._shape = dict(shape)
        self._block_size = block_size
        # 63 bits of chance tell apart all instances that ever meet.
        cluster = int.from_bytes(os.urandom(8), "little") >> 1
        self._node = Node(
            cluster,
            settings.listen,
            transports=settings.transports,
            settings=settings.settings,
            limits=_LIMITS,
            secret=settings.secret_file,
        )
        self._peers = Peers(self._node, settings.link_timeout)
        self._memory: TransportMemory | None = None
        self._caches: list[Cache] = []
        self._outcomes = Outcomes()
        self._lock = self._outcomes.lock
        self._sends: Sends | None = None
        self._device: torch.device | None = None
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
        every = [len(cache.tensor_addrs) * cache.cache_desc.stride for cache in self._caches]
        over = self._let_go_there
        self._pulls = Pulls(self._node, self._caches, self._ledger, self._outcomes, over, self._settings.timeout)
        self._arrivals = Arrivals(self._outcomes, over, self._settings.timeout, sum(every))
        device = next(iter(kv_caches.values())).device
        self._device = None if device.type == "cpu" else device
        if self._settings.mode == "push":
            self._sends = Sends(
                self._node,
                self._caches,
                caches.tables(kv_caches, self._caches),
                self._block_size,
                self._outcomes,
                self._release,
                self._ledger.is_over,
                self._settings.timeout,
                self._listen,
            )
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

    def before(self, step: Step) -> None:
        """A step begins: what it computes may be written to others meanwhile."""
        if self._sends is not None and (step.computing or step.preempted or step.dropped):
            self._sends.step(step.computing, step.preempted, step.dropped)

    def layer(self, name: str) -> None:
        """The step has computed a layer."""
        if self._sends is not None and self._sends.running:
            self._sends.layer(name, self._event())

    def end_step(self) -> None:
        """The step has computed everything."""
        if self._sends is not None and self._sends.running:
            self._sends.end_step(self._event())

    def _event(self) -> Any:
        """What tells when the device has done what it was told so far; None where it has."""
        if self._device is None:
            return None
        event = torch.get_device_module(self._device).Event()
        event.record()
        return event

    def start(self, step: Step) -> None:
        """Begin what the scheduler asks for."""
        now = time.monotonic()
        with self._lock:
            for name, hold in step.holds.items():
                self._ledger.keep(hold.slot, hold.use)
                self._held[name] = now + hold.seconds, hold
                whole = step.whole.get(name)
                called = (name,) if whole is None else (name, "@" + whole.transfer)
                early = [self._early.pop(one) for one in called if one in self._early]
                if self._sends is not None and whole is not None:
                    self._sends.keep(name, whole)
                if early and name in self._held:
                    self._let_go(name)
        begin = self._pulls.begin if self._sends is None else self._arrivals.begin
        for name, load in step.loads.items():
            if load.fault is not None:
                self._outcomes.fail(name, BrokenError(load.fault, operation="vllm"))
            elif not load.local and not load.pairs:
                self._let_go_there(load)
                self._outcomes.received(name)
            else:
                self._peers.with_link(load.cards[self._rank], partial(begin, name, load))
        for cards, request in step.releases:
            self._tell(cards, words.Release(request))
        for cards, request in step.renewals:
            self._tell(cards, words.Renew(request))

    def _let_go_there(self, load: Load) -> None:
        self._tell(load.cards, words.Release(load.request))

    def _tell(self, cards: list[bytes], word: words.Word) -> None:
        def send(link: Link | None, _error: CacheError | None) -> None:
            if link is None:
                # Whoever cannot be reached lets go when the lease runs out.
                return
            try:
                link.notify(words.encode(word))
            except CacheError as error:
                _log.debug("%s was not told %s: %s", link.peer_name, word, error)

        self._peers.with_link(cards[self._rank], send)

    def ended(self, names: Iterable[str]) -> None:
        """These requests have ended, some of them before they were loaded."""
        if self._sends is not None:
            self._arrivals.cancel(names)

    def outcome(self) -> Outcome:
        """What has happened since the last call. Each request is named once, and never while bytes may still land."""
        # Who posted them has heard of them already.
        self._node.completed()
        if self._sends is None:
            self._listen()
        now = time.monotonic()
        with self._lock:
            for name in [name for name, (until, _) in self._held.items() if until < now]:
                if self._sends is not None and self._sends.busy(name):
                    # Somebody came in time; it ends when the last byte is there, or with the link.
                    continue
                self._let_go(name)
                self._outcomes.count("expired")
                _log.warning("request %s: nobody came for its cache in time; its blocks are free", name)
            if self._early:
                self._early = {name: until for name, until in self._early.items() if until >= now}
        self._pulls.give_up(now)
        self._arrivals.give_up(now)
        return self._outcomes.take()

    def _let_go(self, name: str) -> None:
        """Blocks that were kept are free from now on; with the lock held. Whoever reads them still will see it."""
        _, hold = self._held.pop(name)
        self._ledger.over(hold.slot, hold.use)
        if self._sends is not None:
            self._sends.forget(name)
        self._outcomes.sent(name)

    def take_counts(self) -> Counts:
        """What was counted since the last call."""
        return self._outcomes.take_counts()

    # ------------------------------------------------------------------ words of other instances

    def _listen(self) -> None:
        for notification in self._node.notifications():
            try:
                word = words.decode(notification.payload)
            except msgspec.MsgspecError as error:
                _log.warning("cluster %d said what means nothing here: %s", notification.cluster_id, error)
                continue
            self._heard(notification.cluster_id, word)

    def _heard(self, cluster_id: int, word: words.Word) -> None:
        if isinstance(word, words.Release):
            self._release(word.request)
        elif isinstance(word, words.Renew):
            self._renew(word.request)
        elif isinstance(word, words.Done):
            self._arrivals.done(cluster_id, word)
        elif isinstance(word, words.Failed):
            self._arrivals.failed(cluster_id, word)
        elif self._sends is None:
            _log.warning(
                'cluster %d wants blocks written, which this instance does not do: its mode is "pull"', cluster_id
            )
        elif isinstance(word, words.Want):
            self._sends.wanted(cluster_id, word)
        else:
            self._sends.stop(cluster_id, word.token)

    def _name_of(self, called: str) -> str:
        return called if self._sends is None else self._sends.name_of(called)

    def _release(self, called: str) -> None:
        with self._lock:
            name = self._name_of(called)
            if name not in self._held:
                # It came before the step in which the scheduler says that the blocks are kept, or long after.
                self._early[name] = time.monotonic() + self._settings.lease
            elif self._sends is None or not self._sends.busy(name):
                self._let_go(name)

    def _renew(self, called: str) -> None:
        with self._lock:
            name = self._name_of(called)
            if name in self._held:
                hold = self._held[name][1]
                self._held[name] = time.monotonic() + hold.seconds, hold

    def close(self) -> None:
        """Give everything back."""
        self._peers.close()
        if self._sends is not None:
            self._sends.close()
        self._node.close()
