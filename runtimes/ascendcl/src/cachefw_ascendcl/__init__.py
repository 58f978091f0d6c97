"""AscendCL for the transports of cachefw: the library found and opened, its handles owned, its numbers explained.

Importing opens no library; the first `Runtime` does, or `open_library`. What the classes leave out can be called
directly: `lib` has every function of ``native/acl.def`` with the prefix ``cfw_``, and `ffi` its types.
"""

from __future__ import annotations

from ._acl import ffi, lib
from ._handle import Bound, Handle, Scope, bound, close_all
from .calls import DeviceAttribute, Topology
from .copies import Copies, CopyKind, Issued
from .ipc import PIDS_MAX, IpcKey, IpcMapping, bare_pid
from .library import (
    VARIABLE,
    Attempt,
    Candidate,
    Library,
    candidates,
    close_library,
    current_library,
    open_library,
    simulator_path,
)
from .memory import Allocation, HostRegistration, Location, MallocPolicy, MemoryInfo, PointerInfo
from .runtime import Context, Device, Runtime
from .status import NAMES, check, name_of, recent_message, status_error
from .streams import Event, Stream

__all__ = [
    "NAMES",
    "PIDS_MAX",
    "VARIABLE",
    "Allocation",
    "Attempt",
    "Bound",
    "Candidate",
    "Context",
    "Copies",
    "CopyKind",
    "Device",
    "DeviceAttribute",
    "Event",
    "Handle",
    "HostRegistration",
    "IpcKey",
    "IpcMapping",
    "Issued",
    "Library",
    "Location",
    "MallocPolicy",
    "MemoryInfo",
    "PointerInfo",
    "Runtime",
    "Scope",
    "Stream",
    "Topology",
    "bare_pid",
    "bound",
    "candidates",
    "check",
    "close_all",
    "close_library",
    "current_library",
    "ffi",
    "lib",
    "name_of",
    "open_library",
    "recent_message",
    "simulator_path",
    "status_error",
]
