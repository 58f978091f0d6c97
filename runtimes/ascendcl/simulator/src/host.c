/* Host memory that the runtime knows: its own, pinned, and that of others, registered. */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void destroy_host(sim_region *region)
{
    sim_window_release(SIM_WINDOW_HOST, region->base, region->size);
    free(region);
}

aclError sim_host_alloc(void **ptr, size_t size)
{
    const size_t rounded = size > SIZE_MAX / 4 ? 0 : sim_round_up(size, SIM_PAGE);
    sim_region  *region;
    int32_t      device;
    aclError     code;

    SIM_NOT_NULL(ptr);
    if (size == 0) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "the size is 0");
    }
    code = sim_current_device(&device);
    if (code != ACL_SUCCESS) {
        return code;
    }
    region = rounded != 0 ? calloc(1, sizeof(*region)) : NULL;
    if (region == NULL) {
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "the host has no %zu bytes", size);
    }
    *region      = (sim_region){.kind = SIM_HOST_MEMORY, .size = rounded, .page = SIM_PAGE, .destroy = destroy_host};
    region->base = sim_window_take(SIM_WINDOW_HOST, rounded, SIM_PAGE, 0, 0);
    region->data = (char *)region->base;
    if (region->base == 0) {
        code = sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no addresses for %zu bytes", rounded);
        goto err_free;
    }
    if (mmap(region->data, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        MAP_FAILED) {
        code = sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "mmap of %zu bytes: %s", rounded, strerror(errno));
        goto err_release;
    }
    (void)madvise(region->data, rounded, MADV_DONTFORK);
    sim_memory_fill(region->data, rounded);
    if (!sim_region_add(region)) {
        code = sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
        goto err_release;
    }
    *ptr = region->data;
    return ACL_SUCCESS;

err_release:
    sim_window_release(SIM_WINDOW_HOST, region->base, rounded);
err_free:
    free(region);
    return code;
}

aclError aclrtMallocHost(void **ptr, size_t size)
{
    SIM_ENTER(aclrtMallocHost);
    return sim_host_alloc(ptr, size);
}

aclError aclrtFreeHost(void *ptr)
{
    sim_region *region;
    int32_t     device;
    aclError    code;

    SIM_ENTER(aclrtFreeHost);
    SIM_NOT_NULL(ptr);
    code = sim_current_device(&device);
    if (code != ACL_SUCCESS) {
        return code;
    }
    region = sim_region_get((uintptr_t)ptr);
    if (region == NULL || region->kind != SIM_HOST_MEMORY || region->base != (uintptr_t)ptr ||
        !sim_region_remove(region)) {
        sim_region_put(region);
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "no allocation of aclrtMallocHost begins at %p", ptr);
    }
    sim_region_put(region);
    sim_region_put(region);
    return ACL_SUCCESS;
}

/* ---- memory of others -------------------------------------------------------------------------------------------- */

static void destroy_registered(sim_region *region)
{
    if (region->device_address != 0) {
        sim_window_release(SIM_WINDOW_DEVICE, region->device_address, region->size);
    }
    free(region);
}

/* Where the device would see it. Nothing is mapped there: copies take the host's address. */
static aclError give_address(sim_region *region)
{
    region->device_address = sim_window_take(SIM_WINDOW_DEVICE, region->size, SIM_PAGE, 0, 0);
    return region->device_address != 0 ? ACL_SUCCESS
                                       : sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no addresses for %zu bytes",
                                                  region->size);
}

static bool is_registered_in(const sim_region *region, const void *range)
{
    const uintptr_t *ends = range;

    return region->base < ends[1] && ends[0] < region->base + region->size;
}

static aclError check_foreign(void *ptr, uint64_t size)
{
    int32_t device;

    SIM_NOT_NULL(ptr);
    if (size == 0) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "the size is 0");
    }
    return sim_current_device(&device);
}

static aclError add(void *ptr, uint64_t size, bool mapped, void **device_ptr)
{
    const uintptr_t base = (uintptr_t)ptr;
    uintptr_t       ends[2];
    sim_region     *region;
    aclError        code;

    if (base % SIM_PAGE != 0) {
        return sim_fail(SIM_DRIVER_REFUSED, "%p is not on a page of %zu bytes", ptr, SIM_PAGE);
    }
    if (size > UINTPTR_MAX - SIM_PAGE - base || sim_window_holds(SIM_WINDOW_DEVICE, base)) {
        return sim_fail(SIM_DRIVER_REFUSED, "%p is not host memory of %llu bytes", ptr, (unsigned long long)size);
    }
    if (sim_option.old_kernel && !sim_window_holds(SIM_WINDOW_HOST, base)) {
        return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "this kernel takes memory of aclrtMallocHost only");
    }
    size    = sim_round_up(size, SIM_PAGE);
    ends[0] = base;
    ends[1] = base + size;
    region  = sim_region_find(SIM_REGISTERED, is_registered_in, ends);
    if (region != NULL) {
        code = sim_fail(ACL_ERROR_RT_HOST_MEMORY_ALREADY_REGISTERED, "%zu bytes at %#zx are registered already",
                        region->size, (size_t)region->base);
        sim_region_put(region);
        return code;
    }
    region = calloc(1, sizeof(*region));
    if (region == NULL) {
        return sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
    }
    *region = (sim_region){.kind = SIM_REGISTERED, .base = base, .size = size, .data = ptr, .page = SIM_PAGE,
                           .destroy = destroy_registered};
    if (mapped && (code = give_address(region)) != ACL_SUCCESS) {
        free(region);
        return code;
    }
    if (!sim_region_add(region)) {
        destroy_registered(region);
        return sim_fail(SIM_DRIVER_REFUSED, "%p is memory that the runtime manages itself", ptr);
    }
    if (device_ptr != NULL) {
        *device_ptr = (void *)region->device_address;
    }
    return ACL_SUCCESS;
}

aclError aclrtHostRegister(void *ptr, uint64_t size, aclrtHostRegisterType type, void **device_ptr)
{
    aclError code;

    SIM_ENTER(aclrtHostRegister);
    code = check_foreign(ptr, size);
    if (code != ACL_SUCCESS) {
        return code;
    }
    SIM_NOT_NULL(device_ptr);
    if (((uint32_t)type & ~(uint32_t)(ACL_HOST_REGISTER_IOMEMORY | ACL_HOST_REGISTER_READONLY)) != 0) {
        return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "there is no type %#x", (unsigned)type);
    }
    return add(ptr, size, true, device_ptr);
}

aclError aclrtHostRegisterV2(void *ptr, uint64_t size, uint32_t flag)
{
    const uint32_t known = ACL_HOST_REG_MAPPED | ACL_HOST_REG_IOMEMORY | ACL_HOST_REG_READONLY | ACL_HOST_REG_PINNED;
    aclError       code;

    SIM_ENTER(aclrtHostRegisterV2);
    code = check_foreign(ptr, size);
    if (code != ACL_SUCCESS) {
        return code;
    }
    if ((flag & ~known) != 0 || (flag & (ACL_HOST_REG_MAPPED | ACL_HOST_REG_PINNED)) == 0 ||
        ((flag & ACL_HOST_REG_PINNED) != 0 &&
         ((flag & ACL_HOST_REG_IOMEMORY) != 0 || sim_window_holds(SIM_WINDOW_HOST, (uintptr_t)ptr)))) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "the flags %#x do not go together, or not with %p", flag, ptr);
    }
    return add(ptr, size, (flag & ACL_HOST_REG_MAPPED) != 0, NULL);
}

static bool holds(const sim_region *region, const void *address)
{
    return (uintptr_t)address - region->base < region->size;
}

aclError aclrtHostGetDevicePointer(void *host, void **device_ptr, uint32_t reserved)
{
    sim_region *region;
    aclError    code = ACL_SUCCESS;

    SIM_ENTER(aclrtHostGetDevicePointer);
    SIM_NOT_NULL(host);
    SIM_NOT_NULL(device_ptr);
    if (reserved != 0) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "flag is %u, not 0", reserved);
    }
    region = sim_region_find(SIM_REGISTERED, holds, host);
    if (region == NULL || region->device_address == 0) {
        code = sim_fail(ACL_ERROR_RT_HOST_MEMORY_NOT_REGISTERED, "%p is not registered and mapped", host);
    } else {
        *device_ptr = (void *)(region->device_address + ((uintptr_t)host - region->base));
    }
    sim_region_put(region);
    return code;
}

static bool begins_at(const sim_region *region, const void *address)
{
    return region->base == (uintptr_t)address;
}

aclError aclrtHostUnregister(void *ptr)
{
    sim_region *region;
    int32_t     device;
    aclError    code;

    SIM_ENTER(aclrtHostUnregister);
    SIM_NOT_NULL(ptr);
    code = sim_current_device(&device);
    if (code != ACL_SUCCESS) {
        return code;
    }
    region = sim_region_find(SIM_REGISTERED, begins_at, ptr);
    if (region == NULL || !sim_region_remove(region)) {
        sim_region_put(region);
        return sim_fail(ACL_ERROR_RT_HOST_MEMORY_NOT_REGISTERED, "no registered memory begins at %p", ptr);
    }
    sim_region_put(region);
    sim_region_put(region);
    return ACL_SUCCESS;
}
