"""Statistics of nodes for Prometheus; needs ``cachefw[prometheus]``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cachefw.metrics import Stats
from cachefw.node import Node

__all__ = ["NodeCollector", "serve"]

_TRAFFIC = ("cluster_id", "transport", "path", "operation", "outcome", "staged")
_COUNTS = {
    "transfers": "Transfers that settled, or could not be started",
    "nbytes": "Bytes that they asked for",
    "pieces": "Ranges that they asked for",
    "seconds": "Seconds from posting until settled, added up",
}
_NAMES = {"nbytes": "bytes"}
_EVENTS = {
    "links_made": "Links that came up",
    "links_closed": "Links that were closed on this side",
    "links_broken": "Links that the peer closed, or that failed",
    "retries": "Dials that were tried again",
    "timeouts": "Deadlines of transfers that passed",
}
_LINK = {
    "inflight": "Transfers that have not settled",
    "inflight_bytes": "Bytes of transfers that have not settled",
    "unsettled": "Transfers that have not settled and are late",
    "unsettled_bytes": "Bytes of transfers that have not settled and are late",
}


class NodeCollector(Collector):
    """Gives Prometheus the statistics of nodes, taken when it asks. Register it with any `CollectorRegistry`.

    Every metric begins with ``cachefw_`` and has the label ``node``, the node's cluster id. Transfers are counted by
    nodes that were made with ``metrics=True``.

    Args:
        nodes: The nodes.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, *nodes: Node) -> None:
        self._nodes = nodes

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering takes no statistics."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics of all nodes."""
        everyone = [(str(node.cluster_id), node.stats()) for node in self._nodes]
        for field, text in _COUNTS.items():
            counter = _counter(
                f"transfer_{_NAMES.get(field, field)}" if field != "transfers" else field, text, *_TRAFFIC
            )
            for name, stats in everyone:
                for row in stats.traffic:
                    counter.add_metric(
                        [name, *(_label(getattr(row, label)) for label in _TRAFFIC)], getattr(row, field)
                    )
            yield counter
        for field, text in _EVENTS.items():
            counter = _counter(field if field != "retries" else "dial_retries", text)
            for name, stats in everyone:
                counter.add_metric([name], getattr(stats, field))
            yield counter
        refused = _counter("handshakes_refused", "Handshakes of strangers that made no link", "code")
        for name, stats in everyone:
            for code, count in stats.refused.items():
                refused.add_metric([name, code], count)
        yield refused
        yield from _gauges(
            "memory",
            ("kind",),
            everyone,
            lambda stats: stats.memory,
            {
                "regions": "Registered regions",
                "nbytes": "Registered bytes",
                "remote_accessible": "Registered bytes that linked peers may reach",
            },
        )
        yield from _gauges("link", ("cluster_id", "transport", "state"), everyone, lambda stats: stats.links, _LINK)
        caches = GaugeMetricFamily("cachefw_caches", "Registered caches", labels=["node"])
        links = GaugeMetricFamily("cachefw_links", "Links that are up", labels=["node"])
        for name, stats in everyone:
            caches.add_metric([name], stats.caches)
            links.add_metric([name], sum(link.state == "up" for link in stats.links))
        yield caches
        yield links


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"cachefw_{name}", text, labels=["node", *labels])


def _label(value: Any) -> str:
    return "other" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _gauges(
    prefix: str,
    labels: tuple[str, ...],
    everyone: list[tuple[str, Stats]],
    rows: Callable[[Stats], Iterable[Any]],
    fields: dict[str, str],
) -> Iterator[Metric]:
    for field, text in fields.items():
        gauge = GaugeMetricFamily(f"cachefw_{prefix}_{_NAMES.get(field, field)}", text, labels=["node", *labels])
        for name, stats in everyone:
            for row in rows(stats):
                gauge.add_metric([name, *(_label(getattr(row, label)) for label in labels)], getattr(row, field))
        yield gauge


def serve(*nodes: Node, port: int = 0, host: str = "127.0.0.1", registry: CollectorRegistry | None = None) -> Server:
    """Serve the statistics of nodes over HTTP, in a thread of its own, until it is closed.

    Nothing is proved or encrypted: beyond loopback put a proxy before it that is.

    Args:
        *nodes: The nodes.
        port: 0 takes a free one; see `Server.port`.
        host: Address to listen on.
        registry: Where the collector is registered; None takes one of its own.

    Raises:
        OSError: The address cannot be bound.
    """
    registry = CollectorRegistry() if registry is None else registry
    collector = NodeCollector(*nodes)
    registry.register(collector)
    try:
        return Server(registry, collector, host, port)
    except BaseException:
        registry.unregister(collector)
        raise


class Server:
    """Answers Prometheus. Made by `serve`; a context manager.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, registry: CollectorRegistry, collector: Collector, host: str, port: int) -> None:
        self._registry, self._collector = registry, collector
        self._httpd, self._thread = start_http_server(port, host, registry)
        self.port = int(self._httpd.server_port)

    def close(self) -> None:
        """Answer no more. Idempotent."""
        if self._thread.is_alive():
            self._httpd.shutdown()
            self._httpd.server_close()
            self._thread.join()
            self._registry.unregister(self._collector)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
