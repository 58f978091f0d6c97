"""How a node proves who it is: a secret that all its peers share, TLS with certificates, or nothing.

A secret is read here and nowhere else. It is in no text: neither a path nor a value that might be one is repeated in an
error, since who mistakes the two would find the secret in a log.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Sequence
from typing import Any

import attrs

from cachefw.config import setting
from cachefw.errors import RequestError, refusal
from cachefw.session import TlsContexts

__all__ = ["Credentials"]

#: A secret is at least 128 bits; 32 random bytes are what `openssl rand -base64 32` gives.
SHORTEST = 16
LONGEST = 4096
_FILE = "CACHEFW_SECRET_FILE"


@attrs.frozen
class Credentials:
    """What a node shows and demands.

    Attributes:
        secret: What it shares with every peer, or None.
        tls: Its contexts, or None.
        insecure: Whether it links beyond loopback without either.
    """

    secret: bytes | None = attrs.field(default=None, repr=False)
    tls: TlsContexts | None = attrs.field(default=None, repr=False)
    insecure: bool = False

    @classmethod
    def of(cls, secret: Any, tls: Any, insecure: Any) -> Credentials:
        """What the arguments of a `Node` and the settings amount to.

        Raises:
            RequestError: Also a `TypeError` or `ValueError`; all that is wrong, in one text.
        """
        if not isinstance(insecure, bool):
            raise _wrong([TypeError], f"insecure must be True or False, not {insecure!r}")
        key, contexts = _secret(secret), _tls(tls)
        if insecure and (key or contexts):
            text = "insecure=True says that peers prove nothing, and a secret or TLS was given, here or by a setting"
            raise _wrong([ValueError], f"{text}; leave one of the two out")
        return cls(key, contexts, insecure)

    @property
    def proves(self) -> bool:
        """Whether a peer has to prove who it is."""
        return self.secret is not None or self.tls is not None

    @property
    def name(self) -> str:
        """In a word or two, for every report."""
        ways = [way for way, there in (("secret", self.secret), ("tls", self.tls)) if there is not None]
        return "+".join(ways) or ("INSECURE" if self.insecure else "loopback")


def _wrong(builtins: Sequence[type[Exception]], text: str) -> Exception:
    return refusal(RequestError, set(builtins), text, operation="Node")


def _secret(given: Any) -> bytes | None:
    if given is None:
        path = setting("secret_file")
        return _read(path, _FILE) if path else None
    if isinstance(given, (bytes, bytearray, memoryview)):
        return _checked(bytes(given), "secret")
    if isinstance(given, (str, os.PathLike)):
        return _read(given, "secret")
    raise _wrong([TypeError], f"secret must be bytes, or the path of a file, not {type(given).__name__}")


def _read(path: Any, name: str) -> bytes:
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            text = file.read(LONGEST + 2) if stat.S_ISREG(about.st_mode) else None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no path"
        hint = " (a secret itself is given as bytes)" if name == "secret" else ""
        raise _wrong([ValueError], f"the file that {name} names cannot be read: {reason}{hint}") from None
    if text is None:
        raise _wrong([ValueError], f"the file that {name} names is no ordinary file")
    if about.st_mode & 0o027:
        raise _wrong(
            [ValueError],
            f"the file that {name} names has mode {stat.S_IMODE(about.st_mode):04o}: others may read or write it, or "
            "its group may write it. Let its owner alone read it: chmod 600",
        )
    return _checked(text[:-1] if text.endswith(b"\n") else text, f"the file that {name} names")


def _checked(secret: bytes, name: str) -> bytes:
    if not SHORTEST <= len(secret) <= LONGEST:
        raise _wrong(
            [ValueError],
            f"{name} has {len(secret)} bytes; a secret has {SHORTEST} to {LONGEST} random ones. Make one with "
            "`openssl rand -base64 32`",
        )
    return secret


def _tls(given: Any) -> TlsContexts | None:
    if given is None:
        paths = [setting(name) for name in ("tls_cert", "tls_key", "tls_ca")]
        if not any(paths):
            return None
        missing = [
            name
            for name, path in zip(("CACHEFW_TLS_CERT", "CACHEFW_TLS_KEY", "CACHEFW_TLS_CA"), paths, strict=True)
            if not path
        ]
        if missing:
            raise _wrong([ValueError], f"TLS is set by half: {', '.join(missing)} is missing")
        return _contexts(*paths)
    if isinstance(given, TlsContexts):
        return _demanding(given)
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        if len(given) == 2 and all(isinstance(each, ssl.SSLContext) for each in given):
            return _demanding(TlsContexts(*given))
        if len(given) == 3 and all(isinstance(each, (str, os.PathLike)) for each in given):
            return _contexts(*given)
    raise _wrong(
        [TypeError],
        "tls must be (certificate, key, CA certificates) as paths, or (server, client) as ssl.SSLContext, not "
        f"{type(given).__name__}",
    )


def _contexts(cert: Any, key: Any, ca: Any) -> TlsContexts:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Whoever has a certificate of this CA belongs to it; nodes are known by cluster ids, not by host names.
    client.check_hostname = False
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(cert, key)
            context.load_verify_locations(ca)
        except (ssl.SSLError, OSError) as error:
            text = f"the certificates cannot be used: {error.strerror or error} (cert {cert}, key {key}, CA {ca})"
            raise _wrong([ValueError], text) from None
    return TlsContexts(server, client)


def _demanding(contexts: TlsContexts) -> TlsContexts:
    lax = [
        name
        for name, context in (("server", contexts.server), ("client", contexts.client))
        if context.verify_mode is not ssl.CERT_REQUIRED
    ]
    if lax:
        text = f"the {' and the '.join(lax)} context takes peers without a certificate; set verify_mode=CERT_REQUIRED"
        raise _wrong([ValueError], text)
    return contexts
