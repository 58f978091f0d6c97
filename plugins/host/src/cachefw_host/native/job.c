/* Jobs: a batch cut into chunks that any number of threads take and move. */
#include "net.h"

#include <errno.h>
#include <stdlib.h>

/* Large enough that taking one costs nothing beside moving it, small enough
 * that a job can be cancelled within a millisecond. */
#define MAX_CHUNK (2ull << 20)

/* Towards its end a job is cut finer, so that its threads end together; below
 * this, handing out costs more than it evens out. */
#define MIN_CHUNK (256ull << 10)

/* As many as one call of the kernel takes. */
#define MAX_CHUNK_ITEMS 1024

static uint64_t chunk_size(const cfw_job *job)
{
    uint64_t threads = atomic_load_explicit(&job->pool->running, memory_order_relaxed) + 1ull;
    uint64_t size    = job->left / (2 * threads);

    return size > MAX_CHUNK ? MAX_CHUNK : size < MIN_CHUNK ? MIN_CHUNK : size;
}

bool cfw_job_take(cfw_job *job, cfw_chunk *chunk_p)
{
    return cfw_job_cut(job, chunk_size(job), MAX_CHUNK_ITEMS, chunk_p);
}

bool cfw_job_cut(cfw_job *job, uint64_t wanted, uint64_t items, cfw_chunk *chunk_p)
{
    if (job->left == 0) {
        return false;
    }
    if (wanted > job->left) {
        wanted = job->left;
    }
    cfw_place_settle(job->batch, &job->cursor);
    chunk_p->begin = job->cursor;
    chunk_p->bytes = cfw_place_advance(job->batch, &job->cursor, wanted, items);
    job->left -= chunk_p->bytes;
    job->active++;
    if (job->left == 0) {
        cfw_queue_remove(job);
    }
    return true;
}

/* Keeps the earliest in batch order: chunks are handed out in that order, so
 * those before a failing one still run to their end and report. */
static void note_failure(cfw_job *job, int32_t status, uint32_t part, uint64_t item)
{
    cfw_result *first = &job->result;

    if (first->status == 0 || part < first->part || (part == first->part && item < first->item)) {
        first->status = status;
        first->part   = part;
        first->item   = item;
    }
}

static void drop_rest(cfw_job *job)
{
    if (job->left > 0) {
        job->left = 0;
        cfw_queue_remove(job);
    }
}

/* Leaves the pool's own last reference alone: whoever is here holds one. */
static void unref(cfw_job *job)
{
    if (--job->refs > 0) {
        return;
    }
    job->pool->refs--;
    if (job->lone != NULL) {
        cfw_stream_unref(job->lone);
    }
    pthread_cond_destroy(&job->done);
    free(job);
}

static void settle_if_done(cfw_job *job)
{
    cfw_pool *pool = job->pool;

    if (job->left > 0 || job->active > 0) {
        return;
    }
    atomic_store_explicit(&job->settled, 1, memory_order_release);
    pthread_cond_broadcast(&job->done);
    cfw_pool_hand_out(pool, job->watches);
    job->watches = NULL;
    pool->unsettled--;
    if (pool->closing) {
        pthread_cond_broadcast(&pool->work);
    }
    unref(job);
}

void cfw_job_move(cfw_job *job, const cfw_chunk *chunk)
{
    cfw_pool  *pool = job->pool;
    cfw_result moved;

    pthread_mutex_unlock(&pool->lock);
    cfw_batch_move(job->batch, chunk->begin, chunk->bytes, &moved);
    pthread_mutex_lock(&pool->lock);
    cfw_job_finish(job, &moved);
}

void cfw_job_finish(cfw_job *job, const cfw_result *moved)
{
    job->active--;
    job->result.bytes += moved->bytes;
    if (moved->status != 0) {
        note_failure(job, moved->status, moved->part, moved->item);
        drop_rest(job);
    }
    settle_if_done(job);
}

void cfw_job_drop(cfw_job *job, int32_t status)
{
    if (job->left > 0) {
        cfw_place_settle(job->batch, &job->cursor);
        note_failure(job, status, job->cursor.part, job->cursor.item);
        drop_rest(job);
        settle_if_done(job);
    }
}

int cfw_job_create(cfw_pool *pool, const cfw_batch *batch, cfw_queue *queue, cfw_job **job_p)
{
    cfw_job *job = calloc(1, sizeof(*job));
    int      status;

    if (job == NULL) {
        return -ENOMEM;
    }
    status = cfw_cond_init(&job->done);
    if (status != 0) {
        goto err_free;
    }
    job->pool  = pool;
    job->batch = batch;
    job->net   = batch->net;
    job->refs  = 2;
    job->left  = batch->bytes;
    pthread_mutex_lock(&pool->lock);
    if (pool->closing) {
        pthread_mutex_unlock(&pool->lock);
        status = -ESHUTDOWN;
        goto err_cond;
    }
    pool->refs++;
    pool->unsettled++;
    if (job->left > 0) {
        cfw_queue_put(queue, job);
    } else {
        settle_if_done(job);
    }
    *job_p = job;
    pthread_mutex_unlock(&pool->lock);
    return 0;

err_cond:
    pthread_cond_destroy(&job->done);
err_free:
    free(job);
    return status;
}

int cfw_job_post(cfw_pool *pool, cfw_batch *batch, cfw_job **job_p)
{
    int status = batch->net ? -EINVAL : cfw_job_create(pool, batch, &pool->queue, job_p);

    if (status != 0 || batch->bytes == 0) {
        return status;
    }
    pthread_mutex_lock(&pool->lock);
    if (!pool->closing) {
        cfw_pool_start(pool);
    }
    if (batch->bytes <= MIN_CHUNK) {
        pthread_cond_signal(&pool->work);
    } else {
        pthread_cond_broadcast(&pool->work);
    }
    pthread_mutex_unlock(&pool->lock);
    return 0;
}

int cfw_job_settled(const cfw_job *job)
{
    return atomic_load_explicit(&job->settled, memory_order_acquire);
}

int cfw_job_help(cfw_job *job, uint64_t max_bytes)
{
    cfw_pool *pool = job->pool;
    uint64_t  done = 0;
    cfw_chunk chunk;
    bool      more;

    if (cfw_job_settled(job)) {
        return 1;
    }
    if (job->net) {
        return 0;
    }
    pthread_mutex_lock(&pool->lock);
    while (done < max_bytes && cfw_job_take(job, &chunk)) {
        cfw_job_move(job, &chunk);
        done += chunk.bytes;
    }
    more = job->left > 0;
    pthread_mutex_unlock(&pool->lock);
    return cfw_job_settled(job) ? 1 : more ? 2 : 0;
}

int cfw_job_wait(cfw_job *job, int64_t timeout_ns)
{
    cfw_pool              *pool = job->pool;
    struct timespec        storage;
    const struct timespec *deadline;
    cfw_chunk              chunk;
    int                    status = 0;

    if (cfw_job_settled(job)) {
        return 0;
    }
    deadline = cfw_deadline(timeout_ns, &storage);
    if (job->net) {
        cfw_ask_drive(job, deadline);
    }
    pthread_mutex_lock(&pool->lock);
    while (!cfw_job_settled(job)) {
        if (cfw_deadline_passed(deadline)) {
            status = -ETIMEDOUT;
            break;
        }
        if (!job->net && cfw_pool_threads(pool) == 0 && cfw_job_take(job, &chunk)) {
            cfw_job_move(job, &chunk);
        } else {
            cfw_cond_wait(&job->done, &pool->lock, deadline);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

void cfw_job_cancel(cfw_job *job)
{
    cfw_pool *pool = job->pool;

    if (cfw_job_settled(job)) {
        return;
    }
    pthread_mutex_lock(&pool->lock);
    cfw_job_drop(job, -ECANCELED);
    pthread_mutex_unlock(&pool->lock);
}

int cfw_job_result(cfw_job *job, cfw_result *result_p)
{
    if (!cfw_job_settled(job)) {
        return -EBUSY;
    }
    *result_p = job->result;
    return 0;
}

int cfw_job_watch(cfw_job *job, uint64_t token)
{
    cfw_pool  *pool  = job->pool;
    cfw_watch *watch = malloc(sizeof(*watch));

    if (watch == NULL) {
        return -ENOMEM;
    }
    *watch = (cfw_watch){.token = token};
    cfw_job_attend(job);
    pthread_mutex_lock(&pool->lock);
    if (pool->closed) {
        pthread_mutex_unlock(&pool->lock);
        free(watch);
        return -ESHUTDOWN;
    }
    if (cfw_job_settled(job)) {
        cfw_pool_hand_out(pool, watch);
    } else {
        watch->next  = job->watches;
        job->watches = watch;
    }
    pthread_mutex_unlock(&pool->lock);
    return 0;
}

void cfw_job_release(cfw_job *job)
{
    cfw_pool *pool = job->pool;

    cfw_job_attend(job);
    pthread_mutex_lock(&pool->lock);
    unref(job);
    cfw_pool_leave(pool);
}
