"""A key/value connector for vLLM: prefill in one instance, decode in another, the cache moved by cachefw.

    --kv-transfer-config '{"kv_connector": "CachefwConnector", "kv_connector_module_path": "cachefw.integrations.vllm",
                           "kv_role": "kv_producer", "kv_load_failure_policy": "recompute"}'

An installed cachefw also tells vLLM of the name by itself, so that ``kv_connector_module_path`` may be left out.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CachefwConnector", "register"]


def register() -> None:
    """Tell vLLM of the connector by name; vLLM calls this in each of its processes (``vllm.general_plugins``)."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if "CachefwConnector" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector("CachefwConnector", __name__ + ".connector", "CachefwConnector")


def __getattr__(name: str) -> Any:
    # Imports vLLM and torch, which who only asks for `register` should not wait for.
    if name != "CachefwConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cachefw.integrations.vllm.connector import CachefwConnector

    return CachefwConnector
