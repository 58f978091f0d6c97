/* Pools and jobs: the threads, cancelling, tokens, ends in any order. */
#define _GNU_SOURCE
#include "work.h"

#include <dirent.h>
#include <sched.h>

/* ---- one thread at a time --------------------------------------------- */

/* Without workers everything happens inside our own calls, so that every step
 * can be counted. */
static void test_no_workers(void)
{
    work       some = make_work(1, COUNT);
    cfw_pool  *pool = make_pool(0);
    cfw_job   *job  = post(pool, &some);
    cfw_result result = {.status = 5};
    uint64_t   moved;

    CHECK_EQUAL(cfw_job_settled(job), 0);
    CHECK_EQUAL(cfw_job_result(job, &result), -EBUSY);
    CHECK_EQUAL(result.status, 5);
    CHECK_EQUAL(cfw_job_wait(job, 0), -ETIMEDOUT);
    CHECK_EQUAL(cfw_job_help(job, 0), 2);
    CHECK_EQUAL(arrived(&some), 0);
    CHECK_EQUAL(cfw_job_help(job, 1), 2);
    moved = arrived(&some);
    CHECK(moved > 0 && moved < AREA);
    CHECK_EQUAL(cfw_pool_threads(pool), 0);
    CHECK_EQUAL(cfw_job_wait(job, -1), 0);
    CHECK(memcmp(some.to, some.from, AREA) == 0);
    CHECK_EQUAL(result_of(job).bytes, AREA);
    CHECK_EQUAL(cfw_job_help(job, 1), 1);
    cfw_job_release(job);

    /* A cancelled job names the first item it did not begin. */
    memset(some.to, 0, AREA);
    job = post(pool, &some);
    cfw_job_help(job, 1);
    moved = arrived(&some);
    cfw_job_cancel(job);
    cfw_job_cancel(job);
    result = result_of(job);
    CHECK_EQUAL(result.status, -ECANCELED);
    CHECK_EQUAL(result.bytes, moved);
    CHECK_EQUAL(result.item, moved / ITEM);
    CHECK_EQUAL(arrived(&some), moved);
    cfw_job_release(job);

    /* Destroying does what nobody did. */
    memset(some.to, 0, AREA);
    job = post(pool, &some);
    cfw_job_release(post(pool, &some));
    cfw_pool_destroy(pool);
    CHECK_EQUAL(result_of(job).bytes, AREA);
    CHECK_EQUAL(arrived(&some), AREA);
    CHECK_EQUAL(cfw_job_watch(job, 1), -ESHUTDOWN);
    cfw_job_release(job);
    free_work(&some);
}

static void test_empty(void)
{
    cfw_pool  *pool  = make_pool(2);
    cfw_batch *batch = make_batch(NULL, 0);
    cfw_job   *job;

    CHECK_EQUAL(cfw_job_post(pool, batch, &job), 0);
    CHECK(result_of(job).status == 0 && result_of(job).bytes == 0);
    CHECK_EQUAL(cfw_pool_threads(pool), 0);
    cfw_job_cancel(job);
    CHECK_EQUAL(result_of(job).status, 0);
    cfw_job_release(job);
    cfw_batch_destroy(batch);
    cfw_pool_destroy(pool);
}

/* ---- the threads ------------------------------------------------------- */

static unsigned count_threads(bool *blocked_p)
{
    DIR           *tasks = opendir("/proc/self/task");
    struct dirent *entry;
    unsigned       count = 0;

    CHECK(tasks != NULL);
    *blocked_p = true;
    while ((entry = readdir(tasks)) != NULL) {
        char               path[300], line[200];
        unsigned long long mask;
        bool               ours = false;
        FILE              *status;

        snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
        status = fopen(path, "r");
        while (status != NULL && fgets(line, sizeof(line), status) != NULL) {
            ours |= strcmp(line, "Name:\tcachefw-host\n") == 0;
            if (ours && sscanf(line, "SigBlk: %llx", &mask) == 1) {
                *blocked_p &= (mask & 0x4003) == 0x4003; /* HUP, INT, TERM */
            }
        }
        if (status != NULL) {
            fclose(status);
        }
        count += ours;
    }
    closedir(tasks);
    return count;
}

static void test_threads(void)
{
    work      some    = make_work(2, COUNT);
    uint32_t  cpus[2] = {0, 70000};
    cfw_pool *pool    = NULL;
    bool      blocked;
    cfw_job  *job;

    CHECK_EQUAL(cfw_pool_create(1, cpus, 2, &pool), -EINVAL);
    CHECK_EQUAL(cfw_pool_create(1, NULL, 2, &pool), -EINVAL);
    CHECK(pool == NULL);
    cpus[1] = 3000; /* not there: the others are taken */
    CHECK_EQUAL(cfw_pool_create(3, cpus, 2, &pool), 0);
    CHECK(cfw_pool_threads(pool) == 0 && count_threads(&blocked) == 0);
    job = post(pool, &some);
    CHECK_EQUAL(cfw_pool_threads(pool), 3);
    CHECK_EQUAL(cfw_job_wait(job, -1), 0);
    CHECK(memcmp(some.to, some.from, AREA) == 0);
    for (int tries = 0; count_threads(&blocked) < 3; ++tries) {
        CHECK(tries < 5000); /* a thread may not have come to its name yet */
        usleep(1000);
    }
    CHECK(blocked);
    cfw_job_release(job);
    cfw_pool_destroy(pool);
    free_work(&some);
}

/* ---- tokens and ends --------------------------------------------------- */

static int64_t clock_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void test_tokens(void)
{
    work      some  = make_work(6, COUNT);
    cfw_pool *pool  = make_pool(1);
    cfw_job  *job   = post(pool, &some);
    uint64_t  token = 9, sum = 0;
    int64_t   wall, cpu;

    CHECK_EQUAL(cfw_job_watch(job, UINT64_MAX - 5), 0);
    CHECK_EQUAL(cfw_pool_next(pool, -1, &token), 0);
    CHECK(token == UINT64_MAX - 5 && cfw_job_settled(job));
    CHECK_EQUAL(cfw_pool_next(pool, 0, &token), -ETIMEDOUT);
    CHECK(token == UINT64_MAX - 5);
    CHECK_EQUAL(cfw_job_watch(job, 1), 0);
    CHECK_EQUAL(cfw_job_watch(job, 2), 0);
    for (int count = 0; count < 2; ++count) {
        CHECK_EQUAL(cfw_pool_next(pool, 0, &token), 0);
        sum = sum * 10 + token;
    }
    CHECK_EQUAL(sum, 12);

    /* Waiting sleeps. */
    wall = clock_ns(CLOCK_MONOTONIC);
    cpu  = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    CHECK_EQUAL(cfw_pool_next(pool, 100000000, &token), -ETIMEDOUT);
    CHECK(clock_ns(CLOCK_MONOTONIC) - wall >= 100000000);
    CHECK(clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu < 50000000);

    /* A token nobody collects is not leaked. */
    CHECK_EQUAL(cfw_job_watch(job, 3), 0);
    cfw_job_release(job);
    cfw_pool_destroy(pool);
    free_work(&some);
}

static void test_destroy_queued(void)
{
    work      some[6];
    cfw_pool *pool   = make_pool(1);
    collector tokens = {.pool = pool};
    pthread_t thread;
    cfw_job  *jobs[6];

    CHECK_EQUAL(pthread_create(&thread, NULL, collector_run, &tokens), 0);
    for (unsigned index = 0; index < 6; ++index) {
        some[index] = make_work(index, COUNT);
        jobs[index] = post(pool, &some[index]);
        CHECK_EQUAL(cfw_job_watch(jobs[index], index), 0);
        if (index % 2) {
            cfw_job_release(jobs[index]);
        }
    }
    cfw_pool_destroy(pool);
    pthread_join(thread, NULL);
    for (unsigned index = 0; index < 6; ++index) {
        CHECK_EQUAL(tokens.tokens[index], 1);
        CHECK(memcmp(some[index].to, some[index].from, AREA) == 0);
        if (index % 2 == 0) {
            CHECK_EQUAL(result_of(jobs[index]).bytes, AREA);
            cfw_job_release(jobs[index]);
        }
        free_work(&some[index]);
    }
}

/* Destroying waits also for the chunks in the hands of helpers. */
static void *help_run(void *argument)
{
    cfw_job_help(argument, UINT64_MAX);
    return NULL;
}

static void test_destroy_helped(void)
{
    work some = make_work(7, COUNT);

    for (unsigned round = 0; round < 40; ++round) {
        cfw_pool *pool = make_pool(0);
        cfw_job  *job  = (memset(some.to, 0, AREA), post(pool, &some));
        pthread_t thread;

        CHECK_EQUAL(pthread_create(&thread, NULL, help_run, job), 0);
        usleep(20 * round);
        cfw_pool_destroy(pool);
        CHECK_EQUAL(cfw_job_settled(job), 1);
        CHECK(memcmp(some.to, some.from, AREA) == 0);
        pthread_join(thread, NULL);
        cfw_job_release(job);
    }
    free_work(&some);
}

void test_jobs(void)
{
    test_no_workers();
    test_empty();
    test_threads();
    test_tokens();
    test_destroy_queued();
    test_destroy_helped();
}
