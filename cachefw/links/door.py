"""Where handshakes happen: two strangers agree on a transport, and end up with exactly one link."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
from typing import Any

from cachefw.errors import BrokenError, CacheError, RequestError, TransferTimeout, TransportUnavailable, refusal
from cachefw.links import messages
from cachefw.links.aside import aside
from cachefw.links.hub import Hub
from cachefw.links.link import Link
from cachefw.links.wire import Wire
from cachefw.session import Session

__all__ = ["Door", "parse_address"]

#: Refusals that mean: another handshake between the same two nodes makes the link, or has made it.
_ELSEWHERE = ("link.already", "link.crossed")
#: Seconds to wait for that link before dialling again: the peer may have meant one that was just closed here.
_PATIENCE = 0.2
NONCE_BYTES = 32


class Door:
    """Where handshakes happen: listens, dials, and hands finished handshakes to the hub. Runs in the loop's thread."""

    def __init__(self, hub: Hub) -> None:
        self.address: tuple[str, int] | None = None
        self._hub = hub
        self._server: asyncio.Server | None = None
        # The dials under way, by address: several calls for one peer share one.
        self._dials: dict[tuple[str, int], asyncio.Task[Link]] = {}
        # Handshakes that passed the exchange of names, by the peer's incarnation.
        self._dialling: set[bytes] = set()
        self._answering: set[bytes] = set()

    async def listen(self, host: str, port: int) -> None:
        """Take links.

        Raises:
            BrokenError: The address cannot be bound; `status` is the errno.
        """
        try:
            self._server = await asyncio.start_server(self._welcome, host, port)
        except OSError as error:
            raise BrokenError(
                f"cannot listen on {host}:{port}: {_words(error)}; port 0 takes a free one",
                code="link.listen",
                operation="listen",
                status=error.errno,
                detail=_words(error),
            ) from None
        self.address = self._server.sockets[0].getsockname()[:2]

    def close(self) -> None:
        """Take no more links."""
        if self._server is not None:
            self._server.close()

    async def dial(self, host: str, port: int, incarnation: bytes | None, timeout: float) -> Link:
        """Link to the node that listens there, or return the link that exists.

        Raises:
            BrokenError: Nothing listens there, or it refused.
            TransferTimeout: It took longer than `timeout` seconds.
            TransportUnavailable: No transport is shared.
        """
        name = f"{host}:{port}"
        dial = self._dials.get((host, port))
        if dial is None:
            dial = self._dials[host, port] = asyncio.create_task(self._dial(host, port, name, timeout))
            dial.add_done_callback(lambda _: self._dials.pop((host, port)))
        try:
            link = await asyncio.wait_for(asyncio.shield(dial), timeout)
        except asyncio.TimeoutError:
            dial.cancel()
            raise TransferTimeout(
                f"no link to {name} within {timeout:g} s: it did not answer",
                code="link.timeout",
                operation="link",
                peer=name,
            ) from None
        if incarnation is not None and link.incarnation != incarnation:
            raise BrokenError(
                f"{name} was restarted since its card was made; get a new card",
                code="link.restarted",
                operation="link",
                peer=name,
            )
        return link

    async def _dial(self, host: str, port: int, name: str, timeout: float) -> Link:
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, port)
            except OSError as error:
                raise BrokenError(
                    f"cannot reach {name}: {_words(error)}; is a node listening there?",
                    code="link.unreachable",
                    operation="link",
                    peer=name,
                    status=error.errno,
                    detail=_words(error),
                ) from None
            try:
                return await self._introduce(Wire(reader, writer, name), timeout)
            except CacheError as error:
                writer.close()
                if error.code not in _ELSEWHERE:
                    raise
                link = await self._hub.arrival(error.facts["by"], _PATIENCE)
                if link is not None:
                    return link
            except BaseException:
                writer.close()
                raise

    async def _introduce(self, wire: Wire, timeout: float) -> Link:
        hub = self._hub
        messages.write_preamble(wire.writer)
        nonce = secrets.token_bytes(NONCE_BYTES)
        wire.send(messages.Hello(hub.cluster_id, hub.incarnation, nonce, hub.manager.software, self._cards()))
        await messages.read_preamble(wire.reader, wire.name)
        peer = await wire.expect(messages.Accept)
        if peer.incarnation in self._answering or hub.known(peer.incarnation) is not None:
            raise BrokenError("the peer's dial makes the link", code="link.crossed", facts={"by": peer.incarnation})
        self._dialling.add(peer.incarnation)
        try:
            cards = dict(peer.transports)
            shared = [name for name in hub.manager.transports if name in cards]
            if not shared:
                ours, theirs = ", ".join(hub.manager.transports) or "none", ", ".join(cards) or "none"
                text = f"the two nodes share no transport: here {ours}, at {wire.name} {theirs}"
                raise TransportUnavailable(text, code="transport.none_shared", operation="link", peer=wire.name)
            transport = hub.manager.transport(shared[0])
            session = Session(_key(nonce, peer.nonce), True, wire.host, peer.incarnation)
            # Told first, so that the two ends connect at the same time.
            wire.send(messages.Choose(shared[0]))
            channel = await aside(transport.connect, cards[shared[0]], timeout, session)
            return await hub.establish(wire, channel, shared[0], peer)
        finally:
            self._dialling.discard(peer.incarnation)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = writer.get_extra_info("peername")[:2]
        wire = Wire(reader, writer, f"{host}:{port}")
        try:
            await asyncio.wait_for(self._answer(wire), self._hub.manager.link_timeout)
        except (CacheError, asyncio.TimeoutError, OSError) as error:
            # The dialler gets the reason if it still listens; this side has nobody to raise to.
            known = error if isinstance(error, CacheError) else None
            code, status = (known.code, known.status) if known else ("link.timeout", None)
            text = str(error) or "the handshake took too long"
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                wire.send(messages.Refuse(code, text, self._hub.incarnation, status))
                # Closing with unread bytes would reset the connection, and the reason would be lost with it.
                writer.write_eof()
                await asyncio.wait_for(_read_out(reader), _PATIENCE)
            writer.close()

    async def _answer(self, wire: Wire) -> None:
        hub = self._hub
        messages.write_preamble(wire.writer)
        await messages.read_preamble(wire.reader, wire.name)
        hello = await wire.expect(messages.Hello)
        self._check_peer(hello)
        nonce = secrets.token_bytes(NONCE_BYTES)
        wire.send(messages.Accept(hub.cluster_id, hub.incarnation, nonce, hub.manager.software, self._cards()))
        choice = await wire.expect(messages.Choose)
        if hello.incarnation in self._answering:
            raise BrokenError("the link is being made already", code="link.already")
        self._check_peer(hello)
        if hello.incarnation in self._dialling and hub.incarnation < hello.incarnation:
            # Both dialled each other: the dial of the lower incarnation wins, and both sides see the same.
            raise BrokenError("both nodes dialled each other; the other dial makes the link", code="link.crossed")
        cards = dict(hello.transports)
        if choice.transport not in cards or choice.transport not in hub.manager.transports:
            raise TransportUnavailable(f"transport {choice.transport!r} was not offered", code="transport.none_shared")
        transport = hub.manager.transport(choice.transport)
        self._answering.add(hello.incarnation)
        try:
            session = Session(_key(hello.nonce, nonce), False, wire.host, hello.incarnation)
            channel = await aside(transport.connect, cards[choice.transport], hub.manager.link_timeout, session)
            await hub.establish(wire, channel, choice.transport, hello)
        finally:
            self._answering.discard(hello.incarnation)

    def _check_peer(self, hello: messages.Hello) -> None:
        hub = self._hub
        if hello.incarnation == hub.incarnation:
            raise BrokenError("a node cannot link to itself", code="link.self")
        if hello.cluster_id == hub.cluster_id:
            text = f"both nodes have cluster id {hello.cluster_id}, and keys tell nodes apart by it"
            raise BrokenError(text, code="link.same_cluster")
        if hub.known(hello.incarnation) is not None:
            raise BrokenError("the link exists already", code="link.already")

    def _cards(self) -> list[tuple[str, bytes]]:
        manager = self._hub.manager
        return [(name, manager.transport(name).card()) for name in manager.transports]


def _key(dialler: bytes, answerer: bytes) -> bytes:
    return hashlib.sha256(b"cachefw session" + dialler + answerer).digest()


async def _read_out(reader: asyncio.StreamReader) -> None:
    while await reader.read(messages.HANDSHAKE_LIMIT):
        pass


def _words(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)


def parse_address(text: Any, operation: str) -> tuple[str, int]:
    """Split ``"host:port"``; IPv6 in brackets.

    Raises:
        RequestError: Also a `TypeError`, `ValueError` or `AttributeError`: it is no address.
    """
    if not isinstance(text, str):
        builtin: type[Exception] = AttributeError if text is None else TypeError
        raise refusal(RequestError, {builtin}, f"an address is a str 'host:port', not {text!r}", operation=operation)
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        text = f"{text!r} is no address; give 'host:port', with a port of 0 to 65535"
        raise refusal(RequestError, {ValueError}, text, operation=operation)
    return host.strip("[]"), int(port)
