"""What the codes of the connectors for serving engines mean."""

from __future__ import annotations

from cachefw.catalog import Cause, Entry

__all__ = ["ENTRIES"]


def _code(name: str, title: str, *causes: Cause) -> Entry:
    return Entry(name, "code", title, causes=causes)


ENTRIES: tuple[Entry, ...] = (
    _code(
        "vllm.layout",
        "the caches of two vLLM instances are not alike, so that no block may move between them",
        Cause(
            "the instances were started with different settings; the message names each field",
            "start both with the same model, data types, block size and ranks",
        ),
        Cause("they run on different instruction sets, or with different versions of vLLM", "make them the same"),
        Cause("the model lies in different folders", 'give both the same "model" in kv_connector_extra_config'),
    ),
    _code(
        "vllm.mode",
        "one vLLM instance is to write blocks to another that only reads them, or the other way round",
        Cause("only one of the two was started to push", 'give both the same "mode" in kv_connector_extra_config'),
    ),
    _code(
        "vllm.prompt",
        "the cache of one prompt was offered for another",
        Cause(
            "the proxy mixed up the answers of the prefill instance",
            "hand on kv_transfer_params with the very prompt that they were returned for",
        ),
    ),
)
