/* The side that is asked: checks each request against the table, then moves
 * bytes between the connection and memory, in place. */
#define _GNU_SOURCE
#include "net.h"

#include <errno.h>

#define SMALL (64ull << 10)

bool cfw_serve_busy(const cfw_stream *stream)
{
    const cfw_serve *serve = &stream->serve;

    return serve->have > 0 || serve->answering || serve->left > 0 || serve->discard > 0;
}

bool cfw_serve_touches(const cfw_stream *stream, uint64_t start, uint64_t end)
{
    const cfw_serve *serve = &stream->serve;

    if (!serve->open) {
        return false;
    }
    for (uint32_t index = serve->at; index < serve->count; ++index) {
        const cfw_piece *piece = &serve->pieces[index];

        if (piece->address < end && start < piece->address + piece->length) {
            return true;
        }
    }
    return false;
}

static int gather(const cfw_serve *serve, struct iovec *vectors, int limit)
{
    uint64_t offset = serve->offset;
    int      count  = 0;

    for (uint32_t index = serve->at; index < serve->count && count < limit; ++index) {
        const cfw_piece *piece = &serve->pieces[index];

        vectors[count++] =
            (struct iovec){(void *)(uintptr_t)(piece->address + offset), piece->length - offset};
        offset = 0;
    }
    return count;
}

static void advance(cfw_serve *serve, uint64_t bytes)
{
    serve->left   -= bytes;
    serve->offset += bytes;
    while (serve->at < serve->count && serve->offset >= serve->pieces[serve->at].length) {
        serve->offset -= serve->pieces[serve->at].length;
        serve->at++;
    }
}

static void answer(cfw_serve *serve, int32_t status, uint32_t piece)
{
    cfw_head head = {.kind   = serve->request.kind,
                     .status = status,
                     .pieces = (uint16_t)piece,
                     .serial = serve->request.serial,
                     .bytes  = status == 0 ? serve->request.bytes : 0};

    cfw_head_put(serve->answer, &head);
    serve->sent      = 0;
    serve->answering = true;
}

/* What of a request can be wrong without any memory being looked at. */
static int read_pieces(cfw_serve *serve)
{
    uint64_t total = 0;

    for (uint32_t index = 0; index < serve->count; ++index) {
        const uint8_t *from  = serve->frame + CFW_WIRE_HEAD + index * CFW_WIRE_PIECE;
        cfw_piece     *piece = &serve->pieces[index];

        *piece = (cfw_piece){cfw_u64_get(from), cfw_u64_get(from + 8)};
        if (piece->length == 0 || piece->length > CFW_WIRE_BYTES) {
            return -EPROTO;
        }
        total += piece->length;
    }
    return total == serve->request.bytes ? 0 : -EPROTO;
}

/* A whole request is here. */
static int begin(cfw_stream *stream)
{
    cfw_serve *serve = &stream->serve;
    uint32_t   piece = 0;
    int        status;

    serve->have = 0;
    if (serve->request.kind == CFW_WIRE_MORE) {
        atomic_store(&stream->peer->more, (unsigned)(serve->request.serial % CFW_STREAMS));
        return cfw_net_tell(stream->net);
    }
    status = read_pieces(serve);
    if (status != 0) {
        return status;
    }
    serve->writing = serve->request.kind == CFW_WIRE_WRITE;
    status = cfw_table_check(&stream->net->table, serve->pieces, serve->count,
                             serve->writing ? CFW_RIGHT_WRITE : CFW_RIGHT_READ, &piece);
    if (status != 0) {
        serve->discard = serve->writing ? serve->request.bytes : 0;
        answer(serve, status, piece);
        return 0;
    }
    serve->at     = 0;
    serve->offset = 0;
    serve->left   = serve->request.bytes;
    serve->open   = true;
    if (!serve->writing) {
        answer(serve, 0, 0);
    }
    return 0;
}

/* Send the answer, and what it brings. */
static int64_t send_some(cfw_stream *stream)
{
    cfw_serve   *serve = &stream->serve;
    struct iovec vectors[CFW_VECTORS];
    uint64_t     head  = CFW_WIRE_HEAD - serve->sent;
    int          count = 0;
    int64_t      done;

    if (head > 0) {
        vectors[count++] = (struct iovec){serve->answer + serve->sent, head};
    }
    if (serve->left > 0) {
        count += gather(serve, vectors + count, CFW_VECTORS - count);
    }
    done = cfw_stream_send(stream, vectors, count);
    if (done <= 0) {
        return done;
    }
    if ((uint64_t)done <= head) {
        serve->sent += (uint32_t)done;
    } else {
        serve->sent = CFW_WIRE_HEAD;
        advance(serve, (uint64_t)done - head);
    }
    if (serve->sent == CFW_WIRE_HEAD && serve->left == 0) {
        serve->answering = false;
        serve->open      = false;
    }
    return done;
}

static int64_t receive_payload(cfw_stream *stream)
{
    cfw_serve   *serve = &stream->serve;
    struct iovec vectors[CFW_VECTORS];
    int64_t done = cfw_stream_receive(stream, vectors, gather(serve, vectors, CFW_VECTORS));

    if (done > 0) {
        advance(serve, (uint64_t)done);
        if (serve->left == 0) {
            serve->open = false;
            answer(serve, 0, 0);
        }
    }
    return done;
}

static int64_t discard_payload(cfw_stream *stream)
{
    cfw_serve   *serve = &stream->serve;
    uint8_t      nowhere[16384];
    uint64_t     size   = serve->discard < sizeof(nowhere) ? serve->discard : sizeof(nowhere);
    struct iovec vector = {nowhere, size};
    int64_t      done   = cfw_stream_receive(stream, &vector, 1);

    if (done > 0) {
        serve->discard -= (uint64_t)done;
    }
    return done;
}

static int64_t receive_request(cfw_stream *stream)
{
    cfw_serve   *serve  = &stream->serve;
    uint32_t     wanted = CFW_WIRE_LEAST;
    struct iovec vector;
    int64_t      done;

    if (serve->have >= CFW_WIRE_LEAST) {
        wanted = CFW_WIRE_HEAD + serve->count * CFW_WIRE_PIECE;
    }
    vector = (struct iovec){serve->frame + serve->have, wanted - serve->have};
    done   = cfw_stream_receive(stream, &vector, 1);
    if (done <= 0) {
        return done;
    }
    serve->have += (uint32_t)done;
    if (serve->have == CFW_WIRE_LEAST) {
        cfw_head *request = &serve->request;

        *request = cfw_head_get(serve->frame);
        if (request->kind < CFW_WIRE_READ || request->kind > CFW_WIRE_MORE ||
            (uint32_t)request->status != CFW_WIRE_MAGIC || request->pieces == 0 ||
            request->pieces > CFW_WIRE_PIECES || request->bytes > CFW_WIRE_BYTES ||
            (request->kind == CFW_WIRE_MORE && request->pieces != 1)) {
            return -EPROTO;
        }
        serve->count = request->pieces;
    }
    if (serve->have >= CFW_WIRE_LEAST &&
        serve->have == CFW_WIRE_HEAD + serve->count * CFW_WIRE_PIECE) {
        int status = begin(stream);

        return status != 0 ? status : done;
    }
    return done;
}

int cfw_serve_turn(cfw_stream *stream)
{
    cfw_serve *serve  = &stream->serve;
    uint64_t   budget = CFW_TURN;

    while (budget > 0) {
        int64_t done;

        /* A refused write is read to its end before it is answered: who sends
         * it may not be reading yet. */
        if (serve->discard > 0) {
            done = discard_payload(stream);
        } else if (serve->answering) {
            done = send_some(stream);
        } else if (serve->left > 0) {
            done = receive_payload(stream);
        } else {
            done = receive_request(stream);
        }
        if (done <= 0) {
            return (int)done;
        }
        budget -= (uint64_t)done < budget ? (uint64_t)done : budget;
        /* Who asks for a little mostly waits for it before it asks again. */
        if (!cfw_serve_busy(stream) && budget > CFW_TURN - SMALL) {
            return 0;
        }
    }
    return 0;
}
