"""What a machine says of itself: the files and variables that checks read, so that tests can give others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from cachefw.catalog import Diagnosis, Health

__all__ = ["Host", "broken", "counted", "headline", "note", "ok", "size", "unchecked", "warning"]


@attrs.frozen
class Host:
    """This machine, or a copy of its files.

    Attributes:
        root: Where its files begin.
        environ: The variables of the process.
        ports: Ports that are wanted, for the check of ports.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = attrs.field(factory=lambda: dict(os.environ))
    ports: tuple[int, ...] = ()

    def path(self, name: str) -> Path:
        """A file of this machine by its absolute name."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str | None:
        """The text of a file without the last line end, or None when it cannot be read."""
        try:
            return self.path(name).read_text(errors="replace").rstrip("\n")
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """The number in a file; None when there is none."""
        text = self.read(name)
        try:
            return int(text or "")
        except ValueError:
            return None

    def fields(self, name: str) -> dict[str, str]:
        """A file of ``name: value`` lines, such as /proc/self/status."""
        lines = (line.partition(":") for line in (self.read(name) or "").splitlines())
        return {name: value.strip() for name, colon, value in lines if colon}

    def processes(self) -> Iterator[Path]:
        """The folder of each process that can be seen."""
        try:
            found = list(self.path("/proc").iterdir())
        except OSError:
            return
        yield from (path for path in found if path.name.isdigit())


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "bytes" or count == int(count) else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def headline(text: str) -> str:
    """The first line of a reason, without a list that it announces."""
    first = text.partition("\n")[0]
    return first.rpartition(". ")[0] if first.endswith(":") and ". " in first else first


def counted(number: int, what: str) -> str:
    """A number of things in words, e.g. ``"1 file"`` or ``"3 files"``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def ok(found: str, **facts: object) -> Diagnosis:
    """Nothing is wrong."""
    return Diagnosis("", Health.OK, found, facts=facts)


def note(found: str, meaning: str = "", fix: str = "", **facts: object) -> Diagnosis:
    """Worth knowing."""
    return Diagnosis("", Health.NOTE, found, meaning, fix, facts)


def unchecked(found: str, fix: str = "", **facts: object) -> Diagnosis:
    """It could not be looked at."""
    return Diagnosis("", Health.NOT_CHECKED, found, "", fix, facts)


def warning(found: str, meaning: str, fix: str, **facts: object) -> Diagnosis:
    """It works, and will hurt somewhere."""
    return Diagnosis("", Health.WARNING, found, meaning, fix, facts)


def broken(found: str, meaning: str, fix: str, **facts: object) -> Diagnosis:
    """It does not work."""
    return Diagnosis("", Health.BROKEN, found, meaning, fix, facts)
