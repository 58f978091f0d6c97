/* The limits of this machine: the same bytes moved by loops that know nothing of cachefw. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { RAW_MEMCPY = 0, RAW_STREAM_ONE = 1, RAW_STREAM_FOUR = 2, RAW_READV = 3 };

/* `count` pieces; for RAW_READV `source` holds addresses in process pid. */
typedef struct {
    int             way, threads, pid;
    uint64_t        count;
    const uint64_t *to, *source, *length;
} raw_work;

#define LINE 64u
#define PAGE 4096u
#define VECTORS 1024

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2"))) static inline void line(char *to, const char *from)
{
    __m256i a = _mm256_loadu_si256((const __m256i *)from);
    __m256i b = _mm256_loadu_si256((const __m256i *)(from + 32));

    _mm256_stream_si256((__m256i *)to, a);
    _mm256_stream_si256((__m256i *)(to + 32), b);
}

__attribute__((target("avx2"))) static void stream(char *to, const char *from, uint64_t length, int lanes)
{
    /* The workloads align everything to lines; whatever else comes is copied plainly. */
    if (((uintptr_t)to | length) % LINE) {
        memcpy(to, from, length);
        return;
    }
    for (; lanes == 4 && length >= 4 * PAGE; to += 4 * PAGE, from += 4 * PAGE, length -= 4 * PAGE) {
        for (unsigned at = 0; at < PAGE; at += LINE) {
            line(to + at, from + at);
            line(to + PAGE + at, from + PAGE + at);
            line(to + 2 * PAGE + at, from + 2 * PAGE + at);
            line(to + 3 * PAGE + at, from + 3 * PAGE + at);
        }
    }
    for (; length > 0; to += LINE, from += LINE, length -= LINE) {
        line(to, from);
    }
}

static int can_stream(void)
{
    return __builtin_cpu_supports("avx2") != 0;
}

static void fence(void)
{
    _mm_sfence();
}
#else
static void stream(char *to, const char *from, uint64_t length, int lanes)
{
    (void)lanes;
    memcpy(to, from, length);
}

static int can_stream(void)
{
    return 0;
}

static void fence(void)
{
}
#endif

static int copy(const raw_work *work)
{
    for (uint64_t i = 0; i < work->count; ++i) {
        char       *to   = (char *)(uintptr_t)work->to[i];
        const char *from = (const char *)(uintptr_t)work->source[i];

        if (i + 1 < work->count) {
            __builtin_prefetch((const char *)(uintptr_t)work->source[i + 1]);
        }
        if (work->way == RAW_MEMCPY) {
            memcpy(to, from, work->length[i]);
        } else {
            stream(to, from, work->length[i], work->way == RAW_STREAM_FOUR ? 4 : 1);
        }
    }
    if (work->way != RAW_MEMCPY) {
        fence();
    }
    return 0;
}

static int readv_all(const raw_work *work)
{
    struct iovec to[VECTORS], from[VECTORS];

    for (uint64_t done = 0; done < work->count;) {
        int     n     = 0;
        ssize_t bytes = 0;

        for (; n < VECTORS && done < work->count; ++n, ++done) {
            to[n]   = (struct iovec){(void *)(uintptr_t)work->to[done], work->length[done]};
            from[n] = (struct iovec){(void *)(uintptr_t)work->source[done], work->length[done]};
            bytes += (ssize_t)work->length[done];
        }
        if (process_vm_readv(work->pid, to, n, from, n, 0) != bytes) {
            return -1;
        }
    }
    return 0;
}

static int move(const raw_work *work)
{
    return work->way == RAW_READV ? readv_all(work) : copy(work);
}

static void *second(void *work)
{
    return (void *)(intptr_t)move(work);
}

/* 0, or -1 when not every byte was moved. */
static int raw_run(const raw_work *work)
{
    raw_work  one = *work, two = *work;
    uint64_t  halves[2], to, from;
    pthread_t thread;
    void     *outcome = NULL;
    int       status;

    if (work->threads < 2) {
        return move(work);
    }
    one.count = work->count / 2;
    two.count = work->count - one.count;
    two.to += one.count, two.source += one.count, two.length += one.count;
    if (work->count == 1) {
        halves[0] = work->length[0] / 2 / PAGE * PAGE;
        halves[1] = work->length[0] - halves[0];
        to        = work->to[0] + halves[0];
        from      = work->source[0] + halves[0];
        one.count = 1, one.length = &halves[0];
        two.to = &to, two.source = &from, two.length = &halves[1];
    }
    if (pthread_create(&thread, NULL, second, &two) != 0) {
        return -1;
    }
    status = move(&one);
    pthread_join(thread, &outcome);
    return status != 0 || outcome != NULL ? -1 : 0;
}
