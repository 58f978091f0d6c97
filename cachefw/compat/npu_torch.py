"""The part of `cachefw.compat.npu` that needs torch: the tensor class, ``torch.npu``, and the functions replaced."""

from __future__ import annotations

import functools
import importlib.util
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import backend_registration

from cachefw.compat.npu_memory import Space
from cachefw.compat.protocols import near
from cachefw.errors import RequestError, UnsupportedOperation, refusal

__all__ = ["NpuTensor", "activate"]

#: Devices that there are. The vendor's samples take numbers from 0 to 7.
COUNT = 8
#: The device that `set_device` chose. One for the process: the samples' threads do not touch tensors.
current = 0

_active = False
_FACTORIES = [
    "arange",
    "as_tensor",
    "asarray",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "tensor",
    "zeros",
    "zeros_like",
]


def _bad(text: str, builtin: type[Exception] = ValueError) -> Exception:
    return refusal(RequestError, {builtin}, text, operation="npu")


_space: Space


# ---------------------------------------------------------------------- the tensor


class NpuTensor(torch.Tensor):
    """A CPU tensor that says it is on ``"npu"``."""

    npu_index: int

    @property
    def is_ordinary_memory(self) -> bool:
        """Whether its bytes are host memory after all; cachefw asks when it registers a tensor."""
        return not _space.emulated

    def __deepcopy__(self, memo: dict[int, Any]) -> NpuTensor:
        copied = memo[id(self)] = _on_device(_plain(self).clone(), self.npu_index)
        return copied

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        special = _SPECIAL.get(func)
        if special is not None:
            return special(*args, **kwargs)
        index = next((each.npu_index for each in _tensors(args, kwargs)), current)
        # zeros_like and new_zeros: what is derived stays here unless a device is named.
        wanted = kwargs.get("device")
        if wanted is not None:
            target = _index(wanted)
            kwargs["device"] = "cpu" if target is not None else wanted
            with torch._C.DisableTorchFunctionSubclass():
                result = func(*args, **kwargs)
            return _plain(result) if target is None else _on_device(result, target)
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        return _wrap(result, index)


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[NpuTensor]:
    for each in (*args, *kwargs.values()):
        if isinstance(each, NpuTensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from (item for item in each if isinstance(item, NpuTensor))


def _wrap(result: Any, index: int) -> Any:
    if isinstance(result, NpuTensor):
        if not hasattr(result, "npu_index"):
            result.npu_index = index
        return result
    if isinstance(result, torch.Tensor):
        return _on_device(result, index)
    if isinstance(result, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in result):
        return type(result)([_wrap(each, index) for each in result])
    return result


def _on_device(source: torch.Tensor, index: int) -> NpuTensor:
    """A plain CPU tensor as one of the device; copied only where the device has memory of its own."""
    source = _plain(source)
    if _space.emulated and source.untyped_storage().data_ptr() not in _space.starts:
        source = _space.place(source, index)
    made: NpuTensor = source.as_subclass(NpuTensor)
    made.npu_index = index
    return made


def _plain(source: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return source.as_subclass(torch.Tensor)


def _to_cpu(self: NpuTensor, memory_format: Any = torch.preserve_format) -> torch.Tensor:
    return _plain(self).clone(memory_format=memory_format)


def _no_array(self: NpuTensor, **_: Any) -> Any:
    raise TypeError(
        f"can't convert npu:{self.npu_index} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
        "memory first."
    )


def _text(self: NpuTensor, **_: Any) -> str:
    shown = repr(_plain(self))
    return f"{shown[:-1]}, device='npu:{self.npu_index}')"


_SPECIAL: dict[Any, Callable[..., Any]] = {
    torch.Tensor.device.__get__: lambda self: torch.device("npu", self.npu_index),
    torch.Tensor.is_cpu.__get__: lambda self: False,
    torch.Tensor.get_device: lambda self: self.npu_index,
    torch.Tensor.cpu: _to_cpu,
    torch.Tensor.numpy: _no_array,
    torch.Tensor.__array__: _no_array,
    torch.Tensor.__repr__: _text,
}


# ---------------------------------------------------------------------- what is replaced in torch


def _index(device: Any) -> int | None:
    """The device's number if a device is "npu", in any form that torch takes; else None."""
    if isinstance(device, str) and device.partition(":")[0] != "npu":
        return None
    if not isinstance(device, (str, torch.device)):
        return None
    device = torch.device(device)
    if device.type != "npu":
        return None
    return current if device.index is None else _number(device.index)


def _number(index: Any) -> int:
    if isinstance(index, (str, torch.device)):
        found = _index(index)
        if found is None:
            raise _bad(f"{index!r} is no device of torch.npu")
        return found
    if not isinstance(index, int) or isinstance(index, bool):
        raise _bad(f"a device is a number or 'npu:N', not {index!r}", TypeError)
    if not 0 <= index < COUNT:
        raise _bad(f"there are devices 0 to {COUNT - 1}, not {index}")
    return index


def _factory(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(function)
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        index = _index(kwargs.get("device"))
        if index is None:
            return function(*args, **kwargs)
        made = function(*args, **{**kwargs, "device": "cpu"})
        # as_tensor and asarray may hand back what they were given; a device never shares memory with that.
        if any(isinstance(each, torch.Tensor) and each.data_ptr() == made.data_ptr() for each in args[:1]):
            made = _plain(made).clone()
        return _on_device(made, index)

    return make


def _replace_to() -> None:
    original = torch.Tensor.to

    @functools.wraps(original)
    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.pop("device", None)
        if device is None and args and isinstance(args[0], (str, torch.device)):
            device, args = args[0], args[1:]
        elif device is None and args and isinstance(args[0], torch.Tensor):
            device, args = args[0].device, (args[0].dtype, *args[1:])
        here = self.npu_index if isinstance(self, NpuTensor) else None
        target = here if device is None else _index(device)
        if here is None and target is None:
            return original(self, *args, **kwargs) if device is None else original(self, device, *args, **kwargs)
        moved = _plain(self)
        # One tensor, a dtype or nothing is left, and whether to copy.
        copied = original(moved, *args, **kwargs) if args or kwargs else moved
        if target is None:
            copied = original(copied, device)
        if copied is moved or copied.data_ptr() == moved.data_ptr():
            if target == here:
                return self
            copied = copied.clone()
        return copied if target is None else _on_device(copied, target)

    torch.Tensor.to = to


def _npu(self: torch.Tensor, device: Any = None, non_blocking: bool = False, **_: Any) -> torch.Tensor:
    return self.to(torch.device("npu", current if device is None else _number(device)))


# ---------------------------------------------------------------------- torch.npu


class Stream:
    """A stream: everything is done when it is called, so there is nothing to wait for."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = torch.device("npu", current if device is None else _number(device))

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: Event) -> None:
        """Nothing to wait for."""

    def wait_stream(self, stream: Stream) -> None:
        """Nothing to wait for."""

    def record_event(self, event: Event | None = None) -> Event:
        """An event that has happened."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all is done: it is."""
        return True


class Event:
    """An event: it has happened when it is recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timed = enable_timing
        self._at: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Note the time."""
        self._at = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Whether it has happened: it has."""
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to another.

        Raises:
            RuntimeError: One was not recorded, or made without timing.
        """
        if self._at is None or end_event._at is None or not (self._timed and end_event._timed):
            raise RuntimeError("both events must be made with enable_timing=True and recorded")
        return (end_event._at - self._at) * 1000


def set_device(device: Any) -> None:
    """Choose the device of ``"npu"`` without a number.

    Raises:
        RequestError: Also a `ValueError` or `TypeError`: there is no such device.
    """
    global current  # noqa: PLW0603 - what the function is for
    current = _number(device)


@contextmanager
def device(index: Any) -> Iterator[None]:
    """Choose the device for a block."""
    before = current
    set_device(index)
    try:
        yield
    finally:
        set_device(before)


@contextmanager
def stream(chosen: Stream | None) -> Iterator[None]:
    """A block on a stream: as any other block."""
    yield


def _module() -> types.ModuleType:
    module = types.ModuleType("torch.npu", "Stands in for the accelerator: see `cachefw.compat.npu`.")
    names: dict[str, Any] = {
        "Event": Event,
        "Stream": Stream,
        "current_device": lambda: current,
        "current_stream": lambda device=None: Stream(device),
        "default_stream": lambda device=None: Stream(device),
        "device": device,
        "device_count": lambda: COUNT,
        "empty_cache": lambda: None,
        "get_device_name": lambda device=None: "SIMULATED" if _space.emulated else "CPU",
        "init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "manual_seed": torch.random.default_generator.manual_seed,
        "manual_seed_all": lambda seed: None,
        "set_device": set_device,
        "stream": stream,
        "synchronize": lambda device=None: None,
        # What torch itself asks of a device's module when it seeds.
        "_is_in_bad_fork": lambda: False,
    }
    public = sorted(name for name in names if not name.startswith("_"))

    def missing(name: str) -> Any:
        raise AttributeError(
            f"torch.npu has no {name!r}{near(name, public)}: this is cachefw's stand-in, and it has {', '.join(public)}"
        )

    vars(module).update(names, __getattr__=missing)
    return module


def activate() -> None:
    """See `cachefw.compat.npu.activate`."""
    global _active, _space  # noqa: PLW0603 - once for the process
    if _active:
        return
    if not hasattr(torch._C, "_acc"):
        raise UnsupportedOperation(f"torch {torch.__version__} takes no backend in Python; 2.13 does", operation="npu")
    from cachefw.compat import npu_backend

    if importlib.util.find_spec("torch_npu") is not None:
        raise UnsupportedOperation(
            "torch_npu is installed, and brings the real device; unset CACHEFW_NPU, or use an environment without it",
            operation="npu",
        )
    try:
        backend_registration.rename_privateuse1_backend("npu")
    except RuntimeError as error:
        raise UnsupportedOperation(f"torch has another backend in this place: {error}", operation="npu") from error
    _space = Space()
    torch._register_device_module("npu", _module())
    # Without both, torch refuses to say what accelerator there is, and `torch.distributed.barrier` asks.
    npu_backend.register()
    for name in _FACTORIES:
        setattr(torch, name, _factory(getattr(torch, name)))
    _replace_to()
    torch.Tensor.npu = _npu
    torch.Tensor.is_npu = property(lambda self: isinstance(self, NpuTensor))
    _active = True
