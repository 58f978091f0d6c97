"""The runtime of a process, its devices and contexts."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from cachefw.errors import BrokenError, TransportUnavailable

from . import library as _library
from ._acl import ffi, lib
from ._handle import Handle, forks
from .calls import Calls
from .library import Library
from .status import check, recent_message

if TYPE_CHECKING:
    from ._acl import CData

__all__ = ["Context", "Device", "Runtime"]


@attrs.define(eq=False)
class _Process:
    """What is once per process."""

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    uses: int = 0
    ours: bool = False
    forks: int = 0


_process = _Process()


def _after_fork() -> None:
    # Another thread of the parent may have held it.
    _process.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


class Context(Calls):
    """A context of its own on a device, made by `Device.create_context`."""

    kind = "context"

    def __init__(self, device: Device) -> None:
        made_p = ffi.new("aclrtContext *")
        made: CData | None = None
        try:
            with device.bound():
                check(lib.cfw_aclrtCreateContext(made_p, device.index), "aclrtCreateContext", device=device.index)
                made = made_p[0]
                # Creating one makes it current, too.
                check(lib.cfw_aclrtSetCurrentContext(device.context), "aclrtSetCurrentContext")
        except BaseException:
            if made is not None:
                lib.cfw_aclrtDestroyContext(made)
            raise
        super().__init__(device, made, made, device.index)
        self._device = device

    def _release(self, raw: Any) -> None:
        previous = _current()
        # A thread must not be left with a context that is gone, hence the device's own.
        check(lib.cfw_aclrtSetCurrentContext(self._device.context), "aclrtSetCurrentContext")
        try:
            check(lib.cfw_aclrtDestroyContext(raw), "aclrtDestroyContext")
        except BaseException:
            lib.cfw_acl_leave(previous)
            raise
        self._forget()
        if previous != raw:
            check(lib.cfw_acl_leave(previous), "aclrtSetCurrentContext")


class Device(Calls):
    """A device of this process, in its primary context: the one that other libraries of the process use, too.

    Made by `Runtime.device`. Each counts once: the device is reset when the last one in the process is closed.

    Attributes:
        index: Number of the device among those that this process sees.
    """

    kind = "device"

    def __init__(self, runtime: Runtime, index: int) -> None:
        previous = _current()
        check(lib.cfw_aclrtSetDevice(index), "aclrtSetDevice", device=index)
        made_p = ffi.new("aclrtContext *")
        try:
            check(lib.cfw_aclrtGetCurrentContext(made_p), "aclrtGetCurrentContext", device=index)
            check(lib.cfw_acl_leave(previous), "aclrtSetCurrentContext")
        except BaseException:
            lib.cfw_aclrtResetDevice(index)
            raise
        super().__init__(runtime, made_p[0], made_p[0], index)

    def create_context(self) -> Context:
        """A further context on this device. Streams and events of one are of no use in another."""
        return Context(self)

    def _release(self, raw: Any) -> None:
        previous = _current()
        check(lib.cfw_aclrtResetDevice(self.index), "aclrtResetDevice", device=self.index)
        self._forget()
        if previous != raw:
            check(lib.cfw_acl_leave(previous), "aclrtSetCurrentContext")

    def _describe(self) -> str:
        return f"device {self.index}"


class Runtime(Handle):
    """AscendCL, opened and initialised for this process.

    Any number may be made; they share one library and one initialisation. The last to be closed finalises AscendCL and
    closes the library, unless another library of the process had initialised it first, or ``torch_npu`` is loaded,
    which would be finalised with it.

    Thread safety: may be made, used and closed in any thread.

    Args:
        environ: Where to look for the library (see `cachefw_ascendcl.candidates`); the process's variables by default.

    Raises:
        TransportUnavailable: No library can be used, or this process was forked from one that uses AscendCL.
        CacheError: Initialising failed.

    Attributes:
        library: The library in use.
    """

    kind = "runtime"

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        with _process.lock:
            if _process.uses and _process.forks != forks():
                raise TransportUnavailable(
                    "AscendCL was in use when this process was forked, and does not work in the child; start processes "
                    "with 'spawn'",
                    code="acl.forked",
                    operation="Runtime",
                )
            self.library: Library = _library.hold(environ)
            try:
                if not _process.uses:
                    status = lib.cfw_aclInit(ffi.NULL)
                    _process.ours = status != lib.ACL_ERROR_REPEAT_INITIALIZE
                    if _process.ours:
                        check(status, "aclInit")
                    else:
                        recent_message()
            except BaseException:
                _library.unhold()
                raise
            _process.uses += 1
            _process.forks = forks()
        super().__init__(None, True)

    def __repr__(self) -> str:
        return f"<runtime of {self.library}{', closed' if self.closed else ''}>"

    def device(self, index: int = 0) -> Device:
        """A device, by its number among those that this process sees."""
        _ = self.raw
        return Device(self, index)

    def device_count(self) -> int:
        """How many devices this process sees."""
        _ = self.raw
        count_p = ffi.new("uint32_t *")
        check(lib.cfw_aclrtGetDeviceCount(count_p), "aclrtGetDeviceCount")
        return count_p[0]

    def soc_name(self) -> str:
        """What the chip is called, e.g. ``"Ascend910B3"``.

        Raises:
            BrokenError: The runtime does not say.
        """
        _ = self.raw
        name = lib.cfw_aclrtGetSocName()
        if not name:
            raise BrokenError(
                "aclrtGetSocName: the runtime does not say what chip this is",
                code="acl.no_soc_name",
                operation="aclrtGetSocName",
                detail=recent_message(),
            )
        return ffi.string(name).decode(errors="replace")

    def on_host(self) -> bool:
        """Whether this process runs on the host, as opposed to the device itself."""
        _ = self.raw
        mode_p = ffi.new("aclrtRunMode *")
        check(lib.cfw_aclrtGetRunMode(mode_p), "aclrtGetRunMode")
        return mode_p[0] == lib.ACL_HOST

    def _release(self, raw: Any) -> None:
        with _process.lock:
            if _process.uses == 1 and _process.ours and "torch_npu" not in sys.modules:
                check(lib.cfw_aclFinalize(), "aclFinalize")
            _process.uses -= 1
            _library.unhold()


def _current() -> CData:
    """The calling thread's context, or NULL."""
    current_p = ffi.new("aclrtContext *")
    status = lib.cfw_aclrtGetCurrentContext(current_p)
    if status == lib.ACL_ERROR_RT_CONTEXT_NULL:
        recent_message()
        return ffi.NULL
    check(status, "aclrtGetCurrentContext")
    return current_p[0]
