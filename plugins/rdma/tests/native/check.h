/* Shared by the C tests: a check that ends the program, and a pair of engines over the stand-in. */
#ifndef CACHEFW_CHECK_H
#define CACHEFW_CHECK_H

#include "internal.h"
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(_condition)                                                                          \
    do {                                                                                           \
        if (!(_condition)) {                                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #_condition);                       \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define CHECK_EQUAL(_left, _right)                                                                 \
    do {                                                                                           \
        long long left_ = (long long)(_left), right_ = (long long)(_right);                        \
        if (left_ != right_) {                                                                     \
            fprintf(stderr, "%s:%d: %s is %lld, %s is %lld\n", __FILE__, __LINE__, #_left, left_,  \
                    #_right, right_);                                                              \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define SECOND 1000000000ll

extern cfw_ucx         *ucx;     /* the stand-in, opened */
extern standin_control *control; /* what it is told */

static inline uint64_t addr(const void *pointer)
{
    return (uintptr_t)pointer;
}

/* An engine, a channel to nowhere, and one region: all memory is this process's. */
typedef struct {
    cfw_engine  *engine;
    cfw_channel *channel;
    cfw_remote  *remote;
    char        *here, *there;
    uint64_t     size;
} bench;

bench      make_bench(int error_mode);
void       free_bench(bench *made);
cfw_batch *make_batch(const bench *made, uint32_t operation, uint64_t item, uint64_t count);
cfw_job   *post(cfw_batch *batch, uint32_t limit);
cfw_result result_of(cfw_job *job);

void test_threads(void);

#endif
