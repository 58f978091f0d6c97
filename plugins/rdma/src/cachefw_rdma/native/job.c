/* Jobs: asking UCX for the items of a batch, a bounded number at a time, until it holds none of them any more. */
#include "internal.h"

#include <stdlib.h>

/* Asked for by the poster itself, so that small transfers need no other thread. */
#define POST_BYTES (1ull << 20)

/* ---- the engine's lists ---------------------------------------------------------------------------------------------- */

static inline cfw_engine *engine_of(const cfw_job *job)
{
    return job->batch->channel->engine;
}

void cfw_job_ready(cfw_job *job)
{
    cfw_engine *engine = engine_of(job);

    if (!job->is_ready) {
        job->is_ready        = true;
        job->next_ready      = NULL;
        *engine->ready_end_p = job;
        engine->ready_end_p  = &job->next_ready;
        engine->num_ready++;
    }
}

void cfw_job_unready(cfw_job *job)
{
    cfw_engine *engine = engine_of(job);
    cfw_job   **link_p = &engine->ready;

    if (!job->is_ready) {
        return;
    }
    /* Nearly always the first. */
    while (*link_p != job) {
        link_p = &(*link_p)->next_ready;
    }
    *link_p = job->next_ready;
    if (*link_p == NULL) {
        engine->ready_end_p = link_p;
    }
    job->is_ready = false;
    engine->num_ready--;
}

static void unref(cfw_job *job)
{
    if (--job->refs == 0) {
        cfw_batch_unref(job->batch);
        cfw_event_destroy(&job->event);
        free(job);
    }
}

void cfw_job_settle(cfw_job *job)
{
    cfw_engine  *engine  = engine_of(job);
    cfw_channel *channel = job->batch->channel;

    cfw_job_unready(job);
    if (job->prev != NULL) {
        job->prev->next = job->next;
    } else {
        engine->jobs = job->next;
    }
    if (job->next != NULL) {
        job->next->prev = job->prev;
    }
    for (uint32_t index = 0; index < job->batch->num_remotes; ++index) {
        cfw_remote_unuse(job->batch->remotes[index]);
    }
    if (--channel->running == 0 && channel->idle != NULL) {
        cfw_event_set(engine, channel->idle);
    }
    cfw_event_set(engine, &job->event);
    cfw_engine_hand_out(engine, job->watches);
    job->watches = NULL;
    unref(job);
}

/* ---- moving ---------------------------------------------------------------------------------------------------------- */

static void note_failure(cfw_job *job, int status, uint64_t item)
{
    job->stopped = true;
    if (job->result.status == 0 || item < job->result.item) {
        job->result.status = status;
        job->result.item   = item;
    }
}

static void on_done(void *request, ucp_status status, void *user_data)
{
    cfw_op  *op  = user_data;
    cfw_job *job = op->job;

    engine_of(job)->ucx->ucp_request_free(request);
    job->outstanding--;
    if (status != UCP_OK) {
        note_failure(job, status, op->item);
    }
    op->next  = job->free;
    job->free = op;
    cfw_job_ready(job);
}

/* What UCX answered for an operation that `op` stands for. */
static void take_answer(cfw_job *job, cfw_op *op, void *answer)
{
    if (answer == NULL) {
        return;
    }
    if (ucp_is_error(answer)) {
        note_failure(job, ucp_error_of(answer), op->item);
        return;
    }
    job->free = op->next;
    job->outstanding++;
}

static uint64_t ask(cfw_job *job)
{
    const cfw_batch  *batch = job->batch;
    const cfw_ucx    *ucx   = engine_of(job)->ucx;
    const cfw_item   *item  = &batch->items[job->item];
    void             *ep    = batch->channel->ep;
    void             *local = (void *)(uintptr_t)(item->local + job->offset);
    uint64_t          there = item->remote + job->offset;
    uint64_t          size  = item->length - job->offset;
    cfw_op           *op    = job->free;
    ucp_request_param param = {.mask        = UCP_OP_CALLBACK | UCP_OP_USER_DATA | UCP_OP_MEMORY_TYPE,
                               .callback    = on_done,
                               .user_data   = op,
                               .memory_type = UCP_MEMORY_HOST};

    if (size > batch->max_request) {
        size = batch->max_request;
    }
    op->item = job->item;
    if (size > 0) {
        void *answer = batch->operation == CFW_READ
                           ? ucx->ucp_get_nbx(ep, local, size, there, item->where->rkey, &param)
                           : ucx->ucp_put_nbx(ep, local, size, there, item->where->rkey, &param);

        take_answer(job, op, answer);
    }
    job->result.issued += size;
    job->offset        += size;
    if (job->offset == item->length) {
        job->item++;
        job->offset = 0;
    }
    return size;
}

/* A write is over when the peer has it: also one that was stopped, for nothing may land later. */
static void flush(cfw_job *job)
{
    cfw_channel      *channel = job->batch->channel;
    cfw_op           *op      = job->free;
    ucp_request_param param   = {
          .mask = UCP_OP_CALLBACK | UCP_OP_USER_DATA, .callback = on_done, .user_data = op};

    job->flushed = true;
    op->item     = job->batch->count;
    take_answer(job, op, channel->engine->ucx->ucp_ep_flush_nbx(channel->ep, &param));
}

/* UCX calls a write done once it is sent, and some transports also a flush to a peer that is gone. */
static void note_lost(cfw_job *job)
{
    const cfw_channel *channel = job->batch->channel;

    if (job->batch->operation != CFW_WRITE || job->result.status != 0 || job->result.issued == 0) {
        return;
    }
    if (channel->status != UCP_OK) {
        note_failure(job, channel->status, job->batch->count);
    } else if (!job->flushed) {
        note_failure(job, CFW_RDMA_CANCELLED, job->batch->count);
    }
}

bool cfw_job_advance(cfw_job *job, uint64_t *budget_p)
{
    const cfw_batch *batch = job->batch;

    while (!job->stopped && job->item < batch->count && job->free != NULL) {
        uint64_t size;

        if (*budget_p == 0) {
            return true;
        }
        size       = ask(job) + 64; /* also asking for nothing takes time */
        *budget_p -= size < *budget_p ? size : *budget_p;
    }
    if (job->outstanding > 0 || (!job->stopped && job->item < batch->count)) {
        return false;
    }
    if (batch->operation == CFW_WRITE && !job->flushed && job->result.issued > 0 && !batch->channel->cut &&
        batch->channel->status == UCP_OK) {
        flush(job);
        if (job->outstanding > 0) {
            return false;
        }
    }
    note_lost(job);
    cfw_job_settle(job);
    return false;
}

void cfw_job_stop(cfw_job *job, int status)
{
    if (!job->stopped && (job->item < job->batch->count || job->outstanding > 0)) {
        if (job->item < job->batch->count && job->result.status == 0) {
            note_failure(job, status, job->item);
        }
        job->stopped = true;
    }
    cfw_job_ready(job);
}

/* ---- what others call -------------------------------------------------------------------------------------------------- */

static int check_post(const cfw_batch *batch)
{
    const cfw_channel *channel = batch->channel;

    if (channel->closed || channel->engine->stopping || channel->ep == NULL) {
        return CFW_RDMA_CLOSED;
    }
    if (channel->status != UCP_OK) {
        return channel->status;
    }
    for (uint32_t index = 0; index < batch->num_remotes; ++index) {
        if (batch->remotes[index]->gone) {
            return CFW_RDMA_DETACHED;
        }
    }
    return 0;
}

static cfw_job *make_job(cfw_batch *batch, uint32_t limit)
{
    cfw_job *job;

    if (limit > batch->requests) {
        limit = (uint32_t)batch->requests;
    }
    if (limit == 0) {
        limit = 1;
    }
    job = malloc(sizeof(*job) + limit * sizeof(job->ops[0]));
    if (job == NULL) {
        return NULL;
    }
    *job = (cfw_job){.batch = batch, .refs = 2, .result = {.item = batch->count}};
    if (cfw_event_init(&job->event) != 0) {
        free(job);
        return NULL;
    }
    for (uint32_t index = 0; index < limit; ++index) {
        job->ops[index] = (cfw_op){.next = job->free, .job = job};
        job->free       = &job->ops[index];
    }
    return job;
}

static void start(cfw_job *job)
{
    cfw_engine *engine = engine_of(job);
    uint64_t    budget = POST_BYTES;

    job->batch->refs++;
    job->batch->channel->running++;
    for (uint32_t index = 0; index < job->batch->num_remotes; ++index) {
        job->batch->remotes[index]->uses++;
    }
    job->next = engine->jobs;
    if (job->next != NULL) {
        job->next->prev = job;
    }
    engine->jobs = job;
    if (cfw_job_advance(job, &budget)) {
        cfw_job_ready(job);
        cfw_engine_kick(engine);
    } else if (!cfw_job_settled(job) && !cfw_engine_rest(engine)) {
        cfw_engine_kick(engine);
    }
}

int cfw_job_post(cfw_batch *batch, uint32_t limit, cfw_job **job_p)
{
    cfw_engine *engine = batch->channel->engine;
    cfw_job    *job    = make_job(batch, limit);
    int         status;

    if (job == NULL) {
        return CFW_RDMA_NO_MEMORY;
    }
    cfw_engine_enter(engine);
    status = check_post(batch);
    if (status == 0) {
        start(job);
    }
    cfw_engine_leave(engine);
    if (status != 0) {
        cfw_event_destroy(&job->event);
        free(job);
        return status;
    }
    *job_p = job;
    return 0;
}

int cfw_job_wait(cfw_job *job, int64_t timeout_ns)
{
    struct timespec        storage;
    const struct timespec *deadline;
    cfw_engine            *engine;
    int                    status;

    if (cfw_job_settled(job)) {
        return 0;
    }
    if (timeout_ns == 0) {
        return CFW_RDMA_TIMED_OUT;
    }
    deadline = cfw_deadline(timeout_ns, &storage);
    engine   = engine_of(job);
    cfw_engine_enter(engine);
    status = cfw_engine_await(engine, &job->event, deadline);
    cfw_engine_leave(engine);
    return status;
}

int cfw_job_settled(const cfw_job *job)
{
    return cfw_event_done(&job->event);
}

void cfw_job_cancel(cfw_job *job)
{
    cfw_engine *engine = engine_of(job);

    if (cfw_job_settled(job)) {
        return;
    }
    cfw_engine_enter(engine);
    if (!cfw_job_settled(job) && !engine->stopping) {
        cfw_job_stop(job, CFW_RDMA_CANCELLED);
        if (!cfw_engine_rest(engine)) {
            cfw_engine_kick(engine);
        }
    }
    cfw_engine_leave(engine);
}

int cfw_job_result(const cfw_job *job, cfw_result *result_p)
{
    if (!cfw_job_settled(job)) {
        return CFW_RDMA_BUSY;
    }
    *result_p = job->result;
    return 0;
}

int cfw_job_watch(cfw_job *job, uint64_t token)
{
    cfw_engine *engine = engine_of(job);
    cfw_watch  *watch  = malloc(sizeof(*watch));
    int         status = 0;

    if (watch == NULL) {
        return CFW_RDMA_NO_MEMORY;
    }
    *watch = (cfw_watch){.token = token};
    cfw_engine_enter(engine);
    if (engine->closed) {
        status = CFW_RDMA_CLOSED;
    } else if (cfw_job_settled(job)) {
        cfw_engine_hand_out(engine, watch);
    } else {
        watch->next  = job->watches;
        job->watches = watch;
    }
    cfw_engine_leave(engine);
    if (status != 0) {
        free(watch);
    }
    return status;
}

void cfw_job_release(cfw_job *job)
{
    cfw_engine *engine = engine_of(job);

    cfw_engine_enter(engine);
    unref(job);
    cfw_engine_leave(engine);
}
