/* Copies between addresses of this process.
 *
 * A large copy is bound by memory. Two things help a core there. Streaming
 * stores save reading the target's lines only to overwrite them. And walking
 * four stretches of memory side by side keeps four of the hardware's
 * prefetchers busy, each of which ends at a page: a quarter to a half more
 * than one stretch, on every vector width tried. The width itself hardly
 * matters (512 bits were no faster than 256, 128 bits 4 % slower), so there is
 * one kernel that every x86-64 runs and one for AVX2.
 */
#include "internal.h"

#include <string.h>

#define LINE 64u
#define LANES 4u
#define LANE_BYTES 4096u /* a page: where a hardware prefetcher stops */

#if defined(__x86_64__)
#include <immintrin.h>

#define TARGET_SSE2
#define TARGET_AVX2 __attribute__((target("avx2")))

static inline void line_sse2(char *to, const char *from)
{
    __m128i a = _mm_loadu_si128((const __m128i *)(from));
    __m128i b = _mm_loadu_si128((const __m128i *)(from + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(from + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(from + 48));

    _mm_stream_si128((__m128i *)(to), a);
    _mm_stream_si128((__m128i *)(to + 16), b);
    _mm_stream_si128((__m128i *)(to + 32), c);
    _mm_stream_si128((__m128i *)(to + 48), d);
}

TARGET_AVX2 static inline void line_avx2(char *to, const char *from)
{
    __m256i a = _mm256_loadu_si256((const __m256i *)(from));
    __m256i b = _mm256_loadu_si256((const __m256i *)(from + 32));

    _mm256_stream_si256((__m256i *)(to), a);
    _mm256_stream_si256((__m256i *)(to + 32), b);
}

/* The same loop for every width: the lanes are LANE_BYTES apart, then, for
 * what is shorter, a quarter of the rest. */
#define DEFINE_STREAM(_isa, _ISA)                                                                  \
    TARGET_##_ISA static void stream_##_isa(char *to, const char *from, size_t length)             \
    {                                                                                              \
        size_t head = -(uintptr_t)to & (LINE - 1);                                                 \
                                                                                                   \
        if (length < head + LINE) {                                                                \
            memcpy(to, from, length);                                                              \
            return;                                                                                \
        }                                                                                          \
        memcpy(to, from, head);                                                                    \
        to     += head;                                                                            \
        from   += head;                                                                            \
        length -= head;                                                                            \
        while (length >= LANES * LINE) {                                                           \
            size_t lane = length >= LANES * LANE_BYTES ? LANE_BYTES                                \
                                                       : length / (LANES * LINE) * LINE;           \
            for (size_t at = 0; at < lane; at += LINE) {                                           \
                line_##_isa(to + at, from + at);                                                   \
                line_##_isa(to + lane + at, from + lane + at);                                     \
                line_##_isa(to + 2 * lane + at, from + 2 * lane + at);                             \
                line_##_isa(to + 3 * lane + at, from + 3 * lane + at);                             \
            }                                                                                      \
            to     += LANES * lane;                                                                \
            from   += LANES * lane;                                                                \
            length -= LANES * lane;                                                                \
        }                                                                                          \
        for (; length >= LINE; length -= LINE, to += LINE, from += LINE) {                         \
            line_##_isa(to, from);                                                                 \
        }                                                                                          \
        memcpy(to, from, length);                                                                  \
    }

DEFINE_STREAM(sse2, SSE2)
DEFINE_STREAM(avx2, AVX2)

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") != 0;
}

/* Streaming stores are ordered by nothing else, not even by a lock. */
static void fence(void)
{
    _mm_sfence();
}
#else
static void fence(void)
{
}
#endif

static bool always(void)
{
    return true;
}

static void plain(char *to, const char *from, size_t length)
{
    memcpy(to, from, length);
}

const cfw_kernel cfw_kernels[] = {
#if defined(__x86_64__)
    {"avx2", has_avx2, stream_avx2},
    {"sse2", always, stream_sse2},
#endif
    {"plain", always, plain},
    {NULL, NULL, NULL},
};

static const cfw_kernel *best_kernel(void)
{
    const cfw_kernel *kernel = cfw_kernels;

    while (!kernel->usable()) {
        ++kernel;
    }
    return kernel;
}

/* The lines that the next item begins with are the ones no hardware prefetcher
 * can know of: 5 to 10 % for scattered items of 16 KiB. */
static inline void prefetch_item(const char *from)
{
    for (unsigned line = 0; line < LANES; ++line) {
        __builtin_prefetch(from + line * LINE);
    }
}

static void copy_streaming(const uint64_t *to, const uint64_t *from, const uint64_t *length,
                           uint64_t offset, uint64_t bytes)
{
    const cfw_kernel *kernel = best_kernel();

    while (bytes > 0) {
        uint64_t    size   = *length - offset < bytes ? *length - offset : bytes;
        char       *target = (char *)(uintptr_t)(*to + offset);
        const char *source = (const char *)(uintptr_t)(*from + offset);

        bytes -= size;
        if (bytes > 0) {
            prefetch_item((const char *)(uintptr_t)from[1]);
        }
        if (size >= CFW_STREAM_ITEM) {
            kernel->copy(target, source, size);
        } else if (size > 0) {
            memcpy(target, source, size);
        }
        offset = 0;
        ++to, ++from, ++length;
    }
    fence();
}

static void copy_cached(const uint64_t *to, const uint64_t *from, const uint64_t *length,
                        uint64_t offset, uint64_t bytes)
{
    while (bytes > 0) {
        uint64_t size = *length - offset < bytes ? *length - offset : bytes;

        /* An empty item may carry any address, which memcpy must not see. */
        if (size > 0) {
            memcpy((char *)(uintptr_t)(*to + offset),
                   (const char *)(uintptr_t)(*from + offset), size);
        }
        bytes -= size;
        offset = 0;
        ++to, ++from, ++length;
    }
}

void cfw_copy_move(const cfw_part *part, uint64_t item, uint64_t offset, uint64_t bytes,
                   bool streaming)
{
    const uint64_t *to   = (part->op == CFW_COPY_IN ? part->local : part->remote) + item;
    const uint64_t *from = (part->op == CFW_COPY_IN ? part->remote : part->local) + item;

    if (streaming) {
        copy_streaming(to, from, part->length + item, offset, bytes);
    } else {
        copy_cached(to, from, part->length + item, offset, bytes);
    }
}
