"""One link: what the peer published, one-sided reads and writes, notifications, and the end of it."""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from cachefw.config import setting
from cachefw.errors import (
    BrokenError,
    ClosedError,
    NotFoundError,
    RequestError,
    TransferTimeout,
    refusal,
)
from cachefw.forking import forked_error
from cachefw.links import messages
from cachefw.links.mover import Mover
from cachefw.links.table import PeerTable, check_memory, name_words
from cachefw.links.transfers import LinkTransfer, PreparedTransfer
from cachefw.links.wire import Wire
from cachefw.logs import event
from cachefw.metrics import Counters
from cachefw.published import PublishedCache, PublishedMemory
from cachefw.quarantine import Quarantine
from cachefw.registry import RangeTable, Registry
from cachefw.staging import Detour
from cachefw.transport import Channel, Operation

__all__ = ["Link", "LinkState"]


class LinkState(enum.Enum):
    """The life of a link."""

    UP = "up"
    #: Closed on purpose, on this side.
    CLOSED = "closed"
    #: The peer closed it, or the peer or the way to it failed.
    BROKEN = "broken"


class LinkOwner(Protocol):
    """What a link needs of its node."""

    registry: Registry
    loop: asyncio.AbstractEventLoop
    counters: Counters

    def detour(self, transport: str, channel: Channel) -> Detour:
        """What moves memory over the channel that the transport does not take."""

    def link_ended(self, link: Link) -> None:
        """It is no longer up. Called once, in the loop's thread."""

    def transfer_finished(self, transfer: LinkTransfer) -> None:
        """One that nobody waited for has settled."""

    def notified(self, link: Link, payload: bytes) -> None:
        """The peer sent a notification."""

    def asked(self, link: Link, question: messages.Question) -> None:
        """The peer wants to know something. Called in the loop's thread."""


class Link(Mover):
    """A link to one peer, for both directions. Made by `Node.link`, here or on the other side.

    Attributes:
        cluster_id: The peer's.
        incarnation: Which start of the peer it is, 16 bytes.
        transport: Name of the transport in use; it never changes.
        address: The peer's end of the control connection, ``"host:port"``.
        security: How the peer proved who it is: ``"secret"``, ``"tls"``, both, ``"loopback"`` (not at all, and it is on
            this host), or ``"INSECURE"``.
        state: See `LinkState`.
        reason: Why it is no longer up, in words; "" while it is.

    Thread safety: every method may be called from any thread.
    """

    def __init__(
        self,
        owner: LinkOwner,
        channel: Channel,
        transport: str,
        peer: messages.Introduce | messages.Accept,
        wire: Wire,
        lease: float,
        security: str,
    ) -> None:
        self.cluster_id = peer.cluster_id
        self.incarnation = peer.incarnation
        self.transport = transport
        self.address = wire.name
        self.security = security
        #: Where the peer takes links, or None.
        self.listens = (wire.host, peer.port) if peer.port else None
        self.state = LinkState.UP
        self.reason = ""
        self.channel = channel
        self.start = channel.post
        self.registry = owner.registry
        #: Changes whenever the peer's table or the state does. Read without a lock on the transfer path.
        self.version = 0
        self._versions = itertools.count(1)
        self.quarantine = Quarantine()
        #: Set in the loop's thread once nothing that the peer asked for can move any more.
        self.gone = asyncio.Event()
        #: Times of the loop: when the peer was heard last, and when it was last told anything.
        self.heard = self.told = owner.loop.time()
        #: Seconds of silence after which the peer counts as gone, and after which this side says something.
        self.lease, self.pause = lease, min(lease, peer.lease) / 4
        #: Ids of the memory that the peer may touch, as far as it has not confirmed otherwise.
        self.published: set[int] = set()
        self.wire = wire
        #: Whether it is another process's, from which this one was forked.
        self.inherited = False
        #: Whether the link is to close the connection; a handshake that fails has a last word to say on it.
        self.owns_wire = False
        #: Transfers that have not settled. Single operations on it are atomic.
        self.inflight: dict[LinkTransfer, PreparedTransfer] = {}
        self._owner = owner
        self.staging = owner.detour(transport, channel)
        self._table = PeerTable()
        self._serials = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        #: Withdrawals that wait for transfers to settle: (serial, ids).
        self.draining: list[tuple[int, frozenset[int]]] = []

    # ------------------------------------------------------------------ looking

    @property
    def peer_name(self) -> str:
        """The peer in words."""
        return f"cluster {self.cluster_id} at {self.address}"

    @property
    def caches(self) -> list[PublishedCache]:
        """The peer's caches that this node may read, as known now."""
        return self._table.caches

    @property
    def memories(self) -> list[PublishedMemory]:
        """The peer's memory that this node may reach, as known now."""
        return self._table.memories

    @property
    def strangers(self) -> list[PublishedMemory]:
        """Memory that the peer published for other transports than this link's."""
        return self._table.strangers

    def memory_ids(self) -> set[int]:
        """Ids of the peer's memory that may be touched now."""
        return self._table.memory_ids()

    def remote_table(self) -> RangeTable:
        """The peer's memory, for finding many pieces at once."""
        return self._table.ranges()

    def lookup(self, name: tuple[str, int, int] | int) -> PublishedCache:
        """The peer's cache of that id, or that a key names.

        Raises:
            NotFoundError: The peer published none; the text lists what it did.
        """
        for asked in (False, True):
            cache = self._table.find(name)
            if cache is not None:
                return cache
            have = "; ".join(map(str, self._table.caches)) or "nothing"
            self.check_up("lookup")
            if not asked:
                # What the peer registered a moment ago may still be on its way.
                self.sync()
        raise NotFoundError(
            f"{self.peer_name} has published no {name_words(name)}; it has published {have}",
            code="not_found.cache",
            operation="lookup",
            peer=self.peer_name,
        )

    def sync(self, timeout: float | None = None) -> None:
        """Wait until everything the peer has published so far is known here.

        Raises:
            TransferTimeout: The peer did not answer within `timeout` seconds (None: the setting ``link_timeout``).
            BrokenError: The peer is gone.
        """
        self.check_up("sync")
        self._run(self.ask(messages.Sync, timeout=timeout))

    def inquire(self, what: str, timeout: float | None = None) -> bytes:
        """Ask the peer something about itself; see `cachefw.links.answers`.

        Raises:
            TransferTimeout: The peer did not answer within `timeout` seconds (None: the setting ``link_timeout``).
            BrokenError: The peer is gone.
        """
        return bytes(self._run(self.ask(messages.Question, what, timeout=timeout)))

    def check_rights(self, operation: Operation, memory_ids: Iterable[int]) -> None:
        """Refuse what the peer does not allow."""
        self._table.check_rights(operation, memory_ids, self.peer_name)

    # ------------------------------------------------------------------ notifications

    def notify(self, payload: bytes) -> None:
        """Send bytes to the peer's application, which gets them from `Node.notifications`; order is kept.

        Args:
            payload: At most 64 KiB.

        Raises:
            RequestError: Not bytes, or too long.
            ClosedError: The link is closed.
            BrokenError: The peer is gone.
        """
        self.check_notification(payload)
        self.check_up("notify")
        self._post_message(messages.Notify(bytes(payload)))

    @staticmethod
    def check_notification(payload: Any) -> None:
        """Refuse what `notify` could not send, before anything moves."""
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            builtin: type[Exception] = AttributeError if payload is None else TypeError
            raise refusal(RequestError, {builtin}, f"a notification is bytes, not {payload!r}", operation="notify")
        if len(payload) > messages.NOTIFY_LIMIT:
            text = f"a notification has at most {messages.NOTIFY_LIMIT:,} bytes, not {len(payload):,}"
            raise refusal(RequestError, {ValueError}, text, operation="notify")

    # ------------------------------------------------------------------ transfers under way

    def left(self, transfer: LinkTransfer) -> None:
        """A transfer has settled, or was never started."""
        self.inflight.pop(transfer, None)
        if self.draining:
            self._owner.loop.call_soon_threadsafe(self._drain)

    def finished(self, transfer: LinkTransfer, notify: bytes | None) -> None:
        """A transfer that nobody waits for has settled."""
        self.left(transfer)
        if notify is not None and transfer.error is None and self.state is LinkState.UP:
            self._post_message(messages.Notify(bytes(notify)))
        self._owner.transfer_finished(transfer)

    def overdue(self, prepared: PreparedTransfer) -> None:
        """A transfer's deadline has passed."""
        self._owner.counters.count("timeouts")
        event(
            logging.INFO,
            "transfer.late",
            "the %s is late; its memory stays in use until it settles",
            prepared.what,
            cluster_id=self.cluster_id,
            peer=self.peer_name,
            transport=self.transport,
            operation=prepared.operation.value,
            nbytes=prepared.nbytes,
        )

    def changed(self) -> None:
        """Have everything that was prepared on the link looked at again before it is posted. From any thread."""
        self.version = next(self._versions)

    # ------------------------------------------------------------------ state

    def forked(self) -> None:
        """Be no more than a name, in a process that was forked: its parent goes on using the link."""
        self.state, self.reason, self.inherited = (
            LinkState.CLOSED,
            "this process was forked from the one it is in",
            True,
        )
        self._table = PeerTable()
        self.quarantine = Quarantine()
        self.draining = []
        self.changed()

    @property
    def is_up(self) -> bool:
        """Whether it can be used."""
        return self.state is LinkState.UP

    def check_up(self, operation: str) -> None:
        """Raise unless the link is up.

        Raises:
            ClosedError: It was closed on this side.
            BrokenError: The peer closed it, or is gone.
        """
        if self.state is LinkState.UP:
            return
        if self.inherited:
            raise forked_error(operation, "Link")
        cls = ClosedError if self.state is LinkState.CLOSED else BrokenError
        raise cls(
            f"{operation}: the link to {self.peer_name} is {self.state.value}: {self.reason}",
            code=f"link.{self.state.value}",
            operation=operation,
            peer=self.peer_name,
        )

    def end(self, state: LinkState, reason: str, goodbye: str | None = None) -> None:
        """Take the link down: in the loop's thread, any number of times."""
        if self.state is not LinkState.UP:
            return
        if goodbye is not None:
            self.send(messages.Goodbye(goodbye))
        self.state, self.reason = state, reason
        self._table.clear()
        self.version = next(self._versions)
        for answer in self._answers.values():
            answer.cancel()
        self._owner.link_ended(self)

    def close_channel(self) -> None:
        """Close the way to the peer, and what belongs to it. May block; closing again only waits for that."""
        self.channel.close()
        self.staging.close()

    def __repr__(self) -> str:
        return f"<Link to {self.peer_name} by {self.transport}, {self.security}, {self.state.value}>"

    # ------------------------------------------------------------------ control messages, in the loop's thread

    def send(self, message: messages.Message) -> None:
        """Send a message, in the loop's thread."""
        if self.state is LinkState.UP:
            self.told = self._owner.loop.time()
            self.wire.send(message)
            if isinstance(message, messages.Publish):
                self.published.update(memory.memory_id for memory in message.memories)

    def _post_message(self, message: messages.Message) -> None:
        self._owner.loop.call_soon_threadsafe(self.send, message)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._owner.loop).result()

    async def ask(self, question: Callable[..., messages.Message], *rest: Any, timeout: float | None = None) -> Any:
        """Send a question and wait for its answer: the body of an `Answer`, None for the others.

        Raises:
            TransferTimeout: There was none.
            BrokenError: The link went down meanwhile.
        """
        limit = float(setting("link_timeout")) if timeout is None else timeout
        name = getattr(question, "__name__", "?").lower()
        self.check_up(name)
        serial = next(self._serials)
        answer = self._answers[serial] = self._owner.loop.create_future()
        self.send(question(serial, *rest))
        try:
            return await asyncio.wait_for(answer, limit)
        except asyncio.TimeoutError:
            raise TransferTimeout(
                f"{self.peer_name} did not answer ({name}) within {limit:g} s",
                code="link.silent",
                operation=name,
                peer=self.peer_name,
            ) from None
        except asyncio.CancelledError:
            # Cancelled by `end`, which also says why; anything else passes.
            self.check_up(name)
            raise
        finally:
            self._answers.pop(serial, None)

    def handle(self, message: messages.Message) -> None:
        """Act on a message of the peer's.

        Raises:
            BrokenError: It makes no sense here.
        """
        if isinstance(message, messages.Publish):
            self._learn(message.memories, message.caches)
        elif isinstance(message, messages.Withdraw):
            self._forget(message)
        elif isinstance(message, messages.Sync):
            self.send(messages.Synced(message.serial))
        elif isinstance(message, (messages.Withdrawn, messages.Synced, messages.Answer)):
            answer = self._answers.get(message.serial)
            if answer is not None and not answer.done():
                answer.set_result(message.body if isinstance(message, messages.Answer) else None)
        elif isinstance(message, messages.Question):
            self._owner.asked(self, message)
        elif isinstance(message, messages.Notify):
            self._owner.notified(self, message.payload)
        elif isinstance(message, messages.Goodbye):
            self.end(LinkState.BROKEN, f"the peer closed it: {message.reason}")
        elif not isinstance(message, messages.Alive):
            raise BrokenError(
                f"{self.peer_name} sent {type(message).__name__} out of turn", code="link.protocol", peer=self.peer_name
            )

    def _learn(self, memories: Iterable[PublishedMemory], caches: Iterable[PublishedCache]) -> None:
        for memory in memories:
            region = check_memory(memory, self.peer_name)
            if self._table.knows(memory.memory_id):
                continue
            if self.transport not in memory.descriptions:
                self._table.room(self.peer_name)
                self._table.add_stranger(memory)
                continue
            if not self._keep(memory.memory_id):
                self.channel.attach(memory.memory_id, region, memory.descriptions[self.transport])
            self._table.room(self.peer_name)
            self._table.add_memory(memory)
        for cache in caches:
            self._table.room(self.peer_name)
            self._table.add_caches([cache])
        self.version = next(self._versions)

    def _keep(self, memory_id: int) -> bool:
        """Take back a withdrawal that waits for transfers: the peer gave up withdrawing. Whether there was one."""
        for row, (serial, ids) in enumerate(self.draining):
            if memory_id in ids:
                self.draining[row] = serial, ids - {memory_id}
                return True
        return False

    def _forget(self, message: messages.Withdraw) -> None:
        self._table.remove(message.memory_ids, message.cache_ids)
        self.version = next(self._versions)
        self.draining.append((message.serial, frozenset(message.memory_ids)))
        self._drain()

    def _drain(self) -> None:
        """Answer the withdrawals whose memory no transfer touches any more."""
        waiting = []
        for serial, ids in self.draining:
            if any(prepared.touches_remote(ids) for prepared in list(self.inflight.values())):
                waiting.append((serial, ids))
                continue
            for number in ids:
                self.channel.detach(number)
            self.send(messages.Withdrawn(serial))
        self.draining = waiting
