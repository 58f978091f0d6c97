"""The archive that the kernel unpacks into memory and starts from: a cpio archive in the format "newc"."""

from __future__ import annotations

import stat
from collections.abc import Mapping

__all__ = ["archive"]


def archive(files: Mapping[str, bytes]) -> bytes:
    """Pack files by their path, without a leading slash; all of them executable, in folders made as needed."""
    folders = sorted(
        {"/".join(parts[:n]) for parts in (name.split("/") for name in files) for n in range(1, len(parts))}
    )
    entries = [_entry(number, name, stat.S_IFDIR | 0o755, b"") for number, name in enumerate(folders, 1)]
    first = len(folders) + 1
    entries += [
        _entry(number, name, stat.S_IFREG | 0o755, data) for number, (name, data) in enumerate(files.items(), first)
    ]
    return b"".join([*entries, _entry(0, "TRAILER!!!", 0, b"")])


def _entry(number: int, name: str, mode: int, data: bytes) -> bytes:
    path = name.encode() + b"\0"
    # number, mode, owner, group, links, time, size, four device numbers, length of the name, checksum (unused)
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(head + path) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
