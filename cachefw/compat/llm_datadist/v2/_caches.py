"""What a cache is, and the handles of caches."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Any

from cachefw.cache import Placement
from cachefw.compat.llm_datadist.data_type import DataType, itemsize
from cachefw.compat.llm_datadist.status import LLMException, of_none
from cachefw.compat.llm_datadist.utils.utils import (
    check_elements,
    check_int32,
    check_int64,
    check_isinstance,
    check_uint32,
    require,
)

__all__ = ["Cache", "CacheDesc", "KvCache", "MemInfo", "Memtype", "RegisterMemStatus", "int_to_mem_status_dict"]


class Memtype(enum.Enum):
    """Where memory lies. The numbers stand the other way round than those of `Placement`."""

    MEM_TYPE_DEVICE = 0
    MEM_TYPE_HOST = 1


class RegisterMemStatus(enum.Enum):
    """How far the making of a rank-table link has come."""

    OK = 0
    PREPARING = 1
    FAILED = 2


int_to_mem_status_dict = {status.value: status for status in RegisterMemStatus}


class CacheDesc:
    """The shape of a cache: ``num_tensors`` tensors of one shape and type, in one place.

    Args:
        num_tensors: How many tensors.
        shape: Elements per dimension; dimension 0 counts rows, or blocks.
        data_type: Element type.
        placement: Host or device.
        batch_dim_index: Only what `batch_size` tells; transfers always use dimension 0.
        seq_len_dim_index: -1 or a dimension; not used.
        kv_tensor_format: Free text; not used.

    Raises:
        TypeError: A wrong type.
        ValueError: A number outside its machine range.
        LLMException: A dimension index outside the shape.
    """

    def __init__(
        self,
        num_tensors: int,
        shape: Sequence[int],
        data_type: DataType,
        placement: Placement = Placement.DEVICE,
        batch_dim_index: int = 0,
        seq_len_dim_index: int = -1,
        kv_tensor_format: str | None = None,
    ) -> None:
        self._num_tensors = check_uint32("num_tensors", num_tensors)
        check_isinstance("shape", shape, (list, tuple), int, allow_none=False)
        check_isinstance("data_type", data_type, DataType)
        check_isinstance("placement", placement, Placement)
        check_isinstance("batch_dim_index", batch_dim_index, int, allow_none=False)
        check_int32("seq_len_dim_index", seq_len_dim_index)
        check_isinstance("kv_tensor_format", kv_tensor_format, str)
        dims = len(shape)
        require(
            0 <= batch_dim_index < dims,
            f"batch_dim_index {batch_dim_index} is no dimension of {shape}, which has {dims}",
        )
        require(
            seq_len_dim_index == -1 or 0 <= seq_len_dim_index < dims,
            f"seq_len_dim_index {seq_len_dim_index} is neither -1 nor a dimension of {shape}, which has {dims}",
        )
        for axis, dim in enumerate(shape):
            check_int64(f"shape[{axis}]", dim)
        self._shape = shape
        self._data_type = data_type
        self._placement = placement
        self._batch_dim_index = batch_dim_index
        self._batch_size = shape[batch_dim_index]
        self._seq_len_dim_index = seq_len_dim_index
        self._kv_tensor_format = kv_tensor_format
        self._size: int | None = None
        self._is_blocks = False

    @property
    def num_tensors(self) -> int:
        """How many tensors."""
        return self._num_tensors

    @property
    def shape(self) -> Sequence[int]:
        """The very object that was given."""
        return self._shape

    @property
    def data_type(self) -> DataType:
        """Element type."""
        return self._data_type

    @property
    def placement(self) -> Placement:
        """Host or device."""
        return self._placement

    @property
    def batch_dim(self) -> int:
        """As given."""
        return self._batch_dim_index

    @property
    def batch_size(self) -> int:
        """Elements of the batch dimension when this was made."""
        return self._batch_size

    @property
    def seq_len_dim_index(self) -> int:
        """As given."""
        return self._seq_len_dim_index

    @property
    def kv_tensor_format(self) -> str | None:
        """As given."""
        return self._kv_tensor_format

    @property
    def size(self) -> int:
        """Bytes of one tensor.

        Raises:
            AttributeError: The data type is None.
            LLMException: With `LLM_SUCCESS`: they are less than none.
        """
        if self._size is None:
            if self._data_type is None:
                raise of_none("data_type is None; it must be a DataType")
            size = math.prod(self._shape) * itemsize(self._data_type)
            if size < 0:
                raise LLMException(f"a tensor of {list(self._shape)} has {size} bytes; correct the shape")
            self._size = size
        return self._size

    def update_dim(self, dim_index: int, dim_value: int) -> None:
        """Change one dimension of the shape, in place.

        Raises:
            TypeError: The shape is a tuple.
        """
        self._shape[dim_index] = dim_value  # type: ignore[index] # a tuple raises what the caller expects
        self._size = None

    def __repr__(self) -> str:
        return (
            f"CacheDesc(num_tensors={self._num_tensors}, shape={self._shape}, data_type={self._data_type}, "
            f"placement={self._placement}, batch_dim_index={self._batch_dim_index}, "
            f"seq_len_dim_index={self._seq_len_dim_index},kv_tensor_format={self._kv_tensor_format})"
        )


class Cache:
    """A registered or allocated cache. Made by the manager, except by `create_cpu_cache`."""

    def __init__(
        self,
        cache_id: int,
        cache_desc: CacheDesc,
        tensor_addrs: list[int],
        cache_manager: Any = None,
        is_registered: bool = False,
        is_blocks_cache: bool = False,
    ) -> None:
        self._cache_id = check_int64("cache_id", cache_id)
        self._cache_desc = cache_desc
        self._tensor_addrs = tensor_addrs
        self._cache_manager = cache_manager
        self._is_registered = is_registered
        self._is_blocks_cache = is_blocks_cache
        self._valid = True

    @classmethod
    def create_cpu_cache(cls, cache_desc: CacheDesc, addrs: list[int]) -> Cache:
        """A blocks cache over host memory that is not registered, for `swap_blocks` alone.

        Raises:
            TypeError: A wrong type.
            LLMException: Not host memory, or not one address for each tensor.
        """
        check_isinstance("cache_desc", cache_desc, CacheDesc)
        check_isinstance("addrs", addrs, list, int)
        if cache_desc is None:
            raise of_none("cache_desc is None; it must be a CacheDesc")
        require(cache_desc.placement == Placement.HOST, f"a CPU cache lies in host memory, not {cache_desc.placement}")
        count = len(addrs)
        require(count == cache_desc.num_tensors, f"{count} addrs for {cache_desc.num_tensors} tensors")
        return cls(-1, cache_desc, addrs, None, is_blocks_cache=True)

    @property
    def cache_id(self) -> int:
        """The id that keys name it by; -1 for a CPU cache."""
        return self._cache_id

    @property
    def cache_desc(self) -> CacheDesc:
        """As given."""
        return self._cache_desc

    @property
    def tensor_addrs(self) -> list[int]:
        """Start address of each tensor; [] once it was deallocated."""
        return self._tensor_addrs

    @property
    def is_blocks_cache(self) -> bool:
        """Whether dimension 0 counts blocks."""
        return self._is_blocks_cache

    def __repr__(self) -> str:
        return (
            f"Cache(cache_id = {self._cache_id}, device_tensor_addrs = {len(self._tensor_addrs)}, "
            f"is_blocks_cache = {self._is_blocks_cache})"
        )


class KvCache:
    """A cache of LLM-DataDist's first generation; only the values, there is no manager for it here."""

    def __init__(
        self,
        cache_id: int,
        cache_desc: CacheDesc,
        per_device_tensor_addrs: list[list[int]],
        kv_cache_manager: Any = None,
    ) -> None:
        self._cache_id = cache_id
        self._cache_desc = cache_desc
        self._per_device_tensor_addrs = per_device_tensor_addrs
        self._kv_cache_manager = kv_cache_manager

    @classmethod
    def create_cpu_cache(cls, cache_desc: CacheDesc, addrs: list[int] | list[list[int]]) -> KvCache:
        """A cache over host memory.

        Raises:
            TypeError: A wrong type.
            LLMException: Not host memory.
        """
        check_isinstance("cache_desc", cache_desc, CacheDesc, allow_none=False)
        check_isinstance("addrs", addrs, list, (int, list), allow_none=False)
        nested: list[list[int]] = [addrs] if all(isinstance(a, int) for a in addrs) else addrs  # type: ignore[list-item, assignment]
        for index, flat in enumerate(nested):
            check_isinstance(f"addrs[{index}]", flat, list, int, allow_none=False)
        require(cache_desc.placement == Placement.HOST, f"a CPU cache lies in host memory, not {cache_desc.placement}")
        return cls(-1, cache_desc, nested)

    @property
    def cache_id(self) -> int:
        """As given."""
        return self._cache_id

    @property
    def cache_desc(self) -> CacheDesc:
        """As given."""
        return self._cache_desc

    @property
    def per_device_tensor_addrs(self) -> list[list[int]]:
        """Start addresses, for each device."""
        return self._per_device_tensor_addrs

    def __del__(self) -> None:
        manager = getattr(self, "_kv_cache_manager", None)
        if manager is not None and self._cache_id != -1 and manager.is_initialized():
            manager.deallocate_cache(self)

    def __repr__(self) -> str:
        return f"KvCache(cache_id = {self._cache_id}, per_device_tensor_addrs = {self._per_device_tensor_addrs})"


class MemInfo:
    """A range of memory, for `remap_registered_memory`."""

    def __init__(self, mem_type: Memtype, addr: int, size: int) -> None:
        check_isinstance("mem_type", mem_type, Memtype)
        check_isinstance("addr", addr, int)
        check_isinstance("size", size, int)
        self._mem_type = mem_type
        self._addr = addr
        self._size = size

    @property
    def mem_type(self) -> Memtype:
        """Host or device."""
        return self._mem_type

    @property
    def addr(self) -> int:
        """First byte."""
        return self._addr

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    def __repr__(self) -> str:
        return f"MemInfo(mem_type={self._mem_type}, addr={self._addr}, size={self._size})"


def check_addresses(addrs: Any) -> None:
    """The type checks that every list of addresses gets; None passes.

    Raises:
        TypeError: No list of ints.
    """
    check_isinstance("addrs", addrs, list)
    if addrs is not None and set(map(type, addrs)) - {int}:
        check_elements("addrs", addrs, int)


def check_cache(name: str, cache: Any) -> None:
    """Check that something is a cache.

    Raises:
        TypeError: It is something else.
        AttributeError: It is None.
    """
    check_isinstance(name, cache, Cache)
    if cache is None:
        raise of_none(f"{name} is None; it must be a Cache")
