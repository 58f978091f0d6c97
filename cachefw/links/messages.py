"""What goes over the control channel: a preamble, then length-prefixed frames of msgpack.

The preamble is the part that no version changes, so that two versions can at least name each other. Nothing is
allocated for a frame before its length was found acceptable, and nothing is ever unpickled.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from cachefw.errors import AuthenticationError, BrokenError, CacheError
from cachefw.links.auth import CODE_BYTES, NONCE_BYTES, Seal
from cachefw.published import PublishedCache, PublishedMemory

__all__ = [
    "PREAMBLE",
    "PROTOCOL",
    "Accept",
    "Alive",
    "Answer",
    "Challenge",
    "Choose",
    "Goodbye",
    "Hello",
    "Introduce",
    "Message",
    "Notify",
    "Publish",
    "Question",
    "Ready",
    "Refuse",
    "Settled",
    "Sync",
    "Synced",
    "Withdraw",
    "Withdrawn",
    "body_of",
    "encode",
    "publications",
    "read_message",
    "read_preamble",
]

#: Version of the frames below.
PROTOCOL = 1
_PREAMBLE = struct.Struct("<8sII")
_MAGIC = b"cachefw\n"
#: How a TLS alert or handshake begins.
_TLS_RECORDS = (0x15, 0x16)
#: Says which protocol this is, before anything else.
PREAMBLE = _PREAMBLE.pack(_MAGIC, PROTOCOL, 0)
_LENGTH = struct.Struct("<I")
#: The longest frame that a stranger may send, and a linked peer.
HANDSHAKE_LIMIT = 64 * 2**10
LIMIT = 4 * 2**20
#: The longest notification.
NOTIFY_LIMIT = 64 * 2**10


#: Set in the length of a frame that ends with a code.
_SEALED = 2**31

_Nonce = Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
_Incarnation = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_ClusterId = Annotated[int, msgspec.Meta(ge=0)]
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, lt=10**6)]
_Text = Annotated[str, msgspec.Meta(max_length=256)]
_Names = Annotated[list[_Text], msgspec.Meta(max_length=64)]
_Card = Annotated[bytes, msgspec.Meta(max_length=4096)]


class _Message(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


class Hello(_Message):
    """The dialler's first frame: a number used once, and what it demands ("secret")."""

    nonce: _Nonce
    demands: _Names


class Challenge(_Message):
    """The same about who was dialled. Frames after this one are sealed where a secret is shared."""

    nonce: _Nonce
    demands: _Names


class Introduce(_Message):
    """Who dials: its cluster, this start of it, the seconds of silence it bears, its port (0: it takes no links)."""

    cluster_id: _ClusterId
    incarnation: _Incarnation
    software: _Text
    lease: _Seconds
    port: _Port
    transports: _Names


class Accept(_Message):
    """The same about who was dialled, its transports with their cards, best first."""

    cluster_id: _ClusterId
    incarnation: _Incarnation
    software: _Text
    lease: _Seconds
    port: _Port
    transports: Annotated[list[tuple[_Text, _Card]], msgspec.Meta(max_length=64)]


class Refuse(_Message):
    """Why no link is made: a stable code, words, the incarnation of who refuses, and a runtime's number, if any."""

    code: str
    text: str
    by: bytes
    status: int | None = None


class Choose(_Message):
    """The transport that the dialler picked, and its card there."""

    transport: _Text
    card: _Card


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


class Alive(_Message):
    """Says nothing but that the sender is there."""


class Goodbye(_Message):
    """The sender closes the link."""

    reason: str


class Settled(_Message):
    """The sender's end is down: no byte that it asked for can move any more. Its last word."""


Message = (
    Hello
    | Challenge
    | Introduce
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
    | Alive
    | Goodbye
    | Settled
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message, seal: Seal | None = None) -> bytes:
    """A frame, ready to be written; with its code when there is a seal."""
    body = _encoder.encode(message)
    if seal is None:
        return _LENGTH.pack(len(body)) + body
    return _LENGTH.pack(len(body) | _SEALED) + body + seal.code(body)


def body_of(frame: bytes) -> bytes:
    """What a frame without a code says."""
    return frame[_LENGTH.size :]


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


async def read_preamble(reader: asyncio.StreamReader, peer: str) -> None:
    """Check which protocol the peer speaks.

    Raises:
        BrokenError: It is not cachefw, or another version.
    """
    bytes_ = await _read(reader, peer, _PREAMBLE.size)
    if not bytes_:
        text = f"{peer} closed the connection without a word"
        raise BrokenError(text, code="link.hangup", operation="link", peer=peer)
    magic, version, _ = _PREAMBLE.unpack(bytes_)
    if magic[0] in _TLS_RECORDS and magic[1] == 3:
        text = f"{peer} speaks TLS, and this node does not: give both nodes tls=, or neither"
        raise AuthenticationError(text, code="authentication.tls", operation="link", peer=peer)
    if magic != _MAGIC:
        raise _broken(f"{peer} does not speak cachefw's protocol: it began with {magic!r}", peer)
    if version != PROTOCOL:
        raise _broken(f"{peer} speaks version {version} of the link protocol, this is version {PROTOCOL}", peer)


async def read_message(
    reader: asyncio.StreamReader, peer: str, limit: int, seal: Seal | None = None, *, trusting: bool = False
) -> tuple[Message, bytes] | None:
    """The next message and its bytes, or None when the peer closed between two.

    Args:
        reader: Where from.
        peer: Who it is, for errors.
        limit: The longest body taken.
        seal: What every frame has to be sealed with.
        trusting: Take a refusal without a code too: who refuses for want of a secret has nothing to seal it with.

    Raises:
        BrokenError: A frame that is too long, cut off, or malformed.
        AuthenticationError: A frame whose code is missing or wrong.
    """
    header = await _read(reader, peer, _LENGTH.size)
    if not header:
        return None
    (length,) = _LENGTH.unpack(header)
    sealed, length = bool(length & _SEALED), length & ~_SEALED
    if length > limit:
        raise _broken(f"{peer} announced a frame of {length:,} bytes; at most {limit:,} are taken", peer)
    body = await _read(reader, peer, length)
    if len(body) < length:
        raise _broken(f"{peer} closed the connection in the middle of a frame", peer)
    if sealed:
        code = await _read(reader, peer, CODE_BYTES)
        if seal is None or not seal.fits(body, code):
            text = "the two nodes have different secrets, or somebody between them changed it"
            raise _unproved(f"the code of a frame from {peer} does not fit: {text}", peer)
    try:
        message: Message = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _broken(f"{peer} sent a malformed frame: {error}", peer) from None
    if seal is not None and not sealed and not (trusting and isinstance(message, Refuse)):
        raise _unproved(f"{peer} sent {type(message).__name__} without the code that the shared secret gives it", peer)
    return message, body


def _unproved(text: str, peer: str) -> CacheError:
    return AuthenticationError(text, code="authentication.mismatch", operation="link", peer=peer)


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
