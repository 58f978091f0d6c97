"""Keys of remote memory, looked at before UCX unpacks them: it gets no length and reads as far as a key tells it to."""

from __future__ import annotations

import struct

__all__ = ["ROOM", "fits"]

#: Zeros to put behind a key, for what a kind of memory reads of its part without looking at how long that is.
ROOM = bytes(256)
_HEAD = struct.Struct("<QB")


def fits(key: bytes) -> bool:
    """Whether all parts of a key lie in it, as far as UCX 1.13 to 1.22 lay keys out.

    A map of 64 bits says which parts there are, a byte which kind of memory it is; then each part has a byte for its
    size, and so many bytes. Newer releases have more behind that.
    """
    if len(key) < _HEAD.size:
        return False
    parts, _ = _HEAD.unpack_from(key)
    place = _HEAD.size
    for _ in range(parts.bit_count()):
        if place >= len(key):
            return False
        place += 1 + key[place]
    return place <= len(key)
