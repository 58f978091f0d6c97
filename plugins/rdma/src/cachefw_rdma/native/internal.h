/* What the files of the native half share. */
#ifndef CACHEFW_RDMA_INTERNAL_H
#define CACHEFW_RDMA_INTERNAL_H

#include "rdma.h"
#include "shim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

/*
 * Who calls UCX. Any thread, one at a time, under the engine's lock; the worker is made for that (SERIALIZED). A worker
 * that only one thread may touch would cost two changes of thread for every small transfer, and a worker with locks of
 * its own would pay for them at each call. The lock is held for some progress, or for asking UCX for a few megabytes,
 * and is handed on in turns (cfw_engine_yield).
 *
 * Who keeps the worker going. A thread that waits for something, if there is one: it sleeps in poll on the worker's
 * descriptor and finds its bytes when it wakes. Else the engine's own thread, which the passive side and transfers that
 * nobody waits for need. While one waits the other does not look at the descriptor, so that an event wakes one thread.
 * Whoever leaves the worker leaves it armed.
 */

/* Set once, with the engine's lock held; `done` may be read without. */
typedef struct {
    atomic_int     done;
    pthread_cond_t cond;
} cfw_event;

typedef struct cfw_watch {
    struct cfw_watch *next;
    uint64_t          token;
} cfw_watch;

struct cfw_engine {
    const cfw_ucx  *ucx;
    pthread_mutex_t lock;
    pthread_cond_t  turn;     /* everybody who wanted the lock has had it; nobody is away any more */
    pthread_cond_t  tokens;   /* a token came, or closed */
    atomic_uint     wanting;  /* threads in cfw_engine_enter */
    uint32_t        yielding; /* threads in cfw_engine_yield */
    uint32_t        refs;     /* the handle, channels, memory, callers of cfw_engine_next */
    uint32_t        away;     /* threads that map memory or sleep without the lock: destroying waits for them */
    void           *context, *worker, *address;
    size_t          address_size;
    int             worker_fd;    /* UCX's */
    int             thread_fd;    /* wakes our thread */
    int             driver_fd;    /* wakes the thread that waits */
    int             poll_fd;      /* what our thread sleeps on: the first, unless silent, and the second */
    pthread_t       thread;
    bool            stopping;     /* no more posts; the thread leaves */
    bool            closed;       /* no worker any more */
    cfw_event      *driven;       /* what a waiting thread keeps the worker going for */
    cfw_job        *jobs;         /* not settled */
    cfw_job        *ready, **ready_end_p; /* jobs for which something can be done */
    uint64_t        num_ready;
    cfw_memory     *memories;     /* mapped */
    cfw_channel    *channels;     /* connected */
    uint64_t        stamp;        /* counts the batches */
    cfw_watch      *told, **told_end_p; /* tokens to hand out, oldest first */
};

struct cfw_memory {
    cfw_engine *engine;
    cfw_memory *prev, *next;
    void       *handle; /* NULL: not mapped any more */
    size_t      key_size;
    uint8_t     key[];
};

struct cfw_channel {
    cfw_engine  *engine;
    cfw_channel *prev, *next; /* while it has an endpoint */
    uint32_t     refs;        /* the handle, remotes, batches, the endpoint */
    void        *ep;          /* NULL: never there, or closed */
    bool         watched;     /* UCX reports the peer's end */
    bool         closed;      /* no more posts */
    bool         cut;         /* UCX was told to close the endpoint: nothing may be asked of it */
    ucp_status   status;      /* what UCX reported */
    uint32_t     running;     /* unsettled jobs */
    cfw_event   *idle;        /* set when that is 0: somebody closes */
    cfw_remote  *remotes;
};

struct cfw_remote {
    cfw_channel *channel;
    cfw_remote  *prev, *next;
    uint32_t     refs;  /* the handle, batches */
    uint32_t     uses;  /* unsettled jobs */
    uint64_t     stamp; /* of the batch that took a reference last */
    uint64_t     address, length;
    void        *rkey;  /* NULL once it was given back */
    bool         gone;  /* detached */
};

typedef struct {
    uint64_t    local, remote, length;
    cfw_remote *where;
} cfw_item;

/* Never changed once made. */
struct cfw_batch {
    cfw_channel *channel;
    uint32_t     refs; /* the handle, jobs */
    uint32_t     operation;
    uint32_t     num_remotes;
    cfw_remote **remotes; /* each once */
    uint64_t     bytes;
    uint64_t     requests; /* that it takes */
    uint64_t     max_request;
    uint64_t     count;
    cfw_item     items[];
};

/* One request that UCX works on. */
typedef struct cfw_op {
    struct cfw_op *next; /* while it is free */
    cfw_job       *job;
    uint64_t       item;
} cfw_op;

struct cfw_job {
    cfw_batch  *batch;
    cfw_job    *prev, *next;    /* in the engine's list until it has settled */
    cfw_job    *next_ready;
    bool        is_ready;
    bool        stopped;        /* ask for no more */
    bool        flushed;        /* or being flushed */
    uint32_t    refs;           /* the handle; the engine's, until settled */
    uint32_t    outstanding;    /* requests that UCX works on */
    uint64_t    item, offset;   /* what to ask for next */
    cfw_result  result;
    cfw_watch  *watches;
    cfw_event   event;
    cfw_op     *free;
    cfw_op      ops[];
};

/* ---- engine.c and drive.c: all but enter with the lock held ------------------------------------------------------ */

void cfw_engine_enter(cfw_engine *engine);
void cfw_engine_leave(cfw_engine *engine); /* the last one out frees the engine */

/* Do something without the lock that destroying has to wait for. */
void cfw_engine_go_away(cfw_engine *engine);
void cfw_engine_come_back(cfw_engine *engine);

/* Let everybody else who wants the lock have it first. */
void cfw_engine_yield(cfw_engine *engine);

/* Do what there is to do and arm the worker. False: there is more, come again or kick. */
bool cfw_engine_rest(cfw_engine *engine);

/* Have the thread that keeps the worker going come by. */
void cfw_engine_kick(cfw_engine *engine);

/* Keep the worker going until the event is set: 0 or CFW_RDMA_TIMED_OUT. NULL waits for ever. */
int cfw_engine_await(cfw_engine *engine, cfw_event *event, const struct timespec *deadline);

void *cfw_engine_thread(void *engine);

void cfw_engine_hand_out(cfw_engine *engine, cfw_watch *watches);

int  cfw_event_init(cfw_event *event);
void cfw_event_set(cfw_engine *engine, cfw_event *event);
void cfw_event_destroy(cfw_event *event);

static inline bool cfw_event_done(const cfw_event *event)
{
    return atomic_load_explicit(&event->done, memory_order_acquire) != 0;
}

/* ---- clock.c: conditions count on the monotonic clock ------------------------------------------------------------ */

int cfw_cond_init(pthread_cond_t *cond);

/* An absolute time; NULL, for ever, when the timeout is negative. */
const struct timespec *cfw_deadline(int64_t timeout_ns, struct timespec *storage);

/* Nanoseconds until then, at least 0; -1 for ever. */
int64_t cfw_left(const struct timespec *deadline);

/* May wake for no reason and does not say why it woke. */
void cfw_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *deadline);

/* One request of UCX, unless the batch says less. Small enough that a job can be stopped within a millisecond or two, large enough that more of them
 * would not be faster. */
#define CFW_MAX_REQUEST (4ull << 20)

/* ---- channel.c, batch.c, job.c: with the lock held ---------------------------------------------------------------- */

void cfw_channel_unref(cfw_channel *channel);
void cfw_channel_forget(cfw_channel *channel); /* its endpoint is gone */
void cfw_channel_drop_keys(cfw_channel *channel);
void cfw_remote_unref(cfw_remote *remote);
void cfw_remote_unuse(cfw_remote *remote);
void cfw_batch_unref(cfw_batch *batch);
void cfw_memory_drop(cfw_memory *memory);

/* Ask for up to `*budget_p` bytes more, and settle what is over. True: there is more than the budget. */
bool cfw_job_advance(cfw_job *job, uint64_t *budget_p);

/* Ask for no more of it. */
void cfw_job_stop(cfw_job *job, int status);
void cfw_job_ready(cfw_job *job);   /* the engine is to advance it; may be called again */
void cfw_job_unready(cfw_job *job);
void cfw_job_settle(cfw_job *job);

#endif
