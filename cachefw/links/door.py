"""Where handshakes happen: two strangers prove who they are, agree on a transport, and end up with exactly one link."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import random
import socket

from cachefw.config import setting
from cachefw.errors import AuthenticationError, BrokenError, CacheError, TransferTimeout, TransportUnavailable
from cachefw.links import auth, messages
from cachefw.links.address import bind, is_loopback
from cachefw.links.aside import aside
from cachefw.links.credentials import Credentials
from cachefw.links.gate import Gate
from cachefw.links.hub import Hub
from cachefw.links.link import Link
from cachefw.links.wire import Wire
from cachefw.logs import event
from cachefw.session import Session

__all__ = ["Door"]

#: Refusals that mean: another handshake between the same two nodes makes the link, or has made it.
_ELSEWHERE = ("link.already", "link.crossed")
#: Failures for which an address is trusted less: it did not behave like a node of ours.
_SUSPECT = ("link.protocol", "link.hangup", "link.lost", "link.timeout", "authentication")
#: Seconds to wait for that link before dialling again: the peer may have meant one that was just closed here. Also how
#: long a stranger who is turned away has to hear why.
_PATIENCE = 0.2
#: Strangers who may be hearing it at once.
_HEARING = 32
#: Seconds between two tries to reach a peer that is busy or being restarted: the first, and the most.
_PAUSES = (0.05, 1.0)


class Door:
    """Where handshakes happen: listens, dials, and hands finished handshakes to the hub. Runs in the loop's thread."""

    def __init__(self, hub: Hub, credentials: Credentials) -> None:
        self.address: tuple[str, int] | None = None
        self._hub = hub
        self._credentials = credentials
        self._demands = ["secret"] if credentials.secret is not None else []
        self._gate = Gate(setting("handshakes"), setting("handshake_failures"))
        self._listener: socket.socket | None = None
        self._taking: asyncio.Task[None] | None = None
        self._hearing: collections.deque[socket.socket] = collections.deque()
        # The dials under way, by address: several calls for one peer share one.
        self._dials: dict[tuple[str, int], asyncio.Task[Link]] = {}
        # Handshakes that passed the exchange of names, by the peer's incarnation.
        self._dialling: set[bytes] = set()
        self._answering: set[bytes] = set()

    async def listen(self, host: str, port: int) -> None:
        """Take links, from now on only there.

        Raises:
            BrokenError: The address cannot be bound; `status` is the errno.
        """
        listener = bind(host, port)
        await self.deafen()
        self._listener = listener
        self.address = listener.getsockname()[:2]
        self._hub.port = self.address[1]
        self._taking = asyncio.create_task(self._take(listener))

    async def deafen(self) -> None:
        """Take no more links until `listen` is called again; those that are up or being dialled stay."""
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait([self._taking])
        if self._listener is not None:
            self._listener.close()
        self._taking = self._listener = self.address = None

    async def close(self) -> None:
        """Take no more links, and dial no more."""
        await self.deafen()
        for dial in list(self._dials.values()):
            dial.cancel()
            await asyncio.wait([dial])
        while self._hearing:
            self._hearing.popleft().close()

    # ------------------------------------------------------------------ dialling

    async def dial(
        self, host: str, port: int, incarnation: bytes | None, timeout: float, *, patient: bool = False
    ) -> Link:
        """Link to the node that listens there, or return the link that exists.

        Args:
            host: Where.
            port: Where.
            incarnation: Which start of that node is meant; None takes any.
            timeout: Seconds.
            patient: Go on trying while nothing listens there.

        Raises:
            BrokenError: Nothing listens there, or it refused.
            AuthenticationError: One of the two could not prove who it is.
            TransferTimeout: It took longer than `timeout` seconds.
            TransportUnavailable: No transport is shared.
        """
        name = f"{host}:{port}"
        dial = self._dials.get((host, port))
        if dial is None:
            dial = self._dials[host, port] = asyncio.create_task(self._dial(host, port, timeout, patient))
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

    async def _dial(self, host: str, port: int, timeout: float, patient: bool) -> Link:
        hub = self._hub
        end = hub.loop.time() + timeout
        pause, longest = _PAUSES
        again = ("link.busy", "link.unreachable", "link.lost", "link.hangup") if patient else ("link.busy",)
        while True:
            try:
                wire = await Wire.dial(host, port, self._credentials.tls, timeout)
                return await self._introduce(wire, timeout)
            except CacheError as error:
                if error.code in _ELSEWHERE:
                    link = await self._hub.arrival(error.facts["by"], _PATIENCE)
                    if link is not None:
                        return link
                # The last reason says more than a deadline that passed.
                elif error.code not in again or self._hub.loop.time() + pause > end:
                    raise
                else:
                    # Nodes that were turned away together do not come back together.
                    hub.counters.count("retries")
                    await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret hangs on it
                    pause = min(2 * pause, longest)

    async def _introduce(self, wire: Wire, timeout: float) -> Link:
        hub, own = self._hub, self._credentials
        try:
            if not own.proves and not own.insecure and not is_loopback(wire.host):
                raise AuthenticationError(
                    f"{wire.name} is another host, and this node proves nothing to it: give both a secret "
                    "(Node(secret=...) or CACHEFW_SECRET_FILE), or tls=, or say insecure=True",
                    code="authentication.open",
                    operation="link",
                    peer=wire.name,
                )
            sent = wire.send(messages.Hello(auth.nonce(), self._demands))
            await wire.greet()
            challenge, received = await wire.expect(messages.Challenge)
            self._check_demands(challenge.demands, wire.name, dialler=True)
            keys = auth.Keys(own.secret or b"", messages.body_of(sent), received)
            if own.secret is not None:
                wire.seal(*keys.seals(dialler=True))
            names = list(hub.manager.transports)
            wire.send(hub.introduction(messages.Introduce, names))
            peer, _ = await wire.expect(messages.Accept)
            self._check_peer(peer)
            if peer.incarnation in self._answering:
                raise BrokenError("the peer's dial makes the link", code="link.crossed", facts={"by": peer.incarnation})
        except BaseException:
            self._drop(wire)
            raise
        self._dialling.add(peer.incarnation)
        try:
            try:
                cards = dict(peer.transports)
                shared = [name for name in names if name in cards]
                if not shared:
                    ours, theirs = ", ".join(names) or "none", ", ".join(cards) or "none"
                    text = f"the two nodes share no transport: here {ours}, at {wire.name} {theirs}"
                    raise TransportUnavailable(text, code="transport.none_shared", operation="link", peer=wire.name)
                transport = hub.manager.transport(shared[0])
                session = Session(keys.session, True, wire.host, peer.incarnation, own.tls, own.proves)
                # Told first, so that the two ends connect at the same time.
                wire.send(messages.Choose(shared[0], transport.card()))
                channel = await aside(transport.connect, cards[shared[0]], timeout, session)
            except BaseException:
                self._drop(wire)
                raise
            return await hub.establish(wire, channel, shared[0], peer, dialled=True)
        finally:
            self._dialling.discard(peer.incarnation)

    # ------------------------------------------------------------------ being dialled

    async def _take(self, listener: socket.socket) -> None:
        full = False
        while True:
            try:
                connection, place = await self._hub.loop.sock_accept(listener)
            except OSError as error:
                # No descriptors are left, as a rule. Whoever waits is taken when some are.
                if not full:
                    event(logging.WARNING, "link.exhausted", "cannot take a link now: %s", error, status=error.errno)
                full = True
                await asyncio.sleep(_PATIENCE)
                continue
            full = False
            reason = self._gate.enter(place[0])
            if reason is None:
                self._hub.spawn(self._welcome(connection, place[0]))
            else:
                self._turn_away(connection, reason)

    def _turn_away(self, connection: socket.socket, reason: str) -> None:
        """Say that there is no room, without waiting for anything."""
        self._hub.counters.refuse("link.busy")
        connection.setblocking(False)
        refusal = messages.Refuse("link.busy", f"{reason}; try again", self._hub.incarnation)
        with contextlib.suppress(OSError):
            if self._credentials.tls is None:
                connection.send(messages.PREAMBLE + messages.encode(refusal))
            connection.shutdown(socket.SHUT_WR)
        # Closed a little later: closing with unread bytes resets the connection, and the reason would be lost with it.
        self._hearing.append(connection)
        if len(self._hearing) > _HEARING:
            self._hearing.popleft().close()
        self._hub.loop.call_later(_PATIENCE, connection.close)

    async def _welcome(self, connection: socket.socket, address: str) -> None:
        wire: Wire | None = None
        limit = self._hub.manager.link_timeout
        try:
            wire = await asyncio.wait_for(Wire.take(connection, self._credentials.tls, limit), limit)
            await asyncio.wait_for(self._answer(wire), limit)
        except (CacheError, asyncio.TimeoutError, OSError) as error:
            # The dialler gets the reason if it still listens; this side has nobody to raise to.
            known = error if isinstance(error, CacheError) else None
            known = known or BrokenError(str(error) or "the handshake took too long", code="link.timeout")
            if known.code not in _ELSEWHERE:
                self._hub.counters.refuse(known.code)
            if known.code.startswith(_SUSPECT):
                self._gate.blame(address)
                event(logging.INFO, "link.refused", "no link for %s: %s", address, known, error=known, address=address)
            if wire is not None:
                with contextlib.suppress(OSError, asyncio.TimeoutError):
                    wire.refuse(known, self._hub.incarnation)
                    # Closing with unread bytes would reset the connection, and the reason would be lost with it.
                    wire.say_no_more()
                    await asyncio.wait_for(wire.until_over(), _PATIENCE)
                self._drop(wire)
        except asyncio.CancelledError:
            if wire is not None:
                self._drop(wire)
            raise
        finally:
            self._gate.leave(address)
            if wire is None:
                connection.close()

    async def _answer(self, wire: Wire) -> None:
        hub, own = self._hub, self._credentials
        await wire.greet()
        hello, received = await wire.expect(messages.Hello)
        sent = wire.send(messages.Challenge(auth.nonce(), self._demands))
        self._check_demands(hello.demands, wire.name, dialler=False)
        keys = auth.Keys(own.secret or b"", received, messages.body_of(sent))
        if own.secret is not None:
            wire.seal(*keys.seals(dialler=False))
        peer, _ = await wire.expect(messages.Introduce)
        self._check_peer(peer)
        cards = [(name, hub.manager.transport(name).card()) for name in hub.manager.transports]
        wire.send(hub.introduction(messages.Accept, cards))
        choice, _ = await wire.expect(messages.Choose)
        if peer.incarnation in self._answering:
            raise BrokenError("the link is being made already", code="link.already")
        self._check_peer(peer)
        if peer.incarnation in self._dialling and hub.incarnation < peer.incarnation:
            # Both dialled each other: the dial of the lower incarnation wins, and both sides see the same.
            raise BrokenError("both nodes dialled each other; the other dial makes the link", code="link.crossed")
        if choice.transport not in hub.manager.transports or choice.transport not in peer.transports:
            raise TransportUnavailable(f"transport {choice.transport!r} was not offered", code="transport.none_shared")
        transport = hub.manager.transport(choice.transport)
        self._answering.add(peer.incarnation)
        try:
            session = Session(keys.session, False, wire.host, peer.incarnation, own.tls, own.proves)
            channel = await aside(transport.connect, choice.card, hub.manager.link_timeout, session)
            await hub.establish(wire, channel, choice.transport, peer, dialled=False)
        finally:
            self._answering.discard(peer.incarnation)

    def _drop(self, wire: Wire) -> None:
        wire.close()
        self._hub.spawn(wire.closed())

    def _check_demands(self, demands: list[str], name: str, *, dialler: bool) -> None:
        """Refuse a peer that cannot prove what this node demands, or demands what this node cannot."""
        ours, theirs = "secret" in self._demands, "secret" in demands
        if ours == theirs:
            return
        # Read at both ends.
        has, lacks = ("dials", "listens") if ours is dialler else ("listens", "dials")
        raise AuthenticationError(
            f"the node that {has} has a secret and the node that {lacks} has none; give both the same: "
            "Node(secret=...), or CACHEFW_SECRET_FILE",
            code="authentication.missing",
            operation="link",
            peer=name,
        )

    def _check_peer(self, peer: messages.Introduce | messages.Accept) -> None:
        hub = self._hub
        if peer.incarnation == hub.incarnation:
            raise BrokenError("a node cannot link to itself", code="link.self")
        if peer.cluster_id == hub.cluster_id:
            text = f"both nodes have cluster id {peer.cluster_id}, and keys tell nodes apart by it"
            raise BrokenError(text, code="link.same_cluster")
        if hub.known(peer.incarnation) is not None:
            raise BrokenError("the link exists already", code="link.already", facts={"by": peer.incarnation})
