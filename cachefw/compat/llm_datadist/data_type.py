"""Element types, and their counterparts in numpy."""

from __future__ import annotations

import enum
from typing import Any

from cachefw.errors import RequestError, refusal

__all__ = [  # noqa: F822 - three are made when they are first asked for
    "DataType",
    "dtype_to_np_dtype",
    "get_python_dtype_from_wrapper_dtype",
    "np_dtype_to_dtype",
    "python_dtype_2_dwrapper_dtype",
    "valid_np_dtypes",
]


class DataType(enum.Enum):
    """Element types; the values are those of the graph engine."""

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
    DT_STRING = 13
    DT_BF16 = 27


_ITEMSIZE = {
    DataType.DT_FLOAT: 4,
    DataType.DT_FLOAT16: 2,
    DataType.DT_INT8: 1,
    DataType.DT_INT32: 4,
    DataType.DT_UINT8: 1,
    DataType.DT_INT16: 2,
    DataType.DT_UINT16: 2,
    DataType.DT_UINT32: 4,
    DataType.DT_INT64: 8,
    DataType.DT_UINT64: 8,
    DataType.DT_DOUBLE: 8,
    DataType.DT_BOOL: 1,
    DataType.DT_STRING: 16,
    DataType.DT_BF16: 2,
}

#: The number that stands for each type at the native boundary.
python_dtype_2_dwrapper_dtype = {each: each.value for each in DataType}


def itemsize(data_type: DataType) -> int:
    """Bytes of one element."""
    return _ITEMSIZE[data_type]


def get_python_dtype_from_wrapper_dtype(dtype: int) -> DataType:
    """The type of a native number.

    Raises:
        ValueError: There is none.
    """
    try:
        return DataType(dtype)
    except ValueError:
        text = f"{dtype!r} is the number of no data type"
        raise refusal(RequestError, {ValueError}, text, operation="DataType") from None


def _tables() -> dict[str, Any]:
    import numpy as np

    to_numpy = {
        DataType.DT_FLOAT: np.float32,
        DataType.DT_FLOAT16: np.float16,
        DataType.DT_INT8: np.int8,
        DataType.DT_INT32: np.int32,
        DataType.DT_UINT8: np.uint8,
        DataType.DT_INT16: np.int16,
        DataType.DT_UINT16: np.uint16,
        DataType.DT_UINT32: np.uint32,
        DataType.DT_INT64: np.int64,
        DataType.DT_UINT64: np.uint64,
        DataType.DT_DOUBLE: np.float64,
        DataType.DT_BOOL: np.bool_,
    }
    return {
        "dtype_to_np_dtype": {**to_numpy, DataType.DT_BF16: np.float16},
        "np_dtype_to_dtype": {np.dtype(kind): each for each, kind in to_numpy.items()},
        "valid_np_dtypes": [np.dtype(kind) for kind in to_numpy.values()],
    }


def __getattr__(name: str) -> Any:
    if name not in ("dtype_to_np_dtype", "np_dtype_to_dtype", "valid_np_dtypes"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(_tables())
    return globals()[name]
