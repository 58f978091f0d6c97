"""A node: opens transports, listens, links to peers, and owns one CacheManager."""

from __future__ import annotations

import asyncio
import collections
import ipaddress
import socket
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
import msgspec

from cachefw.cache import as_int
from cachefw.errors import ClosedError, RequestError, refusal
from cachefw.links.door import Door, parse_address
from cachefw.links.hub import Hub
from cachefw.links.link import Link, LinkState
from cachefw.links.transfers import LinkTransfer
from cachefw.manager import CacheManager
from cachefw.reports import Reporter, TransferReport
from cachefw.rules import Limits

__all__ = ["Node", "Notification"]

_Result = TypeVar("_Result")


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
        listen: ``"host:port"`` to take links on; port 0 takes a free one (see `address`). None takes none. Only
            loopback addresses: links are not authenticated in this version.
        transports: Names of the transports to open, best first. None takes the setting ``transports``.
        limits: How much may be registered.
        strict: True refuses what a rule could not check. None takes the setting ``strict``.
        plugins: Further plugin objects.
        settings: For a transport's name, its own settings.

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
    ) -> None:
        self._closed = True
        self.cluster_id = _cluster_id(cluster_id)
        address = None if listen is None else _loopback(listen)
        self.cache_manager = CacheManager(transports, limits=limits, strict=strict, plugins=plugins, settings=settings)
        self._completed: collections.deque[LinkTransfer] = collections.deque()
        self._notifications: collections.deque[Notification] = collections.deque()
        self._loop = asyncio.new_event_loop()
        observed = self.cache_manager.hooks.observed("cachefw_transfer_finished")
        self._reporter = Reporter(self._transfer_finished, f"cachefw-reports-{self.cluster_id}") if observed else None
        self._hub = Hub(
            self.cluster_id,
            self.cache_manager,
            self._loop,
            self._link_changed,
            self._notified,
            self._completed.append,
            self._reporter.put if self._reporter else None,
        )
        self._door = Door(self._hub)
        self.cache_manager.bind(self._hub, self.close)
        self._thread = threading.Thread(target=self._serve, name=f"cachefw-node-{self.cluster_id}", daemon=True)
        self._closed = False
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

    def card(self) -> bytes:
        """What a peer can give to `link` instead of an address: it also says which start of this node is meant.

        Raises:
            RequestError: The node does not listen.
        """
        self._check_open("card")
        if self._door.address is None:
            raise refusal(RequestError, {ValueError}, "a node that does not listen has no card", operation="card")
        host, port = self._door.address
        return msgspec.msgpack.encode(_Card(host, port, self.cluster_id, self._hub.incarnation))

    def link(self, peer: str | bytes, timeout: float | None = None) -> Link:
        """Link to a node, or return the link that exists. The link serves both directions.

        Args:
            peer: Its address ``"host:port"``, or its `card`.
            timeout: Seconds; None takes the setting ``link_timeout``.

        Raises:
            BrokenError: It cannot be reached, was restarted since its card was made, or refused; the text names host
                and port.
            TransferTimeout: No link within `timeout`.
            TransportUnavailable: The two nodes share no transport; the text lists both sets.
        """
        self._check_open("link")
        incarnation = None
        if isinstance(peer, (bytes, bytearray)):
            try:
                card = msgspec.msgpack.decode(peer, type=_Card)
            except msgspec.MsgspecError as error:
                text = f"{len(peer)} bytes are no card of a node: {error}"
                raise refusal(RequestError, {ValueError}, text, operation="link") from None
            host, port, incarnation = card.host, card.port, card.incarnation
        else:
            host, port = parse_address(peer, "link")
        limit = self.cache_manager.link_timeout if timeout is None else timeout
        return self._run(self._door.dial(host, port, incarnation, limit))

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

    def _notified(self, link: Link, payload: bytes) -> None:
        self._notifications.append(Notification(link.cluster_id, payload))

    def _link_changed(self, link: Link) -> None:
        self.cache_manager.hooks.observe("cachefw_link_changed", link=link)

    def _transfer_finished(self, report: TransferReport) -> None:
        self.cache_manager.hooks.observe("cachefw_transfer_finished", report=report)

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
        self._door.close()
        await self._hub.close("its node was closed")

    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise ClosedError(f"{operation}: this Node is closed", operation=operation)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self.links)} links"
        return f"<Node of cluster {self.cluster_id} at {self.address or 'no address'}, {state}>"


def _drain(queue: collections.deque[Any]) -> list[Any]:
    got = []
    while queue:
        got.append(queue.popleft())
    return got


def _cluster_id(value: Any) -> int:
    number = as_int(value)
    if number is None:
        builtin: type[Exception] = AttributeError if value is None else TypeError
        raise refusal(RequestError, {builtin}, f"cluster_id must be an int, not {value!r}", operation="Node")
    if not 0 <= number < 2**64:
        text = f"cluster_id must lie in 0 ... 2^64 - 1, not {number}"
        raise refusal(RequestError, {ValueError}, text, operation="Node")
    return number


def _loopback(listen: str) -> tuple[str, int]:
    host, port = parse_address(listen, "listen")
    try:
        address = ipaddress.ip_address(host if ":" in host else socket.gethostbyname(host))
    except (OSError, ValueError) as error:
        raise refusal(RequestError, {ValueError}, f"cannot resolve {host!r}: {error}", operation="listen") from None
    if not address.is_loopback:
        text = (
            f"listening on {host} would let other hosts in, and links are not authenticated in this version; listen on "
            "127.0.0.1 or [::1]"
        )
        raise refusal(RequestError, {ValueError}, text, operation="listen")
    return host, port
