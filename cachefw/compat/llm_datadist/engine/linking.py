"""Links by address: those of the default engine, and the one-way links of the hixl engine.

The default engine's links serve both directions and are filed, on both sides, under the other side's real cluster id.
A link of the hixl engine serves the side that made it, under the id that was given; below, both sides share one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import attrs

from cachefw.compat.llm_datadist.configs import LLMClusterInfo, int_to_ip
from cachefw.compat.llm_datadist.engine import messages
from cachefw.compat.llm_datadist.engine.options import EngineOptions
from cachefw.compat.llm_datadist.engine.peers import EngineNode, Peers
from cachefw.compat.llm_datadist.status import LLMException, LLMStatusCode, failed, invalid, status_of, worst
from cachefw.compat.llm_datadist.utils.log import log
from cachefw.errors import (
    BrokenError,
    CacheError,
    ClosedError,
    RequestError,
    TransferTimeout,
    TransportUnavailable,
)
from cachefw.links.link import Link, LinkState

__all__ = ["Links"]

#: Clusters of one call that are linked at a time.
_WIDTH = 16
#: Seconds that a peer has to say how it works; an ordinary node never does, and is taken as it is.
_HELLO = 2.0
#: Seconds between two attempts.
_PAUSE = 0.05


@attrs.define
class _OneWay:
    """A link of the hixl engine: where the peer listens, and the link below, which the peer may have closed."""

    address: str
    link: Link


class Links:
    """The links of one instance.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, node: EngineNode, peers: Peers, options: EngineOptions) -> None:
        self._node = node
        self._peers = peers
        self._options = options
        self._lock = threading.Lock()
        self._one_way: dict[int, _OneWay] = {}
        #: Whether the own communication resources are known; the default engine finds them with its first link.
        self._located = options.comm_res is not None or options.listen is not None
        peers.unlink = node.unlink

    # ------------------------------------------------------------------ which link a key means

    def real_id(self, cluster_id: int) -> int:
        """The id under which the node has the link to a cluster.

        Raises:
            LLMException: With `LLM_NOT_YET_LINK`: hixl engine only, this side has not linked to it. With another, it
                has, and the peer cannot be reached any more.
        """
        if not self._options.hixl:
            return cluster_id
        with self._lock:
            entry = self._one_way.get(cluster_id)
        if entry is None:
            have = ", ".join(map(str, sorted(self._one_way))) or "none"
            raise failed(
                LLMStatusCode.LLM_NOT_YET_LINK,
                f"this side has not linked to cluster {cluster_id}; it has linked to: {have}. Links of the hixl engine "
                "serve one direction: link from here too",
            )
        if entry.link.state is not LinkState.UP:
            # The peer gave up its own use of the link, or failed; ours stands until it is unlinked here.
            entry.link = self._dial(entry.address, self._options.timeout)
            self._use(entry.link, True)
        return entry.link.cluster_id

    def exist(self) -> bool:
        """Whether there is a link."""
        return bool(self._node.links)

    # ------------------------------------------------------------------ linking

    def link_clusters(
        self, clusters: Sequence[LLMClusterInfo], timeout: float
    ) -> tuple[LLMStatusCode, list[LLMStatusCode]]:
        """Link to each cluster; what came of all, and of each."""
        return self._each(clusters, lambda info: self._link(info, timeout))

    def unlink_clusters(
        self, clusters: Sequence[LLMClusterInfo], force: bool
    ) -> tuple[LLMStatusCode, list[LLMStatusCode]]:
        """Unlink each cluster; what came of all, and of each."""
        return self._each(clusters, lambda info: self._unlink(info, force))

    @staticmethod
    def _each(
        clusters: Sequence[LLMClusterInfo], work: Callable[[LLMClusterInfo], None]
    ) -> tuple[LLMStatusCode, list[LLMStatusCode]]:
        def status(info: LLMClusterInfo) -> LLMStatusCode:
            try:
                work(info)
            except CacheError as error:
                code = _link_status(error)
                log.error("cluster %s: %s: %s", info.remote_cluster_id, code, error)
                return code
            return LLMStatusCode.LLM_SUCCESS

        if not clusters:
            return LLMStatusCode.LLM_PARAM_INVALID, []
        if len(clusters) == 1:
            statuses = [status(clusters[0])]
        else:
            with ThreadPoolExecutor(min(_WIDTH, len(clusters)), thread_name_prefix="llm-datadist-link") as pool:
                statuses = list(pool.map(status, clusters))
        return worst(statuses), statuses

    def _link(self, info: LLMClusterInfo, timeout: float) -> None:
        if self._options.comm_res_error is not None:
            raise self._options.comm_res_error
        address = _remote(info)
        if not self._located and len(info.local_ip_info_list) != 1:
            raise invalid(f"give exactly one local address, not {len(info.local_ip_info_list)}", "link_clusters")
        if self._options.hixl:
            self._link_one_way(info, address, timeout)
            return
        before = set(self._node.links)
        link = self._dial(address, timeout)
        self._located = True
        if link in before:
            raise failed(LLMStatusCode.LLM_ALREADY_LINK, f"the link to {link.peer_name} exists", "link_clusters")

    def _link_one_way(self, info: LLMClusterInfo, address: str, timeout: float) -> None:
        number = info.remote_cluster_id
        assert number is not None  # noqa: S101 - checked by the public call
        with self._lock:
            known = self._one_way.get(number)
        if known is not None and known.link.state is LinkState.UP:
            raise failed(LLMStatusCode.LLM_ALREADY_LINK, f"linked to cluster {number} already", "link_clusters")
        link = self._dial(address, timeout)
        with self._lock:
            self._one_way[number] = _OneWay(address, link)
        self._use(link, True)

    def _use(self, link: Link, on: bool) -> None:
        peer = self._peers.of(link)
        peer.used_here = on
        try:
            link.notify(messages.encode(messages.Using(on)))
        except (BrokenError, ClosedError) as error:
            log.info("%s", error)

    def _dial(self, address: str, timeout: float) -> Link:
        """A link to a node that listens there and works as this one does."""
        deadline = time.monotonic() + timeout
        for attempt in range(self._options.link_retry_count):
            try:
                link = self._node.link(address, max(deadline - time.monotonic(), 0.001))
                break
            except BrokenError as error:
                now = time.monotonic()
                if now >= deadline and error.code == "link.unreachable":
                    raise failed(LLMStatusCode.LLM_TIMEOUT, str(error), "link_clusters") from error
                if now + _PAUSE >= deadline or attempt + 1 == self._options.link_retry_count:
                    raise
                time.sleep(_PAUSE)
        self.check_peer(link, deadline)
        return link

    def check_peer(self, link: Link, deadline: float) -> None:
        """Wait for how the peer works.

        Raises:
            LLMException: With `LLM_PARAM_INVALID`: it works differently, and the link is closed.
        """
        peer = self._peers.of(link)
        peer.said_hello.wait(max(min(deadline - time.monotonic(), _HELLO), 0.001))
        if peer.mismatch:
            self._node.unlink(link)
            raise invalid(peer.mismatch, "link")

    # ------------------------------------------------------------------ unlinking

    def _unlink(self, info: LLMClusterInfo, force: bool) -> None:
        number = info.remote_cluster_id
        assert number is not None  # noqa: S101 - checked by the public call
        if self._options.hixl:
            with self._lock:
                entry = self._one_way.pop(number, None)
                again = entry is not None and any(other.link is entry.link for other in self._one_way.values())
            if entry is not None and not again:
                self._let_go(entry.link)
            return
        if not force:
            _remote(info)
        for link in self._node.links:
            if link.cluster_id == number:
                self._node.unlink(link)

    def _let_go(self, link: Link) -> None:
        if self._peers.of(link).uses:
            # The other side closes it when it has no more use for it either.
            self._use(link, False)
        else:
            self._node.unlink(link)


def _remote(info: LLMClusterInfo) -> str:
    addresses = info.remote_ip_info_list
    if len(addresses) != 1:
        raise invalid(f"give exactly one remote address, not {len(addresses)}", "link_clusters")
    ip, port = addresses[0]
    return f"{int_to_ip(ip)}:{port}"


def _link_status(error: CacheError) -> LLMStatusCode:
    """The status of a link that could not be made."""
    if isinstance(error, LLMException):
        return error.status_code
    if isinstance(error, TransferTimeout):
        return LLMStatusCode.LLM_TIMEOUT
    if isinstance(error, (RequestError, TransportUnavailable)):
        return LLMStatusCode.LLM_PARAM_INVALID
    if isinstance(error, BrokenError):
        return LLMStatusCode.LLM_LINK_FAILED
    return status_of(error)
