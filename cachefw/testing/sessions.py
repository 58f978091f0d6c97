"""Sessions for whoever connects two transports without a link."""

from __future__ import annotations

import secrets

from cachefw.session import KEY_BYTES, Session

__all__ = ["sessions"]


def sessions(peer_host: str = "127.0.0.1") -> tuple[Session, Session]:
    """The two ends of a link that nobody made: for who dialled, and for who was dialled."""
    key = secrets.token_bytes(KEY_BYTES)
    dialler, answerer = secrets.token_bytes(16), secrets.token_bytes(16)
    return Session(key, True, peer_host, answerer), Session(key, False, peer_host, dialler)
