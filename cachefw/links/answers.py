"""What a node tells a linked peer of itself, so that somebody can compare both ends and try a transfer.

Three things can be asked: ``"facts"``, ``"stats"`` for what `Node.stats` gives, and ``"lend"`` for a little memory to
read from and write to, which is taken back when the link ends. Whoever asks is linked, and so was let in. It is told
versions, settings of transports, the clock, and with ``"stats"`` the node's other peers and how much moves.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import msgspec
import numpy as np

from cachefw import diagnostics
from cachefw.config import setting
from cachefw.errors import BusyError, CacheError, ClosedError, TransferTimeout
from cachefw.links.link import Link, LinkState
from cachefw.manager import CacheManager
from cachefw.memory import MemoryKind, aligned_empty
from cachefw.metrics import Stats
from cachefw.plugins import catalogue
from cachefw.registry import Memory
from cachefw.version import VERSION

__all__ = ["LENT", "Answers", "facts", "route_mtu"]

#: Bytes of the memory that is lent.
LENT = 64 * 1024
_IP_MTU, _IPV6_MTU = 14, 24


def route_mtu(host: str) -> int | None:
    """The largest packet on the way to a host, as far as the kernel knows; None when it does not. Sends nothing."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            if family == socket.AF_INET6:
                return probe.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU)
            return probe.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    except OSError:
        return None


def facts(manager: CacheManager, towards: str) -> dict[str, Any]:
    """What one end says of itself.

    Args:
        manager: Its manager.
        towards: The host of the other end.
    """
    return {
        "cachefw": VERSION,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "clock": time.time(),
        "mtu": route_mtu(towards),
        "link_timeout": setting("link_timeout"),
        "transports": {name: _transport(manager, name) for name in manager.transports},
        "registered": len(manager.memories),
    }


def _transport(manager: CacheManager, name: str) -> dict[str, Any]:
    plugin, transport = catalogue.plugins()[name], manager.transport(name)
    told: Mapping[str, str] = {}
    describe = diagnostics.of(plugin).describe
    try:
        told = describe(transport) if describe is not None else {}
    except Exception as error:
        told = {"error": repr(error)}
    return {
        "version": plugin.version,
        "remark": transport.remark,
        "kinds": sorted(str(kind) for kind in transport.info.kinds),
        "details": {str(key): str(value) for key, value in told.items()},
    }


@attrs.frozen(eq=False)
class _Loan:
    memory: Memory
    owner: Any
    digest: str


class Answers:
    """Answers the questions of linked peers.

    Args:
        manager: The node's.
        stats: Takes the node's statistics.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, manager: CacheManager, stats: Callable[[], Stats]) -> None:
        self._manager = manager
        self._stats = stats
        self._lock = threading.Lock()
        self._loans: dict[Link, _Loan] = {}

    def to(self, link: Link, what: str) -> bytes:
        """The answer to a question, as JSON; what goes wrong is said in it."""
        try:
            if what == "facts":
                told = facts(self._manager, link.address.rpartition(":")[0].strip("[]"))
            elif what == "stats":
                told = self._stats().as_dict()
            elif what == "lend":
                told = self._lend(link)
                if link.state is not LinkState.UP:
                    self.take_back(link)
            else:
                told = {
                    "error": f"there is no question {what!r}; there are 'facts', 'stats' and 'lend'",
                    "code": "request.invalid",
                }
        except CacheError as error:
            told = {"error": str(error), "code": error.code}
        return msgspec.json.encode(told)

    def _lend(self, link: Link) -> dict[str, Any]:
        with self._lock:
            loan = self._loans.get(link)
            if loan is None:
                owner = aligned_empty(LENT, LENT)
                content = secrets.token_bytes(LENT)
                owner[:] = np.frombuffer(content, np.uint8)
                memory = self._manager.register_memory(
                    owner, MemoryKind.HOST, remote_accessible=True, label="lent to a peer that tries a transfer"
                )
                loan = self._loans[link] = _Loan(memory, owner, hashlib.sha256(content).hexdigest())
        region = loan.memory.region
        return {"address": region.address, "length": region.length, "sha256": loan.digest}

    def lent(self, link: Link) -> bool:
        """Whether memory is lent to a peer."""
        return link in self._loans

    def take_back(self, link: Link) -> None:
        """Give up what was lent over a link that has ended."""
        with self._lock:
            loan = self._loans.pop(link, None)
        if loan is not None and not self._manager.closed:
            # What cannot be given back now, or is given back by closing, is gone when the manager closes.
            with contextlib.suppress(BusyError, ClosedError, TransferTimeout):
                self._manager.unregister_memory(loan.memory)
