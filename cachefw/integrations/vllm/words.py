"""What workers tell each other, by notifications."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from cachefw.links.messages import NOTIFY_LIMIT

__all__ = ["Done", "Failed", "Release", "Renew", "Stop", "Want", "Word", "decode", "encode", "pairs_of", "wants"]

#: Blocks that one notification can name.
_BLOCKS = (NOTIFY_LIMIT - 4096) // 12


class Release(msgspec.Struct, frozen=True, tag="free"):
    """To a prefill instance: a request is not needed any more.

    Attributes:
        request: Its name there, or ``@`` and a transfer id.
    """

    request: str


class Renew(msgspec.Struct, frozen=True, tag="keep"):
    """To a prefill instance: a request's lease starts anew."""

    request: str


class Want(msgspec.Struct, frozen=True, tag="want"):
    """To a prefill instance: write a request's blocks to me.

    Attributes:
        token: The receiver's name for this, said again in the answer.
        request: As in `Release`.
        slot: Where the ledger there says whether the request is still kept; -1 when that is not known yet.
        use: Which use of the slot is meant.
        prompt: Digest of the prompt; "" when there is none.
        pairs: int32 triples: group of layers, place among the request's blocks, block to fill.
        more: Further notifications with the same token follow.
    """

    token: int
    request: str
    slot: int
    use: int
    prompt: str
    pairs: bytes
    more: bool


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """To a prefill instance: do not write any more. Answered by `Failed`, or by the `Done` that was on its way."""

    token: int


class Done(msgspec.Struct, frozen=True, tag="done"):
    """To a decode instance: every byte has been written."""

    token: int
    pieces: int


class Failed(msgspec.Struct, frozen=True, tag="fail"):
    """To a decode instance: nothing is written any more, and not all was."""

    token: int
    reason: str


Word = Release | Renew | Want | Stop | Done | Failed


def encode(word: Word) -> bytes:
    """A notification."""
    return msgspec.msgpack.encode(word)


_DECODER = msgspec.msgpack.Decoder(Word)


def decode(payload: bytes) -> Word:
    """What `encode` made.

    Raises:
        msgspec.MsgspecError: It is something else.
    """
    word: Word = _DECODER.decode(payload)
    return word


def wants(
    token: int, request: str, slot: int, use: int, prompt: str, pairs: Sequence[tuple[int, int, int]]
) -> Iterator[Want]:
    """As many `Want` as it takes."""
    triples = np.asarray(pairs, "<i4").reshape(-1, 3)
    for begin in range(0, len(triples), _BLOCKS):
        part = triples[begin : begin + _BLOCKS]
        yield Want(token, request, slot, use, prompt, part.tobytes(), begin + _BLOCKS < len(triples))


def pairs_of(parts: Sequence[Want]) -> NDArray[np.int32]:
    """Their pairs, as rows of three.

    Raises:
        ValueError: They are not whole triples.
    """
    return np.frombuffer(b"".join(part.pairs for part in parts), "<i4").reshape(-1, 3)
