"""The demo's memory for one blocks cache, in whichever memory the transport moves."""

from __future__ import annotations

import abc

import attrs
import numpy as np
from numpy.typing import NDArray

from cachefw.cache import CacheDesc, Placement
from cachefw.cli import reports
from cachefw.manager import CacheManager
from cachefw.memory import Allocation, MemoryKind, MemoryRegion, align_within
from cachefw.plugins import catalogue
from cachefw.transport import Capability, TransportInfo

__all__ = ["Pool", "kind_for", "pitch"]

_PAGE = 4096
#: Where each tensor of device memory begins: on a multiple of this, which is a huge page on the devices that have them.
_HUGE_PAGE = 2 * 2**20

Blocks = NDArray[np.uint8]


def kind_for(info: TransportInfo) -> MemoryKind | None:
    """The memory that the demo uses with a transport: host memory where it takes that. None when it can use none."""
    if Capability.READ not in info.capabilities:
        return None
    if MemoryKind.HOST in info.kinds:
        return MemoryKind.HOST
    # The CPU may be unable to reach device memory: somebody has to make it, and to carry the contents there and back.
    able = Capability.ALLOCATE | Capability.COPY
    return MemoryKind.DEVICE if MemoryKind.DEVICE in info.kinds and able in info.capabilities else None


def pitch(desc: CacheDesc, kind: MemoryKind) -> int:
    """Bytes from the start of one tensor to that of the next."""
    return desc.size if kind is MemoryKind.HOST else -(-desc.size // _HUGE_PAGE) * _HUGE_PAGE


class Pool(abc.ABC):
    """Memory for one blocks cache.

    Attributes:
        desc: The cache, placed where the memory is.
        addrs: Start of each tensor.
        remote_accessible: What to register it with, for peers to reach it.
    """

    remote_accessible: bool | None = None

    def __init__(self, desc: CacheDesc, addrs: list[int]) -> None:
        self.desc = desc
        self.addrs = addrs
        self._shape = desc.batch_size, desc.stride

    @staticmethod
    def make(desc: CacheDesc, manager: CacheManager, task: reports.Task) -> Pool:
        """Take it from the transport where that allocates, unless the task asks for the path of ordinary memory.

        Raises:
            OutOfMemoryError: There is not enough.
        """
        info = catalogue.get(task.transport).info
        if info is not None and kind_for(info) is MemoryKind.DEVICE:
            return _DevicePool(desc, manager, task.transport)
        allocates = info is not None and Capability.ALLOCATE in info.capabilities and task.path != "cma"
        return _HostPool(desc, manager, task.transport if allocates else None)

    @abc.abstractmethod
    def room(self, tensor: int) -> Blocks:
        """Where to make the bytes of a tensor, [block, byte], before they are given to `write`."""

    @abc.abstractmethod
    def write(self, tensor: int, blocks: Blocks) -> None:
        """Give a tensor its bytes, which `room` or `read` returned last."""

    @abc.abstractmethod
    def read(self, tensor: int) -> Blocks:
        """The bytes of a tensor, [block, byte], until the next call."""

    def fill(self, value: int) -> None:
        """Make every byte `value`."""
        for tensor in range(len(self.addrs)):
            blocks = self.room(tensor)
            blocks.fill(value)
            self.write(tensor, blocks)

    @abc.abstractmethod
    def zero(self) -> None:
        """Make every byte of fresh memory 0."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give the memory back; no registration may be left."""


class _HostPool(Pool):
    """Host memory, all zero and never touched.

    Args:
        transport: Who allocates it; None for ordinary memory.
    """

    # Host memory is reachable by peers only when somebody says so.
    remote_accessible = True

    def __init__(self, desc: CacheDesc, manager: CacheManager, transport: str | None) -> None:
        size = desc.size * desc.num_tensors
        self._allocation: Allocation | None = None
        if transport is not None:
            self._allocation = manager.allocate(size, transport=transport)
            whole = np.asarray(self._allocation)[:size]
        else:
            room = np.zeros(size + _PAGE, np.uint8)
            base = int(room.ctypes.data)
            start = align_within(base, room.nbytes, size, _PAGE) - base
            whole = room[start : start + size]
        first = int(whole.ctypes.data)
        super().__init__(desc, [first + index * desc.size for index in range(desc.num_tensors)])
        self._tensors: list[Blocks] = list(whole.reshape(desc.num_tensors, *self._shape))

    def room(self, tensor: int) -> Blocks:
        """The tensor itself."""
        return self._tensors[tensor]

    read = room

    def write(self, tensor: int, blocks: Blocks) -> None:
        """Nothing is left to do: `room` gave the tensor itself."""

    def zero(self) -> None:
        """It is already, and stays as it was made: never touched."""

    def close(self) -> None:
        """Give the memory back."""
        self._tensors.clear()
        allocation, self._allocation = self._allocation, None
        if allocation is not None:
            allocation.close()


class _DevicePool(Pool):
    """One allocation of device memory; its contents go through a tensor's worth of host memory.

    Nothing can be copied before the memory is registered.
    """

    def __init__(self, desc: CacheDesc, manager: CacheManager, transport: str) -> None:
        step = pitch(desc, MemoryKind.DEVICE)
        self._allocation = manager.allocate(
            step * desc.num_tensors, MemoryKind.DEVICE, alignment=_HUGE_PAGE, transport=transport
        )
        addrs = [self._allocation.address + index * step for index in range(desc.num_tensors)]
        super().__init__(attrs.evolve(desc, placement=Placement.DEVICE), addrs)
        self._manager, self._transport = manager, transport
        self._staging = np.empty(self._shape, np.uint8)

    def _region(self, tensor: int) -> MemoryRegion:
        return MemoryRegion(self.addrs[tensor], self.desc.size, MemoryKind.DEVICE)

    def room(self, tensor: int) -> Blocks:
        """Host memory for it."""
        return self._staging

    def read(self, tensor: int) -> Blocks:
        """A copy of it in host memory."""
        self._manager.copy(self._staging, self._region(tensor), transport=self._transport)
        return self._staging

    def write(self, tensor: int, blocks: Blocks) -> None:
        """Copy it to the device."""
        self._manager.copy(self._region(tensor), blocks, transport=self._transport)

    def zero(self) -> None:
        """Fresh device memory holds anything."""
        self.fill(0)

    def close(self) -> None:
        """Give the memory back."""
        self._allocation.close()
