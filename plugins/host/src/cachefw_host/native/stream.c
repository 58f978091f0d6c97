/* Streams: one connection each, its life and its bytes. */
#define _GNU_SOURCE
#include "net.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

void cfw_u64_put(uint8_t *to, uint64_t value)
{
    value = htole64(value);
    memcpy(to, &value, sizeof(value));
}

uint64_t cfw_u64_get(const uint8_t *from)
{
    uint64_t value;

    memcpy(&value, from, sizeof(value));
    return le64toh(value);
}

void cfw_head_put(uint8_t *to, const cfw_head *head)
{
    cfw_u64_put(to, (uint64_t)head->kind | (uint64_t)head->pieces << 16 |
                        (uint64_t)(uint32_t)head->status << 32);
    cfw_u64_put(to + 8, head->serial);
    cfw_u64_put(to + 16, head->bytes);
}

cfw_head cfw_head_get(const uint8_t *from)
{
    uint64_t first = cfw_u64_get(from);

    return (cfw_head){
        /* The reserved byte must be 0: with it the kind is none that is known. */
        .kind   = (first >> 8 & 0xff) != 0 ? 0 : (uint8_t)first,
        .pieces = (uint16_t)(first >> 16),
        .status = (int32_t)(uint32_t)(first >> 32),
        .serial = cfw_u64_get(from + 8),
        .bytes  = cfw_u64_get(from + 16),
    };
}

void cfw_stream_ref(cfw_stream *stream)
{
    atomic_fetch_add_explicit(&stream->refs, 1, memory_order_relaxed);
}

void cfw_stream_unref(cfw_stream *stream)
{
    if (atomic_fetch_sub_explicit(&stream->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    /* Not before: a thread that sleeps in poll() must not find another file
     * under this number. */
    if (stream->tls != NULL) {
        cfw_tls_destroy(stream->tls);
    }
    close(stream->fd);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

void cfw_stream_kill(cfw_stream *stream, int32_t status)
{
    struct sockaddr nobody = {.sa_family = AF_UNSPEC};

    if (stream->dead) {
        return;
    }
    stream->dead = true;
    epoll_ctl(stream->net->epoll, EPOLL_CTL_DEL, stream->fd, NULL);
    /* Drops what is queued and resets the other end, at once; a shutdown would
     * still deliver it. What is no TCP socket (in tests) is shut down. */
    if (connect(stream->fd, &nobody, sizeof(nobody)) != 0) {
        shutdown(stream->fd, SHUT_RDWR);
    }
    if (stream->role == CFW_ROLE_ASK) {
        /* First, so that who sees a job fail does not find the stream up. */
        bool last = atomic_fetch_sub(&stream->peer->live, 1) == 1;

        cfw_ask_fail(stream, status);
        if (last) {
            cfw_peer_drop(stream->peer, status);
        }
    } else {
        stream->serve.open = false;
        if (atomic_fetch_sub(&stream->peer->served, 1) == 1) {
            (void)cfw_net_tell(stream->net);
        }
    }
    stream->peer = NULL;
    cfw_net_leave(stream->net, stream);
}

void cfw_stream_arm(cfw_stream *stream)
{
    /* An idle stream too: its end is noticed before the next post. */
    uint32_t           wanted = EPOLLONESHOT | EPOLLRDHUP;
    struct epoll_event event  = {.data.u64 = stream->id};

    if (stream->dead || stream->driven || stream->unattended) {
        return;
    }
    if (stream->role == CFW_ROLE_SERVE) {
        wanted |= stream->serve.answering ? EPOLLOUT : EPOLLIN;
    } else {
        wanted |= stream->ask.pending > 0 ? EPOLLIN : 0;
        wanted |= stream->ask.due || cfw_ask_busy(stream) ? EPOLLOUT : 0;
    }
    if (stream->tls != NULL) {
        wanted = cfw_tls_events(stream->tls, wanted);
    }
    if (stream->armed == wanted) {
        return;
    }
    event.events = wanted;
    if (epoll_ctl(stream->net->epoll, EPOLL_CTL_MOD, stream->fd, &event) != 0) {
        cfw_stream_kill(stream, -errno);
        return;
    }
    stream->armed = wanted;
}

static int64_t secured(cfw_stream *stream, const struct iovec *vectors, int count, bool out)
{
    int64_t done = cfw_tls_handshake(stream->tls);

    if (done > 0) {
        done = cfw_tls_move(stream->tls, vectors, count, out);
    }
    if (done > 0) {
        atomic_store_explicit(&stream->progress, cfw_now(), memory_order_relaxed);
    }
    return done;
}

static int64_t moved(cfw_stream *stream, ssize_t done)
{
    if (done > 0) {
        atomic_store_explicit(&stream->progress, cfw_now(), memory_order_relaxed);
        return done;
    }
    if (done == 0) {
        return -ECONNRESET;
    }
    return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

int64_t cfw_stream_send(cfw_stream *stream, struct iovec *vectors, int count)
{
    struct msghdr message = {.msg_iov = vectors, .msg_iovlen = (size_t)count};

    if (stream->tls != NULL) {
        return secured(stream, vectors, count, true);
    }
    return moved(stream, sendmsg(stream->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

int64_t cfw_stream_receive(cfw_stream *stream, struct iovec *vectors, int count)
{
    struct msghdr message = {.msg_iov = vectors, .msg_iovlen = (size_t)count};

    if (stream->tls != NULL) {
        return secured(stream, vectors, count, false);
    }
    return moved(stream, recvmsg(stream->fd, &message, MSG_DONTWAIT));
}

void cfw_stream_turn(cfw_stream *stream, uint32_t events)
{
    int status = 0;

    if (stream->dead) {
        return;
    }
    if (stream->tls != NULL && !cfw_tls_ready(stream->tls)) {
        int64_t done = cfw_tls_handshake(stream->tls);

        if (done < 0) {
            cfw_stream_kill(stream, (int32_t)done);
        } else if (done == 0) {
            cfw_stream_arm(stream);
        }
        if (done <= 0) {
            return;
        }
    }
    if (stream->role == CFW_ROLE_SERVE) {
        /* Who asked has gone and counts on nothing more being written: what is
         * still queued here must not land. */
        status = events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP) ? -ECONNRESET
                                                             : cfw_serve_turn(stream);
    } else {
        status = cfw_ask_turn(stream);
        if (status == 0 && events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) {
            status = -ECONNRESET;
        }
    }
    if (status != 0) {
        cfw_stream_kill(stream, status);
    } else {
        cfw_stream_arm(stream);
    }
}
