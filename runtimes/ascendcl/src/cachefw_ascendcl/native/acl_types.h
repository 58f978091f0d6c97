/*
 * The types and numbers of AscendCL that acl.def needs, declared by cachefw from the documented ABI. Names are the
 * vendor's, so that its documentation can be searched for them. Only declarations that cffi reads as well: no macros
 * with values, no attributes.
 */
#ifndef CACHEFW_ACL_TYPES_H
#define CACHEFW_ACL_TYPES_H

#ifndef CACHEFW_ACL_CDEF /* cffi knows these types by itself */
#include <stddef.h>
#include <stdint.h>
#endif

typedef int aclError;
typedef void *aclrtContext;
typedef void *aclrtStream;
typedef void *aclrtEvent;
typedef void *aclrtDrvMemHandle;

/* ---- status codes: 1xxxxx the call is wrong, 2xxxxx no resource, 5xxxxx inside the runtime or the hardware ------ */
enum {
    ACL_SUCCESS = 0,

    ACL_ERROR_INVALID_PARAM = 100000,
    ACL_ERROR_UNINITIALIZE = 100001,
    ACL_ERROR_REPEAT_INITIALIZE = 100002,
    ACL_ERROR_REPEAT_FINALIZE = 100037,
    ACL_ERROR_COMPILING_STUB_MODE = 100039,

    ACL_ERROR_RT_PARAM_INVALID = 107000,
    ACL_ERROR_RT_INVALID_DEVICEID = 107001,
    ACL_ERROR_RT_CONTEXT_NULL = 107002,
    ACL_ERROR_RT_STREAM_CONTEXT = 107003,
    ACL_ERROR_RT_ADDR_UNALIGNED = 107008,
    ACL_ERROR_RT_INVALID_MEMORY_TYPE = 107016,
    ACL_ERROR_RT_INVALID_HANDLE = 107017,
    ACL_ERROR_RT_INVALID_MALLOC_TYPE = 107018,
    ACL_ERROR_RT_WAIT_TIMEOUT = 107019,

    ACL_ERROR_BAD_ALLOC = 200000,
    ACL_ERROR_API_NOT_SUPPORT = 200001,
    ACL_ERROR_MEMORY_ADDRESS_UNALIGNED = 200003,
    ACL_ERROR_FEATURE_UNSUPPORTED = 200006,

    ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000,
    ACL_ERROR_RT_MEMORY_ALLOCATION = 207001,
    ACL_ERROR_RT_MEMORY_FREE = 207002,
    ACL_ERROR_RT_NO_DEVICE = 207004,
    ACL_ERROR_RT_RESOURCE_ALLOC_FAIL = 207005,
    ACL_ERROR_RT_NO_PERMISSION = 207006,
    ACL_ERROR_RT_OVER_LIMIT = 207012,
    ACL_ERROR_RT_DEVICE_OOM = 207018,
    ACL_ERROR_RT_LINK_TYPE_NOT_SUPPORTED = 207021,

    ACL_ERROR_INTERNAL_ERROR = 500000,
    ACL_ERROR_RT_FAILURE = 500003,

    ACL_ERROR_RT_INTERNAL_ERROR = 507000,
    ACL_ERROR_RT_IPC_ERROR = 507022,
    ACL_ERROR_RT_STREAM_SYNC_TIMEOUT = 507046,
    ACL_ERROR_RT_EVENT_SYNC_TIMEOUT = 507047,
    ACL_ERROR_RT_DEVICE_MEM_ERROR = 507053,
    ACL_ERROR_RT_LINK_ERROR = 507056,
    ACL_ERROR_RT_SUSPECT_REMOTE_ERROR = 507057,
    ACL_ERROR_RT_DRV_INTERNAL_ERROR = 507899,
    ACL_ERROR_RT_HOST_MEMORY_ALREADY_REGISTERED = 507910,
    ACL_ERROR_RT_HOST_MEMORY_NOT_REGISTERED = 507911
};

/* ---- devices --------------------------------------------------------------------------------------------------- */
typedef enum { ACL_DEVICE = 0, ACL_HOST = 1 } aclrtRunMode;

typedef enum {
    ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE = 301,
    ACL_DEV_ATTR_PHY_CHIP_ID = 402,
    ACL_DEV_ATTR_SUPER_POD_DEVICE_ID = 403,
    ACL_DEV_ATTR_SUPER_POD_SERVER_ID = 404,
    ACL_DEV_ATTR_SUPER_POD_ID = 405,
    ACL_DEV_ATTR_HD_CONNECT_TYPE = 408
} aclrtDevAttr;

/* aclrtGetDevicesTopo: which links join two devices */
enum {
    ACL_RT_DEVS_TOPOLOGY_HCCS = 0x01,
    ACL_RT_DEVS_TOPOLOGY_PIX = 0x02,
    ACL_RT_DEVS_TOPOLOGY_PIB = 0x04,
    ACL_RT_DEVS_TOPOLOGY_PHB = 0x08,
    ACL_RT_DEVS_TOPOLOGY_SYS = 0x10,
    ACL_RT_DEVS_TOPOLOGY_SIO = 0x20,
    ACL_RT_DEVS_TOPOLOGY_HCCS_SW = 0x40
};

/* ---- memory ---------------------------------------------------------------------------------------------------- */
/* One of the first eight, or-ed with any of the TYPE_ and USER_SPACE_ bits. */
typedef enum {
    ACL_MEM_MALLOC_HUGE_FIRST = 0,
    ACL_MEM_MALLOC_HUGE_ONLY = 1,
    ACL_MEM_MALLOC_NORMAL_ONLY = 2,
    ACL_MEM_MALLOC_HUGE_FIRST_P2P = 3,
    ACL_MEM_MALLOC_HUGE_ONLY_P2P = 4,
    ACL_MEM_MALLOC_NORMAL_ONLY_P2P = 5,
    ACL_MEM_MALLOC_HUGE1G_ONLY = 6,
    ACL_MEM_MALLOC_HUGE1G_ONLY_P2P = 7,
    ACL_MEM_TYPE_LOW_BAND_WIDTH = 0x0100,
    ACL_MEM_TYPE_HIGH_BAND_WIDTH = 0x1000,
    ACL_MEM_ACCESS_USER_SPACE_READONLY = 0x100000
} aclrtMemMallocPolicy;

typedef enum {
    ACL_DDR_MEM = 0,
    ACL_HBM_MEM = 1,
    ACL_DDR_MEM_HUGE = 2,
    ACL_DDR_MEM_NORMAL = 3,
    ACL_HBM_MEM_HUGE = 4,
    ACL_HBM_MEM_NORMAL = 5,
    ACL_DDR_MEM_P2P_HUGE = 6,
    ACL_DDR_MEM_P2P_NORMAL = 7,
    ACL_HBM_MEM_P2P_HUGE = 8,
    ACL_HBM_MEM_P2P_NORMAL = 9,
    ACL_HBM_MEM_HUGE1G = 10,
    ACL_HBM_MEM_P2P_HUGE1G = 11,
    ACL_MEM_NORMAL = 12,
    ACL_MEM_HUGE = 13,
    ACL_MEM_HUGE1G = 14,
    ACL_MEM_P2P_NORMAL = 15,
    ACL_MEM_P2P_HUGE = 16,
    ACL_MEM_P2P_HUGE1G = 17
} aclrtMemAttr;

typedef enum {
    ACL_MEM_LOCATION_TYPE_HOST = 0,
    ACL_MEM_LOCATION_TYPE_DEVICE = 1,
    ACL_MEM_LOCATION_TYPE_UNREGISTERED = 2,
    ACL_MEM_LOCATION_TYPE_MANAGED = 3,
    ACL_MEM_LOCATION_TYPE_HOST_NUMA = 4
} aclrtMemLocationType;

typedef struct {
    uint32_t id; /* before the type */
    aclrtMemLocationType type;
} aclrtMemLocation;

typedef struct {
    aclrtMemLocation location;
    uint32_t pageSize;
    uint32_t rsv[4];
} aclrtPtrAttributes;

typedef enum {
    ACL_RT_MEM_ATTR_RSV = 0,
    ACL_RT_MEM_ATTR_MODULE_ID = 1,
    ACL_RT_MEM_ATTR_DEVICE_ID = 2,
    ACL_RT_MEM_ATTR_VA_FLAG = 3
} aclrtMallocAttrType;

typedef union {
    uint16_t moduleId;
    uint32_t deviceId;
    uint32_t vaFlag;
    uint8_t rsv[8];
} aclrtMallocAttrValue;

typedef struct {
    aclrtMallocAttrType attr;
    aclrtMallocAttrValue value;
} aclrtMallocAttribute;

typedef struct {
    aclrtMallocAttribute *attrs;
    size_t numAttrs;
} aclrtMallocConfig;

typedef enum {
    ACL_HOST_REGISTER_MAPPED = 0,
    ACL_HOST_REGISTER_IOMEMORY = 0x4,
    ACL_HOST_REGISTER_READONLY = 0x8
} aclrtHostRegisterType;

/* aclrtHostRegisterV2: flags, which differ from the type above in their first value */
enum {
    ACL_HOST_REG_MAPPED = 0x2,
    ACL_HOST_REG_IOMEMORY = 0x4,
    ACL_HOST_REG_READONLY = 0x8,
    ACL_HOST_REG_PINNED = 0x10000000
};

/* ---- copies ---------------------------------------------------------------------------------------------------- */
typedef enum {
    ACL_MEMCPY_HOST_TO_HOST = 0,
    ACL_MEMCPY_HOST_TO_DEVICE = 1,
    ACL_MEMCPY_DEVICE_TO_HOST = 2,
    ACL_MEMCPY_DEVICE_TO_DEVICE = 3,
    ACL_MEMCPY_DEFAULT = 4,
    ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE = 5,
    ACL_MEMCPY_INNER_DEVICE_TO_DEVICE = 6,
    ACL_MEMCPY_INTER_DEVICE_TO_DEVICE = 7
} aclrtMemcpyKind;

typedef struct {
    aclrtMemLocation dstLoc;
    aclrtMemLocation srcLoc;
    uint8_t rsv[16];
} aclrtMemcpyBatchAttr;

/* ---- streams and events ---------------------------------------------------------------------------------------- */
enum { ACL_STREAM_FAST_LAUNCH = 0x1, ACL_STREAM_FAST_SYNC = 0x2 };
enum { ACL_EVENT_SYNC = 0x1, ACL_EVENT_CAPTURE_STREAM_PROGRESS = 0x2, ACL_EVENT_TIME_LINE = 0x8 };

typedef enum { ACL_STREAM_STATUS_COMPLETE = 0, ACL_STREAM_STATUS_NOT_READY = 1 } aclrtStreamStatus;

/* The other way round than for streams. */
typedef enum {
    ACL_EVENT_RECORDED_STATUS_NOT_READY = 0,
    ACL_EVENT_RECORDED_STATUS_COMPLETE = 1
} aclrtEventRecordedStatus;

/* ---- memory of other processes --------------------------------------------------------------------------------- */
enum {
    ACL_RT_IPC_MEM_KEY_LENGTH = 65, /* our name: the smallest buffer for a key, its NUL included */
    ACL_RT_IPC_MEM_PIDS_MAX = 31,   /* our name: most pids of one whitelist */
    ACL_RT_IPC_MEM_EXPORT_FLAG_DEFAULT = 0,
    ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION = 1,
    ACL_RT_IPC_MEM_IMPORT_FLAG_DEFAULT = 0,
    ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS = 1
};

/* ---- virtual memory management --------------------------------------------------------------------------------- */
typedef enum { ACL_MEM_HANDLE_TYPE_NONE = 0, ACL_MEM_HANDLE_TYPE_POSIX = 2 } aclrtMemHandleType;
typedef enum { ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT = 1, ACL_MEM_SHARE_HANDLE_TYPE_FABRIC = 2 } aclrtMemSharedHandleType;
typedef enum { ACL_MEM_ALLOCATION_TYPE_PINNED = 0 } aclrtMemAllocationType;

typedef enum {
    ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
    ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1
} aclrtMemGranularityOptions;

typedef enum {
    ACL_RT_MEM_ACCESS_FLAGS_NONE = 0,
    ACL_RT_MEM_ACCESS_FLAGS_READ = 1,
    ACL_RT_MEM_ACCESS_FLAGS_READWRITE = 3
} aclrtMemAccessFlags;

enum { ACL_RT_VMM_EXPORT_FLAG_DEFAULT = 0, ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION = 1 };

typedef struct {
    aclrtMemHandleType handleType;
    aclrtMemAllocationType allocationType;
    aclrtMemAttr memAttr;
    aclrtMemLocation location;
    uint64_t reserve;
} aclrtPhysicalMemProp;

typedef struct {
    aclrtMemAccessFlags flags;
    aclrtMemLocation location;
    uint8_t rsv[12];
} aclrtMemAccessDesc;

/* What aclrtMemExportToShareableHandleV2 writes for ACL_MEM_SHARE_HANDLE_TYPE_FABRIC. */
typedef struct {
    uint8_t data[128];
} aclrtMemFabricHandle;

#endif
