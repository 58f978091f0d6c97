"""What a manager needs of the links of its node, and what it has when it stands alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cachefw import pulls
from cachefw.cache import Cache
from cachefw.errors import NotFoundError
from cachefw.registry import Memory

__all__ = ["NoPeers", "Peers"]


class Peers(Protocol):
    """What a manager needs of its node's links."""

    def linked(self) -> bool:
        """Whether a link exists."""

    def peer(self, cluster_id: int) -> pulls.Peer:
        """The link to a cluster; raises NotFoundError naming those that exist."""

    def publish(self, memories: Sequence[Memory], caches: Sequence[Cache]) -> None:
        """Tell every peer of new memory and caches."""

    def republish(self, memories: Sequence[Memory], caches: Sequence[Cache]) -> None:
        """Tell every peer of memory, and of new names for caches that it knows; returns when all have taken note."""

    def withdraw(self, memories: Sequence[Memory], caches: Sequence[Cache]) -> None:
        """Have every peer let go; returns when none can touch the memory any more."""

    def busy(self, memories: Sequence[Memory]) -> str | None:
        """In words, a transfer that uses some of the memory now, or None."""


class NoPeers:
    """A manager that stands alone."""

    def linked(self) -> bool:
        """It never is."""
        return False

    def peer(self, cluster_id: int) -> pulls.Peer:
        """There is none."""
        raise NotFoundError(
            f"cluster {cluster_id} is not linked: this manager stands alone; links belong to a Node",
            code="not_found.link",
        )

    def publish(self, memories: Sequence[Memory], caches: Sequence[Cache]) -> None:
        """Nobody to tell."""

    def republish(self, memories: Sequence[Memory], caches: Sequence[Cache]) -> None:
        """Nobody to tell."""

    def withdraw(self, memories: Sequence[Memory], caches: Sequence[Cache]) -> None:
        """Nobody holds anything."""

    def busy(self, memories: Sequence[Memory]) -> str | None:
        """Nothing moves."""
        return None
