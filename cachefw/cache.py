"""What a cache is: its description, its keys, and the handle that registration returns.

Names and numbers are those of LLM-DataDist's `CacheManager`, so that code and knowledge carry over. Types are checked
when a value is made; whether the numbers can be registered is for the rules to say (`CacheManager.plan`).
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Callable
from typing import Any

import attrs

from cachefw.errors import RequestError, refusal

__all__ = [
    "ABSENT_ID",
    "BlocksCacheKey",
    "Cache",
    "CacheDesc",
    "CacheKey",
    "CacheKeyByIdAndIndex",
    "DataType",
    "Placement",
]

#: The id that names nothing. A key that carries it holds a batch row's place in a list of keys.
ABSENT_ID = 2**64 - 1


class Placement(enum.IntEnum):
    """Where the tensors of a cache lie."""

    HOST = 0
    DEVICE = 1

    def __str__(self) -> str:
        return f"Placement.{self.name}"


class DataType(enum.Enum):
    """Element types; the values are those of the graph engine's data types."""

    DT_FLOAT = 0
    DT_FLOAT16 = 1
    DT_INT8 = 2
    DT_INT32 = 3
    DT_UINT8 = 4
    DT_INT16 = 6
    DT_UINT16 = 7
    DT_UINT32 = 8
    DT_INT64 = 9
    DT_UINT64 = 10
    DT_DOUBLE = 11
    DT_BOOL = 12
    DT_BF16 = 27

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self.name]


_ITEMSIZE = {
    "DT_FLOAT": 4,
    "DT_FLOAT16": 2,
    "DT_INT8": 1,
    "DT_INT32": 4,
    "DT_UINT8": 1,
    "DT_INT16": 2,
    "DT_UINT16": 2,
    "DT_UINT32": 4,
    "DT_INT64": 8,
    "DT_UINT64": 8,
    "DT_DOUBLE": 8,
    "DT_BOOL": 1,
    "DT_BF16": 2,
}


def _fault(where: str, wanted: str, value: object) -> tuple[type[Exception], str]:
    if value is None:
        return AttributeError, f"{where} is None; it must be {wanted}"
    return TypeError, f"{where} must be {wanted}, not {value!r} ({type(value).__name__})"


def as_int(value: object) -> int | None:
    """`value` as an int if it is a true integer (numpy's too, never a bool), else None."""
    # Some numpy versions let their own bool pass for an index, with a warning.
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _raise_faults(owner: object, faults: list[tuple[type[Exception], str]]) -> None:
    if faults:
        text = f"{type(owner).__name__}: " + "; ".join(message for _, message in faults)
        raise refusal(RequestError, {kind for kind, _ in faults}, text, operation=type(owner).__name__)


@attrs.frozen
class CacheDesc:
    """The shape of a cache: `num_tensors` tensors of one shape and type, in one place.

    The first dimension counts batch rows, or blocks (pages) for a blocks cache.

    Attributes:
        num_tensors: How many tensors, usually 2 x layers (keys, values, keys, values, ...).
        shape: Elements per dimension, the same for each tensor.
        data_type: Element type.
        placement: Host or device memory.
        batch_dim_index: Kept for compatibility; transfers always use dimension 0.
        seq_len_dim_index: Kept for compatibility; not used.
        kv_tensor_format: Free text, e.g. ``"BNSD"``.

    Raises:
        RequestError: Also a `TypeError` for a wrong type or an `AttributeError` for None. Numbers that cannot be
            registered are accepted here and reported by `CacheManager.plan`, all at once.
    """

    num_tensors: int
    shape: tuple[int, ...]
    data_type: DataType
    placement: Placement = Placement.DEVICE
    batch_dim_index: int = 0
    seq_len_dim_index: int = -1
    kv_tensor_format: str | None = None

    def __attrs_post_init__(self) -> None:
        faults: list[tuple[type[Exception], str]] = []
        for name in ("num_tensors", "batch_dim_index", "seq_len_dim_index"):
            number = as_int(getattr(self, name))
            if number is None:
                faults.append(_fault(name, "an int", getattr(self, name)))
            else:
                object.__setattr__(self, name, number)
        if isinstance(self.shape, (list, tuple)):
            dims = [as_int(dim) for dim in self.shape]
            for axis, (dim, given) in enumerate(zip(dims, self.shape, strict=True)):
                if dim is None:
                    faults.append(_fault(f"shape[{axis}]", "an int", given))
            object.__setattr__(self, "shape", tuple(dims))
        else:
            faults.append(_fault("shape", "a list or tuple of ints", self.shape))
        for name, cls in (("data_type", DataType), ("placement", Placement)):
            if not isinstance(getattr(self, name), cls):
                faults.append(_fault(name, f"a {cls.__name__}", getattr(self, name)))
        if not isinstance(self.kv_tensor_format, (str, type(None))):
            faults.append(_fault("kv_tensor_format", "a str", self.kv_tensor_format))
        _raise_faults(self, faults)

    @property
    def size(self) -> int:
        """Bytes of one tensor, exact (Python integers do not wrap)."""
        return math.prod(self.shape) * self.data_type.itemsize

    @property
    def batch_size(self) -> int:
        """Rows, or blocks, of one tensor: ``shape[0]``."""
        return self.shape[0]

    @property
    def stride(self) -> int:
        """Bytes of one row, or of one block."""
        return math.prod(self.shape[1:]) * self.data_type.itemsize


def _unsigned(bits: int, *, optional: bool = False) -> Callable[[Any, attrs.Attribute[Any], Any], None]:
    def check(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if optional and value is None:
            return
        number = as_int(value)
        if number is None:
            _raise_faults(instance, [_fault(attribute.name, "an int", value)])
        elif not 0 <= number < 2**bits:
            text = f"{attribute.name} must lie in 0 ... 2^{bits} - 1, not {number}"
            _raise_faults(instance, [(ValueError, text)])
        else:
            object.__setattr__(instance, attribute.name, number)

    return check


@attrs.frozen
class CacheKey:
    """Names one batch row of a contiguous cache by the request or the prefix it holds: exactly one of the two.

    A key made with ``req_id=ABSENT_ID`` and no prefix is a placeholder: it names nothing and keeps a row's place in
    the list given to `register_cache`.
    """

    cluster_id: int = attrs.field(validator=_unsigned(64))
    req_id: int | None = attrs.field(default=None, validator=_unsigned(64, optional=True))
    model_id: int = attrs.field(default=0, validator=_unsigned(64))
    prefix_id: int | None = attrs.field(default=None, validator=_unsigned(64, optional=True))

    @property
    def has_request(self) -> bool:
        """Whether `req_id` names a request."""
        return self.req_id not in (None, ABSENT_ID)

    @property
    def has_prefix(self) -> bool:
        """Whether `prefix_id` names a prefix."""
        return self.prefix_id not in (None, ABSENT_ID)

    @property
    def is_placeholder(self) -> bool:
        """Whether the key says, on purpose, that it names nothing."""
        return not self.has_request and not self.has_prefix and ABSENT_ID in (self.req_id, self.prefix_id)

    @property
    def local_name(self) -> tuple[str, int, int]:
        """What the key means inside its own node, where the cluster id says nothing."""
        if self.has_request:
            return "req", self.req_id or 0, self.model_id
        return "prefix", self.prefix_id or 0, self.model_id


@attrs.frozen
class BlocksCacheKey:
    """Names the blocks cache of one model on one node."""

    cluster_id: int = attrs.field(validator=_unsigned(64))
    model_id: int = attrs.field(default=0, validator=_unsigned(64))

    @property
    def local_name(self) -> tuple[str, int, int]:
        """What the key means inside its own node, where the cluster id says nothing."""
        return "blocks", 0, self.model_id


@attrs.frozen
class CacheKeyByIdAndIndex:
    """Names one batch row of a cache by the id that its registration returned. Ids start at 1."""

    cluster_id: int = attrs.field(validator=_unsigned(64))
    cache_id: int = attrs.field(validator=_unsigned(63))
    batch_index: int = attrs.field(default=0, validator=_unsigned(32))


@attrs.frozen(eq=False)
class Cache:
    """A registered cache. Made by `CacheManager`; compared by identity.

    Attributes:
        cache_id: Counts from 1 in its manager.
        cache_desc: As given.
        tensor_addrs: Start address of each tensor, in the order given.
        is_blocks_cache: Whether dimension 0 counts blocks.
        remote_accessible: Whether linked peers may reach it.
        keys: The names that peers can use, placeholders included.
    """

    cache_id: int
    cache_desc: CacheDesc
    tensor_addrs: tuple[int, ...]
    is_blocks_cache: bool
    remote_accessible: bool
    keys: tuple[CacheKey | BlocksCacheKey, ...] = ()

    def __str__(self) -> str:
        kind = "blocks cache" if self.is_blocks_cache else "cache"
        desc = self.cache_desc
        return (
            f"{kind} {self.cache_id}: {desc.num_tensors} tensors of {list(desc.shape)} {desc.data_type.name} "
            f"({desc.size:,} bytes each) in {desc.placement.name.lower()} memory"
        )
