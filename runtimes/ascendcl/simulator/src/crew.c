/* The threads that help with large copies, one crew for all streams of the process. */
#define _GNU_SOURCE
#include "sim.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK ((size_t)512 << 10)
#define HELPED_BYTES ((size_t)2 << 20) /* what is shorter ends before a helper is awake */
#define MAX_HELPERS 15

typedef struct job {
    struct job      *next;
    const sim_piece *pieces;
    size_t           count, index, offset; /* index, offset: what is not handed out */
    unsigned         active;               /* chunks being moved by helpers */
    bool             streaming;
} job;

typedef struct {
    const sim_piece *piece;
    size_t           offset, bytes;
} chunk;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t  work = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static job            *jobs;
static pthread_t       helpers[MAX_HELPERS];
static unsigned        num_helpers;
static int             avoided = -1; /* the processor that helpers keep off */
static bool            stopping;

bool sim_thread_start(pthread_t *thread_p, const char *name, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    int      status;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    status = pthread_create(thread_p, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status == 0) {
        pthread_setname_np(*thread_p, name);
    }
    return status == 0;
}

/* With the lock held. */
static bool take(job *from, chunk *chunk_p)
{
    size_t bytes = 0;

    if (from->index == from->count) {
        return false;
    }
    chunk_p->piece  = &from->pieces[from->index];
    chunk_p->offset = from->offset;
    while (from->index < from->count && bytes < CHUNK) {
        const size_t left = from->pieces[from->index].size - from->offset;
        const size_t part = left < CHUNK - bytes ? left : CHUNK - bytes;

        bytes        += part;
        from->offset += part;
        if (part == left) {
            from->index++;
            from->offset = 0;
        }
    }
    chunk_p->bytes = bytes;
    return true;
}

static void move(const chunk *what, bool streaming)
{
    const sim_piece *piece  = what->piece;
    size_t           offset = what->offset;

    for (size_t left = what->bytes; left > 0; ++piece, offset = 0) {
        const size_t part = piece->size - offset < left ? piece->size - offset : left;

        left -= part;
        if (left > 0) {
            /* No hardware prefetcher knows where the next piece begins. */
            for (size_t line = 0; line < 4; ++line) {
                __builtin_prefetch(piece[1].from + line * 64);
            }
        }
        sim_kernel_copy(piece->to + offset, piece->from + offset, part, streaming);
    }
    if (streaming) {
        sim_kernel_fence();
    }
}

static void forget(job *which)
{
    for (job **each = &jobs; *each != NULL; each = &(*each)->next) {
        if (*each == which) {
            *each = which->next;
            return;
        }
    }
}

static void *help(void *nothing)
{
    chunk mine;

    pthread_mutex_lock(&lock);
    for (;;) {
        job *mate = jobs;

        if (mate == NULL && stopping) {
            break;
        }
        if (mate == NULL) {
            pthread_cond_wait(&work, &lock);
            continue;
        }
        if (!take(mate, &mine)) {
            forget(mate);
            continue;
        }
        mate->active++;
        pthread_mutex_unlock(&lock);
        move(&mine, mate->streaming);
        pthread_mutex_lock(&lock);
        if (--mate->active == 0 && mate->index == mate->count) {
            pthread_cond_broadcast(&done);
        }
    }
    pthread_mutex_unlock(&lock);
    return nothing;
}

/* With the lock held. */
static void start_helpers(void)
{
    while (num_helpers + 1 < sim_option.copy_threads && num_helpers < MAX_HELPERS && !stopping &&
           sim_thread_start(&helpers[num_helpers], "aclsim-copy", help, NULL)) {
        ++num_helpers;
        avoided = -1;
    }
}

/* With the lock held. Left to itself, the kernel may wake a helper on the very processor of the one that wakes it, and
 * let the two take turns there for a tick, which is longer than most copies take. */
static void keep_off(int processor)
{
    cpu_set_t allowed;

    if (processor < 0 || processor == avoided || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
        return;
    }
    avoided = processor;
    if (processor < CPU_SETSIZE && CPU_COUNT(&allowed) > 1) {
        CPU_CLR(processor, &allowed);
        for (unsigned index = 0; index < num_helpers; ++index) {
            pthread_setaffinity_np(helpers[index], sizeof(allowed), &allowed);
        }
    }
}

/* A piece that overlaps itself can not be cut. */
static bool overlaps_itself(const sim_piece *piece)
{
    return (uintptr_t)piece->to - (uintptr_t)piece->from < piece->size ||
           (uintptr_t)piece->from - (uintptr_t)piece->to < piece->size;
}

static void share(job *mine)
{
    chunk next;

    pthread_mutex_lock(&lock);
    start_helpers();
    keep_off(sched_getcpu());
    mine->next = jobs;
    jobs       = mine;
    pthread_cond_broadcast(&work);
    while (take(mine, &next)) {
        pthread_mutex_unlock(&lock);
        move(&next, mine->streaming);
        pthread_mutex_lock(&lock);
    }
    forget(mine);
    while (mine->active > 0) {
        pthread_cond_wait(&done, &lock);
    }
    pthread_mutex_unlock(&lock);
}

void sim_crew_copy(const sim_piece *pieces, size_t count)
{
    size_t bytes = 0, uncut = 0;

    for (size_t index = 0; index < count; ++index) {
        bytes += pieces[index].size;
        uncut += overlaps_itself(&pieces[index]);
    }
    if (bytes >= HELPED_BYTES && sim_option.copy_threads > 1 && uncut == 0) {
        job mine = {.pieces = pieces, .count = count, .streaming = bytes >= SIM_STREAMING_BYTES};

        share(&mine);
    } else if (count > 0) {
        chunk all = {pieces, 0, bytes};

        move(&all, bytes >= SIM_STREAMING_BYTES);
    }
}

void sim_crew_stop(void)
{
    unsigned count;

    pthread_mutex_lock(&lock);
    stopping    = true;
    count       = num_helpers;
    num_helpers = 0;
    pthread_cond_broadcast(&work);
    pthread_mutex_unlock(&lock);
    while (count > 0) {
        pthread_join(helpers[--count], NULL);
    }
    pthread_mutex_lock(&lock);
    stopping = false;
    pthread_mutex_unlock(&lock);
}
