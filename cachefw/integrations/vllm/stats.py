"""What the connector counted: for vLLM's log and its Prometheus metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.utils import create_metric_per_engine

__all__ = ["Counts", "Metrics"]

_MEANINGS = {
    "loads": "Requests whose cache was loaded from another instance.",
    "failed": "Requests whose cache could not be loaded.",
    "expired": "Requests kept for another instance that nobody came for in time.",
    "bytes": "Bytes loaded.",
    "pieces": "Ranges of memory loaded, after neighbours were joined.",
    "seconds": "Seconds that loading took, from the post until the engine heard that it was over.",
}


@dataclass
class Counts(KVConnectorStats):
    """Sums since the last report, by the names of `_MEANINGS`."""

    def __post_init__(self) -> None:
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.data: dict[str, float] = dict.fromkeys(_MEANINGS, 0)

    def add(self, name: str, value: float = 1) -> None:
        """Count something."""
        self.data[name] += value

    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not any(self.data.values())

    def aggregate(self, other: KVConnectorStats) -> Counts:
        """Add the counts of another rank or interval."""
        for name, value in other.data.items():
            self.data[name] += value
        return self

    def reduce(self) -> dict[str, int | float]:
        """For the log."""
        counts = self.data
        rate = counts["bytes"] / counts["seconds"] / 1e9 if counts["seconds"] else 0.0
        return {
            "loads": counts["loads"],
            "failed": counts["failed"],
            "expired": counts["expired"],
            "MB": round(counts["bytes"] / 1e6, 3),
            "GB/s": round(rate, 3),
        }


class Metrics(KVConnectorPromMetrics):
    """The same as Prometheus counters, ``vllm:cachefw_..._total``."""

    def __init__(self, vllm_config: VllmConfig, metric_types: Any, labelnames: list[str], values: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, values)
        self._counters = {
            name: create_metric_per_engine(
                self._counter_cls(name=f"vllm:cachefw_{name}", documentation=meaning, labelnames=labelnames), values
            )
            for name, meaning in _MEANINGS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what was reported."""
        for name, counter in self._counters.items():
            counter[engine_idx].inc(transfer_stats_data[name])
