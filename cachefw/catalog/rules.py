"""How the core's rules come to be broken."""

from __future__ import annotations

from cachefw.catalog import Cause

__all__ = ["CAUSES"]

CAUSES: dict[str, tuple[Cause, ...]] = {
    "core.count": (
        Cause("keys and values count as two tensors, and one of them was left out", "give one address for each tensor"),
    ),
    "core.address": (
        Cause("an address was taken from what has no memory of its own", "give the tensor, or tensor.data_ptr()"),
        Cause("the tensor is empty or on a device without storage ('meta')", "allocate it first"),
    ),
    "core.source": (
        Cause(
            "a slice or a transposed view was given: its bytes are not one run",
            "give the tensor that it is a view of, or register that with register_memory",
        ),
        Cause("the shape or the data_type of cache_desc is another tensor's", "compare both with the tensor"),
    ),
    "core.size": (
        Cause(
            "a dimension of -1 was left for later", "give the real size; memory of an unknown size cannot be registered"
        ),
    ),
    "core.unique": (
        Cause(
            "tensors share one storage (hybrid models), or two parts of an engine register the same tensor",
            "register the storage once with register_memory; caches inside it are views and may share it",
        ),
        Cause(
            "an earlier registration was not given back", "unregister it first; `manager.report()` lists what is held"
        ),
    ),
    "core.limit.addresses": (
        Cause(
            "one tensor for each layer, and many layers",
            "describe it as fewer, larger tensors where they touch, or raise Limits(addresses=...)",
        ),
    ),
    "core.limit.device_bytes": (
        Cause("the cache is larger than one process may register", "give each process less: more ranks, fewer blocks"),
    ),
    "core.limit.host_bytes": (
        Cause(
            "the pool of host memory is larger than drivers before HDK 25.5 map",
            "register less, or raise Limits(host_bytes=...) where the driver allows it",
        ),
    ),
    "core.order": (
        Cause("a link came up before the caches were registered", "register device memory first, then link"),
    ),
    "core.keys": (
        Cause("more keys than batch rows, or the request id and the prefix id were both set", "one key for each row"),
    ),
}
