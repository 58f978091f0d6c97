/* Copies between addresses.
 *
 * What is larger than a core's cache goes past it with streaming stores, which save reading the target first, and along
 * four stretches side by side, which keeps more of the hardware's prefetchers busy than one does. */
#include "sim.h"

#include <string.h>

#define LINE ((size_t)64)
#define LANES ((size_t)4)
#define LANE_BYTES ((size_t)4096) /* where a hardware prefetcher stops */
#define SHORT ((size_t)1024)      /* not worth the ragged ends */

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#include <immintrin.h>

__attribute__((target("avx2"))) static inline void line_avx2(char *to, const char *from)
{
    __m256i low  = _mm256_loadu_si256((const __m256i *)from);
    __m256i high = _mm256_loadu_si256((const __m256i *)(from + 32));

    _mm256_stream_si256((__m256i *)to, low);
    _mm256_stream_si256((__m256i *)(to + 32), high);
}

static inline void line_sse2(char *to, const char *from)
{
    for (size_t at = 0; at < LINE; at += 16) {
        _mm_stream_si128((__m128i *)(to + at), _mm_loadu_si128((const __m128i *)(from + at)));
    }
}

#define DEFINE_STREAM(_isa, _attribute)                                                                                \
    _attribute static void stream_##_isa(char *to, const char *from, size_t size)                                      \
    {                                                                                                                  \
        const size_t head = -(uintptr_t)to & (LINE - 1);                                                               \
                                                                                                                       \
        memcpy(to, from, head);                                                                                        \
        to   += head;                                                                                                  \
        from += head;                                                                                                  \
        size -= head;                                                                                                  \
        while (size >= LANES * LINE) {                                                                                 \
            const size_t lane = size >= LANES * LANE_BYTES ? LANE_BYTES : size / (LANES * LINE) * LINE;                \
                                                                                                                       \
            for (size_t at = 0; at < lane; at += LINE) {                                                               \
                line_##_isa(to + at, from + at);                                                                       \
                line_##_isa(to + lane + at, from + lane + at);                                                         \
                line_##_isa(to + 2 * lane + at, from + 2 * lane + at);                                                 \
                line_##_isa(to + 3 * lane + at, from + 3 * lane + at);                                                 \
            }                                                                                                          \
            to   += LANES * lane;                                                                                      \
            from += LANES * lane;                                                                                      \
            size -= LANES * lane;                                                                                      \
        }                                                                                                              \
        memcpy(to, from, size);                                                                                        \
    }

DEFINE_STREAM(avx2, __attribute__((target("avx2"))))
DEFINE_STREAM(sse2, )

static void stream(char *to, const char *from, size_t size)
{
    if (__builtin_cpu_supports("avx2")) {
        stream_avx2(to, from, size);
    } else {
        stream_sse2(to, from, size);
    }
}

/* Nothing else orders streaming stores, not even a lock. */
void sim_kernel_fence(void)
{
    _mm_sfence();
}
#else
static void stream(char *to, const char *from, size_t size)
{
    memcpy(to, from, size);
}

void sim_kernel_fence(void)
{
}
#endif

void sim_kernel_copy(char *to, const char *from, size_t size, bool streaming)
{
    if ((uintptr_t)to - (uintptr_t)from < size || (uintptr_t)from - (uintptr_t)to < size) {
        memmove(to, from, size);
    } else if (streaming && size >= SHORT) {
        stream(to, from, size);
    } else {
        memcpy(to, from, size);
    }
}
