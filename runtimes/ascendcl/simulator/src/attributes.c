/* What the runtime says about a pointer, and about the memory of a device. */
#include "sim.h"

#include <string.h>

aclError aclrtPointerGetAttributes(const void *ptr, aclrtPtrAttributes *attributes)
{
    const uintptr_t    address = (uintptr_t)ptr;
    aclrtPtrAttributes found   = {{0, ACL_MEM_LOCATION_TYPE_UNREGISTERED}, 0, {0}};
    sim_region        *region;
    int32_t            device;
    aclError           code;

    SIM_ENTER(aclrtPointerGetAttributes);
    SIM_NOT_NULL(ptr);
    SIM_NOT_NULL(attributes);
    code = sim_current_device(&device);
    if (code != ACL_SUCCESS) {
        return code;
    }
    region = sim_region_get(address);
    if (region == NULL) {
        if (sim_window_holds(SIM_WINDOW_DEVICE, address) || sim_window_holds(SIM_WINDOW_HOST, address)) {
            return sim_fail(SIM_DRIVER_REFUSED, "nothing is allocated at %p", ptr);
        }
        found.location.type = sim_option.old_driver ? ACL_MEM_LOCATION_TYPE_HOST : ACL_MEM_LOCATION_TYPE_UNREGISTERED;
    } else if (region->kind == SIM_HOST_MEMORY || region->kind == SIM_REGISTERED) {
        found.location.type = ACL_MEM_LOCATION_TYPE_HOST;
        found.pageSize      = region->kind == SIM_HOST_MEMORY ? (uint32_t)region->page : 0;
    } else {
        found.location.type = ACL_MEM_LOCATION_TYPE_DEVICE;
        found.location.id   = (uint32_t)region->device;
        found.pageSize      = (uint32_t)region->page;
    }
    sim_region_put(region);
    *attributes = found;
    return ACL_SUCCESS;
}

aclError aclrtMemGetAddressRange(void *ptr, void **base, size_t *size)
{
    sim_region *region;
    int32_t     device;
    aclError    code;

    SIM_ENTER(aclrtMemGetAddressRange);
    SIM_NOT_NULL(ptr);
    code = sim_current_device(&device);
    if (code != ACL_SUCCESS) {
        return code;
    }
    region = sim_region_get((uintptr_t)ptr);
    if (region == NULL || region->kind == SIM_REGISTERED) {
        sim_region_put(region);
        return sim_fail(SIM_DRIVER_REFUSED, "%p is in no allocation of the runtime", ptr);
    }
    if (base != NULL) {
        *base = (void *)region->base;
    }
    if (size != NULL) {
        *size = region->size;
    }
    sim_region_put(region);
    return ACL_SUCCESS;
}

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t *free_bytes, size_t *total_bytes)
{
    sim_table *table;
    uint64_t   used;
    int32_t    device;
    aclError   code;

    SIM_ENTER(aclrtGetMemInfo);
    SIM_NOT_NULL(free_bytes);
    SIM_NOT_NULL(total_bytes);
    code = sim_current_device(&device);
    if (code != ACL_SUCCESS) {
        return code;
    }
    if ((int)attr < ACL_DDR_MEM || attr > ACL_MEM_P2P_HUGE1G) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no memory attribute %d", (int)attr);
    }
    table = sim_machine_lock();
    if (table == NULL) {
        return sim_fail(ACL_ERROR_UNINITIALIZE, "the runtime was finalized meanwhile");
    }
    sim_machine_reap(table);
    used         = sim_machine_used(table, device);
    *total_bytes = table->hbm;
    *free_bytes  = used < table->hbm ? table->hbm - used : 0;
    sim_machine_unlock();
    return ACL_SUCCESS;
}

int aclsimStats(int32_t device, aclsimStatistics *statistics)
{
    aclsimStatistics found = {0};
    sim_table       *table;

    if (statistics == NULL || statistics->size == 0 || sim_process_start() != ACL_SUCCESS ||
        (device != -1 && !sim_device_exists(device)) || (table = sim_machine_lock()) == NULL) {
        return -1;
    }
    sim_machine_reap(table);
    for (int32_t each = 0; each < (int32_t)table->devices; ++each) {
        if (device == -1 || device == each) {
            found.device_bytes  += sim_machine_slot()->used[each];
            found.machine_bytes += sim_machine_used(table, each);
            found.capacity      += table->hbm;
        }
    }
    for (unsigned index = 0; index < SIM_MAX_PROCESSES; ++index) {
        found.processes += table->slots[index].pid != 0;
    }
    for (uint32_t row = 0; row < table->num_rows; ++row) {
        const sim_key *key = &table->keys[row];

        found.machine_exports += key->kind != SIM_KEY_FREE;
        found.exports         += key->kind != SIM_KEY_FREE && sim_key_mine(key);
    }
    sim_machine_unlock();
    found.allocations      = sim_region_count(SIM_DEVICE_MEMORY, NULL) + sim_handle_count(SIM_PHYSICAL);
    found.host_allocations = sim_region_count(SIM_HOST_MEMORY, &found.host_bytes);
    found.registered       = sim_region_count(SIM_REGISTERED, NULL);
    found.imports          = sim_region_count(SIM_IMPORTED, NULL);
    found.contexts         = sim_handle_count(SIM_CONTEXT);
    found.streams          = sim_handle_count(SIM_STREAM);
    found.events           = sim_handle_count(SIM_EVENT);
    found.spaces           = sim_window_spaces();
    found.device_window    = sim_window_base(SIM_WINDOW_DEVICE);
    found.host_window      = sim_window_base(SIM_WINDOW_HOST);
    found.size             = statistics->size < sizeof(found) ? statistics->size : sizeof(found);
    memcpy(statistics, &found, found.size);
    return 0;
}
