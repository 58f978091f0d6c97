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
        fault: Why it cannot be loaded, when that was found too late to say so to the engine; else None.
    """

    local: list[int]
    remote: list[int]
    request: str
    cards: list[bytes]
    slot: int
    use: int
    fault: str | None = None


@dataclass
class Step(KVConnectorMetadata):
    """One step.

    Attributes:
        loads: By the request's name here.
        holds: Requests whose blocks are kept for others, by name.
        releases: (cards, request there) that are not needed any more.
        renewals: (cards, request there) whose lease is to start anew.
    """

    loads: dict[str, Load] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    releases: list[tuple[list[bytes], str]] = field(default_factory=list)
    renewals: list[tuple[list[bytes], str]] = field(default_factory=list)


@dataclass
class Registered(KVConnectorHandshakeMetadata):
    """What a worker tells its scheduler once its memory is registered."""

    handshake: Handshake
