"""What two instances tell each other through the engine: request parameters, and the shape of their caches."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from cachefw.errors import BrokenError

__all__ = ["Handshake", "Hold", "Remote", "differences", "digest", "offer", "parse"]

#: Changes when what is said here changes its meaning.
PROTOCOL = 2


class Handshake(msgspec.Struct, frozen=True):
    """What a worker tells its scheduler once its memory is registered.

    Attributes:
        card: How other instances reach the worker's node.
        shape: What its caches are, by name; both ends must agree in all of it.
    """

    card: bytes
    shape: dict[str, Any]


class Hold(msgspec.Struct, frozen=True):
    """Blocks that are kept for others.

    Attributes:
        seconds: For how long, if nobody comes.
        slot: Where the ledger says so.
        use: Which use of the slot this is.
    """

    seconds: float
    slot: int
    use: int


class _Extra(msgspec.Struct, frozen=True):
    protocol: int
    cards: list[str]
    shape: dict[str, Any]
    prompt: str
    lease: float
    slot: int
    use: int


class Remote(msgspec.Struct, frozen=True):
    """A prefill, as the decode side gets it in ``kv_transfer_params``.

    Attributes:
        engine: The instance; a new one after each start.
        request: The request's name there; ``@`` and the transfer id when it has not ended yet.
        blocks: For each group of layers the blocks, in order of the tokens; 0 where there is none any more. None when
            the prefill has not ended yet.
        tokens: How many tokens of the prompt they hold; -1 for all.
        cards: How to reach each rank.
        shape: What the caches there are.
        prompt: `digest` of the prompt; "" when the prefill has not ended yet.
        lease: Seconds for which the blocks are kept.
        slot: Where the ledger there says whether they still are; -1 when the prefill has not ended yet.
        use: Which use of the slot is meant.
    """

    engine: str
    request: str
    blocks: list[list[int]] | None
    tokens: int
    cards: list[bytes]
    shape: dict[str, Any]
    prompt: str
    lease: float
    slot: int
    use: int


class _Params(msgspec.Struct, frozen=True):
    remote_engine_id: str
    remote_request_id: str
    remote_block_ids: list[list[int]]
    remote_num_tokens: int
    cachefw: _Extra
    transfer_id: str = ""


def digest(tokens: Sequence[int] | None) -> str:
    """A short name of a prompt, so that a cache is never taken for that of another; "" when there are no tokens."""
    if tokens is None:
        return ""
    return hashlib.blake2b(np.asarray(tokens, "<i8").tobytes(), digest_size=16).hexdigest()


def offer(
    engine: str,
    request: str,
    blocks: Sequence[Sequence[int]],
    tokens: int,
    workers: Sequence[Handshake],
    prompt: str,
    hold: Hold,
) -> dict[str, Any]:
    """The ``kv_transfer_params`` that a client takes from the prefill to the decode instance; plain JSON."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": engine,
        "remote_request_id": request,
        "remote_block_ids": [list(group) for group in blocks],
        "remote_num_tokens": tokens,
        "tp_size": len(workers),
        "cachefw": {
            "protocol": PROTOCOL,
            "cards": [base64.b64encode(worker.card).decode() for worker in workers],
            "shape": workers[0].shape,
            "prompt": prompt,
            "lease": hold.seconds,
            "slot": hold.slot,
            "use": hold.use,
        },
    }


def parse(params: Mapping[str, Any]) -> Remote:
    """What `offer` made. With a ``transfer_id`` it may be of an earlier request: it then only says where.

    Raises:
        BrokenError: It is something else; the text says what is wrong with it.
    """
    try:
        got = msgspec.convert(dict(params), _Params)
        cards = [base64.b64decode(card, validate=True) for card in got.cachefw.cards]
    except (msgspec.ValidationError, ValueError) as error:
        raise BrokenError(f"kv_transfer_params are not those of a cachefw prefill: {error}", operation="vllm") from None
    if got.cachefw.protocol != PROTOCOL:
        raise BrokenError(
            f"the prefill instance speaks version {got.cachefw.protocol} of the connector's protocol, this one version "
            f"{PROTOCOL}; run the same cachefw on both",
            operation="vllm",
        )
    if got.transfer_id:
        where = got.cachefw
        name = "@" + got.transfer_id
        return Remote(got.remote_engine_id, name, None, -1, cards, where.shape, "", where.lease, -1, 0)
    return Remote(
        got.remote_engine_id,
        got.remote_request_id,
        got.remote_block_ids,
        got.remote_num_tokens,
        cards,
        got.cachefw.shape,
        got.cachefw.prompt,
        got.cachefw.lease,
        got.cachefw.slot,
        got.cachefw.use,
    )


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Every field in which two caches differ, in words; empty when blocks may move between them."""
    return [
        f"{name}: {here.get(name, 'nothing')!r} here, {there.get(name, 'nothing')!r} there"
        for name in sorted({*here, *there})
        if here.get(name) != there.get(name)
    ]
