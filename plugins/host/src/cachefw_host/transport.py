"""HostTransport: opens the native side, registers memory, and says how peers reach it."""

from __future__ import annotations

import ctypes
import functools
import os
import secrets
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import msgspec

from cachefw.errors import (
    BrokenError,
    CacheError,
    ClosedError,
    RequestError,
    TransportUnavailable,
    UnsupportedOperation,
    refusal,
)
from cachefw.memory import Allocation, MemoryKind, MemoryRegion
from cachefw.transport import Batch, RegisteredMemory, Session, Transport

from .channel import Card, Description, HostChannel
from .pool import Pool
from .segments import Segments
from .status import TRANSPORT

__all__ = ["HostTransport"]

_SETTINGS = ("threads", "cpus", "paths")
_PATHS = ("shm", "cma")


@attrs.define(eq=False)
class HostMemory(RegisteredMemory):
    """A registered region: inside one of this process's segments, or anywhere."""

    segment: int = 0
    offset: int = 0


class HostTransport(Transport):
    """Host memory between processes of one host.

    Settings:
        threads: How many threads move large transfers, the calling one included; default: the processors that this
            process may use, at most 8.
        cpus: Processor numbers that the transport's own threads keep to.
        paths: Which ways may be taken, of ``shm`` and ``cma``; default both, ``shm`` where the peer's memory allows it.
    """

    def __init__(self) -> None:
        self._native: Any = None
        self._pool: Pool | None = None
        self._segments: Segments | None = None
        self._channels: weakref.WeakSet[HostChannel] = weakref.WeakSet()
        self._paths: tuple[str, ...] = _PATHS
        self._lock = threading.Lock()
        # What a peer reads to see whether it reaches this very process.
        self._beacon = ctypes.create_string_buffer(secrets.token_bytes(16), 16)

    def probe(self) -> str | None:
        """None when the native module can be loaded, else the reason in words."""
        try:
            from . import _native
        except ImportError as error:
            return f"the native module cannot be loaded: {error}; install the distribution again"
        self._native = _native
        return None

    def open(self, settings: Mapping[str, Any]) -> None:
        """Start nothing yet: threads come with the first large transfer."""
        threads, cpus, paths = _checked(settings)
        reason = self.probe()
        if reason:
            raise TransportUnavailable(reason, transport=TRANSPORT)
        self._paths = paths
        try:
            # Read once, here: `card` may not fail.
            _host_identity()
            segments = Segments(self._native)
        except OSError as error:
            raise TransportUnavailable(
                f"neither the host's identity nor a socket to hand descriptors over could be had: {error}",
                operation="open",
                transport=TRANSPORT,
                status=error.errno,
                detail=str(error),
            ) from None
        self._pool, self._segments = Pool(self._native, threads - 1, cpus), segments

    def close(self) -> None:
        """Close the channels and the threads."""
        with self._lock:
            pool, self._pool = self._pool, None
            segments, self._segments = self._segments, None
        for channel in list(self._channels):
            channel.close()
        if pool is not None:
            pool.close()
        if segments is not None:
            segments.close()

    def register(self, region: MemoryRegion) -> HostMemory:
        """Note where the region lies; host memory needs nothing else."""
        segment = self._open_segments().holding(region.address, region.length)
        if segment is None:
            return HostMemory(region, TRANSPORT)
        return HostMemory(region, TRANSPORT, segment.number, region.address - segment.address)

    def unregister(self, registered: RegisteredMemory) -> None:
        """Nothing was taken."""

    def card(self) -> bytes:
        """Which process this is, and where its descriptors are had."""
        segments = self._open_segments()
        return msgspec.msgpack.encode(
            Card(
                host=_host_identity(),
                pid=os.getpid(),
                pid_namespace=_namespace("pid"),
                beacon=ctypes.addressof(self._beacon),
                nonce=self._beacon.raw,
                socket=segments.name,
                paths=list(self._paths),
            )
        )

    def describe(self, registered: RegisteredMemory) -> bytes:
        """Whether the memory can be mapped, and where."""
        if not isinstance(registered, HostMemory):
            raise refusal(RequestError, {TypeError}, f"{registered!r} was not registered by this transport")
        return msgspec.msgpack.encode(Description(registered.segment, registered.offset))

    def connect(self, card: bytes, timeout: float, session: Session) -> HostChannel:
        """See which ways lead to the peer."""
        try:
            peer = msgspec.msgpack.decode(card, type=Card)
        except msgspec.MsgspecError as error:
            raise BrokenError(
                f"the peer's card makes no sense to this transport: {error}", code="card.malformed", transport=TRANSPORT
            ) from None
        if peer.host != _host_identity():
            raise UnsupportedOperation(
                "the peer is on another host; this transport reaches processes of this host only",
                code="peer.unreachable",
                operation="connect",
                transport=TRANSPORT,
            )
        pool, segments = self._pool, self._segments
        if pool is None or segments is None:
            raise _closed("connect")
        paths = tuple(path for path in self._paths if path in peer.paths)
        same_pids = peer.pid_namespace == _namespace("pid")
        channel = HostChannel(self._native, pool, segments, peer, paths, session, same_pids=same_pids)
        self._channels.add(channel)
        return channel

    def allocate(
        self, size: int, kind: MemoryKind, alignment: int, options: Mapping[str, Any] | None = None
    ) -> Allocation:
        """Shared memory; options ``huge_pages`` and ``prefault``, see `Segments.allocate`."""
        if kind is not MemoryKind.HOST:
            raise UnsupportedOperation(
                f"this transport allocates host memory, not {kind}", operation="allocate", transport=TRANSPORT
            )
        return self._open_segments().allocate(size, alignment, options or {})

    def copy(self, batch: Batch) -> None:
        """Copy within this process, on as many threads as a transfer takes."""
        pool = self._pool
        if pool is None:
            raise _closed("copy")
        prepared = pool.prepare(
            [(self._native.lib.CFW_COPY_IN, 0, batch.local, batch.remote, batch.length, None)], "copy"
        )
        transfer = pool.move(prepared) if prepared.small else pool.post(prepared)
        transfer.wait()
        if transfer.error is not None:
            raise transfer.error

    def _open_segments(self) -> Segments:
        if self._segments is None:
            raise _closed("use")
        return self._segments


def _closed(operation: str) -> CacheError:
    return ClosedError(f"{operation}: this transport is not open", operation=operation, transport=TRANSPORT)


def _checked(settings: Mapping[str, Any]) -> tuple[int, list[int], tuple[str, ...]]:
    unknown = sorted(set(settings) - set(_SETTINGS))
    if unknown:
        raise refusal(
            RequestError,
            {ValueError},
            f"transport {TRANSPORT!r} has no setting {', '.join(unknown)}; it has {', '.join(_SETTINGS)}",
            operation="open",
            transport=TRANSPORT,
        )
    allowed = os.sched_getaffinity(0)
    threads = settings.get("threads", min(8, len(allowed)))
    cpus = list(settings.get("cpus", sorted(allowed)))
    paths = tuple(settings.get("paths", _PATHS))
    wrong = []
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= 256:
        wrong.append(f"threads must be 1 to 256, not {threads!r}")
    if not all(isinstance(cpu, int) and cpu >= 0 for cpu in cpus):
        wrong.append(f"cpus must be a list of processor numbers, not {cpus!r}")
    if not paths or set(paths) - set(_PATHS):
        wrong.append(f"paths must name some of {', '.join(_PATHS)}, not {paths!r}")
    if wrong:
        raise refusal(RequestError, {ValueError}, "; ".join(wrong), operation="open", transport=TRANSPORT)
    return threads, cpus, paths


@functools.cache
def _host_identity() -> bytes:
    # Changes with each boot, and is the same in every container of a host.
    return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()


def _namespace(kind: str) -> int:
    return os.stat(f"/proc/self/ns/{kind}").st_ino
