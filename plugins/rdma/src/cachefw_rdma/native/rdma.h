/*
 * Native half of the RDMA transport: UCX opened at run time, memory, endpoints, and batches of one-sided transfers that
 * threads of our own keep going.
 *
 * Every function returns 0, or a negative number: down to -100 a status of UCX as it is, below that one of
 * ours. Out-arguments come last, end in _p and are written only on success. Functions may be called from any thread;
 * what must not overlap is said at the function. None of them calls back into Python.
 *
 * With CACHEFW_RDMA_CDEF defined the preprocessor makes from this file what cffi reads.
 */
#ifndef CACHEFW_RDMA_H
#define CACHEFW_RDMA_H

#ifndef CACHEFW_RDMA_CDEF
#include <stdint.h>
#endif

enum {
    CFW_RDMA_NOT_LOADED = -1001, /* the loader refused the file */
    CFW_RDMA_FOREIGN    = -1002, /* loaded, but functions of UCP are not in it */
    CFW_RDMA_TOO_OLD    = -1003,
    CFW_RDMA_NO_MEMORY  = -1004,
    CFW_RDMA_SYSTEM     = -1005, /* a thread or a descriptor could not be had */
    CFW_RDMA_CLOSED     = -1006, /* what the call is about was closed */
    CFW_RDMA_TIMED_OUT  = -1007,
    CFW_RDMA_BUSY       = -1008, /* not settled yet */
    CFW_RDMA_OUTSIDE    = -1009, /* an item reaches beyond the peer's memory */
    CFW_RDMA_DETACHED   = -1010, /* the peer's memory was withdrawn */
    CFW_RDMA_CANCELLED  = -1011,
    CFW_RDMA_INVALID    = -1012,
    CFW_RDMA_NO_SETTING = -1013  /* UCX has no such setting, or not with this value */
};

/* ---- the library ---------------------------------------------------------------------------------------------- */

typedef struct cfw_ucx cfw_ucx;

enum { CFW_UCX_MAJOR = 1, CFW_UCX_MINOR = 13 }; /* the oldest that is taken */

typedef struct {
    uint32_t version[3];
    uint32_t missing;    /* functions that it has to have and has not */
    int32_t  parallel;   /* 1: built for several threads */
    char     lacks[64];  /* the first of those */
    char     path[4096]; /* as the loader knows it */
    char     text[512];  /* the loader's message */
} cfw_ucx_info;

/* Load and look at a library; the info is written in either case. One that was refused is unloaded again, one that was
 * taken stays for the life of the process. */
int cfw_ucx_open(const char *path, cfw_ucx_info *info_p, cfw_ucx **ucx_p);

/* What UCX says of one of its statuses; never NULL. */
const char *cfw_ucx_text(const cfw_ucx *ucx, int status);

/* ---- engines: one UCX worker and what keeps it going ----------------------------------------------------------- */

typedef struct cfw_engine cfw_engine;

/* `settings` are pairs of a name without UCX_ and a value, which go before the environment's. Starts a thread called
 * "cachefw-rdma", which sleeps until UCX has something to do. */
int cfw_engine_create(const cfw_ucx *ucx, const char *const *settings, uint32_t num_settings, cfw_engine **engine_p);

/* Ends the thread and the worker, and unmaps all memory. Whatever has not settled by then settles with
 * CFW_RDMA_CANCELLED: UCX holds none of it any more. Channels, memory and jobs stay valid until they are released.
 * Must not be called from two threads. */
void cfw_engine_destroy(cfw_engine *engine);

/* How peers reach the worker. The bytes are valid until the engine is destroyed. */
const void *cfw_engine_address(const cfw_engine *engine, uint64_t *size_p);

/* The next token of cfw_job_watch: 0, CFW_RDMA_TIMED_OUT or, once destroyed and empty, CFW_RDMA_CLOSED. A negative
 * timeout waits for ever. */
int cfw_engine_next(cfw_engine *engine, int64_t timeout_ns, uint64_t *token_p);

/* ---- memory ---------------------------------------------------------------------------------------------------- */

typedef struct cfw_memory cfw_memory;

int         cfw_memory_map(cfw_engine *engine, uint64_t address, uint64_t length, cfw_memory **memory_p);
const void *cfw_memory_key(const cfw_memory *memory, uint64_t *size_p); /* what a peer's cfw_channel_attach takes */
int         cfw_memory_unmap(cfw_memory *memory);                       /* may be called again */
void        cfw_memory_release(cfw_memory *memory);                     /* unmaps as well */

/* ---- channels: the way to one peer ----------------------------------------------------------------------------- */

typedef struct cfw_channel cfw_channel;
typedef struct cfw_remote  cfw_remote;

/* Whether UCX watches over the peer. AUTO: where UCX can with the transports that it may use. */
enum { CFW_ERRORS_AUTO = 0, CFW_ERRORS_PEER = 1, CFW_ERRORS_NONE = 2 };

/* Begin to connect to the worker whose address this is. Whether it answers, the first transfer shows. The address must be
 * one that UCX gave: it does not survive any other. */
int cfw_channel_open(cfw_engine *engine, const void *address, uint64_t size, int error_mode, cfw_channel **channel_p);

/* Forget all memory, stop what runs, and wait for it up to the time given. Returns how many jobs have not settled. With
 * none, and a status of 0, the channel is as good as new, and may be used again: each cut of a connection over tcp leaves
 * a socket behind at both ends, for UCX closes only its own direction. */
uint32_t cfw_channel_drain(cfw_channel *channel, int64_t grace_ns);

/* Stop what runs, wait for it up to the time given, then cut the connection, which ends the rest where UCX watches over
 * the peer. Returns how many jobs have not settled even so; they do when the engine is destroyed at the latest. */
uint32_t cfw_channel_close(cfw_channel *channel, int64_t grace_ns);
void     cfw_channel_release(cfw_channel *channel); /* closes as well, without grace */

/* 0, or the status with which UCX gave up the connection. */
int cfw_channel_status(cfw_channel *channel);

/* CFW_ERRORS_PEER or CFW_ERRORS_NONE. */
int cfw_channel_error_mode(const cfw_channel *channel);

/* UCX's own description of the connection; "" where it gives none. Cut to `size`. */
void cfw_channel_describe(cfw_channel *channel, char *text, uint64_t size);

/* Know memory of the peer. The key must be one that UCX gave, like the address. */
int  cfw_channel_attach(cfw_channel *channel, uint64_t address, uint64_t length, const void *key, uint64_t size,
                        cfw_remote **remote_p);
void cfw_remote_detach(cfw_remote *remote); /* no job touches it; batches that name it are refused from now on */
void cfw_remote_release(cfw_remote *remote);

/* ---- batches: what to move -------------------------------------------------------------------------------------- */

typedef struct cfw_batch cfw_batch;

enum { CFW_READ = 0, CFW_WRITE = 1 };

typedef struct {
    const uint64_t          *local;   /* `count` addresses here */
    const uint64_t          *remote;  /* `count` addresses there */
    const uint64_t          *length;  /* `count` lengths; 0 is allowed */
    const uint32_t          *row;     /* `count` places in `remotes`; NULL: all are the first */
    cfw_remote *const       *remotes; /* of one channel */
    uint64_t                 count;
    uint32_t                 num_remotes;
    uint32_t                 operation;
    uint64_t                 max_request; /* bytes that UCX is asked for at a time; 0: 4 MiB */
} cfw_items;

/* Copies everything. CFW_RDMA_OUTSIDE or CFW_RDMA_DETACHED name an item in *item_p, which is written then only. May be
 * posted again and again, and by several threads at once. */
int      cfw_batch_create(cfw_channel *channel, const cfw_items *items, cfw_batch **batch_p, uint64_t *item_p);
void     cfw_batch_release(cfw_batch *batch);
uint64_t cfw_batch_bytes(const cfw_batch *batch);

/* Within this process, in the calling thread: `local` from `remote`. Items must not overlap. */
void cfw_copy(const uint64_t *local, const uint64_t *remote, const uint64_t *length, uint64_t count);

/* ---- jobs: a batch that was posted ------------------------------------------------------------------------------- */

typedef struct cfw_job cfw_job;

typedef struct {
    int32_t  status; /* 0, or of the first failing item in batch order that is known */
    uint64_t item;   /* where; the number of items when no item is at fault */
    uint64_t issued; /* bytes that UCX was asked to move */
} cfw_result;

/* Ask UCX for everything, with at most `limit` requests in flight. What does not fit at once is asked for by
 * cfw_job_wait and by the engine's thread. CFW_RDMA_CLOSED, CFW_RDMA_DETACHED, or the status of a connection that is
 * gone; then nothing moves. */
int cfw_job_post(cfw_batch *batch, uint32_t limit, cfw_job **job_p);

/* Sleep until settled, doing the engine's work if nobody else does: 0 or CFW_RDMA_TIMED_OUT. A negative timeout waits
 * for ever, 0 only looks. */
int cfw_job_wait(cfw_job *job, int64_t timeout_ns);

/* 1 or 0, without a lock. Settled means that UCX holds nothing of it, so no byte can move any more. */
int cfw_job_settled(const cfw_job *job);

/* Ask for no more of it. Settles with CFW_RDMA_CANCELLED and the first item dropped, or with its own outcome if nothing
 * was left to drop. */
void cfw_job_cancel(cfw_job *job);

/* CFW_RDMA_BUSY until settled; else 0, whatever the status in the result. */
int cfw_job_result(const cfw_job *job, cfw_result *result_p);

/* Have cfw_engine_next hand out the token once the job is settled, or now if it is. CFW_RDMA_CLOSED when nobody can
 * collect it any more. */
int cfw_job_watch(cfw_job *job, uint64_t token);

/* Give up the handle. An unfinished job goes on without it. */
void cfw_job_release(cfw_job *job);

#endif
