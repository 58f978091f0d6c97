"""Cards and descriptions on their way to a peer: recognised, and known to be whole, before UCX sees them.

UCX trusts the addresses and keys that it is given: a damaged one crashes it. So everything that comes from a peer
carries a mark, the version of this format, who made it, and a digest; what does not fit is refused here.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from cachefw.errors import BrokenError

from .status import TRANSPORT

__all__ = ["FORMAT", "Card", "Description", "open_card", "open_description", "seal"]

#: Changes whenever a card or a description changes its meaning.
FORMAT = 1
MOST = 4096
_MARK = b"cfw-rdma"
_DIGEST = 8


class Card(msgspec.Struct, frozen=True, array_like=True):
    """How peers reach a transport.

    Attributes:
        provider: Who made it, e.g. ``"ucx"``.
        version: Of the runtime below, e.g. ``(1, 13)``; both ends need the same.
        nonce: Which opening of a transport it is.
        address: The runtime's own.
        beacon: Where the nonce lies in the peer's memory: whoever reads it there has reached the right peer.
        key: The runtime's own, for the beacon.
    """

    provider: str
    version: tuple[int, int]
    nonce: bytes
    address: bytes
    beacon: int
    key: bytes


class Description(msgspec.Struct, frozen=True, array_like=True):
    """Registered memory.

    Attributes:
        nonce: That of the card.
        address: First byte.
        length: Bytes.
        key: The runtime's own.
    """

    nonce: bytes
    address: int
    length: int
    key: bytes


_Message = TypeVar("_Message", Card, Description)


def seal(message: Card | Description) -> bytes:
    """A message as bytes."""
    body = _MARK + bytes([FORMAT]) + msgspec.msgpack.encode(message)
    return body + _digest(body)


def open_card(data: bytes) -> Card:
    """A peer's card.

    Raises:
        BrokenError: It is damaged, or of another version.
    """
    return _open(data, Card, "the peer's card", "connect", "card")


def open_description(data: bytes, memory_id: int) -> Description:
    """What a peer says of its memory.

    Raises:
        BrokenError: It is damaged, or of another version.
    """
    return _open(data, Description, f"what the peer says of its memory {memory_id}", "attach", "description")


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST).digest()


def _open(data: bytes, kind: type[_Message], what: str, operation: str, code: str) -> _Message:
    start = len(_MARK) + 1
    fault = ""
    if len(data) > MOST:
        fault = f"it has {len(data):,} bytes, more than {MOST:,}"
    elif not data.startswith(_MARK) or len(data) < start + _DIGEST:
        fault = "it was not made by this transport, or not whole"
    elif data[len(_MARK)] != FORMAT:
        raise BrokenError(
            f"{what} is of format {data[len(_MARK)]}, and this cachefw-rdma speaks format {FORMAT}; install the same "
            "version at both ends",
            code=f"{code}.version",
            operation=operation,
            transport=TRANSPORT,
            facts={"format": data[len(_MARK)], "own": FORMAT},
        )
    elif _digest(data[:-_DIGEST]) != data[-_DIGEST:]:
        fault = "it was damaged on its way"
    else:
        try:
            return msgspec.msgpack.decode(data[start:-_DIGEST], type=kind)
        except msgspec.MsgspecError as error:
            fault = str(error)
    raise BrokenError(
        f"{what} makes no sense: {fault}", code=f"{code}.malformed", operation=operation, transport=TRANSPORT
    )
