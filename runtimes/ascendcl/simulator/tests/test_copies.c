/* The rules of copies, and that the right bytes arrive. */
#include "check.h"

#include <unistd.h>

#define AREA (8 * MIB)

static void test_kernel(void)
{
    const size_t sizes[] = {0, 1, 63, 64, 65, 1023, 1024, 4095, 16384, 16385, 100001};
    char        *source = malloc(200000), *target = malloc(200000);

    CHECK(source != NULL && target != NULL);
    fill(source, 200000, 3);
    for (size_t index = 0; index < sizeof(sizes) / sizeof(sizes[0]); ++index) {
        for (size_t shift = 0; shift < 130; shift += 13) {
            memset(target, 0, 200000);
            sim_kernel_copy(target + 200 + shift, source + 129 - shift, sizes[index], true);
            sim_kernel_fence();
            CHECK(memcmp(target + 200 + shift, source + 129 - shift, sizes[index]) == 0);
            CHECK(target[199 + shift] == 0 && target[200 + shift + sizes[index]] == 0);
        }
    }
    free(source);
    free(target);
}

static void test_rules(void)
{
    char *device = device_memory(2 * MIB), *other = device_memory(2 * MIB);
    char *host = host_memory(4096), plain[100] = {1};

    CHECK_EQUAL(aclrtMemcpy(NULL, 8, plain, 8, ACL_MEMCPY_HOST_TO_DEVICE), 100000);
    CHECK_EQUAL(aclrtMemcpy(device, 8, NULL, 8, ACL_MEMCPY_HOST_TO_DEVICE), 100000);
    CHECK_EQUAL(aclrtMemcpy(device, 8, plain, 9, ACL_MEMCPY_HOST_TO_DEVICE), 107000);
    CHECK_EQUAL(aclrtMemcpy(device, 8, plain, 8, (aclrtMemcpyKind)8), 107000);
    CHECK_OK(aclrtMemcpy(device, 8, plain, 0, ACL_MEMCPY_HOST_TO_DEVICE));
    CHECK_OK(aclrtMemcpy(device, 8, device, 8, ACL_MEMCPY_DEVICE_TO_DEVICE));
    CHECK_OK(aclrtMemcpy(device, 100, plain, 100, ACL_MEMCPY_DEVICE_TO_HOST)); /* the kind is advice */
    CHECK_EQUAL(aclrtMemcpy(device + 2 * MIB - 50, 100, plain, 100, ACL_MEMCPY_HOST_TO_DEVICE), 507899);
    CHECK_EQUAL(aclrtMemcpy(device + 2 * MIB, 100, plain, 100, ACL_MEMCPY_HOST_TO_DEVICE), 507899);
    CHECK_EQUAL(aclrtMemcpy(plain, 100, device + 2 * MIB - 50, 100, ACL_MEMCPY_DEVICE_TO_HOST), 507899);
    CHECK_EQUAL(aclrtMemcpyAsync(host, 64, plain, 64, ACL_MEMCPY_HOST_TO_HOST, NULL), 207000);
    CHECK_EQUAL(aclrtMemcpyAsync(host, 8, device, 9, ACL_MEMCPY_DEVICE_TO_HOST, NULL), 107000);
    /* What only the device sees comes when the stream is waited for, with the text of the task. */
    CHECK_OK(aclrtMemcpyAsync(host, 64, device, 64, ACL_MEMCPY_DEVICE_TO_DEVICE, NULL));
    CHECK_EQUAL(aclrtSynchronizeStream(NULL), 507899);
    CHECK(strstr(aclGetRecentErrMsg(), "the copy goes from device to host memory") != NULL);
    CHECK_OK(aclrtSynchronizeStream(NULL));
    CHECK_OK(aclrtMemcpyAsync(device + 2 * MIB - 8, 64, other, 64, ACL_MEMCPY_DEVICE_TO_DEVICE, NULL));
    CHECK_EQUAL(aclrtSynchronizeDevice(), 507899);
    CHECK_OK(aclrtMemset(device, 64, 7, 64));
    CHECK_EQUAL(aclrtMemset(device, 8, 7, 9), 107000);
    CHECK_EQUAL(aclrtMemset(device + 2 * MIB - 8, 64, 7, 64), 507899);
    CHECK_OK(aclrtMemcpy(plain, 100, device, 64, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(plain[0] == 7 && plain[63] == 7);
    CHECK_OK(aclrtFree(device));
    CHECK_OK(aclrtFree(other));
    CHECK_OK(aclrtFreeHost(host));
}

static void test_devices(void)
{
    char       *here = device_memory(2 * MIB), *there;
    aclrtStream stream;

    CHECK_OK(aclrtSetDevice(1));
    there = device_memory(2 * MIB);
    put(there, 2 * MIB, 5);
    CHECK_OK(aclrtSetDevice(0));
    CHECK_OK(aclrtCreateStream(&stream));
    CHECK_EQUAL(aclrtMemcpy(here, 2 * MIB, there, 2 * MIB, ACL_MEMCPY_DEVICE_TO_DEVICE), 507899);
    CHECK_OK(aclrtMemcpyAsync(here, 2 * MIB, there, 2 * MIB, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
    CHECK_EQUAL(aclrtSynchronizeStream(stream), 507899);
    CHECK(strstr(aclGetRecentErrMsg(), "no peer access") != NULL);
    CHECK_OK(aclrtDeviceEnablePeerAccess(1, 0));
    CHECK_OK(aclrtMemcpyAsync(here, 2 * MIB, there, 2 * MIB, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
    CHECK_OK(aclrtSynchronizeStream(stream));
    CHECK(same(here, 2 * MIB, 5));
    CHECK_EQUAL(aclsimLink(0, 1, 0), 0);
    CHECK_OK(aclrtMemcpyAsync(here, 2 * MIB, there, 2 * MIB, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
    CHECK_EQUAL(aclrtSynchronizeStream(stream), 507056);
    aclsimClear();
    CHECK_OK(aclrtMemcpy(here, 2 * MIB, there, 2 * MIB, ACL_MEMCPY_DEVICE_TO_DEVICE));
    CHECK_OK(aclrtDestroyStream(stream));
    CHECK_OK(aclrtFree(here));
    CHECK_OK(aclrtFree(there));
    CHECK_OK(aclrtResetDevice(1));
}

static void test_large(void)
{
    char *device = device_memory(AREA), *other = device_memory(AREA);

    put(device, AREA, 9);
    CHECK_OK(aclrtMemcpy(other + 1, AREA - 1, device, AREA - 1, ACL_MEMCPY_DEVICE_TO_DEVICE));
    CHECK(same(other + 1, AREA - 1, 9));
    CHECK_OK(aclrtMemcpyAsync(other, AREA, device, AREA, ACL_MEMCPY_DEVICE_TO_DEVICE, NULL));
    /* As memmove does. */
    CHECK_OK(aclrtMemcpyAsync(other + 100, AREA, other, AREA - 100, ACL_MEMCPY_DEVICE_TO_DEVICE, NULL));
    CHECK_OK(aclrtSynchronizeStream(NULL));
    CHECK(same(other + 100, AREA - 100, 9));
    CHECK_OK(aclrtFree(device));
    CHECK_OK(aclrtFree(other));
}

static void copy_later(char *to, const char *from, size_t size)
{
    CHECK_OK(aclrtMemcpyAsync(to, size, from, size, ACL_MEMCPY_DEVICE_TO_DEVICE, NULL));
}

/* Streams do several copies at a time, but none of these, each of which needs the one before. They are as large as it
 * takes for a second thread to come, and all there before the first begins. */
static void test_order(void)
{
    enum { PIECE = 128 << 10, STEPS = 60, GROUP = 4 };
    char *chain = device_memory((STEPS + 1) * PIECE), *spare = device_memory(AREA), *third = device_memory(AREA);

    for (unsigned round = 0; round < 10; ++round) {
        put(chain, PIECE, round);
        aclsimPause(1);
        for (unsigned step = 0; step < STEPS; ++step) {
            copy_later(chain + (step + 1) * PIECE, chain + step * PIECE, PIECE); /* read what was written */
        }
        aclsimPause(0);
        CHECK_OK(aclrtSynchronizeStream(NULL));
        CHECK(same(chain + STEPS * PIECE, PIECE, round));
    }
    put(third, STEPS * PIECE, 1);
    for (unsigned round = 0; round < 10; ++round) {
        put(chain, STEPS * PIECE, 2 + round);
        aclsimPause(1);
        for (unsigned step = 0; step < STEPS; step += GROUP) {
            for (unsigned index = step; index < step + GROUP; ++index) {
                copy_later(spare + index * PIECE, chain + index * PIECE, PIECE);
            }
            for (unsigned index = step; index < step + GROUP; ++index) {
                copy_later(chain + index * PIECE, third + index * PIECE, PIECE); /* write over what was read */
            }
        }
        aclsimPause(0);
        CHECK_OK(aclrtSynchronizeStream(NULL));
        CHECK(same(spare, STEPS * PIECE, 2 + round) && same(chain, STEPS * PIECE, 1));
        put(chain, STEPS * PIECE, 2 + round);
        aclsimPause(1);
        for (unsigned step = 0; step < STEPS; ++step) {
            unsigned at = step / (2 * GROUP) * GROUP + step % GROUP; /* and over what was written */
            copy_later(spare + at * PIECE, (step / GROUP % 2 ? third : chain) + at * PIECE, PIECE);
        }
        aclsimPause(0);
        CHECK_OK(aclrtSynchronizeStream(NULL));
        CHECK(same(spare, STEPS / (2 * GROUP) * GROUP * PIECE, 1));
    }
    CHECK_OK(aclrtFree(chain));
    CHECK_OK(aclrtFree(spare));
    CHECK_OK(aclrtFree(third));
}

static void test_batches(void)
{
    enum { COUNT = 64, PIECE = 60000 };
    char                *device = device_memory(AREA), *host = host_memory(AREA), *back = host_memory(AREA);
    void                *dsts[COUNT], *srcs[COUNT];
    size_t               sizes[COUNT], maxs[COUNT], starts[2] = {0, 3}, fail = 0;
    aclrtMemcpyBatchAttr attrs[2] = {{{0, ACL_MEM_LOCATION_TYPE_DEVICE}, {0, ACL_MEM_LOCATION_TYPE_HOST}, {0}},
                                     {{0, ACL_MEM_LOCATION_TYPE_DEVICE}, {0, ACL_MEM_LOCATION_TYPE_HOST}, {0}}};

    for (size_t index = 0; index < COUNT; ++index) {
        dsts[index]  = device + (index * 7 % COUNT) * PIECE;
        srcs[index]  = host + (index * 7 % COUNT) * PIECE;
        sizes[index] = maxs[index] = PIECE;
    }
    fill(host, COUNT * PIECE, 4);
    CHECK_OK(aclrtMemcpyBatch(dsts, maxs, srcs, sizes, COUNT, attrs, starts, 2, &fail));
    CHECK(fail == SIZE_MAX && same(device, COUNT * PIECE, 4));
    maxs[5] = PIECE - 1;
    CHECK_EQUAL(aclrtMemcpyBatch(dsts, maxs, srcs, sizes, COUNT, attrs, starts, 1, &fail), 107000);
    CHECK_EQUAL(fail, 5);
    maxs[5] = PIECE;
    starts[1] = 0;
    CHECK_EQUAL(aclrtMemcpyBatch(dsts, maxs, srcs, sizes, COUNT, attrs, starts, 2, &fail), 107000);
    CHECK_EQUAL(fail, SIZE_MAX);
    CHECK_EQUAL(aclrtMemcpyBatch(dsts, maxs, srcs, sizes, 1, attrs, starts, 2, &fail), 107000);
    attrs[0].srcLoc.type = ACL_MEM_LOCATION_TYPE_DEVICE;
    CHECK_EQUAL(aclrtMemcpyBatchAsync(dsts, maxs, srcs, sizes, COUNT, attrs, starts, 1, &fail, NULL), 207000);
    attrs[0].dstLoc.type = ACL_MEM_LOCATION_TYPE_HOST;
    for (size_t index = 0; index < COUNT; ++index) {
        srcs[index] = dsts[index];
        dsts[index] = back + ((char *)dsts[index] - device);
    }
    CHECK_OK(aclrtMemcpyBatchAsync(dsts, maxs, srcs, sizes, COUNT, attrs, starts, 1, &fail, NULL));
    CHECK_OK(aclrtSynchronizeStream(NULL));
    CHECK(memcmp(back, host, COUNT * PIECE) == 0);
    starts[1] = 1;
    CHECK_EQUAL(aclrtMemcpyBatch(dsts, maxs, srcs, sizes, COUNT, attrs, starts, 2, &fail), 107000); /* two directions */
    CHECK_EQUAL(aclrtMemcpyBatch(dsts, maxs, srcs, sizes, COUNT, attrs, starts, 1, NULL), 100000);
    CHECK_OK(aclrtFree(device));
    CHECK_OK(aclrtFreeHost(host));
    CHECK_OK(aclrtFreeHost(back));
}

/* Memory freed under a stream: the copy is refused, nothing crashes. */
static void test_freed(void)
{
    char *device = device_memory(AREA), *other = device_memory(AREA);

    aclsimPause(1);
    CHECK_OK(aclrtMemcpyAsync(other, AREA, device, AREA, ACL_MEMCPY_DEVICE_TO_DEVICE, NULL));
    CHECK_OK(aclrtFree(device));
    aclsimPause(0);
    CHECK_EQUAL(aclrtSynchronizeStream(NULL), 507899);
    for (unsigned round = 0; round < 50; ++round) {
        aclError code;

        device = device_memory(AREA);
        CHECK_OK(aclrtMemcpyAsync(other, AREA, device, AREA, ACL_MEMCPY_DEVICE_TO_DEVICE, NULL));
        CHECK_OK(aclrtFree(device));
        code = aclrtSynchronizeStream(NULL);
        CHECK(code == ACL_SUCCESS || code == 507899);
    }
    CHECK_OK(aclrtFree(other));
}

void test_copies(void)
{
    test_kernel();
    begin(0);
    test_rules();
    test_devices();
    test_large();
    test_order();
    test_batches();
    test_freed();
    end();
}
