"""What decides whether the blocks of one instance mean the same in another."""

from __future__ import annotations

import platform
from typing import Any

from vllm.config import VllmConfig
from vllm.version import __version__ as vllm_version

__all__ = ["shape_of"]


def shape_of(config: VllmConfig, model: str | None) -> dict[str, Any]:
    """The fields that both ends must agree in, as far as they are known before the caches are made; plain JSON.

    Args:
        config: The engine's configuration.
        model: What both ends call the model; None takes the name it was started with.
    """
    what, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    return {
        "vllm": vllm_version,
        "model": model or what.model,
        "dtype": str(what.dtype).removeprefix("torch."),
        "kv_cache_dtype": cache.cache_dtype,
        "block_size": cache.block_size,
        "kv_heads": what.get_total_num_kv_heads(),
        "head_size": what.get_head_size(),
        "layers": what.get_total_num_hidden_layers(),
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
        "device": _device(config),
    }


def _device(config: VllmConfig) -> str:
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        # The inside of a block depends on the instruction set there.
        from vllm.platforms.cpu import CpuPlatform

        arch = CpuPlatform.get_cpu_architecture()
        return f"cpu {getattr(arch, 'name', platform.machine()).lower()} {_isa()}"
    return str(current_platform.device_name)


def _isa() -> str:
    import torch

    return str(torch.backends.cpu.get_cpu_capability()).lower()
