"""What a node counts, and the snapshot of it that `Node.stats` gives."""

from __future__ import annotations

import collections
import threading
from typing import Any

import attrs

from cachefw.reports import Finished

__all__ = ["Counters", "LinkStats", "MemoryStats", "Recent", "Stats", "Traffic"]

#: Transfers that are remembered, and rows of traffic that are kept apart.
RECENT, ROWS = 256, 4096


@attrs.frozen
class Traffic:
    """Transfers of one sort, since the node was made.

    Attributes:
        cluster_id: The peer's; None for peers that came when there were too many rows already.
        transport: Name of the transport.
        path: How the bytes went, in the transport's own word.
        operation: ``"read"`` or ``"write"``.
        outcome: ``"done"``, ``"failed"`` or ``"cancelled"``.
        staged: Whether they fell back on host memory in between, because the transport does not take the memory.
        transfers: How many.
        nbytes: Bytes asked for.
        pieces: Ranges asked for, after neighbours were joined.
        seconds: From posting until settled, added up.
    """

    cluster_id: int | None
    transport: str
    path: str
    operation: str
    outcome: str
    staged: bool
    transfers: int
    nbytes: int
    pieces: int
    seconds: float


@attrs.frozen
class Recent:
    """One of the last transfers.

    Attributes:
        number: Counts the transfers that the node observed, from 1; the same as in reports and spans.
        ended: When it had settled, in seconds of the epoch.
        peer: The peer in words.
        cluster_id: The peer's.
        transport: Name of the transport.
        path: How the bytes went.
        operation: ``"read"`` or ``"write"``.
        nbytes: Bytes asked for.
        pieces: Ranges asked for.
        seconds: From posting until settled.
        outcome: As for `Traffic`.
        code: The error's code; "" when every byte moved.
        staged: As for `Traffic`.
    """

    number: int
    ended: float
    peer: str
    cluster_id: int
    transport: str
    path: str
    operation: str
    nbytes: int
    pieces: int
    seconds: float
    outcome: str
    code: str
    staged: bool


@attrs.frozen
class LinkStats:
    """One link that is up, or that ended while something that the peer asked for may still move.

    Attributes:
        cluster_id: The peer's.
        peer: The peer in words.
        transport: Name of the transport.
        security: How the peer proved who it is.
        state: ``"up"``, ``"closed"`` or ``"broken"``.
        inflight: Transfers of this node that have not settled.
        inflight_bytes: Bytes that they asked for.
        unsettled: Those of them whose deadline has passed, or whose wait was broken off.
        unsettled_bytes: Bytes that they asked for.
        caches: Caches that the peer published.
        memories: Regions that the peer published.
    """

    cluster_id: int
    peer: str
    transport: str
    security: str
    state: str
    inflight: int
    inflight_bytes: int
    unsettled: int
    unsettled_bytes: int
    caches: int
    memories: int


@attrs.frozen
class MemoryStats:
    """Registered memory of one kind.

    Attributes:
        kind: Value of `cachefw.MemoryKind`.
        regions: How many.
        nbytes: Their bytes.
        remote_accessible: Bytes of those that linked peers may reach.
    """

    kind: str
    regions: int
    nbytes: int
    remote_accessible: int


@attrs.frozen
class Stats:
    """A node at one moment, and what it has counted since it was made.

    Attributes:
        cluster_id: The node's.
        software: The node's version in words.
        time: When this was taken, in seconds of the epoch.
        security: How peers prove who they are.
        metrics: Whether transfers are counted; where not, `traffic` and `recent` are empty.
        links_made: Links that came up, whoever dialled.
        links_closed: Links that were closed on this side.
        links_broken: Links that the peer closed, or that failed.
        refused: Handshakes of strangers that made no link, by the code of the error.
        retries: Dials that were tried again.
        timeouts: Deadlines of transfers that passed.
        caches: Registered caches.
        memory: Registered memory, by kind.
        links: Links that are up, and such as may still be moving something.
        traffic: Transfers, by peer, transport, path, operation and outcome.
        recent: The last transfers, in the order in which they settled.
    """

    cluster_id: int
    software: str
    time: float
    security: str
    metrics: bool
    links_made: int
    links_closed: int
    links_broken: int
    refused: dict[str, int]
    retries: int
    timeouts: int
    caches: int
    memory: tuple[MemoryStats, ...]
    links: tuple[LinkStats, ...]
    traffic: tuple[Traffic, ...]
    recent: tuple[Recent, ...]

    def as_dict(self) -> dict[str, Any]:
        """The same as values that JSON can hold; names are those of the attributes, tuples become lists."""
        return attrs.asdict(self, value_serializer=lambda _, __, value: list(value) if type(value) is tuple else value)


class Counters:
    """What one node counts.

    Args:
        recent: Transfers to remember.
        rows: Rows of traffic to keep apart; what comes beyond is added up without its peer.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, recent: int = RECENT, rows: int = ROWS) -> None:
        self._lock = threading.Lock()
        self._events: collections.Counter[str] = collections.Counter()
        self._refused: collections.Counter[str] = collections.Counter()
        self._rows: dict[tuple[Any, ...], list[Any]] = {}
        self._limit = rows
        self._recent: collections.deque[Finished] = collections.deque(maxlen=recent)

    def count(self, event: str) -> None:
        """Something happened that `Stats` has a field for."""
        with self._lock:
            self._events[event] += 1

    def refuse(self, code: str) -> None:
        """A stranger's handshake made no link."""
        with self._lock:
            self._refused[code] += 1

    def record(self, finished: Finished) -> None:
        """A transfer has settled, or could not be started."""
        _, _, _, cluster_id, transport, path, operation, nbytes, pieces, seconds, outcome, _, staged = finished
        key = cluster_id, transport, path, operation, outcome, staged
        with self._lock:
            row = self._rows.get(key) or self._row(key)
            row[0] += 1
            row[1] += nbytes
            row[2] += pieces
            row[3] += seconds
            self._recent.append(finished)

    def _row(self, key: tuple[Any, ...]) -> list[Any]:
        if len(self._rows) >= self._limit:
            key = (None, *key[1:])
        return self._rows.setdefault(key, [0, 0, 0, 0.0])

    def events(self) -> dict[str, Any]:
        """The fields of `Stats` that `count` and `refuse` fill."""
        names = ("links_made", "links_closed", "links_broken", "retries", "timeouts")
        with self._lock:
            return {**{name: self._events[name] for name in names}, "refused": dict(self._refused)}

    def traffic(self) -> tuple[Traffic, ...]:
        """Transfers by sort, in the order in which the sorts came up."""
        with self._lock:
            rows = [(*key, *row) for key, row in self._rows.items()]
        return tuple(Traffic(*row) for row in rows)

    def recent(self) -> tuple[Recent, ...]:
        """The last transfers."""
        with self._lock:
            finished = list(self._recent)
        return tuple(Recent(*values) for values in finished)
