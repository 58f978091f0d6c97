/* Events. Each time one is recorded it points to a new record, which those who wait for it share: a wait is for the
 * record that was the last when it was asked for, as with the real ones. */
#include "sim.h"

#include <stdlib.h>

struct sim_record {
    atomic_uint refs;
    atomic_bool done;
    aclError    code; /* of what failed before it in its stream */
};

typedef struct {
    sim_object      object;
    pthread_mutex_t lock;
    sim_record     *last;
} sim_event;

/* One lock for all: it is held for nothing but setting and seeing flags. */
static pthread_mutex_t lock    = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t  changed = PTHREAD_COND_INITIALIZER;
static bool            paused;

void sim_record_put(sim_record *record)
{
    if (atomic_fetch_sub_explicit(&record->refs, 1, memory_order_acq_rel) == 1) {
        free(record);
    }
}

void sim_record_done(sim_record *record, aclError code)
{
    pthread_mutex_lock(&lock);
    record->code = code;
    record->done = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void sim_record_wait(sim_record *record, const sim_stream *stream)
{
    pthread_mutex_lock(&lock);
    while (!record->done && !(stream != NULL && stream->abandoned)) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

void sim_records_wake(void)
{
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void sim_pause_wait(const sim_stream *stream)
{
    pthread_mutex_lock(&lock);
    while (paused && !stream->closing) {
        pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
}

void sim_streams_pause(bool pause)
{
    pthread_mutex_lock(&lock);
    paused = pause;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void aclsimPause(int pause)
{
    sim_streams_pause(pause != 0);
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

static void destroy(sim_object *object)
{
    sim_event *event = (sim_event *)object;

    if (event->last != NULL) {
        sim_record_put(event->last);
    }
    pthread_mutex_destroy(&event->lock);
    free(event);
}

static aclError create(aclrtEvent *event)
{
    sim_event *made;
    int32_t    device;
    void      *handle;
    aclError   code;

    SIM_NOT_NULL(event);
    code = sim_current_device(&device);
    if (code != ACL_SUCCESS) {
        return code;
    }
    made = calloc(1, sizeof(*made));
    if (made == NULL) {
        return sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
    }
    sim_object_init(&made->object, SIM_EVENT, destroy);
    pthread_mutex_init(&made->lock, NULL);
    handle = sim_handle_add(&made->object);
    if (handle == NULL) {
        destroy(&made->object);
        return sim_fail(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "there are too many handles");
    }
    *event = handle;
    return ACL_SUCCESS;
}

aclError aclrtCreateEvent(aclrtEvent *event)
{
    SIM_ENTER(aclrtCreateEvent);
    return create(event);
}

aclError aclrtCreateEventExWithFlag(aclrtEvent *event, uint32_t flag)
{
    SIM_ENTER(aclrtCreateEventExWithFlag);
    if ((flag & ~(uint32_t)(ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE)) != 0) {
        return sim_fail(ACL_ERROR_RT_PARAM_INVALID, "there is no flag %#x", flag);
    }
    return create(event);
}

static aclError get_event(aclrtEvent handle, sim_event **event_p)
{
    sim_event *event;

    if (handle == NULL) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "event is NULL");
    }
    event = (sim_event *)sim_handle_get(SIM_EVENT, handle);
    if (event == NULL) {
        return sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "%p is not an event", handle);
    }
    *event_p = event;
    return ACL_SUCCESS;
}

/* The last record, with a reference; NULL when there is none yet. */
static sim_record *last_record(sim_event *event)
{
    sim_record *record;

    pthread_mutex_lock(&event->lock);
    record = event->last;
    if (record != NULL) {
        atomic_fetch_add_explicit(&record->refs, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&event->lock);
    return record;
}

aclError aclrtDestroyEvent(aclrtEvent event)
{
    sim_object *found;

    SIM_ENTER(aclrtDestroyEvent);
    SIM_NOT_NULL(event);
    found = sim_handle_remove(SIM_EVENT, event);
    if (found == NULL) {
        return sim_fail(ACL_ERROR_RT_INVALID_HANDLE, "%p is not an event", event);
    }
    sim_object_put(found);
    return ACL_SUCCESS;
}

static aclError submit(sim_stream *stream, sim_task_kind kind, sim_record *record)
{
    sim_task *task = calloc(1, sizeof(*task));
    uint64_t  place;

    if (task == NULL) {
        sim_record_put(record);
        return sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
    }
    task->kind   = kind;
    task->record = record;
    return sim_stream_submit(stream, task, task, 1, &place);
}

static aclError record(sim_event *event, sim_stream *stream)
{
    sim_record *made = calloc(1, sizeof(*made));
    aclError    code;

    if (made == NULL) {
        return sim_fail(ACL_ERROR_BAD_ALLOC, "the host has no memory left");
    }
    atomic_init(&made->refs, 2); /* of the task and of the event */
    pthread_mutex_lock(&event->lock);
    code = submit(stream, SIM_TASK_RECORD, made);
    if (code == ACL_SUCCESS) {
        sim_record *before = event->last;

        event->last = made;
        made        = before;
    }
    pthread_mutex_unlock(&event->lock);
    if (made != NULL) {
        sim_record_put(made);
    }
    return code;
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream)
{
    sim_event  *found;
    sim_stream *into;
    aclError    code;

    SIM_ENTER(aclrtRecordEvent);
    code = get_event(event, &found);
    if (code != ACL_SUCCESS) {
        return code;
    }
    code = sim_stream_get(stream, &into);
    if (code == ACL_SUCCESS) {
        code = record(found, into);
        sim_object_put(&into->object);
    }
    sim_object_put(&found->object);
    return code;
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event)
{
    sim_event  *found;
    sim_stream *into;
    sim_record *last;
    aclError    code;

    SIM_ENTER(aclrtStreamWaitEvent);
    code = get_event(event, &found);
    if (code != ACL_SUCCESS) {
        return code;
    }
    code = sim_stream_get(stream, &into);
    if (code == ACL_SUCCESS) {
        last = last_record(found);
        if (last != NULL) {
            code = submit(into, SIM_TASK_WAIT, last);
        }
        sim_object_put(&into->object);
    }
    sim_object_put(&found->object);
    return code;
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus *status)
{
    sim_event  *found;
    sim_record *last;
    aclError    code;

    SIM_ENTER(aclrtQueryEventStatus);
    SIM_NOT_NULL(status);
    code = get_event(event, &found);
    if (code != ACL_SUCCESS) {
        return code;
    }
    last    = last_record(found);
    *status = last != NULL && last->done ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
    if (last != NULL) {
        sim_record_put(last);
    }
    sim_object_put(&found->object);
    return ACL_SUCCESS;
}

aclError aclrtSynchronizeEvent(aclrtEvent event)
{
    sim_event  *found;
    sim_record *last;
    aclError    code;

    SIM_ENTER(aclrtSynchronizeEvent);
    code = get_event(event, &found);
    if (code != ACL_SUCCESS) {
        return code;
    }
    last = last_record(found);
    if (last == NULL) {
        code = sim_fail(ACL_ERROR_RT_PARAM_INVALID, "event %p was never recorded", event);
    } else {
        sim_record_wait(last, NULL);
        code = last->code;
        if (code != ACL_SUCCESS) {
            (void)sim_fail(code, "a task before the event failed; synchronise the stream for its text");
        }
        sim_record_put(last);
    }
    sim_object_put(&found->object);
    return code;
}
