/* Memory of other processes by key. */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static aclError check_exportable(const sim_region *region, uintptr_t address, size_t size)
{
    if (region == NULL || region->kind == SIM_HOST_MEMORY || region->kind == SIM_REGISTERED) {
        return sim_fail(SIM_DRIVER_REFUSED, "%#zx is not device memory", (size_t)address);
    }
    if (region->kind == SIM_IMPORTED) {
        return sim_fail(SIM_DRIVER_REFUSED, "%#zx was imported from another process", (size_t)address);
    }
    if (region->kind == SIM_MAPPED || region->no_write) {
        return sim_fail(SIM_DRIVER_REFUSED, "%#zx is %s", (size_t)address,
                        region->kind == SIM_MAPPED ? "mapped physical memory" : "read-only");
    }
    if (address % region->page != 0) {
        return sim_fail(SIM_DRIVER_REFUSED, "%#zx is not on a page of its memory, which are of %zu bytes",
                        (size_t)address, region->page);
    }
    if (size > region->size - (address - region->base)) {
        return sim_fail(SIM_DRIVER_REFUSED, "%zu bytes at %#zx go past the %zu bytes at %#zx", size, (size_t)address,
                        region->size, (size_t)region->base);
    }
    return ACL_SUCCESS;
}

static aclError export(sim_region *region, uintptr_t address, size_t size, bool open_to_all, char *name)
{
    const sim_key key   = {.kind = SIM_KEY_IPC, .fd = region->fd, .inode = region->inode,
                           .offset = address - region->base, .size = size, .device = region->device,
                           .page = region->page, .open_to_all = open_to_all};
    sim_table    *table = sim_machine_lock();
    sim_key      *row;

    if (table == NULL) {
        return sim_fail(ACL_ERROR_UNINITIALIZE, "the runtime was finalized meanwhile");
    }
    region->exported = true;
    row              = sim_key_add(table, &key);
    if (row == NULL) {
        sim_machine_reap(table);
        row = sim_key_add(table, &key);
    }
    if (row != NULL) {
        memcpy(name, row->name, SIM_KEY_LENGTH);
    }
    sim_machine_unlock();
    return row != NULL ? ACL_SUCCESS
                       : sim_fail(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "the machine has %d keys already", SIM_MAX_KEYS);
}

aclError aclrtIpcMemGetExportKey(void *ptr, size_t size, char *key, size_t key_length, uint64_t flags)
{
    sim_region *region;
    char        name[SIM_KEY_LENGTH];
    int32_t     device;
    aclError    code;

    SIM_ENTER(aclrtIpcMemGetExportKey);
    SIM_NOT_NULL(ptr);
    SIM_NOT_NULL(key);
    if (size == 0) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "the size is 0");
    }
    if (key_length < SIM_KEY_LENGTH || (flags & ~(uint64_t)ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION) != 0) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "the room is %zu of %d characters, or there are no flags %#llx",
                        key_length, SIM_KEY_LENGTH, (unsigned long long)flags);
    }
    code = sim_current_device(&device);
    if (code != ACL_SUCCESS) {
        return code;
    }
    region = sim_region_get((uintptr_t)ptr);
    code   = check_exportable(region, (uintptr_t)ptr, size);
    if (code == ACL_SUCCESS) {
        code = export(region, (uintptr_t)ptr, size, flags != 0, name);
    }
    sim_region_put(region);
    if (code == ACL_SUCCESS) {
        strcpy(key, name);
    }
    return code;
}

static aclError check_key(const char *key)
{
    SIM_NOT_NULL(key);
    if (*key == '\0' || strnlen(key, SIM_KEY_LENGTH) >= SIM_KEY_LENGTH) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "a key has 1 to %d characters", SIM_KEY_LENGTH - 1);
    }
    return ACL_SUCCESS;
}

/* The row of a key, with the machine locked if it is found. */
static aclError find_locked(const char *key, sim_table **table_p, sim_key **row_p)
{
    sim_table *table = sim_machine_lock();

    if (table == NULL) {
        return sim_fail(ACL_ERROR_UNINITIALIZE, "the runtime was finalized meanwhile");
    }
    *row_p = sim_key_find(table, SIM_KEY_IPC, key);
    if (*row_p == NULL) {
        sim_machine_unlock();
        return sim_fail(SIM_DRIVER_REFUSED, "there is no key '%s'", key);
    }
    *table_p = table;
    return ACL_SUCCESS;
}

aclError aclrtIpcMemSetImportPid(const char *key, int32_t *pids, size_t count)
{
    sim_table *table;
    sim_key   *row;
    int32_t    device;
    aclError   code;

    SIM_ENTER(aclrtIpcMemSetImportPid);
    SIM_NOT_NULL(pids);
    code = check_key(key);
    if (code == ACL_SUCCESS && (count == 0 || count > SIM_MAX_PIDS)) {
        code = sim_fail(ACL_ERROR_RT_PARAM_INVALID, "%zu processes are not 1 to %d", count, SIM_MAX_PIDS);
    }
    if (code != ACL_SUCCESS || (code = sim_current_device(&device)) != ACL_SUCCESS) {
        return code;
    }
    code = find_locked(key, &table, &row);
    if (code == ACL_SUCCESS) {
        code = sim_key_admit(row, pids, count);
        sim_machine_unlock();
    }
    return code;
}

/* ---- import ------------------------------------------------------------------------------------------------------ */

static void destroy(sim_region *region)
{
    sim_window_release(SIM_WINDOW_DEVICE, region->base, region->size);
    close(region->fd);
    free(region);
}

static bool is_import_of(const sim_region *region, const void *key)
{
    return strcmp(region->key, key) == 0;
}

static aclError map_import(sim_region *region, void **ptr)
{
    aclError code;

    region->base = sim_window_take(SIM_WINDOW_DEVICE, region->size, region->page, 0, 0);
    if (region->base == 0) {
        code = sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "no addresses for %zu bytes", region->size);
        goto err_free;
    }
    region->data = sim_window_map(region->base, region->size, region->page, region->fd, region->file_offset);
    if (region->data == NULL || !sim_region_add(region)) {
        code = sim_fail(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "mmap: %s", strerror(errno));
        goto err_release;
    }
    *ptr = (void *)region->base;
    return ACL_SUCCESS;

err_release:
    sim_window_release(SIM_WINDOW_DEVICE, region->base, region->size);
err_free:
    close(region->fd);
    free(region);
    return code;
}

static aclError import(void **ptr, const char *key, int32_t device, bool enable)
{
    sim_region *region = calloc(1, sizeof(*region));
    sim_table  *table;
    sim_key    *row;
    aclError    code;

    if (region == NULL) {
        return sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
    }
    code = find_locked(key, &table, &row);
    if (code == ACL_SUCCESS) {
        if (enable) {
            code = sim_peer_enable(device, row->device);
        }
        if (code == ACL_SUCCESS) {
            code = sim_key_open(row, &region->fd);
        }
        region->kind        = SIM_IMPORTED;
        region->size        = row->size;
        region->page        = row->page;
        region->device      = row->device;
        region->home        = device;
        region->inode       = row->inode;
        region->file_offset = row->offset;
        region->destroy     = destroy;
        strcpy(region->key, row->name);
        sim_machine_unlock();
    }
    if (code != ACL_SUCCESS) {
        free(region);
        return code;
    }
    return map_import(region, ptr);
}

aclError aclrtIpcMemImportByKey(void **ptr, const char *key, uint64_t flags)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER; /* of two imports of a key one is the second */
    sim_region            *before;
    int32_t                device;
    aclError               code;

    SIM_ENTER(aclrtIpcMemImportByKey);
    SIM_NOT_NULL(ptr);
    code = check_key(key);
    if (code == ACL_SUCCESS && (flags & ~(uint64_t)ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS) != 0) {
        code = sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there are no flags %#llx", (unsigned long long)flags);
    }
    if (code != ACL_SUCCESS || (code = sim_current_device(&device)) != ACL_SUCCESS) {
        return code;
    }
    pthread_mutex_lock(&once);
    before = sim_region_find(SIM_IMPORTED, is_import_of, key);
    if (before != NULL) {
        sim_region_put(before);
        code = sim_fail(SIM_DRIVER_REFUSED, "this process has imported key '%s' already", key);
    } else {
        code = import(ptr, key, device, flags != 0);
    }
    pthread_mutex_unlock(&once);
    return code;
}

/* What it closes depends on who calls: an import if there is one, otherwise the key itself, by its maker only. */
aclError aclrtIpcMemClose(const char *key)
{
    sim_region *imported;
    sim_table  *table;
    sim_key    *row;
    int32_t     device;
    aclError    code;

    SIM_ENTER(aclrtIpcMemClose);
    code = check_key(key);
    if (code != ACL_SUCCESS || (code = sim_current_device(&device)) != ACL_SUCCESS) {
        return code;
    }
    imported = sim_region_find(SIM_IMPORTED, is_import_of, key);
    if (imported != NULL) {
        if (sim_region_remove(imported)) {
            sim_region_put(imported);
        }
        sim_region_put(imported);
        return ACL_SUCCESS;
    }
    code = find_locked(key, &table, &row);
    if (code != ACL_SUCCESS) {
        return code;
    }
    if (sim_key_mine(row)) {
        sim_key_remove(table, row);
    } else {
        code = sim_fail(SIM_DRIVER_REFUSED, "key '%s' is of process %d, and not imported here", key, row->pid);
    }
    sim_machine_unlock();
    return code;
}
