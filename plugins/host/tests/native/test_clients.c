/* Many threads on one pool, and on one job. */
#define _GNU_SOURCE
#include "work.h"

typedef struct {
    cfw_pool *pool;
    unsigned  seed;
    uint64_t  watched;
} client;

static void *client_run(void *argument)
{
    client *self = argument;
    work    some[3];

    for (unsigned index = 0; index < 3; ++index) {
        some[index] = make_work(self->seed + index, index == 2 ? 1 : COUNT);
    }
    for (unsigned round = 0; round < 8; ++round) {
        cfw_job *jobs[3];

        for (unsigned index = 0; index < 3; ++index) {
            memset(some[index].to, 0, AREA);
            jobs[index] = post(self->pool, &some[index]);
        }
        if (round % 3 == 0) {
            CHECK_EQUAL(cfw_job_watch(jobs[0], self->seed), 0);
            self->watched++;
        }
        cfw_job_help(jobs[1], round % 2 ? UINT64_MAX : 1 << 20);
        if (round % 4 == 3) {
            cfw_job_cancel(jobs[0]);
        }
        for (unsigned index = 0; index < 3; ++index) {
            cfw_result result;

            while (cfw_job_wait(jobs[index], 100000) == -ETIMEDOUT) {
                cfw_job_help(jobs[index], 1);
            }
            result = result_of(jobs[index]);
            CHECK_EQUAL(arrived(&some[index]), result.bytes);
            if (result.status == 0) {
                CHECK_EQUAL(result.bytes, cfw_batch_bytes(some[index].batch));
                CHECK(memcmp(some[index].to, some[index].from, index == 2 ? ITEM : AREA) == 0);
            } else {
                CHECK(result.status == -ECANCELED && index == 0 && round % 4 == 3);
                CHECK(result.bytes < AREA);
            }
            cfw_job_release(jobs[index]);
        }
    }
    for (unsigned index = 0; index < 3; ++index) {
        free_work(&some[index]);
    }
    return NULL;
}

static void test_pool_shared(uint32_t workers)
{
    cfw_pool *pool    = make_pool(workers);
    collector tokens  = {.pool = pool};
    client    four[4] = {{pool, 10, 0}, {pool, 20, 0}, {pool, 30, 0}, {pool, 40, 0}};
    pthread_t threads[5];

    CHECK_EQUAL(pthread_create(&threads[4], NULL, collector_run, &tokens), 0);
    for (unsigned index = 0; index < 4; ++index) {
        CHECK_EQUAL(pthread_create(&threads[index], NULL, client_run, &four[index]), 0);
    }
    for (unsigned index = 0; index < 4; ++index) {
        pthread_join(threads[index], NULL);
    }
    cfw_pool_destroy(pool);
    pthread_join(threads[4], NULL);
    for (unsigned index = 0; index < 4; ++index) {
        CHECK_EQUAL(four[index].watched, 3);
        CHECK_EQUAL(tokens.tokens[four[index].seed], four[index].watched);
    }
}

/* Several threads in help and wait of one and the same job. */
static void *share_run(void *argument)
{
    cfw_job *job = argument;

    cfw_job_help(job, 1 << 20);
    CHECK_EQUAL(cfw_job_wait(job, -1), 0);
    CHECK_EQUAL(result_of(job).bytes, AREA);
    return NULL;
}

static void test_job_shared(uint32_t workers)
{
    work      some = make_work(5, COUNT);
    cfw_pool *pool = make_pool(workers);

    for (unsigned round = 0; round < 10; ++round) {
        cfw_job  *job = (memset(some.to, 0, AREA), post(pool, &some));
        pthread_t threads[4];

        for (unsigned index = 0; index < 4; ++index) {
            CHECK_EQUAL(pthread_create(&threads[index], NULL, share_run, job), 0);
        }
        for (unsigned index = 0; index < 4; ++index) {
            pthread_join(threads[index], NULL);
        }
        CHECK(memcmp(some.to, some.from, AREA) == 0);
        cfw_job_release(job);
    }
    cfw_pool_destroy(pool);
    free_work(&some);
}

void test_clients(void)
{
    for (uint32_t workers = 0; workers <= 3; ++workers) {
        test_pool_shared(workers);
        test_job_shared(workers);
    }
}
