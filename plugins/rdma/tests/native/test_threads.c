/* Many threads on one engine: posting, waiting, cancelling, mapping, closing. */
#include "check.h"

#define THREADS 6
#define ROUNDS 200

static bench      shared;
static cfw_batch *batches[2];

static void *work(void *argument)
{
    const unsigned number = *(const unsigned *)argument;

    for (unsigned round = 0; round < ROUNDS; ++round) {
        cfw_job    *job    = post(batches[(number + round) % 2], 1 + round % 7);
        cfw_memory *memory = NULL;
        cfw_result  result;

        if (round % 5 == number % 5) {
            cfw_job_cancel(job);
        }
        CHECK_EQUAL(cfw_job_watch(job, round), 0);
        if (round % 3 == 0) {
            CHECK_EQUAL(cfw_memory_map(shared.engine, 4096, 1, &memory), 0);
            cfw_memory_release(memory);
        }
        if (round % 4 != 0) {
            result = result_of(job);
            CHECK(result.status == 0 || result.status == CFW_RDMA_CANCELLED);
        }
        cfw_job_release(job);
    }
    return NULL;
}

static void *collect(void *argument)
{
    uint64_t *count_p = argument;
    uint64_t  token;

    while (cfw_engine_next(shared.engine, -1, &token) == 0) {
        ++*count_p;
    }
    return NULL;
}

void test_threads(void)
{
    pthread_t threads[THREADS], collector;
    unsigned  numbers[THREADS];
    uint64_t  count = 0;

    shared     = make_bench(CFW_ERRORS_AUTO);
    batches[0] = make_batch(&shared, CFW_READ, 64, 50);
    /* Both read: a write would change what the reads look at. */
    batches[1] = make_batch(&shared, CFW_READ, 1000, 20);
    CHECK_EQUAL(pthread_create(&collector, NULL, collect, &count), 0);
    for (unsigned number = 0; number < THREADS; ++number) {
        numbers[number] = number;
        CHECK_EQUAL(pthread_create(&threads[number], NULL, work, &numbers[number]), 0);
    }
    for (unsigned number = 0; number < THREADS; ++number) {
        CHECK_EQUAL(pthread_join(threads[number], NULL), 0);
    }
    /* The engine is destroyed while the collector sleeps in it. */
    cfw_batch_release(batches[0]);
    cfw_batch_release(batches[1]);
    free_bench(&shared);
    CHECK_EQUAL(pthread_join(collector, NULL), 0);
    CHECK_EQUAL(count, THREADS * ROUNDS);
}
