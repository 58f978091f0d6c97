"""What exactly the two ends of one link know of each other, for the transport that serves it."""

from __future__ import annotations

import ssl

import attrs

__all__ = ["KEY_BYTES", "Session", "TlsContexts"]

KEY_BYTES = 32


@attrs.frozen
class TlsContexts:
    """The two contexts of a node that encrypts: each shows this node's certificate and demands the peer's.

    Attributes:
        server: For connections that this node takes.
        client: For connections that it opens.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext


def _key(session: object, attribute: attrs.Attribute[bytes], value: bytes) -> None:
    if not isinstance(value, bytes) or len(value) != KEY_BYTES:
        raise ValueError(f"a session's key has {KEY_BYTES} bytes")


@attrs.frozen
class Session:
    """One link, as its transport sees it. Both ends hold the same `key`, and nobody else does.

    How well nobody else knows it follows from how the link was authenticated. With a secret the key is derived from it
    and from random numbers of both ends, and is never sent. With TLS those numbers travel encrypted. On loopback with
    neither they travel in the open, and whoever may read this host's loopback traffic may learn the key.

    Attributes:
        key: 32 bytes, different for every link.
        dialled: Whether this end dialled; the other end has the opposite.
        peer_host: The IP address at which the peer is seen on the control connection.
        incarnation: Which start of the peer it is, 16 bytes.
        tls: The node's contexts when the control connection is encrypted, else None. Then a transport that sends bytes
            over a network encrypts them too, or refuses.
        secure: Whether the peer has proved who it is, by a secret or a certificate.
    """

    key: bytes = attrs.field(validator=_key, repr=False)
    dialled: bool
    peer_host: str
    incarnation: bytes
    tls: TlsContexts | None = attrs.field(default=None, repr=False)
    secure: bool = False
