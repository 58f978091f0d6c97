"""Device memory for the kit, reached through the binding and not through the transport."""

from __future__ import annotations

import ctypes

from cachefw_ascendcl import CopyKind, Device, Runtime

from cachefw.memory import Allocation
from cachefw.testing import KitMemory


class DeviceMemory(KitMemory):
    """One allocation, with a device handle of its own to see its bytes by."""

    def __init__(self, allocation: Allocation) -> None:
        super().__init__(allocation.region, owner=allocation)
        self._runtime = Runtime()
        self._device: Device | None = self._runtime.device()

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        size = self.region.length - offset if length is None else min(length, self.region.length - offset)
        buffer = ctypes.create_string_buffer(size)
        self._device.copy(ctypes.addressof(buffer), self.region.address + offset, size, CopyKind.DEVICE_TO_HOST)
        return buffer.raw

    def write(self, data: bytes, offset: int = 0) -> None:
        buffer = ctypes.create_string_buffer(bytes(data), len(data))
        self._device.copy(self.region.address + offset, ctypes.addressof(buffer), len(data), CopyKind.HOST_TO_DEVICE)

    def close(self) -> None:
        super().close()
        device, self._device = self._device, None
        if device is not None:
            device.close()
            self._runtime.close()
