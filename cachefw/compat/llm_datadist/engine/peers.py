"""The node of an instance, and what is known of the instances it is linked with."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cachefw.compat.llm_datadist.engine import messages
from cachefw.compat.llm_datadist.status import LLMStatusCode, failed
from cachefw.compat.llm_datadist.utils.log import log
from cachefw.errors import CacheError
from cachefw.links.link import Link, LinkState
from cachefw.node import Node

__all__ = ["EngineNode", "Peer", "Peers"]


class EngineNode(Node):
    """A node that hands link changes and notifications on as they come, in its own thread.

    Args:
        cluster_id: As for `Node`.
        on_link: Given each link whose state changed.
        on_notify: Given each notification.
        **options: As for `Node`.
    """

    def __init__(
        self,
        cluster_id: int,
        on_link: Callable[[Link], None],
        on_notify: Callable[[Link, bytes], None],
        **options: Any,
    ) -> None:
        self._on_link = on_link
        self._on_notify = on_notify
        super().__init__(cluster_id, **options)

    def link_to(self, cluster_id: int) -> Link:
        """The link to a cluster.

        Raises:
            LLMException: With `LLM_NOT_YET_LINK`.
        """
        for link in self.links:
            if link.cluster_id == cluster_id:
                return link
        have = ", ".join(str(link.cluster_id) for link in self.links) or "none"
        text = f"no link to cluster {cluster_id}; linked are: {have}"
        raise failed(LLMStatusCode.LLM_NOT_YET_LINK, text)

    def _link_changed(self, link: Link) -> None:
        super()._link_changed(link)
        self._on_link(link)

    def _notified(self, link: Link, payload: bytes) -> None:
        self._on_notify(link, payload)


class Peer:
    """What is known of the instance at the other end of a link."""

    def __init__(self) -> None:
        self.said_hello = threading.Event()
        self.mismatch = ""
        #: Hixl engine: whether either side uses the link.
        self.uses = False
        self.used_here = False


class Peers:
    """Keeps up with the instances at the other ends, and answers them.

    Args:
        hello: What this side says first.
        consume: Notes that tensors of what a key names were pulled; called in a thread of its own.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, hello: messages.Hello, consume: Callable[[tuple[str, int, int], range], None]) -> None:
        self._hello = hello
        self._consume = consume
        self._lock = threading.Lock()
        self._peers: dict[Link, Peer] = {}
        self._serials = itertools.count(1)
        self._answers: dict[int, threading.Event] = {}
        # What a message asks for may block on the node's thread, which therefore never does it itself.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="llm-datadist-peers")
        #: Closes a link; set once there is a node.
        self.unlink: Callable[[Link], None] = lambda link: None

    def of(self, link: Link) -> Peer:
        """What is known of one."""
        with self._lock:
            if link.state is LinkState.UP:
                return self._peers.setdefault(link, Peer())
        gone = Peer()
        gone.mismatch = f"the link is down: {link.reason}"
        gone.said_hello.set()
        return gone

    def changed(self, link: Link) -> None:
        """A link came up or went down; in the node's thread."""
        if link.state is LinkState.UP:
            self.of(link)
            link.notify(messages.encode(self._hello))
            return
        with self._lock:
            peer = self._peers.pop(link, None)
        if peer is not None:
            peer.mismatch = peer.mismatch or f"the link went down: {link.reason}"
            peer.said_hello.set()

    def notified(self, link: Link, payload: bytes) -> None:
        """A notification came; in the node's thread."""
        message = messages.decode(payload)
        if isinstance(message, messages.Hello):
            self._greeted(link, message)
        elif isinstance(message, messages.Using):
            peer = self.of(link)
            peer.uses = message.on
            if not message.on and not peer.used_here:
                self._aside(self.unlink, link)
        elif isinstance(message, messages.Consume):
            self._aside(self._consumed, link, message)
        elif isinstance(message, messages.Consumed):
            answer = self._answers.get(message.serial)
            if answer is not None:
                answer.set()
        else:
            log.warning("cluster %d sent a notification that is none of ours", link.cluster_id)

    def _greeted(self, link: Link, hello: messages.Hello) -> None:
        peer = self.of(link)
        if hello != self._hello:
            ours, theirs = _words(self._hello), _words(hello)
            peer.mismatch = f"the two sides work differently: here {ours}, at {link.peer_name} {theirs}"
            log.error("%s", peer.mismatch)
            self._aside(self.unlink, link)
        peer.said_hello.set()

    def _aside(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            self._worker.submit(_logged, work, *arguments)
        except RuntimeError:
            # The instance is being finalized, and with it all that this could change.
            log.info("not done any more: %s", work)

    def _consumed(self, link: Link, message: messages.Consume) -> None:
        self._consume(message.name, range(message.first, message.stop))
        link.notify(messages.encode(messages.Consumed(message.serial)))

    def tell_consumed(self, link: Link, name: tuple[str, int, int], tensors: range, timeout: float) -> bool:
        """Tell the owner of a key that it was pulled, and wait until it has noted that; False: it did not in time."""
        serial = next(self._serials)
        answer = self._answers[serial] = threading.Event()
        try:
            link.notify(messages.encode(messages.Consume(serial, name, tensors.start, tensors.stop)))
            return answer.wait(timeout)
        finally:
            del self._answers[serial]

    def close(self) -> None:
        """Do nothing more, once what is under way is done."""
        self._worker.shutdown(wait=True, cancel_futures=True)


def _logged(work: Callable[..., None], *arguments: Any) -> None:
    try:
        work(*arguments)
    except CacheError as error:
        log.warning("%s", error)


def _words(hello: messages.Hello) -> str:
    engine = "the hixl engine" if hello.hixl else "the default engine"
    return f"{engine} with llm.EnableRemoteCacheAccessible = {'1' if hello.get_mode else '0'}"
