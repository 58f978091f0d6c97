"""What this process holds, to find leaks."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import attrs

__all__ = ["Usage"]


@attrs.frozen
class Usage:
    """What this process holds; empty where there is no ``/proc``."""

    #: Anonymous mappings come and go with stacks and heaps; only many of them are somebody's leak.
    SLACK = 64

    files: Mapping[str, str]
    threads: frozenset[str]
    shared: tuple[str, ...]
    mappings: int
    pinned: int

    @classmethod
    def now(cls) -> Usage:
        """Count."""
        if not os.path.isdir("/proc/self/fd"):
            return cls({}, frozenset(), (), 0, 0)
        files = {}
        for number in os.listdir("/proc/self/fd"):
            # The descriptor of the listing itself is gone by now.
            with contextlib.suppress(FileNotFoundError):
                files[number] = os.readlink(f"/proc/self/fd/{number}")
        lines = Path("/proc/self/maps").read_text().splitlines()
        shared = tuple(line for line in lines if line.split(maxsplit=2)[1].endswith("s"))
        return cls(files, frozenset(os.listdir("/proc/self/task")), shared, len(lines), _pinned())

    def leaked(self) -> list[str]:
        """What is held now and was not held then, in words.

        Waits a little where threads are concerned: the kernel lists one for a moment after it was joined.
        """
        now = Usage.now()
        if self._compare(now):
            gc.collect()
            now, pause = Usage.now(), threading.Event()
            for _ in range(50):
                if len(now.threads) <= len(self.threads):
                    break
                pause.wait(0.02)
                now = Usage.now()
        return self._compare(now)

    def _compare(self, now: Usage) -> list[str]:
        found = []
        if len(now.files) > len(self.files):
            new = [target for number, target in now.files.items() if self.files.get(number) != target]
            found.append(f"{len(now.files) - len(self.files)} file descriptors, among them {new[:5]}")
        if len(now.threads) > len(self.threads):
            names = sorted(thread.name for thread in threading.enumerate())
            found.append(f"{len(now.threads) - len(self.threads)} threads; Python knows {names}")
        if len(now.shared) > len(self.shared):
            new = [line for line in now.shared if line not in self.shared]
            found.append(f"{len(now.shared) - len(self.shared)} shared mappings, among them {new[:5]}")
        if now.mappings > self.mappings + self.SLACK:
            found.append(f"{now.mappings - self.mappings} mappings")
        if now.pinned > self.pinned:
            found.append(f"{now.pinned - self.pinned} KiB locked or pinned for a device")
        return found


def _pinned() -> int:
    """KiB that cannot be paged out: what ``mlock`` and the drivers of devices hold."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("VmLck:", "VmPin:")))
