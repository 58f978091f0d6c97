"""Whether the process may open what UCX is about to open. Where it may not, UCX aborts the process."""

from __future__ import annotations

import contextlib
import os

from cachefw.errors import BrokenError, CacheError, TransportUnavailable

from .status import TRANSPORT

__all__ = ["check_descriptors"]

#: Descriptors that opening UCX, or connecting with several lanes, takes at most; 1.13 and 1.22 took fewer than half.
NEEDED = 64


def check_descriptors(operation: str) -> None:
    """Refuse what UCX would not survive.

    Raises:
        TransportUnavailable: Too few descriptors are left to open it.
        BrokenError: Too few are left to connect.
    """
    taken: list[int] = []
    try:
        # A pipe is always to be had where descriptors are; standard input may be closed.
        for _ in range(NEEDED // 2):
            taken.extend(os.pipe())
    except OSError as error:
        family: type[CacheError] = TransportUnavailable if operation == "open" else BrokenError
        raise family(
            f"{operation}: the process may open {len(taken)} more descriptors, and UCX aborts it when it has fewer "
            f"than it wants; leave it {NEEDED}, e.g. with ulimit -n",
            code="rdma.descriptors",
            operation=operation,
            transport=TRANSPORT,
            status=error.errno,
            detail=str(error),
            facts={"left": len(taken), "needed": NEEDED},
        ) from None
    finally:
        for number in taken:
            with contextlib.suppress(OSError):
                os.close(number)
