"""Files of shared memory that no process uses any more: found, and on request removed."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs

from cachefw.catalog import Diagnosis, Health, Leftover
from cachefw.doctor.host import Host, counted, ok, size, warning

__all__ = ["Orphan", "clean", "leftovers", "orphans"]

#: Seconds that a file must have been left alone: a process may be about to open what it has just made.
_AGE = 60


@attrs.frozen
class Orphan:
    """A file of a known kind that no process has open or mapped.

    Attributes:
        path: Where it is.
        what: Whose it is, in words.
        size: Bytes that it holds.
        key: Device and inode, so that what is removed is what was found.
    """

    path: Path
    what: str
    size: int
    key: tuple[int, int]


def _used(host: Host) -> tuple[set[tuple[int, int]], set[str], list[str]]:
    """Files that are open (by device and inode), paths that are mapped, and processes that could not be looked at."""
    opened: set[tuple[int, int]] = set()
    mapped: set[str] = set()
    hidden = []
    for process in host.processes():
        try:
            for link in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    told = link.stat()
                    opened.add((told.st_dev, told.st_ino))
            table = (process / "maps").read_text(errors="replace")
        except OSError:
            if process.exists():
                hidden.append(process.name)
            continue
        mapped.update(re.findall(r"(/dev/shm/.+?)(?: \(deleted\))?$", table, re.MULTILINE))
        mapped.update(line.split(None, 5)[5] for line in table.splitlines() if line.count("/") and line[-1] != "]")
    return opened, mapped, hidden


def orphans(host: Host, known: Iterable[Leftover]) -> tuple[list[Orphan], list[str]]:
    """What is left behind, and the processes of this user that could not be looked at and may use it."""
    opened, mapped, hidden = _used(host)
    # The first process is the machine's or container's own, and makes no segments.
    own = [pid for pid in hidden if pid != "1" and _uid(host, pid) == os.geteuid()]
    found = []
    for leftover in known:
        for path in _matching(host, leftover.pattern):
            try:
                told = path.lstat()
            except OSError:
                continue
            key = told.st_dev, told.st_ino
            inside = "/" + str(path.relative_to(host.root))
            if not stat.S_ISREG(told.st_mode) or told.st_uid != os.geteuid() or key in opened:
                continue
            if inside in mapped or time.time() - max(told.st_mtime, told.st_ctime) < _AGE:
                continue
            found.append(Orphan(path, leftover.what, told.st_blocks * 512, key))
    return found, own


def _uid(host: Host, pid: str) -> int | None:
    try:
        return host.path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return None


def _matching(host: Host, pattern: str) -> Iterator[Path]:
    yield from sorted(host.root.glob(pattern.lstrip("/")))


def leftovers(host: Host, known: Iterable[Leftover]) -> Iterable[Diagnosis]:
    """Say what is left behind."""
    kinds = tuple(known)
    found, hidden = orphans(host, kinds)
    if found:
        total = sum(orphan.size for orphan in found)
        names = [str(orphan.path) for orphan in found]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield warning(
            f"{counted(len(found), 'file')} of shared memory, {size(total)}, used by no process: {shown}",
            f"left by processes that were killed ({', '.join(sorted({orphan.what for orphan in found}))})",
            "cachefw doctor --clean removes them",
            files=names,
            bytes=total,
        )
    elif hidden:
        yield ok(f"no leftovers are seen; {counted(len(hidden), 'process id')} cannot be looked at", hidden=hidden)
    else:
        yield ok("no shared memory of dead processes is left behind", kinds=[kind.pattern for kind in kinds])


def clean(host: Host, known: Iterable[Leftover]) -> list[Diagnosis]:
    """Remove what is left behind, as long as it is still what was found. Nothing is removed while in doubt."""
    found, hidden = orphans(host, known)
    if found and hidden:
        text = (
            f"{len(found)} files were left alone: processes {', '.join(hidden)} may use them, and cannot be looked at"
        )
        return [Diagnosis("leftovers.clean", Health.NOT_CHECKED, text, "", "run it as root, or end those processes")]
    told = []
    for orphan in found:
        try:
            now = orphan.path.lstat()
            if (now.st_dev, now.st_ino) != orphan.key:
                continue
            orphan.path.unlink()
        except OSError as error:
            text = f"{orphan.path} could not be removed: {error.strerror}"
            told.append(Diagnosis("leftovers.clean", Health.WARNING, text, "", "remove it by hand"))
        else:
            text = f"removed {orphan.path}, {size(orphan.size)} of {orphan.what}"
            told.append(Diagnosis("leftovers.clean", Health.OK, text, facts={"bytes": orphan.size}))
    return told or [Diagnosis("leftovers.clean", Health.OK, "nothing had to be removed")]
