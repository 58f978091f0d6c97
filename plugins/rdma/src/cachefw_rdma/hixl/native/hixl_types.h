/*
 * The types and numbers of HIXL's C interface that hixl.def needs, declared by cachefw from the documented ABI. Names
 * are the vendor's, so that its documentation can be searched for them. Only declarations that cffi reads as well.
 */
#ifndef CACHEFW_HIXL_TYPES_H
#define CACHEFW_HIXL_TYPES_H

#ifndef CACHEFW_HIXL_CDEF /* cffi knows these types by itself */
#include <stddef.h>
#include <stdint.h>
#endif

typedef uint32_t HixlStatus;
typedef void *HixlServerHandle;
typedef void *HixlClientHandle;
typedef void *HixlMemHandle;
typedef void *HixlCompleteHandle;

/* 1xxxxx the call is wrong, 2xxxxx no resource, 5xxxxx inside the library or the hardware */
enum {
    HIXL_SUCCESS = 0,
    HIXL_PARAM_INVALID = 103900,
    HIXL_TIMEOUT = 103901,
    HIXL_NOT_CONNECTED = 103902,
    HIXL_ALREADY_CONNECTED = 103903,
    HIXL_NOTIFY_FAILED = 103904,
    HIXL_UNSUPPORTED = 103905,
    HIXL_RESOURCE_EXHAUSTED = 203900,
    HIXL_FAILED = 503900
};

typedef enum {
    HIXL_COMPLETE_STATUS_WAITING = 0,
    HIXL_COMPLETE_STATUS_COMPLETED = 1,
    HIXL_COMPLETE_STATUS_TIMEOUT = 2,
    HIXL_COMPLETE_STATUS_FAILED = 3
} HixlCompleteStatus;

/* ---- memory: here a device is 0 and the host 1, the reverse of AscendCL's locations -------------------------- */
enum { COMM_MEM_TYPE_DEVICE = 0, COMM_MEM_TYPE_HOST = 1 };

typedef struct {
    int32_t type;
    void *addr;
    uint64_t size;
} CommMem;

/* ---- endpoints ----------------------------------------------------------------------------------------------- */
enum {
    COMM_PROTOCOL_HCCS = 0,
    COMM_PROTOCOL_ROCE = 1,
    COMM_PROTOCOL_UBC_CTP = 4,
    COMM_PROTOCOL_UBC_TP = 5,
    COMM_PROTOCOL_UBOE = 7
};
enum { COMM_ADDR_TYPE_IP_V4 = 0, COMM_ADDR_TYPE_IP_V6 = 1, COMM_ADDR_TYPE_EID = 3 };
enum { ENDPOINT_LOC_TYPE_DEVICE = 0, ENDPOINT_LOC_TYPE_HOST = 1 };

typedef struct {
    int32_t type;
    uint8_t bytes[36]; /* in network order: 4 of IPv4, 16 of IPv6 or of an EID */
} HixlAddress;

typedef struct {
    int32_t type;
    uint32_t device; /* physical number; for the host a number of its own */
    uint32_t super_device;
    uint32_t server;
    uint32_t super_pod;
    uint8_t reserved[44];
} HixlLocation;

typedef struct {
    int32_t protocol;
    HixlAddress address;
    HixlLocation location;
    uint8_t reserved[52];
} EndpointDesc;

/* ---- servers, clients, transfers ----------------------------------------------------------------------------- */
typedef struct {
    const char *global_resource_config;
    uint8_t reserved[120];
} HixlServerConfig;

typedef struct {
    const char *global_resource_config;
    uint8_t reserved[120];
} HixlClientConfig;

typedef struct {
    const EndpointDesc *endpoint_list;
    const char *server_ip;
    uint32_t server_port;
    uint32_t endpoint_list_num;
    uint8_t reserved[104];
} HixlServerDesc;

typedef struct {
    const EndpointDesc *local_endpoint;
    const EndpointDesc *remote_endpoint;
    const char *server_ip;
    uint32_t server_port;
    uint8_t tc;
    uint8_t sl;
    uint8_t reserved[98];
} HixlClientDesc;

typedef struct {
    void *remote_buf;
    void *local_buf;
    uint64_t len;
} HixlOneSideOpDesc;

#endif
