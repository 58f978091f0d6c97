"""What the figures have an engine's process do."""

from __future__ import annotations

import base64
import time
from typing import Any

import msgspec


def _worker() -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()._worker


def bare_pull(_engine: Any, params: dict[str, Any]) -> float:
    """Seconds of one `pull_blocks` of the blocks of a prefill, to free blocks of this engine, on the same link."""
    from cachefw import BlocksCacheKey

    worker = _worker()
    (there,) = params["remote_block_ids"]
    here = list(range(1, len(there) + 1))
    card = msgspec.msgpack.decode(base64.b64decode(params["cachefw"]["cards"][0]))
    key = BlocksCacheKey(card["cluster_id"], 0)
    manager, cache = worker._node.cache_manager, worker._caches[0]
    begin = time.perf_counter()
    manager.pull_blocks(key, cache, there, here)
    return time.perf_counter() - begin
