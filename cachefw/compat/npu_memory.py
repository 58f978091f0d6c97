"""Where the bytes of tensors on ``"npu"`` lie: see `cachefw.compat.npu`."""

from __future__ import annotations

import ctypes
import os
import weakref
from pathlib import Path

import torch

from cachefw.compat.protocols import available, chosen, device_settings
from cachefw.errors import RequestError, refusal
from cachefw.manager import CacheManager
from cachefw.memory import Allocation, MemoryKind
from cachefw.plugins import catalogue
from cachefw.transport import Capability

__all__ = ["Space"]


class Space:
    """Memory of emulated devices, where the transports that are chosen have some; else there is none."""

    def __init__(self) -> None:
        self._managers: dict[int, CacheManager] = {}
        #: First bytes of what tensors lie in.
        self.starts: set[int] = set()
        self._transports: tuple[str, ...] = ()
        if os.environ.get("CACHEFW_ASCENDCL") == "simulator":
            self._transports = tuple(name for name in chosen(()) or available() if _makes_device_memory(name))

    @property
    def emulated(self) -> bool:
        """Whether tensors lie in memory of emulated devices."""
        return bool(self._transports)

    def place(self, source: torch.Tensor, index: int) -> torch.Tensor:
        """A copy of a CPU tensor in the device's memory; the tensor itself where there is none."""
        size = source.numel() * source.element_size()
        if not self.emulated or not size:
            return source
        allocation = self._manager(index).allocate(size, MemoryKind.DEVICE)
        if not _reachable(allocation):
            allocation.close()
            text = "the simulator keeps device memory out of the CPU's reach; set ACLSIM_MODE=open for this shim"
            raise refusal(RequestError, {ValueError}, text, operation="npu")
        buffer = (ctypes.c_uint8 * size).from_address(allocation.address)
        self.starts.add(allocation.address)
        # The tensor's storage holds the buffer, and so the buffer's end is that of the last tensor in it.
        weakref.finalize(buffer, self._drop, allocation).atexit = False
        placed = torch.frombuffer(buffer, dtype=torch.uint8).view(source.dtype).reshape(source.shape)
        return placed.copy_(source)

    def _manager(self, index: int) -> CacheManager:
        if index not in self._managers:
            self._managers[index] = CacheManager(self._transports, settings=device_settings(self._transports, index))
        return self._managers[index]

    def _drop(self, allocation: Allocation) -> None:
        self.starts.discard(allocation.address)
        allocation.close()


def _makes_device_memory(name: str) -> bool:
    offer = catalogue.get(name).info
    return offer is not None and MemoryKind.DEVICE in offer.kinds and Capability.ALLOCATE in offer.capabilities


def _reachable(allocation: Allocation) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, rights = line.split(None, 2)[:2]
        start, end = (int(part, 16) for part in bounds.split("-"))
        if start <= allocation.address < end:
            return rights.startswith("rw")
    return False
