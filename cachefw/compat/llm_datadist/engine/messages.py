"""What two instances tell each other over a link, as notifications."""

from __future__ import annotations

import msgspec

__all__ = ["Consume", "Consumed", "Hello", "Message", "Using", "decode", "encode"]

_MARK = b"llm_datadist 1 "


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First of all: how this side works. Both sides of a link have to agree."""

    get_mode: bool
    hixl: bool


class Using(msgspec.Struct, frozen=True, tag=True):
    """Hixl engine: whether this side uses the link, which each side takes up and gives up for itself."""

    on: bool


class Consume(msgspec.Struct, frozen=True, tag=True):
    """The tensors ``first`` to before ``stop`` of what a key names were pulled."""

    serial: int
    name: tuple[str, int, int]
    first: int
    stop: int


class Consumed(msgspec.Struct, frozen=True, tag=True):
    """The answer: that is noted, and a key that was pulled whole is gone."""

    serial: int


Message = Hello | Using | Consume | Consumed

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """A message as a notification."""
    return _MARK + _encoder.encode(message)


def decode(payload: bytes) -> Message | None:
    """The message in a notification, or None: it is from something else."""
    if not payload.startswith(_MARK):
        return None
    try:
        return _decoder.decode(payload[len(_MARK) :])
    except msgspec.MsgspecError:
        return None
