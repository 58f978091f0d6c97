"""Ranges of memory by the thousand: from any form to arrays, and checked against each other."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from cachefw.cache import as_int
from cachefw.errors import CacheError, RequestError, refusal
from cachefw.memory import is_memory, owner_of, region_of

__all__ = ["Pieces", "addresses", "from_arguments", "refuse_feedback", "refuse_overlap", "span"]

U64 = NDArray[np.uint64]


@attrs.frozen(eq=False)
class Pieces:
    """Ranges to move, three uint64 arrays of equal size: item i is ``length[i]`` bytes.

    Every `group` pieces in a row lie near each other on either side, and may be looked for as one. Where they are
    `scratch`, the arrays were made for these pieces alone and are overwritten when neighbours are joined. `owners` are
    kept alive until the pieces have moved.
    """

    local: U64
    remote: U64
    length: U64
    group: int = 1
    scratch: bool = False
    owners: tuple[object, ...] = ()


def _bad(text: str, builtin: type[Exception] = ValueError) -> CacheError:
    return refusal(RequestError, {builtin}, text, operation="transfer")


def from_arguments(local_addrs: Any, remote_addrs: Any, lengths: Any, *, writable: bool) -> Pieces:
    """Pieces from what a caller gives.

    Args:
        local_addrs: Addresses, or tensors and the like, whose addresses are taken.
        remote_addrs: Addresses.
        lengths: Bytes; None takes those of the tensors.
        writable: Whether the local side is written: read-only tensors are refused.

    Raises:
        RequestError: Also a `TypeError`, `ValueError` or `AttributeError`: not integers, not as many of each, or more
            bytes than a tensor has.
    """
    owners: tuple[object, ...] = ()
    if type(local_addrs) is not int:
        local_addrs, lengths, owners = _resolved(local_addrs, lengths, writable)
    wanted = Pieces(
        addresses("local_addrs", local_addrs),
        addresses("remote_addrs", remote_addrs),
        addresses("lengths", lengths),
        owners=owners,
    )
    sizes = len(wanted.local), len(wanted.remote), len(wanted.length)
    if len(set(sizes)) != 1:
        raise _bad(f"{sizes[0]} local addresses, {sizes[1]} remote addresses and {sizes[2]} lengths; give one of each")
    if not sizes[0]:
        raise _bad("there is nothing to move: the lists are empty")
    if not wanted.length.all():
        raise _bad(f"lengths[{int(np.argmin(wanted.length))}] is 0; every piece has at least 1 byte")
    return wanted


def _resolved(values: Any, lengths: Any, writable: bool) -> tuple[Any, Any, tuple[object, ...]]:
    """Addresses in the place of tensors and the like, the lengths, and the tensors."""
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu" and values.itemsize > 2:
        # An array of addresses; smaller integers are no addresses, so they are memory.
        return values, lengths, ()
    several = isinstance(values, (list, tuple))
    listed = list(values) if several else [values]
    if not several and not is_memory(values):
        return values, lengths, ()
    if several and not (set(map(type, listed)) - {int} and any(map(is_memory, listed))):
        return values, lengths, ()
    sizes: dict[int, int] = {}
    owners = []
    for index, value in enumerate(listed):
        if is_memory(value):
            region = region_of(value, writable=writable)
            listed[index], sizes[index] = region.address, region.length
            owners.append(owner_of(value))
    if lengths is None:
        if len(sizes) != len(listed):
            raise _bad(f"lengths is None, and {len(listed) - len(sizes)} local addresses are plain; give lengths")
        return listed, list(sizes.values()), tuple(owners)
    asked = addresses("lengths", lengths).tolist()
    for index, size in sizes.items():
        if index < len(asked) and asked[index] > size:
            raise _bad(f"lengths[{index}] is {asked[index]:,}, and local_addrs[{index}] has {size:,} bytes")
    return listed, lengths, tuple(owners)


def span(address: int, length: int) -> str:
    """A range in words."""
    return f"[{address:#x}, {address + length:#x})"


def addresses(name: str, values: Any) -> U64:
    """Addresses or lengths of any integer form as uint64, without a loop where the form allows it.

    Raises:
        RequestError: Also a `TypeError`, `ValueError` or `AttributeError`: no integers within 0 ... 2^64 - 1.
    """
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


def refuse_overlap(starts: U64, lengths: U64, operation: str) -> None:
    """Pieces run in any order and at once, so a byte that two of them write would be chance."""
    if len(starts) < 2:
        return
    # Sorting is several times faster when nobody asks where each went, and mostly it tells enough.
    ordered = np.sort(starts)
    if (ordered[1:] - ordered[:-1] >= lengths.max()).all():
        return
    del ordered
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable")
        starts, lengths = starts[order], lengths[order]
        del order
    clash = np.flatnonzero(starts[:-1] + lengths[:-1] > starts[1:])
    if len(clash):
        first = int(clash[0])
        one, other = (span(int(starts[i]), int(lengths[i])) for i in (first, first + 1))
        raise _bad(f"two pieces of this {operation} write the same bytes: {one} and {other}")


def refuse_feedback(into: U64, out_of: U64, lengths: U64, operation: str) -> None:
    """Within one process a byte that one piece writes and another reads would be chance as well."""
    order = np.argsort(into, kind="stable")
    starts = into[order]
    ends = starts + lengths[order]
    # Written ranges do not overlap: the last that begins before a source ends is the one that reaches furthest.
    last = np.searchsorted(starts, out_of + lengths, side="left") - 1
    clash = np.flatnonzero((last >= 0) & (ends[last] > out_of))
    if len(clash):
        piece = int(clash[0])
        target = int(order[last[piece]])
        read, written = span(int(out_of[piece]), int(lengths[piece])), span(int(into[target]), int(lengths[target]))
        raise _bad(
            f"a piece of this {operation} reads {read}, of which another writes {written}; their order is not defined, "
            "so make two calls of them"
        )
