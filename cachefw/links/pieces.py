"""Checking what a read or write asks for, before anything native sees it.

Every piece lies in one local region and in one region that the peer published, on every transport alike; pieces that
follow each other are joined, and no byte is written twice. Arrays throughout: the cost of a piece is a few nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from cachefw import layout
from cachefw.errors import CacheError, RequestError, refusal
from cachefw.published import PublishedMemory
from cachefw.ranges import Pieces, refuse_overlap, span
from cachefw.registry import RangeTable, Registry
from cachefw.transport import Batch, Operation

__all__ = ["Checked", "check"]

U64 = NDArray[np.uint64]


class _Ends(Protocol):
    """Both ends of a link, as far as checking needs them."""

    registry: Registry

    @property
    def peer_name(self) -> str: ...

    @property
    def memories(self) -> list[PublishedMemory]: ...

    @property
    def strangers(self) -> list[PublishedMemory]: ...

    def remote_table(self) -> RangeTable: ...

    def sync(self) -> None: ...

    def check_rights(self, operation: Operation, memory_ids: Iterable[int]) -> None: ...


@attrs.frozen(eq=False)
class Checked:
    """A batch that may be prepared, and the memory it touches."""

    batch: Batch
    local_ids: list[int]
    remote_ids: list[int]


def _bad(text: str, builtin: type[Exception] = ValueError, **fields: Any) -> CacheError:
    return refusal(RequestError, {builtin}, text, operation="transfer", **fields)


def check(ends: _Ends, operation: Operation, wanted: Pieces) -> Checked:
    """Hold pieces against both tables, and join neighbours.

    Raises:
        RequestError: A piece lies outside a region on either side, or the peer does not allow it, or a byte would be
            written twice. The text names the piece, the nearest region, and by how much it is missed.
    """
    local, first = _find(ends.registry.table(), wanted.local, wanted)
    if first >= 0:
        raise _outside(ends, wanted, first)
    remote, first = _find(ends.remote_table(), wanted.remote, wanted)
    if first >= 0:
        # What the peer registered a moment ago may still be on its way.
        ends.sync()
        remote, first = _find(ends.remote_table(), wanted.remote, wanted)
        if first >= 0:
            raise _beyond(ends, wanted, first, operation)
    joined, (local, remote) = layout.join(wanted, local, remote)
    local_ids, remote_ids = _distinct(local), _distinct(remote)
    del local, wanted
    ends.check_rights(operation, remote_ids)
    refuse_overlap(joined.local if operation is Operation.READ else joined.remote, joined.length, operation.value)
    return Checked(Batch(joined.local, joined.remote, joined.length, remote), local_ids, remote_ids)


def _find(table: RangeTable, addresses: U64, wanted: Pieces) -> tuple[U64, int]:
    """As `RangeTable.find`. Whoever holds a group from its first byte to its last holds each of its pieces."""
    if wanted.group > 1:
        starts = addresses.reshape(-1, wanted.group)
        ends = starts + wanted.length.reshape(-1, wanted.group)
        if (starts < ends).all():
            low = starts.min(axis=1)
            ids, first = table.find(low, ends.max(axis=1) - low)
            if first < 0:
                return np.repeat(ids, wanted.group), -1
    return table.find(addresses, wanted.length)


def _distinct(ids: U64) -> list[int]:
    if len(ids) == 1:
        return [int(ids[0])]
    # Pieces of one region mostly stand together, so runs are few.
    edges = np.flatnonzero(ids[1:] != ids[:-1])
    return sorted({int(ids[0]), *ids[1:][edges].tolist()})


def _missed(address: int, length: int, start: int, size: int) -> int:
    return max(address + length - start - size, start - address)


def _outside(ends: _Ends, wanted: Pieces, index: int) -> CacheError:
    address, length = int(wanted.local[index]), int(wanted.length[index])
    near = list(ends.registry.overlapping(address, address + length))
    if near:
        region = near[0].region
        over = _missed(address, length, region.address, region.length)
        hint = f"it goes {over:,} bytes past {near[0]}, {region}"
        if over <= 0:
            hint = f"{near[0]} is {near[0].state.value}"
    else:
        hint = "no registered memory is there; register it first"
    return _bad(
        f"piece {index}: local {span(address, length)} is not in registered memory: {hint}",
        facts={"index": index, "address": address, "length": length},
    )


def _beyond(ends: _Ends, wanted: Pieces, index: int, operation: Operation) -> CacheError:
    address, length = int(wanted.remote[index]), int(wanted.length[index])
    published = ends.memories
    near, strange = (
        [m for m in table if m.address < address + length and address < m.address + m.length]
        for table in (published, ends.strangers)
    )
    if strange:
        hint = (
            f"memory {strange[0].memory_id} there is {strange[0].kind}, which the transport of this link does not "
            f"take; it is reached by {' or '.join(sorted(strange[0].descriptions)) or 'no transport'}"
        )
    elif near:
        over = _missed(address, length, near[0].address, near[0].length)
        hint = f"it goes {over:,} bytes past memory {near[0].memory_id} there, {span(near[0].address, near[0].length)}"
    else:
        listed = ", ".join(span(m.address, m.length) for m in published[:5]) or "none"
        more = f" and {len(published) - 5} more" if len(published) > 5 else ""
        hint = f"nothing published is there; published are {listed}{more}"
    return _bad(
        f"piece {index}: remote {span(address, length)} of {ends.peer_name} is out of reach of a {operation.value}: "
        + hint,
        facts={"index": index, "address": address, "length": length},
        peer=ends.peer_name,
    )
