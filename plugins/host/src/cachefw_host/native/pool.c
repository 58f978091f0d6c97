/* Pools: the threads, the queue of jobs and the queue of tokens. */
#define _GNU_SOURCE
#include "internal.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

/* Far above any machine; bounds the size of an affinity mask. */
#define MAX_CPU 65535u

#define NANOSECONDS 1000000000

int cfw_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    int                status;

    status = pthread_condattr_init(&attr);
    if (status != 0) {
        return -status;
    }
    status = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (status == 0) {
        status = pthread_cond_init(cond, &attr);
    }
    pthread_condattr_destroy(&attr);
    return -status;
}

const struct timespec *cfw_deadline(int64_t timeout_ns, struct timespec *storage)
{
    if (timeout_ns < 0) {
        return NULL;
    }
    clock_gettime(CLOCK_MONOTONIC, storage);
    storage->tv_sec  += timeout_ns / NANOSECONDS;
    storage->tv_nsec += timeout_ns % NANOSECONDS;
    if (storage->tv_nsec >= NANOSECONDS) {
        storage->tv_sec++;
        storage->tv_nsec -= NANOSECONDS;
    }
    return storage;
}

bool cfw_deadline_passed(const struct timespec *deadline)
{
    struct timespec now;

    if (deadline == NULL) {
        return false;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > deadline->tv_sec ||
           (now.tv_sec == deadline->tv_sec && now.tv_nsec >= deadline->tv_nsec);
}

void cfw_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *deadline)
{
    if (deadline == NULL) {
        pthread_cond_wait(cond, lock);
    } else {
        pthread_cond_timedwait(cond, lock, deadline);
    }
}

void cfw_queue_put(cfw_queue *queue, cfw_job *job)
{
    job->queue = queue;
    job->prev  = queue->tail;
    job->next  = NULL;
    if (queue->tail != NULL) {
        queue->tail->next = job;
    } else {
        queue->head = job;
    }
    queue->tail = job;
}

void cfw_queue_remove(cfw_job *job)
{
    if (job->prev != NULL) {
        job->prev->next = job->next;
    } else {
        job->queue->head = job->next;
    }
    if (job->next != NULL) {
        job->next->prev = job->prev;
    } else {
        job->queue->tail = job->prev;
    }
}

void cfw_queue_turn(cfw_queue *queue, cfw_job *job)
{
    if (job->left > 0 && job != queue->tail) {
        cfw_queue_remove(job);
        cfw_queue_put(queue, job);
    }
}

/* Whatever goes wrong, an unpinned thread still does its work. */
static void pin_thread(const uint32_t *cpus, uint32_t num_cpus)
{
    uint32_t   top = 0;
    size_t     size;
    cpu_set_t *set;

    if (num_cpus == 0) {
        return;
    }
    for (uint32_t index = 0; index < num_cpus; ++index) {
        top = cpus[index] > top ? cpus[index] : top;
    }
    set = CPU_ALLOC(top + 1);
    if (set == NULL) {
        return;
    }
    size = CPU_ALLOC_SIZE(top + 1);
    CPU_ZERO_S(size, set);
    for (uint32_t index = 0; index < num_cpus; ++index) {
        CPU_SET_S(cpus[index], size, set);
    }
    (void)sched_setaffinity(0, size, set);
    CPU_FREE(set);
}

void cfw_thread_begin(const char *name, const uint32_t *cpus, uint32_t num_cpus)
{
    prctl(PR_SET_NAME, name);
    pin_thread(cpus, num_cpus);
}

static void *worker(void *argument)
{
    cfw_pool *pool = argument;

    cfw_thread_begin("cachefw-host", pool->cpus, pool->num_cpus);
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        cfw_job  *job = pool->queue.head;
        cfw_chunk chunk;

        if (job != NULL) {
            cfw_job_take(job, &chunk);
            cfw_queue_turn(&pool->queue, job);
            cfw_job_move(job, &chunk);
        } else if (pool->closing) {
            break;
        } else {
            pthread_cond_wait(&pool->work, &pool->lock);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

int cfw_thread_create(pthread_t *thread_p, void *(*run)(void *), void *argument)
{
    sigset_t blocked, before;
    int      status;

    /* The application's handlers expect its own threads. The signals of a
     * thread's own faults stay, or a crash could not be reported. */
    sigfillset(&blocked);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGILL);
    sigdelset(&blocked, SIGFPE);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    status = pthread_create(thread_p, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -status;
}

/* Threads that can not be had now are tried again at the next post; the job
 * then runs on fewer, at worst on the one that waits for it. */
void cfw_pool_start(cfw_pool *pool)
{
    uint32_t running = atomic_load_explicit(&pool->running, memory_order_relaxed);

    while (running < pool->workers &&
           cfw_thread_create(&pool->threads[running], worker, pool) == 0) {
        ++running;
    }
    atomic_store_explicit(&pool->running, running, memory_order_relaxed);
}

void cfw_pool_hand_out(cfw_pool *pool, cfw_watch *watches)
{
    if (watches == NULL) {
        return;
    }
    *pool->ready_end_p = watches;
    while (*pool->ready_end_p != NULL) {
        pool->ready_end_p = &(*pool->ready_end_p)->next;
    }
    pthread_cond_broadcast(&pool->tokens);
}

void cfw_pool_leave(cfw_pool *pool)
{
    bool last = pool->refs == 0;

    pthread_mutex_unlock(&pool->lock);
    if (!last) {
        return;
    }
    while (pool->ready != NULL) {
        cfw_watch *watch = pool->ready;

        pool->ready = watch->next;
        free(watch);
    }
    pthread_cond_destroy(&pool->tokens);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->cpus);
    free(pool);
}

int cfw_pool_create(uint32_t workers, const uint32_t *cpus, uint32_t num_cpus, cfw_pool **pool_p)
{
    cfw_pool *pool;
    int       status;

    if (cpus == NULL && num_cpus > 0) {
        return -EINVAL;
    }
    for (uint32_t index = 0; index < num_cpus; ++index) {
        if (cpus[index] > MAX_CPU) {
            return -EINVAL;
        }
    }
    pool = calloc(1, sizeof(*pool) + workers * sizeof(pool->threads[0]));
    if (pool == NULL) {
        return -ENOMEM;
    }
    pool->refs        = 1;
    pool->ready_end_p = &pool->ready;
    pool->workers     = workers;
    pool->num_cpus    = num_cpus;
    if (num_cpus > 0) {
        pool->cpus = malloc(num_cpus * sizeof(*cpus));
        if (pool->cpus == NULL) {
            status = -ENOMEM;
            goto err_free;
        }
        memcpy(pool->cpus, cpus, num_cpus * sizeof(*cpus));
    }
    status = -pthread_mutex_init(&pool->lock, NULL);
    if (status != 0) {
        goto err_free;
    }
    status = cfw_cond_init(&pool->work);
    if (status != 0) {
        goto err_lock;
    }
    status = cfw_cond_init(&pool->tokens);
    if (status != 0) {
        goto err_work;
    }
    *pool_p = pool;
    return 0;

err_work:
    pthread_cond_destroy(&pool->work);
err_lock:
    pthread_mutex_destroy(&pool->lock);
err_free:
    free(pool->cpus);
    free(pool);
    return status;
}

void cfw_pool_destroy(cfw_pool *pool)
{
    uint32_t running;

    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    running = atomic_load_explicit(&pool->running, memory_order_relaxed);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t index = 0; index < running; ++index) {
        pthread_join(pool->threads[index], NULL);
    }
    pthread_mutex_lock(&pool->lock);
    /* What is left when there was no thread to do it, or still in the hands of
     * callers of cfw_job_help. */
    while (pool->unsettled > 0) {
        cfw_job  *job = pool->queue.head;
        cfw_chunk chunk;

        if (job != NULL) {
            cfw_job_take(job, &chunk);
            cfw_job_move(job, &chunk);
        } else {
            pthread_cond_wait(&pool->work, &pool->lock);
        }
    }
    atomic_store_explicit(&pool->running, 0, memory_order_relaxed);
    pool->closed = true;
    pthread_cond_broadcast(&pool->tokens);
    pool->refs--;
    cfw_pool_leave(pool);
}

uint32_t cfw_pool_threads(const cfw_pool *pool)
{
    return atomic_load_explicit(&pool->running, memory_order_relaxed);
}

int cfw_pool_next(cfw_pool *pool, int64_t timeout_ns, uint64_t *token_p)
{
    struct timespec        storage;
    const struct timespec *deadline = cfw_deadline(timeout_ns, &storage);
    cfw_watch             *watch    = NULL;
    int                    status   = 0;

    pthread_mutex_lock(&pool->lock);
    pool->refs++;
    while (pool->ready == NULL && status == 0) {
        if (pool->closed) {
            status = -ESHUTDOWN;
        } else if (cfw_deadline_passed(deadline)) {
            status = -ETIMEDOUT;
        } else {
            cfw_cond_wait(&pool->tokens, &pool->lock, deadline);
        }
    }
    if (status == 0) {
        watch       = pool->ready;
        pool->ready = watch->next;
        if (pool->ready == NULL) {
            pool->ready_end_p = &pool->ready;
        }
    }
    pool->refs--;
    cfw_pool_leave(pool);
    if (watch != NULL) {
        *token_p = watch->token;
        free(watch);
    }
    return status;
}
