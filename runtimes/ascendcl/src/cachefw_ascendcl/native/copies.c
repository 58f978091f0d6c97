/* Batches of copies, and the context they need. */
#include "shim.h"

#include <string.h>

int cfw_acl_enter(aclrtContext context, aclrtContext *previous_p)
{
    aclrtContext previous = NULL;
    int          status;

    *previous_p = NULL;
    status      = cfw_aclrtGetCurrentContext(&previous);
    if (status == ACL_ERROR_RT_CONTEXT_NULL) {
        /* The thread has none, which is no failure: its text must not turn up in a later one. */
        (void)cfw_aclGetRecentErrMsg();
        previous = NULL;
    } else if (status != 0) {
        return status;
    }
    if (previous == context) {
        return 0;
    }
    status = cfw_aclrtSetCurrentContext(context);
    if (status == 0) {
        *previous_p = previous;
    }
    return status;
}

int cfw_acl_leave(aclrtContext previous)
{
    return previous == NULL ? 0 : cfw_aclrtSetCurrentContext(previous);
}

/* What a runtime answers when it has the function but its device has not the feature. Nothing was issued then. */
static int cfw_is_unsupported(int status)
{
    return status == CFW_ACL_MISSING || status == ACL_ERROR_RT_FEATURE_NOT_SUPPORT ||
           status == ACL_ERROR_API_NOT_SUPPORT || status == ACL_ERROR_FEATURE_UNSUPPORTED;
}

static void cfw_copy_each(const cfw_acl_copies *copies, cfw_acl_result *result)
{
    for (uint64_t item = 0; item < copies->count; ++item) {
        result->status = cfw_aclrtMemcpyAsync((void *)(uintptr_t)copies->dst[item], copies->length[item],
                                              (const void *)(uintptr_t)copies->src[item], copies->length[item],
                                              (aclrtMemcpyKind)copies->kind, copies->stream);
        if (result->status != 0) {
            result->failed = item;
            return;
        }
        result->issued = item + 1;
    }
}

/* Returns 1 when the batch was taken or refused for good, 0 when it has to be issued one by one. */
static int cfw_copy_together(const cfw_acl_copies *copies, cfw_acl_result *result)
{
    aclrtMemcpyBatchAttr attr;
    size_t               first  = 0;
    size_t               failed = SIZE_MAX;
    int32_t              device = 0;
    int                  status;

    if ((copies->flags & CFW_ACL_NO_BATCH) || copies->count < 2 ||
        (copies->kind != ACL_MEMCPY_HOST_TO_DEVICE && copies->kind != ACL_MEMCPY_DEVICE_TO_HOST)) {
        return 0;
    }
    if (cfw_aclrtGetDevice(&device) != 0) {
        return 0; /* the copies themselves will say what is wrong */
    }
    memset(&attr, 0, sizeof(attr));
    if (copies->kind == ACL_MEMCPY_HOST_TO_DEVICE) {
        attr.dstLoc = (aclrtMemLocation){(uint32_t)device, ACL_MEM_LOCATION_TYPE_DEVICE};
        attr.srcLoc = (aclrtMemLocation){0, ACL_MEM_LOCATION_TYPE_HOST};
    } else {
        attr.dstLoc = (aclrtMemLocation){0, ACL_MEM_LOCATION_TYPE_HOST};
        attr.srcLoc = (aclrtMemLocation){(uint32_t)device, ACL_MEM_LOCATION_TYPE_DEVICE};
    }
    /* Addresses of 64 bits are pointers here, and the call does not write through any of its lists. */
    status = cfw_aclrtMemcpyBatchAsync((void **)(uintptr_t)copies->dst, (size_t *)(uintptr_t)copies->length,
                                       (void **)(uintptr_t)copies->src, (size_t *)(uintptr_t)copies->length,
                                       copies->count, &attr, &first, 1, &failed, copies->stream);
    if (cfw_is_unsupported(status)) {
        return 0;
    }
    result->status  = status;
    result->batches = 1;
    result->failed  = status != 0 && failed < copies->count ? failed : copies->count;
    result->issued  = copies->count; /* on failure nobody says how many */
    return 1;
}

int cfw_acl_copy_batch(const cfw_acl_copies *copies, cfw_acl_result *result_p)
{
    aclrtContext previous = NULL;
    int          status;

    memset(result_p, 0, sizeof(*result_p));
    result_p->failed = copies->count;
    if (copies->context != NULL) {
        result_p->status = cfw_acl_enter(copies->context, &previous);
        if (result_p->status != 0) {
            return result_p->status;
        }
    }
    if (!cfw_copy_together(copies, result_p)) {
        cfw_copy_each(copies, result_p);
    }
    if (copies->event != NULL) {
        result_p->event = cfw_aclrtRecordEvent(copies->event, copies->stream);
    }
    status = cfw_acl_leave(previous);
    if (result_p->status == 0) {
        result_p->status = result_p->event != 0 ? result_p->event : status;
    }
    return result_p->status;
}

_Static_assert(sizeof(uint64_t) == sizeof(void *) && sizeof(uint64_t) == sizeof(size_t),
               "lists of 64-bit numbers are handed over as lists of pointers and sizes");
