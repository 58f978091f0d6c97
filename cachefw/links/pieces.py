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
from cachefw.cache import as_int
from cachefw.errors import CacheError, RequestError, refusal
from cachefw.layout import Pieces
from cachefw.published import PublishedMemory
from cachefw.registry import RangeTable, Registry
from cachefw.transport import Batch, Operation

__all__ = ["Checked", "check", "from_arguments"]

U64 = NDArray[np.uint64]


class _Ends(Protocol):
    """Both ends of a link, as far as checking needs them."""

    registry: Registry

    @property
    def peer_name(self) -> str: ...

    @property
    def memories(self) -> list[PublishedMemory]: ...

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


def from_arguments(local_addrs: Any, remote_addrs: Any, lengths: Any) -> Pieces:
    """Pieces from what a caller of `Link.read` gives.

    Raises:
        RequestError: Also a `TypeError`, `ValueError` or `AttributeError`: not integers, or not as many of each.
    """
    wanted = Pieces(_u64("local_addrs", local_addrs), _u64("remote_addrs", remote_addrs), _u64("lengths", lengths))
    sizes = len(wanted.local), len(wanted.remote), len(wanted.length)
    if len(set(sizes)) != 1:
        raise _bad(f"{sizes[0]} local addresses, {sizes[1]} remote addresses and {sizes[2]} lengths; give one of each")
    if not sizes[0]:
        raise _bad("there is nothing to move: the lists are empty")
    if not wanted.length.all():
        raise _bad(f"lengths[{int(np.argmin(wanted.length))}] is 0; every piece has at least 1 byte")
    return wanted


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
    _refuse_overlap(joined.local if operation is Operation.READ else joined.remote, joined.length, operation)
    local_ids, remote_ids = _distinct(local), _distinct(remote)
    ends.check_rights(operation, remote_ids)
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


def _span(address: int, length: int) -> str:
    return f"[{address:#x}, {address + length:#x})"


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
        f"piece {index}: local {_span(address, length)} is not in registered memory: {hint}",
        facts={"index": index, "address": address, "length": length},
    )


def _beyond(ends: _Ends, wanted: Pieces, index: int, operation: Operation) -> CacheError:
    address, length = int(wanted.remote[index]), int(wanted.length[index])
    published = ends.memories
    near = [m for m in published if m.address < address + length and address < m.address + m.length]
    if near:
        over = _missed(address, length, near[0].address, near[0].length)
        hint = f"it goes {over:,} bytes past memory {near[0].memory_id} there, {_span(near[0].address, near[0].length)}"
    else:
        listed = ", ".join(_span(m.address, m.length) for m in published[:5]) or "none"
        more = f" and {len(published) - 5} more" if len(published) > 5 else ""
        hint = f"nothing published is there; published are {listed}{more}"
    return _bad(
        f"piece {index}: remote {_span(address, length)} of {ends.peer_name} is out of reach of a {operation.value}: "
        + hint,
        facts={"index": index, "address": address, "length": length},
        peer=ends.peer_name,
    )


def _u64(name: str, values: Any) -> U64:
    """Addresses or lengths of any integer form as uint64, without a loop where the form allows it."""
    if values is None:
        raise _bad(f"{name} is None; give integers", AttributeError)
    if type(values) is int and 0 <= values < 2**64:
        return np.array([values], np.uint64)
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu":
        if values.dtype.kind == "i" and len(values) and int(values.min()) < 0:
            raise _bad(f"{name}[{int(np.argmin(values))}] is negative")
        return np.ascontiguousarray(values, np.uint64)
    single = as_int(values)
    if single is not None:
        values = [single]
    if not isinstance(values, (list, tuple)):
        raise _bad(f"{name} must be an int, a list of ints or an integer array, not {type(values).__name__}", TypeError)
    if set(map(type, values)) - {int}:
        for index, value in enumerate(values):
            if as_int(value) is None:
                builtin = AttributeError if value is None else TypeError
                raise _bad(f"{name}[{index}] must be an int, not {value!r} ({type(value).__name__})", builtin)
        values = [as_int(value) for value in values]
    try:
        return np.array(values, np.uint64)
    except OverflowError:
        index = next(i for i, value in enumerate(values) if not 0 <= value < 2**64)
        raise _bad(f"{name}[{index}] is {values[index]}, not within 0 ... 2^64 - 1") from None


def _refuse_overlap(starts: U64, lengths: U64, operation: Operation) -> None:
    """Pieces run in any order and at once, so a byte that two of them write would be chance."""
    if len(starts) < 2:
        return
    # Sorting is several times faster when nobody asks where each went, and mostly it tells enough.
    ordered = np.sort(starts)
    if (ordered[1:] - ordered[:-1] >= lengths.max()).all():
        return
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, lengths = starts[order], lengths[order]
    clash = np.flatnonzero(starts[:-1] + lengths[:-1] > starts[1:])
    if len(clash):
        first = int(clash[0])
        one, other = (_span(int(starts[i]), int(lengths[i])) for i in (first, first + 1))
        raise _bad(f"two pieces of this {operation.value} write the same bytes: {one} and {other}")
