/* What the files of the network half share: streams to peers on other hosts,
 * and the threads that serve them.
 *
 * Locks, in the order in which one may be taken while another is held: a
 * peer's, a stream's, the table's, the net's, the pool's. */
#ifndef CACHEFW_HOST_NET_H
#define CACHEFW_HOST_NET_H

#include "internal.h"

#include <sys/uio.h>

/* ---- on the wire ------------------------------------------------------
 *
 * All numbers are little-endian. The one that asks sends a request and after
 * it, for a write, the bytes; the one that serves answers in the same order,
 * for a read with the bytes behind the answer unless its status is negative.
 *
 *   request: kind u8, 0 u8, pieces u16, magic u32, serial u64, bytes u64,
 *            then for each piece address u64, length u64
 *   answer:  kind u8, 0 u8, failing piece u16, status i32, serial u64, bytes u64
 */

enum { CFW_WIRE_READ = 1, CFW_WIRE_WRITE = 2, CFW_WIRE_MORE = 3 };

#define CFW_WIRE_MAGIC  0x31574643u
#define CFW_WIRE_HEAD   24u
#define CFW_WIRE_PIECE  16u
#define CFW_WIRE_PIECES 512u
#define CFW_WIRE_BYTES  (4u << 20)
#define CFW_WIRE_FRAME  (CFW_WIRE_HEAD + CFW_WIRE_PIECES * CFW_WIRE_PIECE)
/* No request is shorter: it is read in one call. */
#define CFW_WIRE_LEAST (CFW_WIRE_HEAD + CFW_WIRE_PIECE)

typedef struct {
    uint8_t  kind;
    uint16_t pieces; /* of a request; of an answer, the one that failed */
    int32_t  status; /* of an answer; of a request, the magic */
    uint64_t serial, bytes;
} cfw_head;

void     cfw_head_put(uint8_t *to, const cfw_head *head);
cfw_head cfw_head_get(const uint8_t *from);
void     cfw_u64_put(uint8_t *to, uint64_t value);
uint64_t cfw_u64_get(const uint8_t *from);

/* ---- table.c: memory that peers may reach ------------------------------ */

typedef struct {
    uint64_t address, length;
} cfw_piece;

typedef struct {
    uint64_t start, end;
    uint32_t rights;
} cfw_row;

typedef struct {
    pthread_mutex_t lock;
    cfw_row        *rows; /* by address, none overlapping */
    uint64_t        count, room;
} cfw_table;

/* 0, or -ENXIO where a piece lies outside, -EACCES where the right is missing, with
 * the first such piece. */
int cfw_table_check(cfw_table *table, const cfw_piece *pieces, uint32_t count, uint32_t right,
                    uint32_t *piece_p);

/* ---- tls.c ------------------------------------------------------------- */

typedef struct cfw_tls cfw_tls;

/* TLS on a connected socket, with the side that took the connection serving.
 * -ENOSYS without OpenSSL 3. */
int  cfw_tls_create(int fd, const uint8_t *key, bool accepts, cfw_tls **tls_p);
void cfw_tls_destroy(cfw_tls *tls);

/* 1 once done; 0 when it has to wait; -EKEYREJECTED when the other end has another key. */
int64_t cfw_tls_handshake(cfw_tls *tls);

/* As sendmsg and recvmsg: bytes moved, 0 for not now, or a negative errno. */
int64_t cfw_tls_move(cfw_tls *tls, const struct iovec *vectors, int count, bool out);

bool cfw_tls_ready(const cfw_tls *tls);

/* What epoll has to wait for instead, given what the stream would like. */
uint32_t cfw_tls_events(const cfw_tls *tls, uint32_t wanted);

/* ---- stream.c ---------------------------------------------------------- */

/* As many as one call gathers. */
#define CFW_VECTORS 128

/* A request that is on its way, and what it is to move. */
typedef struct {
    cfw_job  *job;
    cfw_chunk chunk;
    uint64_t  serial;
} cfw_request;

/* As many requests, and about as many bytes, are on their way on one stream. */
#define CFW_DEPTH  8u
#define CFW_WINDOW (6ull << 20)

typedef struct {
    const cfw_batch *batch;
    cfw_place        place;
    uint64_t         left;
} cfw_walk;

/* The side that asks. */
typedef struct {
    cfw_request ring[CFW_DEPTH]; /* oldest at `first` */
    uint32_t    first, pending;
    uint64_t    serial, window;
    uint32_t    more;            /* streams to ask for */
    bool        due;             /* there may be jobs to take */
    /* Going out: the frame from `sent` to `size`, then the bytes of a write. */
    uint32_t    size, sent;
    cfw_walk    payload;
    /* Coming in: the answer's head, then the bytes of a read. */
    uint32_t    heard;
    bool        body;
    cfw_walk    into;
    uint8_t     head[CFW_WIRE_HEAD];
    uint8_t     frame[CFW_WIRE_FRAME];
} cfw_ask;

/* The side that is asked. */
typedef struct {
    uint32_t  have;      /* bytes of the request */
    uint32_t  count, at; /* pieces; the one where the bytes stand */
    uint64_t  offset;    /* into that one */
    uint64_t  left;      /* bytes still to be moved */
    uint64_t  discard;   /* bytes of a refused write still to come */
    bool      open;      /* the pieces are being moved */
    bool      writing;
    bool      answering; /* an answer, with what is left of a read, is going out */
    uint32_t  sent;      /* of the answer's head */
    cfw_head  request;
    uint8_t   answer[CFW_WIRE_HEAD];
    uint8_t   frame[CFW_WIRE_FRAME];
    cfw_piece pieces[CFW_WIRE_PIECES];
} cfw_serve;

struct cfw_stream {
    cfw_net        *net;
    cfw_peer       *peer; /* not touched once dead */
    pthread_mutex_t lock;
    atomic_uint     refs;
    uint64_t        id;
    int             fd;
    cfw_tls        *tls; /* NULL: in the open */
    uint32_t        role;
    uint32_t        armed;      /* what epoll waits for */
    bool            dead;
    bool            driven;     /* a thread waiting for its job reads it */
    bool            unattended; /* nobody has asked yet what became of the post */
    atomic_ullong   progress;   /* when a byte last moved, ns */
    union {
        cfw_ask   ask;
        cfw_serve serve;
    };
};

void cfw_stream_ref(cfw_stream *stream);
void cfw_stream_unref(cfw_stream *stream);

/* With the stream's lock held. Aborts the connection: of what was not sent yet
 * nothing will be, and what waits for an answer fails with this status. */
void cfw_stream_kill(cfw_stream *stream, int32_t status);

/* Have epoll wait for what the stream needs next. */
void cfw_stream_arm(cfw_stream *stream);

/* Bytes moved (0: not now), or a negative errno, -ECONNRESET at the end. */
int64_t cfw_stream_send(cfw_stream *stream, struct iovec *vectors, int count);
int64_t cfw_stream_receive(cfw_stream *stream, struct iovec *vectors, int count);

/* All of it is read or written as far as it goes. */
void cfw_stream_turn(cfw_stream *stream, uint32_t events);

/* ---- ask.c and serve.c: both with the stream's lock held --------------- */

/* Bytes that one turn moves, so that no stream keeps a thread from the others. */
#define CFW_TURN (8ull << 20)

void cfw_ask_fill(cfw_stream *stream);
int  cfw_ask_turn(cfw_stream *stream);
bool cfw_ask_busy(const cfw_stream *stream);
void cfw_ask_fail(cfw_stream *stream, int32_t status);

int  cfw_serve_turn(cfw_stream *stream);
bool cfw_serve_busy(const cfw_stream *stream);
bool cfw_serve_touches(const cfw_stream *stream, uint64_t start, uint64_t end);

/* Without it: read the one stream that a small job went out on, in this thread. */
void cfw_ask_drive(cfw_job *job, const struct timespec *deadline);

/* ---- net.c and peer.c -------------------------------------------------- */

struct cfw_net {
    pthread_mutex_t lock;
    cfw_pool       *pool;
    uint64_t        timeout_ns;
    int             epoll, stop, more; /* the last two are eventfds */
    bool            stopping;
    cfw_table       table;
    cfw_stream    **slots;
    uint32_t       *uses; /* of each slot, which makes ids that do not come again */
    uint32_t        room;
    uint32_t        wanted, running;
    uint32_t       *cpus;
    uint32_t        num_cpus;
    pthread_t       threads[];
};

/* A slot for a stream, and threads that look at it. */
int  cfw_net_enter(cfw_net *net, cfw_stream *stream);
void cfw_net_leave(cfw_net *net, cfw_stream *stream);

/* Call for each stream that is there, with its lock held. */
void cfw_net_each(cfw_net *net, void (*call)(cfw_stream *stream, void *context), void *context);

/* Have whoever waits for it look at the peers. */
int cfw_net_tell(cfw_net *net);

uint64_t cfw_now(void);

/* Give up the jobs that are waiting. */
void cfw_peer_drop(cfw_peer *peer, int32_t status);

#define CFW_STREAMS 64

struct cfw_peer {
    pthread_mutex_t lock;
    cfw_net        *net;
    cfw_queue       queue; /* under the pool's lock */
    bool            closed;
    uint32_t        count, next;
    atomic_uint     live;  /* streams that ask */
    atomic_uint     served; /* streams that serve */
    atomic_uint     more;  /* streams that the other side wants */
    cfw_stream     *streams[CFW_STREAMS];
};

#endif
