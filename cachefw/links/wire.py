"""One control connection, as the handshake and the link use it."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs

from cachefw.errors import BrokenError, TransportUnavailable
from cachefw.links import messages

__all__ = ["Wire"]


@attrs.frozen
class Wire:
    """One control connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    name: str

    @property
    def host(self) -> str:
        """The IP address at which the peer is seen."""
        return str(self.writer.get_extra_info("peername")[0])

    async def receive(self, limit: int = messages.HANDSHAKE_LIMIT) -> messages.Message:
        """The next message.

        Raises:
            BrokenError: The peer closed, refused, or sent nonsense.
            TransportUnavailable: The peer refused for want of a shared transport.
        """
        message = await messages.read_message(self.reader, self.name, limit)
        if message is None:
            raise BrokenError(
                f"{self.name} closed the connection: its process ended, or its network did",
                code="link.lost",
                operation="link",
                peer=self.name,
            )
        if isinstance(message, messages.Refuse):
            cls = TransportUnavailable if message.code.startswith("transport.") else BrokenError
            text = f"{self.name} refused the link: {message.text}"
            raise cls(
                text,
                code=message.code,
                operation="link",
                peer=self.name,
                status=message.status,
                facts={"by": message.by},
            )
        return message

    async def expect(self, kind: type[Any]) -> Any:
        """The next message, which must be of a kind."""
        message = await self.receive()
        if not isinstance(message, kind):
            raise BrokenError(
                f"{self.name} sent {type(message).__name__} instead of {kind.__name__}",
                code="link.protocol",
                operation="link",
                peer=self.name,
            )
        return message

    def send(self, message: messages.Message) -> None:
        """Send a message."""
        self.writer.write(messages.encode(message))
