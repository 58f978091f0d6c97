/* Physical memory and addresses apart. Off unless ACLSIM_VMM=1. */
#include "vmm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef ACL_NO_VMM

#define SMALL_RANGE ((size_t)512 << 20)

/* Reserved addresses, few: a list. */
typedef struct reserved {
    struct reserved *next;
    uintptr_t        base;
    size_t           size;
} reserved;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static reserved       *ranges;

aclError sim_vmm_check(void)
{
    int32_t device;

    return sim_option.vmm ? sim_current_device(&device)
                          : sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "it is off without ACLSIM_VMM=1");
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

aclError aclrtReserveMemAddress(void **ptr, size_t size, size_t alignment, void *expected, uint64_t flags)
{
    const uintptr_t wanted = (uintptr_t)expected;
    size_t          unit   = SIM_HUGE_PAGE;
    reserved       *range;

    VMM_ENTER(aclrtReserveMemAddress);
    SIM_NOT_NULL(ptr);
    if (size == 0) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "the size is 0");
    }
    while (unit < size && unit < SMALL_RANGE) {
        unit *= 2;
    }
    unit = size > SMALL_RANGE ? SIM_GIANT_PAGE : unit;
    if (alignment != 0 || flags > 1 || wanted % unit != 0) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID,
                        "alignment %zu is not 0, flags %llu are not 0 or 1, or %p is not on %zu", alignment,
                        (unsigned long long)flags, expected, unit);
    }
    range = calloc(1, sizeof(*range));
    if (range == NULL) {
        return sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
    }
    range->size = sim_round_up(size, SIM_HUGE_PAGE);
    range->base = sim_window_take(SIM_WINDOW_DEVICE, range->size, unit, 0, wanted);
    if (range->base == 0) {
        free(range);
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no addresses for %zu bytes", size);
    }
    pthread_mutex_lock(&lock);
    range->next = ranges;
    ranges      = range;
    pthread_mutex_unlock(&lock);
    *ptr = (void *)range->base;
    return ACL_SUCCESS;
}

static bool is_reserved(uintptr_t base, size_t size)
{
    bool found = false;

    pthread_mutex_lock(&lock);
    for (const reserved *each = ranges; each != NULL; each = each->next) {
        found |= base >= each->base && size <= each->size && base - each->base <= each->size - size;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

aclError aclrtReleaseMemAddress(void *ptr)
{
    reserved  **link = &ranges, *range;
    sim_region *mapped;

    VMM_ENTER(aclrtReleaseMemAddress);
    SIM_NOT_NULL(ptr);
    pthread_mutex_lock(&lock);
    while (*link != NULL && (*link)->base != (uintptr_t)ptr) {
        link = &(*link)->next;
    }
    range  = *link;
    mapped = range != NULL ? sim_region_get_any(range->base, range->size) : NULL;
    if (range != NULL && mapped == NULL) {
        *link = range->next;
    }
    pthread_mutex_unlock(&lock);
    if (range == NULL || mapped != NULL) {
        sim_region_put(mapped);
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "%p %s", ptr,
                        range == NULL ? "was not reserved" : "is still mapped");
    }
    sim_window_release(SIM_WINDOW_DEVICE, range->base, range->size);
    free(range);
    return ACL_SUCCESS;
}

/* ---- physical memory --------------------------------------------------------------------------------------------- */

static size_t page_of(const aclrtPhysicalMemProp *prop)
{
    return prop->memAttr == ACL_HBM_MEM_HUGE1G || prop->memAttr == ACL_HBM_MEM_P2P_HUGE1G ||
                   prop->memAttr == ACL_MEM_HUGE1G || prop->memAttr == ACL_MEM_P2P_HUGE1G
               ? SIM_GIANT_PAGE
               : SIM_HUGE_PAGE;
}

void sim_physical_destroy(sim_object *object)
{
    sim_physical *memory = (sim_physical *)object;

    close(memory->fd);
    if (!memory->imported) {
        sim_refund(memory->device, memory->size);
    }
    free(memory);
}

static aclError check_prop(const aclrtPhysicalMemProp *prop)
{
    SIM_NOT_NULL(prop);
    if (prop->location.type != ACL_MEM_LOCATION_TYPE_DEVICE || (int)prop->memAttr < ACL_DDR_MEM ||
        prop->memAttr > ACL_MEM_P2P_HUGE1G) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no physical memory of location type %d and attribute %d",
                        (int)prop->location.type, (int)prop->memAttr);
    }
    return sim_device_check((int32_t)prop->location.id);
}

aclError sim_physical_publish(sim_physical *memory, aclrtDrvMemHandle *handle)
{
    void *made = sim_handle_add(&memory->object);

    if (made == NULL) {
        sim_physical_destroy(&memory->object);
        return sim_fail(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "there are too many handles");
    }
    *handle = made;
    return ACL_SUCCESS;
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle *handle, size_t size, const aclrtPhysicalMemProp *prop, uint64_t flags)
{
    sim_physical *memory;
    aclError  code;

    VMM_ENTER(aclrtMallocPhysical);
    SIM_NOT_NULL(handle);
    if (size == 0) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "the size is 0");
    }
    if (flags != 0) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "flags are not 0");
    }
    code = check_prop(prop);
    if (code != ACL_SUCCESS) {
        return code;
    }
    if (size % page_of(prop) != 0) {
        return sim_fail(SIM_DRIVER_REFUSED, "%zu bytes are not a multiple of %zu", size, page_of(prop));
    }
    code = sim_charge((int32_t)prop->location.id, size);
    if (code != ACL_SUCCESS) {
        return code;
    }
    memory = calloc(1, sizeof(*memory));
    if (memory != NULL) {
        code = sim_memory_open(size, &memory->fd, &memory->inode);
    }
    if (memory == NULL || code != ACL_SUCCESS) {
        sim_refund((int32_t)prop->location.id, size);
        free(memory);
        return code != ACL_SUCCESS ? code : sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
    }
    sim_object_init(&memory->object, SIM_PHYSICAL, sim_physical_destroy);
    memory->size   = size;
    memory->page   = page_of(prop);
    memory->device = (int32_t)prop->location.id;
    return sim_physical_publish(memory, handle);
}

aclError sim_physical_get(const void *handle, sim_physical **memory_p)
{
    SIM_NOT_NULL(handle);
    *memory_p = (sim_physical *)sim_handle_get(SIM_PHYSICAL, handle);
    return *memory_p != NULL ? ACL_SUCCESS
                             : sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "%p is no physical memory", handle);
}

/* A mapping keeps the memory; the handle is gone at once. */
aclError aclrtFreePhysical(aclrtDrvMemHandle handle)
{
    sim_physical  *memory;
    sim_table *table;
    sim_key   *row;

    VMM_ENTER(aclrtFreePhysical);
    SIM_NOT_NULL(handle);
    memory = (sim_physical *)sim_handle_remove(SIM_PHYSICAL, handle);
    if (memory == NULL) {
        return sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "%p is no physical memory", handle);
    }
    if (memory->exported != 0 && (table = sim_machine_lock()) != NULL) {
        row = sim_key_number(table, SIM_KEY_PHYSICAL, memory->exported);
        if (row != NULL && sim_key_mine(row)) {
            sim_key_remove(table, row);
        }
        sim_machine_unlock();
    }
    sim_object_put(&memory->object);
    return ACL_SUCCESS;
}

aclError aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp *prop, aclrtMemGranularityOptions option,
                                          size_t *granularity)
{
    aclError code;

    VMM_ENTER(aclrtMemGetAllocationGranularity);
    SIM_NOT_NULL(granularity);
    code = check_prop(prop);
    if (code == ACL_SUCCESS && option != ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM &&
        option != ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
        code = sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no option %d", (int)option);
    }
    if (code == ACL_SUCCESS) {
        *granularity = page_of(prop);
    }
    return code;
}

/* ---- mappings ---------------------------------------------------------------------------------------------------- */

static void destroy_mapping(sim_region *region)
{
    sim_physical *memory = region->physical;

    sim_window_unmap(region->base, region->size);
    memory->mapped = false;
    sim_object_put(&memory->object);
    free(region);
}

static aclError map(uintptr_t base, sim_physical *memory)
{
    sim_region *region = calloc(1, sizeof(*region));

    if (region == NULL) {
        return sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
    }
    *region      = (sim_region){.kind = SIM_MAPPED, .base = base, .size = memory->size, .page = memory->page,
                                .device = memory->device, .home = memory->device, .fd = memory->fd,
                                .inode = memory->inode, .physical = memory,
                                .destroy = destroy_mapping};
    region->data = sim_window_map(base, memory->size, memory->page, memory->fd, 0);
    if (region->data == NULL || !sim_region_add(region)) {
        free(region);
        return sim_fail(SIM_DRIVER_REFUSED, "something is mapped at %#zx already", (size_t)base);
    }
    sim_object_keep(&memory->object);
    return ACL_SUCCESS;
}

aclError aclrtMapMem(void *ptr, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags)
{
    sim_region *before;
    sim_physical   *memory;
    aclError    code;

    VMM_ENTER(aclrtMapMem);
    SIM_NOT_NULL(ptr);
    if (offset != 0 || flags != 0) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "offset and flags have to be 0");
    }
    code = sim_physical_get(handle, &memory);
    if (code != ACL_SUCCESS) {
        return code;
    }
    before = sim_region_get_any((uintptr_t)ptr, size);
    if (size != memory->size || (uintptr_t)ptr % memory->page != 0 || !is_reserved((uintptr_t)ptr, size) ||
        before != NULL || atomic_exchange(&memory->mapped, true)) {
        code = sim_fail(SIM_DRIVER_REFUSED,
                        "%zu bytes at %p are not reserved and free, on a page of %zu, and as large as the %zu of the "
                        "memory, or that is mapped already",
                        size, ptr, memory->page, memory->size);
    } else {
        code = map((uintptr_t)ptr, memory);
        if (code != ACL_SUCCESS) {
            memory->mapped = false;
        }
    }
    sim_region_put(before);
    sim_object_put(&memory->object);
    return code;
}

static aclError get_mapping(void *ptr, sim_region **region_p)
{
    sim_region *region;

    SIM_NOT_NULL(ptr);
    region = sim_region_get((uintptr_t)ptr);
    if (region == NULL || region->kind != SIM_MAPPED) {
        sim_region_put(region);
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "nothing is mapped at %p", ptr);
    }
    *region_p = region;
    return ACL_SUCCESS;
}

aclError aclrtUnmapMem(void *ptr)
{
    sim_region *region;
    aclError    code;

    VMM_ENTER(aclrtUnmapMem);
    code = get_mapping(ptr, &region);
    if (code != ACL_SUCCESS) {
        return code;
    }
    if (region->base != (uintptr_t)ptr || !sim_region_remove(region)) {
        code = sim_fail(ACL_ERROR_RT_PARAM_INVALID, "no mapping begins at %p", ptr);
    } else {
        sim_region_put(region);
    }
    sim_region_put(region);
    return code;
}

aclError aclrtMemSetAccess(void *ptr, size_t size, aclrtMemAccessDesc *descs, size_t count)
{
    sim_region *region;
    aclError    code;

    VMM_ENTER(aclrtMemSetAccess);
    SIM_NOT_NULL(descs);
    code = get_mapping(ptr, &region);
    if (code != ACL_SUCCESS) {
        return code;
    }
    if (region->base != (uintptr_t)ptr || size != region->size || count == 0) {
        code = sim_fail(ACL_ERROR_RT_PARAM_INVALID, "the access is set for whole mappings of %zu bytes", region->size);
    }
    for (size_t index = 0; index < count && code == ACL_SUCCESS; ++index) {
        const int flags = (int)descs[index].flags;

        if (flags != ACL_RT_MEM_ACCESS_FLAGS_NONE && flags != ACL_RT_MEM_ACCESS_FLAGS_READ &&
            flags != ACL_RT_MEM_ACCESS_FLAGS_READWRITE) {
            code = sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no access %d", flags);
        } else if (descs[index].location.type == ACL_MEM_LOCATION_TYPE_DEVICE) {
            region->no_read  = (flags & ACL_RT_MEM_ACCESS_FLAGS_READ) == 0;
            region->no_write = flags != ACL_RT_MEM_ACCESS_FLAGS_READWRITE;
        }
    }
    sim_region_put(region);
    return code;
}

aclError aclrtMemRetainAllocationHandle(void *ptr, aclrtDrvMemHandle *handle)
{
    sim_region *region;
    sim_physical   *memory;
    aclError    code;

    VMM_ENTER(aclrtMemRetainAllocationHandle);
    SIM_NOT_NULL(handle);
    code = get_mapping(ptr, &region);
    if (code != ACL_SUCCESS) {
        return code;
    }
    memory = region->physical;
    sim_object_keep(&memory->object); /* another handle of the same memory, to be freed as well */
    *handle = sim_handle_add(&memory->object);
    if (*handle == NULL) {
        sim_object_put(&memory->object);
        code = sim_fail(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "there are too many handles");
    }
    sim_region_put(region);
    return code;
}

#endif
