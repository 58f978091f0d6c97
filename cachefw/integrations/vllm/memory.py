"""The engine's cache, in memory that a transport moves best."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from cachefw.memory import Allocation

__all__ = ["TransportMemory"]


class TransportMemory(TorchFunctionMode):
    """A context in which ``torch.zeros(n, dtype=torch.int8)`` on the CPU comes from `allocate`.

    This is how the engine makes its cache: once, as a whole, before it makes its views. Memory of other devices is left
    to the engine.

    Args:
        allocate: Makes zeroed memory of so many bytes.

    Attributes:
        allocations: What was made; the tensors live in it.
    """

    def __init__(self, allocate: Callable[[int], Allocation]) -> None:
        super().__init__()
        self.allocations: list[Allocation] = []
        self._allocate = allocate

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by torch for every function in the context."""
        kwargs = kwargs or {}
        if func is torch.zeros and kwargs.get("dtype") is torch.int8 and self._on_cpu(kwargs.get("device")):
            shape = args[0] if len(args) == 1 and not isinstance(args[0], int) else args
            size = math.prod(shape)
            if size:
                allocation = self._allocate(size)
                self.allocations.append(allocation)
                return torch.from_numpy(np.asarray(allocation).view(np.int8)[:size]).reshape(tuple(shape))
        return func(*args, **kwargs)

    @staticmethod
    def _on_cpu(device: Any) -> bool:
        return bool(torch.device(device if device is not None else torch.get_default_device()).type == "cpu")
