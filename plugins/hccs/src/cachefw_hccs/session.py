"""The runtime and one device of it, open as long as anybody needs them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from cachefw.errors import RequestError, refusal

from .status import close_all

if TYPE_CHECKING:
    from cachefw_ascendcl import Device, Runtime

__all__ = ["Session"]


class Session:
    """An open device. Its transport is the first user; memory made from it may outlive that.

    Thread safety: every method may be called from any thread.

    Args:
        index: Number of the device among those that this process sees.

    Raises:
        RequestError: Also a `ValueError`: there is no such device.
        CacheError: The runtime refused.
    """

    def __init__(self, index: int) -> None:
        from cachefw_ascendcl import Runtime

        self._lock = threading.Lock()
        self._users = 1
        self.runtime: Runtime = Runtime()
        try:
            count = self.runtime.device_count()
            if index >= count:
                have = f"this process sees devices 0 to {count - 1}" if count else "this process sees none"
                raise refusal(RequestError, {ValueError}, f"there is no device {index}; {have}", operation="open")
            self.soc = self.runtime.soc_name()
            self.device: Device = self.runtime.device(index)
        except BaseException:
            close_all([self.runtime])
            raise

    def use(self) -> None:
        """One user more."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """One user less; the last one closes the device."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        close_all([self.device, self.runtime])
