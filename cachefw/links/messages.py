"""What goes over the control channel: a preamble, then length-prefixed frames of msgpack.

The preamble is the part that no version changes, so that two versions can at least name each other. Nothing is
allocated for a frame before its length was found acceptable, and nothing is ever unpickled.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence

import msgspec

from cachefw.errors import BrokenError
from cachefw.published import PublishedCache, PublishedMemory

__all__ = [
    "PROTOCOL",
    "Accept",
    "Answer",
    "Choose",
    "Goodbye",
    "Hello",
    "Message",
    "Notify",
    "Publish",
    "Question",
    "Ready",
    "Refuse",
    "Sync",
    "Synced",
    "Withdraw",
    "Withdrawn",
    "encode",
    "publications",
    "read_message",
    "read_preamble",
    "write_preamble",
]

#: Version of the frames below.
PROTOCOL = 1
_PREAMBLE = struct.Struct("<8sII")
_MAGIC = b"cachefw\n"
_LENGTH = struct.Struct("<I")
#: The longest frame that a stranger may send, and a linked peer.
HANDSHAKE_LIMIT = 64 * 2**10
LIMIT = 4 * 2**20
#: The longest notification.
NOTIFY_LIMIT = 64 * 2**10


class _Message(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


class Hello(_Message):
    """Who dials: its cluster, this start of it, its software, and its transports with their cards, best first."""

    cluster_id: int
    incarnation: bytes
    nonce: bytes
    software: str
    transports: list[tuple[str, bytes]]


class Accept(_Message):
    """The same about who was dialled."""

    cluster_id: int
    incarnation: bytes
    nonce: bytes
    software: str
    transports: list[tuple[str, bytes]]


class Refuse(_Message):
    """Why no link is made: a stable code, words, the incarnation of who refuses, and a runtime's number, if any."""

    code: str
    text: str
    by: bytes
    status: int | None = None


class Choose(_Message):
    """The transport that the dialler picked."""

    transport: str


class Ready(_Message):
    """The channel is open and the table is complete."""


class Publish(_Message):
    """Memory and caches that the receiver may use from now on."""

    memories: list[PublishedMemory]
    caches: list[PublishedCache]


class Withdraw(_Message):
    """Memory and caches to let go of; answered when nothing here can touch them any more."""

    serial: int
    memory_ids: list[int]
    cache_ids: list[int]


class Withdrawn(_Message):
    """Answers `Withdraw`."""

    serial: int


class Sync(_Message):
    """Asks for an answer, before which everything published so far has arrived."""

    serial: int


class Synced(_Message):
    """Answers `Sync`."""

    serial: int


class Notify(_Message):
    """Bytes for the application on the other side."""

    payload: bytes


class Question(_Message):
    """Asks a linked node something about itself: see `cachefw.links.answers`."""

    serial: int
    what: str


class Answer(_Message):
    """Answers `Question`, in JSON."""

    serial: int
    body: bytes


class Goodbye(_Message):
    """The sender closes the link on purpose."""

    reason: str


Message = (
    Hello
    | Accept
    | Refuse
    | Choose
    | Ready
    | Publish
    | Withdraw
    | Withdrawn
    | Sync
    | Synced
    | Notify
    | Question
    | Answer
    | Goodbye
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """A frame, ready to be written."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def publications(
    memories: Sequence[PublishedMemory], caches: Sequence[PublishedCache], budget: int = LIMIT // 4
) -> Iterator[Publish]:
    """Frames that publish any amount, each well under the limit; memory before the caches that are views of it."""
    batch: list[PublishedMemory] = []
    used = 0
    for memory in memories:
        cost = 128 + sum(len(name) + len(text) for name, text in memory.descriptions.items())
        if batch and used + cost > budget:
            yield Publish(batch, [])
            batch, used = [], 0
        batch.append(memory)
        used += cost
    if batch:
        yield Publish(batch, [])
    for cache in caches:
        yield Publish([], [cache])


def write_preamble(writer: asyncio.StreamWriter) -> None:
    """Say which protocol this is."""
    writer.write(_PREAMBLE.pack(_MAGIC, PROTOCOL, 0))


async def read_preamble(reader: asyncio.StreamReader, peer: str) -> None:
    """Check which protocol the peer speaks.

    Raises:
        BrokenError: It is not cachefw, or another version.
    """
    bytes_ = await _read(reader, peer, _PREAMBLE.size)
    if not bytes_:
        raise _broken(f"{peer} closed the connection without a word", peer)
    magic, version, _ = _PREAMBLE.unpack(bytes_)
    if magic != _MAGIC:
        raise _broken(f"{peer} does not speak cachefw's protocol: it began with {magic!r}", peer)
    if version != PROTOCOL:
        raise _broken(f"{peer} speaks version {version} of the link protocol, this is version {PROTOCOL}", peer)


async def read_message(reader: asyncio.StreamReader, peer: str, limit: int) -> Message | None:
    """The next message, or None when the peer closed between two.

    Raises:
        BrokenError: A frame that is too long, cut off, or malformed.
    """
    header = await _read(reader, peer, _LENGTH.size)
    if not header:
        return None
    (length,) = _LENGTH.unpack(header)
    if length > limit:
        raise _broken(f"{peer} announced a frame of {length:,} bytes; at most {limit:,} are taken", peer)
    body = await _read(reader, peer, length)
    if len(body) < length:
        raise _broken(f"{peer} closed the connection in the middle of a frame", peer)
    try:
        message: Message = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise _broken(f"{peer} sent a malformed frame: {error}", peer) from None
    return message


async def _read(reader: asyncio.StreamReader, peer: str, size: int) -> bytes:
    """So many bytes, or b"" when the peer closed before the first."""
    try:
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise _broken(f"{peer} closed the connection in the middle of a frame", peer) from None
        return b""
    except OSError as error:
        text = f"the connection to {peer} was lost: {error.strerror or error}"
        raise BrokenError(
            text, code="link.lost", operation="link", peer=peer, status=error.errno, detail=error.strerror
        ) from None


def _broken(text: str, peer: str) -> BrokenError:
    return BrokenError(text, code="link.protocol", operation="link", peer=peer)
