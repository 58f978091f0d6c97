/* How fast copies are, as ratios to the plain copy between two mappings of shared memory in the same run. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/mman.h>
#include <unistd.h>

#define ROUNDS 7
#define BLOCK ((size_t)128 << 10)
#define BLOCKS 8192
#define LARGE ((size_t)256 << 20)

_Noreturn void check_failed(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: %s\n", file, line, what);
    exit(1);
}

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static char *shared_memory(size_t size)
{
    int   fd     = memfd_create("bench", MFD_CLOEXEC);
    char *memory = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, (off_t)size) == 0) {
        char *room = mmap(NULL, size + SIM_HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        memory = mmap((void *)sim_round_up((uintptr_t)room, SIM_HUGE_PAGE), size, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_FIXED, fd, 0);
        madvise(memory, size, MADV_HUGEPAGE);
        memset(memory, 1, size);
    }
    CHECK(memory != MAP_FAILED);
    return memory;
}

typedef struct {
    char       *to, *from;
    size_t      block, count;
    aclrtStream streams[2];
    unsigned    num_streams;
} work;

static size_t place(size_t index)
{
    return index * 4099 % BLOCKS;
}

/* The limit: the better of plain memcpy and streaming stores, on one thread. */
static double plain(const work *some, bool streaming)
{
    double start = now();

    for (size_t index = 0; index < some->count; ++index) {
        size_t at = some->count > 1 ? place(index) * some->block : 0;

        if (streaming) {
            sim_kernel_copy(some->to + at, some->from + at, some->block, true);
        } else {
            memcpy(some->to + at, some->from + at, some->block);
        }
    }
    return now() - start;
}

static double simulated(const work *some)
{
    double start = now();

    for (size_t index = 0; index < some->count; ++index) {
        size_t at = some->count > 1 ? place(index) * some->block : 0;

        CHECK_OK(aclrtMemcpyAsync(some->to + at, some->block, some->from + at, some->block, ACL_MEMCPY_DEVICE_TO_DEVICE,
                                  some->streams[index % some->num_streams]));
    }
    for (unsigned index = 0; index < some->num_streams; ++index) {
        CHECK_OK(aclrtSynchronizeStream(some->streams[index]));
    }
    return now() - start;
}

static int compare(const void *left, const void *right)
{
    return *(const double *)left < *(const double *)right ? -1 : 1;
}

static double median(double *values)
{
    qsort(values, ROUNDS, sizeof(double), compare);
    return values[ROUNDS / 2];
}

static void compare_copies(const char *name, work *device, work *shared)
{
    double limits[3][ROUNDS], times[2][ROUNDS], best;
    double bytes = (double)device->block * (double)device->count;

    for (unsigned round = 0; round < ROUNDS; ++round) {
        limits[0][round] = plain(shared, false);
        limits[1][round] = plain(shared, true);
        for (unsigned streams = 1; streams <= 2; ++streams) {
            device->num_streams       = streams;
            times[streams - 1][round] = simulated(device);
        }
    }
    best = median(limits[0]) < median(limits[1]) ? limits[0][ROUNDS / 2] : limits[1][ROUNDS / 2];
    printf("SIMULATED %-16s memcpy %5.1f GB/s, streaming %5.1f GB/s; one stream %5.1f GB/s (ratio %.2f), two streams "
           "%5.1f GB/s (ratio %.2f)\n",
           name, bytes / median(limits[0]) * 1e-9, bytes / median(limits[1]) * 1e-9, bytes / median(times[0]) * 1e-9,
           best / median(times[0]), bytes / median(times[1]) * 1e-9, best / median(times[1]));
}

static void task_cost(work *device)
{
    const unsigned count = 100000;
    double         start = now();

    for (unsigned index = 0; index < count; ++index) {
        CHECK_OK(aclrtMemcpyAsync(device->to + index % 1024 * 64, 64, device->from + index % 1024 * 64, 64,
                                  ACL_MEMCPY_DEVICE_TO_DEVICE, device->streams[0]));
    }
    CHECK_OK(aclrtSynchronizeStream(device->streams[0]));
    printf("SIMULATED task of 64 bytes, many in a row: %.2f us each\n", (now() - start) / count * 1e6);
    start = now();
    for (unsigned index = 0; index < 2000; ++index) {
        CHECK_OK(aclrtMemcpyAsync(device->to, 64, device->from, 64, ACL_MEMCPY_DEVICE_TO_DEVICE, device->streams[0]));
        CHECK_OK(aclrtSynchronizeStream(device->streams[0]));
    }
    printf("SIMULATED task of 64 bytes, waited for: %.2f us each\n", (now() - start) / 2000 * 1e6);
}

int main(void)
{
    const size_t total  = BLOCK * BLOCKS;
    work         device = {.block = LARGE, .count = 1}, shared = {.block = LARGE, .count = 1};
    void        *to, *from;

    CHECK_OK(aclInit(NULL));
    CHECK_OK(aclrtSetDevice(0));
    CHECK_OK(aclrtMallocAlign32(&to, total, ACL_MEM_MALLOC_HUGE_ONLY));
    CHECK_OK(aclrtMallocAlign32(&from, total, ACL_MEM_MALLOC_HUGE_ONLY));
    CHECK_OK(aclrtMemset(to, total, 1, total));
    CHECK_OK(aclrtMemset(from, total, 2, total));
    CHECK_OK(aclrtCreateStream(&device.streams[0]));
    CHECK_OK(aclrtCreateStream(&device.streams[1]));
    device.to   = to;
    device.from = from;
    shared.to   = shared_memory(total);
    shared.from = shared_memory(total);
    compare_copies("1 x 256 MiB", &device, &shared);
    device.block = shared.block = BLOCK;
    device.count = shared.count = BLOCKS;
    compare_copies("8192 x 128 KiB", &device, &shared);
    device.block = shared.block = BLOCK / 8;
    compare_copies("8192 x 16 KiB", &device, &shared);
    task_cost(&device);
    CHECK_OK(aclFinalize());
    return 0;
}
