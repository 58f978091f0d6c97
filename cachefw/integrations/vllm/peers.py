"""Links to other instances: made in the background, when first needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from vllm.logger import init_logger

from cachefw.errors import CacheError
from cachefw.links.link import Link, LinkState
from cachefw.node import Node

__all__ = ["Peers"]

_log = init_logger("vllm.cachefw")

#: What is to be done with a link, or with the reason why there is none.
Then = Callable[["Link | None", "CacheError | None"], None]

#: Seconds for which an instance that could not be reached is not dialled again.
_PAUSE = 1.0


class Peers:
    """The links of one node, by card.

    Args:
        node: Whose links.
        timeout: Seconds that making one may take.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, node: Node, timeout: float) -> None:
        self._node = node
        self._timeout = timeout
        self._lock = threading.Lock()
        self._links: dict[bytes, Link] = {}
        self._queues: dict[bytes, list[Then]] = {}
        self._failures: dict[bytes, tuple[float, CacheError]] = {}
        # Dialling may take its whole deadline; one dead instance must not hold up the links to others.
        self._dialling = ThreadPoolExecutor(8, "cachefw-vllm-link")

    def with_link(self, card: bytes, then: Then) -> None:
        """Call `then` with the link: at once where it is up, else from another thread when it is, or cannot be made."""
        with self._lock:
            link = self._links.get(card)
            if link is None or link.state is not LinkState.UP:
                until, error = self._failures.get(card, (0.0, None))
                if error is None or until <= time.monotonic():
                    queue = self._queues.setdefault(card, [])
                    queue.append(then)
                    if len(queue) == 1:
                        self._dialling.submit(self._dial, card)
                    return
                link = None
            else:
                error = None
        then(link, error)

    def _dial(self, card: bytes) -> None:
        link, failure = None, None
        try:
            link = self._node.link(card, self._timeout)
        except CacheError as error:
            failure = error
        with self._lock:
            queue = self._queues.pop(card)
            if link is not None:
                self._links[card] = link
                self._failures.pop(card, None)
                # Instances come and go for as long as this one lives.
                self._links = {key: one for key, one in self._links.items() if one.state is LinkState.UP or one is link}
            elif failure is not None:
                self._failures[card] = time.monotonic() + _PAUSE, failure
                _log.warning("no link to another instance: %s", failure)
        for then in queue:
            then(link, failure)

    def close(self) -> None:
        """Dial no more, and wait for what is being dialled."""
        self._dialling.shutdown(wait=True, cancel_futures=True)
