"""Streams and events."""

from __future__ import annotations

import math
from typing import Any

from ._acl import ffi, lib
from ._handle import Owned, Scope, pointer
from .copies import CopyKind
from .status import check, recent_message

__all__ = ["Event", "Stream"]


def _milliseconds(timeout: float) -> int:
    # Rounded up, and never 0: the runtime would take that for no time at all and -1 for any.
    return min(max(1, math.ceil(timeout * 1000)), 2**31 - 1)


class Event(Owned):
    """A point in a stream.

    Made by `Device.event`.
    """

    kind = "event"

    def __init__(self, scope: Scope, *, waitable: bool = False) -> None:
        made_p = ffi.new("aclrtEvent *")

        def create() -> Any:
            flag = lib.ACL_EVENT_SYNC if waitable else lib.ACL_EVENT_CAPTURE_STREAM_PROGRESS
            status = lib.cfw_aclrtCreateEventExWithFlag(made_p, flag)
            if status == lib.ACL_ERROR_RT_PARAM_INVALID and not waitable:
                # The runtime does not know the flag; the other kind can be queried as well.
                recent_message()
                status = lib.cfw_aclrtCreateEventExWithFlag(made_p, lib.ACL_EVENT_SYNC)
            if status == lib.CFW_ACL_MISSING:
                check(lib.cfw_aclrtCreateEvent(made_p), "aclrtCreateEvent")
            else:
                check(status, "aclrtCreateEventExWithFlag")
            return made_p[0]

        super().__init__(scope, create)

    def record(self, stream: Stream) -> None:
        """Put the point behind what the stream has to do now."""
        with self.scope.bound():
            check(lib.cfw_aclrtRecordEvent(self.raw, stream.raw), "aclrtRecordEvent")

    def query(self) -> bool:
        """Whether the stream has come past the point."""
        status_p = ffi.new("aclrtEventRecordedStatus *")
        with self.scope.bound():
            check(lib.cfw_aclrtQueryEventStatus(self.raw, status_p), "aclrtQueryEventStatus")
        return status_p[0] == lib.ACL_EVENT_RECORDED_STATUS_COMPLETE

    def synchronize(self) -> None:
        """Sleep until the stream has come past the point."""
        with self.scope.bound():
            check(lib.cfw_aclrtSynchronizeEvent(self.raw), "aclrtSynchronizeEvent")

    def _destroy(self, raw: Any) -> None:
        check(lib.cfw_aclrtDestroyEvent(raw), "aclrtDestroyEvent")


class Stream(Owned):
    """A queue of work for a device, done in order.

    Made by `Device.stream`.
    """

    kind = "stream"

    def __init__(self, scope: Scope, *, fast: bool = False) -> None:
        made_p = ffi.new("aclrtStream *")

        def create() -> Any:
            if fast:
                flags = lib.ACL_STREAM_FAST_LAUNCH | lib.ACL_STREAM_FAST_SYNC
                check(lib.cfw_aclrtCreateStreamWithConfig(made_p, 0, flags), "aclrtCreateStreamWithConfig")
            else:
                check(lib.cfw_aclrtCreateStream(made_p), "aclrtCreateStream")
            return made_p[0]

        super().__init__(scope, create)

    def copy(self, dst: int, src: int, length: int, kind: CopyKind) -> None:
        """Queue one copy. For many, `Copies` is one call.

        Args:
            dst: Address to write to; `length` bytes are the caller's there.
            src: Address to read from.
            length: Bytes.
            kind: From where to where. Between two places on the host it is not offered.

        Raises:
            CacheError: The runtime refused. What a device finds wrong later comes out of `synchronize`.
        """
        with self.scope.bound():
            check(
                lib.cfw_aclrtMemcpyAsync(pointer(dst), length, pointer(src), length, kind, self.raw),
                "aclrtMemcpyAsync",
                dst=dst,
                src=src,
                length=length,
            )

    def wait_for(self, event: Event) -> None:
        """Let what is queued from now on wait for an event of another stream."""
        with self.scope.bound():
            check(lib.cfw_aclrtStreamWaitEvent(self.raw, event.raw), "aclrtStreamWaitEvent")

    def query(self) -> bool:
        """Whether all that was queued is done."""
        status_p = ffi.new("aclrtStreamStatus *")
        with self.scope.bound():
            check(lib.cfw_aclrtStreamQuery(self.raw, status_p), "aclrtStreamQuery")
        return status_p[0] == lib.ACL_STREAM_STATUS_COMPLETE

    def synchronize(self, timeout: float | None = None) -> None:
        """Sleep until all that was queued is done.

        Args:
            timeout: Seconds; None waits as long as it takes.

        Raises:
            TransferTimeout: The time is over and the stream is still working; ``settled`` is False.
            CacheError: Something that was queued failed.
        """
        with self.scope.bound():
            if timeout is None:
                check(lib.cfw_aclrtSynchronizeStream(self.raw), "aclrtSynchronizeStream")
            else:
                check(
                    lib.cfw_aclrtSynchronizeStreamWithTimeout(self.raw, _milliseconds(timeout)),
                    "aclrtSynchronizeStreamWithTimeout",
                    timeout=timeout,
                )

    def _destroy(self, raw: Any) -> None:
        check(lib.cfw_aclrtDestroyStream(raw), "aclrtDestroyStream")
