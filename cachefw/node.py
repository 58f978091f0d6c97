"""A node: opens transports, listens, links to peers, and owns one CacheManager."""

from __future__ import annotations

import asyncio
import collections
import contextvars
import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, overload

import attrs
import msgspec

from cachefw.cache import as_int
from cachefw.config import setting
from cachefw.errors import BrokenError, ClosedError, RequestError, refusal
from cachefw.forking import forked_error, watch
from cachefw.links.address import is_loopback, parse_address
from cachefw.links.aside import aside
from cachefw.links.credentials import Credentials
from cachefw.links.door import Door
from cachefw.links.hub import Hub
from cachefw.links.link import Link, LinkState
from cachefw.links.pending import PendingLink
from cachefw.links.reporting import Observer
from cachefw.links.transfers import LinkTransfer
from cachefw.logs import event
from cachefw.manager import CacheManager
from cachefw.metrics import Counters, Stats
from cachefw.reports import Finished, Reporter, TransferReport, report_of
from cachefw.rules import Limits
from cachefw.session import TlsContexts

__all__ = ["Node", "Notification"]

_Result = TypeVar("_Result")

#: Notifications that may wait to be taken; a link that brings more is ended.
UNREAD = 10**5


@attrs.frozen
class Notification:
    """Bytes that a peer's application sent.

    Attributes:
        cluster_id: The peer's.
        payload: At most 64 KiB.
    """

    cluster_id: int
    payload: bytes


class _Card(msgspec.Struct, frozen=True):
    host: str
    port: int
    cluster_id: int
    incarnation: bytes


class Node:
    """One end of any number of links.

    Args:
        cluster_id: Names this node in its peers' keys; 0 ... 2^64 - 1, different from every peer's.
        listen: ``"host:port"`` to take links on; port 0 takes a free one (see `address`). None takes none. Beyond
            loopback only with `secret`, `tls`, or `insecure`.
        transports: Names of the transports to open, best first. None takes the setting ``transports``.
        limits: How much may be registered.
        strict: True refuses what a rule could not check. None takes the setting ``strict``.
        plugins: Further plugin objects.
        settings: For a transport's name, its own settings.
        secret: What every peer has to know, and is shown to know: 16 bytes or more, or the path of a file that only its
            owner reads. None takes the setting ``secret_file``.
        tls: Encrypts links, and demands the peer's certificate: paths of this node's certificate, of its key and of the
            CA certificates that a peer's must be signed by; or two `ssl.SSLContext`, for taking and for opening
            connections. None takes the settings ``tls_cert``, ``tls_key`` and ``tls_ca``.
        insecure: True links beyond loopback with nothing proved. Whoever reaches the port may read and write all memory
            that is registered as remote-accessible.
        metrics: True counts transfers and remembers the last, for `stats`. None takes the setting ``metrics``.

    Attributes:
        cluster_id: As given.
        cache_manager: Registers and pulls caches.

    Raises:
        RequestError: A wrong cluster id or address.
        TransportUnavailable: A transport cannot be opened.
        BrokenError: The address cannot be bound.

    Thread safety: every method may be called from any thread. Any number of nodes may live in one process.
    """

    def __init__(
        self,
        cluster_id: int,
        listen: str | None = None,
        *,
        transports: Sequence[str] | None = None,
        limits: Limits | None = None,
        strict: bool | None = None,
        plugins: Iterable[Any] = (),
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        secret: bytes | str | os.PathLike[str] | None = None,
        tls: tuple[Any, ...] | TlsContexts | None = None,
        insecure: bool = False,
        metrics: bool | None = None,
    ) -> None:
        self._closed, self._inherited = True, False
        self.cluster_id = _cluster_id(cluster_id)
        self._credentials = credentials = Credentials.of(secret, tls, insecure)
        #: How peers prove who they are: "secret", "tls", "secret+tls", "loopback" (not at all) or "INSECURE".
        self.security = credentials.name
        address = None if listen is None else _listening(listen, credentials)
        if insecure:
            text = "cluster %d: insecure=True, so peers prove nothing, wherever they are"
            event(logging.WARNING, "node.insecure", text, self.cluster_id)
        self.cache_manager = CacheManager(transports, limits=limits, strict=strict, plugins=plugins, settings=settings)
        for name in self.cache_manager.transports:
            self.cache_manager.transport(name).listen_host = None if address is None else address[0]
        self._completed: collections.deque[LinkTransfer] = collections.deque()
        self._notifications: collections.deque[Notification] = collections.deque()
        self._wake: Callable[[], None] | None = None
        self._loop = asyncio.new_event_loop()
        observed = self.cache_manager.hooks.observed("cachefw_transfer_finished")
        self._reporter = Reporter(self._transfer_finished, f"cachefw-reports-{self.cluster_id}") if observed else None
        metrics = bool(setting("metrics")) if metrics is None else metrics
        counters = Counters()
        self._hub = Hub(
            self.cluster_id,
            self.cache_manager,
            self._loop,
            self._link_changed,
            self._notified,
            self._completed.append,
            self.security,
            counters,
            _observer(counters if metrics else None, self._reporter),
            metrics=metrics,
        )
        self._door = Door(self._hub, credentials)
        self.cache_manager.bind(self._hub, self.close)
        self._thread = threading.Thread(target=self._serve, name=f"cachefw-node-{self.cluster_id}", daemon=True)
        self._closed = False
        watch(self)
        self._thread.start()
        if address is not None:
            try:
                self._run(self._door.listen(*address))
            except BaseException:
                self.close()
                raise

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # ------------------------------------------------------------------ links

    @property
    def address(self) -> str | None:
        """``"host:port"`` that it listens on, the real port included, or None."""
        if self._door.address is None:
            return None
        host, port = self._door.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def listen(self, address: str | None) -> None:
        """Take links on another address from now on, or on none. Links that are up stay.

        Args:
            address: As for `Node`; None takes no more links.

        Raises:
            RequestError: A wrong address.
            BrokenError: It cannot be bound; the node listens where it did.
        """
        self._check_open("listen")
        if address is None:
            self._run(self._door.deafen())
        else:
            self._run(self._door.listen(*_listening(address, self._credentials)))

    def card(self, host: str | None = None) -> bytes:
        """What a peer can give to `link` instead of an address: it also says which start of this node is meant.

        Args:
            host: The name or address under which the peer reaches this node; None takes the one that it listens on.

        Raises:
            RequestError: The node does not listen.
        """
        self._check_open("card")
        if self._door.address is None:
            raise refusal(RequestError, {ValueError}, "a node that does not listen has no card", operation="card")
        place, port = self._door.address
        return msgspec.msgpack.encode(_Card(host or place, port, self.cluster_id, self._hub.incarnation))

    @overload
    def link(self, peer: str | bytes, timeout: float | None = None, *, wait: Literal[True] = True) -> Link: ...

    @overload
    def link(self, peer: str | bytes, timeout: float | None = None, *, wait: Literal[False]) -> PendingLink: ...

    def link(self, peer: str | bytes, timeout: float | None = None, *, wait: bool = True) -> Link | PendingLink:
        """Link to a node, or return the link that exists. The link serves both directions.

        Args:
            peer: Its address ``"host:port"``, or its `card`.
            timeout: Seconds; None takes the setting ``link_timeout``.
            wait: False links in the background. Reads and writes may be queued on what it returns.

        Raises:
            BrokenError: It cannot be reached, was restarted since its card was made, or refused; the text names host
                and port.
            AuthenticationError: One of the two nodes could not prove who it is; the text says which lacks what.
            TransferTimeout: No link within `timeout`.
            TransportUnavailable: The two nodes share no transport; the text lists both sets.
        """
        self._check_open("link")
        host, port, incarnation = self._place(peer, "link")
        limit = self.cache_manager.link_timeout if timeout is None else timeout
        dial = self._door.dial(host, port, incarnation, limit)
        if wait:
            return self._run(dial)
        made = asyncio.run_coroutine_threadsafe(dial, self._loop)
        return PendingLink(f"{host}:{port}", made, self._aside)

    def relink(self, peer: Link | str | bytes, timeout: float | None = None) -> Link:
        """Link anew to a peer that was restarted or lost: the one call to make after a `BrokenError` of a link.

        The former link is closed if it is still up. While nothing listens at the peer's address it is tried again, less
        and less often, until `timeout`; a peer is never given up for good. What was prepared on the former link stays
        refused: the new one has the peer's new memory.

        Args:
            peer: The former link, or the peer's address or card.
            timeout: Seconds; None takes the setting ``link_timeout``.

        Raises:
            RequestError: Also a `ValueError`: the peer takes no links, so it has to dial itself.
            BrokenError: As for `link`, still at the end of `timeout`.
            AuthenticationError: As for `link`.
            TransferTimeout: As for `link`.
        """
        self._check_open("relink")
        if isinstance(peer, Link):
            if peer.listens is None:
                text = f"{peer.peer_name} takes no links itself, so this node cannot dial it; it has to link again"
                raise refusal(RequestError, {ValueError}, text, operation="relink")
            self.unlink(peer)
            host, port, incarnation = *peer.listens, None
        else:
            host, port, incarnation = self._place(peer, "relink")
        limit = self.cache_manager.link_timeout if timeout is None else timeout
        return self._run(self._door.dial(host, port, incarnation, limit, patient=True))

    @staticmethod
    def _place(peer: str | bytes, operation: str) -> tuple[str, int, bytes | None]:
        if not isinstance(peer, (bytes, bytearray)):
            return *parse_address(peer, operation), None
        try:
            card = msgspec.msgpack.decode(peer, type=_Card)
        except msgspec.MsgspecError as error:
            text = f"{len(peer)} bytes are no card of a node: {error}"
            raise refusal(RequestError, {ValueError}, text, operation=operation) from None
        return card.host, card.port, card.incarnation

    def _aside(self, work: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(lambda: self._hub.spawn(aside(work)))

    def unlink(self, link: Link) -> None:
        """Close a link, on both sides. Its running transfers settle first. Unlinking twice does nothing.

        Raises:
            ClosedError: The node is closed.
        """
        self._check_open("unlink")
        if not isinstance(link, Link):
            builtin: type[Exception] = AttributeError if link is None else TypeError
            text = f"give the Link that link() returned, not {link!r}"
            raise refusal(RequestError, {builtin}, text, operation="unlink")
        self._run(self._hub.unlink(link, "it was unlinked"))

    @property
    def links(self) -> list[Link]:
        """The links that are up, whoever dialled."""
        return [link for link in list(self._hub.links.values()) if link.state is LinkState.UP]

    # ------------------------------------------------------------------ what happened since

    def completed(self) -> list[LinkTransfer]:
        """The transfers posted with ``wait=False`` that have settled since the last call, failed ones too."""
        return _drain(self._completed)

    def notifications(self) -> list[Notification]:
        """What peers sent since the last call; in order for each peer."""
        return _drain(self._notifications)

    def when_notified(self, call: Callable[[], None] | None) -> None:
        """Have `call` called when `notifications` has something new, so that nobody has to ask again and again.

        Args:
            call: Called in the node's own thread, on which every link waits: it wakes another one, and does not raise.
                None ends it.
        """
        self._wake = call

    def _notified(self, link: Link, payload: bytes) -> None:
        if len(self._notifications) >= UNREAD:
            text = f"{link.peer_name} sent a notification, and {UNREAD:,} are here already; call notifications()"
            raise BrokenError(text, code="link.flood", peer=link.peer_name)
        self._notifications.append(Notification(link.cluster_id, payload))
        if (wake := self._wake) is not None:
            wake()

    def _link_changed(self, link: Link) -> None:
        self.cache_manager.hooks.observe("cachefw_link_changed", link=link)

    def _transfer_finished(self, report: TransferReport) -> None:
        self.cache_manager.hooks.observe("cachefw_transfer_finished", report=report)

    def stats(self) -> Stats:
        """What the node holds now, and what it has counted; also once it is closed.

        Raises:
            ClosedError: In a process that was forked.
        """
        if self._inherited:
            raise forked_error("stats", "Node")
        return self._hub.stats()

    # ------------------------------------------------------------------ closing

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Close the links, give all memory back, close the transports. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._run(self._shut())
        finally:
            if self._reporter is not None:
                self._reporter.close(self.cache_manager.link_timeout)
            self.cache_manager.close()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _shut(self) -> None:
        await self._door.close()
        await self._hub.close("its node was closed")

    def forked(self) -> None:
        """Be no more than a name, in a process that was forked: its parent goes on using the links."""
        self._closed = self._inherited = True
        for link in list(self._hub.links.values()):
            link.forked()
        self._hub.links.clear()

    def _check_open(self, operation: str) -> None:
        if self._inherited:
            raise forked_error(operation, "Node")
        if self._closed:
            raise ClosedError(f"{operation}: this Node is closed", operation=operation)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self.links)} links"
        return f"<Node of cluster {self.cluster_id} at {self.address or 'no address'}, {self.security}, {state}>"


def _drain(queue: collections.deque[Any]) -> list[Any]:
    got = []
    while queue:
        got.append(queue.popleft())
    return got


def _observer(counters: Counters | None, reporter: Reporter | None) -> Observer | None:
    if counters is None and reporter is None:
        return None

    def finished(transfer: Finished, context: contextvars.Context | None) -> None:
        if counters is not None:
            counters.record(transfer)
        if reporter is not None:
            reporter.put(report_of(transfer, context))

    return Observer(finished, itertools.count(1).__next__, reporter is not None)


def _cluster_id(value: Any) -> int:
    number = as_int(value)
    if number is None:
        builtin: type[Exception] = AttributeError if value is None else TypeError
        raise refusal(RequestError, {builtin}, f"cluster_id must be an int, not {value!r}", operation="Node")
    if not 0 <= number < 2**64:
        text = f"cluster_id must lie in 0 ... 2^64 - 1, not {number}"
        raise refusal(RequestError, {ValueError}, text, operation="Node")
    return number


def _listening(listen: str, credentials: Credentials) -> tuple[str, int]:
    host, port = parse_address(listen, "listen")
    try:
        place = host if ":" in host else socket.gethostbyname(host)
        local = is_loopback(place)
    except (OSError, ValueError) as error:
        raise refusal(RequestError, {ValueError}, f"cannot resolve {host!r}: {error}", operation="listen") from None
    if not local and not credentials.proves and not credentials.insecure:
        text = (
            f"listening on {host} would let other hosts in, and nothing would tell whom: give secret= (or "
            "CACHEFW_SECRET_FILE) or tls=, listen on 127.0.0.1 or [::1], or say insecure=True"
        )
        raise refusal(RequestError, {ValueError}, text, operation="listen")
    return host, port
