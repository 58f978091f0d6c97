/* The library: loading it, the table of its functions, the forwarders, and batches of transfers. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dlinfo */
#endif
#include "shim.h"

#include "hixl.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef void (*cfw_function)(void);

#define HIXL(name, params, args) CFW_INDEX_##name,
enum {
#include "hixl.def"
    CFW_NUM_SYMBOLS
};
#undef HIXL

#define HIXL(name, params, args) #name,
static const char *const cfw_names[CFW_NUM_SYMBOLS] = {
#include "hixl.def"
};
#undef HIXL

static _Atomic(cfw_function) cfw_functions[CFW_NUM_SYMBOLS];
static atomic_int            cfw_is_open;
static pthread_mutex_t       cfw_lock = PTHREAD_MUTEX_INITIALIZER; /* of opening and closing */

#define HIXL(name, params, args)                                                  \
    int64_t cfw_##name params                                                     \
    {                                                                             \
        cfw_function function = atomic_load(&cfw_functions[CFW_INDEX_##name]);    \
                                                                                  \
        if (function == NULL) {                                                   \
            return atomic_load(&cfw_is_open) ? CFW_HIXL_MISSING : CFW_HIXL_CLOSED; \
        }                                                                         \
        return (int64_t)((__typeof__(name) *)function)args;                       \
    }
#include "hixl.def"
#undef HIXL

/* ---- opening ------------------------------------------------------------------------------------------------- */

static void cfw_text_set(char *text, size_t size, const char *value)
{
    snprintf(text, size, "%s", value == NULL ? "" : value);
}

static int cfw_open_locked(const char *path, cfw_hixl_info *info)
{
    cfw_function     found[CFW_NUM_SYMBOLS];
    struct link_map *map = NULL;
    void            *handle;

    if (atomic_load(&cfw_is_open)) {
        return CFW_HIXL_BUSY;
    }
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        cfw_text_set(info->text, sizeof(info->text), dlerror());
        return CFW_HIXL_NOT_LOADED;
    }
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != NULL) {
        cfw_text_set(info->path, sizeof(info->path), map->l_name);
    }
    for (uint32_t index = 0; index < CFW_NUM_SYMBOLS; ++index) {
        void *address = dlsym(handle, cfw_names[index]);

        memcpy(&found[index], &address, sizeof(address));
        info->missing += address == NULL;
    }
    if (info->missing == CFW_NUM_SYMBOLS) {
        dlclose(handle);
        return CFW_HIXL_FOREIGN;
    }
    for (uint32_t index = 0; index < CFW_NUM_SYMBOLS; ++index) {
        atomic_store(&cfw_functions[index], found[index]);
    }
    atomic_store(&cfw_is_open, 1);
    return 0;
}

int cfw_hixl_open(const char *path, cfw_hixl_info *info_p)
{
    int status;

    memset(info_p, 0, sizeof(*info_p));
    pthread_mutex_lock(&cfw_lock);
    status = cfw_open_locked(path, info_p);
    pthread_mutex_unlock(&cfw_lock);
    return status;
}

void cfw_hixl_close(void)
{
    pthread_mutex_lock(&cfw_lock);
    atomic_store(&cfw_is_open, 0);
    for (uint32_t index = 0; index < CFW_NUM_SYMBOLS; ++index) {
        atomic_store(&cfw_functions[index], NULL);
    }
    pthread_mutex_unlock(&cfw_lock);
}

uint32_t cfw_hixl_num_symbols(void)
{
    return CFW_NUM_SYMBOLS;
}

const char *cfw_hixl_symbol(uint32_t index)
{
    return index < CFW_NUM_SYMBOLS ? cfw_names[index] : NULL;
}

int cfw_hixl_has(uint32_t index)
{
    return index < CFW_NUM_SYMBOLS && atomic_load(&cfw_functions[index]) != NULL;
}

/* ---- transfers ----------------------------------------------------------------------------------------------- */

#define CFW_MOST_CALLS 16
#define CFW_PAUSE_LEAST_NS 5000
#define CFW_PAUSE_MOST_NS 500000

typedef struct {
    HixlCompleteHandle handle;
    uint64_t           first;
    uint32_t           count;
} cfw_call;

typedef struct {
    cfw_hixl_job    *job;
    cfw_hixl_result *result;
    uint64_t         next;
    uint32_t         num_calls;
    int              is_full; /* HIXL has no room for a further call until one has ended */
    cfw_call         calls[CFW_MOST_CALLS];
} cfw_run;

static int cfw_run_fail(cfw_run *run, int64_t status, uint64_t first)
{
    run->result->status = status;
    run->result->failed = first;
    return -1;
}

/* 1 when a call was issued, 0 when none can be now, -1 when it failed. */
static int cfw_run_issue(cfw_run *run)
{
    cfw_hixl_job *job  = run->job;
    cfw_call     *call = &run->calls[run->num_calls];
    int64_t       status;

    if (run->next == job->count || run->num_calls == job->in_flight || run->is_full ||
        __atomic_load_n(&job->stop, __ATOMIC_ACQUIRE)) {
        return 0;
    }
    call->handle = NULL;
    call->first  = run->next;
    call->count  = job->count - run->next < job->chunk ? (uint32_t)(job->count - run->next) : job->chunk;
    if (job->put) {
        status = cfw_HixlCSClientBatchPutAsync(job->client, call->count, job->pieces + call->first, &call->handle);
    } else {
        status = cfw_HixlCSClientBatchGetAsync(job->client, call->count, job->pieces + call->first, &call->handle);
    }
    if (status == HIXL_RESOURCE_EXHAUSTED && run->num_calls > 0) {
        /* Issued again later: the same bytes to the same place. */
        run->is_full = 1;
        return 0;
    }
    if (status != 0) {
        /* Arguments are looked at before anything moves; after any other failure part of the call may be under way. */
        run->result->unsettled += status != HIXL_PARAM_INVALID && status > 0;
        return cfw_run_fail(run, status, call->first);
    }
    run->next += call->count;
    run->num_calls += 1;
    return 1;
}

/* How many calls have ended, or -1 when one failed. A handle is not to be used again once it has ended. */
static int cfw_run_poll(cfw_run *run)
{
    int ended = 0;

    for (uint32_t index = 0; index < run->num_calls;) {
        cfw_call           call  = run->calls[index];
        HixlCompleteStatus state = HIXL_COMPLETE_STATUS_WAITING;
        int64_t status = cfw_HixlCSClientQueryCompleteStatus(run->job->client, call.handle, &state);

        if (status == 0 && state == HIXL_COMPLETE_STATUS_WAITING) {
            ++index;
            continue;
        }
        run->result->state = (int32_t)state;
        if (status != 0 || state != HIXL_COMPLETE_STATUS_COMPLETED) {
            return cfw_run_fail(run, status != 0 ? status : CFW_HIXL_BAD_STATE, call.first);
        }
        run->result->done += call.count;
        run->calls[index] = run->calls[--run->num_calls];
        run->is_full      = 0;
        ++ended;
    }
    return ended;
}

void cfw_hixl_run(cfw_hixl_job *job, cfw_hixl_result *result_p)
{
    cfw_run         run   = {.job = job, .result = result_p};
    struct timespec pause = {0, CFW_PAUSE_LEAST_NS};
    int             moved;
    int             stop;

    memset(result_p, 0, sizeof(*result_p));
    result_p->failed = job->count;
    if (job->chunk == 0 || job->in_flight == 0 || job->in_flight > CFW_MOST_CALLS) {
        (void)cfw_run_fail(&run, HIXL_PARAM_INVALID, 0);
        return;
    }
    do {
        stop = __atomic_load_n(&job->stop, __ATOMIC_ACQUIRE);
        if (stop == CFW_STOP_ABANDON || (stop && run.num_calls == 0)) {
            (void)cfw_run_fail(&run, CFW_HIXL_STOPPED, run.num_calls > 0 ? run.calls[0].first : run.next);
            break;
        }
        do {
            moved = cfw_run_issue(&run);
        } while (moved > 0);
        if (moved == 0) {
            moved = cfw_run_poll(&run);
        }
        if (moved > 0) {
            pause.tv_nsec = CFW_PAUSE_LEAST_NS;
        } else if (moved == 0 && run.num_calls > 0) {
            /* HIXL has nothing to wait on; its own synchronous calls look every 10 us. */
            (void)nanosleep(&pause, NULL);
            pause.tv_nsec = pause.tv_nsec * 2 < CFW_PAUSE_MOST_NS ? pause.tv_nsec * 2 : CFW_PAUSE_MOST_NS;
        }
    } while (moved >= 0 && (run.num_calls > 0 || run.next < job->count));
    result_p->unsettled += run.num_calls;
}

void cfw_hixl_stop(cfw_hixl_job *job, int how)
{
    int before = __atomic_load_n(&job->stop, __ATOMIC_RELAXED);

    while (before < how &&
           !__atomic_compare_exchange_n(&job->stop, &before, how, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
}
