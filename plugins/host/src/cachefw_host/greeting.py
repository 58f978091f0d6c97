"""What the two ends of a new stream say to each other before it carries anything: proof that both hold a link's key.

The end that dialled names the session and its wish; both answer the other's random number with a code that only the
key gives. Nothing said here can be used again, or on another stream, and the key itself is never sent.
"""

from __future__ import annotations

import enum
import hmac
import secrets
from collections.abc import Generator

from cachefw.errors import AuthenticationError

from .status import TRANSPORT

__all__ = ["HELLO_BYTES", "NAME_BYTES", "Greeting", "Role", "answer", "dial", "session_name"]

_MAGIC = b"cachefw tcp 1\n"
NAME_BYTES = 16
_NONCE_BYTES = _CODE_BYTES = 32
HELLO_BYTES = len(_MAGIC) + NAME_BYTES + 1 + _NONCE_BYTES
_WELCOME = b"\x06"

#: Yields what to send and how many bytes it then needs; is sent those bytes.
Greeting = Generator[tuple[bytes, int], bytes, "Role"]


class Role(enum.IntEnum):
    """Which end of a stream asks for bytes, and which serves them. Values are those of ``CFW_ROLE_*``."""

    ASK = 0
    SERVE = 1

    @property
    def other(self) -> Role:
        """The other end's."""
        return Role(1 - self)


def session_name(key: bytes) -> bytes:
    """What a session is called in the open: says nothing about its key."""
    return hmac.digest(key, b"cachefw-host name of the session", "sha256")[:NAME_BYTES]


def _code(key: bytes, who: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, b"cachefw-host stream, " + who + hello + nonce, "sha256")


def dial(key: bytes, role: Role) -> Greeting:
    """The end that dialled, and will be `role`.

    Raises:
        AuthenticationError: The other end does not have the key.
    """
    hello = _MAGIC + session_name(key) + bytes([role]) + secrets.token_bytes(_NONCE_BYTES)
    answered = yield hello, _NONCE_BYTES + _CODE_BYTES
    nonce, code = answered[:_NONCE_BYTES], answered[_NONCE_BYTES:]
    if not hmac.compare_digest(code, _code(key, b"dialled", hello, nonce)):
        raise _refused("it does not have this link's key")
    welcome = yield _code(key, b"dialler", hello, nonce), len(_WELCOME)
    if welcome != _WELCOME:
        raise _refused("it did not accept the stream")
    return role


def name_in(hello: bytes) -> bytes:
    """The session that a hello is for.

    Raises:
        AuthenticationError: It is none.
    """
    if len(hello) != HELLO_BYTES or not hello.startswith(_MAGIC) or hello[len(_MAGIC) + NAME_BYTES] > 1:
        raise _refused("it speaks another protocol")
    return hello[len(_MAGIC) :][:NAME_BYTES]


def answer(key: bytes, hello: bytes) -> Greeting:
    """The end that was dialled, with the whole hello of the other; ends once the last byte is to be sent.

    Raises:
        AuthenticationError: The other end does not have the key.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    code = yield nonce + _code(key, b"dialled", hello, nonce), _CODE_BYTES
    if not hmac.compare_digest(code, _code(key, b"dialler", hello, nonce)):
        raise _refused("it does not have this link's key")
    yield _WELCOME, 0
    return Role(hello[len(_MAGIC) + NAME_BYTES]).other


def _refused(why: str) -> AuthenticationError:
    return AuthenticationError(
        f"the other end of a data stream was refused: {why}",
        code="auth.stream",
        operation="connect",
        transport=TRANSPORT,
    )
