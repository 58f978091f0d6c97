/* Shared by the tests: checks that end the program, and a device to begin with. */
#ifndef CACHEFW_SIM_CHECK_H
#define CACHEFW_SIM_CHECK_H

#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(_condition)                                                                                              \
    do {                                                                                                               \
        if (!(_condition)) {                                                                                           \
            check_failed(__FILE__, __LINE__, #_condition);                                                             \
        }                                                                                                              \
    } while (0)

#define CHECK_EQUAL(_left, _right)                                                                                     \
    do {                                                                                                               \
        long long left_ = (long long)(_left), right_ = (long long)(_right);                                            \
        if (left_ != right_) {                                                                                         \
            fprintf(stderr, "%s is %lld, %s is %lld\n", #_left, left_, #_right, right_);                               \
            check_failed(__FILE__, __LINE__, "not equal");                                                             \
        }                                                                                                              \
    } while (0)

#define CHECK_OK(_call) CHECK_EQUAL(_call, ACL_SUCCESS)

#define MIB ((size_t)1 << 20)

_Noreturn void check_failed(const char *file, int line, const char *what);

/* aclInit and aclrtSetDevice, and the other way round with a look whether all is gone. */
void begin(int32_t device);
void end(void);

aclsimStatistics stats(void);

void *device_memory(size_t size);
void *host_memory(size_t size);

/* Never 0, so that a byte that was not written shows. */
void fill(void *memory, size_t size, unsigned seed);

/* Through the simulator, so that they work in strict mode. */
void put(void *device, size_t size, unsigned seed);
int  same(const void *device, size_t size, unsigned seed);

void test_calls(void);
void test_memory(void);
void test_copies(void);
void test_streams(void);
void test_faults(void);
void test_shared(void);
void test_processes(void);
void test_vmm(void);

/* The side of test_shared and test_processes that is another process. */
int peer_main(int argc, char **argv);

#endif
