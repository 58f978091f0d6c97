"""The folder of one open transport in the shared directory, and the files that are its memory."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import mmap
import os
import secrets
import shutil
from pathlib import Path

import attrs

from cachefw.errors import OutOfMemoryError
from cachefw.memory import Allocation, MemoryKind, MemoryRegion

__all__ = ["NAME", "Segment", "Store", "alive", "folder_of", "sweep"]

NAME = "files"
_PREFIX = "cachefw-files-"
_OWNER = "owner"


def folder_of(directory: Path, token: str) -> Path:
    """Where the transport with this token has its files."""
    return directory / f"{_PREFIX}{token}"


def alive(folder: Path) -> bool:
    """Whether the process that made a folder is still there: it holds a lock, which goes with it."""
    try:
        owner = os.open(folder / _OWNER, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(owner, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(owner)
    return False


def sweep(directory: Path) -> list[Path]:
    """Remove what processes left behind that were killed; the folders that are gone now."""
    gone = []
    for folder in directory.glob(f"{_PREFIX}*"):
        # Another user's folder is for that user to remove.
        with contextlib.suppress(PermissionError):
            if not alive(folder):
                shutil.rmtree(folder, ignore_errors=True)
                gone.append(folder)
    return gone


@attrs.frozen(eq=False)
class Segment:
    """One file, mapped."""

    number: int
    address: int
    length: int
    #: Where in the file the address lies.
    offset: int
    path: Path
    mapping: mmap.mmap


class Store:
    """What one transport has on disk.

    Args:
        directory: The shared directory.

    Raises:
        OSError: It cannot be written.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.token = secrets.token_hex(8)
        self.folder = folder_of(directory, self.token)
        self._numbers = itertools.count(1)
        self._segments: dict[int, Segment] = {}
        draft = directory / f".{self.folder.name}"
        draft.mkdir(mode=0o700)
        try:
            self._owner = os.open(draft / _OWNER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            draft.rmdir()
            raise
        # Locked before anybody can see it and think that its owner is dead.
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        draft.rename(self.folder)

    def allocate(self, size: int, alignment: int) -> Allocation:
        """Memory that is a new file.

        Raises:
            OutOfMemoryError: The file system has not that much.
        """
        whole = size + (alignment if alignment > mmap.PAGESIZE else 0)
        number = next(self._numbers)
        path = self.folder / str(number)
        try:
            space = os.statvfs(self.directory)
            if whole > space.f_bavail * space.f_frsize:
                raise _no_space(size, self.directory, f"{space.f_bavail * space.f_frsize:,} bytes are free")
            mapping = _mapped(path, whole)
        except OSError as error:
            raise _no_space(size, self.directory, str(error)) from None
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        offset = -start % alignment
        segment = Segment(number, start + offset, size, offset, path, mapping)
        self._segments[number] = segment

        def release() -> None:
            # Without a lock: the garbage collector may call this anywhere.
            self._segments.pop(number, None)
            path.unlink(missing_ok=True)
            mapping.close()

        return Allocation(segment.address, size, MemoryKind.HOST, release)

    def holding(self, region: MemoryRegion) -> Segment | None:
        """The segment that has a region whole."""
        for segment in self._segments.copy().values():
            if segment.address <= region.address and region.end <= segment.address + segment.length:
                return segment
        return None

    def close(self) -> None:
        """Leave the directory as it was. Allocations that are still open keep their memory, without a name."""
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._owner)


def _mapped(path: Path, length: int) -> mmap.mmap:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Now, or a full disk would show itself as SIGBUS at the first touch.
        os.posix_fallocate(file, 0, length)
        return mmap.mmap(file, length)
    except BaseException:
        path.unlink()
        raise
    finally:
        os.close(file)


def _no_space(size: int, directory: Path, why: str) -> OutOfMemoryError:
    return OutOfMemoryError(f"{size:,} bytes cannot be had in {directory}: {why}", operation="allocate", transport=NAME)
