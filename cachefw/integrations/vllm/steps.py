"""What a scheduler asks of its workers in one step of the engine; pickled by the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata, KVConnectorMetadata

from cachefw.integrations.vllm.exchange import Handshake, Hold

__all__ = ["Load", "Registered", "Step"]


@dataclass(frozen=True)
class Load:
    """Blocks to fetch for one request.

    Attributes:
        local: Blocks to fill.
        remote: As many blocks of the prefill instance.
        request: The request's name there, told to it when the last byte is here.
        cards: How to reach each rank there.
        slot: Where the ledger there says whether the blocks are still kept.
        use: Which use of the slot is meant.
        prompt: Digest of the prompt.
        pairs: Where the prefill instance writes: group of layers, place among the request's blocks, block to fill.
            `local` and `remote` are then empty.
        fault: Why it cannot be loaded, when that was found too late to say so to the engine; else None.
    """

    local: list[int]
    remote: list[int]
    request: str
    cards: list[bytes]
    slot: int
    use: int
    prompt: str = ""
    pairs: list[tuple[int, int, int]] = field(default_factory=list)
    fault: str | None = None


@dataclass(frozen=True)
class Computing:
    """A request that is computed for others.

    Attributes:
        transfer: What others call it before it has ended; "" when nobody does.
        prompt: Digest of its prompt.
        blocks: By group of layers, in order of the tokens.
        after: Tokens that will have been computed after the step.
        total: Tokens of the prompt.
    """

    transfer: str
    prompt: str
    blocks: tuple[list[int], ...]
    after: int
    total: int


@dataclass
class Step(KVConnectorMetadata):
    """One step.

    Attributes:
        loads: By the request's name here.
        holds: Requests whose blocks are kept for others, by name.
        whole: Those of `holds` that are written by this instance.
        computing: Requests that the step computes, and that others may want already.
        preempted: Those that have lost their blocks, and will be computed anew.
        dropped: Those that have ended, and are not kept; what others call them, by name.
        releases: (cards, request there) that are not needed any more.
        renewals: (cards, request there) whose lease is to start anew.
    """

    loads: dict[str, Load] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    whole: dict[str, Computing] = field(default_factory=dict)
    computing: dict[str, Computing] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    releases: list[tuple[list[bytes], str]] = field(default_factory=list)
    renewals: list[tuple[list[bytes], str]] = field(default_factory=list)


@dataclass
class Registered(KVConnectorHandshakeMetadata):
    """What a worker tells its scheduler once its memory is registered."""

    handshake: Handshake
