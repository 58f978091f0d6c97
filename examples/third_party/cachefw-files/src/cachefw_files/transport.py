"""FilesTransport: a folder in a shared directory, and the way to those of others."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cachefw.errors import (
    ClosedError,
    RequestError,
    TransportUnavailable,
    UnsupportedOperation,
    refusal,
)
from cachefw.memory import Allocation, MemoryKind, MemoryRegion
from cachefw.transport import RegisteredMemory, Session, Transport

from .channel import DESCRIPTION, MAGIC, FilesChannel, broken
from .store import NAME, Segment, Store, alive, folder_of, sweep

__all__ = ["NAME", "FilesTransport"]

#: Whose files they are, and which start of which host made them.
_CARD = struct.Struct("<8s16s36s")
_VARIABLE = "CACHEFW_FILES_DIRECTORY"
#: File systems on which a mapping here does not see what another host writes.
_INCOHERENT = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})


class FilesTransport(Transport):
    """The docstrings of `cachefw.transport.Transport` are the specification of each method.

    Settings:
        directory: The shared directory; default: the variable ``CACHEFW_FILES_DIRECTORY``.
        threads: How many transfers are carried out at once; default 4.
    """

    def __init__(self) -> None:
        self._store: Store | None = None
        self._executor: Executor | None = None
        self._channels: set[FilesChannel] = set()
        self._boot = b""

    def probe(self) -> str | None:
        return None if hasattr(os, "preadv") else "this system has no preadv()"

    def open(self, settings: Mapping[str, Any]) -> None:
        directory, threads = _checked(settings)
        try:
            self._boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
            sweep(directory)
            store = Store(directory)
        except OSError as error:
            text = f"{directory} cannot be used: {error}; it must be a directory that this process may write"
            raise _unavailable(text, status=error.errno, detail=str(error)) from None
        executor = ThreadPoolExecutor(threads, f"cachefw-{NAME}")
        try:
            # All of them now: a transfer that is posted later may not fail for want of a thread.
            barrier = threading.Barrier(threads + 1)
            for _ in range(threads):
                executor.submit(barrier.wait)
            barrier.wait()
        except RuntimeError as error:
            barrier.abort()
            executor.shutdown()
            store.close()
            raise _unavailable(f"{threads} threads cannot be had: {error}") from None
        self._store, self._executor = store, executor

    def close(self) -> None:
        store, self._store = self._store, None
        for channel in list(self._channels):
            channel.close()
        self._channels.clear()
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None
        if store is not None:
            store.close()

    def holding(self, region: MemoryRegion) -> Segment | None:
        """The file that has a region, or None."""
        return self._opened("register").holding(region)

    def register(self, region: MemoryRegion) -> RegisteredMemory:
        self._opened("register")
        return RegisteredMemory(region, NAME)

    def unregister(self, registered: RegisteredMemory) -> None:
        """Nothing was taken."""

    def allocate(
        self, size: int, kind: MemoryKind, alignment: int, options: Mapping[str, Any] | None = None
    ) -> Allocation:
        store = self._opened("allocate")
        if kind is not MemoryKind.HOST:
            text = f"transport {NAME!r} allocates host memory, not {kind} (no Capability.ALLOCATE for it)"
            raise UnsupportedOperation(text, operation="allocate", transport=NAME)
        if options:
            text = f"transport {NAME!r} has no allocation option {', '.join(options)}; it has none"
            raise refusal(RequestError, {ValueError}, text, operation="allocate", transport=NAME)
        return store.allocate(size, alignment)

    def card(self) -> bytes:
        store = self._store
        return _CARD.pack(MAGIC, store.token.encode() if store else b"", self._boot)

    def describe(self, registered: RegisteredMemory) -> bytes:
        region, store = registered.region, self._store
        segment = store.holding(region) if store else None
        number, offset = (segment.number, segment.offset + region.address - segment.address) if segment else (0, 0)
        return DESCRIPTION.pack(MAGIC, number, offset, region.address, region.length)

    def connect(self, card: bytes, timeout: float, session: Session) -> FilesChannel:
        """Who may read whose files is for the file system to say; nothing else can be reached."""
        store = self._opened("connect")
        magic, token, boot = _CARD.unpack(card) if len(card) == _CARD.size else (b"", b"", b"")
        if magic != MAGIC or not token.isalnum():
            raise broken("connect", "the peer's card is malformed")
        folder = folder_of(store.directory, token.decode("ascii"))
        if not self._alive(folder):
            text = f"the peer is gone, or its directory is not {store.directory}: {folder.name} is not there"
            raise broken("connect", text)
        kind = _file_system(store.directory)
        if boot != self._boot and kind in _INCOHERENT:
            text = (
                f"the peer is on another host, and {store.directory} is {kind}, on which a mapping does not see what "
                "another host writes; use a file system that keeps mappings coherent"
            )
            raise UnsupportedOperation(text, operation="connect", transport=NAME)
        assert self._executor is not None
        channel = FilesChannel(folder, self._executor, lambda: self._alive(folder))
        self._channels.add(channel)
        return channel

    @staticmethod
    def _alive(folder: Path) -> bool:
        try:
            return alive(folder)
        except OSError as error:
            text = f"whether the peer is there cannot be seen: {error}"
            raise broken("connect", text, status=error.errno, detail=str(error)) from None

    def _opened(self, operation: str) -> Store:
        store = self._store
        if store is None:
            raise ClosedError(f"{operation}: this transport is not open", operation=operation, transport=NAME)
        return store


def _unavailable(text: str, **fields: Any) -> TransportUnavailable:
    return TransportUnavailable(text, operation="open", transport=NAME, **fields)


def _checked(settings: Mapping[str, Any]) -> tuple[Path, int]:
    unknown = sorted(set(settings) - {"directory", "threads"})
    wrong = [f"there is no setting {name!r}; there are directory, threads" for name in unknown]
    directory, threads = settings.get("directory") or os.environ.get(_VARIABLE), settings.get("threads", 4)
    if not isinstance(directory, (str, os.PathLike)):
        wrong.append(f"directory must name the shared directory, not {directory!r}; or set {_VARIABLE}")
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= 64:
        wrong.append(f"threads must be 1 to 64, not {threads!r}")
    if wrong:
        raise refusal(RequestError, {ValueError}, "; ".join(wrong), operation="open", transport=NAME)
    return Path(str(directory)).absolute(), threads


def _file_system(directory: Path) -> str:
    """The type of the file system that a directory lies on; "" where it cannot be told."""
    best, kind = "", ""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split()
        point = fields[4]
        inside = point == "/" or str(directory) == point or str(directory).startswith(f"{point}/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[fields.index("-") + 1]
    return kind
