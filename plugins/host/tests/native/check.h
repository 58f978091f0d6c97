/* Shared by the C tests: a check that ends the program, and bytes to compare. */
#ifndef CACHEFW_CHECK_H
#define CACHEFW_CHECK_H

#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

static inline uint64_t addr(const void *pointer)
{
    return (uintptr_t)pointer;
}

/* Never 0, so that a byte that was not written shows. */
static inline void fill(void *memory, size_t size, unsigned seed)
{
    unsigned char *byte = memory;

    for (size_t at = 0; at < size; ++at) {
        byte[at] = (unsigned char)(1 + (at * 7 + at / 251 + seed * 31) % 255);
    }
}

static inline char *map_memory(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    CHECK(memory != MAP_FAILED);
    return memory;
}

/* Equal items over two areas, in a scattered order. */
typedef struct {
    uint64_t *local, *remote, *length;
    cfw_part  part;
} items;

static inline items make_items(uint32_t op, int pid, const char *local, const char *remote,
                               uint64_t size, uint64_t count)
{
    items all = {malloc(count * 8), malloc(count * 8), malloc(count * 8), {0}};

    CHECK(all.local && all.remote && all.length && count % 7 != 0);
    for (uint64_t index = 0; index < count; ++index) {
        uint64_t place = index * 7 % count;
        all.local[index]  = addr(local) + place * size;
        all.remote[index] = addr(remote) + place * size;
        all.length[index] = size;
    }
    all.part = (cfw_part){op, pid, all.local, all.remote, all.length, count};
    return all;
}

static inline void free_items(items *all)
{
    free(all->local);
    free(all->remote);
    free(all->length);
}

static inline cfw_batch *make_batch(const cfw_part *parts, uint32_t num_parts)
{
    cfw_batch *batch = NULL;

    CHECK_EQUAL(cfw_batch_create(parts, num_parts, &batch), 0);
    return batch;
}

void test_cma(void);
void test_jobs(void);
void test_clients(void);
void test_streams(void);
void test_tls(void);
void test_hostile(void);

#endif
