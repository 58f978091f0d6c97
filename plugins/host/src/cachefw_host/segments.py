"""Memory that peers can map: segments made here, and the small server that hands their descriptors over."""

from __future__ import annotations

import bisect
import contextlib
import hmac
import os
import secrets
import socket
import struct
import threading
from collections.abc import Mapping
from typing import Any

import attrs

from cachefw.errors import BrokenError, OutOfMemoryError, RequestError, refusal
from cachefw.memory import Allocation, MemoryKind

from .status import TRANSPORT, memory_error

__all__ = ["Segments", "fetch", "link_token"]

_REQUEST = struct.Struct("<32sQ")
_ANSWER = struct.Struct("<BQ")
_OPTIONS = ("huge_pages", "prefault")
_PATIENCE = 2.0


@attrs.frozen
class Segment:
    """One memfd of this process, mapped here."""

    number: int
    fd: int
    address: int
    size: int


class Segments:
    """The segments of one open transport.

    A descriptor is given to whoever names the token of an open channel. Both ends of a link derive it from their
    session's key, so it is never sent but to ask for a descriptor, and holds for this link alone.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, native: Any) -> None:
        self._ffi, self._lib = native.ffi, native.lib
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._segments: dict[int, Segment] = {}
        self._count = 0
        self._admitted: set[bytes] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # In the abstract namespace a name needs no file and goes with the process.
        self.name = f"cachefw-{os.getpid()}-{secrets.token_hex(8)}"
        self._socket.bind("\0" + self.name)
        self._socket.listen(128)
        self._server: threading.Thread | None = None

    def admit(self, token: bytes) -> None:
        """Hand descriptors to whoever names this token, from now on."""
        with self._lock:
            self._admitted.add(token)

    def dismiss(self, token: bytes) -> None:
        """Hand over nothing for this token any more. What was handed over stays with the peer."""
        with self._lock:
            self._admitted.discard(token)

    def allocate(self, size: int, alignment: int, options: Mapping[str, Any]) -> Allocation:
        """A new segment.

        Args:
            size: Bytes; rounded up to whole pages.
            alignment: A power of two; at least a page is kept.
            options: ``huge_pages`` (None: transparent ones where the kernel gives them; True: only reserved ones, or an
                error; False: none) and ``prefault`` (True: every page is there when this returns).
        """
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise refusal(
                RequestError,
                {ValueError},
                f"this transport has no allocation option {', '.join(unknown)}; it has {', '.join(_OPTIONS)}",
                operation="allocate",
                transport=TRANSPORT,
            )
        huge, lib = options.get("huge_pages"), self._lib
        flags = {None: lib.CFW_SEGMENT_THP, True: lib.CFW_SEGMENT_HUGETLB, False: 0}[huge]
        flags |= lib.CFW_SEGMENT_PREFAULT if options.get("prefault") else 0
        made = self._ffi.new("cfw_segment *")
        status = lib.cfw_segment_create(size, max(alignment, os.sysconf("SC_PAGE_SIZE")), flags, made)
        if status:
            what = f"shared memory at a multiple of {alignment:,}" + (" on reserved huge pages" if huge else "")
            advice = "reserve more with sysctl vm.nr_hugepages, or leave huge_pages out" if huge else _memory_advice()
            raise memory_error(status, size, what, advice)
        with self._lock:
            if self._server is None:
                server = threading.Thread(target=self._serve, name="cachefw-host-segments", daemon=True)
                try:
                    server.start()
                except RuntimeError as error:
                    lib.cfw_segment_destroy(made)
                    raise OutOfMemoryError(
                        f"no thread to hand over {size:,} bytes of shared memory: {error}",
                        operation="allocate",
                        transport=TRANSPORT,
                    ) from None
                self._server = server
            self._count += 1
            segment = Segment(self._count, made.fd, made.address, made.size)
            self._segments[segment.address] = segment
            bisect.insort(self._starts, segment.address)

        def release() -> None:
            with self._lock:
                if self._segments.pop(segment.address, None) is not None:
                    self._starts.remove(segment.address)
            lib.cfw_segment_destroy(made)

        return Allocation(segment.address, size, MemoryKind.HOST, release)

    def holding(self, address: int, length: int) -> Segment | None:
        """The segment that has a range whole, or None."""
        with self._lock:
            row = bisect.bisect_right(self._starts, address) - 1
            if row < 0:
                return None
            segment = self._segments[self._starts[row]]
            return segment if address + length <= segment.address + segment.size else None

    def close(self) -> None:
        """Hand over no more descriptors. Segments stay until their allocations are closed. Idempotent."""
        # Closing alone would not wake the thread that waits in accept().
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        server, self._server = self._server, None
        if server is not None:
            server.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_PATIENCE)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        request = connection.recv(_REQUEST.size, socket.MSG_WAITALL)
        if len(request) < _REQUEST.size:
            return
        token, number = _REQUEST.unpack(request)
        with self._lock:
            admitted = [hmac.compare_digest(token, known) for known in self._admitted]
        if not any(admitted):
            connection.sendall(_ANSWER.pack(1, 0))
            return
        with self._lock:
            found = next((s for s in self._segments.values() if s.number == number), None)
            # Sent under the lock: the descriptor cannot be closed, and its number used again, in between.
            if found is None:
                connection.sendall(_ANSWER.pack(2, 0))
            else:
                socket.send_fds(connection, [_ANSWER.pack(0, found.size)], [found.fd])


def _memory_advice() -> str:
    pages = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{pages:,} bytes are free on this host; a container's own limit may be lower"


def link_token(key: bytes, *, dialler: bool) -> bytes:
    """What the dialler of a link, or who was dialled, asks of its peer before it hands over a descriptor."""
    return hmac.digest(key, b"cachefw-host segments of the " + (b"dialler" if dialler else b"dialled"), "sha256")


def fetch(name: str, token: bytes, number: int) -> tuple[int, int]:
    """A descriptor of a peer's segment, and the segment's size.

    Raises:
        BrokenError: The peer is gone, or has no such segment any more.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE)
            connection.connect("\0" + name)
            connection.sendall(_REQUEST.pack(token, number))
            answer, fds, _, _ = socket.recv_fds(connection, _ANSWER.size, 1)
    except OSError as error:
        raise BrokenError(
            f"the peer's shared memory cannot be fetched: {error}",
            code="shm.unreachable",
            transport=TRANSPORT,
            status=error.errno,
            detail=str(error),
        ) from None
    code, size = _ANSWER.unpack(answer) if len(answer) == _ANSWER.size else (3, 0)
    if code or len(fds) != 1:
        for fd in fds:
            os.close(fd)
        reason = {1: "it does not accept this link's token", 2: f"it has no segment {number} any more"}
        raise BrokenError(
            f"the peer did not hand over its shared memory: {reason.get(code, 'its answer was cut off')}",
            code="shm.refused",
            transport=TRANSPORT,
        )
    return fds[0], size
