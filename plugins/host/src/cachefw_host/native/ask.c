/* The side that asks: requests out of the peer's queue of jobs, and the answers. */
#define _GNU_SOURCE
#include "net.h"

#include <errno.h>

/* Large enough that a request costs nothing beside what it moves, small enough
 * that the streams of a peer end together. */
#define MAX_CHUNK (1ull << 20)
#define MIN_CHUNK (64ull << 10)

/* ---- the local side of a chunk ---------------------------------------- */

static int gather(const cfw_walk *walk, struct iovec *vectors, int limit)
{
    cfw_place place = walk->place;
    uint64_t  left  = walk->left;
    int       count = 0;

    while (left > 0 && count < limit) {
        const cfw_part *part;
        uint64_t        size;

        cfw_place_settle(walk->batch, &place);
        part = &walk->batch->parts[place.part];
        size = part->length[place.item] - place.offset;
        size = size < left ? size : left;
        vectors[count++] = (struct iovec){
            (void *)(uintptr_t)(part->local[place.item] + place.offset), size};
        left         -= size;
        place.offset += size;
    }
    return count;
}

static void advance(cfw_walk *walk, uint64_t bytes)
{
    walk->left -= bytes;
    cfw_place_advance(walk->batch, &walk->place, bytes, UINT64_MAX);
}

/* ---- requests ---------------------------------------------------------- */

static bool take(cfw_stream *stream, cfw_request *request)
{
    cfw_peer *peer = stream->peer;
    cfw_pool *pool = stream->net->pool;
    uint64_t  live = atomic_load_explicit(&peer->live, memory_order_relaxed);
    cfw_job  *job;

    pthread_mutex_lock(&pool->lock);
    job = peer->queue.head;
    if (job != NULL) {
        uint64_t size = job->left / (2 * live + 1);

        size = size > MAX_CHUNK ? MAX_CHUNK : size < MIN_CHUNK ? MIN_CHUNK : size;
        cfw_job_cut(job, size, CFW_WIRE_PIECES, &request->chunk);
        cfw_queue_turn(&peer->queue, job);
        request->job = job;
    }
    pthread_mutex_unlock(&pool->lock);
    return job != NULL;
}

static void put_request(cfw_stream *stream, const cfw_request *request)
{
    cfw_ask        *ask   = &stream->ask;
    cfw_walk        walk  = {request->job->batch, request->chunk.begin, request->chunk.bytes};
    const cfw_part *part  = &walk.batch->parts[walk.place.part];
    cfw_head        head  = {
                .kind   = part->op == CFW_NET_READ ? CFW_WIRE_READ : CFW_WIRE_WRITE,
                .status = (int32_t)CFW_WIRE_MAGIC,
                .serial = request->serial,
                .bytes  = request->chunk.bytes,
    };
    uint8_t *to = ask->frame + CFW_WIRE_HEAD;

    ask->payload = head.kind == CFW_WIRE_WRITE ? walk : (cfw_walk){0};
    while (walk.left > 0) {
        uint64_t size;

        cfw_place_settle(walk.batch, &walk.place);
        part = &walk.batch->parts[walk.place.part];
        size = part->length[walk.place.item] - walk.place.offset;
        size = size < walk.left ? size : walk.left;
        cfw_u64_put(to, part->remote[walk.place.item] + walk.place.offset);
        cfw_u64_put(to + 8, size);
        to                += CFW_WIRE_PIECE;
        walk.left         -= size;
        walk.place.offset += size;
        head.pieces++;
    }
    cfw_head_put(ask->frame, &head);
    ask->sent = 0;
    ask->size = (uint32_t)(to - ask->frame);
}

static void put_more(cfw_ask *ask)
{
    cfw_head head = {.kind   = CFW_WIRE_MORE,
                     .status = (int32_t)CFW_WIRE_MAGIC,
                     .pieces = 1,
                     .serial = ask->more};

    cfw_head_put(ask->frame, &head);
    cfw_u64_put(ask->frame + CFW_WIRE_HEAD, 0);
    cfw_u64_put(ask->frame + CFW_WIRE_HEAD + 8, 0);
    ask->sent = 0;
    ask->size = CFW_WIRE_LEAST;
    ask->more = 0;
}

bool cfw_ask_busy(const cfw_stream *stream)
{
    return stream->ask.sent < stream->ask.size || stream->ask.payload.left > 0;
}

/* Go on with the frame that is going out. */
static int flush(cfw_stream *stream)
{
    cfw_ask *ask = &stream->ask;

    while (cfw_ask_busy(stream)) {
        struct iovec vectors[CFW_VECTORS];
        uint64_t     frame = ask->size - ask->sent;
        int          count = 0;
        int64_t      done;

        if (frame > 0) {
            vectors[count++] = (struct iovec){ask->frame + ask->sent, frame};
        }
        count += gather(&ask->payload, vectors + count, CFW_VECTORS - count);
        done   = cfw_stream_send(stream, vectors, count);
        if (done <= 0) {
            return (int)done;
        }
        if ((uint64_t)done <= frame) {
            ask->sent += (uint32_t)done;
        } else {
            ask->sent = ask->size;
            advance(&ask->payload, (uint64_t)done - frame);
        }
    }
    return 0;
}

static int fill(cfw_stream *stream)
{
    cfw_ask *ask = &stream->ask;

    ask->due = false;
    for (;;) {
        cfw_request *request;
        int          status = flush(stream);

        if (status != 0 || cfw_ask_busy(stream)) {
            return status;
        }
        if (ask->more > 0) {
            put_more(ask);
            continue;
        }
        if (ask->pending == CFW_DEPTH || ask->window >= CFW_WINDOW) {
            return 0;
        }
        request = &ask->ring[(ask->first + ask->pending) % CFW_DEPTH];
        if (!take(stream, request)) {
            return 0;
        }
        if (ask->pending == 0) {
            atomic_store_explicit(&stream->progress, cfw_now(), memory_order_relaxed);
        }
        request->serial = ++ask->serial;
        ask->pending++;
        ask->window += request->chunk.bytes;
        put_request(stream, request);
    }
}

void cfw_ask_fill(cfw_stream *stream)
{
    int status = stream->dead ? 0 : fill(stream);

    if (status != 0) {
        cfw_stream_kill(stream, status);
    }
}

/* ---- answers ----------------------------------------------------------- */

/* Where the nth piece of a chunk begins. */
static cfw_place nth(const cfw_request *request, uint32_t piece)
{
    cfw_walk walk = {request->job->batch, request->chunk.begin, request->chunk.bytes};

    cfw_place_settle(walk.batch, &walk.place);
    while (piece-- > 0) {
        uint64_t gone = cfw_place_advance(walk.batch, &walk.place, walk.left, 1);

        walk.left -= gone;
        if (walk.left == 0) {
            break;
        }
        cfw_place_settle(walk.batch, &walk.place);
    }
    return walk.place;
}

/* The oldest request is over. */
static void finish(cfw_stream *stream, int32_t status, uint32_t piece, uint64_t bytes)
{
    cfw_ask    *ask     = &stream->ask;
    cfw_request request = ask->ring[ask->first];
    cfw_pool   *pool    = stream->net->pool;
    cfw_place   place   = status == 0 ? request.chunk.begin : nth(&request, piece);

    ask->first   = (ask->first + 1) % CFW_DEPTH;
    ask->pending--;
    ask->window -= request.chunk.bytes;
    pthread_mutex_lock(&pool->lock);
    cfw_job_finish(request.job, &(cfw_result){.status = status,
                                              .part   = place.part,
                                              .item   = place.item,
                                              .bytes  = bytes});
    pthread_mutex_unlock(&pool->lock);
}

void cfw_ask_fail(cfw_stream *stream, int32_t status)
{
    cfw_ask *ask = &stream->ask;

    ask->payload = (cfw_walk){0};
    ask->size = ask->sent = 0;
    while (ask->pending > 0) {
        finish(stream, status, 0, 0);
    }
}

/* The head of an answer is here whole. */
static int hear(cfw_stream *stream)
{
    cfw_ask           *ask     = &stream->ask;
    const cfw_request *request = &ask->ring[ask->first];
    const cfw_batch   *batch   = request->job->batch;
    uint64_t           bytes   = request->chunk.bytes;
    bool               read    = batch->parts[0].op == CFW_NET_READ;
    cfw_head           head    = cfw_head_get(ask->head);

    ask->heard = 0;
    if (head.kind != (read ? CFW_WIRE_READ : CFW_WIRE_WRITE) || head.serial != request->serial ||
        head.status > 0 || head.bytes != (head.status == 0 ? bytes : 0) ||
        /* Nobody who is honest answers before the last byte was sent. */
        (ask->pending == 1 && ask->payload.left > 0)) {
        return -EPROTO;
    }
    if (head.status != 0) {
        finish(stream, head.status, head.pieces, 0);
    } else if (read) {
        ask->body = true;
        ask->into = (cfw_walk){batch, request->chunk.begin, bytes};
    } else {
        finish(stream, 0, 0, bytes);
    }
    return 0;
}

/* Where the next bytes go, at most: the rest of a head, then the rest of a read. */
static int expect(cfw_stream *stream, struct iovec *vectors, uint64_t *head_p)
{
    cfw_ask           *ask     = &stream->ask;
    const cfw_request *request = &ask->ring[ask->first];
    struct iovec       head    = {ask->head + ask->heard, CFW_WIRE_HEAD - ask->heard};
    int                count   = 0;

    *head_p = 0;
    if (ask->body) {
        /* Straight into place; the next answer's head comes in the same call. */
        count = gather(&ask->into, vectors, CFW_VECTORS - 1);
        if (ask->pending > 1 && count < CFW_VECTORS - 1) {
            vectors[count++] = head;
        }
        return count;
    }
    vectors[count++] = head;
    *head_p          = head.iov_len;
    if (ask->pending == 1 && request->job->batch->parts->op == CFW_NET_READ) {
        /* Nothing but this answer can be on its way, so that a refusal has
         * nothing behind it that could land in memory. */
        ask->into = (cfw_walk){request->job->batch, request->chunk.begin, request->chunk.bytes};
        count    += gather(&ask->into, vectors + 1, CFW_VECTORS - 1);
    }
    return count;
}

/* So many bytes have come, of which at most `head` are a head's. */
static int receive(cfw_stream *stream, uint64_t bytes, uint64_t head)
{
    cfw_ask *ask    = &stream->ask;
    int      status = 0;

    if (head > 0) {
        uint64_t had = bytes < head ? bytes : head;

        ask->heard += (uint32_t)had;
        bytes      -= had;
        if (ask->heard == CFW_WIRE_HEAD) {
            status = hear(stream);
        }
        if (status == 0 && bytes > 0 && !ask->body) {
            return -EPROTO;
        }
    }
    if (status == 0 && ask->body) {
        uint64_t here = bytes < ask->into.left ? bytes : ask->into.left;

        advance(&ask->into, here);
        bytes -= here;
        if (ask->into.left == 0) {
            ask->body = false;
            finish(stream, 0, 0, ask->ring[ask->first].chunk.bytes);
        }
        ask->heard += (uint32_t)bytes;
        if (bytes > 0 && ask->heard == CFW_WIRE_HEAD) {
            status = hear(stream);
        }
    }
    return status;
}

int cfw_ask_turn(cfw_stream *stream)
{
    cfw_ask *ask    = &stream->ask;
    uint64_t budget = CFW_TURN;
    int      status = fill(stream);

    while (status == 0 && ask->pending > 0 && budget > 0) {
        struct iovec vectors[CFW_VECTORS];
        uint64_t     head;
        int          count = expect(stream, vectors, &head);
        int64_t      done  = cfw_stream_receive(stream, vectors, count);

        if (done <= 0) {
            return (int)done;
        }
        budget -= (uint64_t)done < budget ? (uint64_t)done : budget;
        status  = receive(stream, (uint64_t)done, head);
        if (status == 0 && ask->pending <= CFW_DEPTH / 2) {
            status = fill(stream);
        }
    }
    return status;
}
