"""The engine's key/value tensors as registered blocks caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch

from cachefw.cache import BlocksCacheKey, Cache, CacheDesc, DataType, Placement
from cachefw.errors import RequestError, refusal
from cachefw.manager import CacheManager

__all__ = ["LayerViews", "register", "tables"]


@attrs.frozen
class LayerViews:
    """Layers whose blocks have one size, each layer's block table at its own address.

    Attributes:
        addresses: Where block 0 of each table is; layers that share their bytes (hybrid models) count once.
        blocks: How many blocks a table has.
        block_bytes: Bytes of one block of one layer.
    """

    addresses: tuple[int, ...]
    blocks: int
    block_bytes: int


def _views(kv_caches: Mapping[str, torch.Tensor]) -> list[LayerViews]:
    """Group the layers by block size, in order of their names' first appearance: the same on both ends.

    Raises:
        RequestError: Also a `ValueError`: the bytes of a block are not one run, or blocks do not follow each other.
    """
    groups: dict[tuple[int, int], dict[int, None]] = {}
    for name, tensor in kv_caches.items():
        block = tensor[0]
        size = block.numel() * block.element_size()
        stride = tensor.stride(0) * tensor.element_size()
        if not block.is_contiguous() or stride != size:
            raise refusal(
                RequestError,
                {ValueError},
                f"layer {name}: blocks of {size:,} bytes lie {stride:,} bytes apart (shape {tuple(tensor.shape)}, "
                f"strides {tensor.stride()}); the connector moves layouts in which the blocks of one layer follow "
                "each other "
                "(LBHNC, LBNHC)",
                operation="register_kv_caches",
            )
        groups.setdefault((tensor.shape[0], size), {})[tensor.data_ptr()] = None
    return [LayerViews(tuple(group), blocks, size) for (blocks, size), group in groups.items()]


def tables(kv_caches: Mapping[str, torch.Tensor], caches: Sequence[Cache]) -> dict[str, tuple[int, int]]:
    """By layer, which of `caches` has its blocks, and as which of its tensors."""
    places = {addr: (n, at) for n, cache in enumerate(caches) for at, addr in enumerate(cache.tensor_addrs)}
    return {name: places[tensor.data_ptr()] for name, tensor in kv_caches.items()}


def register(manager: CacheManager, cluster_id: int, kv_caches: Mapping[str, torch.Tensor]) -> list[Cache]:
    """Register the memory that the tensors are views of, once, and over it one blocks cache for each size of block.

    The key of cache i at the node `cluster_id` is ``BlocksCacheKey(cluster_id, i)``. Linked peers may read and write
    all of it.

    Raises:
        RegistrationError: Memory breaks a rule of the transport.
        RequestError: Also a `ValueError`: there are no tensors, or their layout is not supported.
    """
    if not kv_caches:
        raise refusal(RequestError, {ValueError}, "the engine has no key/value tensors", operation="register_kv_caches")
    views = _views(kv_caches)
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in kv_caches.values()}
    for tensor in storages.values():
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        manager.register_memory(whole, remote_accessible=True, label="key/value cache")
    place = Placement.HOST if all(t.device.type == "cpu" for t in storages.values()) else Placement.DEVICE
    caches = []
    for number, view in enumerate(views):
        desc = CacheDesc(len(view.addresses), (view.blocks, view.block_bytes), DataType.DT_UINT8, place)
        caches.append(manager.register_blocks_cache(desc, view.addresses, BlocksCacheKey(cluster_id, number), True))
    return caches
