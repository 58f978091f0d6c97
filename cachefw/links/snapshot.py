"""A node's statistics at one moment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cachefw.links.link import Link, LinkState
from cachefw.manager import CacheManager
from cachefw.metrics import LinkStats, MemoryStats, Stats

if TYPE_CHECKING:
    from cachefw.links.hub import Hub

__all__ = ["snapshot"]


def snapshot(hub: Hub, *, metrics: bool) -> Stats:
    """What `Node.stats` gives; from any thread.

    Args:
        hub: The node's links.
        metrics: Whether transfers are counted.
    """
    manager, counters = hub.manager, hub.counters
    return Stats(
        cluster_id=hub.cluster_id,
        software=manager.software,
        time=time.time(),
        security=hub.security,
        metrics=metrics,
        caches=len(manager.caches),
        memory=_memory(manager),
        links=tuple(_link(link) for link in hub.watched() if link.state is LinkState.UP or link.inflight),
        traffic=counters.traffic(),
        recent=counters.recent(),
        **counters.events(),
    )


def _memory(manager: CacheManager) -> tuple[MemoryStats, ...]:
    sums: dict[str, list[int]] = {}
    for memory in manager.memories:
        length = memory.region.length
        row = sums.setdefault(memory.region.kind.value, [0, 0, 0])
        row[0] += 1
        row[1] += length
        row[2] += length if memory.remote_accessible else 0
    return tuple(MemoryStats(kind, *row) for kind, row in sorted(sums.items()))


def _link(link: Link) -> LinkStats:
    inflight = list(link.inflight.values())
    late = link.unsettled
    return LinkStats(
        cluster_id=link.cluster_id,
        peer=link.peer_name,
        transport=link.transport,
        security=link.security,
        state=link.state.value,
        inflight=len(inflight),
        inflight_bytes=sum(prepared.nbytes for prepared in inflight),
        unsettled=len(late),
        unsettled_bytes=sum(transfer.nbytes for transfer in late),
        caches=len(link.caches),
        memories=len(link.memories),
    )
