"""The checks of `transfer_cache_async`."""

from __future__ import annotations

from typing import Any

from cachefw.cache import Placement
from cachefw.compat.llm_datadist.utils.utils import check_isinstance, check_uint64, require
from cachefw.compat.llm_datadist.v2._caches import Cache
from cachefw.compat.llm_datadist.v2._transfers import LayerSynchronizer, TransferConfig

__all__ = ["check_transfer"]

#: Tensors of a layer: keys and values.
_TENSORS = 2


def check_transfer(
    src_cache: Any,
    layer_synchronizer: Any,
    transfer_configs: Any,
    src_blocks: Any,
    dst_blocks: Any,
    block_size: Any,
    config_class: type,
) -> None:
    """Check the arguments. A config without a range of layers gets the full one, in the caller's object.

    Raises:
        TypeError: A wrong type.
        ValueError: A number outside its machine range.
        LLMException: Another wrong value.
    """
    check_isinstance("src_cache", src_cache, Cache, allow_none=False)
    desc = src_cache.cache_desc
    require(desc.placement is not Placement.HOST, f"{src_cache} is in host memory; only device memory can be sent so")
    for name, blocks in (("dst_block_indices", dst_blocks), ("src_block_indices", src_blocks)):
        check_isinstance(name, blocks, (list, tuple), int)
        for index, block in enumerate(blocks or ()):
            check_uint64(f"{name}[{index}]", block)
    if block_size is not None:
        check_uint64("dst_block_memory_size", block_size)
    if src_blocks:
        require(dst_blocks, "src_block_indices without dst_block_indices; blocks cannot fill a row")
        require(
            len(src_blocks) == len(dst_blocks),
            f"{len(src_blocks)} src_block_indices and {len(dst_blocks)} dst_block_indices; give as many",
        )
    elif dst_blocks:
        require(block_size is not None, "dst_block_indices without src_block_indices need dst_block_memory_size")
    check_isinstance("layer_synchronizer", layer_synchronizer, LayerSynchronizer, allow_none=False)
    check_isinstance("transfer_configs", transfer_configs, (list, tuple), config_class, allow_none=False)
    require(dst_blocks or not block_size, "dst_block_memory_size without dst_block_indices; leave it out")
    require(
        desc.num_tensors % _TENSORS == 0,
        f"{src_cache} has {desc.num_tensors} tensors; a layer is {_TENSORS} of them, keys and values",
    )
    layers = desc.num_tensors // _TENSORS
    for index, config in enumerate(transfer_configs):
        if config.src_layer_range is None:
            config.src_layer_range = range(layers)
        name = f"transfer_configs[{index}]"
        require(not src_blocks or config.src_batch_index == 0, f"{name}: with blocks src_batch_index must be 0")
        named = config.src_layer_range
        require(0 <= named.start < named.stop <= layers, f"{name}: {named} is not within layers 0 to {layers - 1}")
        if isinstance(config, TransferConfig):
            require(
                len(config.dst_addrs) == _TENSORS * len(named),
                f"{name} has {len(config.dst_addrs)} dst_addrs for {len(named)} layers; give {_TENSORS} for each",
            )
