/* Asynchrony, order across streams, timeouts, errors. No test waits for time to pass: streams are paused instead. */
#include "check.h"

static void test_asynchrony(void)
{
    char             *device = device_memory(2 * MIB), *host = host_memory(4096);
    aclrtStream       stream;
    aclrtEvent        event;
    aclrtStreamStatus status;
    aclrtEventRecordedStatus recorded;

    CHECK_OK(aclrtCreateStreamWithConfig(&stream, 0, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC));
    CHECK_EQUAL(aclrtCreateStreamWithConfig(&stream, 8, 0), 107000);
    CHECK_OK(aclrtCreateEventExWithFlag(&event, ACL_EVENT_SYNC));
    CHECK_OK(aclrtStreamQuery(stream, &status));
    CHECK_EQUAL(status, ACL_STREAM_STATUS_COMPLETE);
    CHECK_OK(aclrtQueryEventStatus(event, &recorded));
    CHECK_EQUAL(recorded, ACL_EVENT_RECORDED_STATUS_NOT_READY);
    CHECK_EQUAL(aclrtSynchronizeEvent(event), 107000);
    CHECK_OK(aclrtStreamWaitEvent(stream, event)); /* never recorded: nothing to wait for */
    put(device, 4096, 1);
    memset(host, 0, 4096);
    aclsimPause(1);
    CHECK_OK(aclrtMemcpyAsync(host, 4096, device, 4096, ACL_MEMCPY_DEVICE_TO_HOST, stream));
    CHECK_OK(aclrtRecordEvent(event, stream));
    CHECK_OK(aclrtStreamQuery(stream, &status));
    CHECK_EQUAL(status, ACL_STREAM_STATUS_NOT_READY);
    CHECK_OK(aclrtQueryEventStatus(event, &recorded));
    CHECK_EQUAL(recorded, ACL_EVENT_RECORDED_STATUS_NOT_READY);
    CHECK_EQUAL(aclrtSynchronizeStreamWithTimeout(stream, 0), 507046);
    CHECK_EQUAL(aclrtSynchronizeStreamWithTimeout(stream, 5), 507046);
    CHECK_EQUAL(aclrtSynchronizeStreamWithTimeout(stream, -2), 107000);
    CHECK_EQUAL(host[0], 0);
    aclsimPause(0);
    CHECK_OK(aclrtSynchronizeEvent(event));
    CHECK_OK(aclrtQueryEventStatus(event, &recorded));
    CHECK_EQUAL(recorded, ACL_EVENT_RECORDED_STATUS_COMPLETE);
    CHECK_OK(aclrtSynchronizeStreamWithTimeout(stream, 100000));
    CHECK(same(device, 4096, 1) && host[0] != 0);
    CHECK_OK(aclrtDestroyEvent(event));
    CHECK_EQUAL(aclrtDestroyEvent(event), 107017);
    CHECK_OK(aclrtDestroyStream(stream));
    CHECK_EQUAL(aclrtDestroyStream(stream), 107017);
    CHECK_OK(aclrtFree(device));
    CHECK_OK(aclrtFreeHost(host));
}

/* Pageable memory is not there later: such a copy has happened when the call returns. */
static void test_pageable(void)
{
    char *device = device_memory(2 * MIB), *bytes = malloc(MIB);

    CHECK(bytes != NULL);
    fill(bytes, MIB, 6);
    CHECK_OK(aclrtMemcpyAsync(device, MIB, bytes, MIB, ACL_MEMCPY_HOST_TO_DEVICE, NULL));
    free(bytes);
    CHECK(same(device, MIB, 6));
    CHECK_OK(aclrtFree(device));
}

/* A ring of streams, each of which waits for the one before, 200 times round. */
static void test_events(void)
{
    enum { STREAMS = 4, ROUNDS = 200, PIECE = 64 << 10 };
    char       *device = device_memory((STREAMS + 1) * (size_t)PIECE);
    aclrtStream streams[STREAMS];
    aclrtEvent  events[STREAMS];

    for (unsigned index = 0; index < STREAMS; ++index) {
        CHECK_OK(aclrtCreateStream(&streams[index]));
        CHECK_OK(aclrtCreateEvent(&events[index]));
    }
    for (unsigned round = 0; round < ROUNDS; ++round) {
        put(device, PIECE, round);
        for (unsigned index = 0; index < STREAMS; ++index) {
            if (index > 0) {
                CHECK_OK(aclrtStreamWaitEvent(streams[index], events[index - 1]));
            }
            CHECK_OK(aclrtMemcpyAsync(device + (index + 1) * PIECE, PIECE, device + index * PIECE, PIECE,
                                      ACL_MEMCPY_DEVICE_TO_DEVICE, streams[index]));
            CHECK_OK(aclrtRecordEvent(events[index], streams[index]));
        }
        CHECK_OK(aclrtSynchronizeEvent(events[STREAMS - 1]));
        CHECK(same(device + STREAMS * PIECE, PIECE, round));
    }
    for (unsigned index = 0; index < STREAMS; ++index) {
        CHECK_OK(aclrtDestroyEvent(events[index]));
        CHECK_OK(aclrtDestroyStream(streams[index]));
    }
    CHECK_OK(aclrtFree(device));
}

static void test_errors(void)
{
    char       *device = device_memory(2 * MIB);
    aclrtStream stream, other;
    aclrtEvent  event;

    CHECK_OK(aclrtCreateStream(&stream));
    CHECK_OK(aclrtCreateStream(&other));
    CHECK_OK(aclrtCreateEvent(&event));
    CHECK_EQUAL(aclsimFail("task", 2, 507053), 0);
    put(device, 64, 1);
    for (unsigned index = 1; index <= 3; ++index) {
        CHECK_OK(aclrtMemcpyAsync(device + index * 4096, 64, device, 64, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
    }
    CHECK_OK(aclrtRecordEvent(event, stream));
    CHECK_EQUAL(aclrtSynchronizeEvent(event), 507053); /* seen, not taken */
    CHECK_OK(aclrtSynchronizeStream(other));
    CHECK_EQUAL(aclrtSynchronizeStream(stream), 507053);
    CHECK_OK(aclrtSynchronizeStream(stream));
    CHECK(same(device + 4096, 64, 1) && !same(device + 8192, 64, 1) && same(device + 3 * 4096, 64, 1));
    CHECK_OK(aclrtDestroyEvent(event));
    CHECK_OK(aclrtDestroyStream(stream));
    CHECK_OK(aclrtDestroyStream(other));
    CHECK_OK(aclrtFree(device));
}

/* Destroying waits for what is queued, also when paused; resetting drops it. */
static void test_endings(void)
{
    char       *device = device_memory(2 * MIB);
    aclrtStream stream;

    put(device, 64, 1);
    CHECK_OK(aclrtCreateStream(&stream));
    aclsimPause(1);
    CHECK_OK(aclrtMemcpyAsync(device + 4096, 64, device, 64, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
    CHECK_OK(aclrtDestroyStream(stream));
    CHECK(same(device + 4096, 64, 1));
    CHECK_OK(aclrtCreateStream(&stream));
    for (unsigned index = 0; index < 1000; ++index) {
        CHECK_OK(aclrtMemcpyAsync(device + 8192, 64, device, 64, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
    }
    CHECK_OK(aclrtResetDevice(0));
    CHECK_EQUAL(stats().streams, 0);
    aclsimPause(0);
    CHECK_OK(aclrtSetDevice(0));
}

static void *use_streams(void *argument)
{
    char *device;

    CHECK_OK(aclrtSetDevice(*(int *)argument % 2));
    device = device_memory(2 * MIB);
    for (unsigned round = 0; round < 100; ++round) {
        aclrtStream stream;

        put(device, 4096, round);
        CHECK_OK(aclrtCreateStream(&stream));
        CHECK_OK(aclrtMemcpyAsync(device + MIB, 4096, device, 4096, ACL_MEMCPY_DEVICE_TO_DEVICE, stream));
        CHECK_OK(round % 2 ? aclrtSynchronizeStream(stream) : aclrtSynchronizeDevice());
        CHECK(same(device + MIB, 4096, round));
        CHECK_OK(aclrtDestroyStream(stream));
    }
    CHECK_OK(aclrtFree(device));
    return NULL;
}

static void test_threads(void)
{
    pthread_t threads[4];
    int       numbers[4] = {0, 1, 2, 3};

    for (unsigned index = 0; index < 4; ++index) {
        CHECK_EQUAL(pthread_create(&threads[index], NULL, use_streams, &numbers[index]), 0);
    }
    for (unsigned index = 0; index < 4; ++index) {
        pthread_join(threads[index], NULL);
    }
}

/* With a delay set, the same bytes arrive. */
static void test_delay(void)
{
    char *device;

    setenv("ACLSIM_DELAY_US", "100", 1);
    begin(0);
    device = device_memory(2 * MIB);
    put(device, 4096, 1);
    for (unsigned step = 0; step < 10; ++step) {
        CHECK_OK(aclrtMemcpyAsync(device + (step + 1) * 4096, 4096, device + step * 4096, 4096,
                                  ACL_MEMCPY_DEVICE_TO_DEVICE, NULL));
    }
    CHECK_OK(aclrtSynchronizeStream(NULL));
    CHECK(same(device + 10 * 4096, 4096, 1));
    CHECK_OK(aclrtFree(device));
    end();
    unsetenv("ACLSIM_DELAY_US");
}

void test_streams(void)
{
    test_delay();
    begin(0);
    test_asynchrony();
    test_pageable();
    test_events();
    test_errors();
    test_endings();
    test_threads();
    end();
}
