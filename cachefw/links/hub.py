"""All links of one node: one for each peer, and telling peers what memory comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

from cachefw.cache import Cache
from cachefw.errors import BrokenError, CacheError, NotFoundError
from cachefw.links import messages
from cachefw.links.answers import Answers
from cachefw.links.aside import aside
from cachefw.links.link import Link, LinkState
from cachefw.links.reporting import ObservedChannel, Report
from cachefw.links.transfers import LinkTransfer
from cachefw.links.wire import Wire
from cachefw.manager import CacheManager
from cachefw.published import PublishedCache, PublishedMemory
from cachefw.registry import Memory, MemoryState
from cachefw.transport import Channel

__all__ = ["Hub"]


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
        on_report: Given a report of each transfer; None when nobody observes them.
    """

    def __init__(
        self,
        cluster_id: int,
        manager: CacheManager,
        loop: asyncio.AbstractEventLoop,
        on_change: Callable[[Link], None],
        on_notify: Callable[[Link, bytes], None],
        on_finish: Callable[[LinkTransfer], None],
        on_report: Report | None = None,
    ) -> None:
        self.cluster_id = cluster_id
        self.manager = manager
        self.loop = loop
        self.registry = manager.registry
        self.incarnation = os.urandom(16)
        self.links: dict[int, Link] = {}
        self.notified = on_notify
        self.transfer_finished = on_finish
        self._on_change = on_change
        self._on_report = on_report
        self._tasks: set[asyncio.Task[Any]] = set()
        self._arrivals: dict[bytes, list[asyncio.Future[Link]]] = {}
        self._questions = Answers(manager)
        # Links whose tables are being exchanged.
        self._forming: set[Link] = set()

    # ------------------------------------------------------------------ making and ending links

    def known(self, incarnation: bytes) -> Link | None:
        """The link to that start of a peer, if it is up."""
        for link in self.links.values():
            if link.incarnation == incarnation and link.state is LinkState.UP:
                return link
        return None

    async def establish(
        self, wire: Wire, channel: Channel, transport: str, peer: messages.Hello | messages.Accept
    ) -> Link:
        """Exchange tables over a wire whose handshake is done; the link is up when both sides have said so.

        The one that was dialled says so last, and only when its end is up: who dialled may rely on both.

        Raises:
            BrokenError: The peer went away meanwhile.
        """
        if self._on_report is not None:
            name = f"cluster {peer.cluster_id} at {wire.name}"
            channel = ObservedChannel(channel, self._on_report, name, peer.cluster_id, transport)
        link = Link(self, channel, transport, peer.cluster_id, peer.incarnation, wire.name, wire.writer)
        # Filed before the snapshot is taken, so that what comes or goes from now on reaches it as well.
        self._forming.add(link)
        try:
            for publication in self._publications(self.manager.memories, self.manager.caches.values()):
                link.send(publication)
            dialled = isinstance(peer, messages.Hello)
            if not dialled:
                link.send(messages.Ready())
            while not isinstance(message := await wire.receive(messages.LIMIT), messages.Ready):
                link.handle(message)
                link.check_up("link")
        except BaseException as error:
            link.end(LinkState.BROKEN, f"the handshake failed: {error}")
            link.gone.set()
            raise
        finally:
            self._forming.discard(link)
        old = self.links.get(peer.cluster_id)
        if old is not None:
            old.end(LinkState.BROKEN, "the peer was restarted")
        self.links[peer.cluster_id] = link
        if dialled:
            link.send(messages.Ready())
        self._spawn(self._converse(link, wire))
        for waiter in self._arrivals.pop(peer.incarnation, ()):
            if not waiter.done():
                waiter.set_result(link)
        self._on_change(link)
        return link

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
        try:
            while True:
                message = await wire.receive(messages.LIMIT)
                if link.state is LinkState.UP:
                    link.handle(message)
        except (CacheError, OSError) as error:
            link.end(LinkState.BROKEN, str(error))
        finally:
            wire.writer.close()
            link.gone.set()

    def link_ended(self, link: Link) -> None:
        """Forget a link, and close its channel where that may block."""
        self._spawn(aside(link.channel.close))
        if self._questions.lent(link):
            self._spawn(aside(self._questions.take_back, link))
        if self.links.get(link.cluster_id) is link:
            del self.links[link.cluster_id]
            self._on_change(link)

    def asked(self, link: Link, question: messages.Question) -> None:
        """Answer beside the loop: it may register memory. Only links that are up get here."""
        self._spawn(self._answer(link, question))

    async def _answer(self, link: Link, question: messages.Question) -> None:
        body = await aside(self._questions.to, link, question.what)
        link.send(messages.Answer(question.serial, body))

    async def unlink(self, link: Link, reason: str) -> None:
        """Close one link on purpose, and wait until the peer's end is down too, unless the peer does not answer."""
        link.end(LinkState.CLOSED, "it was closed on this side", goodbye=reason)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(link.gone.wait(), self.manager.link_timeout)
        link.close_wire()
        # The channel is closed once, in a thread of its own; closing again only waits for that.
        await aside(link.channel.close)

    async def close(self, reason: str) -> None:
        """Close every link, and wait for what that leaves to do."""
        for link in self._everyone():
            await self.unlink(link, reason)
        mine = asyncio.current_task()
        pending = [task for task in self._tasks if task is not mine and not task.done()]
        if pending:
            await asyncio.wait(pending, timeout=self.manager.link_timeout)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------------------------ the manager's peers, from any thread

    def linked(self) -> bool:
        """Whether a link exists, or is being made."""
        return bool(self.links or self._forming)

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
        if self.linked() and (memory_ids or cache_ids):
            asyncio.run_coroutine_threadsafe(self._withdraw(memory_ids, cache_ids), self.loop).result()

    async def _withdraw(self, memory_ids: list[int], cache_ids: list[int]) -> None:
        await self._gather(link.ask(messages.Withdraw, memory_ids, cache_ids) for link in self._everyone())

    @staticmethod
    async def _gather(asked: Iterable[Coroutine[Any, Any, None]]) -> None:
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            # A peer that is gone holds nothing any more; one that is silent may.
            if isinstance(outcome, BaseException) and not isinstance(outcome, BrokenError):
                raise outcome

    def busy(self, memories: Sequence[Memory]) -> str | None:
        """In words, a transfer that uses some of the memory now, or None."""
        wanted = set(memories)
        for link in list(self.links.values()):
            for prepared in list(link.inflight.values()):
                if not wanted.isdisjoint(prepared.memories):
                    return f"the {prepared.what}"
        return None
