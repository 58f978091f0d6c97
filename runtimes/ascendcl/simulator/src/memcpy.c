/* The rules of copies, and the copies that the caller waits for. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static bool is_device(const sim_region *region)
{
    return region != NULL && region->kind != SIM_HOST_MEMORY;
}

/* What is at one end: a region, or none for memory of the user. */
static aclError look_up(uintptr_t address, size_t size, bool write, sim_region **region_p)
{
    sim_region *region = sim_region_get(address);
    aclError    code   = ACL_SUCCESS;

    *region_p = NULL;
    if (region != NULL && region->kind == SIM_REGISTERED) {
        sim_region_put(region); /* as good as any, and the user's to keep */
        return ACL_SUCCESS;
    }
    if (region == NULL) {
        return sim_window_holds(SIM_WINDOW_DEVICE, address) || sim_window_holds(SIM_WINDOW_HOST, address)
                   ? sim_fail(SIM_DRIVER_REFUSED, "nothing is allocated at %#zx", (size_t)address)
                   : ACL_SUCCESS;
    }
    if (size > region->size - (address - region->base)) {
        code = sim_fail(SIM_DRIVER_REFUSED, "%zu bytes at %#zx go past the %zu bytes at %#zx", size, (size_t)address,
                        region->size, (size_t)region->base);
    } else if (write ? region->no_write : region->no_read) {
        code = sim_fail(SIM_DRIVER_REFUSED, "the memory at %#zx does not allow %s", (size_t)address,
                        write ? "writing" : "reading");
    }
    if (code != ACL_SUCCESS) {
        sim_region_put(region);
        return code;
    }
    *region_p = region;
    return ACL_SUCCESS;
}

static aclError check_kind(const sim_piece *piece, aclrtMemcpyKind kind)
{
    const bool to = is_device(piece->to_region), from = is_device(piece->from_region);
    bool       right;

    switch (kind) {
    case ACL_MEMCPY_HOST_TO_DEVICE:
    case ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE: right = to && !from; break;
    case ACL_MEMCPY_DEVICE_TO_HOST: right = !to && from; break;
    case ACL_MEMCPY_DEFAULT:
        if ((to && piece->to_region->kind == SIM_IMPORTED) || (from && piece->from_region->kind == SIM_IMPORTED)) {
            return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "imported memory needs its direction named");
        }
        return to || from ? ACL_SUCCESS
                          : sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "a copy from host to host is not asynchronous");
    default: right = to && from; break;
    }
    return right ? ACL_SUCCESS
                 : sim_fail(SIM_DRIVER_REFUSED, "the kind is %d, but the copy goes from %s to %s memory", (int)kind,
                            from ? "device" : "host", to ? "device" : "host");
}

static aclError check_reach(int32_t device, const sim_piece *piece, bool strictly)
{
    const sim_region *to = piece->to_region, *from = piece->from_region;
    aclError          code = ACL_SUCCESS;

    if (is_device(to) && is_device(from)) {
        if (!strictly && to->device == from->device) {
            return ACL_SUCCESS; /* the driver goes by the addresses */
        }
        code = sim_peer_check(device, to->device);
        return code != ACL_SUCCESS ? code : sim_peer_check(device, from->device);
    }
    to = is_device(to) ? to : from;
    if (is_device(to) && to->kind == SIM_IMPORTED && to->device != device) {
        code = sim_fail(SIM_DRIVER_REFUSED,
                        "device %d does not copy between the host and memory imported from device %d", device,
                        to->device);
    }
    return code;
}

void sim_piece_put(sim_piece *piece)
{
    sim_region_put(piece->to_region);
    sim_region_put(piece->from_region);
}

aclError sim_piece_make(int32_t device, uintptr_t to, uintptr_t from, size_t size, aclrtMemcpyKind kind, bool strictly,
                        sim_piece *piece_p)
{
    sim_piece piece = {.size = size};
    aclError  code  = look_up(to, size, true, &piece.to_region);

    if (code == ACL_SUCCESS) {
        code = look_up(from, size, false, &piece.from_region);
    }
    if (code == ACL_SUCCESS && strictly) {
        code = check_kind(&piece, kind);
    }
    if (code == ACL_SUCCESS) {
        code = check_reach(device, &piece, strictly);
    }
    if (code != ACL_SUCCESS) {
        sim_piece_put(&piece);
        return code;
    }
    piece.to   = piece.to_region != NULL ? piece.to_region->data + (to - piece.to_region->base) : (char *)to;
    piece.from = piece.from_region != NULL ? piece.from_region->data + (from - piece.from_region->base)
                                           : (const char *)from;
    *piece_p   = piece;
    return ACL_SUCCESS;
}

static aclError check_arguments(const void *dst, size_t dst_max, const void *src, size_t count, int kind)
{
    SIM_NOT_NULL(dst);
    SIM_NOT_NULL(src);
    if (count > dst_max) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "%zu bytes are more than the target's %zu", count, dst_max);
    }
    if (kind < ACL_MEMCPY_HOST_TO_HOST || kind > ACL_MEMCPY_INTER_DEVICE_TO_DEVICE) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no kind %d", kind);
    }
    return ACL_SUCCESS;
}

aclError aclrtMemcpy(void *dst, size_t dst_max, const void *src, size_t count, aclrtMemcpyKind kind)
{
    sim_piece piece;
    int32_t   device;
    aclError  code;

    SIM_ENTER(aclrtMemcpy);
    if ((code = check_arguments(dst, dst_max, src, count, (int)kind)) != ACL_SUCCESS ||
        (code = sim_current_device(&device)) != ACL_SUCCESS || count == 0 || dst == src) {
        return code;
    }
    code = sim_piece_make(device, (uintptr_t)dst, (uintptr_t)src, count, kind, false, &piece);
    if (code == ACL_SUCCESS) {
        sim_crew_copy(&piece, 1);
        sim_piece_put(&piece);
    }
    return code;
}

/* Host memory that the runtime does not know is not there for a stream to read later. */
static bool pageable(const void *address)
{
    sim_region *region = sim_region_get((uintptr_t)address);
    const bool  known  = region != NULL || sim_window_holds(SIM_WINDOW_DEVICE, (uintptr_t)address);

    sim_region_put(region);
    return !known;
}

aclError aclrtMemcpyAsync(void *dst, size_t dst_max, const void *src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream)
{
    sim_stream *found;
    sim_task   *task;
    uint64_t    place;
    bool        wait;
    aclError    code;

    SIM_ENTER(aclrtMemcpyAsync);
    if ((code = check_arguments(dst, dst_max, src, count, (int)kind)) != ACL_SUCCESS) {
        return code;
    }
    if (kind == ACL_MEMCPY_HOST_TO_HOST) {
        return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "a copy from host to host is not asynchronous");
    }
    code = sim_stream_get(stream, &found);
    if (code != ACL_SUCCESS) {
        return code;
    }
    if (count == 0 || dst == src) {
        goto out;
    }
    task = malloc(sizeof(*task));
    if (task == NULL) {
        code = sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
        goto out;
    }
    *task = (sim_task){.kind = SIM_TASK_COPY, .to = (uintptr_t)dst, .from = (uintptr_t)src, .size = count,
                       .direction = kind};
    wait  = kind != ACL_MEMCPY_DEVICE_TO_DEVICE && (pageable(dst) || pageable(src));
    code  = sim_stream_submit(found, task, task, 1, &place);
    if (code == ACL_SUCCESS && wait) {
        code = sim_stream_wait(found, place, -1);
    }
out:
    sim_object_put(&found->object);
    return code;
}

aclError aclrtMemset(void *ptr, size_t max_count, int32_t value, size_t count)
{
    sim_region *region;
    int32_t     device;
    aclError    code;

    SIM_ENTER(aclrtMemset);
    SIM_NOT_NULL(ptr);
    if (count > max_count) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "%zu bytes are more than the memory's %zu", count, max_count);
    }
    if ((code = sim_current_device(&device)) != ACL_SUCCESS || count == 0) {
        return code;
    }
    code = look_up((uintptr_t)ptr, count, true, &region);
    if (code == ACL_SUCCESS && is_device(region) && region->device != device && region->kind == SIM_IMPORTED) {
        code = sim_fail(SIM_DRIVER_REFUSED, "device %d does not set memory imported from device %d", device,
                        region->device);
    } else if (code == ACL_SUCCESS) {
        memset(region != NULL ? region->data + ((uintptr_t)ptr - region->base) : ptr, value, count);
    }
    sim_region_put(region);
    return code;
}
