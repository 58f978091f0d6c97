/* Batches: lists of items, and running through a stretch of them. */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int sum_part(const cfw_part *part, uint64_t *bytes)
{
    if (part->op > CFW_NET_WRITE) {
        return -EINVAL;
    }
    if (part->count == 0) {
        return 0;
    }
    if (part->local == NULL || part->remote == NULL || part->length == NULL) {
        return -EINVAL;
    }
    for (uint64_t item = 0; item < part->count; ++item) {
        if (__builtin_add_overflow(*bytes, part->length[item], bytes)) {
            return -EOVERFLOW;
        }
    }
    return 0;
}

int cfw_batch_create(const cfw_part *parts, uint32_t num_parts, cfw_batch **batch_p)
{
    cfw_batch *batch;
    uint64_t   bytes = 0;

    if (parts == NULL && num_parts > 0) {
        return -EINVAL;
    }
    for (uint32_t index = 0; index < num_parts; ++index) {
        int status = sum_part(&parts[index], &bytes);

        /* What goes to a peer goes as a whole, and one way. */
        if (status == 0 && (parts[index].op >= CFW_NET_READ || parts->op >= CFW_NET_READ) &&
            parts[index].op != parts->op) {
            status = -EINVAL;
        }
        if (status != 0) {
            return status;
        }
    }
    batch = malloc(sizeof(*batch) + num_parts * sizeof(*parts));
    if (batch == NULL) {
        return -ENOMEM;
    }
    batch->bytes     = bytes;
    batch->num_parts = num_parts;
    batch->net       = num_parts > 0 && parts->op >= CFW_NET_READ;
    batch->streaming = bytes >= CFW_STREAM_BATCH;
    batch->from      = NULL;
    batch->to        = NULL;
    if (num_parts == 1 && parts->count == 1 && parts->op <= CFW_COPY_OUT && bytes > 0 &&
        !batch->streaming) {
        bool in = parts->op == CFW_COPY_IN;

        batch->to   = (void *)(uintptr_t)(in ? *parts->local : *parts->remote);
        batch->from = (const void *)(uintptr_t)(in ? *parts->remote : *parts->local);
    }
    if (num_parts > 0) {
        memcpy(batch->parts, parts, num_parts * sizeof(*parts));
    }
    *batch_p = batch;
    return 0;
}

void cfw_batch_destroy(cfw_batch *batch)
{
    free(batch);
}

uint64_t cfw_batch_bytes(const cfw_batch *batch)
{
    return batch->bytes;
}

void cfw_place_settle(const cfw_batch *batch, cfw_place *place)
{
    for (;;) {
        const cfw_part *part = &batch->parts[place->part];

        if (place->item == part->count) {
            place->part++;
            place->item = 0;
        } else if (place->offset == part->length[place->item]) {
            place->item++;
        } else {
            return;
        }
        place->offset = 0;
    }
}

uint64_t cfw_place_advance(const cfw_batch *batch, cfw_place *place, uint64_t bytes,
                           uint64_t max_items)
{
    uint64_t gone = 0;

    while (gone < bytes && max_items-- > 0) {
        uint64_t size;

        cfw_place_settle(batch, place);
        size = batch->parts[place->part].length[place->item] - place->offset;
        if (size > bytes - gone) {
            size = bytes - gone;
        }
        place->offset += size;
        gone          += size;
    }
    return gone;
}

int cfw_batch_move(const cfw_batch *batch, cfw_place place, uint64_t bytes, cfw_result *result)
{
    uint64_t left = bytes;

    while (left > 0) {
        const cfw_part *part  = &batch->parts[place.part];
        cfw_place       begin = place;
        uint64_t        here, moved, item;
        int             status;

        if (part->count == 0) {
            place.part++;
            continue;
        }
        /* Up to the end of the part, or of the stretch. */
        here = 0;
        for (; here < left && place.item < part->count; ++place.item) {
            here += part->length[place.item] - place.offset;
            place.offset = 0;
        }
        if (here > left) {
            here = left;
        }
        if (part->op <= CFW_COPY_OUT) {
            cfw_copy_move(part, begin.item, begin.offset, here, batch->streaming);
        } else {
            status = cfw_cma_move(part, begin.item, begin.offset, here, &moved, &item);
            if (status != 0) {
                *result = (cfw_result){.status = status,
                                       .part   = begin.part,
                                       .item   = item,
                                       .bytes  = bytes - left + moved};
                return status;
            }
        }
        left      -= here;
        place.part = begin.part + 1;
        place.item = 0;
    }
    *result = (cfw_result){.bytes = bytes};
    return 0;
}

int cfw_batch_run(cfw_batch *batch, cfw_result *result_p)
{
    /* One small block is the commonest call of all, and looking it up costs as
     * much as copying it. */
    if (batch->to != NULL) {
        *result_p = (cfw_result){.bytes = batch->bytes};
        memcpy(batch->to, batch->from, batch->bytes);
        return 0;
    }
    if (batch->net) {
        *result_p = (cfw_result){.status = -EINVAL};
        return -EINVAL;
    }
    return cfw_batch_move(batch, (cfw_place){0}, batch->bytes, result_p);
}
