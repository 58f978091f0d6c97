"""Leases: every link says something now and then, and a peer that says nothing for too long counts as gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from cachefw.links import messages
from cachefw.links.link import Link, LinkState

__all__ = ["Pulse"]


class Pulse:
    """One timer for all links of a node. Runs in the loop's thread.

    Args:
        loop: The node's.
        links: The links that are up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, links: Callable[[], Iterable[Link]]) -> None:
        self._loop = loop
        self._links = links
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def start(self, link: Link) -> None:
        """Watch a link too."""
        if self._timer is None or self._loop.time() + link.pause < self._due:
            self._set(link.pause)

    def stop(self) -> None:
        """Watch nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, seconds: float) -> None:
        self.stop()
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._due, self._beat)

    def _beat(self) -> None:
        self._timer = None
        now = self._loop.time()
        links = [link for link in self._links() if link.state is LinkState.UP]
        for link in links:
            if now - self._due > link.pause:
                # This process stood still itself, and what peers said meanwhile has not been read yet.
                link.heard = now
            if now - link.heard > link.lease:
                reason = f"it was silent for {link.lease:g} s"
                link.end(LinkState.BROKEN, reason + " (setting lease)", goodbye=reason)
            elif now - link.told >= link.pause * 0.9:
                link.send(messages.Alive())
        if links:
            self._set(min(link.pause for link in links))
