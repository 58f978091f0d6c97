"""Lists of copies: made once, issued in one call as often as needed."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import attrs

from cachefw.errors import RequestError, refusal

from ._acl import ffi, lib
from .status import status_error

if TYPE_CHECKING:
    from .streams import Event, Stream

__all__ = ["Copies", "CopyKind", "Issued"]


class CopyKind(enum.IntEnum):
    """From where to where."""

    HOST_TO_HOST = lib.ACL_MEMCPY_HOST_TO_HOST
    HOST_TO_DEVICE = lib.ACL_MEMCPY_HOST_TO_DEVICE
    DEVICE_TO_HOST = lib.ACL_MEMCPY_DEVICE_TO_HOST
    DEVICE_TO_DEVICE = lib.ACL_MEMCPY_DEVICE_TO_DEVICE
    DEFAULT = lib.ACL_MEMCPY_DEFAULT


@attrs.frozen
class Issued:
    """What the last `Copies.post` did.

    Attributes:
        items: Copies that may be moving now.
        batches: How many calls of aclrtMemcpyBatchAsync that took; 0 when each copy was a call.
    """

    items: int
    batches: int


class Copies:
    """Copies of one kind on one stream.

    `post` is one call of native code, whatever the number of items: it makes the stream's context current, issues
    them, records the event and gives the caller's context back. Nothing is allocated in it.

    Thread safety: different threads may post different objects at once, and one object one after the other.

    Args:
        stream: Where they are queued.
        dst: Addresses to write to: a contiguous buffer of unsigned 64-bit numbers, such as a numpy array. It must not
            change while the object is in use; the object keeps it alive.
        src: Addresses to read from, as many.
        length: Bytes, as many. The caller answers for all ranges.
        kind: From where to where.
        event: Recorded behind the last copy of each `post`.
        batched: False issues one call per copy even where the runtime can take many.
    """

    def __init__(
        self,
        stream: Stream,
        dst: Any,
        src: Any,
        length: Any,
        kind: CopyKind,
        *,
        event: Event | None = None,
        batched: bool = True,
    ) -> None:
        self._stream = stream
        self._event = event
        self._lists = [_list(name, values) for name, values in (("dst", dst), ("src", src), ("length", length))]
        counts = {len(values) for values in self._lists}
        if len(counts) > 1:
            raise refusal(
                RequestError,
                {ValueError},
                f"dst, src and length have {', '.join(str(len(values)) for values in self._lists)} items",
                operation="Copies",
            )
        self._result = ffi.new("cfw_acl_result *")
        self._copies = ffi.new(
            "cfw_acl_copies *",
            {
                "context": stream.scope.context,
                "stream": stream.raw,
                "event": ffi.NULL if event is None else event.raw,
                "dst": self._lists[0],
                "src": self._lists[1],
                "length": self._lists[2],
                "count": counts.pop(),
                "kind": int(kind),
                "flags": 0 if batched else lib.CFW_ACL_NO_BATCH,
            },
        )

    def __len__(self) -> int:
        return int(self._copies.count)

    @property
    def issued(self) -> Issued:
        """What the last `post` did."""
        return Issued(self._result.issued, self._result.batches)

    def post(self) -> None:
        """Issue all of them.

        Raises:
            CacheError: One was refused, by its status. ``facts["failed"]`` has its index, or is empty when none is at
                fault; ``facts["issued"]`` says how many are moving all the same. The event, if any, stands behind
                those, unless ``facts["event"]`` has the status of recording it.
            ClosedError: The stream or the event is closed.
        """
        copies, result = self._copies, self._result
        # Only looked at: whoever is closed raises. Their context cannot be closed before them.
        _ = self._stream.raw
        if self._event is not None:
            _ = self._event.raw
        status = lib.cfw_acl_copy_batch(copies, result)
        if status:
            at_fault = result.failed < copies.count
            raise status_error(
                status,
                "aclrtMemcpyBatchAsync" if result.batches else "aclrtMemcpyAsync",
                where=f" at item {result.failed} of {copies.count}" if at_fault else "",
                failed=(result.failed,) if at_fault else (),
                issued=result.issued,
                event=result.event,
            )


def _list(name: str, values: Any) -> Any:
    view = memoryview(values)
    if view.itemsize != 8 or view.format not in ("L", "Q", "=Q", "<Q", "@L", "@Q") or view.ndim != 1:
        raise refusal(
            RequestError,
            {TypeError},
            f"{name} is a list of {view.ndim} dimensions and format {view.format!r}; "
            "one dimension of unsigned 64-bit numbers is needed",
            operation="Copies",
        )
    return ffi.from_buffer("uint64_t[]", view)
