# ruff: noqa: N802 - the names are the vendor's
"""Types of the compiled module. Only ``ffi`` and ``lib`` exist at run time, the classes under ``TYPE_CHECKING``."""

from typing import Any, Generic, Literal, TypeVar, overload

from typing_extensions import Buffer

_T = TypeVar("_T")

class CData:
    """Any C value: all that is known of pointers of no named type, and of NULL."""

    def __bool__(self) -> bool: ...
    def __hash__(self) -> int: ...

class Out(CData, Generic[_T]):
    """A pointer to one value, for an out-argument."""

    def __getitem__(self, index: Literal[0], /) -> _T: ...

class _FFI:
    NULL: CData
    error: type[Exception]

    @overload
    def new(self, cdecl: Literal["aclrtContext *", "aclrtStream *", "aclrtEvent *", "void **"]) -> Out[CData]: ...
    @overload
    def new(
        self,
        cdecl: Literal[
            "int32_t *",
            "uint32_t *",
            "int64_t *",
            "uint64_t *",
            "size_t *",
            "aclrtRunMode *",
            "aclrtStreamStatus *",
            "aclrtEventRecordedStatus *",
        ],
        init: int = ...,
    ) -> Out[int]: ...
    @overload
    def new(self, cdecl: str, init: object = ...) -> Any: ...
    @overload
    def cast(self, cdecl: Literal["void *"], source: int | CData) -> CData: ...
    @overload
    def cast(self, cdecl: Literal["uintptr_t"], source: CData) -> int: ...
    @overload
    def cast(self, cdecl: str, source: int | CData) -> Any: ...
    def string(self, cdata: CData, maxlen: int = ...) -> bytes: ...
    def from_buffer(self, cdecl: str, python_buffer: Buffer, require_writable: bool = ...) -> Any: ...
    def sizeof(self, cdata: str | CData) -> int: ...

class _Lib:
    ACL_SUCCESS: int
    ACL_ERROR_INVALID_PARAM: int
    ACL_ERROR_UNINITIALIZE: int
    ACL_ERROR_REPEAT_INITIALIZE: int
    ACL_ERROR_REPEAT_FINALIZE: int
    ACL_ERROR_COMPILING_STUB_MODE: int
    ACL_ERROR_RT_PARAM_INVALID: int
    ACL_ERROR_RT_INVALID_DEVICEID: int
    ACL_ERROR_RT_CONTEXT_NULL: int
    ACL_ERROR_RT_STREAM_CONTEXT: int
    ACL_ERROR_RT_ADDR_UNALIGNED: int
    ACL_ERROR_RT_INVALID_MEMORY_TYPE: int
    ACL_ERROR_RT_INVALID_HANDLE: int
    ACL_ERROR_RT_INVALID_MALLOC_TYPE: int
    ACL_ERROR_RT_WAIT_TIMEOUT: int
    ACL_ERROR_BAD_ALLOC: int
    ACL_ERROR_API_NOT_SUPPORT: int
    ACL_ERROR_MEMORY_ADDRESS_UNALIGNED: int
    ACL_ERROR_FEATURE_UNSUPPORTED: int
    ACL_ERROR_RT_FEATURE_NOT_SUPPORT: int
    ACL_ERROR_RT_MEMORY_ALLOCATION: int
    ACL_ERROR_RT_MEMORY_FREE: int
    ACL_ERROR_RT_NO_DEVICE: int
    ACL_ERROR_RT_RESOURCE_ALLOC_FAIL: int
    ACL_ERROR_RT_NO_PERMISSION: int
    ACL_ERROR_RT_OVER_LIMIT: int
    ACL_ERROR_RT_DEVICE_OOM: int
    ACL_ERROR_RT_LINK_TYPE_NOT_SUPPORTED: int
    ACL_ERROR_INTERNAL_ERROR: int
    ACL_ERROR_RT_FAILURE: int
    ACL_ERROR_RT_INTERNAL_ERROR: int
    ACL_ERROR_RT_IPC_ERROR: int
    ACL_ERROR_RT_STREAM_SYNC_TIMEOUT: int
    ACL_ERROR_RT_EVENT_SYNC_TIMEOUT: int
    ACL_ERROR_RT_DEVICE_MEM_ERROR: int
    ACL_ERROR_RT_LINK_ERROR: int
    ACL_ERROR_RT_SUSPECT_REMOTE_ERROR: int
    ACL_ERROR_RT_DRV_INTERNAL_ERROR: int
    ACL_ERROR_RT_HOST_MEMORY_ALREADY_REGISTERED: int
    ACL_ERROR_RT_HOST_MEMORY_NOT_REGISTERED: int
    ACL_DEVICE: int
    ACL_HOST: int
    ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE: int
    ACL_DEV_ATTR_PHY_CHIP_ID: int
    ACL_DEV_ATTR_SUPER_POD_DEVICE_ID: int
    ACL_DEV_ATTR_SUPER_POD_SERVER_ID: int
    ACL_DEV_ATTR_SUPER_POD_ID: int
    ACL_DEV_ATTR_HD_CONNECT_TYPE: int
    ACL_RT_DEVS_TOPOLOGY_HCCS: int
    ACL_RT_DEVS_TOPOLOGY_PIX: int
    ACL_RT_DEVS_TOPOLOGY_PIB: int
    ACL_RT_DEVS_TOPOLOGY_PHB: int
    ACL_RT_DEVS_TOPOLOGY_SYS: int
    ACL_RT_DEVS_TOPOLOGY_SIO: int
    ACL_RT_DEVS_TOPOLOGY_HCCS_SW: int
    ACL_MEM_MALLOC_HUGE_FIRST: int
    ACL_MEM_MALLOC_HUGE_ONLY: int
    ACL_MEM_MALLOC_NORMAL_ONLY: int
    ACL_MEM_MALLOC_HUGE_FIRST_P2P: int
    ACL_MEM_MALLOC_HUGE_ONLY_P2P: int
    ACL_MEM_MALLOC_NORMAL_ONLY_P2P: int
    ACL_MEM_MALLOC_HUGE1G_ONLY: int
    ACL_MEM_MALLOC_HUGE1G_ONLY_P2P: int
    ACL_MEM_TYPE_LOW_BAND_WIDTH: int
    ACL_MEM_TYPE_HIGH_BAND_WIDTH: int
    ACL_MEM_ACCESS_USER_SPACE_READONLY: int
    ACL_DDR_MEM: int
    ACL_HBM_MEM: int
    ACL_DDR_MEM_HUGE: int
    ACL_DDR_MEM_NORMAL: int
    ACL_HBM_MEM_HUGE: int
    ACL_HBM_MEM_NORMAL: int
    ACL_DDR_MEM_P2P_HUGE: int
    ACL_DDR_MEM_P2P_NORMAL: int
    ACL_HBM_MEM_P2P_HUGE: int
    ACL_HBM_MEM_P2P_NORMAL: int
    ACL_HBM_MEM_HUGE1G: int
    ACL_HBM_MEM_P2P_HUGE1G: int
    ACL_MEM_NORMAL: int
    ACL_MEM_HUGE: int
    ACL_MEM_HUGE1G: int
    ACL_MEM_P2P_NORMAL: int
    ACL_MEM_P2P_HUGE: int
    ACL_MEM_P2P_HUGE1G: int
    ACL_MEM_LOCATION_TYPE_HOST: int
    ACL_MEM_LOCATION_TYPE_DEVICE: int
    ACL_MEM_LOCATION_TYPE_UNREGISTERED: int
    ACL_MEM_LOCATION_TYPE_MANAGED: int
    ACL_MEM_LOCATION_TYPE_HOST_NUMA: int
    ACL_RT_MEM_ATTR_RSV: int
    ACL_RT_MEM_ATTR_MODULE_ID: int
    ACL_RT_MEM_ATTR_DEVICE_ID: int
    ACL_RT_MEM_ATTR_VA_FLAG: int
    ACL_HOST_REGISTER_MAPPED: int
    ACL_HOST_REGISTER_IOMEMORY: int
    ACL_HOST_REGISTER_READONLY: int
    ACL_HOST_REG_MAPPED: int
    ACL_HOST_REG_IOMEMORY: int
    ACL_HOST_REG_READONLY: int
    ACL_HOST_REG_PINNED: int
    ACL_MEMCPY_HOST_TO_HOST: int
    ACL_MEMCPY_HOST_TO_DEVICE: int
    ACL_MEMCPY_DEVICE_TO_HOST: int
    ACL_MEMCPY_DEVICE_TO_DEVICE: int
    ACL_MEMCPY_DEFAULT: int
    ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE: int
    ACL_MEMCPY_INNER_DEVICE_TO_DEVICE: int
    ACL_MEMCPY_INTER_DEVICE_TO_DEVICE: int
    ACL_STREAM_FAST_LAUNCH: int
    ACL_STREAM_FAST_SYNC: int
    ACL_EVENT_SYNC: int
    ACL_EVENT_CAPTURE_STREAM_PROGRESS: int
    ACL_EVENT_TIME_LINE: int
    ACL_STREAM_STATUS_COMPLETE: int
    ACL_STREAM_STATUS_NOT_READY: int
    ACL_EVENT_RECORDED_STATUS_NOT_READY: int
    ACL_EVENT_RECORDED_STATUS_COMPLETE: int
    ACL_RT_IPC_MEM_KEY_LENGTH: int
    ACL_RT_IPC_MEM_PIDS_MAX: int
    ACL_RT_IPC_MEM_EXPORT_FLAG_DEFAULT: int
    ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION: int
    ACL_RT_IPC_MEM_IMPORT_FLAG_DEFAULT: int
    ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS: int
    ACL_MEM_HANDLE_TYPE_NONE: int
    ACL_MEM_HANDLE_TYPE_POSIX: int
    ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT: int
    ACL_MEM_SHARE_HANDLE_TYPE_FABRIC: int
    ACL_MEM_ALLOCATION_TYPE_PINNED: int
    ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM: int
    ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED: int
    ACL_RT_MEM_ACCESS_FLAGS_NONE: int
    ACL_RT_MEM_ACCESS_FLAGS_READ: int
    ACL_RT_MEM_ACCESS_FLAGS_READWRITE: int
    ACL_RT_VMM_EXPORT_FLAG_DEFAULT: int
    ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION: int
    CFW_ACL_MISSING: int
    CFW_ACL_CLOSED: int
    CFW_ACL_BUSY: int
    CFW_ACL_NOT_LOADED: int
    CFW_ACL_FOREIGN: int
    CFW_ACL_STUB: int
    CFW_ACL_SIMULATED: int
    CFW_ACL_NO_MEMORY: int
    CFW_ACL_ALLOW_SIMULATOR: int
    CFW_ACL_NO_BATCH: int

    def cfw_acl_open(self, path: bytes, flags: int, info_p: CData, /) -> int: ...
    def cfw_acl_close(self) -> None: ...
    def cfw_acl_num_symbols(self) -> int: ...
    def cfw_acl_symbol(self, index: int, /) -> CData: ...
    def cfw_acl_has(self, index: int, /) -> int: ...
    def cfw_acl_lookup(self, name: bytes, /) -> CData: ...
    def cfw_acl_enter(self, context: CData, previous_p: Out[CData], /) -> int: ...
    def cfw_acl_leave(self, previous: CData, /) -> int: ...
    def cfw_acl_copy_batch(self, copies: CData, result_p: CData, /) -> int: ...
    def cfw_aclInit(self, config_path: CData | bytes, /) -> int: ...
    def cfw_aclFinalize(self) -> int: ...
    def cfw_aclGetRecentErrMsg(self) -> CData: ...
    def cfw_aclrtGetSocName(self) -> CData: ...
    def cfw_aclrtGetVersion(self, major: Out[int], minor: Out[int], patch: Out[int], /) -> int: ...
    def cfw_aclrtSetDevice(self, device: int, /) -> int: ...
    def cfw_aclrtResetDevice(self, device: int, /) -> int: ...
    def cfw_aclrtResetDeviceForce(self, device: int, /) -> int: ...
    def cfw_aclrtGetDevice(self, device: Out[int], /) -> int: ...
    def cfw_aclrtGetDeviceCount(self, count: Out[int], /) -> int: ...
    def cfw_aclrtGetRunMode(self, mode: Out[int], /) -> int: ...
    def cfw_aclrtGetDeviceInfo(self, device: int, attr: int, value: Out[int], /) -> int: ...
    def cfw_aclrtGetPhyDevIdByLogicDevId(self, logical: int, physical: Out[int], /) -> int: ...
    def cfw_aclrtSynchronizeDevice(self) -> int: ...
    def cfw_aclrtCreateContext(self, context: Out[CData], device: int, /) -> int: ...
    def cfw_aclrtDestroyContext(self, context: CData, /) -> int: ...
    def cfw_aclrtSetCurrentContext(self, context: CData, /) -> int: ...
    def cfw_aclrtGetCurrentContext(self, context: Out[CData], /) -> int: ...
    def cfw_aclrtMalloc(self, ptr: Out[CData], size: int, policy: int, /) -> int: ...
    def cfw_aclrtMallocAlign32(self, ptr: Out[CData], size: int, policy: int, /) -> int: ...
    def cfw_aclrtFree(self, ptr: CData, /) -> int: ...
    def cfw_aclrtMallocHost(self, ptr: Out[CData], size: int, /) -> int: ...
    def cfw_aclrtFreeHost(self, ptr: CData, /) -> int: ...
    def cfw_aclrtGetMemInfo(self, attr: int, free_bytes: Out[int], total_bytes: Out[int], /) -> int: ...
    def cfw_aclrtPointerGetAttributes(self, ptr: CData, attributes: CData, /) -> int: ...
    def cfw_aclrtMemGetAddressRange(self, ptr: CData, base: Out[CData], size: Out[int], /) -> int: ...
    def cfw_aclrtMemset(self, ptr: CData, max_count: int, value: int, count: int, /) -> int: ...
    def cfw_aclrtMemcpy(self, dst: CData, dst_max: int, src: CData, count: int, kind: int, /) -> int: ...
    def cfw_aclrtMemcpyAsync(
        self, dst: CData, dst_max: int, src: CData, count: int, kind: int, stream: CData, /
    ) -> int: ...
    def cfw_aclrtMemcpyBatch(
        self,
        dsts: Out[CData],
        dst_maxs: Out[int],
        srcs: Out[CData],
        sizes: Out[int],
        num_batches: int,
        attrs: CData,
        attrs_indexes: Out[int],
        num_attrs: int,
        fail_index: Out[int],
        /,
    ) -> int: ...
    def cfw_aclrtMemcpyBatchAsync(
        self,
        dsts: Out[CData],
        dst_maxs: Out[int],
        srcs: Out[CData],
        sizes: Out[int],
        num_batches: int,
        attrs: CData,
        attrs_indexes: Out[int],
        num_attrs: int,
        fail_index: Out[int],
        stream: CData,
        /,
    ) -> int: ...
    def cfw_aclrtCreateStream(self, stream: Out[CData], /) -> int: ...
    def cfw_aclrtCreateStreamWithConfig(self, stream: Out[CData], priority: int, flag: int, /) -> int: ...
    def cfw_aclrtDestroyStream(self, stream: CData, /) -> int: ...
    def cfw_aclrtSynchronizeStream(self, stream: CData, /) -> int: ...
    def cfw_aclrtSynchronizeStreamWithTimeout(self, stream: CData, timeout_ms: int, /) -> int: ...
    def cfw_aclrtStreamQuery(self, stream: CData, status: Out[int], /) -> int: ...
    def cfw_aclrtCreateEvent(self, event: Out[CData], /) -> int: ...
    def cfw_aclrtCreateEventExWithFlag(self, event: Out[CData], flag: int, /) -> int: ...
    def cfw_aclrtDestroyEvent(self, event: CData, /) -> int: ...
    def cfw_aclrtRecordEvent(self, event: CData, stream: CData, /) -> int: ...
    def cfw_aclrtQueryEventStatus(self, event: CData, status: Out[int], /) -> int: ...
    def cfw_aclrtSynchronizeEvent(self, event: CData, /) -> int: ...
    def cfw_aclrtStreamWaitEvent(self, stream: CData, event: CData, /) -> int: ...
    def cfw_aclrtIpcMemGetExportKey(
        self, ptr: CData, size: int, key: CData | bytes, key_length: int, flags: int, /
    ) -> int: ...
    def cfw_aclrtIpcMemSetImportPid(self, key: CData | bytes, pids: Out[int], count: int, /) -> int: ...
    def cfw_aclrtIpcMemImportByKey(self, ptr: Out[CData], key: CData | bytes, flags: int, /) -> int: ...
    def cfw_aclrtIpcMemClose(self, key: CData | bytes, /) -> int: ...
    def cfw_aclrtDeviceGetBareTgid(self, pid: Out[int], /) -> int: ...
    def cfw_aclrtDeviceCanAccessPeer(self, can_access: Out[int], device: int, peer: int, /) -> int: ...
    def cfw_aclrtDeviceEnablePeerAccess(self, peer: int, reserved: int, /) -> int: ...
    def cfw_aclrtDeviceDisablePeerAccess(self, peer: int, /) -> int: ...
    def cfw_aclrtDevicePeerAccessStatus(self, device: int, peer: int, status: Out[int], /) -> int: ...
    def cfw_aclrtGetDevicesTopo(self, device: int, other: int, topology: Out[int], /) -> int: ...
    def cfw_aclrtMallocWithCfg(self, ptr: Out[CData], size: int, policy: int, config: CData, /) -> int: ...
    def cfw_aclrtMallocHostWithCfg(self, ptr: Out[CData], size: int, config: CData, /) -> int: ...
    def cfw_aclrtHostRegister(self, ptr: CData, size: int, type: int, device_ptr: Out[CData], /) -> int: ...
    def cfw_aclrtHostRegisterV2(self, ptr: CData, size: int, flag: int, /) -> int: ...
    def cfw_aclrtHostGetDevicePointer(self, host: CData, device_ptr: Out[CData], reserved: int, /) -> int: ...
    def cfw_aclrtHostUnregister(self, ptr: CData, /) -> int: ...
    def cfw_aclrtReserveMemAddress(
        self, ptr: Out[CData], size: int, alignment: int, expected: CData, flags: int, /
    ) -> int: ...
    def cfw_aclrtReleaseMemAddress(self, ptr: CData, /) -> int: ...
    def cfw_aclrtMallocPhysical(self, handle: Out[CData], size: int, prop: CData, reserved: int, /) -> int: ...
    def cfw_aclrtFreePhysical(self, handle: CData, /) -> int: ...
    def cfw_aclrtMapMem(self, ptr: CData, size: int, offset: int, handle: CData, reserved: int, /) -> int: ...
    def cfw_aclrtUnmapMem(self, ptr: CData, /) -> int: ...
    def cfw_aclrtMemSetAccess(self, ptr: CData, size: int, descs: CData, count: int, /) -> int: ...
    def cfw_aclrtMemGetAllocationGranularity(self, prop: CData, option: int, granularity: Out[int], /) -> int: ...
    def cfw_aclrtMemRetainAllocationHandle(self, ptr: CData, handle: Out[CData], /) -> int: ...
    def cfw_aclrtMemExportToShareableHandle(
        self, handle: CData, type: int, flags: int, shareable: Out[int], /
    ) -> int: ...
    def cfw_aclrtMemExportToShareableHandleV2(
        self, handle: CData, flags: int, type: int, shareable: CData, /
    ) -> int: ...
    def cfw_aclrtMemImportFromShareableHandle(self, shareable: int, device: int, handle: Out[CData], /) -> int: ...
    def cfw_aclrtMemImportFromShareableHandleV2(
        self, shareable: CData, type: int, flags: int, handle: Out[CData], /
    ) -> int: ...
    def cfw_aclrtMemSetPidToShareableHandle(self, shareable: int, pids: Out[int], count: int, /) -> int: ...
    def cfw_aclrtMemSetPidToShareableHandleV2(
        self, shareable: CData, type: int, pids: Out[int], count: int, /
    ) -> int: ...

ffi: _FFI
lib: _Lib
