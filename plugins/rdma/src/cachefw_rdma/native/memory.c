/* Memory that peers can reach. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* Pinning gigabytes takes seconds. UCX lets it run beside the worker's calls if it was built for threads. */
static void begin(cfw_engine *engine)
{
    if (engine->ucx->parallel) {
        cfw_engine_go_away(engine);
    }
}

static void end(cfw_engine *engine)
{
    if (engine->ucx->parallel) {
        cfw_engine_come_back(engine);
    }
}

static int map(cfw_engine *engine, uint64_t address, uint64_t length, void **handle_p, void **key_p, size_t *key_size_p)
{
    const cfw_ucx     *ucx    = engine->ucx;
    ucp_mem_map_params params = {.mask        = UCP_MEM_ADDRESS | UCP_MEM_LENGTH | UCP_MEM_TYPE,
                                 .address     = (void *)(uintptr_t)address,
                                 .length      = length,
                                 .memory_type = UCP_MEMORY_HOST};
    void              *handle = NULL;
    int                status = ucx->ucp_mem_map(engine->context, &params, &handle);

    if (status != UCP_OK) {
        return status;
    }
    status = ucx->ucp_rkey_pack(engine->context, handle, key_p, key_size_p);
    if (status != UCP_OK) {
        ucx->ucp_mem_unmap(engine->context, handle);
        return status;
    }
    *handle_p = handle;
    return 0;
}

static cfw_memory *make_memory(cfw_engine *engine, void *handle, const void *key, size_t key_size)
{
    cfw_memory *memory = malloc(sizeof(*memory) + key_size);

    if (memory == NULL) {
        return NULL;
    }
    memory->engine   = engine;
    memory->handle   = handle;
    memory->key_size = key_size;
    memory->prev     = NULL;
    memory->next     = engine->memories;
    memcpy(memory->key, key, key_size);
    if (memory->next != NULL) {
        memory->next->prev = memory;
    }
    engine->memories = memory;
    engine->refs++;
    return memory;
}

int cfw_memory_map(cfw_engine *engine, uint64_t address, uint64_t length, cfw_memory **memory_p)
{
    void       *handle = NULL, *key = NULL;
    size_t      key_size = 0;
    cfw_memory *memory   = NULL;
    int         status;

    cfw_engine_enter(engine);
    if (engine->stopping) {
        status = CFW_RDMA_CLOSED;
    } else {
        begin(engine);
        status = map(engine, address, length, &handle, &key, &key_size);
        end(engine);
    }
    if (status == 0) {
        memory = make_memory(engine, handle, key, key_size);
        engine->ucx->ucp_rkey_buffer_release(key);
        if (memory == NULL) {
            engine->ucx->ucp_mem_unmap(engine->context, handle);
            status = CFW_RDMA_NO_MEMORY;
        }
    }
    cfw_engine_leave(engine);
    if (status == 0) {
        *memory_p = memory;
    }
    return status;
}

const void *cfw_memory_key(const cfw_memory *memory, uint64_t *size_p)
{
    *size_p = memory->key_size;
    return memory->key;
}

static void unlink_memory(cfw_memory *memory)
{
    if (memory->prev != NULL) {
        memory->prev->next = memory->next;
    } else {
        memory->engine->memories = memory->next;
    }
    if (memory->next != NULL) {
        memory->next->prev = memory->prev;
    }
    memory->prev = memory->next = NULL;
}

void cfw_memory_drop(cfw_memory *memory)
{
    unlink_memory(memory);
    memory->engine->ucx->ucp_mem_unmap(memory->engine->context, memory->handle);
    memory->handle = NULL;
}

static int unmap(cfw_memory *memory)
{
    cfw_engine *engine = memory->engine;
    void       *handle = memory->handle;
    int         status;

    if (handle == NULL) {
        return 0;
    }
    /* Before the lock is given up, so that nobody else finds it. */
    unlink_memory(memory);
    memory->handle = NULL;
    begin(engine);
    status = engine->ucx->ucp_mem_unmap(engine->context, handle);
    end(engine);
    return status;
}

int cfw_memory_unmap(cfw_memory *memory)
{
    cfw_engine *engine = memory->engine;
    int         status;

    cfw_engine_enter(engine);
    status = unmap(memory);
    cfw_engine_leave(engine);
    return status;
}

void cfw_memory_release(cfw_memory *memory)
{
    cfw_engine *engine = memory->engine;

    cfw_engine_enter(engine);
    unmap(memory);
    free(memory);
    engine->refs--;
    cfw_engine_leave(engine);
}
