/* A stand-in for libucp: transfers are copies within the process, done when the worker makes progress, in order. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "standin.h"
#include "ucp.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* Checks every definition below against the list. */
#define UCP(result, name, params) EXPORT result name params;
#define UCP_OPTIONAL UCP
#include "ucp.def"
#undef UCP
#undef UCP_OPTIONAL

EXPORT standin_control standin;

typedef struct request {
    struct request *next;
    struct endpoint *ep;
    ucp_callback    callback;
    void           *user_data;
    void           *to;
    const void     *from;
    size_t          size;
    ucp_status      status;
    bool            closes;
} request;

#define MOST_OWNED 16

typedef struct {
    request *head, **end_p;
    int      fd, in_flight;
    void    *owned[MOST_OWNED]; /* endpoints and keys, which go with the worker */
} worker;

typedef struct endpoint {
    worker *worker;
    bool    watched;
    void (*error_cb)(void *argument, void *ep, ucp_status status);
    void   *error_argument;
} endpoint;

typedef struct {
    worker *worker;
} key;

/* Put `after` where `before` is. */
static void own(worker *made, void *before, void *after)
{
    for (int index = 0; index < MOST_OWNED; ++index) {
        if (made->owned[index] == before) {
            made->owned[index] = after;
            return;
        }
    }
    abort();
}

void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
    *major   = 1;
    *minor   = 13;
    *release = 99;
}

ucp_status ucp_lib_query(ucp_lib_attr *attr)
{
    attr->max_thread_level = UCP_THREAD_MULTI;
    return UCP_OK;
}

const char *ucs_status_string(ucp_status status)
{
    return status == UCP_OK ? "fine" : "not fine";
}

ucp_status ucp_config_read(const char *prefix, const char *file, void **config_p)
{
    (void)prefix, (void)file;
    *config_p = malloc(1);
    return UCP_OK;
}

ucp_status ucp_config_modify(void *config, const char *name, const char *value)
{
    (void)config, (void)value;
    return strcmp(name, "TLS") == 0 ? UCP_OK : -12;
}

void ucp_config_release(void *config)
{
    free(config);
}

ucp_status ucp_init_version(unsigned major, unsigned minor, const ucp_params *params, const void *config,
                            void **context_p)
{
    (void)config;
    if (major != 1 || minor != 13 || params->features != (UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP)) {
        return UCP_INVALID_PARAM;
    }
    *context_p = malloc(1);
    standin.contexts++;
    return UCP_OK;
}

void ucp_cleanup(void *context)
{
    standin.contexts--;
    free(context);
}

ucp_status ucp_worker_create(void *context, const ucp_worker_params *params, void **worker_p)
{
    worker *made = calloc(1, sizeof(*made));

    (void)context;
    if (params->thread_mode != UCP_THREAD_SERIALIZED) {
        return UCP_INVALID_PARAM;
    }
    made->end_p = &made->head;
    made->fd    = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    *worker_p   = made;
    standin.workers++;
    return UCP_OK;
}

void ucp_worker_destroy(void *handle)
{
    worker *made = handle;

    while (made->head != NULL) {
        request *next = made->head->next;

        free(made->head);
        made->head = next;
    }
    for (int index = 0; index < MOST_OWNED; ++index) {
        free(made->owned[index]);
    }
    close(made->fd);
    free(made);
    standin.workers--;
}

ucp_status ucp_worker_get_address(void *handle, void **address_p, size_t *length_p)
{
    *address_p = handle;
    *length_p  = 1;
    return UCP_OK;
}

void ucp_worker_release_address(void *handle, void *address)
{
    (void)handle, (void)address;
}

ucp_status ucp_worker_get_efd(void *handle, int *fd_p)
{
    *fd_p = ((worker *)handle)->fd;
    return UCP_OK;
}

ucp_status ucp_worker_arm(void *handle)
{
    worker  *made = handle;
    uint64_t count;

    if (made->head != NULL && !standin.held) {
        return UCP_BUSY;
    }
    return read(made->fd, &count, sizeof(count)) < 0 ? UCP_OK : UCP_OK;
}

static void finish(worker *made, request *done)
{
    if (done->size > 0 && done->status == UCP_OK) {
        memcpy(done->to, done->from, done->size);
    }
    made->in_flight--;
    if (done->closes) {
        own(made, done->ep, NULL);
        free(done->ep);
        standin.endpoints--;
    }
    done->callback(done, done->status, done->user_data);
}

unsigned ucp_worker_progress(void *handle)
{
    worker  *made = handle;
    request *done = made->head;

    if (done == NULL || (standin.held && !done->closes)) {
        return 0;
    }
    made->head = done->next;
    if (made->head == NULL) {
        made->end_p = &made->head;
    }
    finish(made, done);
    return 1;
}

static void *start(endpoint *ep, void *to, const void *from, size_t size, const ucp_request_param *param)
{
    worker  *made = ep->worker;
    request *asked = calloc(1, sizeof(*asked));
    uint64_t one   = 1;

    *asked = (request){.ep = ep, .callback = param->callback, .user_data = param->user_data,
                       .to = to, .from = from, .size = size};
    *made->end_p = asked;
    made->end_p  = &asked->next;
    made->in_flight++;
    if (write(made->fd, &one, sizeof(one)) < 0) {
        abort();
    }
    return asked;
}

static void *transfer(endpoint *ep, void *to, const void *from, size_t size, const ucp_request_param *param)
{
    request *asked;

    standin.asked++;
    if (standin.refuse_at > 0 && --standin.refuse_at == 0) {
        return (void *)(intptr_t)-3;
    }
    if (standin.immediate) {
        memcpy(to, from, size);
        return NULL;
    }
    asked = start(ep, to, from, size, param);
    if (standin.fail_at > 0 && --standin.fail_at == 0) {
        asked->status = -80;
    }
    if (ep->worker->in_flight > standin.most) {
        standin.most = ep->worker->in_flight;
    }
    return asked;
}

void *ucp_get_nbx(void *ep, void *buffer, size_t count, uint64_t remote, void *rkey, const ucp_request_param *param)
{
    (void)rkey;
    return transfer(ep, buffer, (const void *)(uintptr_t)remote, count, param);
}

void *ucp_put_nbx(void *ep, const void *buffer, size_t count, uint64_t remote, void *rkey,
                  const ucp_request_param *param)
{
    (void)rkey;
    return transfer(ep, (void *)(uintptr_t)remote, buffer, count, param);
}

void *ucp_ep_flush_nbx(void *ep, const ucp_request_param *param)
{
    endpoint *made = ep;

    standin.flushes++;
    if (standin.die_at_flush) {
        made->error_cb(made->error_argument, ep, UCP_CONNECTION_RESET);
    }
    return start(ep, NULL, NULL, 0, param);
}

void ucp_request_free(void *asked)
{
    free(asked);
}

ucp_status ucp_ep_create(void *handle, const ucp_ep_params *params, void **ep_p)
{
    endpoint *ep;

    if (standin.peerless && params->error_mode == UCP_EP_ERRORS_PEER) {
        return UCP_UNREACHABLE;
    }
    ep          = calloc(1, sizeof(*ep));
    ep->worker  = handle;
    ep->watched = params->error_mode == UCP_EP_ERRORS_PEER;
    ep->error_cb = params->error_cb;
    ep->error_argument = params->error_argument;
    *ep_p       = ep;
    own(handle, NULL, ep);
    standin.endpoints++;
    return UCP_OK;
}

void *ucp_ep_close_nbx(void *handle, const ucp_request_param *param)
{
    endpoint *ep   = handle;
    worker   *made = ep->worker;
    request  *asked;

    if (param->flags == UCP_EP_CLOSE_FORCE) {
        if (!ep->watched) {
            return (void *)(intptr_t)UCP_INVALID_PARAM;
        }
        /* All that is under way ends now. */
        while (made->head != NULL) {
            request *done = made->head;

            made->head = done->next;
            if (made->head == NULL) {
                made->end_p = &made->head;
            }
            done->status = UCP_CANCELED;
            finish(made, done);
        }
    }
    asked         = start(ep, NULL, NULL, 0, param);
    asked->closes = true;
    return asked;
}

void ucp_ep_print_info(void *ep, FILE *stream)
{
    (void)ep;
    fprintf(stream, "# lane[0]: 2:standin/none md[0]\n");
}

ucp_status ucp_mem_map(void *context, const ucp_mem_map_params *params, void **memory_p)
{
    (void)context, (void)params;
    if (standin.map_status != UCP_OK) {
        return (ucp_status)standin.map_status;
    }
    *memory_p = malloc(1);
    standin.mapped++;
    return UCP_OK;
}

ucp_status ucp_mem_unmap(void *context, void *memory)
{
    (void)context;
    free(memory);
    standin.mapped--;
    return UCP_OK;
}

ucp_status ucp_rkey_pack(void *context, void *memory, void **buffer_p, size_t *size_p)
{
    (void)context, (void)memory;
    *buffer_p = strdup("key");
    *size_p   = 3;
    return UCP_OK;
}

void ucp_rkey_buffer_release(void *buffer)
{
    free(buffer);
}

ucp_status ucp_ep_rkey_unpack(void *ep, const void *buffer, void **rkey_p)
{
    key *made = malloc(sizeof(*made));

    (void)buffer;
    made->worker = ((endpoint *)ep)->worker;
    own(made->worker, NULL, made);
    *rkey_p = made;
    standin.keys++;
    return UCP_OK;
}

void ucp_rkey_destroy(void *rkey)
{
    own(((key *)rkey)->worker, rkey, NULL);
    free(rkey);
    standin.keys--;
}
