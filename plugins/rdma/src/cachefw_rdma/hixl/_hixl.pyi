# ruff: noqa: N815 -- the names are the vendor's
"""Types of the compiled module. Only ``ffi`` and ``lib`` exist at run time."""

from collections.abc import Callable
from typing import Any

class CData:
    """Any C value; structures and arrays are read and written by attribute and index."""

    def __bool__(self) -> bool: ...
    def __hash__(self) -> int: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...
    def __setitem__(self, index: int, value: object, /) -> None: ...
    def __getattr__(self, name: str, /) -> Any: ...
    def __setattr__(self, name: str, value: object, /) -> None: ...

class _FFI:
    NULL: CData

    def new(self, cdecl: str, init: object = ...) -> CData: ...
    def cast(self, cdecl: str, source: object) -> CData: ...
    def from_buffer(self, cdecl: str, python_buffer: object, require_writable: bool = ...) -> CData: ...
    def buffer(self, cdata: CData, size: int = ...) -> memoryview: ...
    def string(self, cdata: CData, maxlen: int = ...) -> bytes: ...
    def sizeof(self, cdata: str | CData) -> int: ...
    def offsetof(self, cdecl: str, field: str) -> int: ...

class _Lib:
    HIXL_SUCCESS: int
    HIXL_PARAM_INVALID: int
    HIXL_TIMEOUT: int
    HIXL_NOT_CONNECTED: int
    HIXL_ALREADY_CONNECTED: int
    HIXL_NOTIFY_FAILED: int
    HIXL_UNSUPPORTED: int
    HIXL_RESOURCE_EXHAUSTED: int
    HIXL_FAILED: int
    HIXL_COMPLETE_STATUS_WAITING: int
    HIXL_COMPLETE_STATUS_COMPLETED: int
    HIXL_COMPLETE_STATUS_TIMEOUT: int
    HIXL_COMPLETE_STATUS_FAILED: int
    COMM_MEM_TYPE_DEVICE: int
    COMM_MEM_TYPE_HOST: int
    COMM_PROTOCOL_HCCS: int
    COMM_PROTOCOL_ROCE: int
    COMM_PROTOCOL_UBC_CTP: int
    COMM_PROTOCOL_UBC_TP: int
    COMM_PROTOCOL_UBOE: int
    COMM_ADDR_TYPE_IP_V4: int
    COMM_ADDR_TYPE_IP_V6: int
    COMM_ADDR_TYPE_EID: int
    ENDPOINT_LOC_TYPE_DEVICE: int
    ENDPOINT_LOC_TYPE_HOST: int
    CFW_HIXL_MISSING: int
    CFW_HIXL_CLOSED: int
    CFW_HIXL_BUSY: int
    CFW_HIXL_NOT_LOADED: int
    CFW_HIXL_FOREIGN: int
    CFW_HIXL_STOPPED: int
    CFW_HIXL_BAD_STATE: int
    CFW_STOP_CANCEL: int
    CFW_STOP_ABANDON: int

    def cfw_hixl_open(self, path: bytes, info_p: CData, /) -> int: ...
    def cfw_hixl_close(self) -> None: ...
    def cfw_hixl_num_symbols(self) -> int: ...
    def cfw_hixl_symbol(self, index: int, /) -> CData: ...
    def cfw_hixl_has(self, index: int, /) -> int: ...
    def cfw_hixl_run(self, job: CData, result_p: CData, /) -> None: ...
    def cfw_hixl_stop(self, job: CData, how: int, /) -> None: ...
    # The forwarders: the vendor's arguments, and its status or one of ours.
    cfw_HixlCSServerCreate: Callable[..., int]
    cfw_HixlCSServerRegMem: Callable[..., int]
    cfw_HixlCSServerListen: Callable[..., int]
    cfw_HixlCSServerUnregMem: Callable[..., int]
    cfw_HixlCSServerDestroy: Callable[..., int]
    cfw_HixlCSClientCreate: Callable[..., int]
    cfw_HixlCSClientConnect: Callable[..., int]
    cfw_HixlCSClientGetRemoteMem: Callable[..., int]
    cfw_HixlCSClientRegMem: Callable[..., int]
    cfw_HixlCSClientUnregMem: Callable[..., int]
    cfw_HixlCSClientDestroy: Callable[..., int]
    cfw_HixlCSClientBatchPutAsync: Callable[..., int]
    cfw_HixlCSClientBatchGetAsync: Callable[..., int]
    cfw_HixlCSClientQueryCompleteStatus: Callable[..., int]
    cfw_HixlCSClientBatchPutSync: Callable[..., int]
    cfw_HixlCSClientBatchGetSync: Callable[..., int]

ffi: _FFI
lib: _Lib
