"""Proof over the control channel: keys that only holders of the secret can derive, and frames sealed with them.

Both ends send a random number first. From these and the secret follow three keys: one for the frames of each
direction, and one for the link's transport. Every frame after that carries a code made with its direction's key over
its position in the stream, so the first such frame from either end proves that it knows the secret, now; none can be
replayed, reordered, reflected or altered. The secret itself and these keys are never sent.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct

__all__ = ["CODE_BYTES", "NONCE_BYTES", "Keys", "Seal", "nonce"]

NONCE_BYTES = 32
#: Bytes of a frame's code.
CODE_BYTES = 16
_POSITION = struct.Struct("<Q")


def nonce() -> bytes:
    """A random number that is used once."""
    return secrets.token_bytes(NONCE_BYTES)


class Seal:
    """Codes for the frames of one direction, in order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._position = 0

    def code(self, body: bytes) -> bytes:
        """The code of the next frame."""
        code = hmac.digest(self._key, _POSITION.pack(self._position) + body, "sha256")[:CODE_BYTES]
        self._position += 1
        return code

    def fits(self, body: bytes, code: bytes) -> bool:
        """Whether the next frame was made by a holder of the key; takes the same time whatever is wrong."""
        return hmac.compare_digest(self.code(body), code)


class Keys:
    """The keys of one link.

    Args:
        secret: What both nodes share, or b"".
        hello: The dialler's first frame, as it was sent.
        challenge: The answer to it, as it was sent.
    """

    def __init__(self, secret: bytes, hello: bytes, challenge: bytes) -> None:
        told = hashlib.sha256(hello).digest() + hashlib.sha256(challenge).digest()
        root = hmac.digest(secret, b"cachefw link 1" + told, "sha256")
        self._dialler = hmac.digest(root, b"frames of the dialler", "sha256")
        self._dialled = hmac.digest(root, b"frames of the dialled", "sha256")
        self.session = hmac.digest(root, b"session", "sha256")

    def seals(self, *, dialler: bool) -> tuple[Seal, Seal]:
        """For what this end sends, and for what it receives."""
        ours, theirs = (self._dialler, self._dialled) if dialler else (self._dialled, self._dialler)
        return Seal(ours), Seal(theirs)
