"""Says in words why a file cannot be loaded into this process, from its header alone."""

from __future__ import annotations

import struct
from pathlib import Path

__all__ = ["objection"]

_MACHINES = {
    0x03: "32-bit x86",
    0x08: "MIPS",
    0x15: "64-bit PowerPC",
    0x16: "S/390",
    0x28: "32-bit Arm",
    0x3E: "x86-64",
    0xB7: "AArch64",
    0xF3: "RISC-V",
    0x102: "LoongArch",
}
_BITS = {1: "32-bit", 2: "64-bit"}
_SHARED = 3  # type of a file
_LOADED = 1  # type of a segment


def objection(path: Path) -> str | None:
    """Why `path` is no shared library for this process; None when its header is in order."""
    try:
        theirs = _header(path)
    except FileNotFoundError:
        return "no such file"
    except IsADirectoryError:
        return "a folder; name the library in it"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if theirs is None:
        return "not an ELF file, so no library"
    ours = _header(Path("/proc/self/exe"))
    if ours is None:
        return None
    if (theirs[0], theirs[2]) != (ours[0], ours[2]):
        return f"wrong architecture: built for {_name(theirs)}, this process is {_name(ours)}"
    if theirs[1] != _SHARED:
        return "an ELF file, but no shared library"
    size, needed = path.stat().st_size, _extent(path)
    # The loader would map what is not there and die of it.
    return f"cut off: it has {size:,} bytes where its header speaks of {needed:,}" if size < needed else None


def _header(path: Path) -> tuple[int, int, int] | None:
    """Class, type and machine; None when it is no ELF file."""
    with path.open("rb") as file:
        start = file.read(20)
    if len(start) < 20 or start[:4] != b"\x7fELF":
        return None
    kind, machine = struct.unpack_from(">HH" if start[5] == 2 else "<HH", start, 16)
    return start[4], kind, machine


def _extent(path: Path) -> int:
    """How many bytes of a 64-bit file the loader is going to map."""
    with path.open("rb") as file:
        start = file.read(64)
        order = ">" if start[5] == 2 else "<"
        if len(start) < 64:
            return 64
        (table,) = struct.unpack_from(f"{order}Q", start, 32)
        width, count = struct.unpack_from(f"{order}HH", start, 54)
        file.seek(table)
        rows = file.read(width * count)
    extent = int(table + width * count)
    for row in range(len(rows) // width if width >= 56 else 0):
        (kind,) = struct.unpack_from(f"{order}I", rows, row * width)
        offset, _, _, size = struct.unpack_from(f"{order}QQQQ", rows, row * width + 8)
        if kind == _LOADED:
            extent = max(extent, offset + size)
    return extent


def _name(header: tuple[int, int, int]) -> str:
    machine = _MACHINES.get(header[2], f"machine {header[2]:#x}")
    bits = _BITS.get(header[0], f"class {header[0]}")
    return machine if bits in machine or machine.endswith(("-64", "64")) else f"{machine} ({bits})"
