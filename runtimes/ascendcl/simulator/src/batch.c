/* Copies in batches: one direction, H2D or D2H, every item checked before any is done. */
#include "sim.h"

#include <stdlib.h>

typedef struct {
    void                **dsts;
    size_t               *dst_maxs;
    void                **srcs;
    size_t               *sizes;
    size_t                count;
    aclrtMemcpyBatchAttr *attrs;
    size_t               *starts;
    size_t                num_attrs;
    aclrtMemcpyKind       kind;
    bool                  pageable;
} batch;

static aclError check_attributes(batch *all)
{
    for (size_t index = 0; index < all->num_attrs; ++index) {
        const aclrtMemcpyBatchAttr *attr = &all->attrs[index];
        const bool                  to   = attr->dstLoc.type == ACL_MEM_LOCATION_TYPE_DEVICE;
        const bool                  from = attr->srcLoc.type == ACL_MEM_LOCATION_TYPE_DEVICE;
        const aclrtMemcpyKind       kind = to ? ACL_MEMCPY_HOST_TO_DEVICE : ACL_MEMCPY_DEVICE_TO_HOST;

        if (index == 0 ? all->starts[0] != 0
                       : all->starts[index] <= all->starts[index - 1] || all->starts[index] >= all->count) {
            return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "the starts do not rise from 0 to below %zu", all->count);
        }
        if (to == from) {
            return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "a batch goes from host to device or back");
        }
        if (index > 0 && kind != all->kind) {
            return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "a batch has one direction; attribute %zu has another", index);
        }
        all->kind = kind;
    }
    return ACL_SUCCESS;
}

static aclError check_item(batch *all, size_t index)
{
    const bool  to_device = all->kind == ACL_MEMCPY_HOST_TO_DEVICE;
    const void *device = to_device ? all->dsts[index] : all->srcs[index];
    const void *host   = to_device ? all->srcs[index] : all->dsts[index];
    sim_region *region;

    if (all->dsts[index] == NULL || all->srcs[index] == NULL) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "an address of item %zu is NULL", index);
    }
    if (all->sizes[index] > all->dst_maxs[index]) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "the %zu bytes of item %zu are more than its target's %zu",
                        all->sizes[index], index, all->dst_maxs[index]);
    }
    if (!sim_window_holds(SIM_WINDOW_DEVICE, (uintptr_t)device) ||
        sim_window_holds(SIM_WINDOW_DEVICE, (uintptr_t)host)) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "item %zu is not where its attribute says", index);
    }
    region         = sim_region_get((uintptr_t)host);
    all->pageable |= region == NULL;
    sim_region_put(region);
    return ACL_SUCCESS;
}

static aclError check(batch *all, size_t *fail_index)
{
    aclError code;

    SIM_NOT_NULL(all->dsts);
    SIM_NOT_NULL(all->dst_maxs);
    SIM_NOT_NULL(all->srcs);
    SIM_NOT_NULL(all->sizes);
    SIM_NOT_NULL(all->attrs);
    SIM_NOT_NULL(all->starts);
    SIM_NOT_NULL(fail_index);
    *fail_index = SIZE_MAX;
    if (all->count == 0 || all->num_attrs == 0 || all->num_attrs > all->count) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there are %zu attributes for %zu items", all->num_attrs,
                        all->count);
    }
    code = check_attributes(all);
    for (size_t index = 0; code == ACL_SUCCESS && index < all->count; ++index) {
        code = check_item(all, index);
        if (code != ACL_SUCCESS) {
            *fail_index = index;
        }
    }
    return code;
}

static aclError copy_now(const batch *all, int32_t device, size_t *fail_index)
{
    sim_piece *pieces = calloc(all->count, sizeof(*pieces));
    aclError   code   = ACL_SUCCESS;
    size_t     made   = 0;

    if (pieces == NULL) {
        return sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
    }
    while (made < all->count && code == ACL_SUCCESS) {
        code = sim_piece_make(device, (uintptr_t)all->dsts[made], (uintptr_t)all->srcs[made], all->sizes[made],
                              all->kind, true, &pieces[made]);
        if (code == ACL_SUCCESS) {
            ++made;
        } else {
            *fail_index = made;
        }
    }
    if (code == ACL_SUCCESS) {
        sim_crew_copy(pieces, made);
    }
    while (made > 0) {
        sim_piece_put(&pieces[--made]);
    }
    free(pieces);
    return code;
}

static aclError submit(const batch *all, sim_stream *stream)
{
    sim_task *first = NULL, *last = NULL;
    uint64_t  place;
    aclError  code;

    for (size_t index = 0; index < all->count; ++index) {
        sim_task *task = malloc(sizeof(*task));

        if (task == NULL) {
            sim_tasks_free(first, NULL);
            return sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
        }
        *task = (sim_task){.kind = SIM_TASK_COPY, .to = (uintptr_t)all->dsts[index],
                           .from = (uintptr_t)all->srcs[index], .size = all->sizes[index], .direction = all->kind};
        if (last != NULL) {
            last->next = task;
        } else {
            first = task;
        }
        last = task;
    }
    code = sim_stream_submit(stream, first, last, all->count, &place);
    return code == ACL_SUCCESS && all->pageable ? sim_stream_wait(stream, place, -1) : code;
}

aclError aclrtMemcpyBatch(void **dsts, size_t *dst_maxs, void **srcs, size_t *sizes, size_t num_batches,
                          aclrtMemcpyBatchAttr *attrs, size_t *attrs_indexes, size_t num_attrs, size_t *fail_index)
{
    batch    all = {dsts, dst_maxs, srcs, sizes, num_batches, attrs, attrs_indexes, num_attrs, 0, false};
    int32_t  device;
    aclError code;

    SIM_ENTER(aclrtMemcpyBatch);
    if ((code = check(&all, fail_index)) != ACL_SUCCESS || (code = sim_current_device(&device)) != ACL_SUCCESS) {
        return code;
    }
    return copy_now(&all, device, fail_index);
}

aclError aclrtMemcpyBatchAsync(void **dsts, size_t *dst_maxs, void **srcs, size_t *sizes, size_t num_batches,
                               aclrtMemcpyBatchAttr *attrs, size_t *attrs_indexes, size_t num_attrs, size_t *fail_index,
                               aclrtStream stream)
{
    batch       all = {dsts, dst_maxs, srcs, sizes, num_batches, attrs, attrs_indexes, num_attrs, 0, false};
    sim_stream *found;
    aclError    code;

    SIM_ENTER(aclrtMemcpyBatchAsync);
    if ((code = check(&all, fail_index)) != ACL_SUCCESS || (code = sim_stream_get(stream, &found)) != ACL_SUCCESS) {
        return code;
    }
    code = submit(&all, found);
    sim_object_put(&found->object);
    return code;
}
