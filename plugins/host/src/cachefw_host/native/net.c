/* The net: threads that look after every stream of every peer. */
#define _GNU_SOURCE
#include "net.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define STOP UINT64_MAX

uint64_t cfw_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The stream of an id, kept, or NULL when it has gone. */
static cfw_stream *find(cfw_net *net, uint64_t id)
{
    uint32_t    slot   = (uint32_t)id;
    cfw_stream *stream = NULL;

    pthread_mutex_lock(&net->lock);
    if (slot < net->room && net->uses[slot] == id >> 32) {
        stream = net->slots[slot];
    }
    if (stream != NULL) {
        cfw_stream_ref(stream);
    }
    pthread_mutex_unlock(&net->lock);
    return stream;
}

void cfw_net_each(cfw_net *net, void (*call)(cfw_stream *stream, void *context), void *context)
{
    for (uint32_t slot = 0;; ++slot) {
        cfw_stream *stream;

        pthread_mutex_lock(&net->lock);
        if (slot >= net->room) {
            pthread_mutex_unlock(&net->lock);
            return;
        }
        stream = net->slots[slot];
        if (stream != NULL) {
            cfw_stream_ref(stream);
        }
        pthread_mutex_unlock(&net->lock);
        if (stream != NULL) {
            pthread_mutex_lock(&stream->lock);
            call(stream, context);
            pthread_mutex_unlock(&stream->lock);
            cfw_stream_unref(stream);
        }
    }
}

/* A frozen process keeps its kernel answering: only this sees that it is silent. */
static void look(cfw_stream *stream, void *context)
{
    const uint64_t *now = context;
    bool            busy;

    if (stream->dead) {
        return;
    }
    busy = stream->role == CFW_ROLE_SERVE ? cfw_serve_busy(stream)
                                          : stream->ask.pending > 0 || cfw_ask_busy(stream);
    if (!busy || *now <= stream->progress + stream->net->timeout_ns) {
        return;
    }
    /* It may be this process that was frozen, and the bytes are here. */
    cfw_stream_turn(stream, 0);
    if (!stream->dead && *now > stream->progress + stream->net->timeout_ns) {
        cfw_stream_kill(stream, -ETIMEDOUT);
    }
}

typedef struct {
    cfw_net *net;
    bool     first;
} thread_start;

static void *run(void *argument)
{
    thread_start start = *(thread_start *)argument;
    cfw_net     *net   = start.net;
    uint64_t     tick  = net->timeout_ns / 4, last = cfw_now(), now;

    free(argument);
    tick = tick > 1000000000u ? 1000000000u : tick < 20000000u ? 20000000u : tick;
    cfw_thread_begin("cachefw-tcp", net->cpus, net->num_cpus);
    for (;;) {
        struct epoll_event event;
        int         count = epoll_wait(net->epoll, &event, 1, start.first ? (int)(tick / 1000000) : -1);
        cfw_stream *stream;

        if (count > 0 && event.data.u64 == STOP) {
            return NULL;
        }
        if (start.first && (now = cfw_now()) - last >= tick) {
            last = now;
            cfw_net_each(net, look, &now);
        }
        stream = count > 0 ? find(net, event.data.u64) : NULL;
        if (stream != NULL) {
            pthread_mutex_lock(&stream->lock);
            stream->armed = 0;
            cfw_stream_turn(stream, event.events);
            pthread_mutex_unlock(&stream->lock);
            cfw_stream_unref(stream);
        }
    }
}

/* With the lock held. One thread is needed; the others may fail. */
static int start(cfw_net *net)
{
    while (net->running < net->wanted) {
        thread_start *argument = malloc(sizeof(*argument));
        int           status;

        if (argument == NULL) {
            return net->running > 0 ? 0 : -ENOMEM;
        }
        *argument = (thread_start){net, net->running == 0};
        status    = cfw_thread_create(&net->threads[net->running], run, argument);
        if (status != 0) {
            free(argument);
            return net->running > 0 ? 0 : status;
        }
        net->running++;
    }
    return 0;
}

static int grow(cfw_net *net)
{
    uint32_t     room  = net->room ? 2 * net->room : 16;
    cfw_stream **slots = realloc(net->slots, room * sizeof(cfw_stream *));
    uint32_t    *uses;

    if (slots == NULL) {
        return -ENOMEM;
    }
    net->slots = slots;
    uses       = realloc(net->uses, room * sizeof(*uses));
    if (uses == NULL) {
        return -ENOMEM;
    }
    net->uses = uses;
    memset(slots + net->room, 0, (room - net->room) * sizeof(cfw_stream *));
    memset(uses + net->room, 0, (room - net->room) * sizeof(*uses));
    net->room = room;
    return 0;
}

int cfw_net_enter(cfw_net *net, cfw_stream *stream)
{
    struct epoll_event event = {.events = EPOLLONESHOT};
    uint32_t           slot  = 0;
    int                status;

    pthread_mutex_lock(&net->lock);
    status = net->stopping ? -ESHUTDOWN : start(net);
    while (status == 0 && slot < net->room && net->slots[slot] != NULL) {
        ++slot;
    }
    if (status == 0 && slot == net->room) {
        status = grow(net);
    }
    if (status == 0) {
        stream->id     = (uint64_t)++net->uses[slot] << 32 | slot;
        event.data.u64 = stream->id;
        if (epoll_ctl(net->epoll, EPOLL_CTL_ADD, stream->fd, &event) != 0) {
            status = -errno;
        } else {
            net->slots[slot] = stream;
            cfw_stream_ref(stream);
        }
    }
    pthread_mutex_unlock(&net->lock);
    return status;
}

void cfw_net_leave(cfw_net *net, cfw_stream *stream)
{
    pthread_mutex_lock(&net->lock);
    net->slots[(uint32_t)stream->id] = NULL;
    pthread_mutex_unlock(&net->lock);
    /* Never the last one: whoever kills a stream holds its lock. */
    cfw_stream_unref(stream);
}

int cfw_net_create(cfw_pool *pool, uint32_t threads, const uint32_t *cpus, uint32_t num_cpus,
                   uint64_t timeout_ns, cfw_net **net_p)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = STOP};
    cfw_net           *net;
    int                status = -ENOMEM;

    if (threads == 0 || threads > 256 || timeout_ns == 0 || (cpus == NULL && num_cpus > 0)) {
        return -EINVAL;
    }
    net = calloc(1, sizeof(*net) + threads * sizeof(net->threads[0]));
    if (net == NULL) {
        return -ENOMEM;
    }
    net->pool       = pool;
    net->wanted     = threads;
    net->timeout_ns = timeout_ns;
    net->num_cpus   = num_cpus;
    net->epoll      = epoll_create1(EPOLL_CLOEXEC);
    net->stop       = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    net->more       = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (net->epoll < 0 || net->stop < 0 || net->more < 0 ||
        epoll_ctl(net->epoll, EPOLL_CTL_ADD, net->stop, &event) != 0) {
        status = -errno;
        goto err;
    }
    net->cpus = malloc((num_cpus + 1) * sizeof(*cpus));
    if (net->cpus == NULL) {
        goto err;
    }
    if (num_cpus > 0) {
        memcpy(net->cpus, cpus, num_cpus * sizeof(*cpus));
    }
    status = -pthread_mutex_init(&net->lock, NULL);
    if (status != 0) {
        goto err;
    }
    status = -pthread_mutex_init(&net->table.lock, NULL);
    if (status != 0) {
        pthread_mutex_destroy(&net->lock);
        goto err;
    }
    *net_p = net;
    return 0;

err:
    for (int index = 0; index < 3; ++index) {
        int fd = (int[]){net->epoll, net->stop, net->more}[index];

        if (fd >= 0) {
            close(fd);
        }
    }
    free(net->cpus);
    free(net);
    return status;
}

static void end(cfw_stream *stream, void *context)
{
    (void)context;
    cfw_stream_kill(stream, -ECANCELED);
}

void cfw_net_destroy(cfw_net *net)
{
    uint64_t one = 1;
    uint32_t running;

    pthread_mutex_lock(&net->lock);
    net->stopping = true;
    running       = net->running;
    pthread_mutex_unlock(&net->lock);
    cfw_net_each(net, end, NULL);
    while (write(net->stop, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    for (uint32_t index = 0; index < running; ++index) {
        pthread_join(net->threads[index], NULL);
    }
    close(net->epoll);
    close(net->stop);
    close(net->more);
    pthread_mutex_destroy(&net->table.lock);
    pthread_mutex_destroy(&net->lock);
    free(net->table.rows);
    free(net->slots);
    free(net->uses);
    free(net->cpus);
    free(net);
}

int cfw_net_tell(cfw_net *net)
{
    uint64_t one = 1;

    return write(net->more, &one, sizeof(one)) < 0 && errno != EAGAIN ? -errno : 0;
}

int cfw_net_more_fd(const cfw_net *net)
{
    return net->more;
}
