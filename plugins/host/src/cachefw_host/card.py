"""What the two ends of a link tell each other about themselves, and which ways lead from one to the other."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import msgspec

from cachefw.errors import BrokenError, UnsupportedOperation
from cachefw.transport import Session

from .status import TRANSPORT

__all__ = ["DEFAULT_PATHS", "Card", "Description", "data_port", "namespace", "read_card", "this_host", "ways_between"]

#: In the order in which they are taken. ``tcp`` is for other hosts, unless somebody asks for it by name.
DEFAULT_PATHS = ("shm", "cma", "tcp")
_WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104 - not bound, but recognised


class Card(msgspec.Struct, frozen=True, array_like=True):
    """Which process a transport lives in, where its descriptors are had, and where streams come in.

    Attributes:
        host: The same for all processes of a host, whatever their containers.
        pid, pid_namespace: The process.
        net_namespace: Whose abstract sockets it sees.
        beacon, nonce: An address in the process, and the bytes there.
        socket: Hands out descriptors of segments.
        paths: Which ways it takes.
        asked: Whether its settings name ``tcp``, so that it is taken on one host too.
        data_host, data_port: Where streams come in; port 0 is nowhere, host "" that of the control connection.
    """

    host: bytes
    pid: int
    pid_namespace: int
    beacon: int
    nonce: bytes
    socket: str
    paths: list[str]
    net_namespace: int
    asked: bool
    data_host: str
    data_port: int


class Description(msgspec.Struct, frozen=True, array_like=True):
    """Where a region lies: in a segment (from 1), or in memory of the process (0)."""

    segment: int
    offset: int


def read_card(card: bytes) -> Card:
    """A peer's card.

    Raises:
        BrokenError: It is none.
    """
    try:
        peer = msgspec.msgpack.decode(card, type=Card)
    except msgspec.MsgspecError as error:
        fault = str(error)
    else:
        if 0 <= peer.data_port < 65536:
            return peer
        fault = f"{peer.data_port} is no port"
    raise BrokenError(
        f"the peer's card makes no sense to this transport: {fault}", code="card.malformed", transport=TRANSPORT
    )


@functools.cache
def this_host() -> bytes:
    """Changes with each boot, and is the same in every container of a host."""
    return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()


def namespace(kind: str) -> int:
    """Number of this process's namespace; unlike those of all others of this host."""
    return os.stat(f"/proc/self/ns/{kind}").st_ino


def ways_between(own: Card, peer: Card) -> tuple[str, ...]:
    """The paths from one process to another that both allow, best first.

    One host is where memory can be mapped or read: the same kernel, and a namespace shared in which the peer's
    descriptors are handed out (network) or its memory is named (pid). Containers that share neither are hosts of
    their own.

    Raises:
        UnsupportedOperation: There is none.
    """
    both = [path for path in own.paths if path in peer.paths]
    same_kernel = own.host == peer.host
    near = {
        "shm": same_kernel and own.net_namespace == peer.net_namespace,
        "cma": same_kernel and own.pid_namespace == peer.pid_namespace,
    }
    found = [path for path in both if near.get(path)]
    if "tcp" in both and (own.asked or peer.asked or not any(near.values())):
        found.append("tcp")
    if found:
        return tuple(found)
    if not same_kernel:
        where = "the peer is on another host"
    elif not any(near.values()):
        where = "the peer shares neither the pid nor the network namespace of this process"
    else:
        where = "the peer is on this host"
    raise UnsupportedOperation(
        f"{where}, and no path leads there that both sides allow ({', '.join(both) or 'none'}); here allowed are "
        f"{', '.join(own.paths)}, there {', '.join(peer.paths)}",
        code="peer.unreachable",
        operation="connect",
        transport=TRANSPORT,
    )


def data_port(peer: Card, session: Session) -> tuple[str, int] | None:
    """Where this end opens streams to, None when the peer opens them.

    Raises:
        UnsupportedOperation: The peer was dialled and has no data port.
    """
    if not session.dialled:
        return None
    if not peer.data_port:
        raise UnsupportedOperation(
            "the peer has no data port, so that no stream can be opened to it; have its node listen",
            code="peer.unreachable",
            operation="connect",
            transport=TRANSPORT,
        )
    return session.peer_host if peer.data_host in _WILDCARDS else peer.data_host, peer.data_port
