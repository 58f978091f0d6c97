/* An AscendCL for the tests of the binding: contexts per thread, memory from malloc, copies done at once, faults on
 * request. It keeps no rule of the hardware; that is the simulator's business. -D MARK: calls itself a simulator. */
#include "acl.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#ifdef MARK
const char *aclsimVersion(void)
{
    return "SIMULATED by the tests";
}
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the faults and the counts */
static char            fault_name[64];
static int             fault_code, fault_nth, fault_always;

static struct {
    char    name[64];
    int64_t count;
} calls[128];

static _Thread_local const char *message;
static _Thread_local atomic_int *current;
static atomic_int                devices[8]; /* how often each is set; their addresses are the contexts */

void aclsimClear(void)
{
    pthread_mutex_lock(&lock);
    fault_code = 0;
    pthread_mutex_unlock(&lock);
}

int aclsimFail(const char *function, int nth, int code)
{
    pthread_mutex_lock(&lock);
    strncpy(fault_name, function, sizeof(fault_name) - 1);
    fault_nth    = nth;
    fault_always = nth == 0;
    fault_code   = code;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* The row of a name: its own, or the first free one. */
static int find(const char *name)
{
    int row = 0;

    while (row < 127 && calls[row].count > 0 && strcmp(calls[row].name, name) != 0) {
        ++row;
    }
    return row;
}

int64_t aclsimCalls(const char *function)
{
    int64_t count;

    pthread_mutex_lock(&lock);
    count = calls[find(function)].count;
    pthread_mutex_unlock(&lock);
    return count;
}

/* Count a call; the code to fail with, or 0. */
int fake_enter(const char *name)
{
    int row, code = 0;

    pthread_mutex_lock(&lock);
    row = find(name);
    strncpy(calls[row].name, name, sizeof(calls[row].name) - 1);
    calls[row].count++;
    if (fault_code != 0 && strcmp(name, fault_name) == 0 && (fault_always || --fault_nth == 0)) {
        code       = fault_code;
        fault_code = fault_always ? fault_code : 0;
        message    = "EE9999: injected\n  by the test";
    }
    pthread_mutex_unlock(&lock);
    return code;
}

#define ENTER                                   \
    do {                                        \
        int status_ = fake_enter(__func__);     \
        if (status_ != 0) {                     \
            return status_;                     \
        }                                       \
    } while (0)

#define ENTER_CONTEXT                                        \
    do {                                                     \
        ENTER;                                               \
        if (current == NULL) {                               \
            message = "EE1001: this thread has no context";  \
            return ACL_ERROR_RT_CONTEXT_NULL;                \
        }                                                    \
    } while (0)

const char *aclGetRecentErrMsg(void)
{
    const char *text = message;

    message = NULL;
    return text;
}

const char *aclrtGetSocName(void)
{
    return fake_enter(__func__) == 0 ? "Ascend910B3" : NULL;
}

aclError aclrtGetVersion(int32_t *major, int32_t *minor, int32_t *patch)
{
    ENTER;
    *major = 1;
    *minor = 16;
    *patch = 0;
    return 0;
}

aclError aclrtGetDeviceCount(uint32_t *count)
{
    ENTER;
    *count = 8;
    return 0;
}

aclError aclrtSetDevice(int32_t device)
{
    ENTER;
    if (device < 0 || device >= 8) {
        message = "EE1002: no such device";
        return ACL_ERROR_RT_INVALID_DEVICEID;
    }
    devices[device]++;
    current = &devices[device];
    return 0;
}

aclError aclrtResetDevice(int32_t device)
{
    ENTER;
    if (--devices[device] == 0 && current == &devices[device]) {
        current = NULL;
    }
    return 0;
}

aclError aclrtGetDevice(int32_t *device)
{
    ENTER_CONTEXT;
    *device = (int32_t)(current - devices);
    return 0;
}

aclError aclrtGetCurrentContext(aclrtContext *context)
{
    ENTER_CONTEXT;
    *context = current;
    return 0;
}

aclError aclrtSetCurrentContext(aclrtContext context)
{
    ENTER;
    if (context == NULL) {
        return ACL_ERROR_INVALID_PARAM;
    }
    current = context;
    return 0;
}

aclError aclrtMalloc(void **ptr, size_t size, aclrtMemMallocPolicy policy)
{
    (void)policy;
    ENTER_CONTEXT;
    *ptr = malloc(size);
    return 0;
}

aclError aclrtMallocAlign32(void **ptr, size_t size, aclrtMemMallocPolicy policy)
{
    (void)policy;
    ENTER_CONTEXT;
    *ptr = malloc(size);
    return 0;
}

aclError aclrtFree(void *ptr)
{
    ENTER_CONTEXT;
    free(ptr);
    return 0;
}

aclError aclrtMallocHost(void **ptr, size_t size)
{
    ENTER_CONTEXT;
    *ptr = malloc(size);
    return 0;
}

aclError aclrtFreeHost(void *ptr)
{
    ENTER_CONTEXT;
    free(ptr);
    return 0;
}

aclError aclrtCreateStream(aclrtStream *stream)
{
    ENTER_CONTEXT;
    *stream = malloc(1);
    return 0;
}

aclError aclrtDestroyStream(aclrtStream stream)
{
    ENTER_CONTEXT;
    free(stream);
    return 0;
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag)
{
    (void)flag;
    ENTER_CONTEXT;
    *event = malloc(1);
    return 0;
}

aclError aclrtDestroyEvent(aclrtEvent event)
{
    ENTER_CONTEXT;
    free(event);
    return 0;
}

aclError aclrtMemcpyAsync(void *dst, size_t dst_max, const void *src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream)
{
    (void)dst_max;
    (void)kind;
    (void)stream;
    ENTER_CONTEXT;
    memcpy(dst, src, count);
    return 0;
}

aclError aclrtMemcpyBatchAsync(void **dsts, size_t *dst_maxs, void **srcs, size_t *sizes, size_t num_batches,
                               aclrtMemcpyBatchAttr *attrs, size_t *attrs_indexes, size_t num_attrs,
                               size_t *fail_index, aclrtStream stream)
{
    (void)stream;
    ENTER_CONTEXT;
    if (num_attrs != 1 || attrs_indexes[0] != 0 || attrs->dstLoc.type == attrs->srcLoc.type) {
        return ACL_ERROR_RT_PARAM_INVALID;
    }
    *fail_index = SIZE_MAX;
    for (size_t item = 0; item < num_batches; ++item) {
        if (dst_maxs[item] < sizes[item] || srcs[item] == NULL) {
            *fail_index = item;
            return ACL_ERROR_RT_PARAM_INVALID;
        }
        memcpy(dsts[item], srcs[item], sizes[item]);
    }
    return 0;
}
