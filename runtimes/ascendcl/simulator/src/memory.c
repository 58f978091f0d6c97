/* Device memory: pages, capacity, content. */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNIT ((size_t)32)        /* of sizes; aclrtMalloc adds one more */
#define HUGE_FIRST_FROM ((size_t)1 << 20)

/* Normal pages are never on 2 MiB by chance: who needs that must have asked for huge ones. */
#define NORMAL_STRIDE ((size_t)65536)

aclError sim_memory_open(size_t size, int *fd_p, uint64_t *inode_p)
{
    struct stat info;
    int         fd = memfd_create("aclsim", MFD_CLOEXEC);

    if (fd < 0) {
        return sim_fail(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "no descriptor for %zu bytes: %s", size, strerror(errno));
    }
    if (ftruncate(fd, (off_t)size) != 0 || fstat(fd, &info) != 0) {
        int status = errno;
        close(fd);
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no memory of %zu bytes: %s", size, strerror(status));
    }
    *fd_p    = fd;
    *inode_p = info.st_ino;
    return ACL_SUCCESS;
}

static void fill(char *data, size_t size)
{
    for (size_t at = 0; at < size; ++at) {
        data[at] = (char)(0xA5 ^ (at * 31 + at / 509));
    }
}

/* What fresh memory holds is undefined: zeros would let somebody rely on them. */
void sim_memory_fill(char *data, size_t size)
{
    if (sim_option.fill == SIM_FILL_ALL || (sim_option.fill == SIM_FILL_EDGES && size <= 2 * SIM_PAGE)) {
        fill(data, size);
    } else if (sim_option.fill == SIM_FILL_EDGES) {
        fill(data, SIM_PAGE);
        fill(data + size - SIM_PAGE, SIM_PAGE);
    }
}

static void destroy(sim_region *region)
{
    sim_window_release(SIM_WINDOW_DEVICE, region->base, region->size);
    close(region->fd);
    if (region->charged) {
        sim_refund(region->device, region->size);
    }
    free(region);
}

aclError sim_policy_page(uint32_t policy, size_t size, size_t *page_p)
{
    const uint32_t flags =
        ACL_MEM_TYPE_LOW_BAND_WIDTH | ACL_MEM_TYPE_HIGH_BAND_WIDTH | ACL_MEM_ACCESS_USER_SPACE_READONLY;

    switch (policy & ~flags) {
    case ACL_MEM_MALLOC_HUGE_FIRST:
    case ACL_MEM_MALLOC_HUGE_FIRST_P2P: *page_p = size > HUGE_FIRST_FROM ? SIM_HUGE_PAGE : SIM_PAGE; break;
    case ACL_MEM_MALLOC_HUGE_ONLY:
    case ACL_MEM_MALLOC_HUGE_ONLY_P2P: *page_p = SIM_HUGE_PAGE; break;
    case ACL_MEM_MALLOC_NORMAL_ONLY:
    case ACL_MEM_MALLOC_NORMAL_ONLY_P2P: *page_p = SIM_PAGE; break;
    case ACL_MEM_MALLOC_HUGE1G_ONLY:
    case ACL_MEM_MALLOC_HUGE1G_ONLY_P2P: *page_p = SIM_GIANT_PAGE; break;
    default: return sim_fail(ACL_ERROR_RT_INVALID_MALLOC_TYPE, "there is no policy %#x", policy);
    }
    return ACL_SUCCESS;
}

static aclError allocate(void **ptr, size_t size, size_t page, bool read_only, int32_t device)
{
    const size_t rounded = sim_round_up(size, page);
    sim_region  *region;
    aclError     code = sim_charge(device, rounded);

    if (code != ACL_SUCCESS) {
        return code;
    }
    region = calloc(1, sizeof(*region));
    if (region == NULL) {
        code = sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
        goto err_refund;
    }
    *region = (sim_region){.kind = SIM_DEVICE_MEMORY, .size = rounded, .page = page, .device = device, .home = device,
                           .no_write = read_only, .charged = true, .destroy = destroy};
    code    = sim_memory_open(rounded, &region->fd, &region->inode);
    if (code != ACL_SUCCESS) {
        goto err_free;
    }
    region->base = page == SIM_PAGE ? sim_window_take(SIM_WINDOW_DEVICE, rounded, NORMAL_STRIDE, SIM_PAGE, 0)
                                    : sim_window_take(SIM_WINDOW_DEVICE, rounded, page, 0, 0);
    if (region->base == 0) {
        code = sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no addresses for %zu bytes", rounded);
        goto err_close;
    }
    region->data = sim_window_map(region->base, rounded, page, region->fd, 0);
    if (region->data == NULL) {
        code = sim_fail(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "mmap: %s", strerror(errno));
        goto err_release;
    }
    sim_memory_fill(region->data, rounded);
    if (!sim_region_add(region)) {
        code = sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
        goto err_release;
    }
    *ptr = (void *)region->base;
    return ACL_SUCCESS;

err_release:
    sim_window_release(SIM_WINDOW_DEVICE, region->base, rounded);
err_close:
    close(region->fd);
err_free:
    free(region);
err_refund:
    sim_refund(device, rounded);
    return code;
}

aclError sim_memory_alloc(void **ptr, size_t size, uint32_t policy, int32_t device)
{
    const bool read_only = (policy & ACL_MEM_ACCESS_USER_SPACE_READONLY) != 0;
    size_t     page;
    aclError   code = sim_policy_page(policy, size, &page);

    if (code != ACL_SUCCESS) {
        return code;
    }
    if (size > sim_option.hbm) {
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "%zu bytes are more than device %d has: %llu", size, device,
                        (unsigned long long)sim_option.hbm);
    }
    code = allocate(ptr, size, page, read_only, device);
    if (code == ACL_ERROR_RT_MEMORY_ALLOCATION && page == SIM_HUGE_PAGE &&
        ((policy & 0xff) == ACL_MEM_MALLOC_HUGE_FIRST || (policy & 0xff) == ACL_MEM_MALLOC_HUGE_FIRST_P2P)) {
        char text[256];

        code = allocate(ptr, size, SIM_PAGE, read_only, device);
        if (code == ACL_SUCCESS) {
            sim_text_take(text, sizeof(text)); /* nothing failed after all */
        }
    }
    return code;
}

static aclError malloc_on_current(void **ptr, size_t size, uint32_t policy, size_t extra, int32_t device)
{
    int32_t  current;
    aclError code;

    SIM_NOT_NULL(ptr);
    if (size == 0) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "the size is 0");
    }
    code = sim_current_device(&current);
    if (code != ACL_SUCCESS) {
        return code;
    }
    if (size > SIZE_MAX / 4) {
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "%zu bytes are more than any device has", size);
    }
    return sim_memory_alloc(ptr, sim_round_up(size, UNIT) + extra, policy, device >= 0 ? device : current);
}

aclError aclrtMalloc(void **ptr, size_t size, aclrtMemMallocPolicy policy)
{
    SIM_ENTER(aclrtMalloc);
    return malloc_on_current(ptr, size, (uint32_t)policy, UNIT, -1);
}

aclError aclrtMallocAlign32(void **ptr, size_t size, aclrtMemMallocPolicy policy)
{
    SIM_ENTER(aclrtMallocAlign32);
    return malloc_on_current(ptr, size, (uint32_t)policy, 0, -1);
}

/* -1: no device named. */
static aclError read_config(const aclrtMallocConfig *config, int32_t *device_p)
{
    *device_p = -1;
    for (size_t index = 0; config != NULL && index < config->numAttrs; ++index) {
        SIM_NOT_NULL(config->attrs);
        switch (config->attrs[index].attr) {
        case ACL_RT_MEM_ATTR_RSV:
        case ACL_RT_MEM_ATTR_MODULE_ID:
        case ACL_RT_MEM_ATTR_VA_FLAG: break;
        case ACL_RT_MEM_ATTR_DEVICE_ID:
            *device_p = (int32_t)config->attrs[index].value.deviceId;
            if (!sim_device_exists(*device_p)) {
                return sim_device_check(*device_p);
            }
            break;
        default:
            return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no attribute %d", (int)config->attrs[index].attr);
        }
    }
    return ACL_SUCCESS;
}

aclError aclrtMallocWithCfg(void **ptr, size_t size, aclrtMemMallocPolicy policy, aclrtMallocConfig *config)
{
    int32_t  device;
    aclError code;

    SIM_ENTER(aclrtMallocWithCfg);
    code = read_config(config, &device);
    return code != ACL_SUCCESS ? code : malloc_on_current(ptr, size, (uint32_t)policy, UNIT, device);
}

aclError aclrtMallocHostWithCfg(void **ptr, uint64_t size, aclrtMallocConfig *config)
{
    int32_t  device;
    aclError code;

    SIM_ENTER(aclrtMallocHostWithCfg);
    code = read_config(config, &device);
    return code != ACL_SUCCESS ? code : sim_host_alloc(ptr, size);
}

/* Keys do not outlive the memory they open. */
static void remove_keys(const sim_region *region)
{
    sim_table *table = region->exported ? sim_machine_lock() : NULL;

    for (uint32_t row = table != NULL ? table->num_rows : 0; row > 0; --row) {
        sim_key *key = &table->keys[row - 1];

        if (key->kind == SIM_KEY_IPC && key->inode == region->inode && sim_key_mine(key)) {
            sim_key_remove(table, key);
        }
    }
    if (table != NULL) {
        sim_machine_unlock();
    }
}

aclError aclrtFree(void *ptr)
{
    sim_region *region;
    int32_t     device;
    aclError    code;

    SIM_ENTER(aclrtFree);
    SIM_NOT_NULL(ptr);
    code = sim_current_device(&device);
    if (code != ACL_SUCCESS) {
        return code;
    }
    region = sim_region_get((uintptr_t)ptr);
    if (region == NULL || region->kind != SIM_DEVICE_MEMORY || region->base != (uintptr_t)ptr ||
        !sim_region_remove(region)) {
        sim_region_put(region);
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "no allocation of aclrtMalloc begins at %p", ptr);
    }
    remove_keys(region);
    sim_region_put(region);
    sim_region_put(region);
    return ACL_SUCCESS;
}
