/* Engines: a UCX context with one worker, made and taken down; and the queue of tokens. */
#include "internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- making ------------------------------------------------------------------------------------------------------ */

static int make_context(cfw_engine *engine, const char *const *settings, uint32_t num_settings)
{
    const cfw_ucx *ucx    = engine->ucx;
    ucp_params     params = {.mask     = UCP_PARAM_FEATURES | UCP_PARAM_SHARED,
                             .features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP,
                             .shared   = 1};
    void          *config = NULL;
    int            status = ucx->ucp_config_read(NULL, NULL, &config);

    if (status != UCP_OK) {
        return status;
    }
    for (uint32_t index = 0; index < num_settings; ++index) {
        if (ucx->ucp_config_modify(config, settings[2 * index], settings[2 * index + 1]) != UCP_OK) {
            ucx->ucp_config_release(config);
            return CFW_RDMA_NO_SETTING;
        }
    }
    status = ucx->ucp_init_version(CFW_UCX_MAJOR, CFW_UCX_MINOR, &params, config, &engine->context);
    ucx->ucp_config_release(config);
    return status;
}

static int make_worker(cfw_engine *engine)
{
    const cfw_ucx    *ucx    = engine->ucx;
    ucp_worker_params params = {.mask        = UCP_WORKER_THREAD_MODE | UCP_WORKER_FLAGS,
                                .thread_mode = UCP_THREAD_SERIALIZED,
                                /* Requests to a frozen peer that UCX does not watch are left at the end. */
                                .flags = UCP_WORKER_IGNORE_REQUEST_LEAK};
    int               status = ucx->ucp_worker_create(engine->context, &params, &engine->worker);

    if (status != UCP_OK) {
        return status;
    }
    status = ucx->ucp_worker_get_address(engine->worker, &engine->address, &engine->address_size);
    if (status != UCP_OK) {
        goto err_worker;
    }
    status = ucx->ucp_worker_get_efd(engine->worker, &engine->worker_fd);
    if (status != UCP_OK) {
        goto err_address;
    }
    return 0;

err_address:
    ucx->ucp_worker_release_address(engine->worker, engine->address);
err_worker:
    ucx->ucp_worker_destroy(engine->worker);
    return status;
}

static int listen_to(cfw_engine *engine, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};

    return epoll_ctl(engine->poll_fd, EPOLL_CTL_ADD, fd, &event);
}

static void close_descriptors(cfw_engine *engine)
{
    int *const fds[] = {&engine->poll_fd, &engine->thread_fd, &engine->driver_fd};

    for (unsigned index = 0; index < sizeof(fds) / sizeof(fds[0]); ++index) {
        if (*fds[index] >= 0) {
            close(*fds[index]);
            *fds[index] = -1;
        }
    }
}

static int make_descriptors(cfw_engine *engine)
{
    engine->poll_fd   = epoll_create1(EPOLL_CLOEXEC);
    engine->thread_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    engine->driver_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (engine->poll_fd < 0 || engine->thread_fd < 0 || engine->driver_fd < 0 ||
        listen_to(engine, engine->worker_fd) != 0 || listen_to(engine, engine->thread_fd) != 0) {
        close_descriptors(engine);
        return CFW_RDMA_SYSTEM;
    }
    return 0;
}

static int start_thread(cfw_engine *engine)
{
    sigset_t blocked, before;
    int      status;

    /* The application's handlers expect its own threads. The signals of a thread's own faults stay, or a crash could
     * not be reported. */
    sigfillset(&blocked);
    sigdelset(&blocked, SIGSEGV);
    sigdelset(&blocked, SIGBUS);
    sigdelset(&blocked, SIGILL);
    sigdelset(&blocked, SIGFPE);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    status = pthread_create(&engine->thread, NULL, cfw_engine_thread, engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status == 0 ? 0 : CFW_RDMA_SYSTEM;
}

static void destroy_worker(cfw_engine *engine)
{
    engine->ucx->ucp_worker_release_address(engine->worker, engine->address);
    engine->ucx->ucp_worker_destroy(engine->worker);
    engine->worker  = NULL;
    engine->address = NULL;
}

static int make_locks(cfw_engine *engine)
{
    if (pthread_mutex_init(&engine->lock, NULL) != 0) {
        return CFW_RDMA_SYSTEM;
    }
    if (cfw_cond_init(&engine->turn) != 0) {
        pthread_mutex_destroy(&engine->lock);
        return CFW_RDMA_SYSTEM;
    }
    if (cfw_cond_init(&engine->tokens) != 0) {
        pthread_cond_destroy(&engine->turn);
        pthread_mutex_destroy(&engine->lock);
        return CFW_RDMA_SYSTEM;
    }
    return 0;
}

int cfw_engine_create(const cfw_ucx *ucx, const char *const *settings, uint32_t num_settings, cfw_engine **engine_p)
{
    cfw_engine *engine = calloc(1, sizeof(*engine));
    int         status;

    if (engine == NULL) {
        return CFW_RDMA_NO_MEMORY;
    }
    engine->ucx         = ucx;
    engine->refs        = 1;
    engine->ready_end_p = &engine->ready;
    engine->told_end_p  = &engine->told;
    status              = make_locks(engine);
    if (status != 0) {
        free(engine);
        return status;
    }
    status = make_context(engine, settings, num_settings);
    if (status != 0) {
        goto err_engine;
    }
    status = make_worker(engine);
    if (status != 0) {
        goto err_context;
    }
    status = make_descriptors(engine);
    if (status != 0) {
        goto err_worker;
    }
    status = start_thread(engine);
    if (status != 0) {
        goto err_descriptors;
    }
    *engine_p = engine;
    return 0;

err_descriptors:
    close_descriptors(engine);
err_worker:
    destroy_worker(engine);
err_context:
    ucx->ucp_cleanup(engine->context);
err_engine:
    cfw_engine_enter(engine);
    engine->refs--;
    cfw_engine_leave(engine);
    return status;
}

const void *cfw_engine_address(const cfw_engine *engine, uint64_t *size_p)
{
    *size_p = engine->address_size;
    return engine->address;
}

/* ---- taking down ------------------------------------------------------------------------------------------------- */

void cfw_engine_destroy(cfw_engine *engine)
{
    cfw_engine_enter(engine);
    engine->stopping = true;
    cfw_engine_kick(engine);
    engine->driven = NULL;
    cfw_engine_kick(engine);
    cfw_engine_leave(engine);
    pthread_join(engine->thread, NULL);

    cfw_engine_enter(engine);
    while (engine->away > 0) {
        engine->yielding++;
        pthread_cond_wait(&engine->turn, &engine->lock);
        engine->yielding--;
    }
    /* UCX 1.13 does not survive an answer to a new peer that is still to be sent. */
    cfw_engine_rest(engine);
    for (cfw_channel *channel = engine->channels; channel != NULL; channel = channel->next) {
        channel->closed = true;
        cfw_channel_drop_keys(channel);
    }
    /* Ends every endpoint; what was still on its way is reported to our callbacks or forgotten. */
    destroy_worker(engine);
    while (engine->jobs != NULL) {
        cfw_job *job = engine->jobs;

        job->outstanding = 0;
        cfw_job_stop(job, CFW_RDMA_CANCELLED);
        cfw_job_settle(job);
    }
    while (engine->channels != NULL) {
        cfw_channel_forget(engine->channels);
    }
    while (engine->memories != NULL) {
        cfw_memory_drop(engine->memories);
    }
    engine->ucx->ucp_cleanup(engine->context);
    engine->context = NULL;
    close_descriptors(engine);
    engine->closed = true;
    pthread_cond_broadcast(&engine->tokens);
    engine->refs--;
    cfw_engine_leave(engine);
}

/* ---- tokens ------------------------------------------------------------------------------------------------------- */

void cfw_engine_hand_out(cfw_engine *engine, cfw_watch *watches)
{
    if (watches == NULL) {
        return;
    }
    *engine->told_end_p = watches;
    while (*engine->told_end_p != NULL) {
        engine->told_end_p = &(*engine->told_end_p)->next;
    }
    pthread_cond_broadcast(&engine->tokens);
}

int cfw_engine_next(cfw_engine *engine, int64_t timeout_ns, uint64_t *token_p)
{
    struct timespec        storage;
    const struct timespec *deadline = cfw_deadline(timeout_ns, &storage);
    cfw_watch             *watch    = NULL;
    int                    status   = 0;

    cfw_engine_enter(engine);
    engine->refs++;
    while (engine->told == NULL && status == 0) {
        if (engine->closed) {
            status = CFW_RDMA_CLOSED;
        } else if (cfw_left(deadline) == 0) {
            status = CFW_RDMA_TIMED_OUT;
        } else {
            cfw_cond_wait(&engine->tokens, &engine->lock, deadline);
        }
    }
    if (status == 0) {
        watch        = engine->told;
        engine->told = watch->next;
        if (engine->told == NULL) {
            engine->told_end_p = &engine->told;
        }
    }
    engine->refs--;
    cfw_engine_leave(engine);
    if (watch != NULL) {
        *token_p = watch->token;
        free(watch);
    }
    return status;
}
