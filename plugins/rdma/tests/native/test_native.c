/* Checks of the native half without Python and without UCX: the stand-in does what each check tells it. The first argument
 * is its path, others choose groups; none means all. */
#include "check.h"

#include <dlfcn.h>

cfw_ucx         *ucx;
standin_control *control;

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

bench make_bench(int error_mode)
{
    const char *settings[] = {"TLS", "any"};
    bench       made       = {.size = 64 << 20};
    uint64_t    size;

    memset(control, 0, sizeof(*control));
    made.here  = calloc(1, made.size);
    made.there = calloc(1, made.size);
    CHECK(made.here && made.there);
    for (uint64_t at = 0; at < made.size; at += 64) {
        made.there[at] = (char)(1 + at / 64 % 127);
    }
    CHECK_EQUAL(cfw_engine_create(ucx, settings, 1, &made.engine), 0);
    CHECK(cfw_engine_address(made.engine, &size) != NULL && size == 1);
    CHECK_EQUAL(cfw_channel_open(made.engine, "a", 1, error_mode, &made.channel), 0);
    CHECK_EQUAL(cfw_channel_attach(made.channel, addr(made.there), made.size, "key", 3, &made.remote), 0);
    return made;
}

void free_bench(bench *made)
{
    if (made->remote != NULL) {
        cfw_remote_release(made->remote);
    }
    cfw_channel_release(made->channel);
    cfw_engine_destroy(made->engine);
    free(made->here);
    free(made->there);
    CHECK_EQUAL(control->workers + control->contexts + control->mapped + control->keys, 0);
}

cfw_batch *make_batch(const bench *made, uint32_t operation, uint64_t item, uint64_t count)
{
    uint64_t *arrays = malloc(3 * count * sizeof(*arrays));
    cfw_items items  = {.local = arrays, .remote = arrays + count, .length = arrays + 2 * count,
                        .remotes = &made->remote, .count = count, .num_remotes = 1, .operation = operation};
    cfw_batch *batch = NULL;
    uint64_t   failed;

    CHECK(arrays != NULL);
    for (uint64_t index = 0; index < count; ++index) {
        arrays[index]             = addr(made->here) + index * item;
        arrays[count + index]     = addr(made->there) + index * item;
        arrays[2 * count + index] = item;
    }
    CHECK_EQUAL(cfw_batch_create(made->channel, &items, &batch, &failed), 0);
    CHECK_EQUAL(cfw_batch_bytes(batch), item * count);
    free(arrays);
    return batch;
}

cfw_job *post(cfw_batch *batch, uint32_t limit)
{
    cfw_job *job = NULL;

    CHECK_EQUAL(cfw_job_post(batch, limit, &job), 0);
    return job;
}

cfw_result result_of(cfw_job *job)
{
    cfw_result result = {.status = 99};

    CHECK_EQUAL(cfw_job_wait(job, 30 * SECOND), 0);
    CHECK_EQUAL(cfw_job_result(job, &result), 0);
    return result;
}

/* ---- groups ------------------------------------------------------------------------------------------------------- */

static void test_library(void)
{
    const char  *settings[] = {"NOT_THERE", "1"};
    cfw_ucx     *again      = NULL;
    cfw_engine  *engine     = NULL;
    cfw_ucx_info info;

    CHECK_EQUAL(cfw_ucx_open("/nowhere/libucp.so.0", &info, &again), CFW_RDMA_NOT_LOADED);
    CHECK(again == NULL && strstr(info.text, "/nowhere") != NULL);
    CHECK_EQUAL(cfw_ucx_open("libm.so.6", &info, &again), CFW_RDMA_FOREIGN);
    CHECK(again == NULL && info.missing > 20 && strcmp(info.lacks, "ucp_get_version") == 0);
    CHECK(strcmp(cfw_ucx_text(ucx, -3), "not fine") == 0);
    CHECK(strcmp(cfw_ucx_text(ucx, CFW_RDMA_CLOSED), "") == 0);
    CHECK_EQUAL(cfw_engine_create(ucx, settings, 1, &engine), CFW_RDMA_NO_SETTING);
    CHECK(engine == NULL);
}

static void test_memory(void)
{
    bench       made   = make_bench(CFW_ERRORS_AUTO);
    cfw_memory *memory = NULL, *other = NULL;
    uint64_t    size;

    control->map_status = -4;
    CHECK_EQUAL(cfw_memory_map(made.engine, 4096, 10, &memory), -4);
    CHECK(memory == NULL);
    control->map_status = 0;
    for (int round = 0; round < 100; ++round) {
        CHECK_EQUAL(cfw_memory_map(made.engine, 4096, 10, &memory), 0);
        CHECK(memcmp(cfw_memory_key(memory, &size), "key", 3) == 0 && size == 3);
        CHECK_EQUAL(cfw_memory_unmap(memory), 0);
        CHECK_EQUAL(cfw_memory_unmap(memory), 0);
        cfw_memory_release(memory);
    }
    CHECK_EQUAL(control->mapped, 0);
    /* One is left to the engine, and given up afterwards. */
    CHECK_EQUAL(cfw_memory_map(made.engine, 4096, 10, &memory), 0);
    CHECK_EQUAL(cfw_memory_map(made.engine, 8192, 10, &other), 0);
    cfw_memory_release(other);
    free_bench(&made);
    CHECK_EQUAL(cfw_memory_unmap(memory), 0);
    cfw_memory_release(memory);
}

static int try_items(const bench *made, uint64_t remote, uint64_t length, uint32_t row)
{
    uint64_t   local = addr(made->here), item = 77;
    cfw_items  items = {.local = &local, .remote = &remote, .length = &length, .row = &row,
                        .remotes = &made->remote, .count = 1, .num_remotes = 1};
    cfw_batch *batch = NULL;
    int        status = cfw_batch_create(made->channel, &items, &batch, &item);

    CHECK_EQUAL(item, status == 0 ? 77 : 0);
    if (status == 0) {
        cfw_batch_release(batch);
    }
    return status;
}

static void test_batches(void)
{
    bench    made  = make_bench(CFW_ERRORS_AUTO);
    uint64_t start = addr(made.there), end = start + made.size;

    CHECK_EQUAL(try_items(&made, start, made.size, 0), 0);
    CHECK_EQUAL(try_items(&made, end - 1, 1, 0), 0);
    CHECK_EQUAL(try_items(&made, end, 0, 0), 0);
    CHECK_EQUAL(try_items(&made, start, made.size + 1, 0), CFW_RDMA_OUTSIDE);
    CHECK_EQUAL(try_items(&made, end, 1, 0), CFW_RDMA_OUTSIDE);
    CHECK_EQUAL(try_items(&made, end + 1, 0, 0), CFW_RDMA_OUTSIDE);
    CHECK_EQUAL(try_items(&made, start - 1, 2, 0), CFW_RDMA_OUTSIDE);
    CHECK_EQUAL(try_items(&made, 0, 1, 0), CFW_RDMA_OUTSIDE);
    CHECK_EQUAL(try_items(&made, start, UINT64_MAX, 0), CFW_RDMA_OUTSIDE);
    CHECK_EQUAL(try_items(&made, UINT64_MAX, UINT64_MAX, 0), CFW_RDMA_OUTSIDE);
    CHECK_EQUAL(try_items(&made, start, 1, 1), CFW_RDMA_INVALID);
    cfw_remote_detach(made.remote);
    CHECK_EQUAL(control->keys, 0);
    CHECK_EQUAL(try_items(&made, start, 1, 0), CFW_RDMA_DETACHED);
    CHECK_EQUAL(control->asked, 0);
    free_bench(&made);
}

static void test_jobs(void)
{
    bench      made  = make_bench(CFW_ERRORS_AUTO);
    cfw_batch *read  = make_batch(&made, CFW_READ, 65536, 1000), *write = make_batch(&made, CFW_WRITE, 4096, 100);
    cfw_batch *large = make_batch(&made, CFW_READ, 32 << 20, 2);
    cfw_job   *job   = post(read, 16), *other;
    cfw_result result;
    uint64_t   token = 0, second = 0;

    CHECK_EQUAL(result_of(job).status, 0);
    CHECK_EQUAL(result_of(job).issued, 65536000);
    CHECK(memcmp(made.here, made.there, 65536000) == 0);
    CHECK(control->most > 0 && control->most <= 16);
    CHECK_EQUAL(control->asked, 1000);
    CHECK_EQUAL(control->flushes, 0);
    cfw_job_release(job);

    /* Large items go in parts; writes are flushed once. */
    job = post(large, 4);
    CHECK_EQUAL(result_of(job).status, 0);
    CHECK_EQUAL(control->asked, 1016);
    cfw_job_release(job);
    job = post(write, 8);
    CHECK_EQUAL(result_of(job).status, 0);
    CHECK_EQUAL(control->flushes, 1);
    cfw_job_release(job);

    /* In parts as small as the batch says. */
    {
        uint64_t  here = addr(made.here), there = addr(made.there), length = 1000000, failed;
        cfw_items items = {.local = &here, .remote = &there, .length = &length, .remotes = &made.remote, .count = 1,
                           .num_remotes = 1, .operation = CFW_READ, .max_request = 100000};
        cfw_batch *parts = NULL;
        uint64_t   before = control->asked;

        CHECK_EQUAL(cfw_batch_create(made.channel, &items, &parts, &failed), 0);
        job = post(parts, 4);
        CHECK_EQUAL(result_of(job).status, 0);
        CHECK_EQUAL(control->asked, before + 10);
        CHECK(memcmp(made.here, made.there, length) == 0);
        cfw_job_release(job);
        cfw_batch_release(parts);
    }

    /* A failure names the item, and ends the rest. */
    control->fail_at = 37;
    job              = post(read, 16);
    result           = result_of(job);
    CHECK_EQUAL(result.status, -80);
    CHECK_EQUAL(result.item, 36);
    cfw_job_release(job);
    control->refuse_at = 5;
    job                = post(read, 16);
    result             = result_of(job);
    CHECK_EQUAL(result.status, -3);
    CHECK_EQUAL(result.item, 4);
    cfw_job_release(job);

    /* What UCX holds has not settled; cancelling drops the rest only. */
    control->held = 1;
    job           = post(read, 16);
    other         = post(write, 16);
    CHECK_EQUAL(cfw_job_wait(job, 1000000), CFW_RDMA_TIMED_OUT);
    CHECK_EQUAL(cfw_job_result(job, &result), CFW_RDMA_BUSY);
    CHECK_EQUAL(cfw_job_watch(job, 11), 0);
    CHECK_EQUAL(cfw_job_watch(job, 12), 0);
    cfw_job_cancel(job);
    CHECK_EQUAL(cfw_job_settled(job), 0);
    CHECK_EQUAL(cfw_engine_next(made.engine, 0, &token), CFW_RDMA_TIMED_OUT);
    control->held = 0;
    result        = result_of(job);
    CHECK_EQUAL(result.status, CFW_RDMA_CANCELLED);
    CHECK_EQUAL(result.item, 16);
    CHECK_EQUAL(result_of(other).status, 0);
    /* In any order. */
    CHECK_EQUAL(cfw_engine_next(made.engine, SECOND, &token), 0);
    CHECK_EQUAL(cfw_engine_next(made.engine, SECOND, &second), 0);
    CHECK(token + second == 23 && token != second);
    cfw_job_cancel(job);
    CHECK_EQUAL(result_of(job).status, CFW_RDMA_CANCELLED);
    cfw_job_release(job);
    cfw_job_release(other);

    /* Over when asked for: no request, no thread. */
    control->immediate = 1;
    job                = post(make_batch(&made, CFW_READ, 100, 10), 4);
    CHECK_EQUAL(cfw_job_settled(job), 1);
    cfw_batch_release(job->batch);
    CHECK_EQUAL(cfw_job_watch(job, 13), 0);
    CHECK_EQUAL(cfw_engine_next(made.engine, 0, &token), 0);
    CHECK_EQUAL(token, 13);
    cfw_job_release(job);
    control->immediate = 0;

    /* A write has arrived when the peer is still there after the flush, and not else. */
    control->die_at_flush = 1;
    job                   = post(write, 8);
    result                = result_of(job);
    CHECK_EQUAL(result.status, UCP_CONNECTION_RESET);
    CHECK_EQUAL(result.item, 100);
    cfw_job_release(job);
    CHECK_EQUAL(cfw_job_post(read, 8, &other), UCP_CONNECTION_RESET);
    control->die_at_flush = 0;
    cfw_batch_release(read);
    cfw_batch_release(write);
    cfw_batch_release(large);
    free_bench(&made);

    made = make_bench(CFW_ERRORS_AUTO);
    read = make_batch(&made, CFW_READ, 65536, 1000);
    /* Nobody holds it, and it still ends. */
    cfw_job_release(post(read, 1000));
    cfw_batch_release(read);
    free_bench(&made);
}

static void test_channels(void)
{
    bench      made  = make_bench(CFW_ERRORS_AUTO);
    cfw_batch *batch = make_batch(&made, CFW_WRITE, 65536, 1000);
    cfw_job   *job, *none = NULL;
    char       text[100];

    /* Watched: cutting ends what UCX holds. */
    CHECK_EQUAL(cfw_channel_error_mode(made.channel), CFW_ERRORS_PEER);
    cfw_channel_describe(made.channel, text, sizeof(text));
    CHECK(strstr(text, "standin/none") != NULL);
    control->held = 1;
    job           = post(batch, 16);
    CHECK_EQUAL(cfw_channel_close(made.channel, 1000000), 0);
    CHECK_EQUAL(cfw_job_settled(job), 1);
    CHECK_EQUAL(result_of(job).status, UCP_CANCELED);
    CHECK_EQUAL(cfw_channel_status(made.channel), CFW_RDMA_CLOSED);
    CHECK_EQUAL(cfw_job_post(batch, 16, &none), CFW_RDMA_CLOSED);
    CHECK_EQUAL(control->endpoints, 0);
    cfw_job_release(job);
    cfw_batch_release(batch);
    free_bench(&made);

    /* Not watched: it ends with the engine. */
    memset(control, 0, sizeof(*control));
    control->peerless = 1;
    made              = make_bench(CFW_ERRORS_NONE);
    CHECK_EQUAL(cfw_channel_error_mode(made.channel), CFW_ERRORS_NONE);
    batch         = make_batch(&made, CFW_READ, 65536, 1000);
    control->held = 1;
    job           = post(batch, 16);
    CHECK_EQUAL(cfw_channel_close(made.channel, 1000000), 1);
    CHECK_EQUAL(cfw_job_settled(job), 0);
    cfw_batch_release(batch);
    cfw_remote_release(made.remote);
    cfw_channel_release(made.channel);
    cfw_engine_destroy(made.engine);
    CHECK_EQUAL(result_of(job).status, CFW_RDMA_CANCELLED);
    CHECK_EQUAL(cfw_job_watch(job, 1), CFW_RDMA_CLOSED);
    cfw_job_release(job);
    free(made.here);
    free(made.there);

    /* Drained, and used again. */
    made  = make_bench(CFW_ERRORS_PEER);
    batch = make_batch(&made, CFW_READ, 65536, 100);
    CHECK_EQUAL(cfw_channel_drain(made.channel, SECOND), 0);
    CHECK_EQUAL(cfw_job_post(batch, 16, &none), CFW_RDMA_DETACHED);
    cfw_batch_release(batch);
    cfw_remote_release(made.remote);
    CHECK_EQUAL(cfw_channel_attach(made.channel, addr(made.there), made.size, "key", 3, &made.remote), 0);
    batch = make_batch(&made, CFW_READ, 65536, 100);
    job   = post(batch, 16);
    CHECK_EQUAL(result_of(job).status, 0);
    cfw_job_release(job);
    cfw_batch_release(batch);
    free_bench(&made);
}

static const struct {
    const char *name;
    void (*run)(void);
} groups[] = {{"library", test_library}, {"memory", test_memory},     {"batches", test_batches},
              {"jobs", test_jobs},       {"channels", test_channels}, {"threads", test_threads}};

int main(int argc, char **argv)
{
    cfw_ucx_info info;
    void        *handle;
    unsigned     ran = 0;

    CHECK(argc >= 2);
    CHECK_EQUAL(cfw_ucx_open(argv[1], &info, &ucx), 0);
    handle = dlopen(argv[1], RTLD_NOW);
    CHECK(handle != NULL);
    control = dlsym(handle, "standin");
    CHECK(control != NULL);
    for (unsigned index = 0; index < sizeof(groups) / sizeof(groups[0]); ++index) {
        bool wanted = argc == 2;

        for (int argument = 2; argument < argc; ++argument) {
            wanted |= strcmp(argv[argument], groups[index].name) == 0;
        }
        if (wanted) {
            groups[index].run();
            printf("%s: passed\n", groups[index].name);
            ++ran;
        }
    }
    return ran == 0;
}
