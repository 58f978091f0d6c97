/* Channels: an endpoint, from connecting to cutting it. */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* How long UCX may take to cut a connection, or to bid farewell to a peer that it does not watch. */
#define CUT_NS 1000000000ll

/* ---- connecting --------------------------------------------------------------------------------------------------- */

static void on_error(void *argument, void *ep, ucp_status status)
{
    cfw_channel *channel = argument;

    (void)ep;
    if (channel->status == UCP_OK) {
        channel->status = status;
    }
}

static int make_endpoint(cfw_channel *channel, const void *address, bool watched)
{
    cfw_engine   *engine = channel->engine;
    ucp_ep_params params = {.mask           = UCP_EP_ADDRESS | UCP_EP_ERROR_MODE | UCP_EP_ERROR_HANDLER,
                            .address        = address,
                            .error_mode     = watched ? UCP_EP_ERRORS_PEER : UCP_EP_ERRORS_NONE,
                            .error_cb       = on_error,
                            .error_argument = channel};
    int           status = engine->ucx->ucp_ep_create(engine->worker, &params, &channel->ep);

    if (status != UCP_OK) {
        channel->ep = NULL;
        return status;
    }
    channel->watched = watched;
    channel->refs++;
    channel->next = engine->channels;
    if (channel->next != NULL) {
        channel->next->prev = channel;
    }
    engine->channels = channel;
    return 0;
}

static int connect_channel(cfw_channel *channel, const void *address, int error_mode)
{
    int status = make_endpoint(channel, address, error_mode != CFW_ERRORS_NONE);

    if (error_mode == CFW_ERRORS_AUTO &&
        (status == UCP_UNREACHABLE || status == UCP_UNSUPPORTED || status == UCP_NOT_IMPLEMENTED)) {
        /* Shared memory alone tells UCX nothing of the peer's end. */
        status = make_endpoint(channel, address, false);
    }
    return status;
}

int cfw_channel_open(cfw_engine *engine, const void *address, uint64_t size, int error_mode, cfw_channel **channel_p)
{
    cfw_channel *channel = calloc(1, sizeof(*channel));
    int          status;

    if (channel == NULL) {
        return CFW_RDMA_NO_MEMORY;
    }
    channel->engine = engine;
    channel->refs   = 1;
    cfw_engine_enter(engine);
    engine->refs++;
    if (size == 0) {
        status = CFW_RDMA_INVALID;
    } else if (engine->stopping) {
        status = CFW_RDMA_CLOSED;
    } else {
        status = connect_channel(channel, address, error_mode);
    }
    if (status != 0) {
        cfw_channel_unref(channel);
    }
    cfw_engine_leave(engine);
    if (status == 0) {
        *channel_p = channel;
    }
    return status;
}

/* ---- looking ------------------------------------------------------------------------------------------------------- */

int cfw_channel_status(cfw_channel *channel)
{
    int status;

    cfw_engine_enter(channel->engine);
    status = channel->closed ? CFW_RDMA_CLOSED : channel->status;
    cfw_engine_leave(channel->engine);
    return status;
}

int cfw_channel_error_mode(const cfw_channel *channel)
{
    return channel->watched ? CFW_ERRORS_PEER : CFW_ERRORS_NONE;
}

void cfw_channel_describe(cfw_channel *channel, char *text, uint64_t size)
{
    cfw_engine *engine = channel->engine;
    char       *whole  = NULL;
    size_t      length = 0;
    FILE       *stream;

    text[0] = '\0';
    cfw_engine_enter(engine);
    if (channel->ep != NULL && engine->ucx->ucp_ep_print_info != NULL) {
        stream = open_memstream(&whole, &length);
        if (stream != NULL) {
            engine->ucx->ucp_ep_print_info(channel->ep, stream);
            fclose(stream);
        }
    }
    cfw_engine_leave(engine);
    if (whole != NULL) {
        snprintf(text, size, "%s", whole);
        free(whole);
    }
}

/* ---- closing ------------------------------------------------------------------------------------------------------- */

void cfw_channel_forget(cfw_channel *channel)
{
    if (channel->ep == NULL) {
        return;
    }
    channel->ep = NULL;
    if (channel->prev != NULL) {
        channel->prev->next = channel->next;
    } else {
        channel->engine->channels = channel->next;
    }
    if (channel->next != NULL) {
        channel->next->prev = channel->prev;
    }
    channel->prev = channel->next = NULL;
    cfw_channel_unref(channel);
}

void cfw_channel_unref(cfw_channel *channel)
{
    if (--channel->refs == 0) {
        channel->engine->refs--;
        free(channel);
    }
}

static void stop_jobs(cfw_channel *channel)
{
    cfw_job *next;

    for (cfw_job *job = channel->engine->jobs; job != NULL; job = next) {
        next = job->next;
        if (job->batch->channel == channel) {
            cfw_job_stop(job, CFW_RDMA_CANCELLED);
        }
    }
}

static void await_jobs(cfw_channel *channel, int64_t timeout_ns)
{
    struct timespec        storage;
    const struct timespec *deadline = cfw_deadline(timeout_ns, &storage);
    cfw_event              idle;

    if (channel->running == 0 || cfw_event_init(&idle) != 0) {
        return;
    }
    channel->idle = &idle;
    cfw_engine_await(channel->engine, &idle, deadline);
    channel->idle = NULL;
    cfw_event_destroy(&idle);
}

/* A cut that UCX may finish later. */
typedef struct {
    cfw_event    event;
    cfw_channel *channel;
    bool         abandoned; /* nobody waits: freed by whoever finishes it */
} cutting;

static void free_cutting(cutting *made)
{
    cfw_channel_unref(made->channel);
    cfw_event_destroy(&made->event);
    free(made);
}

static void on_cut(void *request, ucp_status status, void *user_data)
{
    cutting    *made   = user_data;
    cfw_engine *engine = made->channel->engine;

    (void)status; /* whatever it says, the endpoint is gone */
    if (request != NULL) {
        engine->ucx->ucp_request_free(request);
    }
    cfw_channel_forget(made->channel);
    cfw_event_set(engine, &made->event);
    if (made->abandoned) {
        free_cutting(made);
    }
}

/* Cutting by force ends what runs. UCX allows it only where it watches over the peer. */
static void cut(cfw_channel *channel)
{
    cfw_engine            *engine = channel->engine;
    cutting               *made   = calloc(1, sizeof(*made));
    struct timespec        storage;
    const struct timespec *deadline = cfw_deadline(CUT_NS, &storage);
    ucp_request_param      param    = {.mask      = UCP_OP_CALLBACK | UCP_OP_USER_DATA | UCP_OP_FLAGS,
                                       .flags     = channel->watched ? UCP_EP_CLOSE_FORCE : 0,
                                       .callback  = on_cut,
                                       .user_data = made};
    void                  *answer;

    if (made == NULL || cfw_event_init(&made->event) != 0) {
        free(made);
        return; /* the engine's end is the endpoint's too */
    }
    made->channel = channel;
    channel->refs++;
    channel->cut  = true;
    answer = engine->ucx->ucp_ep_close_nbx(channel->ep, &param);
    if (answer == NULL || ucp_is_error(answer)) {
        on_cut(NULL, UCP_OK, made);
    }
    if (cfw_engine_await(engine, &made->event, deadline) != 0) {
        made->abandoned = true;
    } else {
        free_cutting(made);
    }
}

uint32_t cfw_channel_drain(cfw_channel *channel, int64_t grace_ns)
{
    cfw_engine *engine = channel->engine;
    uint32_t    left;

    cfw_engine_enter(engine);
    if (engine->worker != NULL) {
        cfw_channel_drop_keys(channel);
        stop_jobs(channel);
        await_jobs(channel, grace_ns);
    }
    left = channel->running;
    cfw_engine_leave(engine);
    return left;
}

uint32_t cfw_channel_close(cfw_channel *channel, int64_t grace_ns)
{
    cfw_engine *engine = channel->engine;
    uint32_t    left;

    cfw_engine_enter(engine);
    if (!channel->closed) {
        channel->closed = true;
        stop_jobs(channel);
        await_jobs(channel, grace_ns);
        if (channel->ep != NULL && !engine->stopping && (channel->watched || channel->running == 0)) {
            cfw_channel_drop_keys(channel);
            cut(channel);
            await_jobs(channel, CUT_NS);
        }
    }
    left = channel->running;
    cfw_engine_leave(engine);
    return left;
}

void cfw_channel_release(cfw_channel *channel)
{
    cfw_engine *engine = channel->engine;

    cfw_channel_close(channel, 0);
    cfw_engine_enter(engine);
    cfw_channel_unref(channel);
    cfw_engine_leave(engine);
}
