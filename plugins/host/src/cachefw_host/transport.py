"""HostTransport: opens the native side, registers memory, and says how peers reach it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import threading
import weakref
from collections.abc import Mapping
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

from .card import Card, Description, data_port, namespace, read_card, this_host, ways_between
from .channel import HostChannel
from .gate import listener
from .pool import Pool
from .segments import Segments
from .settings import Settings, checked
from .status import TRANSPORT
from .streams import Net, Streams

__all__ = ["HostTransport"]


@attrs.define(eq=False)
class HostMemory(RegisteredMemory):
    """A registered region: inside one of this process's segments, or anywhere.

    Attributes:
        exposed: Whether peers may reach it over streams.
    """

    segment: int = 0
    offset: int = 0
    exposed: bool = False


class HostTransport(Transport):
    """Host memory between processes of one host, and between hosts.

    Settings:
        threads: How many threads move large transfers, the calling one included; default: the processors that this
            process may use, at most 8.
        cpus: Processor numbers that the transport's own threads keep to.
        paths: Which ways may be taken, of ``shm``, ``cma`` and ``tcp``. By default the first two on one host, ``shm``
            where the peer's memory allows it, and ``tcp`` to other hosts. Where ``tcp`` is named it is taken on one
            host as well, for what the other paths named do not reach.
        streams: How many connections one link opens for its transfers over ``tcp``, at its first; default: the
            processors that this process may use, at most 4.
        listen: ``"host:port"`` of the data port, where streams of other nodes come in; default: the host that the node
            listens on, and any port.
        tcp_timeout: Seconds without a byte after which a stream that a transfer waits for counts as cut; default 15.
    """

    def __init__(self) -> None:
        self._native: Any = None
        self._pool: Pool | None = None
        self._segments: Segments | None = None
        self._channels: weakref.WeakSet[HostChannel] = weakref.WeakSet()
        self._net: Net | None = None
        self._settings: Settings
        self._data_port: tuple[str, int] | None = None
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
        found = checked(settings)
        reason = self.probe()
        if reason:
            raise TransportUnavailable(reason, transport=TRANSPORT)
        self._settings = found
        with contextlib.ExitStack() as undo:
            try:
                # Read once, here: `card` may not fail.
                this_host()
                segments = Segments(self._native)
                undo.callback(segments.close)
                pool = Pool(self._native, found.threads - 1, found.cpus)
                undo.callback(pool.close)
                net = None
                if "tcp" in found.paths:
                    threads, cpus = found.threads, found.cpus
                    net = Net(self._native, pool, threads, cpus, streams=found.streams, timeout=found.tcp_timeout)
            except CacheError:
                # Among them are OSErrors, which say more already.
                raise
            except OSError as error:
                raise TransportUnavailable(
                    f"the host's identity, or a descriptor for sockets and threads, could not be had: {error}",
                    operation="open",
                    transport=TRANSPORT,
                    status=error.errno,
                    detail=str(error),
                ) from None
            undo.pop_all()
        self._pool, self._segments, self._net = pool, segments, net

    def close(self) -> None:
        """Close the channels and the threads."""
        with self._lock:
            pool, self._pool = self._pool, None
            segments, self._segments = self._segments, None
            net, self._net = self._net, None
            self._data_port = None
        for channel in list(self._channels):
            channel.close()
        if net is not None:
            net.close()
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
        """Serve it to no peer any more."""
        with self._lock:
            if isinstance(registered, HostMemory) and registered.exposed and self._net is not None:
                registered.exposed = False
                self._net.conceal(registered.region.address)

    def card(self) -> bytes:
        """Which process this is, where its descriptors are had, and where its data port is."""
        return msgspec.msgpack.encode(self._card())

    def _card(self) -> Card:
        segments, settings = self._open_segments(), self._settings
        host, port = self._listen()
        return Card(
            host=this_host(),
            pid=os.getpid(),
            pid_namespace=namespace("pid"),
            net_namespace=namespace("net"),
            beacon=ctypes.addressof(self._beacon),
            nonce=self._beacon.raw,
            socket=segments.name,
            paths=list(settings.paths),
            asked=settings.asked,
            data_host=host,
            data_port=port,
        )

    def _listen(self) -> tuple[str, int]:
        """The data port, opened when a peer is first told of it."""
        with self._lock:
            if self._net is None:
                return "", 0
            if self._data_port is None:
                wanted = self._settings.listen
                host, port = wanted or (self.listen_host or "", 0)
                if not host:
                    return "", 0
                try:
                    connection = listener(host, port)
                except OSError as error:
                    raise BrokenError(
                        f"the data port {host}:{port} cannot be opened: {error}",
                        code="listen.failed",
                        operation="card",
                        transport=TRANSPORT,
                        status=error.errno,
                        detail=str(error),
                    ) from None
                self._net.gate.listen(connection)
                # Where the node listens peers find it by themselves, whatever that is called on their side.
                self._data_port = (host if wanted else ""), connection.getsockname()[1]
            return self._data_port

    def describe(self, registered: RegisteredMemory) -> bytes:
        """Whether the memory can be mapped, and where. From now on it is served to peers on other hosts."""
        if not isinstance(registered, HostMemory):
            raise refusal(RequestError, {TypeError}, f"{registered!r} was not registered by this transport")
        with self._lock:
            if self._net is not None and not registered.exposed:
                region = registered.region
                self._net.expose(region.address, region.length, region.access.value)
                registered.exposed = True
        return msgspec.msgpack.encode(Description(registered.segment, registered.offset))

    def connect(self, card: bytes, timeout: float, session: Session) -> HostChannel:
        """See which ways lead to the peer."""
        peer = read_card(card)
        pool, segments, net = self._pool, self._segments, self._net
        if pool is None or segments is None:
            raise _closed("connect")
        paths = ways_between(self._card(), peer)
        streams = None
        if "tcp" in paths and net is not None:
            streams = Streams(net, session, data_port(peer, session))
            streams.start(timeout)
        channel = HostChannel(self._native, pool, segments, peer, paths, session, streams)
        self._channels.add(channel)
        if self._pool is None:
            # Closed meanwhile, by another thread that did not see this channel.
            channel.close()
            raise _closed("connect")
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
