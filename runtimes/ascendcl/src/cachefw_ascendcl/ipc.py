"""Device memory that other processes of the host may reach."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cachefw.errors import RequestError, refusal

from ._acl import ffi, lib
from ._handle import Owned, Scope, address_of, pointer
from .status import check

__all__ = ["PIDS_MAX", "IpcKey", "IpcMapping", "bare_pid"]

PIDS_MAX: int = lib.ACL_RT_IPC_MEM_PIDS_MAX
_LENGTH: int = lib.ACL_RT_IPC_MEM_KEY_LENGTH


def bare_pid() -> int:
    """This process as the driver knows it: a pid that means the same inside and outside of containers."""
    pid_p = ffi.new("int32_t *")
    check(lib.cfw_aclrtDeviceGetBareTgid(pid_p), "aclrtDeviceGetBareTgid")
    return pid_p[0]


class IpcKey(Owned):
    """A range of device memory under a name that other processes can map it by.

    Made by `Device.export`. Nobody may map it before `allow` names the process, unless it was exported to any.
    Importers have to close their mappings before the memory is freed.

    Attributes:
        address: First byte of the range.
        size: Bytes.
        key: The name, to be sent to the importer. Who has it and is allowed can read and write the memory.
        any_process: Whether pids are not asked for.
    """

    kind = "IPC key"

    def __init__(self, scope: Scope, address: int, size: int, *, any_process: bool = False) -> None:
        key = ffi.new("char[]", _LENGTH)
        flags = (
            lib.ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION
            if any_process
            else lib.ACL_RT_IPC_MEM_EXPORT_FLAG_DEFAULT
        )
        self.address, self.size, self.any_process = address, size, any_process

        def create() -> Any:
            check(
                lib.cfw_aclrtIpcMemGetExportKey(pointer(address), size, key, _LENGTH, flags),
                "aclrtIpcMemGetExportKey",
                address=address,
                size=size,
            )
            return key

        super().__init__(scope, create)
        self.key: bytes = ffi.string(key)

    def allow(self, pids: Iterable[int]) -> None:
        """Let processes map the memory.

        Args:
            pids: 1 to 31 of them, each as its own `bare_pid` tells.
        """
        listed = list(pids)
        if not 1 <= len(listed) <= PIDS_MAX:
            raise refusal(
                RequestError,
                {ValueError},
                f"{len(listed)} pids for one key; 1 to {PIDS_MAX} can be allowed",
                operation="aclrtIpcMemSetImportPid",
            )
        with self.scope.bound():
            check(
                lib.cfw_aclrtIpcMemSetImportPid(self.raw, ffi.new("int32_t[]", listed), len(listed)),
                "aclrtIpcMemSetImportPid",
                pids=tuple(listed),
            )

    def _destroy(self, raw: Any) -> None:
        check(lib.cfw_aclrtIpcMemClose(raw), "aclrtIpcMemClose")

    def _describe(self) -> str:
        return f"IPC key of {self.size:,} bytes at {self.address:#x}"


class IpcMapping(Owned):
    """Another process's device memory, mapped here.

    Made by `Device.import_key`. Its own process has to keep the memory until this is closed.

    Attributes:
        address: First byte, in this process.
        key: The name it was mapped by.
    """

    kind = "IPC mapping"

    def __init__(self, scope: Scope, key: bytes, *, peer_access: bool = True) -> None:
        if not 0 < len(key) < _LENGTH or b"\0" in key:
            raise refusal(
                RequestError,
                {ValueError},
                f"an IPC key has 1 to {_LENGTH - 1} bytes and no NUL; this one has {len(key)}",
                operation="aclrtIpcMemImportByKey",
            )
        name, made_p = ffi.new("char[]", key), ffi.new("void **")
        flags = (
            lib.ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS if peer_access else lib.ACL_RT_IPC_MEM_IMPORT_FLAG_DEFAULT
        )
        self.key = key

        def create() -> Any:
            check(lib.cfw_aclrtIpcMemImportByKey(made_p, name, flags), "aclrtIpcMemImportByKey")
            return name

        super().__init__(scope, create)
        self.address = address_of(made_p[0])

    def _destroy(self, raw: Any) -> None:
        check(lib.cfw_aclrtIpcMemClose(raw), "aclrtIpcMemClose")

    def _describe(self) -> str:
        return f"IPC mapping at {self.address:#x}"
