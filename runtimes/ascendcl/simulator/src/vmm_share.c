/* Physical memory for other processes, by handle. */
#include "vmm.h"

#include <stdlib.h>
#include <string.h>

#ifndef ACL_NO_VMM

static aclError check_type(aclrtMemSharedHandleType type)
{
    if (type == ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT) {
        return ACL_SUCCESS;
    }
    if (type == ACL_MEM_SHARE_HANDLE_TYPE_FABRIC) {
        return strncmp(sim_option.soc, "Ascend910_93", 12) == 0
                   ? ACL_SUCCESS
                   : sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "%s has no fabric handles", sim_option.soc);
    }
    return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no handle type %d", (int)type);
}

static aclError export(aclrtDrvMemHandle handle, uint64_t flags, uint64_t *number_p)
{
    sim_table *table;
    sim_physical  *memory;
    sim_key   *row;
    aclError   code;

    if ((flags & ~(uint64_t)ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION) != 0) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there are no flags %#llx", (unsigned long long)flags);
    }
    code = sim_physical_get(handle, &memory);
    if (code != ACL_SUCCESS) {
        return code;
    }
    table = sim_machine_lock();
    if (table == NULL || memory->exported != 0 || memory->imported) {
        code = sim_fail(SIM_DRIVER_REFUSED, "memory is exported once, by who made it");
    } else {
        const sim_key key = {.kind = SIM_KEY_PHYSICAL, .fd = memory->fd, .inode = memory->inode, .size = memory->size,
                             .device = memory->device, .page = memory->page, .open_to_all = flags != 0};

        row = sim_key_add(table, &key);
        if (row == NULL) {
            code = sim_fail(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "the machine has %d keys already", SIM_MAX_KEYS);
        } else {
            *number_p = memory->exported = row->number;
        }
    }
    if (table != NULL) {
        sim_machine_unlock();
    }
    sim_object_put(&memory->object);
    return code;
}

aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, aclrtMemHandleType type, uint64_t flags,
                                         uint64_t *shareable)
{
    VMM_ENTER(aclrtMemExportToShareableHandle);
    SIM_NOT_NULL(shareable);
    if (type != ACL_MEM_HANDLE_TYPE_NONE) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "handle type %d is not NONE", (int)type);
    }
    return export(handle, flags, shareable);
}

aclError aclrtMemExportToShareableHandleV2(aclrtDrvMemHandle handle, uint64_t flags, aclrtMemSharedHandleType type,
                                           void *shareable)
{
    uint64_t number;
    aclError code;

    VMM_ENTER(aclrtMemExportToShareableHandleV2);
    SIM_NOT_NULL(shareable);
    code = check_type(type);
    if (code == ACL_SUCCESS) {
        code = export(handle, flags, &number);
    }
    if (code == ACL_SUCCESS) {
        memset(shareable, 0, type == ACL_MEM_SHARE_HANDLE_TYPE_FABRIC ? sizeof(aclrtMemFabricHandle) : sizeof(number));
        memcpy(shareable, &number, sizeof(number));
    }
    return code;
}

static aclError import(uint64_t number, int32_t device, aclrtDrvMemHandle *handle)
{
    sim_table *table;
    sim_physical  *memory;
    sim_key   *row;
    aclError   code = sim_device_check(device);

    if (code != ACL_SUCCESS) {
        return code;
    }
    memory = calloc(1, sizeof(*memory));
    table  = memory != NULL ? sim_machine_lock() : NULL;
    if (table == NULL) {
        free(memory);
        return sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left, or the runtime was finalized");
    }
    row = sim_key_number(table, SIM_KEY_PHYSICAL, number);
    if (row == NULL || sim_key_mine(row)) {
        code = sim_fail(SIM_DRIVER_REFUSED, "%llu is no handle of another process", (unsigned long long)number);
    } else {
        code = sim_key_open(row, &memory->fd);
    }
    if (code == ACL_SUCCESS) {
        sim_object_init(&memory->object, SIM_PHYSICAL, sim_physical_destroy);
        memory->size     = row->size;
        memory->page     = row->page;
        memory->device   = row->device;
        memory->inode    = row->inode;
        memory->imported = true;
    }
    sim_machine_unlock();
    if (code != ACL_SUCCESS) {
        free(memory);
        return code;
    }
    return sim_physical_publish(memory, handle);
}

aclError aclrtMemImportFromShareableHandle(uint64_t shareable, int32_t device, aclrtDrvMemHandle *handle)
{
    VMM_ENTER(aclrtMemImportFromShareableHandle);
    SIM_NOT_NULL(handle);
    return import(shareable, device, handle);
}

aclError aclrtMemImportFromShareableHandleV2(void *shareable, aclrtMemSharedHandleType type, uint64_t flags,
                                             aclrtDrvMemHandle *handle)
{
    uint64_t number;
    int32_t  device;
    aclError code;

    VMM_ENTER(aclrtMemImportFromShareableHandleV2);
    SIM_NOT_NULL(shareable);
    SIM_NOT_NULL(handle);
    code = check_type(type);
    if (code == ACL_SUCCESS && flags != 0) {
        code = sim_fail(ACL_ERROR_RT_PARAM_INVALID, "flags are not 0");
    }
    if (code != ACL_SUCCESS || (code = sim_current_device(&device)) != ACL_SUCCESS) {
        return code;
    }
    memcpy(&number, shareable, sizeof(number));
    return import(number, device, handle);
}

static aclError admit(uint64_t number, const int32_t *pids, size_t count)
{
    sim_table *table;
    sim_key   *row;
    aclError   code;

    SIM_NOT_NULL(pids);
    if (count == 0 || count > SIM_MAX_PIDS) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "%zu processes are not 1 to %d", count, SIM_MAX_PIDS);
    }
    table = sim_machine_lock();
    row   = table != NULL ? sim_key_number(table, SIM_KEY_PHYSICAL, number) : NULL;
    code  = row == NULL ? sim_fail(SIM_DRIVER_REFUSED, "there is no handle %llu", (unsigned long long)number)
                        : sim_key_admit(row, pids, count);
    if (table != NULL) {
        sim_machine_unlock();
    }
    return code;
}

aclError aclrtMemSetPidToShareableHandle(uint64_t shareable, int32_t *pids, size_t count)
{
    VMM_ENTER(aclrtMemSetPidToShareableHandle);
    return admit(shareable, pids, count);
}

aclError aclrtMemSetPidToShareableHandleV2(void *shareable, aclrtMemSharedHandleType type, int32_t *pids, size_t count)
{
    uint64_t number;
    aclError code;

    VMM_ENTER(aclrtMemSetPidToShareableHandleV2);
    SIM_NOT_NULL(shareable);
    code = check_type(type);
    if (code != ACL_SUCCESS) {
        return code;
    }
    memcpy(&number, shareable, sizeof(number));
    return admit(number, pids, count);
}

#endif
