/* Peers: the streams of one channel, and the jobs that go out on them. */
#define _GNU_SOURCE
#include "net.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>

/* Up to this a job goes out on one stream, within the post. */
#define SMALL (64ull << 10)

int cfw_peer_create(cfw_net *net, cfw_peer **peer_p)
{
    cfw_peer *peer = calloc(1, sizeof(*peer));
    int       status;

    if (peer == NULL) {
        return -ENOMEM;
    }
    status = -pthread_mutex_init(&peer->lock, NULL);
    if (status != 0) {
        free(peer);
        return status;
    }
    peer->net = net;
    *peer_p   = peer;
    return 0;
}

void cfw_peer_drop(cfw_peer *peer, int32_t status)
{
    cfw_pool *pool = peer->net->pool;

    pthread_mutex_lock(&pool->lock);
    while (peer->queue.head != NULL) {
        cfw_job_drop(peer->queue.head, status);
    }
    pthread_mutex_unlock(&pool->lock);
}

void cfw_peer_shut(cfw_peer *peer)
{
    pthread_mutex_lock(&peer->lock);
    /* The second time the net may have gone. */
    if (!peer->closed) {
        peer->closed = true;
        cfw_peer_drop(peer, -ECANCELED);
    }
    while (peer->count > 0) {
        cfw_stream *stream = peer->streams[--peer->count];

        pthread_mutex_lock(&stream->lock);
        cfw_stream_kill(stream, -ECANCELED);
        pthread_mutex_unlock(&stream->lock);
        cfw_stream_unref(stream);
    }
    pthread_mutex_unlock(&peer->lock);
}

void cfw_peer_destroy(cfw_peer *peer)
{
    cfw_peer_shut(peer);
    pthread_mutex_destroy(&peer->lock);
    free(peer);
}

static void reap(cfw_peer *peer)
{
    uint32_t kept = 0;

    for (uint32_t index = 0; index < peer->count; ++index) {
        cfw_stream *stream = peer->streams[index];
        bool        dead;

        pthread_mutex_lock(&stream->lock);
        dead = stream->dead;
        pthread_mutex_unlock(&stream->lock);
        if (dead) {
            cfw_stream_unref(stream);
        } else {
            peer->streams[kept++] = stream;
        }
    }
    peer->count = kept;
}

static int make_stream(cfw_peer *peer, int fd, uint32_t role, const uint8_t *key, bool accepts,
                       cfw_stream **stream_p)
{
    size_t      half = role == CFW_ROLE_ASK ? sizeof(cfw_ask) : sizeof(cfw_serve);
    cfw_stream *stream;
    int         flags = fcntl(fd, F_GETFL);
    int         status;

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        return -errno;
    }
    stream = calloc(1, offsetof(cfw_stream, ask) + half);
    if (stream == NULL) {
        return -ENOMEM;
    }
    status = -pthread_mutex_init(&stream->lock, NULL);
    if (status != 0) {
        free(stream);
        return status;
    }
    if (key != NULL) {
        status = cfw_tls_create(fd, key, accepts, &stream->tls);
        if (status != 0) {
            pthread_mutex_destroy(&stream->lock);
            free(stream);
            return status;
        }
    }
    stream->net  = peer->net;
    stream->peer = peer;
    stream->fd   = fd;
    stream->role = role;
    atomic_init(&stream->refs, 1);
    atomic_init(&stream->progress, cfw_now());
    *stream_p = stream;
    return 0;
}

int cfw_peer_add(cfw_peer *peer, int fd, uint32_t role, const uint8_t *tls_key, int accepts)
{
    cfw_stream *stream = NULL;
    int         status;

    if (role > CFW_ROLE_SERVE) {
        return -EINVAL;
    }
    pthread_mutex_lock(&peer->lock);
    reap(peer);
    status = peer->closed ? -ESHUTDOWN : peer->count == CFW_STREAMS ? -EMFILE : 0;
    if (status == 0) {
        status = make_stream(peer, fd, role, tls_key, accepts != 0, &stream);
    }
    if (status == 0) {
        /* Its first event may come before this returns, and has to wait. */
        pthread_mutex_lock(&stream->lock);
        status = cfw_net_enter(peer->net, stream);
        if (status == 0) {
            peer->streams[peer->count++] = stream;
            if (role == CFW_ROLE_ASK) {
                atomic_fetch_add(&peer->live, 1);
                cfw_ask_fill(stream);
            } else {
                atomic_fetch_add(&peer->served, 1);
            }
            /* With TLS this end may have to speak first. */
            cfw_stream_turn(stream, 0);
        }
        pthread_mutex_unlock(&stream->lock);
        if (status != 0) {
            /* The descriptor stays the caller's. */
            if (stream->tls != NULL) {
                cfw_tls_destroy(stream->tls);
            }
            pthread_mutex_destroy(&stream->lock);
            free(stream);
        }
    }
    pthread_mutex_unlock(&peer->lock);
    return status;
}

uint32_t cfw_peer_live(const cfw_peer *peer)
{
    return atomic_load(&peer->live);
}

uint32_t cfw_peer_served(const cfw_peer *peer)
{
    return atomic_load(&peer->served);
}

uint32_t cfw_peer_wanted(cfw_peer *peer)
{
    return atomic_exchange(&peer->more, 0);
}

int cfw_peer_ask_more(cfw_peer *peer, uint32_t count)
{
    int status = -ENOTCONN;

    pthread_mutex_lock(&peer->lock);
    for (uint32_t index = 0; index < peer->count && status != 0; ++index) {
        cfw_stream *stream = peer->streams[index];

        pthread_mutex_lock(&stream->lock);
        if (!stream->dead && stream->role == CFW_ROLE_ASK) {
            stream->ask.more = count;
            cfw_ask_fill(stream);
            cfw_stream_arm(stream);
            status = 0;
        }
        pthread_mutex_unlock(&stream->lock);
    }
    pthread_mutex_unlock(&peer->lock);
    return status;
}

/* Let one stream take what it can; with `idle_only`, only if it has nothing to
 * do, and then a job that it took whole is left to whoever waits for it. */
static void offer(cfw_stream *stream, cfw_job *job, bool idle_only, bool later)
{
    pthread_mutex_lock(&stream->lock);
    if (!stream->dead && stream->role == CFW_ROLE_ASK &&
        !(idle_only && (stream->ask.pending > 0 || cfw_ask_busy(stream)))) {
        const cfw_request *first = &stream->ask.ring[stream->ask.first];

        stream->unattended = false;
        if (later) {
            stream->ask.due = true;
        } else {
            cfw_ask_fill(stream);
        }
        if (idle_only && !stream->dead && stream->ask.pending == 1 && !cfw_ask_busy(stream) &&
            first->job == job && first->chunk.bytes == job->batch->bytes && !stream->driven) {
            cfw_stream_ref(stream);
            job->lone          = stream;
            stream->unattended = true;
        }
        cfw_stream_arm(stream);
    }
    pthread_mutex_unlock(&stream->lock);
}

static bool waits(cfw_peer *peer)
{
    bool more;

    pthread_mutex_lock(&peer->net->pool->lock);
    more = peer->queue.head != NULL;
    pthread_mutex_unlock(&peer->net->pool->lock);
    return more;
}

int cfw_peer_post(cfw_peer *peer, cfw_batch *batch, cfw_job **job_p)
{
    bool     small = batch->bytes <= SMALL;
    cfw_job *job;
    int      status;

    if (!batch->net) {
        return -EINVAL;
    }
    pthread_mutex_lock(&peer->lock);
    status = peer->closed ? -ESHUTDOWN : atomic_load(&peer->live) == 0 ? -ENOTCONN : 0;
    if (status == 0) {
        status = cfw_job_create(peer->net->pool, batch, &peer->queue, &job);
    }
    if (status == 0) {
        bool later = !small && batch->parts->op == CFW_NET_WRITE;

        for (int pass = small ? 0 : 1; pass < 2 && waits(peer); ++pass) {
            for (uint32_t index = 0; index < peer->count; ++index) {
                offer(peer->streams[(peer->next + index) % peer->count], job, pass == 0, later);
                if (pass == 0 && !waits(peer)) {
                    break;
                }
            }
        }
        peer->next += small ? 0 : 1;
        /* The last stream may have died since it was counted. */
        if (atomic_load(&peer->live) == 0) {
            cfw_peer_drop(peer, -ENOTCONN);
        }
        *job_p = job;
    }
    pthread_mutex_unlock(&peer->lock);
    return status;
}

/* ---- waiting ------------------------------------------------------------ */

void cfw_ask_drive(cfw_job *job, const struct timespec *deadline)
{
    cfw_stream *stream = job->lone;

    if (stream == NULL) {
        return;
    }
    pthread_mutex_lock(&stream->lock);
    /* Otherwise others look after it already. */
    if (!stream->dead && !stream->driven && stream->unattended) {
        stream->driven     = true;
        stream->unattended = false;
        for (;;) {
            /* First without a sleep: on one processor the answer is here already. */
            int             status = stream->dead ? 0 : cfw_ask_turn(stream);
            struct pollfd   wanted = {.fd = stream->fd, .events = POLLIN};
            struct timespec now, left;

            if (status != 0) {
                cfw_stream_kill(stream, status);
            }
            if (stream->dead || cfw_job_settled(job)) {
                break;
            }
            if (cfw_ask_busy(stream)) {
                wanted.events |= POLLOUT;
            }
            if (deadline != NULL) {
                clock_gettime(CLOCK_MONOTONIC, &now);
                left.tv_sec  = deadline->tv_sec - now.tv_sec;
                left.tv_nsec = deadline->tv_nsec - now.tv_nsec;
                if (left.tv_nsec < 0) {
                    left.tv_sec--;
                    left.tv_nsec += 1000000000;
                }
                if (left.tv_sec < 0) {
                    break;
                }
            }
            pthread_mutex_unlock(&stream->lock);
            ppoll(&wanted, 1, deadline != NULL ? &left : NULL, NULL);
            pthread_mutex_lock(&stream->lock);
        }
        stream->driven = false;
        cfw_stream_arm(stream);
    }
    pthread_mutex_unlock(&stream->lock);
}

void cfw_job_attend(cfw_job *job)
{
    cfw_stream *stream = job->lone;

    if (stream == NULL || cfw_job_settled(job)) {
        return;
    }
    pthread_mutex_lock(&stream->lock);
    stream->unattended = false;
    cfw_stream_arm(stream);
    pthread_mutex_unlock(&stream->lock);
}
