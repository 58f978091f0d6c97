/* Native half of the host transport: shared segments, batched copies and the
 * threads that share their work.
 *
 * Every function returns 0 or a negative errno unless it says otherwise.
 * Out-arguments come last, end in _p and are written only on success.
 * Addresses and sizes are 64 bits on every machine. Functions may be called
 * from any thread; what must not overlap is said at the function.
 */
#ifndef CACHEFW_HOST_H
#define CACHEFW_HOST_H

#include <stdint.h>

/* ---- segments: memory that a peer can map ---------------------------- */

typedef struct {
    int      fd;        /* memfd, sealed against shrink, grow and more seals */
    uint32_t page_size; /* of the backing: larger than the system's for HUGETLB */
    uint64_t address;   /* 0: the struct owns nothing */
    uint64_t size;      /* what was asked for, rounded up to whole pages */
} cfw_segment;

enum {
    CFW_SEGMENT_HUGETLB  = 1, /* pages from the kernel's reserved pool */
    CFW_SEGMENT_THP      = 2, /* ask for transparent huge pages; a refusal is no error */
    CFW_SEGMENT_PREFAULT = 4  /* populate every page before returning */
};

/* Sparse unless PREFAULT. `alignment` is a power of two of at least a page, or
 * 0 for a page. -EINVAL for size 0 or a wrong alignment, -EOVERFLOW when the
 * rounded size does not fit, -ENOMEM for a PREFAULT of more than is available;
 * anything else is the kernel's answer. */
int cfw_segment_create(uint64_t size, uint64_t alignment, uint32_t flags, cfw_segment *segment_p);

/* Unmaps, closes and zeroes; harmless on a zeroed struct. */
int cfw_segment_destroy(cfw_segment *segment);

/* Map the first `size` bytes of a peer's descriptor. -EINVAL when it is no
 * memfd or is shorter, -EPERM when the peer could still shrink it (touching a
 * page that went away would kill this process). The descriptor stays the
 * caller's and may be closed afterwards. */
int cfw_segment_map(int fd, uint64_t size, int writable, uint64_t *address_p);
int cfw_segment_unmap(uint64_t address, uint64_t size);

/* ---- batches: what to move ------------------------------------------- */

enum {
    CFW_COPY_IN   = 0,
    CFW_COPY_OUT  = 1,
    CFW_CMA_READ  = 2,
    CFW_CMA_WRITE = 3,
    CFW_NET_READ  = 4,
    CFW_NET_WRITE = 5
};

/* COPY_IN: local <- remote, COPY_OUT: remote <- local, both mapped here.
 * CMA_READ and CMA_WRITE: the same, but remote is an address in process pid.
 * NET_READ and NET_WRITE: the same, but remote is an address in a peer; all
 * parts of a batch are then of that one op, and only cfw_peer_post takes it. */
typedef struct {
    uint32_t        op;
    int32_t         pid;    /* CMA only */
    const uint64_t *local;  /* `count` addresses */
    const uint64_t *remote; /* `count` addresses */
    const uint64_t *length; /* `count` lengths; 0 is allowed */
    uint64_t        count;
} cfw_part;

typedef struct cfw_batch cfw_batch;

/* Copies the part structs, not the arrays: those must stay alive and unchanged
 * while the batch exists. Source and target of a COPY item must not overlap.
 * -EINVAL for an unknown op or a missing array, -EOVERFLOW when the lengths
 * add up to more than 64 bits. A batch may be run again and again, and by
 * several threads at once. */
int cfw_batch_create(const cfw_part *parts, uint32_t num_parts, cfw_batch **batch_p);
void cfw_batch_destroy(cfw_batch *batch);
uint64_t cfw_batch_bytes(const cfw_batch *batch);

typedef struct {
    int32_t  status; /* 0, or -errno of the first failing item in batch order */
    uint32_t part;   /* where that item is; meaningless for status 0 */
    uint64_t item;
    uint64_t bytes;  /* moved in all, the failing item's beginning included */
} cfw_result;

/* Move everything in the calling thread. Returns the status; the result is
 * written also when that is negative. */
int cfw_batch_run(cfw_batch *batch, cfw_result *result_p);

/* ---- pools and jobs: many threads on one batch ------------------------ */

typedef struct cfw_pool cfw_pool;
typedef struct cfw_job cfw_job;

/* Up to `workers` threads, started by the first post. They are named
 * "cachefw-host", block signals and keep to `cpus` (a hint: a refusal by the
 * kernel is ignored). With no worker, bytes move only inside cfw_job_help,
 * cfw_job_wait and cfw_pool_destroy. */
int cfw_pool_create(uint32_t workers, const uint32_t *cpus, uint32_t num_cpus, cfw_pool **pool_p);

/* Finishes what is queued, joins, then wakes cfw_pool_next with -ESHUTDOWN.
 * Jobs stay valid until they are released; the pool itself must not be passed
 * to a new call. Must not be called from two threads. */
void cfw_pool_destroy(cfw_pool *pool);

/* How many threads are running now. */
uint32_t cfw_pool_threads(const cfw_pool *pool);

/* Queue the batch, which must outlive the job (to the byte: until it is
 * settled). -ESHUTDOWN while the pool is being destroyed. */
int cfw_job_post(cfw_pool *pool, cfw_batch *batch, cfw_job **job_p);

/* Move chunks in the calling thread until it has moved about `max_bytes` or
 * none is left. Returns 1 when the job is settled, 2 when there is more to take,
 * 0 when only what others have taken is left to wait for. */
int cfw_job_help(cfw_job *job, uint64_t max_bytes);

/* Sleep until settled: 0 or -ETIMEDOUT. A negative timeout waits for ever, 0
 * only looks. Of a pool without running threads the caller does the work, and
 * looks at the clock between chunks. */
int cfw_job_wait(cfw_job *job, int64_t timeout_ns);

/* 1 or 0, without a lock. Settled means that no byte can move any more. */
int cfw_job_settled(const cfw_job *job);

/* Drop the chunks not begun yet. The job settles with -ECANCELED, naming the
 * first item dropped, once the running chunks ended; with their own outcome if
 * nothing was left to drop. */
void cfw_job_cancel(cfw_job *job);

/* A small job of cfw_peer_post is read by the thread that waits for it. This
 * says that none will: to be called by who only looks, again and again. */
void cfw_job_attend(cfw_job *job);

/* -EBUSY until settled; else 0, whatever the status in the result. */
int cfw_job_result(cfw_job *job, cfw_result *result_p);

/* Have cfw_pool_next hand out the token once the job is settled, or now if it
 * is. Every call adds one. -ESHUTDOWN when nobody can collect it any more. */
int cfw_job_watch(cfw_job *job, uint64_t token);

/* The next token: 0, -ETIMEDOUT or, once destroyed and empty, -ESHUTDOWN.
 * Timeouts as in cfw_job_wait. */
int cfw_pool_next(cfw_pool *pool, int64_t timeout_ns, uint64_t *token_p);

/* Give up the handle. An unfinished job goes on without it. */
void cfw_job_release(cfw_job *job);

/* ---- nets and peers: streams to other hosts --------------------------- */

typedef struct cfw_net cfw_net;
typedef struct cfw_peer cfw_peer;

enum { CFW_RIGHT_READ = 1, CFW_RIGHT_WRITE = 2 };

/* Which side of a stream this process is: who asks, or who serves. */
enum { CFW_ROLE_ASK = 0, CFW_ROLE_SERVE = 1 };

/* Up to `threads` threads named "cachefw-tcp", for all streams together; they
 * start with the first stream. A stream on which something is under way and no
 * byte moved for `timeout_ns` is cut. The pool must outlive the net. */
int cfw_net_create(cfw_pool *pool, uint32_t threads, const uint32_t *cpus, uint32_t num_cpus,
                   uint64_t timeout_ns, cfw_net **net_p);

/* Cuts every stream and joins. Its peers are to be shut before. */
void cfw_net_destroy(cfw_net *net);

/* Let peers reach memory: what lies outside, or is not allowed, they are
 * refused. Again for the same range and rights does nothing; -EEXIST when it
 * overlaps another. With no rights it is refused with -EACCES and not -ENXIO. */
int cfw_net_expose(cfw_net *net, uint64_t address, uint64_t length, uint32_t rights);

/* Take it back: -ENXIO when nothing begins there. A stream that is moving
 * bytes of it is cut; once this returns no byte of it moves. */
int cfw_net_conceal(cfw_net *net, uint64_t address);

/* Readable once a peer wants more streams, or has none any more on which it is
 * served: see cfw_peer_wanted and cfw_peer_served. Reading takes that back. */
int cfw_net_more_fd(const cfw_net *net);

/* A channel's streams. Posts and streams may be added from any thread. */
int cfw_peer_create(cfw_net *net, cfw_peer **peer_p);

/* Cuts every stream: jobs settle with -ECANCELED, and no byte moves once this
 * returns. Nothing can be added or posted afterwards. */
void cfw_peer_shut(cfw_peer *peer);

/* Shuts and frees; no other call may be under way. */
void cfw_peer_destroy(cfw_peer *peer);

enum { CFW_TLS_KEY = 32 };

/* Take over a connected socket, which becomes non-blocking and is closed when
 * the stream ends. With a key of CFW_TLS_KEY bytes everything on it goes by
 * TLS 1.3, which proves that both ends have it; exactly one of them `accepts`.
 * -ESHUTDOWN, -EMFILE when there are 64 already, or -ENOSYS for a key without
 * OpenSSL 3; the descriptor stays the caller's when this fails. */
int cfw_peer_add(cfw_peer *peer, int fd, uint32_t role, const uint8_t *tls_key, int accepts);

/* 0, or -ENOSYS: there is no OpenSSL 3 for streams with a key. */
int cfw_tls_probe(void);

/* How many streams are up on which this side asks. */
uint32_t cfw_peer_live(const cfw_peer *peer);

/* And on how many it serves. */
uint32_t cfw_peer_served(const cfw_peer *peer);

/* Ask the other side, which alone can dial, for so many streams more; and, on
 * the other side, how many were asked for since the last call. */
int      cfw_peer_ask_more(cfw_peer *peer, uint32_t count);
uint32_t cfw_peer_wanted(cfw_peer *peer);

/* Have a NET batch moved, which must outlive the job (to the byte: until it is
 * settled). -ENOTCONN without a stream, -ESHUTDOWN once shut. Everything about
 * jobs holds, but help does nothing. When a stream is cut, the jobs it carried
 * settle with the reason. A read is then over for good: no byte can land here.
 * What of a write had reached the other host may have landed there or not. */
int cfw_peer_post(cfw_peer *peer, cfw_batch *batch, cfw_job **job_p);

/* ---- reach ------------------------------------------------------------ */

/* Read `length` bytes at `remote` of the process in one call: tells whether
 * CMA works and, by what it reads, whether pid is still the one it was. */
int cfw_cma_probe(int pid, uint64_t remote, uint64_t length, void *into);

#endif
