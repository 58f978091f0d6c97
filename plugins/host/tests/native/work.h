/* A job's worth of items, and a thread that collects tokens. */
#ifndef CACHEFW_WORK_H
#define CACHEFW_WORK_H

#include "check.h"

#define ITEM 20000u
#define COUNT 200u /* 4 MB: a dozen chunks, streaming */
#define AREA ((size_t)ITEM * COUNT)

typedef struct {
    char      *from, *to;
    items      all;
    cfw_batch *batch;
} work;

static inline work make_work(unsigned seed, uint64_t count)
{
    work some = {.from = map_memory(AREA), .to = map_memory(AREA)};

    fill(some.from, AREA, seed);
    some.all   = make_items(CFW_COPY_IN, 0, some.to, some.from, ITEM, count);
    some.batch = make_batch(&some.all.part, 1);
    return some;
}

static inline void free_work(work *some)
{
    cfw_batch_destroy(some->batch);
    free_items(&some->all);
    munmap(some->from, AREA);
    munmap(some->to, AREA);
}

static inline cfw_pool *make_pool(uint32_t workers)
{
    cfw_pool *pool;

    CHECK_EQUAL(cfw_pool_create(workers, NULL, 0, &pool), 0);
    return pool;
}

static inline cfw_job *post(cfw_pool *pool, const work *some)
{
    cfw_job *job;

    CHECK_EQUAL(cfw_job_post(pool, some->batch, &job), 0);
    return job;
}

static inline uint64_t arrived(const work *some)
{
    uint64_t bytes = 0;

    for (size_t at = 0; at < AREA; ++at) {
        bytes += some->to[at] != 0;
    }
    return bytes;
}

static inline cfw_result result_of(cfw_job *job)
{
    cfw_result result;

    CHECK_EQUAL(cfw_job_settled(job), 1);
    CHECK_EQUAL(cfw_job_result(job, &result), 0);
    return result;
}

typedef struct {
    cfw_pool *pool;
    uint64_t  tokens[64];
} collector;

static inline void *collector_run(void *argument)
{
    collector *self = argument;
    uint64_t   token;
    int        status;

    while ((status = cfw_pool_next(self->pool, -1, &token)) == 0) {
        CHECK(token < 64);
        self->tokens[token]++;
    }
    CHECK_EQUAL(status, -ESHUTDOWN);
    return NULL;
}

#endif
