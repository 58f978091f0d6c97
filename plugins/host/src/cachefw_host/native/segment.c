/* Shared segments: sealed memfds and their mappings. */
#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Newer than the C library of the oldest systems this is built on. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* A mapping uses transparent huge pages only where it is aligned to them. */
#define THP_SIZE (2ull << 20)

static uint64_t system_page(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static int open_memfd(uint32_t flags, uint64_t *page_p)
{
    unsigned int memfd_flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    struct stat  info;
    int          fd;

    if (flags & CFW_SEGMENT_HUGETLB) {
        memfd_flags |= MFD_HUGETLB;
    }
    fd = memfd_create("cachefw", memfd_flags);
    if (fd < 0) {
        return -errno;
    }
    *page_p = system_page();
    if (flags & CFW_SEGMENT_HUGETLB) {
        if (fstat(fd, &info) != 0) {
            int status = -errno;
            close(fd);
            return status;
        }
        *page_p = (uint64_t)info.st_blksize;
    }
    return fd;
}

/* Everything that grants or refuses later access is decided here, before
 * anybody else can hold the descriptor. SEAL keeps a peer from adding more. */
static int size_and_seal(int fd, uint64_t size)
{
    if (size > (uint64_t)INT64_MAX) {
        return -EFBIG;
    }
    if (ftruncate(fd, (off_t)size) != 0) {
        return -errno;
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return -errno;
    }
    return 0;
}

static int map_aligned(int fd, uint64_t size, uint64_t alignment, uint64_t *address_p)
{
    uint64_t reserved = size + alignment - system_page();
    uint64_t start, address, end;
    void    *hole;

    if (reserved < size || reserved > SIZE_MAX) {
        return -EOVERFLOW;
    }
    hole = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (hole == MAP_FAILED) {
        return -errno;
    }
    start   = (uintptr_t)hole;
    end     = start + reserved;
    address = (start + alignment - 1) & ~(alignment - 1);
    if (mmap((void *)(uintptr_t)address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             0) == MAP_FAILED) {
        int status = -errno;
        munmap(hole, reserved);
        return status;
    }
    /* Splitting off the ends can only fail at the limit of mappings a process
     * may have; what stays then is address space without memory. */
    if (address > start) {
        munmap(hole, address - start);
    }
    if (end > address + size) {
        munmap((void *)(uintptr_t)(address + size), end - address - size);
    }
    *address_p = address;
    return 0;
}

/* What the kernel says can be had without swapping; no limit where it says
 * nothing. */
static uint64_t available_memory(void)
{
    FILE              *file = fopen("/proc/meminfo", "re");
    unsigned long long kilobytes;
    char               line[128];
    uint64_t           available = UINT64_MAX;

    if (file == NULL) {
        return available;
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "MemAvailable: %llu kB", &kilobytes) == 1) {
            available = kilobytes * 1024;
            break;
        }
    }
    fclose(file);
    return available;
}

/* A memfd has no limit of its own: asked for more than there is, the kernel
 * does not refuse but kills processes, of anybody, until it has it. The margin
 * is for what others take while the pages come. */
static bool fits_memory(uint64_t size)
{
    uint64_t available = available_memory();

    return size <= available - available / 16;
}

static int allocate(int fd, uint64_t size)
{
    int status;

    do {
        status = fallocate(fd, 0, 0, (off_t)size) == 0 ? 0 : -errno;
    } while (status == -EINTR);
    return status;
}

static int populate(uint64_t address, uint64_t size)
{
    int status;

    do {
        status = madvise((void *)(uintptr_t)address, size, MADV_POPULATE_WRITE) == 0 ? 0 : -errno;
    } while (status == -EINTR || status == -EAGAIN);
    /* A fault that would have been SIGBUS: there was no page to be had. */
    return status == -EFAULT ? -ENOMEM : status;
}

static int prefault(int fd, uint64_t address, uint64_t size, uint64_t page, uint32_t flags)
{
    int status;

    /* The reserved pool of huge pages does refuse, at the mapping already. */
    if (!(flags & CFW_SEGMENT_HUGETLB) && !fits_memory(size)) {
        return -ENOMEM;
    }
    /* fallocate knows the file but not the advice on the mapping, and would
     * fill it with small pages. */
    if (flags & CFW_SEGMENT_THP) {
        status = populate(address, size);
        if (status != -EINVAL) {
            return status;
        }
    }
    /* Before any touch, so that a refusal is an errno and not SIGBUS. */
    status = allocate(fd, size);
    if (status != 0) {
        return status;
    }
    status = populate(address, size);
    if (status != -EINVAL) {
        return status;
    }
    /* Linux before 5.14. */
    for (uint64_t at = address; at < address + size; at += page) {
        volatile char *byte = (volatile char *)(uintptr_t)at;
        *byte = *byte;
    }
    return 0;
}

int cfw_segment_create(uint64_t size, uint64_t alignment, uint32_t flags, cfw_segment *segment_p)
{
    const uint32_t known = CFW_SEGMENT_HUGETLB | CFW_SEGMENT_THP | CFW_SEGMENT_PREFAULT;
    const bool     thp   = (flags & CFW_SEGMENT_THP) && !(flags & CFW_SEGMENT_HUGETLB);
    uint64_t       page = 0, address = 0;
    int            fd, status;

    if (alignment == 0) {
        alignment = system_page();
    }
    if (size == 0 || (flags & ~known) || (alignment & (alignment - 1)) ||
        alignment < system_page()) {
        return -EINVAL;
    }
    fd = open_memfd(flags, &page);
    if (fd < 0) {
        return fd;
    }
    if (size > UINT64_MAX - (page - 1)) {
        status = -EOVERFLOW;
        goto err_close;
    }
    size = (size + page - 1) & ~(page - 1);
    if (alignment < page) {
        alignment = page;
    }
    if (thp && size >= THP_SIZE && alignment < THP_SIZE) {
        alignment = THP_SIZE;
    }
    status = size_and_seal(fd, size);
    if (status != 0) {
        goto err_close;
    }
    status = map_aligned(fd, size, alignment, &address);
    if (status != 0) {
        goto err_close;
    }
    if (thp) {
        (void)madvise((void *)(uintptr_t)address, size, MADV_HUGEPAGE);
    }
    if (flags & CFW_SEGMENT_PREFAULT) {
        status = prefault(fd, address, size, page, flags);
        if (status != 0) {
            goto err_unmap;
        }
    }
    *segment_p = (cfw_segment){
        .fd = fd, .page_size = (uint32_t)page, .address = address, .size = size};
    return 0;

err_unmap:
    munmap((void *)(uintptr_t)address, size);
err_close:
    close(fd);
    return status;
}

int cfw_segment_destroy(cfw_segment *segment)
{
    cfw_segment owned = *segment;
    int         status;

    if (owned.address == 0) {
        return 0;
    }
    memset(segment, 0, sizeof(*segment));
    status = cfw_segment_unmap(owned.address, owned.size);
    /* Linux closes the descriptor also when close reports an error. */
    close(owned.fd);
    return status;
}

int cfw_segment_map(int fd, uint64_t size, int writable, uint64_t *address_p)
{
    int         seals, prot;
    struct stat info;
    void       *address;

    if (size == 0 || size > SIZE_MAX) {
        return -EINVAL;
    }
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0) {
        return -errno;
    }
    if (!(seals & F_SEAL_SHRINK)) {
        return -EPERM;
    }
    /* Only now: the size of a sealed file can not fall after the look. */
    if (fstat(fd, &info) != 0) {
        return -errno;
    }
    if ((uint64_t)info.st_size < size) {
        return -EINVAL;
    }
    prot    = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    address = mmap(NULL, size, prot, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) {
        return -errno;
    }
    *address_p = (uintptr_t)address;
    return 0;
}

int cfw_segment_unmap(uint64_t address, uint64_t size)
{
    return munmap((void *)(uintptr_t)address, size) == 0 ? 0 : -errno;
}
