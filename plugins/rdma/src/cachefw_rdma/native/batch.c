/* The peer's memory, and batches of items that lie in it. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- remotes ------------------------------------------------------------------------------------------------------- */

int cfw_channel_attach(cfw_channel *channel, uint64_t address, uint64_t length, const void *key, uint64_t size,
                       cfw_remote **remote_p)
{
    cfw_engine *engine = channel->engine;
    cfw_remote *remote = calloc(1, sizeof(*remote));
    int         status = 0;

    if (remote == NULL) {
        return CFW_RDMA_NO_MEMORY;
    }
    cfw_engine_enter(engine);
    if (size == 0 || length == 0 || address + length < address) {
        status = CFW_RDMA_INVALID;
    } else if (channel->closed || channel->ep == NULL) {
        status = CFW_RDMA_CLOSED;
    } else {
        status = engine->ucx->ucp_ep_rkey_unpack(channel->ep, key, &remote->rkey);
    }
    if (status == 0) {
        remote->channel = channel;
        remote->refs    = 1;
        remote->address = address;
        remote->length  = length;
        remote->next    = channel->remotes;
        if (remote->next != NULL) {
            remote->next->prev = remote;
        }
        channel->remotes = remote;
        channel->refs++;
    }
    cfw_engine_leave(engine);
    if (status != 0) {
        free(remote);
        return status;
    }
    *remote_p = remote;
    return 0;
}

static void drop_key(cfw_remote *remote)
{
    if (remote->rkey != NULL && remote->uses == 0) {
        remote->channel->engine->ucx->ucp_rkey_destroy(remote->rkey);
        remote->rkey = NULL;
    }
}

/* What jobs still use stays; where UCX never lets go of a job, it stays for good. */
void cfw_channel_drop_keys(cfw_channel *channel)
{
    for (cfw_remote *remote = channel->remotes; remote != NULL; remote = remote->next) {
        remote->gone = true;
        drop_key(remote);
    }
}

void cfw_remote_unuse(cfw_remote *remote)
{
    remote->uses--;
    if (remote->gone && !remote->channel->engine->stopping) {
        drop_key(remote);
    }
}

void cfw_remote_unref(cfw_remote *remote)
{
    cfw_channel *channel = remote->channel;

    if (--remote->refs > 0) {
        return;
    }
    if (channel->engine->worker != NULL) {
        drop_key(remote);
    }
    if (remote->prev != NULL) {
        remote->prev->next = remote->next;
    } else {
        channel->remotes = remote->next;
    }
    if (remote->next != NULL) {
        remote->next->prev = remote->prev;
    }
    free(remote);
    cfw_channel_unref(channel);
}

void cfw_remote_detach(cfw_remote *remote)
{
    cfw_engine *engine = remote->channel->engine;

    cfw_engine_enter(engine);
    remote->gone = true;
    if (engine->worker != NULL) {
        drop_key(remote);
    }
    cfw_engine_leave(engine);
}

void cfw_remote_release(cfw_remote *remote)
{
    cfw_engine *engine = remote->channel->engine;

    cfw_engine_enter(engine);
    cfw_remote_unref(remote);
    cfw_engine_leave(engine);
}

/* ---- batches ------------------------------------------------------------------------------------------------------- */

static int take_remote(cfw_batch *batch, cfw_remote *remote, uint64_t stamp, uint32_t *room_p)
{
    cfw_remote **remotes;

    if (remote->stamp == stamp) {
        return 0;
    }
    if (batch->num_remotes == *room_p) {
        uint32_t room = *room_p == 0 ? 4 : 2 * *room_p;

        remotes = realloc(batch->remotes, room * sizeof(*remotes));
        if (remotes == NULL) {
            return CFW_RDMA_NO_MEMORY;
        }
        batch->remotes = remotes;
        *room_p        = room;
    }
    remote->stamp = stamp;
    remote->refs++;
    batch->remotes[batch->num_remotes++] = remote;
    return 0;
}

static int take_item(cfw_batch *batch, const cfw_items *items, uint64_t index, cfw_item *item)
{
    uint32_t    row = items->row == NULL ? 0 : items->row[index];
    cfw_remote *where;
    uint64_t    before;

    if (row >= items->num_remotes) {
        return CFW_RDMA_INVALID;
    }
    where  = items->remotes[row];
    *item  = (cfw_item){items->local[index], items->remote[index], items->length[index], where};
    before = item->remote - where->address; /* wraps around when it lies in front */
    if (where->channel != batch->channel) {
        return CFW_RDMA_INVALID;
    }
    if (where->gone) {
        return CFW_RDMA_DETACHED;
    }
    if (before > where->length || item->length > where->length - before) {
        return CFW_RDMA_OUTSIDE;
    }
    if (__builtin_add_overflow(batch->bytes, item->length, &batch->bytes)) {
        return CFW_RDMA_INVALID;
    }
    batch->requests += item->length / batch->max_request + 1;
    return 0;
}

static int fill_batch(cfw_batch *batch, const cfw_items *items, uint64_t *item_p)
{
    uint64_t stamp = ++batch->channel->engine->stamp;
    uint32_t room  = 0;

    for (uint64_t index = 0; index < items->count; ++index) {
        int status = take_item(batch, items, index, &batch->items[index]);

        if (status == 0) {
            status = take_remote(batch, batch->items[index].where, stamp, &room);
        }
        if (status != 0) {
            *item_p = index;
            return status;
        }
    }
    return 0;
}

int cfw_batch_create(cfw_channel *channel, const cfw_items *items, cfw_batch **batch_p, uint64_t *item_p)
{
    cfw_engine *engine = channel->engine;
    cfw_batch  *batch;
    int         status;

    if (items->operation > CFW_WRITE || items->count > SIZE_MAX / 2 / sizeof(cfw_item)) {
        return CFW_RDMA_INVALID;
    }
    batch = malloc(sizeof(*batch) + items->count * sizeof(cfw_item));
    if (batch == NULL) {
        return CFW_RDMA_NO_MEMORY;
    }
    *batch = (cfw_batch){.channel     = channel,
                         .refs        = 1,
                         .operation   = items->operation,
                         .count       = items->count,
                         .max_request = items->max_request > 0 ? items->max_request : CFW_MAX_REQUEST};
    cfw_engine_enter(engine);
    channel->refs++;
    status = fill_batch(batch, items, item_p);
    if (status != 0) {
        cfw_batch_unref(batch);
    }
    cfw_engine_leave(engine);
    if (status == 0) {
        *batch_p = batch;
    }
    return status;
}

void cfw_batch_unref(cfw_batch *batch)
{
    cfw_channel *channel = batch->channel;

    if (--batch->refs > 0) {
        return;
    }
    for (uint32_t index = 0; index < batch->num_remotes; ++index) {
        cfw_remote_unref(batch->remotes[index]);
    }
    free(batch->remotes);
    free(batch);
    cfw_channel_unref(channel);
}

void cfw_batch_release(cfw_batch *batch)
{
    cfw_engine *engine = batch->channel->engine;

    cfw_engine_enter(engine);
    cfw_batch_unref(batch);
    cfw_engine_leave(engine);
}

uint64_t cfw_batch_bytes(const cfw_batch *batch)
{
    return batch->bytes;
}

void cfw_copy(const uint64_t *local, const uint64_t *remote, const uint64_t *length, uint64_t count)
{
    for (uint64_t index = 0; index < count; ++index) {
        memcpy((void *)(uintptr_t)local[index], (const void *)(uintptr_t)remote[index], length[index]);
    }
}
