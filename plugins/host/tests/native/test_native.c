/* Checks of the native half without Python: kernels, batches and segments here,
 * the rest beside. Arguments choose groups; none means all. */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/wait.h>

/* ---- kernels ---------------------------------------------------------- */

#define GUARD 96
#define GUARD_BYTE 0xA5

static void check_copy(const cfw_kernel *kernel, char *area, const char *source, size_t shift,
                       size_t length)
{
    char *to = area + GUARD + shift;

    memset(area, GUARD_BYTE, GUARD + shift + length + GUARD);
    kernel->copy(to, source, length);
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
    CHECK(memcmp(to, source, length) == 0);
    for (size_t at = 0; at < GUARD; ++at) {
        CHECK((unsigned char)to[length + at] == GUARD_BYTE);
        CHECK((unsigned char)to[-1 - (ptrdiff_t)at] == GUARD_BYTE);
    }
}

static void test_kernels(void)
{
    const size_t large[] = {4095,  4096,  4097,        16383,       16384,          16385,
                            20000, 65536, 1024 * 1024, 1024 * 1025, 3 * 1024 * 1024 + 1};
    const size_t room    = 4 * 1024 * 1024;
    char        *source  = aligned_alloc(64, room);
    char        *area    = aligned_alloc(64, room);
    unsigned     tried   = 0;

    CHECK(source && area);
    fill(source, room, 1);
    for (const cfw_kernel *kernel = cfw_kernels; kernel->name != NULL; ++kernel) {
        if (!kernel->usable()) {
            continue;
        }
        ++tried;
        for (size_t shift = 0; shift <= 70; ++shift) {
            for (size_t length = 0; length <= 600; ++length) {
                check_copy(kernel, area, source + (shift * 13 + length) % 71, shift, length);
            }
        }
        for (size_t index = 0; index < sizeof(large) / sizeof(large[0]); ++index) {
            for (size_t shift = 0; shift <= 70; shift += 14) {
                check_copy(kernel, area, source + 70 - shift, shift, large[index]);
            }
        }
    }
    CHECK(tried > 0);
    free(source);
    free(area);
}

/* ---- batches ---------------------------------------------------------- */

static void test_batch_refusals(void)
{
    uint64_t   address = 0, huge[2] = {UINT64_MAX, 1};
    cfw_batch *batch = (cfw_batch *)&address;
    cfw_part   part  = {CFW_COPY_IN, 0, &address, &address, huge, 1};
    cfw_part   twice[2] = {part, {CFW_COPY_IN, 0, &address, &address, huge + 1, 1}};

    CHECK_EQUAL(cfw_batch_create(twice, 2, &batch), -EOVERFLOW);
    part.count = 2;
    CHECK_EQUAL(cfw_batch_create(&part, 1, &batch), -EOVERFLOW);
    part.length = NULL;
    CHECK_EQUAL(cfw_batch_create(&part, 1, &batch), -EINVAL);
    part.op = CFW_NET_WRITE + 1, part.count = 0;
    CHECK_EQUAL(cfw_batch_create(&part, 1, &batch), -EINVAL);
    CHECK_EQUAL(cfw_batch_create(NULL, 1, &batch), -EINVAL);
    CHECK(batch == (cfw_batch *)&address);
}

static void test_batch_empty(void)
{
    uint64_t   nowhere[3] = {0, 1, UINT64_MAX}, nothing[3] = {0, 0, 0};
    cfw_part   parts[2] = {{CFW_COPY_IN, 0, NULL, NULL, NULL, 0},
                           {CFW_CMA_READ, 1, nowhere, nowhere, nothing, 3}};
    cfw_result result;

    for (uint32_t num_parts = 0; num_parts <= 2; ++num_parts) {
        cfw_batch *batch = make_batch(num_parts ? parts : NULL, num_parts);
        memset(&result, 0xff, sizeof(result));
        CHECK_EQUAL(cfw_batch_run(batch, &result), 0);
        CHECK(result.status == 0 && result.bytes == 0);
        cfw_batch_destroy(batch);
    }
}

/* Both directions, empty items and empty parts between, small and streaming. */
static void test_batch_mixed(uint64_t unit)
{
    const size_t size = unit * 8;
    char        *here = map_memory(size), *there = map_memory(size);
    uint64_t     none[2]   = {0, 0};
    uint64_t     local[4]  = {addr(here), 0, addr(here) + unit, addr(here) + unit * 3 + 5};
    uint64_t     remote[4] = {addr(there) + 1, 0, addr(there) + unit, addr(there) + unit * 3};
    uint64_t     length[4] = {unit - 1, 0, 1, unit};
    uint64_t     back_l[1] = {addr(here) + unit * 5}, back_r[1] = {addr(there) + unit * 5 + 3};
    uint64_t     back_n[1] = {unit * 2};
    cfw_part     parts[5]  = {{CFW_COPY_OUT, 0, none, none, none, 2},
                              {CFW_COPY_IN, 0, local, remote, length, 4},
                              {CFW_COPY_IN, 0, NULL, NULL, NULL, 0},
                              {CFW_COPY_OUT, 0, back_l, back_r, back_n, 1},
                              {CFW_COPY_IN, 0, none, none, none, 2}};
    cfw_batch   *batch = make_batch(parts, 5);
    cfw_result   result;

    CHECK_EQUAL(cfw_batch_bytes(batch), unit * 4);
    CHECK_EQUAL(batch->streaming, unit * 4 >= CFW_STREAM_BATCH);
    fill(there, unit * 5, 1);
    fill(here + unit * 5, unit * 2, 2);
    CHECK_EQUAL(cfw_batch_run(batch, &result), 0);
    CHECK_EQUAL(result.bytes, unit * 4);
    CHECK(memcmp(here, there + 1, unit - 1) == 0 && here[unit - 1] == 0);
    CHECK(here[unit] == there[unit] && here[unit + 1] == 0);
    CHECK(memcmp(here + unit * 3 + 5, there + unit * 3, unit) == 0);
    CHECK(here[unit * 3 + 4] == 0 && here[unit * 4 + 5] == 0);
    CHECK(memcmp(there + unit * 5 + 3, here + unit * 5, unit * 2) == 0);
    CHECK(there[unit * 5 + 2] == 0 && there[unit * 7 + 3] == 0);
    cfw_batch_destroy(batch);
    munmap(here, size);
    munmap(there, size);
}

/* The short way for one item must do the same as the long one. */
static void test_batch_single(void)
{
    for (uint32_t op = CFW_COPY_IN; op <= CFW_COPY_OUT; ++op) {
        char       here[64] = {0}, there[64] = {0};
        uint64_t   local = addr(here) + 1, remote = addr(there) + 2, length = 50;
        cfw_part   part  = {op, 0, &local, &remote, &length, 1};
        cfw_batch *batch = make_batch(&part, 1);
        cfw_result result = {.status = 1, .bytes = 1};
        char      *from = op == CFW_COPY_IN ? there + 2 : here + 1;
        char      *to   = op == CFW_COPY_IN ? here + 1 : there + 2;

        fill(from, 50, op);
        CHECK_EQUAL(cfw_batch_run(batch, &result), 0);
        CHECK(result.status == 0 && result.bytes == 50);
        CHECK(memcmp(to, from, 50) == 0 && from[0] != 0 && to[-1] == 0 && to[50] == 0);
        cfw_batch_destroy(batch);
    }
}

static void test_batches(void)
{
    test_batch_refusals();
    test_batch_empty();
    test_batch_mixed(100);
    test_batch_mixed(1024 * 1024 + 13);
    test_batch_single();
}

/* ---- segments --------------------------------------------------------- */

static unsigned open_files(void)
{
    unsigned count = 0;

    for (int fd = 0; fd < 256; ++fd) {
        count += fcntl(fd, F_GETFD) >= 0;
    }
    return count;
}

static uint64_t address_space(void)
{
    FILE              *file = fopen("/proc/self/statm", "r");
    unsigned long long pages;

    CHECK(file != NULL && fscanf(file, "%llu", &pages) == 1);
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void test_segment_alignment(void)
{
    uint64_t space = address_space();

    for (uint64_t alignment = 4096; alignment <= 1ull << 30; alignment *= 8) {
        cfw_segment segment;
        struct stat info;

        if (alignment < (uint64_t)sysconf(_SC_PAGESIZE)) {
            continue;
        }
        CHECK_EQUAL(cfw_segment_create(10001, alignment, 0, &segment), 0);
        CHECK_EQUAL(segment.address % alignment, 0);
        CHECK(address_space() - space < 8 << 20); /* what alignment took is given back */
        CHECK_EQUAL(segment.page_size, sysconf(_SC_PAGESIZE));
        CHECK(segment.size >= 10001 && segment.size % segment.page_size == 0);
        CHECK(fstat(segment.fd, &info) == 0 && (uint64_t)info.st_size == segment.size);
        fill((void *)(uintptr_t)segment.address, segment.size, 1);
        CHECK_EQUAL(cfw_segment_destroy(&segment), 0);
        CHECK(segment.address == 0 && segment.size == 0 && segment.fd == 0);
        CHECK_EQUAL(cfw_segment_destroy(&segment), 0);
    }
}

static void test_segment_sparse(void)
{
    const uint64_t size = 5ull << 30, places[] = {0, (4ull << 30) - 1, 4ull << 30, size - 1};
    cfw_segment    segment;
    struct stat    info;
    uint64_t       second;

    CHECK_EQUAL(cfw_segment_create(size, 1 << 21, 0, &segment), 0);
    CHECK(fstat(segment.fd, &info) == 0 && info.st_blocks == 0);
    CHECK_EQUAL(cfw_segment_map(segment.fd, size, 0, &second), 0);
    CHECK(second != segment.address);
    for (unsigned index = 0; index < 4; ++index) {
        ((volatile char *)(uintptr_t)segment.address)[places[index]] = (char)(index + 1);
    }
    for (unsigned index = 0; index < 4; ++index) {
        CHECK_EQUAL(((volatile char *)(uintptr_t)second)[places[index]], index + 1);
    }
    /* However large the pages that the machine prefers. */
    CHECK(fstat(segment.fd, &info) == 0 && (uint64_t)info.st_blocks * 512 < size / 2);
    CHECK_EQUAL(ftruncate(segment.fd, 4096), -1);
    CHECK_EQUAL(errno, EPERM);
    CHECK_EQUAL(ftruncate(segment.fd, (off_t)size * 2), -1);
    CHECK(fcntl(segment.fd, F_GET_SEALS) & F_SEAL_SEAL);
    CHECK(fcntl(segment.fd, F_GETFD) & FD_CLOEXEC);
    CHECK_EQUAL(cfw_segment_unmap(second, size), 0);
    CHECK_EQUAL(cfw_segment_destroy(&segment), 0);
}

static void test_segment_flags(void)
{
    cfw_segment segment;
    struct stat info;
    int         status;

    for (uint32_t thp = 0; thp <= CFW_SEGMENT_THP; thp += CFW_SEGMENT_THP) {
        CHECK_EQUAL(cfw_segment_create(5 << 20, 0, thp | CFW_SEGMENT_PREFAULT, &segment), 0);
        CHECK(fstat(segment.fd, &info) == 0 && info.st_blocks * 512 >= 5 << 20);
        CHECK(thp == 0 || segment.address % (2 << 20) == 0);
        CHECK_EQUAL(cfw_segment_destroy(&segment), 0);
    }
    status = cfw_segment_create(1, 0, CFW_SEGMENT_HUGETLB, &segment);
    if (status == 0) {
        CHECK(segment.page_size > sysconf(_SC_PAGESIZE) && segment.size == segment.page_size);
        CHECK_EQUAL(segment.address % segment.page_size, 0);
        CHECK_EQUAL(cfw_segment_destroy(&segment), 0);
    } else {
        CHECK(status == -ENOMEM || status == -ENOSYS || status == -EINVAL || status == -ENODEV);
    }
}

static void test_segment_refusals(void)
{
    const unsigned files   = open_files();
    cfw_segment    segment = {.fd = -7};
    uint64_t       address = 1;
    int            bare, open, pipes[2];

    CHECK_EQUAL(cfw_segment_create(0, 0, 0, &segment), -EINVAL);
    CHECK_EQUAL(cfw_segment_create(1, 12288, 0, &segment), -EINVAL);
    CHECK_EQUAL(cfw_segment_create(1, 64, 0, &segment), -EINVAL);
    CHECK_EQUAL(cfw_segment_create(1, 0, 64, &segment), -EINVAL);
    CHECK_EQUAL(cfw_segment_create(UINT64_MAX, 0, 0, &segment), -EOVERFLOW);
    CHECK(cfw_segment_create(1ull << 62, 0, 0, &segment) < 0);
    CHECK_EQUAL(segment.fd, -7);

    CHECK_EQUAL(cfw_segment_map(-1, 4096, 0, &address), -EBADF);
    CHECK_EQUAL(pipe(pipes), 0);
    CHECK_EQUAL(cfw_segment_map(pipes[0], 4096, 0, &address), -EINVAL);
    bare = memfd_create("bare", MFD_CLOEXEC);
    open = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(ftruncate(bare, 65536) == 0 && ftruncate(open, 65536) == 0);
    CHECK_EQUAL(cfw_segment_map(bare, 4096, 0, &address), -EPERM);
    CHECK_EQUAL(cfw_segment_map(open, 4096, 0, &address), -EPERM);
    CHECK_EQUAL(fcntl(open, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    CHECK_EQUAL(cfw_segment_map(open, 65537, 1, &address), -EINVAL);
    CHECK_EQUAL(cfw_segment_map(open, 0, 1, &address), -EINVAL);
    CHECK_EQUAL(address, 1);
    CHECK_EQUAL(cfw_segment_map(open, 65536, 1, &address), 0);
    fill((void *)(uintptr_t)address, 65536, 1);
    CHECK_EQUAL(cfw_segment_unmap(address, 65536), 0);
    CHECK_EQUAL(cfw_segment_unmap(1, 4096), -EINVAL);
    close(bare), close(open), close(pipes[0]), close(pipes[1]);
    CHECK_EQUAL(open_files(), files);
}

/* More than there is must be refused before the kernel looks for it, in a child
 * that is the first to go should it not be. */
static void test_segment_too_much(void)
{
    struct sysinfo machine;
    pid_t          pid;
    int            ended;

    CHECK_EQUAL(sysinfo(&machine), 0);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        uint64_t    size = (uint64_t)machine.totalram * machine.mem_unit * 2;
        int         file = open("/proc/self/oom_score_adj", O_WRONLY);
        cfw_segment segment;

        if (file < 0 || write(file, "1000", 4) != 4) {
            _exit(2);
        }
        _exit(cfw_segment_create(size, 0, CFW_SEGMENT_PREFAULT, &segment) != -ENOMEM);
    }
    CHECK_EQUAL(waitpid(pid, &ended, 0), pid);
    CHECK_EQUAL(ended, 0);
}

static void test_segments(void)
{
    const unsigned files = open_files();

    test_segment_alignment();
    test_segment_sparse();
    test_segment_flags();
    test_segment_refusals();
    test_segment_too_much();
    CHECK_EQUAL(open_files(), files);
}

/* ---- choice ----------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(void);
} groups[] = {{"kernels", test_kernels},
              {"batches", test_batches},
              {"segments", test_segments},
              {"cma", test_cma},
              {"jobs", test_jobs},
              {"clients", test_clients},
              {"streams", test_streams},
              {"tls", test_tls},
              {"hostile", test_hostile}};

int main(int argc, char **argv)
{
    unsigned ran = 0;

    for (unsigned index = 0; index < sizeof(groups) / sizeof(groups[0]); ++index) {
        bool wanted = argc == 1;

        for (int argument = 1; argument < argc; ++argument) {
            wanted |= strcmp(argv[argument], groups[index].name) == 0;
        }
        if (wanted) {
            groups[index].run();
            printf("%s: passed\n", groups[index].name);
            ++ran;
        }
    }
    return ran == 0;
}
