/*
 * Our own declarations of what ucp.def needs: one set for every UCX from 1.13 on. They hold on 64-bit Linux only.
 *
 * UCX tells by a mask which fields of a structure its caller knows, and lets structures grow at their end. So each of
 * ours has the fields that are set here, at their places, and room behind them that stays zero.
 *
 * UCX's status is an enumeration packed into one byte: read as an int, its upper bytes are whatever was in the
 * register.
 */
#ifndef CACHEFW_UCP_H
#define CACHEFW_UCP_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef int8_t ucp_status;

enum {
    UCP_OK               = 0,
    UCP_IN_PROGRESS      = 1,
    UCP_NO_MEMORY        = -4,
    UCP_INVALID_PARAM    = -5,
    UCP_UNREACHABLE      = -6,
    UCP_NOT_IMPLEMENTED  = -8,
    UCP_BUSY             = -15,
    UCP_CANCELED         = -16,
    UCP_UNSUPPORTED      = -22,
    UCP_CONNECTION_RESET = -25,
    UCP_LAST_ERROR       = -100
};

/* A call that starts something answers NULL (done), one of the last hundred addresses (an error), or a request. */
static inline int ucp_is_error(const void *answer)
{
    return (uintptr_t)answer >= (uintptr_t)UCP_LAST_ERROR;
}

static inline ucp_status ucp_error_of(const void *answer)
{
    return (ucp_status)(intptr_t)answer;
}

#define UCP_ROOM 128

typedef struct {
    uint64_t mask; /* MAX_THREAD_LEVEL */
    uint32_t max_thread_level;
    uint8_t  room[UCP_ROOM];
} ucp_lib_attr;

enum { UCP_LIB_MAX_THREAD_LEVEL = 1 };

enum { UCP_THREAD_SERIALIZED = 1, UCP_THREAD_MULTI = 2 };

typedef struct {
    uint64_t    mask;
    uint64_t    features;
    uint64_t    unused[4];
    int32_t     shared; /* memory calls may run beside those of a worker */
    uint64_t    expected_eps;
    uint64_t    unused_too;
    const char *name;
    uint8_t     room[UCP_ROOM];
} ucp_params;

enum { UCP_PARAM_FEATURES = 1, UCP_PARAM_SHARED = 32 };

enum { UCP_FEATURE_RMA = 2, UCP_FEATURE_WAKEUP = 16 };

typedef struct {
    uint64_t mask;
    uint32_t thread_mode;
    uint8_t  cpus[132];
    uint32_t events;
    void    *user_data;
    int32_t  event_fd;
    uint64_t flags;
    uint8_t  room[UCP_ROOM];
} ucp_worker_params;

enum { UCP_WORKER_THREAD_MODE = 1, UCP_WORKER_FLAGS = 32 };

enum { UCP_WORKER_IGNORE_REQUEST_LEAK = 1 };

typedef struct {
    uint64_t    mask;
    const void *address;
    uint32_t    error_mode;
    void (*error_cb)(void *argument, void *ep, ucp_status status);
    void       *error_argument;
    void       *user_data;
    uint32_t    flags;
    uint8_t     room[UCP_ROOM];
} ucp_ep_params;

enum { UCP_EP_ADDRESS = 1, UCP_EP_ERROR_MODE = 2, UCP_EP_ERROR_HANDLER = 4 };

enum { UCP_EP_ERRORS_NONE = 0, UCP_EP_ERRORS_PEER = 1 };

typedef struct {
    uint64_t mask;
    void    *address;
    size_t   length;
    uint32_t flags;
    uint32_t protection;
    uint32_t memory_type;
    uint8_t  room[UCP_ROOM];
} ucp_mem_map_params;

enum { UCP_MEM_ADDRESS = 1, UCP_MEM_LENGTH = 2, UCP_MEM_TYPE = 16 };

enum { UCP_MEMORY_HOST = 0 };

typedef void (*ucp_callback)(void *request, ucp_status status, void *user_data);

typedef struct {
    uint32_t     mask;
    uint32_t     flags;
    void        *request;
    ucp_callback callback;
    uint64_t     datatype;
    void        *user_data;
    void        *reply;
    uint32_t     memory_type;
    uint8_t      room[UCP_ROOM];
} ucp_request_param;

enum {
    UCP_OP_CALLBACK    = 2,
    UCP_OP_USER_DATA   = 4,
    UCP_OP_FLAGS       = 16,
    UCP_OP_MEMORY_TYPE = 64
};

enum { UCP_EP_CLOSE_FORCE = 1 };

#define UCP_PLACE(type, field, place) \
    _Static_assert(offsetof(type, field) == (place), "the place of " #field " in " #type)
UCP_PLACE(ucp_lib_attr, max_thread_level, 8);
UCP_PLACE(ucp_params, shared, 48);
UCP_PLACE(ucp_params, expected_eps, 56);
UCP_PLACE(ucp_params, name, 72);
UCP_PLACE(ucp_worker_params, thread_mode, 8);
UCP_PLACE(ucp_worker_params, events, 144);
UCP_PLACE(ucp_worker_params, event_fd, 160);
UCP_PLACE(ucp_worker_params, flags, 168);
UCP_PLACE(ucp_ep_params, error_mode, 16);
UCP_PLACE(ucp_ep_params, error_cb, 24);
UCP_PLACE(ucp_ep_params, flags, 48);
UCP_PLACE(ucp_mem_map_params, flags, 24);
UCP_PLACE(ucp_mem_map_params, memory_type, 32);
UCP_PLACE(ucp_request_param, callback, 16);
UCP_PLACE(ucp_request_param, user_data, 32);
UCP_PLACE(ucp_request_param, memory_type, 48);
#undef UCP_PLACE

#endif
