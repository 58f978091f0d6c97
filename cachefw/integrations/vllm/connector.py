"""The class that vLLM makes: once in the scheduler, once in each worker."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from cachefw.integrations.vllm.scheduler import Scheduler
from cachefw.integrations.vllm.settings import Settings
from cachefw.integrations.vllm.shape import shape_of
from cachefw.integrations.vllm.stats import Counts, Metrics
from cachefw.integrations.vllm.steps import Registered, Step
from cachefw.integrations.vllm.worker import Worker

__all__ = ["CachefwConnector"]


class CachefwConnector(KVConnectorBase_V1, SupportsHMA):
    """Moves the key/value blocks of a request from the instance that computed them to the one that goes on with it.

    Written against vLLM 0.32. What each method is for is said in vLLM's base class; here they only choose the half.
    """

    _cache_hit_source = CacheHitSource.P2P

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        config = self._kv_transfer_config
        settings = Settings.read(config.kv_connector_extra_config or {})
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = Scheduler(config.engine_id, settings, len(kv_cache_config.kv_cache_groups))
        else:
            shape = {**shape_of(vllm_config, settings.model), "mode": settings.mode}
            groups = kv_cache_config.kv_cache_groups
            block_size = groups[0].kv_cache_spec.block_size if len(groups) == 1 else None
            self._worker = Worker(settings, vllm_config.parallel_config.rank, shape, block_size)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        return "LBHNC"

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        # Layers are told of one by one, which a captured graph would not do.
        return extra_config.get("mode") == "push"

    # ------------------------------------------------------------------ scheduler

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        self._deciding.know_workers(metadata)

    def on_new_request(self, request: Any) -> None:
        self._deciding.new(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._deciding.matched(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        return tuple(range(len(self._kv_cache_config.kv_cache_groups)))

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._deciding.allocated(request, blocks.blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return self._deciding.take_step(scheduler_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._deciding.finished(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self._deciding.finished(request, block_ids)

    def update_connector_output(self, connector_output: Any) -> None:
        self._deciding.sent(connector_output.finished_sending or ())

    def has_pending_push_work(self) -> bool:
        # Otherwise an engine with nothing to run would not step, and what is to be said would wait.
        return self._deciding.pending

    # ------------------------------------------------------------------ worker

    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        return self._moving.memory()

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._moving.register(kv_caches)

    def get_handshake_metadata(self) -> Registered:
        return Registered(self._moving.handshake())

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, Step)  # noqa: S101 - made by `build_connector_meta`
        self._moving.before(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        step = self._get_connector_metadata()
        assert isinstance(step, Step)  # noqa: S101 - made by `build_connector_meta`
        self._moving.start(step)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Blocks are whole before their request runs."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        self._moving.layer(layer_name)

    def wait_for_save(self) -> None:
        # Nothing waits: blocks stay what they are until they have been written.
        self._moving.end_step()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        self._moving.ended(finished_req_ids)
        outcome = self._moving.outcome()
        return KVConnectorTransferResults(outcome.sent, outcome.received, outcome.failed)

    def get_kv_connector_stats(self) -> Counts | None:
        # vLLM asks both halves; there is nothing to count where nothing moves.
        counts = self._worker.take_counts() if self._worker is not None else None
        return counts if counts is not None and not counts.is_empty() else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Counts:
        return Counts(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: VllmConfig, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> Metrics:
        return Metrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()

    # ------------------------------------------------------------------ halves

    @property
    def _deciding(self) -> Scheduler:
        assert self._scheduler is not None  # noqa: S101 - vLLM calls each half in its own process
        return self._scheduler

    @property
    def _moving(self) -> Worker:
        assert self._worker is not None  # noqa: S101 - vLLM calls each half in its own process
        return self._worker
