/* What the files of the native half share. */
#ifndef CACHEFW_HOST_INTERNAL_H
#define CACHEFW_HOST_INTERNAL_H

#include "host.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

/* ---- batch.c ---------------------------------------------------------- */

struct cfw_batch {
    uint64_t bytes;
    uint32_t num_parts;
    bool     streaming; /* large enough to go past the caches */
    bool     net;       /* for the streams of a peer, not for this pool's threads */
    /* One item to copy, neither empty nor streaming: where from and where to, else NULL. */
    const void *from;
    void       *to;
    cfw_part    parts[];
};

/* A place in a batch: `offset` bytes into one item of one part. */
typedef struct {
    uint32_t part;
    uint64_t item;
    uint64_t offset;
} cfw_place;

/* Step over what can not hold a byte: ended items, ended parts. Only to be
 * called while bytes are left behind the place. */
void cfw_place_settle(const cfw_batch *batch, cfw_place *place);

/* Go on by at most `bytes` and about `max_items` items; returns the bytes gone. */
uint64_t cfw_place_advance(const cfw_batch *batch, cfw_place *place, uint64_t bytes,
                           uint64_t max_items);

/* Move `bytes` bytes from the place on. Writes the whole result. */
int cfw_batch_move(const cfw_batch *batch, cfw_place place, uint64_t bytes, cfw_result *result);

/* ---- copy.c ----------------------------------------------------------- */

/* Batches from this size on use streaming stores: source and target no longer
 * fit a core's own cache (2 MiB where this was measured), where a plain copy is
 * three to ten times faster if they are there already. When they are not,
 * streaming wins at every size, but only by what is lost at the next read. */
#define CFW_STREAM_BATCH (2u << 20)

/* Items shorter than this are not worth the ragged ends of a stream. */
#define CFW_STREAM_ITEM 1024u

typedef struct {
    const char *name;
    bool (*usable)(void);
    /* Any alignment, any length, not fenced. */
    void (*copy)(char *to, const char *from, size_t length);
} cfw_kernel;

/* Best first, ended by a NULL name; the last one always works. */
extern const cfw_kernel cfw_kernels[];

/* Move bytes of one part; can not fail. */
void cfw_copy_move(const cfw_part *part, uint64_t item, uint64_t offset, uint64_t bytes,
                   bool streaming);

/* ---- cma.c ------------------------------------------------------------ */

/* The same through the kernel. Returns 0 or -errno, with the item that failed;
 * *moved_p is the count of bytes moved either way. */
int cfw_cma_move(const cfw_part *part, uint64_t item, uint64_t offset, uint64_t bytes,
                 uint64_t *moved_p, uint64_t *item_p);

/* ---- pool.c and job.c -------------------------------------------------- */

typedef struct cfw_stream cfw_stream;

void cfw_stream_unref(cfw_stream *stream);

typedef struct cfw_watch {
    struct cfw_watch *next;
    uint64_t          token;
} cfw_watch;

/* Jobs with bytes not handed out. */
typedef struct {
    cfw_job *head, *tail;
} cfw_queue;

/* One lock for a pool and all its jobs: it is held for a walk over one chunk's
 * lengths (a microsecond at most) for every chunk moved (tens of them), which
 * is cheap enough not to need anything finer. */
struct cfw_pool {
    pthread_mutex_t lock;
    pthread_cond_t  work;        /* a job was queued; closing and nothing is left */
    pthread_cond_t  tokens;      /* a token came, or closed */
    uint32_t        refs;        /* the handle, the jobs, callers inside cfw_pool_next */
    bool            closing;     /* no more posts; workers leave when the queue is empty */
    bool            closed;      /* no more tokens */
    cfw_queue       queue;
    uint64_t        unsettled;   /* jobs */
    cfw_watch      *ready;       /* tokens to hand out, oldest first */
    cfw_watch     **ready_end_p;
    uint32_t       *cpus;
    uint32_t        num_cpus;
    uint32_t        workers;     /* as many threads as wanted */
    atomic_uint     running;     /* as many as there are; written under the lock */
    pthread_t       threads[];
};

struct cfw_job {
    cfw_pool        *pool;
    const cfw_batch *batch;       /* not touched once settled */
    cfw_queue       *queue;       /* the pool's, or that of a peer */
    cfw_job         *prev, *next; /* in the queue while left > 0 */
    bool             net;         /* the queue is a peer's */
    cfw_stream      *lone;        /* the stream that took all of it within the post */
    uint32_t         refs;        /* the handle; the pool's, until settled */
    uint32_t         active;      /* chunks being moved */
    uint64_t         left;        /* bytes not handed out */
    cfw_place        cursor;      /* where they begin */
    cfw_result       result;
    cfw_watch       *watches;
    pthread_cond_t   done;
    atomic_int       settled;     /* written under the lock, read without */
};

typedef struct {
    cfw_place begin;
    uint64_t  bytes;
} cfw_chunk;

/* All of these with the pool's lock held. */
void cfw_queue_put(cfw_queue *queue, cfw_job *job);
void cfw_queue_remove(cfw_job *job);
/* In turns, so that a small job does not wait for a large one. */
void cfw_queue_turn(cfw_queue *queue, cfw_job *job);
void cfw_pool_start(cfw_pool *pool);
void cfw_pool_hand_out(cfw_pool *pool, cfw_watch *watches);

/* Cut the next chunk; false when none is left. A job that ran dry leaves the queue. */
bool cfw_job_take(cfw_job *job, cfw_chunk *chunk_p);

/* The same, of about `bytes` bytes and at most `items` items. */
bool cfw_job_cut(cfw_job *job, uint64_t bytes, uint64_t items, cfw_chunk *chunk_p);

/* A chunk that was cut is over: what was moved, and what went wrong. */
void cfw_job_finish(cfw_job *job, const cfw_result *moved);

/* Drop what is left with this status. The job may be gone afterwards. */
void cfw_job_drop(cfw_job *job, int32_t status);

/* Without the lock: a job in a queue, for which no thread was woken. */
int cfw_job_create(cfw_pool *pool, const cfw_batch *batch, cfw_queue *queue, cfw_job **job_p);

/* Move a taken chunk, without the lock meanwhile. A caller that has no handle
 * must not look at the job afterwards. */
void cfw_job_move(cfw_job *job, const cfw_chunk *chunk);

/* Block signals of the application, start a thread, put the mask back. */
int cfw_thread_create(pthread_t *thread_p, void *(*run)(void *), void *argument);

/* In the new thread: take a name and keep to processors, as far as the kernel lets. */
void cfw_thread_begin(const char *name, const uint32_t *cpus, uint32_t num_cpus);

/* Unlock; the last one out frees the pool. */
void cfw_pool_leave(cfw_pool *pool);

/* Conditions count on the monotonic clock: setting the date must not end a wait. */
int cfw_cond_init(pthread_cond_t *cond);

/* An absolute time for the other two; NULL, for ever, when the timeout is negative. */
const struct timespec *cfw_deadline(int64_t timeout_ns, struct timespec *storage);
bool cfw_deadline_passed(const struct timespec *deadline);

/* May wake for no reason and does not say why it woke. */
void cfw_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *deadline);

#endif
