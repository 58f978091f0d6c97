"""Peers by name: where a node is reached stands in a directory, a static list or an existing store."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from typing import Any, Protocol

import attrs

from cachefw.config import setting
from cachefw.errors import CacheError, NotFoundError, RequestError, UnsupportedOperation, refusal
from cachefw.links.address import parse_address
from cachefw.links.link import Link
from cachefw.node import Node

__all__ = ["Directory", "Entry", "Member", "Static", "check_name", "not_there"]

#: Seconds between two looks for a peer that is not there yet: the first, and the most.
_PAUSES = (0.05, 1.0)
#: Why a dial failed where the directory may have a newer entry soon.
_AGAIN = ("link.unreachable", "link.restarted", "link.lost", "link.closed", "link.busy", "link.timeout")


@attrs.frozen
class Entry:
    """Where a node is reached.

    Attributes:
        address: ``"host:port"``.
        card: Its `Node.card`, which also says which start of it is meant; None takes any.
    """

    address: str
    card: bytes | None = None


class Directory(Protocol):
    """Names of nodes, and where each is reached."""

    def announce(self, name: str, entry: Entry) -> None:
        """Have a name stand for a node until `withdraw`, or until the node is known to be dead.

        Raises:
            BusyError: The name is taken by a node elsewhere.
            UnsupportedOperation: The directory cannot be written.
            BrokenError: It cannot be reached.
        """

    def withdraw(self, name: str) -> None:
        """Take a name back that was announced here; any other does nothing."""

    def find(self, name: str) -> Entry:
        """Where the node of a name is reached.

        Raises:
            NotFoundError: Nobody has it now; the text lists who is there.
            BrokenError: The directory cannot be reached.
        """

    def names(self) -> list[str]:
        """The names that are there now, sorted.

        Raises:
            BrokenError: The directory cannot be reached.
        """


def check_name(name: Any, operation: str) -> str:
    """A name of a node: letters, digits and ``._-``, at most 128.

    Raises:
        RequestError: Also a `TypeError`, `ValueError` or `AttributeError`: it is none.
    """
    if not isinstance(name, str):
        builtin: type[Exception] = AttributeError if name is None else TypeError
        raise refusal(RequestError, {builtin}, f"a name is a str, not {name!r}", operation=operation)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        text = f"{name!r} is no name: it has letters, digits and ._- only, begins with a letter or digit, at most 128"
        raise refusal(RequestError, {ValueError}, text, operation=operation)
    return name


class Static:
    """A directory that was written down: a name and an address for each node.

    Args:
        peers: The addresses, by name. None takes the setting ``peers``.

    Raises:
        RequestError: Also a `ValueError` or `TypeError`: a name or an address is none.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, peers: Mapping[str, str] | None = None) -> None:
        given = dict(item.split("=", 1) for item in setting("peers")) if peers is None else peers
        if not isinstance(given, Mapping):
            text = f"peers must map names to addresses, not {peers!r}"
            raise refusal(RequestError, {TypeError}, text, operation="directory")
        for address in given.values():
            parse_address(address, "directory")
        self._peers = {check_name(name, "directory"): Entry(address) for name, address in given.items()}

    def announce(self, name: str, entry: Entry) -> None:
        """Refused, unless the list has the same already.

        Raises:
            UnsupportedOperation: It has not.
        """
        if self._peers.get(name) != Entry(entry.address):
            known = self._peers.get(name)
            found = f"it has {name!r} at {known.address}" if known else f"it has no {name!r}"
            raise UnsupportedOperation(
                f"a static list takes no new entries, and {found}, not {entry.address}; write it down there",
                operation="announce",
            )

    def withdraw(self, name: str) -> None:
        """Nothing: the list stays as it is."""

    def find(self, name: str) -> Entry:
        """As `Directory.find`."""
        if name not in self._peers:
            raise not_there(name, self.names())
        return self._peers[name]

    def names(self) -> list[str]:
        """As `Directory.names`."""
        return sorted(self._peers)


def not_there(name: str, names: list[str]) -> NotFoundError:
    """The error of a name that nobody has."""
    have = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    text = f"no node has the name {name!r} now; there are: {have or 'none'}"
    return NotFoundError(text, code="not_found.peer", operation="find", facts={"names": names[:1000]})


class Member:
    """A node among others that know each other by name. A context manager.

    Args:
        node: The node.
        directory: Where the names are; None takes a `Static` one of the setting ``peers``.
        name: What others call this node; None announces nothing, for nodes that only dial.
        host: The name or address under which others reach it; None takes the one that it listens on.

    Raises:
        RequestError: A wrong name; or a name for a node that does not listen, or listens on every address, where
            `host` has to say which.
        BusyError: The name is taken by a node elsewhere.
        UnsupportedOperation: The directory cannot be written.
        BrokenError: The directory cannot be reached.

    Thread safety: every method may be called from any thread.
    """

    def __init__(
        self, node: Node, directory: Directory | None = None, name: str | None = None, host: str | None = None
    ) -> None:
        self.node = node
        self.directory: Directory = Static() if directory is None else directory
        self.name = None if name is None else check_name(name, "announce")
        if self.name is not None:
            card = node.card(host)
            place, port = (node.address or "").rpartition(":")[::2]
            if host is None and place in ("0.0.0.0", "[::]"):  # noqa: S104 - told apart, not bound
                text = f"the node listens on {place}, where nobody can reach it; give host="
                raise refusal(RequestError, {ValueError}, text, operation="announce")
            if host is not None:
                place = f"[{host}]" if ":" in host else host
            self.directory.announce(self.name, Entry(f"{place}:{port}", card))

    def link(self, name: str, timeout: float | None = None) -> Link:
        """Link to the node of a name, or return the link that exists.

        A name that nobody has yet, and a node that is being started anew, are waited for.

        Args:
            name: The peer's.
            timeout: Seconds; None takes the setting ``link_timeout``.

        Raises:
            NotFoundError: Nobody has the name, still at the end of `timeout`; the text lists who is there.
            BrokenError: The peer, or the directory, cannot be reached.
            AuthenticationError: As for `Node.link`.
            TransferTimeout: As for `Node.link`.
        """
        check_name(name, "link")
        limit = float(setting("link_timeout")) if timeout is None else timeout
        end = time.monotonic() + limit
        pause, longest = _PAUSES
        while True:
            try:
                entry = self.directory.find(name)
                left = max(end - time.monotonic(), longest / 20)
                return self.node.link(entry.address if entry.card is None else entry.card, left)
            except CacheError as error:
                again = isinstance(error, NotFoundError) or error.code in _AGAIN
                if not again or time.monotonic() + pause > end:
                    raise
            # Nodes that wait for the same peer do not ask together.
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret hangs on it
            pause = min(2 * pause, longest)

    def names(self) -> list[str]:
        """The names of the nodes that are there now, this one's too.

        Raises:
            BrokenError: The directory cannot be reached.
        """
        return self.directory.names()

    def close(self) -> None:
        """Take the name back; the node and its links stay. Idempotent.

        Raises:
            BrokenError: The directory cannot be reached; the entry goes when its lease ends.
        """
        name, self.name = self.name, None
        if name is not None:
            self.directory.withdraw(name)

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
