/* Copies to and from the memory of another process through the kernel. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <sys/uio.h>

/* The kernel's own limit on iovecs (UIO_MAXIOV). */
#define MAX_VECTORS 1024

/* The kernel silently shortens calls over 0x7ffff000 bytes. Staying far below
 * also bounds the time that a thread can not be cancelled. */
#define MAX_CALL_BYTES (256ull << 20)

typedef struct {
    const cfw_part *part;
    uint64_t        item;
    uint64_t        offset;
    uint64_t        left;
} walk;

/* Collect up to `limit` pieces at the walk without moving it. */
static int gather(const walk *at, int limit, struct iovec *local, struct iovec *remote,
                  uint64_t *bytes_p)
{
    uint64_t item = at->item, offset = at->offset, bytes = 0;
    uint64_t left = at->left < MAX_CALL_BYTES ? at->left : MAX_CALL_BYTES;
    int      count = 0;

    while (count < limit && bytes < left) {
        uint64_t size = at->part->length[item] - offset;

        if (size > left - bytes) {
            size = left - bytes;
        }
        if (size > 0) {
            local[count].iov_base  = (void *)(uintptr_t)(at->part->local[item] + offset);
            remote[count].iov_base = (void *)(uintptr_t)(at->part->remote[item] + offset);
            local[count].iov_len   = size;
            remote[count].iov_len  = size;
            ++count;
        }
        bytes += size;
        ++item;
        offset = 0;
    }
    *bytes_p = bytes;
    return count;
}

/* Leaves the walk at a byte still to be moved, if there is one. */
static void advance(walk *at, uint64_t bytes)
{
    at->left -= bytes;
    while (at->left > 0) {
        uint64_t size = at->part->length[at->item] - at->offset;

        if (bytes < size) {
            at->offset += bytes;
            return;
        }
        bytes -= size;
        at->item++;
        at->offset = 0;
    }
}

static ssize_t transfer(const cfw_part *part, const struct iovec *local,
                        const struct iovec *remote, int count)
{
    ssize_t done;

    do {
        done = part->op == CFW_CMA_READ
                   ? process_vm_readv(part->pid, local, count, remote, count, 0)
                   : process_vm_writev(part->pid, local, count, remote, count, 0);
    } while (done < 0 && errno == EINTR);
    return done;
}

int cfw_cma_move(const cfw_part *part, uint64_t item, uint64_t offset, uint64_t bytes,
                 uint64_t *moved_p, uint64_t *item_p)
{
    struct iovec local[MAX_VECTORS], remote[MAX_VECTORS];
    walk         at    = {.part = part, .item = item, .offset = offset, .left = bytes};
    int          limit = MAX_VECTORS;
    int          status = 0;

    advance(&at, 0);
    while (at.left > 0) {
        uint64_t wanted;
        int      count = gather(&at, limit, local, remote, &wanted);
        ssize_t  done  = transfer(part, local, remote, count);

        if (done > 0) {
            /* Short or not: the next call begins where the kernel stopped, and
             * gets the reason if there was one. */
            advance(&at, (uint64_t)done);
            continue;
        }
        if (count == 1) {
            status = done < 0 ? -errno : -EFAULT;
            break;
        }
        /* The kernel looks at all vectors before it moves a byte: the culprit
         * may be any of them. One by one, it is found. */
        limit = 1;
    }
    *moved_p = bytes - at.left;
    *item_p  = at.item;
    return status;
}

int cfw_cma_probe(int pid, uint64_t remote, uint64_t length, void *into)
{
    struct iovec here  = {.iov_base = into, .iov_len = length};
    struct iovec there = {.iov_base = (void *)(uintptr_t)remote, .iov_len = length};
    cfw_part     part  = {.op = CFW_CMA_READ, .pid = pid};
    ssize_t      done  = transfer(&part, &here, &there, 1);

    if (done < 0) {
        return -errno;
    }
    return (uint64_t)done == length ? 0 : -EFAULT;
}
