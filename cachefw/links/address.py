"""Addresses: texts taken apart, and whether they leave this host."""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import Any

from cachefw.errors import BrokenError, RequestError, refusal

__all__ = ["bind", "holder", "is_loopback", "parse_address", "words"]


def parse_address(text: Any, operation: str) -> tuple[str, int]:
    """Split ``"host:port"``; IPv6 in brackets.

    Raises:
        RequestError: Also a `TypeError`, `ValueError` or `AttributeError`: it is no address.
    """
    if not isinstance(text, str):
        builtin: type[Exception] = AttributeError if text is None else TypeError
        raise refusal(RequestError, {builtin}, f"an address is a str 'host:port', not {text!r}", operation=operation)
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        text = f"{text!r} is no address; give 'host:port', with a port of 0 to 65535"
        raise refusal(RequestError, {ValueError}, text, operation=operation)
    return host.strip("[]"), int(port)


def words(error: OSError) -> str:
    """The system's own text for an error: asyncio's says less."""
    return os.strerror(error.errno) if error.errno else str(error)


def is_loopback(host: str) -> bool:
    """Whether an IP address is reached from this host only."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        BrokenError: The address cannot be resolved or bound; `status` is the errno.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(128)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        who = holder(port) if port else ""
        raise BrokenError(
            f"cannot listen on {host}:{port}: {words(error)}{who and f' ({who} listens there)'}; port 0 "
            "takes a free one",
            code="link.listen",
            operation="listen",
            status=error.errno,
            detail=words(error),
        ) from None
    return listener


def holder(port: int) -> str:
    """Which process listens on a port, in words; "" when this process may not know."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as rows:
                next(rows, None)
                fields = [row.split() for row in rows]
        except OSError:
            continue
        inodes |= {f"socket:[{f[9]}]" for f in fields if f[3] == "0A" and int(f[1].rpartition(":")[2], 16) == port}
    for pid in filter(str.isdigit, os.listdir("/proc") if inodes else ()):
        try:
            held = (_target(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
            if not inodes.isdisjoint(held):
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as name:
                    return f"process {pid}, {name.read().strip()},"
        except OSError:
            # It ended meanwhile, or belongs to somebody else.
            continue
    return ""


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""
