"""Ranges that a transfer may still touch although its deadline has passed."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachefw.errors import BusyError

__all__ = ["Quarantine"]

U64 = NDArray[np.uint64]


class _Held(Protocol):
    @property
    def what(self) -> str: ...


class Quarantine:
    """Which ranges are held, and by which transfer.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # For each transfer its ranges by start, the furthest end up to each, and whether it writes them.
        self._held: dict[_Held, tuple[U64, U64, bool]] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def holders(self) -> list[Any]:
        """The transfers, in the order in which their deadlines passed."""
        with self._lock:
            return list(self._held)

    def hold(self, holder: _Held, starts: U64, lengths: U64, *, writes: bool) -> None:
        """Refuse the ranges to others until `free`; what `holder` does not write, others may read."""
        order = np.argsort(starts, kind="stable")
        held = starts[order], np.maximum.accumulate((starts + lengths)[order]), writes
        with self._lock:
            self._held[holder] = held

    def free(self, holder: _Held) -> None:
        """The transfer has settled. One that holds nothing is no error."""
        with self._lock:
            self._held.pop(holder, None)

    def refuse(self, starts: U64, lengths: U64, operation: str, side: str, *, writes: bool) -> None:
        """Refuse ranges of which a byte is held, and written by either.

        Raises:
            BusyError: With the first such piece, and the transfer that holds it.
        """
        with self._lock:
            held = list(self._held.items())
        for holder, (firsts, furthest, written) in held:
            if not (writes or written):
                continue
            # The last range that begins before a piece ends; whether it, or one before it, reaches into the piece.
            row = np.searchsorted(firsts, starts + lengths, side="left") - 1
            clash = (row >= 0) & (furthest[row] > starts)
            if clash.any():
                index = int(np.argmax(clash))
                start, end = int(starts[index]), int(starts[index] + lengths[index])
                raise BusyError(
                    f"{operation}: piece {index}: {side} [{start:#x}, {end:#x}) may still be touched by the "
                    f"{holder.what}, whose deadline has passed; wait until it has settled",
                    code="busy.unsettled",
                    operation=operation,
                    facts={"index": index, "address": start, "length": end - start},
                )
