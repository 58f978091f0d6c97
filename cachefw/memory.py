"""Memory regions: what a range is, where it comes from, and who owns it."""

from __future__ import annotations

import enum
import math
import operator
import os
import weakref
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from cachefw.dlpack import look
from cachefw.errors import RequestError, refusal

__all__ = [
    "Access",
    "Allocation",
    "MemoryKind",
    "MemoryRegion",
    "align_within",
    "aligned_empty",
    "element_size",
    "is_memory",
    "owner_of",
    "probe_of",
    "region_of",
]


class MemoryKind(enum.Enum):
    """What memory is, which decides who can move it.

    `HOST` is ordinary memory, `PINNED` is host memory made by a device runtime (``aclrtMallocHost``), `DEVICE` lies on
    an accelerator.
    """

    HOST = "host memory"
    PINNED = "pinned host memory"
    DEVICE = "device memory"

    def __str__(self) -> str:
        return self.value


class Access(enum.Flag):
    """What a linked peer may do with a region."""

    NONE = 0
    READ = enum.auto()
    WRITE = enum.auto()
    BOTH = READ | WRITE


def _integer(region: object, attribute: attrs.Attribute[int], value: object) -> None:
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise _wrong_type(f"MemoryRegion: {attribute.name}", "an int", value)
    object.__setattr__(region, attribute.name, number)


def _member(region: object, attribute: attrs.Attribute[Any], value: object) -> None:
    wanted = Access if attribute.name == "access" else MemoryKind
    if not isinstance(value, wanted):
        raise _wrong_type(f"MemoryRegion: {attribute.name}", f"a member of {wanted.__name__}", value)


def _wrong_type(name: str, wanted: str, value: object) -> Exception:
    builtin = AttributeError if value is None else TypeError
    text = f"{name} must be {wanted}, not {value!r} ({type(value).__name__})"
    return refusal(RequestError, {builtin}, text, operation="register_memory")


@attrs.frozen
class MemoryRegion:
    """A range of memory in this process.

    Types are checked when it is made; whether the numbers can be registered is for the rules to say.

    Attributes:
        address: First byte.
        length: Bytes, at least 1.
        kind: What the memory is.
        access: What linked peers may do once it is published.
        device: Device number for `MemoryKind.DEVICE`, else -1.
    """

    address: int = attrs.field(validator=_integer)
    length: int = attrs.field(validator=_integer)
    kind: MemoryKind = attrs.field(default=MemoryKind.HOST, validator=_member)
    access: Access = attrs.field(default=Access.BOTH, validator=_member)
    device: int = attrs.field(default=-1, validator=_integer)

    @property
    def end(self) -> int:
        """First byte after the region."""
        return self.address + self.length

    def __str__(self) -> str:
        return f"[{self.address:#x}, {self.end:#x}) of {self.length:,} bytes"


class Allocation:
    """Memory that a transport made; given back on `close`, or with the last reference to it.

    Arrays made from it (``np.asarray(allocation)``) and registrations of it are references.

    Thread safety: `close` may be called from any thread and any number of times.
    """

    __slots__ = ("__weakref__", "_finalizer", "_guards", "_process", "address", "kind", "length")

    def __init__(self, address: int, length: int, kind: MemoryKind, release: Callable[[], None]) -> None:
        self.address = address
        self.length = length
        self.kind = kind
        # Not `__del__`: in a cycle of garbage what `release` needs could be collected first. Not at exit either, where
        # a node that is still open may be moving bytes.
        self._finalizer = weakref.finalize(self, _release_here, os.getpid(), release)
        self._finalizer.atexit = False
        self._process = os.getpid()
        self._guards: set[weakref.WeakMethod[Callable[[Allocation], None]]] = set()

    def guard(self, closing: Callable[[Allocation], None]) -> None:
        """Have a bound method called before the memory is given back by `close`; what it raises keeps it open.

        Args:
            closing: Given the allocation. It is not kept alive, and asked once however often it is given.
        """
        self._guards.add(weakref.WeakMethod(closing))

    @property
    def closed(self) -> bool:
        """Whether the memory was given back."""
        return not self._finalizer.alive

    @property
    def region(self) -> MemoryRegion:
        """The whole of it as a region."""
        return MemoryRegion(self.address, self.length, self.kind)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.closed:
            raise ValueError("this allocation is closed; its memory is gone")
        if self.kind is MemoryKind.DEVICE:
            raise AttributeError("device memory has no array of its own")
        return {"version": 3, "typestr": "|u1", "shape": (self.length,), "data": (self.address, False)}

    def close(self) -> None:
        """Give the memory back. Arrays made from it must be gone; registrations of it end up dangling.

        Raises:
            BusyError: A transfer uses the memory now; it stays open.
            TransferTimeout: A peer that can reach the memory did not confirm that it let go; it stays open.
        """
        if self._finalizer.alive:
            for guard in list(self._guards if os.getpid() == self._process else ()):
                closing = guard()
                if closing is not None:
                    closing(self)
        self._finalizer()

    def __enter__(self) -> Allocation:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"at {self.address:#x}"
        return f"<Allocation of {self.length:,} bytes of {self.kind} {state}>"


def _release_here(process: int, release: Callable[[], None]) -> None:
    # In a process that was forked it is the parent's memory.
    if os.getpid() == process:
        release()


def region_of(source: object, kind: MemoryKind | None = None, *, writable: bool = True) -> MemoryRegion:
    """The region that a tensor, array, buffer or allocation occupies.

    Args:
        source: A `MemoryRegion`, or what has one (an `Allocation`, registered memory); a torch tensor, a numpy array,
            or anything with DLPack or the buffer protocol.
        kind: What the caller says the memory is; contradicted where the source knows better.
        writable: Refuse what is read-only.

    Returns:
        The range of the source's own bytes. Nothing is copied, and the region does not keep the source alive.

    Raises:
        RequestError: Also a `ValueError`: not contiguous (shape and strides are named), empty, read-only, without
            storage, or of another kind than said. Also a `TypeError` for what is no memory, an `AttributeError` for
            None.
    """
    region = _region(source, writable)
    if kind is not None and not isinstance(kind, MemoryKind):
        raise _wrong_type("kind", "a member of MemoryKind or None", kind)
    if kind is not None and kind is not region.kind:
        # Pinned memory looks like ordinary memory to everyone but the runtime that made it.
        if region.kind is MemoryKind.HOST and kind is MemoryKind.PINNED:
            return attrs.evolve(region, kind=kind)
        if isinstance(source, MemoryRegion):
            return attrs.evolve(region, kind=kind)
        raise _bad(f"declared as {kind}, but {_name(source)} lies in {region.kind}")
    return region


def _region(source: object, writable: bool) -> MemoryRegion:
    if source is None:
        raise refusal(RequestError, {AttributeError}, "the memory to register is None; give a tensor, array or region")
    if isinstance(source, MemoryRegion):
        return source
    if isinstance(source, Allocation):
        if source.closed:
            raise _bad(f"{source!r}: it was closed; its memory is gone")
        return source.region
    held = getattr(source, "region", None)
    if isinstance(held, MemoryRegion):
        return held
    if _is_tensor(source):
        try:
            return _tensor_region(source)
        except (NotImplementedError, RuntimeError) as error:
            # Fake, or on a device that does not tell.
            raise _bad(f"{_name(source)} does not say where its memory is: {error}") from error
    if _has_dlpack(source):
        return _dlpack_region(source, writable)
    return _array_region(source, writable)


def is_memory(value: object) -> bool:
    """Whether a value is something that has memory, rather than an address."""
    if isinstance(value, (int, float, str, np.generic)) or value is None:
        return False
    if isinstance(value, np.ndarray):
        # An array without dimensions is a number in another form.
        return value.ndim > 0
    if isinstance(value, MemoryRegion) or isinstance(getattr(value, "region", None), MemoryRegion):
        return True
    if _is_tensor(value) or hasattr(value, "__array_interface__") or hasattr(value, "__dlpack__"):
        return True
    try:
        memoryview(value).release()  # type: ignore[arg-type]
    except (TypeError, BufferError):
        return False
    return True


def owner_of(source: object) -> object:
    """What to keep, so that the source's memory stays: for a plain buffer also what keeps it from being resized.

    None for a bare range.
    """
    if isinstance(source, MemoryRegion):
        return None
    if _is_tensor(source) or any(hasattr(source, name) for name in ("region", "__array_interface__", "__dlpack__")):
        return source
    try:
        return memoryview(source)  # type: ignore[arg-type]
    except TypeError:
        return source


def probe_of(source: object, region: MemoryRegion) -> Callable[[], bool] | None:
    """What asks the source whether the region is still its own; None for a source that cannot tell.

    A tensor's storage can be released and moved while the tensor lives on. An array's cannot while anybody else holds
    the array, and a buffer's not while it is exported.
    """
    if not _is_tensor(source):
        return None
    tensor: Any = source
    storage = getattr(tensor, "untyped_storage", None)

    def still() -> bool:
        if int(tensor.data_ptr()) != region.address:
            return False
        whole = storage() if storage is not None else None
        return whole is None or region.end <= int(whole.data_ptr()) + int(whole.nbytes())

    return still


def element_size(source: object) -> int | None:
    """Bytes of one element of a source that `region_of` takes; None for bare bytes, which may stand for any."""
    if isinstance(source, MemoryRegion) or isinstance(getattr(source, "region", None), MemoryRegion):
        return None
    if _is_tensor(source):
        return int(source.element_size())  # type: ignore[attr-defined]
    if _has_dlpack(source):
        return look(source).itemsize
    if isinstance(source, np.ndarray) or hasattr(source, "__array_interface__"):
        return int(np.asarray(source).itemsize)
    view = memoryview(source)  # type: ignore[arg-type]
    return None if view.format == "B" else view.itemsize


def _is_tensor(source: object) -> bool:
    return hasattr(source, "data_ptr") and hasattr(source, "element_size") and hasattr(source, "stride")


def _has_dlpack(source: object) -> bool:
    return hasattr(source, "__dlpack__") and not hasattr(source, "__array_interface__")


def _dlpack_region(source: Any, writable: bool) -> MemoryRegion:
    name = _name(source)
    try:
        placed = look(source)
    except BufferError as error:
        raise _bad(f"{name} cannot say where its memory is: {error}") from error
    _check_layout(name, placed.shape, placed.strides, placed.itemsize)
    if writable and placed.read_only:
        raise _read_only(name)
    length = math.prod(placed.shape) * placed.itemsize
    if placed.on_host:
        return MemoryRegion(placed.address, length, MemoryKind.HOST)
    return MemoryRegion(placed.address, length, MemoryKind.DEVICE, device=placed.device)


def _read_only(name: str) -> Exception:
    return _bad(f"{name} is read-only; transfers write into registered memory. Use a writable array")


def _bad(text: str) -> Exception:
    return refusal(RequestError, {ValueError}, text, operation="register_memory")


def _name(source: object) -> str:
    return f"this {type(source).__module__}.{type(source).__qualname__}"


def _check_layout(name: str, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> None:
    """Refuse a view whose bytes are not one run; `strides` count bytes."""
    layout = f"shape {list(shape)}, strides {list(strides)} in bytes"
    if 0 in shape:
        raise _bad(f"{name} is empty ({layout}); there is nothing to register")
    step = itemsize
    for axis in reversed(range(len(shape))):
        if shape[axis] > 1 and strides[axis] != step:
            reason = "is expanded (stride 0)" if strides[axis] == 0 else "is not contiguous"
            raise _bad(
                f"{name} {reason} in dimension {axis}: {layout}. Register the memory it is a view of; cachefw does "
                "not copy behind your back"
            )
        step *= shape[axis]


def _tensor_region(tensor: Any) -> MemoryRegion:
    name = _name(tensor)
    device = str(tensor.device.type)
    if device == "meta":
        raise _bad(f"{name} is on the 'meta' device: it has a shape and no memory")
    layout = str(getattr(tensor, "layout", "strided"))
    if "strided" not in layout:
        raise _bad(f"{name} has the layout {layout}, whose elements are no run of bytes")
    shape, itemsize = tuple(tensor.shape), int(tensor.element_size())
    _check_layout(name, shape, tuple(stride * itemsize for stride in tensor.stride()), itemsize)
    length = math.prod(shape) * itemsize
    # A tensor that only pretends to be on a device (`cachefw.compat.npu`) says so.
    if device == "cpu" or getattr(tensor, "is_ordinary_memory", False) is True:
        return MemoryRegion(int(tensor.data_ptr()), length, MemoryKind.HOST)
    return MemoryRegion(int(tensor.data_ptr()), length, MemoryKind.DEVICE, device=int(tensor.device.index or 0))


def _array_region(source: Any, writable: bool) -> MemoryRegion:
    name = _name(source)
    if isinstance(source, np.ndarray) or hasattr(source, "__array_interface__"):
        array = np.asarray(source)
    else:
        try:
            array = np.asarray(memoryview(source))
        except TypeError:
            raise refusal(
                RequestError,
                {TypeError},
                f"{name} is no memory: give a MemoryRegion, an Allocation, a torch tensor, a numpy array, or an object "
                "with DLPack or the buffer protocol",
                operation="register_memory",
            ) from None
    _check_layout(name, array.shape, array.strides, array.itemsize)
    if array.dtype.hasobject:
        raise _bad(f"{name} holds Python objects, whose bytes mean nothing elsewhere")
    if writable and not array.flags.writeable:
        raise _read_only(name)
    return MemoryRegion(int(array.__array_interface__["data"][0]), array.nbytes, MemoryKind.HOST)


def align_within(address: int, length: int, need: int, alignment: int) -> int:
    """The first aligned address in a buffer that still leaves `need` bytes; never outside it.

    Args:
        address: Start of the buffer.
        length: Its bytes.
        need: Bytes wanted.
        alignment: A power of two.

    Raises:
        RequestError: Also a `ValueError`: the buffer has no room, with the bytes that would do.
    """
    if alignment < 1 or alignment & (alignment - 1):
        raise _bad(f"alignment must be a power of two, not {alignment}")
    start = -(-address // alignment) * alignment
    if start + need > address + length:
        raise _bad(
            f"no room for {need:,} bytes at a multiple of {alignment:,} in {length:,} bytes from {address:#x}: the "
            f"first such address is {start:#x}, {start - address:,} bytes in. Allocate {need + alignment - 1:,} bytes"
        )
    return start


def aligned_empty(size: int, alignment: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Uninitialised host memory that starts at a multiple of `alignment`, as a uint8 array.

    The array is a slice of a larger one, which it keeps alive. Memory that peers map (the fast path of a transport)
    comes from `CacheManager.allocate` instead.

    Args:
        size: Bytes, at least 1.
        alignment: A power of two, e.g. ``2 * 2**20``.
    """
    if size < 1:
        raise _bad(f"size must be at least 1 byte, not {size}")
    whole = np.empty(size + alignment - 1, np.uint8)
    base = int(whole.__array_interface__["data"][0])
    start = align_within(base, whole.nbytes, size, alignment) - base
    return whole[start : start + size]
