/* Streams: a queue and a thread each. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static pthread_mutex_t default_lock = PTHREAD_MUTEX_INITIALIZER;

void sim_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

void sim_deadline(int32_t milliseconds, struct timespec *deadline)
{
    clock_gettime(CLOCK_MONOTONIC, deadline);
    deadline->tv_sec  += milliseconds / 1000;
    deadline->tv_nsec += milliseconds % 1000 * 1000000L;
    if (deadline->tv_nsec >= 1000000000L) {
        deadline->tv_sec++;
        deadline->tv_nsec -= 1000000000L;
    }
}

void sim_tasks_free(sim_task *first, sim_task *end)
{
    while (first != end) {
        sim_task *next = first->next;

        if (first->record != NULL) {
            sim_record_put(first->record);
        }
        free(first);
        first = next;
    }
}

static void *run(void *argument)
{
    sim_stream *stream = argument;

    sim_text_function("task");
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        const uint64_t count = stream->submitted - stream->completed;
        sim_task      *first = stream->head, *next = first;
        uint64_t       ran;

        if (count == 0 && stream->closing) {
            break;
        }
        if (count == 0) {
            pthread_cond_wait(&stream->work, &stream->lock);
            continue;
        }
        pthread_mutex_unlock(&stream->lock);
        sim_pause_wait(stream);
        ran = sim_tasks_run(stream, first, count);
        pthread_mutex_lock(&stream->lock);
        for (uint64_t index = 0; index < ran; ++index) {
            next = next->next;
        }
        stream->head = next;
        if (next == NULL) {
            stream->tail_p = &stream->head;
        }
        stream->completed += ran;
        if (stream->waiters > 0) {
            pthread_cond_broadcast(&stream->done);
        }
        pthread_mutex_unlock(&stream->lock);
        sim_tasks_free(first, next);
        pthread_mutex_lock(&stream->lock);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

static void destroy(sim_object *object)
{
    sim_stream *stream = (sim_stream *)object;

    pthread_cond_destroy(&stream->done);
    pthread_cond_destroy(&stream->work);
    pthread_mutex_destroy(&stream->lock);
    free(stream);
}

aclError sim_stream_open(sim_context *context, void **handle_p)
{
    sim_stream *stream = calloc(1, sizeof(*stream));
    void       *handle;

    if (stream == NULL) {
        return sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
    }
    sim_object_init(&stream->object, SIM_STREAM, destroy);
    pthread_mutex_init(&stream->lock, NULL);
    sim_cond_init(&stream->work);
    sim_cond_init(&stream->done);
    stream->tail_p  = &stream->head;
    stream->device  = context->device;
    stream->context = context->handle;
    if (!sim_thread_start(&stream->thread, "aclsim-stream", run, stream)) {
        destroy(&stream->object);
        return sim_fail(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "no thread for another stream");
    }
    handle = sim_handle_add(&stream->object);
    if (handle == NULL) {
        sim_stream_close(stream, true);
        return sim_fail(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "there are too many handles");
    }
    *handle_p = handle;
    return ACL_SUCCESS;
}

void sim_stream_close(sim_stream *stream, bool abandon)
{
    pthread_mutex_lock(&stream->lock);
    stream->abandoned = abandon;
    stream->closing   = true;
    pthread_cond_broadcast(&stream->work);
    pthread_mutex_unlock(&stream->lock);
    sim_records_wake();
    pthread_join(stream->thread, NULL);
    sim_object_put(&stream->object);
}

aclError sim_stream_get(aclrtStream handle, sim_stream **stream_p)
{
    sim_context *context = sim_context_current();
    sim_stream  *stream  = NULL;
    aclError     code    = ACL_SUCCESS;

    if (context == NULL) {
        return sim_no_context();
    }
    if (handle == NULL) {
        pthread_mutex_lock(&default_lock);
        if (context->stream == NULL) {
            code = sim_stream_open(context, &context->stream);
        }
        handle = context->stream;
        pthread_mutex_unlock(&default_lock);
    }
    if (code == ACL_SUCCESS) {
        stream = (sim_stream *)sim_handle_get(SIM_STREAM, handle);
        if (stream == NULL) {
            code = sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "%p is not a stream", handle);
        } else if (stream->context != context->handle) {
            code = sim_fail(ACL_ERROR_RT_STREAM_CONTEXT, "stream %p is not of the current context", handle);
            sim_object_put(&stream->object);
        }
    }
    sim_object_put(&context->object);
    if (code == ACL_SUCCESS) {
        *stream_p = stream;
    }
    return code;
}

aclError sim_stream_submit(sim_stream *stream, sim_task *first, sim_task *last, uint64_t count, uint64_t *place_p)
{
    bool closing;

    pthread_mutex_lock(&stream->lock);
    closing = stream->closing;
    if (!closing) {
        last->next         = NULL;
        *stream->tail_p    = first;
        stream->tail_p     = &last->next;
        stream->submitted += count;
        *place_p           = stream->submitted;
        if (stream->submitted - stream->completed == count) {
            pthread_cond_signal(&stream->work);
        }
    }
    pthread_mutex_unlock(&stream->lock);
    if (closing) {
        sim_tasks_free(first, NULL);
        return sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "the stream is being destroyed");
    }
    return ACL_SUCCESS;
}

aclError sim_stream_wait(sim_stream *stream, uint64_t place, int32_t timeout_ms)
{
    struct timespec deadline;
    int             status = 0;
    bool            done;

    if (timeout_ms >= 0) {
        sim_deadline(timeout_ms, &deadline);
    }
    pthread_mutex_lock(&stream->lock);
    stream->waiters++;
    while (stream->completed < place && status == 0) {
        status = timeout_ms < 0 ? pthread_cond_wait(&stream->done, &stream->lock)
                                : pthread_cond_timedwait(&stream->done, &stream->lock, &deadline);
    }
    stream->waiters--;
    done = stream->completed >= place;
    pthread_mutex_unlock(&stream->lock);
    return done ? ACL_SUCCESS : sim_fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "not done within %d ms", timeout_ms);
}

uint64_t sim_stream_end(sim_stream *stream)
{
    uint64_t end;

    pthread_mutex_lock(&stream->lock);
    end = stream->submitted;
    pthread_mutex_unlock(&stream->lock);
    return end;
}

void sim_stream_failed(sim_stream *stream, aclError code)
{
    sim_error error = {.code = code};

    sim_text_take(error.text, sizeof(error.text));
    pthread_mutex_lock(&stream->lock);
    if (stream->error.code == ACL_SUCCESS) {
        stream->error = error;
    }
    pthread_mutex_unlock(&stream->lock);
}

aclError sim_stream_report(sim_stream *stream)
{
    sim_error error;

    pthread_mutex_lock(&stream->lock);
    error              = stream->error;
    stream->error.code = ACL_SUCCESS;
    pthread_mutex_unlock(&stream->lock);
    return error.code == ACL_SUCCESS ? ACL_SUCCESS : sim_fail(error.code, "%s", error.text);
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static aclError create(aclrtStream *stream)
{
    sim_context *context;
    aclError     code;

    SIM_NOT_NULL(stream);
    context = sim_context_current();
    if (context == NULL) {
        return sim_no_context();
    }
    code = sim_stream_open(context, stream);
    sim_object_put(&context->object);
    return code;
}

aclError aclrtCreateStream(aclrtStream *stream)
{
    SIM_ENTER(aclrtCreateStream);
    return create(stream);
}

aclError aclrtCreateStreamWithConfig(aclrtStream *stream, uint32_t priority, uint32_t flag)
{
    SIM_ENTER(aclrtCreateStreamWithConfig);
    if (priority > 7 || (flag & ~(uint32_t)(ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC)) != 0) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no priority %u or no flag %#x", priority, flag);
    }
    return create(stream);
}

aclError aclrtDestroyStream(aclrtStream stream)
{
    sim_stream *found;
    aclError    code;

    SIM_ENTER(aclrtDestroyStream);
    SIM_NOT_NULL(stream);
    code = sim_stream_get(stream, &found);
    if (code != ACL_SUCCESS) {
        return code;
    }
    if (sim_handle_remove(SIM_STREAM, stream) == NULL) {
        code = sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "%p is being destroyed already", stream);
    } else {
        sim_stream_close(found, false);
    }
    sim_object_put(&found->object);
    return code;
}

static aclError synchronize(aclrtStream stream, int32_t timeout_ms)
{
    sim_stream *found;
    aclError    code = sim_stream_get(stream, &found);

    if (code != ACL_SUCCESS) {
        return code;
    }
    code = sim_stream_wait(found, sim_stream_end(found), timeout_ms);
    if (code == ACL_SUCCESS) {
        code = sim_stream_report(found);
    }
    sim_object_put(&found->object);
    return code;
}

aclError aclrtSynchronizeStream(aclrtStream stream)
{
    SIM_ENTER(aclrtSynchronizeStream);
    return synchronize(stream, -1);
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout_ms)
{
    SIM_ENTER(aclrtSynchronizeStreamWithTimeout);
    if (timeout_ms < -1) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "the timeout is %d ms", timeout_ms);
    }
    return synchronize(stream, timeout_ms);
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus *status)
{
    sim_stream *found;
    aclError    code;

    SIM_ENTER(aclrtStreamQuery);
    SIM_NOT_NULL(status);
    code = sim_stream_get(stream, &found);
    if (code != ACL_SUCCESS) {
        return code;
    }
    pthread_mutex_lock(&found->lock);
    *status = found->completed == found->submitted ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
    pthread_mutex_unlock(&found->lock);
    sim_object_put(&found->object);
    return ACL_SUCCESS;
}

static bool on_device(const sim_object *object, const void *device)
{
    return ((const sim_stream *)object)->device == *(const int32_t *)device;
}

aclError aclrtSynchronizeDevice(void)
{
    uint32_t    from = 0;
    sim_stream *stream;
    int32_t     device;
    aclError    code;

    SIM_ENTER(aclrtSynchronizeDevice);
    code = sim_current_device(&device);
    if (code != ACL_SUCCESS) {
        return code;
    }
    while ((stream = (sim_stream *)sim_handle_next(SIM_STREAM, on_device, &device, &from)) != NULL) {
        aclError failed;

        (void)sim_stream_wait(stream, sim_stream_end(stream), -1);
        failed = sim_stream_report(stream);
        code   = code != ACL_SUCCESS ? code : failed;
        sim_object_put(&stream->object);
    }
    return code;
}
