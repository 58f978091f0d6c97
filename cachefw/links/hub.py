"""All links of one node: one for each peer, and telling peers what memory comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from cachefw.cache import Cache
from cachefw.config import setting
from cachefw.errors import BrokenError, CacheError, ClosedError, NotFoundError, TransferTimeout
from cachefw.links import messages
from cachefw.links.answers import Answers
from cachefw.links.aside import aside
from cachefw.links.link import Link, LinkState
from cachefw.links.pulse import Pulse
from cachefw.links.reporting import ObservedChannel, Observer
from cachefw.links.snapshot import snapshot
from cachefw.links.transfers import LinkTransfer
from cachefw.links.wire import Wire
from cachefw.logs import event
from cachefw.manager import CacheManager
from cachefw.metrics import Counters, Stats
from cachefw.published import PublishedCache, PublishedMemory
from cachefw.registry import Memory, MemoryState
from cachefw.staging import Detour
from cachefw.transport import Channel

__all__ = ["Hub"]

_Introduction = TypeVar("_Introduction", messages.Introduce, messages.Accept)


class Hub:
    """The links of one node, by the peer's cluster id.

    Coroutines and the `LinkOwner` callbacks run in the loop's thread; what a manager asks of its peers may be called
    from any other.

    Args:
        cluster_id: This node's.
        manager: Its manager.
        loop: The loop of the node's background thread.
        on_change: Told of each link whose state changed.
        on_notify: Given each notification.
        on_finish: Given each transfer that nobody waits for, once it settled.
        security: What links report of how peers prove who they are.
        counters: Where it counts what happens.
        observer: Told of each transfer; None when nobody observes them.
        metrics: Whether transfers are counted.
    """

    def __init__(
        self,
        cluster_id: int,
        manager: CacheManager,
        loop: asyncio.AbstractEventLoop,
        on_change: Callable[[Link], None],
        on_notify: Callable[[Link, bytes], None],
        on_finish: Callable[[LinkTransfer], None],
        security: str,
        counters: Counters,
        observer: Observer | None = None,
        *,
        metrics: bool = False,
    ) -> None:
        self.cluster_id = cluster_id
        self.manager = manager
        self.loop = loop
        self.registry = manager.registry
        self.incarnation = os.urandom(16)
        self.security = security
        self.lease = float(setting("lease"))
        #: Where this node takes links; 0: nowhere.
        self.port = 0
        self.links: dict[int, Link] = {}
        self.notified = on_notify
        self.transfer_finished = on_finish
        self._on_change = on_change
        self.counters = counters
        self._observer = observer
        self._metrics = metrics
        self._tasks: set[asyncio.Task[Any]] = set()
        self._arrivals: dict[bytes, list[asyncio.Future[Link]]] = {}
        self._questions = Answers(manager, self.stats)
        # Links whose tables are being exchanged.
        self._forming: set[Link] = set()
        # Links that ended, while something that the peer asked for may still move.
        self._parting: set[Link] = set()
        self._pulse = Pulse(loop, self.links.values)

    # ------------------------------------------------------------------ making and ending links

    def known(self, incarnation: bytes) -> Link | None:
        """The link to that start of a peer, if it is up."""
        for link in self.links.values():
            if link.incarnation == incarnation and link.state is LinkState.UP:
                return link
        return None

    def introduction(self, kind: Callable[..., _Introduction], transports: Sequence[Any]) -> _Introduction:
        """Who this node is, for a peer."""
        return kind(self.cluster_id, self.incarnation, self.manager.software, self.lease, self.port, list(transports))

    async def establish(
        self,
        wire: Wire,
        channel: Channel,
        transport: str,
        peer: messages.Introduce | messages.Accept,
        *,
        dialled: bool,
    ) -> Link:
        """Exchange tables over a wire whose handshake is done; the link is up when both sides have said so.

        The one that was dialled says so last, and only when its end is up: who dialled may rely on both.

        Raises:
            BrokenError: The peer went away meanwhile.
        """
        if self._observer is not None:
            name = f"cluster {peer.cluster_id} at {wire.name}"
            channel = ObservedChannel(channel, self._observer, name, peer.cluster_id, transport)
        link = Link(self, channel, transport, peer, wire, self.lease, self.security)
        link.owns_wire = dialled
        # Filed before the snapshot is taken, so that what comes or goes from now on reaches it as well.
        self._forming.add(link)
        try:
            for publication in self._publications(self.manager.memories, self.manager.caches.values()):
                link.send(publication)
            if dialled:
                link.send(messages.Ready())
            while not isinstance(message := await wire.receive(), messages.Ready):
                link.handle(message)
                link.check_up("link")
            await self._oust(link)
        except BaseException as error:
            if dialled:
                # The peer may have taken the link for up already.
                self.spawn(self._hear_out(link, lost=_is_lost(error)))
            else:
                link.gone.set()
            link.end(LinkState.BROKEN, f"the handshake failed: {error}")
            raise
        finally:
            self._forming.discard(link)
        self.links[peer.cluster_id] = link
        link.owns_wire = True
        if not dialled:
            link.send(messages.Ready())
        wire.trust_no_more()
        wire.limit_silence(2 * max(self.lease, peer.lease) + self.manager.link_timeout)
        self.spawn(self._converse(link, wire))
        for waiter in self._arrivals.pop(peer.incarnation, ()):
            if not waiter.done():
                waiter.set_result(link)
        self._pulse.start(link)
        self.counters.count("links_made")
        self._log(link, "link.up")
        self._on_change(link)
        return link

    async def _oust(self, link: Link) -> None:
        """Make room for a link to a cluster that is linked: its former start is gone, or it is another process.

        Raises:
            BrokenError: The former is there, and answers.
        """
        while (old := self.links.get(link.cluster_id)) is not None and old.state is LinkState.UP:
            try:
                await old.ask(messages.Sync, timeout=min(1.0, self.manager.link_timeout))
            except CacheError:
                old.end(LinkState.BROKEN, "the peer was restarted", goodbye="this cluster id has linked anew")
            else:
                text = f"cluster id {link.cluster_id} is taken: {old.peer_name} has it, is linked, and answers"
                raise BrokenError(text, code="link.same_cluster", operation="link")

    async def arrival(self, incarnation: bytes, timeout: float) -> Link | None:
        """The link that another handshake with the same peer makes, or has made; None when it does not come in time."""
        link = self.known(incarnation)
        if link is not None:
            return link
        waiter: asyncio.Future[Link] = self.loop.create_future()
        self._arrivals.setdefault(incarnation, []).append(waiter)
        await asyncio.wait([waiter], timeout=timeout)
        return waiter.result() if waiter.done() else None

    async def _converse(self, link: Link, wire: Wire) -> None:
        lost = False
        try:
            while not isinstance(message := await wire.receive(), messages.Settled):
                link.heard = self.loop.time()
                if link.state is LinkState.UP:
                    link.handle(message)
            link.end(LinkState.BROKEN, "the peer closed it")
            lost = True
        except (CacheError, OSError) as error:
            lost = _is_lost(error)
            link.end(LinkState.BROKEN, str(error), goodbye=None if lost else f"it sent what it must not: {error}")
        finally:
            await self._hear_out(link, lost=lost)

    async def _hear_out(self, link: Link, *, lost: bool) -> None:
        """Wait until the peer of an ended link can touch nothing any more.

        It says so when its channel is down; or it has closed the connection, which its kernel does for it when it dies.
        """
        if not lost:
            await link.wire.until_over()
        link.gone.set()

    def link_ended(self, link: Link) -> None:
        """Forget a link, and part from its peer in the background."""
        self._parting.add(link)
        self.spawn(self._part(link))
        if self._questions.lent(link):
            self.spawn(aside(self._questions.take_back, link))
        if self.links.get(link.cluster_id) is link:
            del self.links[link.cluster_id]
            broken = link.state is LinkState.BROKEN
            self.counters.count("links_broken" if broken else "links_closed")
            self._log(link, "link.ended")
            self._on_change(link)

    @staticmethod
    def _log(link: Link, name: str) -> None:
        state = link.state.value
        event(
            logging.INFO,
            name,
            "the link to %s by %s is %s",
            link.peer_name,
            link.transport,
            f"{state}: {link.reason}" if link.reason else state,
            cluster_id=link.cluster_id,
            peer=link.peer_name,
            transport=link.transport,
            security=link.security,
            state=state,
            reason=link.reason,
        )

    def asked(self, link: Link, question: messages.Question) -> None:
        """Answer beside the loop: it may register memory. Only links that are up get here."""
        self.spawn(self._answer(link, question))

    async def _answer(self, link: Link, question: messages.Question) -> None:
        body = await aside(self._questions.to, link, question.what)
        link.send(messages.Answer(question.serial, body))

    async def _part(self, link: Link) -> None:
        """Close the channel where that may block; tell the peer that it is down; keep the link until the peer's is."""
        await aside(link.close_channel)
        if not link.owns_wire:
            self._parting.discard(link)
            return
        try:
            with contextlib.suppress(OSError):
                link.wire.send(messages.Settled())
                link.wire.say_no_more()
            if link.channel.fences:
                link.gone.set()
            await link.gone.wait()
        finally:
            link.wire.close()
            self._parting.discard(link)
            await link.wire.closed()

    def detour(self, transport: str, channel: Channel) -> Detour:
        """How memory is moved over a channel that its transport does not take."""
        make = functools.partial(self.manager.staging, transport)
        return channel.around(make) if isinstance(channel, ObservedChannel) else make(channel)

    async def unlink(self, link: Link, reason: str) -> None:
        """Close one link on purpose, and wait until the peer's end is down too, unless the peer does not answer."""
        link.end(LinkState.CLOSED, "it was closed on this side", goodbye=reason)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(link.gone.wait(), self.manager.link_timeout)
        # The channel is closed once, in a thread of its own; closing again only waits for that.
        await aside(link.close_channel)

    async def close(self, reason: str) -> None:
        """Close every link, and wait for what that leaves to do."""
        self._pulse.stop()
        await asyncio.gather(*(self.unlink(link, reason) for link in self._everyone()))
        # Nobody asks any more what a silent peer may touch.
        for link in list(self._parting):
            link.wire.close()
            link.gone.set()
        mine = asyncio.current_task()
        pending = [task for task in self._tasks if task is not mine]
        if pending:
            await asyncio.wait(pending, timeout=self.manager.link_timeout)
        for task in list(self._tasks):
            if task is not mine:
                task.cancel()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something in the background, until `close`."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------ the manager's peers, from any thread

    def linked(self) -> bool:
        """Whether a link exists, or is being made."""
        return bool(self.links or self._forming)

    def stats(self) -> Stats:
        """What `Node.stats` gives."""
        return snapshot(self, metrics=self._metrics)

    def watched(self) -> list[Link]:
        """The links that are up, and those that are not quite over."""
        return [*list(self.links.values()), *self._parting.copy()]

    def _everyone(self) -> list[Link]:
        return [*self.links.values(), *self._forming]

    def peer(self, cluster_id: int) -> Link:
        """The link to a cluster.

        Raises:
            NotFoundError: There is none; the text lists those that exist.
        """
        link = self.links.get(cluster_id)
        if link is None:
            have = ", ".join(f"cluster {number}" for number in sorted(self.links)) or "none"
            own = " (this node's own id)" if cluster_id == self.cluster_id else ""
            raise NotFoundError(
                f"no link to cluster {cluster_id}{own}; linked are: {have}", code="not_found.link", operation="pull"
            )
        return link

    def publish(self, memories: Sequence[Memory], caches: Sequence[Cache]) -> None:
        """Tell every peer of new memory and caches."""
        if not self.linked():
            return
        frames = list(self._publications(memories, caches))
        self.loop.call_soon_threadsafe(self._tell, frames)

    def _publications(self, memories: Iterable[Memory], caches: Iterable[Cache]) -> Iterator[messages.Publish]:
        return messages.publications(
            [
                PublishedMemory(
                    memory.memory_id,
                    memory.region.address,
                    memory.region.length,
                    memory.region.kind.value,
                    memory.region.access.value,
                    {name: self.manager.transport(name).describe(held) for name, held in memory.registered.items()},
                )
                for memory in memories
                if memory.remote_accessible and memory.state is MemoryState.LIVE
            ],
            [
                PublishedCache(
                    cache.cache_id,
                    cache.is_blocks_cache,
                    cache.cache_desc.batch_size,
                    cache.cache_desc.stride,
                    cache.tensor_addrs,
                    tuple(self.registry.names_of(cache)),
                )
                for cache in caches
                if cache.remote_accessible
            ],
        )

    def _tell(self, frames: Sequence[messages.Publish]) -> None:
        for link in self._everyone():
            for frame in frames:
                link.send(frame)

    def republish(self, memories: Sequence[Memory], caches: Sequence[Cache]) -> None:
        """Tell every peer of memory, and of new names for caches; returns when all have taken note.

        Raises:
            TransferTimeout: A peer did not confirm it.
        """
        if self.linked():
            frames = list(self._publications(memories, caches))
            asyncio.run_coroutine_threadsafe(self._settle(frames), self.loop).result()

    async def _settle(self, frames: Sequence[messages.Publish]) -> None:
        self._tell(frames)
        # Frames are handled in order, so the answer comes after them.
        await self._gather(link.ask(messages.Sync) for link in self._everyone())

    def withdraw(self, memories: Sequence[Memory], caches: Sequence[Cache]) -> None:
        """Have every peer let go; returns when none can touch the memory any more.

        Raises:
            TransferTimeout: A peer did not confirm it.
        """
        memory_ids = [memory.memory_id for memory in memories if memory.remote_accessible]
        cache_ids = [cache.cache_id for cache in caches if cache.remote_accessible]
        if (self.linked() or self._parting) and (memory_ids or cache_ids):
            asyncio.run_coroutine_threadsafe(self._withdraw(memory_ids, cache_ids), self.loop).result()

    async def _withdraw(self, memory_ids: list[int], cache_ids: list[int]) -> None:
        links = self._everyone()
        asked = [link.ask(messages.Withdraw, memory_ids, cache_ids) for link in links]
        for link, outcome in zip(links, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if outcome is None:
                link.published.difference_update(memory_ids)
            elif not isinstance(outcome, (BrokenError, ClosedError)):
                raise outcome
        await self._await_parting(frozenset(memory_ids))

    @staticmethod
    async def _gather(asked: Iterable[Coroutine[Any, Any, None]]) -> None:
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            # A peer that is gone knows nothing any more; one that is silent may.
            if isinstance(outcome, BaseException) and not isinstance(outcome, (BrokenError, ClosedError)):
                raise outcome

    async def _await_parting(self, memory_ids: frozenset[int]) -> None:
        """Wait until no link that ended can touch the memory.

        Raises:
            TransferTimeout: A peer is silent, and alive as far as anybody knows.
        """
        limit = self.manager.link_timeout
        parting = [link for link in self._parting if not memory_ids.isdisjoint(link.published)]
        waits = [asyncio.ensure_future(link.gone.wait()) for link in parting]
        if waits:
            await asyncio.wait(waits, timeout=limit)
        for link, wait in zip(parting, waits, strict=True):
            if not wait.done():
                wait.cancel()
                raise TransferTimeout(
                    f"{link.peer_name} could reach this memory when its link ended ({link.reason}), and has not said "
                    "that it is done with it; it will when it runs again, or when it has ended",
                    code="link.unsettled",
                    operation="withdraw",
                    peer=link.peer_name,
                )

    def busy(self, memories: Sequence[Memory]) -> str | None:
        """In words, a transfer that uses some of the memory now, or None."""
        wanted = set(memories)
        for link in list(self.links.values()) + list(self._parting):
            for prepared in list(link.inflight.values()):
                if not wanted.isdisjoint(prepared.memories):
                    return f"the {prepared.what}"
        return None


def _is_lost(error: BaseException) -> bool:
    """Whether an error means that the connection is gone, rather than that the peer said something."""
    return isinstance(error, OSError) and getattr(error, "code", "link.lost") == "link.lost"
