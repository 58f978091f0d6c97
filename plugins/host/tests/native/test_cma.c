/* Copies from and to a forked child, which has its own bytes at our addresses. */
#define _GNU_SOURCE
#include "check.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define ITEM 1000u
#define COUNT 5000u
#define AREA ((size_t)ITEM * COUNT)
#define HOLE ((size_t)2 << 20)  /* what the child unmaps in its area */
#define SPARSE ((4ull << 30) + (192ull << 20) + 12345)

typedef struct {
    pid_t pid;
    char *area;   /* filled with seed 3 by the child, 0 here */
    char *holed;  /* the same, with a page missing at HOLE */
    char *sparse; /* SPARSE bytes of which the child wrote two */
} peer;

static peer start_peer(void)
{
    peer other = {0, map_memory(AREA), map_memory(AREA), map_memory(SPARSE)};
    int  ready[2];
    char byte;

    CHECK_EQUAL(pipe(ready), 0);
    other.pid = fork();
    CHECK(other.pid >= 0);
    if (other.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fill(other.area, AREA, 3);
        fill(other.holed, AREA, 3);
        munmap(other.holed + HOLE, 4096);
        other.sparse[SPARSE - 1]        = 77;
        other.sparse[(4ull << 30) + 99] = 78;
        if (write(ready[1], "", 1) != 1) {
            _exit(1);
        }
        for (;;) {
            pause();
        }
    }
    CHECK_EQUAL(read(ready[0], &byte, 1), 1);
    close(ready[0]), close(ready[1]);
    return other;
}

static void stop_peer(const peer *other)
{
    kill(other->pid, SIGKILL);
    CHECK_EQUAL(waitpid(other->pid, NULL, 0), other->pid);
}

/* A batch by the calling thread alone, or by a pool and the caller. */
static cfw_result run(cfw_batch *batch, cfw_pool *pool)
{
    cfw_result result;
    cfw_job   *job;

    if (pool == NULL) {
        int status = cfw_batch_run(batch, &result);
        CHECK_EQUAL(status, result.status);
        return result;
    }
    CHECK_EQUAL(cfw_job_post(pool, batch, &job), 0);
    cfw_job_help(job, UINT64_MAX);
    CHECK_EQUAL(cfw_job_wait(job, -1), 0);
    CHECK_EQUAL(cfw_job_result(job, &result), 0);
    cfw_job_release(job);
    return result;
}

static void test_scattered(const peer *other, cfw_pool *pool)
{
    char      *expected = map_memory(AREA), *local = map_memory(AREA);
    items      all   = make_items(CFW_CMA_READ, other->pid, local, other->area, ITEM, COUNT);
    cfw_batch *batch = make_batch(&all.part, 1);
    cfw_result result;

    fill(expected, AREA, 3);
    result = run(batch, pool);
    CHECK(result.status == 0 && result.bytes == AREA);
    CHECK(memcmp(local, expected, AREA) == 0);
    cfw_batch_destroy(batch);

    /* Back again with other bytes, and read what arrived. */
    fill(local, AREA, 4);
    memcpy(expected, local, AREA);
    all.part.op = CFW_CMA_WRITE;
    batch = make_batch(&all.part, 1);
    CHECK_EQUAL(run(batch, pool).status, 0);
    cfw_batch_destroy(batch);
    memset(local, 0, AREA);
    CHECK_EQUAL(cfw_cma_probe(other->pid, addr(other->area), AREA, local), 0);
    CHECK(memcmp(local, expected, AREA) == 0);

    /* And as it was, for the next test. */
    fill(local, AREA, 3);
    batch = make_batch(&all.part, 1);
    CHECK_EQUAL(run(batch, pool).status, 0);
    cfw_batch_destroy(batch);
    free_items(&all);
    munmap(local, AREA);
    munmap(expected, AREA);
}

/* Items in order of address: all before the hole arrive, down to the byte. */
static void test_unmapped(const peer *other, cfw_pool *pool)
{
    char      *local = map_memory(AREA), *expected = map_memory(AREA);
    items      all   = make_items(CFW_CMA_READ, other->pid, local, other->holed, ITEM, COUNT);
    cfw_part   parts[2];
    cfw_batch *batch;
    cfw_result result;

    fill(expected, AREA, 3);
    for (uint64_t index = 0; index < COUNT; ++index) {
        all.local[index]  = addr(local) + index * ITEM;
        all.remote[index] = addr(other->holed) + index * ITEM;
    }
    /* A later chunk that fails at once must not hide the earlier one, which
     * fails after some work. */
    for (uint64_t index = HOLE / ITEM + 1; pool != NULL && index < COUNT; ++index) {
        all.remote[index] = 1;
    }
    parts[0] = (cfw_part){CFW_CMA_READ, other->pid, NULL, NULL, NULL, 0};
    parts[1] = all.part;
    batch    = make_batch(parts, 2);
    result   = run(batch, pool);
    CHECK_EQUAL(result.status, -EFAULT);
    CHECK_EQUAL(result.part, 1);
    CHECK_EQUAL(result.item, HOLE / ITEM);
    CHECK(memcmp(local, expected, HOLE) == 0);
    if (pool == NULL) {
        CHECK_EQUAL(result.bytes, HOLE);
        CHECK(local[HOLE] == 0 && local[AREA - 1] == 0);
    } else {
        CHECK_EQUAL(result.bytes, HOLE);
    }
    cfw_batch_destroy(batch);
    free_items(&all);
    munmap(local, AREA);
    munmap(expected, AREA);
}

/* Local addresses are looked at by the kernel before the first byte moves: the
 * wrong one must be found all the same. */
static void test_wrong_local(const peer *other, cfw_pool *pool)
{
    char      *local = map_memory(AREA);
    items      all   = make_items(CFW_CMA_READ, other->pid, local, other->area, ITEM, COUNT);
    cfw_batch *batch;
    cfw_result result;

    all.local[1500] = 0xffff800000000000ull;
    all.length[3] = all.length[1499] = 0;
    batch  = make_batch(&all.part, 1);
    result = run(batch, pool);
    CHECK_EQUAL(result.status, -EFAULT);
    CHECK_EQUAL(result.item, 1500);
    if (pool == NULL) {
        CHECK_EQUAL(result.bytes, 1498 * ITEM);
    }
    cfw_batch_destroy(batch);
    free_items(&all);
    munmap(local, AREA);
}

/* More than 32 bits can count, and than the kernel takes in one call, into an
 * area of which every 64 MiB are the same memory: it costs no 4 GiB. */
__attribute__((unused)) static void test_large_item(const peer *other)
{
    const size_t pane = 64u << 20, space = (SPARSE / pane + 1) * pane;
    int          fd   = memfd_create("pane", MFD_CLOEXEC);
    char        *local = mmap(NULL, space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                              -1, 0);
    uint64_t     to[2]     = {0, 0}, from[2] = {addr(other->sparse), addr(other->area)};
    uint64_t     length[2] = {SPARSE, 10};
    cfw_part     part      = {CFW_CMA_READ, other->pid, to, from, length, 2};
    char         expected[10], after[10];
    cfw_batch   *batch;
    cfw_result   result;

    CHECK(fd >= 0 && local != MAP_FAILED && ftruncate(fd, (off_t)pane) == 0);
    for (size_t at = 0; at < space; at += pane) {
        CHECK(mmap(local + at, pane, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) !=
              MAP_FAILED);
    }
    memset(local, 1, pane);
    fill(expected, 10, 3);
    to[0]  = addr(local);
    to[1]  = addr(after);
    batch  = make_batch(&part, 1);
    result = run(batch, NULL);
    CHECK(result.status == 0 && result.bytes == SPARSE + 10);
    CHECK_EQUAL(local[SPARSE - 1], 77);
    CHECK(memcmp(after, expected, 10) == 0);
    CHECK_EQUAL(local[SPARSE - 2], 0);
    cfw_batch_destroy(batch);

    /* Only what lies beyond 4 GiB, to see the other byte. */
    length[0] = (4ull << 30) + 100;
    batch     = make_batch(&part, 1);
    CHECK_EQUAL(run(batch, NULL).status, 0);
    CHECK_EQUAL(local[length[0] - 1], 78);
    cfw_batch_destroy(batch);
    munmap(local, space);
    close(fd);
}

static void test_probe(const peer *other)
{
    char got[8], expected[8];

    fill(expected, 8, 3);
    CHECK_EQUAL(cfw_cma_probe(other->pid, addr(other->area), 8, got), 0);
    CHECK(memcmp(got, expected, 8) == 0);
    CHECK_EQUAL(cfw_cma_probe(other->pid, addr(other->holed) + HOLE, 8, got), -EFAULT);
    CHECK_EQUAL(cfw_cma_probe(other->pid, addr(other->holed) + HOLE - 4, 8, got), -EFAULT);
}

static void test_dead(const peer *other, cfw_pool *pool)
{
    char      *local = map_memory(AREA);
    items      all   = make_items(CFW_CMA_READ, other->pid, local, other->area, ITEM, COUNT);
    cfw_batch *batch;
    cfw_result result;

    /* Empty items can not be the ones that failed. */
    all.length[0] = all.length[1] = 0;
    batch  = make_batch(&all.part, 1);
    result = run(batch, pool);
    CHECK_EQUAL(result.status, -ESRCH);
    CHECK(result.item == 2 && result.bytes == 0);
    CHECK_EQUAL(cfw_cma_probe(other->pid, addr(other->area), 8, local), -ESRCH);
    cfw_batch_destroy(batch);
    free_items(&all);
    munmap(local, AREA);
}

void test_cma(void)
{
    peer      other = start_peer();
    char      byte;
    cfw_pool *pool;
    int       status = cfw_cma_probe(other.pid, addr(other.area), 1, &byte);

    if (status == -EPERM || status == -ENOSYS) {
        printf("cma: not allowed here (%s)\n", strerror(-status));
        stop_peer(&other);
        return;
    }
    CHECK_EQUAL(cfw_pool_create(2, NULL, 0, &pool), 0);
    test_probe(&other);
    for (int threaded = 0; threaded <= 1; ++threaded) {
        test_scattered(&other, threaded ? pool : NULL);
        test_unmapped(&other, threaded ? pool : NULL);
        test_wrong_local(&other, threaded ? pool : NULL);
    }
    /* One thread only, and a shadow of all these gigabytes takes a minute. */
#ifndef __SANITIZE_THREAD__
    test_large_item(&other);
#endif
    stop_peer(&other);
    test_dead(&other, NULL);
    test_dead(&other, pool);
    cfw_pool_destroy(pool);
    munmap(other.area, AREA);
    munmap(other.holed, AREA);
    munmap(other.sparse, SPARSE);
}
