"""One control connection, as the handshake and the link use it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from typing import Any

from cachefw.errors import AuthenticationError, BrokenError, CacheError, TransportUnavailable
from cachefw.links import messages
from cachefw.links.address import words
from cachefw.links.auth import Seal
from cachefw.session import TlsContexts

__all__ = ["Wire"]

#: Seconds that the end of a TLS connection may take.
_PARTING = 1.0


class Wire:
    """One control connection. Used in the loop's thread.

    Attributes:
        name: The peer, ``"host:port"``.
        host: The IP address at which the peer is seen.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        self.name = name
        self.host = str(writer.get_extra_info("peername")[0])
        self._reader = reader
        self._writer = writer
        self._outgoing: Seal | None = None
        self._incoming: Seal | None = None
        # Until the link is up, a refusal may come from somebody who has no secret to seal it with.
        self._trusting = True
        writer.write(messages.PREAMBLE)

    @classmethod
    async def dial(cls, host: str, port: int, tls: TlsContexts | None, timeout: float) -> Wire:
        """Connect to an address.

        Raises:
            BrokenError: Nothing listens there; `status` is the errno.
            AuthenticationError: The two could not agree on TLS.
        """
        name = f"{host}:{port}"
        options: dict[str, Any] = {}
        if tls is not None:
            options = {"ssl": tls.client, "ssl_handshake_timeout": timeout, **_parting()}
            options["server_hostname"] = host if tls.client.check_hostname else ""
        try:
            reader, writer = await asyncio.open_connection(host, port, **options)
        except ssl.SSLError as error:
            raise _no_tls(name, error) from None
        except OSError as error:
            if tls is not None and error.errno is None:
                raise _no_tls(name, error) from None
            raise BrokenError(
                f"cannot reach {name}: {words(error)}; is a node listening there?",
                code="link.unreachable",
                operation="link",
                peer=name,
                status=error.errno,
                detail=words(error),
            ) from None
        return cls(reader, writer, name)

    @classmethod
    async def take(cls, connection: socket.socket, tls: TlsContexts | None, timeout: float) -> Wire:
        """Serve a connection that was accepted.

        Raises:
            AuthenticationError: The two could not agree on TLS.
        """
        loop = asyncio.get_running_loop()
        host, port = connection.getpeername()[:2]
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        options: dict[str, Any] = {}
        if tls is not None:
            options = {"ssl": tls.server, "ssl_handshake_timeout": timeout, **_parting()}
        try:
            transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, **options)
        except (ssl.SSLError, OSError) as error:
            raise _no_tls(f"{host}:{port}", error) from None
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop), f"{host}:{port}")

    def limit_silence(self, seconds: float) -> None:
        """Have the kernel give up on a peer whose host has not confirmed anything for so long."""
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            self._writer.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000)
            )

    # ------------------------------------------------------------------ the handshake

    async def greet(self) -> None:
        """Hear which protocol the peer speaks.

        Raises:
            BrokenError: The peer is not cachefw, or of another version.
            AuthenticationError: It speaks TLS, and this end does not.
        """
        try:
            await messages.read_preamble(self._reader, self.name)
        except BrokenError as error:
            # A server learns that it does not like the client's certificate when the client's handshake is over.
            if self._writer.get_extra_info("ssl_object") is not None and error.code in ("link.lost", "link.hangup"):
                raise _no_tls(self.name, error) from None
            raise

    def seal(self, outgoing: Seal, incoming: Seal) -> None:
        """Seal every frame from now on, in both directions."""
        self._outgoing, self._incoming = outgoing, incoming

    def trust_no_more(self) -> None:
        """Take frames without a code from nobody, refusals included."""
        self._trusting = False

    async def expect(self, kind: type[Any]) -> tuple[Any, bytes]:
        """The next message, which must be of a kind, and its bytes."""
        message, body = await self._receive(messages.HANDSHAKE_LIMIT)
        if not isinstance(message, kind):
            raise BrokenError(
                f"{self.name} sent {type(message).__name__} instead of {kind.__name__}",
                code="link.protocol",
                operation="link",
                peer=self.name,
            )
        return message, body

    def refuse(self, error: CacheError, by: bytes) -> None:
        """Say why there will be no link."""
        self._outgoing = None
        self.send(messages.Refuse(error.code, str(error), by, error.status))

    # ------------------------------------------------------------------ messages

    async def receive(self) -> messages.Message:
        """The next message of a linked peer.

        Raises:
            BrokenError: The peer closed, refused, or sent nonsense.
            AuthenticationError: A frame is not sealed as it has to be, or the peer refused for want of proof.
            TransportUnavailable: The peer refused for want of a shared transport.
        """
        message, _ = await self._receive(messages.LIMIT)
        return message

    async def _receive(self, limit: int) -> tuple[messages.Message, bytes]:
        got = await messages.read_message(self._reader, self.name, limit, self._incoming, trusting=self._trusting)
        if got is None:
            raise BrokenError(
                f"{self.name} closed the connection: its process ended, or its network did",
                code="link.lost",
                operation="link",
                peer=self.name,
            )
        if isinstance(got[0], messages.Refuse):
            raise self._refused(got[0])
        return got

    def _refused(self, message: messages.Refuse) -> CacheError:
        families: dict[str, type[CacheError]] = {
            "transport": TransportUnavailable,
            "authentication": AuthenticationError,
        }
        return families.get(message.code.partition(".")[0], BrokenError)(
            f"{self.name} refused the link: {message.text}",
            code=message.code,
            operation="link",
            peer=self.name,
            status=message.status,
            facts={"by": message.by},
        )

    def send(self, message: messages.Message) -> bytes:
        """Send a message; the frame as it went out."""
        frame = messages.encode(message, self._outgoing)
        self._writer.write(frame)
        return frame

    # ------------------------------------------------------------------ its end

    def say_no_more(self) -> None:
        """Close this half where the connection has halves."""
        if self._writer.can_write_eof() and not self._writer.is_closing():
            self._writer.write_eof()

    async def until_over(self) -> None:
        """Read what still comes, and forget it, until the peer has closed."""
        with contextlib.suppress(OSError):
            while await self._reader.read(messages.HANDSHAKE_LIMIT):
                pass

    def close(self) -> None:
        """Close both halves."""
        self._writer.close()

    async def closed(self) -> None:
        """Wait until nothing of it is left, and cut it off when that takes long."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), _PARTING)
        self._writer.transport.abort()
        # The transport lets go of its socket in the loop's next round.
        await asyncio.sleep(0)


def _parting() -> dict[str, float]:
    return {"ssl_shutdown_timeout": _PARTING} if sys.version_info >= (3, 11) else {}


def _no_tls(name: str, error: OSError) -> AuthenticationError:
    reason = getattr(error, "verify_message", "") or getattr(error, "reason", "") or error.strerror or str(error)
    return AuthenticationError(
        f"no TLS with {name}: {reason or 'it closed the connection'}; do both nodes have tls=, with certificates that "
        "the other's CA signed?",
        code="authentication.tls",
        operation="link",
        peer=name,
        detail=str(error) or None,
    )
