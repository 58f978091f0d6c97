/* Devices, counted, and contexts, one current per thread. */
#include "sim.h"

#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uint32_t count; /* of aclrtSetDevice without aclrtResetDevice */
    void    *primary;
} devices[SIM_MAX_DEVICES];

static __thread void *current;

bool sim_device_exists(int32_t device)
{
    return device >= 0 && (uint32_t)device < sim_option.devices;
}

aclError sim_device_check(int32_t device)
{
    return sim_device_exists(device)
               ? ACL_SUCCESS
               : sim_fail(ACL_ERROR_RT_INVALID_DEVICEID, "there is no device %d among %u", device, sim_option.devices);
}

static void destroy_context(sim_object *object)
{
    free(object);
}

/* With the lock held. */
static aclError open_context(int32_t device, bool primary, void **handle_p)
{
    sim_context *context = calloc(1, sizeof(*context));

    if (context == NULL) {
        return sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
    }
    sim_object_init(&context->object, SIM_CONTEXT, destroy_context);
    context->device  = device;
    context->primary = primary;
    context->handle  = sim_handle_add(&context->object);
    if (context->handle == NULL) {
        free(context);
        return sim_fail(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "there are too many handles");
    }
    *handle_p = context->handle;
    return ACL_SUCCESS;
}

static bool stream_of(const sim_object *object, const void *context)
{
    return ((const sim_stream *)object)->context == context;
}

/* Takes a context over that is out of the table. Its streams end without doing what is left, if `abandon`. */
static void close_context(sim_context *context, bool abandon)
{
    sim_stream *stream;

    while ((stream = (sim_stream *)sim_handle_remove_any(SIM_STREAM, stream_of, context->handle)) != NULL) {
        sim_stream_close(stream, abandon);
    }
    sim_object_put(&context->object);
}

sim_context *sim_context_current(void)
{
    return (sim_context *)sim_handle_get(SIM_CONTEXT, current);
}

aclError sim_no_context(void)
{
    return sim_fail(ACL_ERROR_RT_CONTEXT_NULL, "this thread has no current context: call aclrtSetDevice");
}

aclError sim_current_device(int32_t *device_p)
{
    sim_context *context = sim_context_current();

    if (context == NULL) {
        return sim_no_context();
    }
    *device_p = context->device;
    sim_object_put(&context->object);
    return ACL_SUCCESS;
}

aclError aclrtSetDevice(int32_t device)
{
    aclError code;

    SIM_ENTER(aclrtSetDevice);
    code = sim_device_check(device);
    if (code != ACL_SUCCESS) {
        return code;
    }
    pthread_mutex_lock(&lock);
    if (devices[device].count == 0) {
        code = open_context(device, true, &devices[device].primary);
    }
    if (code == ACL_SUCCESS) {
        devices[device].count++;
        current = devices[device].primary;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static bool context_of(const sim_object *object, const void *device)
{
    return ((const sim_context *)object)->device == *(const int32_t *)device;
}

/* With the lock held: everything of the device goes. */
static void reset(int32_t device)
{
    sim_context *context;

    devices[device].count   = 0;
    devices[device].primary = NULL;
    while ((context = (sim_context *)sim_handle_remove_any(SIM_CONTEXT, context_of, &device)) != NULL) {
        close_context(context, true);
    }
    sim_region_clear(device);
    sim_peer_forget(device);
}

static aclError reset_device(int32_t device, bool force)
{
    aclError code = sim_device_check(device);

    if (code != ACL_SUCCESS) {
        return code;
    }
    pthread_mutex_lock(&lock);
    if (devices[device].count == 0) {
        code = sim_no_context();
    } else if (force || devices[device].count == 1) {
        reset(device);
    } else {
        devices[device].count--;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

aclError aclrtResetDevice(int32_t device)
{
    SIM_ENTER(aclrtResetDevice);
    return reset_device(device, false);
}

aclError aclrtResetDeviceForce(int32_t device)
{
    SIM_ENTER(aclrtResetDeviceForce);
    return reset_device(device, true);
}

static bool any(const sim_object *object, const void *nothing)
{
    (void)object;
    (void)nothing;
    return true;
}

void sim_device_reset_all(void)
{
    sim_object *object;

    pthread_mutex_lock(&lock);
    for (int32_t device = 0; device < SIM_MAX_DEVICES; ++device) {
        reset(device);
    }
    pthread_mutex_unlock(&lock);
    sim_region_clear(-1);
    for (unsigned kind = 0; kind < SIM_NUM_KINDS; ++kind) {
        while ((object = sim_handle_remove_any((sim_kind)kind, any, NULL)) != NULL) {
            if (kind == SIM_STREAM) {
                sim_stream_close((sim_stream *)object, true);
            } else {
                sim_object_put(object);
            }
        }
    }
}

aclError aclrtGetDevice(int32_t *device)
{
    SIM_ENTER(aclrtGetDevice);
    SIM_NOT_NULL(device);
    return sim_current_device(device);
}

aclError aclrtGetDeviceCount(uint32_t *count)
{
    SIM_ENTER(aclrtGetDeviceCount);
    SIM_NOT_NULL(count);
    *count = sim_option.devices;
    return ACL_SUCCESS;
}

aclError aclrtGetDeviceInfo(uint32_t device, aclrtDevAttr attr, int64_t *value)
{
    aclError code;

    SIM_ENTER(aclrtGetDeviceInfo);
    SIM_NOT_NULL(value);
    code = sim_device_check((int32_t)device);
    if (code != ACL_SUCCESS) {
        return code;
    }
    switch (attr) {
    case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE: *value = (int64_t)sim_option.hbm; break;
    case ACL_DEV_ATTR_PHY_CHIP_ID:
    case ACL_DEV_ATTR_SUPER_POD_DEVICE_ID: *value = device; break;
    case ACL_DEV_ATTR_SUPER_POD_SERVER_ID:
    case ACL_DEV_ATTR_SUPER_POD_ID:
    case ACL_DEV_ATTR_HD_CONNECT_TYPE: *value = 0; break;
    default: return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "the attribute %d is unknown", (int)attr);
    }
    return ACL_SUCCESS;
}

aclError aclrtGetPhyDevIdByLogicDevId(int32_t logical, int32_t *physical)
{
    aclError code;

    SIM_ENTER(aclrtGetPhyDevIdByLogicDevId);
    SIM_NOT_NULL(physical);
    code = sim_device_check(logical);
    if (code == ACL_SUCCESS) {
        *physical = logical;
    }
    return code;
}

aclError aclrtCreateContext(aclrtContext *context, int32_t device)
{
    void    *handle;
    aclError code;

    SIM_ENTER(aclrtCreateContext);
    SIM_NOT_NULL(context);
    code = sim_device_check(device);
    if (code != ACL_SUCCESS) {
        return code;
    }
    pthread_mutex_lock(&lock);
    code = open_context(device, false, &handle);
    pthread_mutex_unlock(&lock);
    if (code == ACL_SUCCESS) {
        current  = handle;
        *context = handle;
    }
    return code;
}

aclError aclrtDestroyContext(aclrtContext context)
{
    sim_context *found;
    aclError     code = ACL_SUCCESS;

    SIM_ENTER(aclrtDestroyContext);
    SIM_NOT_NULL(context);
    pthread_mutex_lock(&lock);
    found = (sim_context *)sim_handle_get(SIM_CONTEXT, context);
    if (found == NULL) {
        code = sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "%p is not a context", context);
    } else if (found->primary) {
        code = sim_fail(ACL_ERROR_RT_PARAM_INVALID, "the context of aclrtSetDevice goes with aclrtResetDevice");
    } else {
        (void)sim_handle_remove(SIM_CONTEXT, context);
        close_context(found, false);
    }
    pthread_mutex_unlock(&lock);
    sim_object_put(found != NULL ? &found->object : NULL);
    return code;
}

aclError aclrtSetCurrentContext(aclrtContext context)
{
    sim_object *found;

    SIM_ENTER(aclrtSetCurrentContext);
    SIM_NOT_NULL(context);
    found = sim_handle_get(SIM_CONTEXT, context);
    if (found == NULL) {
        return sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "%p is not a context", context);
    }
    sim_object_put(found);
    current = context;
    return ACL_SUCCESS;
}

aclError aclrtGetCurrentContext(aclrtContext *context)
{
    sim_context *found;

    SIM_ENTER(aclrtGetCurrentContext);
    SIM_NOT_NULL(context);
    found = sim_context_current();
    if (found == NULL) {
        return sim_no_context();
    }
    *context = found->handle;
    sim_object_put(&found->object);
    return ACL_SUCCESS;
}
