/* Keeping the worker going: the lock and its turns, progress, and who sleeps on what. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* ppoll */
#endif
#include "internal.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Between two looks at what else there is. UCX's own calls take up to some microseconds each. */
#define MAX_PROGRESS 64

/* What is asked for in one go. A path that moves bytes within the call (cross-memory reads) takes about a millisecond
 * for this much, and so long the lock is held. */
#define ROUND_BYTES (4ull << 20)

#define MAX_ROUNDS 4

#define NANOSECONDS 1000000000

/* ---- the lock -------------------------------------------------------------------------------------------------- */

void cfw_engine_enter(cfw_engine *engine)
{
    atomic_fetch_add_explicit(&engine->wanting, 1, memory_order_relaxed);
    pthread_mutex_lock(&engine->lock);
    if (atomic_fetch_sub_explicit(&engine->wanting, 1, memory_order_relaxed) == 1 && engine->yielding > 0) {
        pthread_cond_broadcast(&engine->turn);
    }
}

void cfw_engine_go_away(cfw_engine *engine)
{
    engine->away++;
    pthread_mutex_unlock(&engine->lock);
}

void cfw_engine_come_back(cfw_engine *engine)
{
    cfw_engine_enter(engine);
    engine->away--;
    if (engine->away == 0 && engine->yielding > 0) {
        pthread_cond_broadcast(&engine->turn);
    }
}

void cfw_engine_yield(cfw_engine *engine)
{
    engine->yielding++;
    while (atomic_load_explicit(&engine->wanting, memory_order_relaxed) > 0) {
        pthread_cond_wait(&engine->turn, &engine->lock);
    }
    engine->yielding--;
}

void cfw_engine_leave(cfw_engine *engine)
{
    bool last = engine->refs == 0;

    pthread_mutex_unlock(&engine->lock);
    if (!last) {
        return;
    }
    while (engine->told != NULL) {
        cfw_watch *watch = engine->told;

        engine->told = watch->next;
        free(watch);
    }
    pthread_cond_destroy(&engine->tokens);
    pthread_cond_destroy(&engine->turn);
    pthread_mutex_destroy(&engine->lock);
    free(engine);
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

static void write_event(int fd)
{
    uint64_t one = 1;

    /* Only fails when the counter is full, which wakes as well. */
    if (write(fd, &one, sizeof(one)) < 0) {
        return;
    }
}

static void read_event(int fd)
{
    uint64_t count;

    if (read(fd, &count, sizeof(count)) < 0) {
        return; /* it had been read */
    }
}

int cfw_event_init(cfw_event *event)
{
    atomic_init(&event->done, 0);
    return cfw_cond_init(&event->cond);
}

void cfw_event_destroy(cfw_event *event)
{
    pthread_cond_destroy(&event->cond);
}

void cfw_event_set(cfw_engine *engine, cfw_event *event)
{
    atomic_store_explicit(&event->done, 1, memory_order_release);
    pthread_cond_broadcast(&event->cond);
    if (engine->driven == event) {
        /* Harmless when it is the driver itself that found out. */
        write_event(engine->driver_fd);
    }
}

void cfw_engine_kick(cfw_engine *engine)
{
    write_event(engine->driven != NULL ? engine->driver_fd : engine->thread_fd);
}

/* ---- progress --------------------------------------------------------------------------------------------------- */

/* True: there may be more to do at once. */
static bool go_round(cfw_engine *engine)
{
    uint64_t budget = ROUND_BYTES;
    unsigned times  = 0;
    uint64_t ready;

    while (times < MAX_PROGRESS && engine->ucx->ucp_worker_progress(engine->worker) != 0) {
        ++times;
    }
    /* Those that are ready now; each may come back for the next round. */
    ready = engine->num_ready;
    for (uint64_t count = ready; count > 0 && engine->ready != NULL; --count) {
        cfw_job *job = engine->ready;

        cfw_job_unready(job);
        if (cfw_job_advance(job, &budget)) {
            cfw_job_ready(job);
        }
    }
    return times == MAX_PROGRESS || ready > 0;
}

bool cfw_engine_rest(cfw_engine *engine)
{
    for (int times = 0; times < MAX_ROUNDS; ++times) {
        if (!go_round(engine) && engine->ucx->ucp_worker_arm(engine->worker) != UCP_BUSY) {
            return true;
        }
    }
    return false;
}

/* Have our thread wake for UCX's events, or not. */
static void listen_to_worker(cfw_engine *engine, bool listen)
{
    struct epoll_event event = {.events = listen ? EPOLLIN : 0, .data = {.fd = engine->worker_fd}};

    epoll_ctl(engine->poll_fd, EPOLL_CTL_MOD, engine->worker_fd, &event);
}

static void sleep_driving(cfw_engine *engine, const struct timespec *deadline)
{
    struct pollfd   fds[2] = {{.fd = engine->worker_fd, .events = POLLIN}, {.fd = engine->driver_fd, .events = POLLIN}};
    int64_t         left   = cfw_left(deadline);
    struct timespec time   = {.tv_sec = left / NANOSECONDS, .tv_nsec = left % NANOSECONDS};

    cfw_engine_go_away(engine);
    if (ppoll(fds, 2, left < 0 ? NULL : &time, NULL) > 0 && fds[1].revents != 0) {
        read_event(engine->driver_fd);
    }
    cfw_engine_come_back(engine);
}

static void drive(cfw_engine *engine, cfw_event *event, const struct timespec *deadline)
{
    bool armed = false;

    engine->driven = event;
    listen_to_worker(engine, false);
    while (!cfw_event_done(event) && !engine->stopping) {
        armed = cfw_engine_rest(engine);
        if (cfw_event_done(event) || cfw_left(deadline) == 0) {
            break;
        }
        if (armed) {
            sleep_driving(engine, deadline);
        } else {
            cfw_engine_yield(engine);
        }
        armed = false;
    }
    engine->driven = NULL;
    if (!engine->stopping) {
        armed = armed || cfw_engine_rest(engine);
        listen_to_worker(engine, true);
    }
    if (!armed) {
        write_event(engine->thread_fd);
    }
}

int cfw_engine_await(cfw_engine *engine, cfw_event *event, const struct timespec *deadline)
{
    while (!cfw_event_done(event)) {
        if (cfw_left(deadline) == 0) {
            return CFW_RDMA_TIMED_OUT;
        }
        if (engine->driven == NULL && !engine->stopping) {
            drive(engine, event, deadline);
        } else {
            cfw_cond_wait(&event->cond, &engine->lock, deadline);
        }
    }
    return 0;
}

void *cfw_engine_thread(void *argument)
{
    cfw_engine *engine = argument;

    prctl(PR_SET_NAME, "cachefw-rdma");
    cfw_engine_enter(engine);
    while (!engine->stopping) {
        struct epoll_event events[2];

        if (engine->driven == NULL && !cfw_engine_rest(engine)) {
            cfw_engine_yield(engine);
            continue;
        }
        pthread_mutex_unlock(&engine->lock);
        for (int count = epoll_wait(engine->poll_fd, events, 2, -1); count > 0; --count) {
            if (events[count - 1].data.fd == engine->thread_fd) {
                read_event(engine->thread_fd);
            }
        }
        cfw_engine_enter(engine);
    }
    cfw_engine_leave(engine);
    return NULL;
}
