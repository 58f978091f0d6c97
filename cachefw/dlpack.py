"""Where the memory of a tensor lies, as its library says by DLPack.

The structures are those of DLPack 1.0, and of the versions before it, which have no version and no flags. Only looked
at: the capsule is dropped unused, and the tensor's owner keeps the memory.
"""

from __future__ import annotations

import ctypes
from typing import Any

import attrs

__all__ = ["Placed", "look"]

#: Device types of host memory: ordinary, and pinned by the two runtimes that the format knows.
HOST_TYPES = frozenset({1, 3, 11})
_READ_ONLY = 1


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


@attrs.frozen
class Placed:
    """What a tensor says of its memory.

    Attributes:
        address: First byte.
        shape: Elements of each dimension.
        strides: Bytes from one to the next in each dimension.
        itemsize: Bytes of one element.
        on_host: Whether it is host memory.
        device: Number of the device.
        read_only: Whether it may not be written.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    on_host: bool
    device: int
    read_only: bool


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_named = ctypes.pythonapi.PyCapsule_IsValid
_is_named.restype, _is_named.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


def look(source: Any) -> Placed:
    """Ask a tensor by DLPack.

    Raises:
        BufferError: The tensor cannot be shown, or in a form that is not known here.
    """
    try:
        capsule = source.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = source.__dlpack__()
    read_only = False
    if _is_named(capsule, b"dltensor_versioned"):
        whole = ctypes.cast(_pointer(capsule, b"dltensor_versioned"), ctypes.POINTER(_Versioned))[0]
        if whole.major != 1:
            raise BufferError(f"it speaks DLPack {whole.major}.{whole.minor}, this is 1.0")
        tensor, read_only = whole.tensor, bool(whole.flags & _READ_ONLY)
    elif _is_named(capsule, b"dltensor"):
        tensor = ctypes.cast(_pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor))[0]
    else:
        raise BufferError("its __dlpack__ gives no DLPack capsule")
    # Of sub-byte elements there is no byte stride; whole bytes are what caches have.
    bits = tensor.bits * tensor.lanes
    if bits % 8:
        raise BufferError(f"its elements have {bits} bits, which are no whole bytes")
    itemsize = bits // 8
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[axis] * itemsize for axis in range(tensor.ndim))
    else:
        strides = _compact(shape, itemsize)
    return Placed(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        strides,
        itemsize,
        tensor.device_type in HOST_TYPES,
        tensor.device_id,
        read_only,
    )


def _compact(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides, step = [], itemsize
    for count in reversed(shape):
        strides.append(step)
        step *= count
    return tuple(reversed(strides))
