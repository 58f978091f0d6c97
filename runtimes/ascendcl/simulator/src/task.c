/* What a stream's thread does with its tasks. Copies that follow each other and touch different bytes are done as one,
 * so that small ones too are worth streaming stores and a second thread. */
#include "sim.h"

#include <string.h>

#define RUN_TASKS 1024
#define HULLS 16
#define RUN_BYTES ((size_t)64 << 20)

/* Which bytes: the file and the place in it, as the same memory may be mapped twice; or the address. */
typedef struct {
    uint64_t inode, begin, end;
} span;

typedef struct {
    sim_piece pieces[RUN_TASKS];
    span      to[RUN_TASKS]; /* in order; none touches another */
    span      from[RUN_TASKS];
    span      hulls[HULLS]; /* one for each file of from, around all that is in it */
    size_t    count, num_hulls;
    bool      no_hulls; /* more files than that */
} copy_run;

static span span_of(const sim_region *region, const char *data, size_t size)
{
    const uint64_t begin = region != NULL && region->inode != 0
                               ? region->file_offset + (uint64_t)(data - region->data)
                               : (uintptr_t)data;

    return (span){region != NULL ? region->inode : 0, begin, begin + size};
}

static bool meet(const span *one, const span *other)
{
    return one->inode == other->inode && one->begin < other->end && other->begin < one->end;
}

/* The first target that ends after the span begins. */
static size_t find(const copy_run *run, const span *what)
{
    size_t low = 0, high = run->count;

    while (low < high) {
        const size_t middle = (low + high) / 2;
        const span  *each   = &run->to[middle];

        if (each->inode < what->inode || (each->inode == what->inode && each->end <= what->begin)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool is_source(const copy_run *run, const span *to)
{
    bool close = run->no_hulls;

    for (size_t index = 0; index < run->num_hulls && !close; ++index) {
        close = meet(to, &run->hulls[index]);
    }
    if (!close) {
        return false;
    }
    for (size_t index = 0; index < run->count; ++index) {
        if (meet(to, &run->from[index])) {
            return true;
        }
    }
    return false;
}

static void widen(copy_run *run, const span *from)
{
    for (size_t index = run->num_hulls; index > 0; --index) {
        span *hull = &run->hulls[index - 1];

        if (hull->inode == from->inode) {
            hull->begin = from->begin < hull->begin ? from->begin : hull->begin;
            hull->end   = from->end > hull->end ? from->end : hull->end;
            return;
        }
    }
    if (run->num_hulls < HULLS) {
        run->hulls[run->num_hulls++] = *from;
    } else {
        run->no_hulls = true;
    }
}

/* False when the piece has to wait for the ones before it. */
static bool join(copy_run *run, const sim_piece *piece)
{
    const span   to       = span_of(piece->to_region, piece->to, piece->size);
    const span   from     = span_of(piece->from_region, piece->from, piece->size);
    const size_t index    = find(run, &to);
    const size_t conflict = find(run, &from);

    if ((index < run->count && meet(&to, &run->to[index])) ||
        (conflict < run->count && meet(&from, &run->to[conflict])) || is_source(run, &to)) {
        return false;
    }
    widen(run, &from);
    memmove(run->to + index + 1, run->to + index, (run->count - index) * sizeof(span));
    run->to[index]          = to;
    run->from[run->count]   = from;
    run->pieces[run->count] = *piece;
    run->count++;
    return true;
}

static uint64_t run_copies(sim_stream *stream, const sim_task *task, uint64_t count)
{
    copy_run run;
    uint64_t ran   = 0;
    size_t   bytes = 0;

    run.count     = 0;
    run.num_hulls = 0;
    run.no_hulls  = false;
    for (; ran < count && ran < RUN_TASKS && task->kind == SIM_TASK_COPY && bytes < RUN_BYTES; ++ran) {
        sim_piece piece;
        aclError  code =
            sim_piece_make(stream->device, task->to, task->from, task->size, task->direction, true, &piece);

        if (code == ACL_SUCCESS && !join(&run, &piece)) {
            sim_piece_put(&piece);
            break;
        }
        if (code == ACL_SUCCESS) {
            code = sim_fault_take(SIM_FN_TASK);
            if (code != ACL_SUCCESS) {
                run.pieces[run.count - 1].size = 0;
            }
            bytes += piece.size;
        }
        if (code != ACL_SUCCESS) {
            sim_stream_failed(stream, code);
        }
        if (ran + 1 < count) {
            task = task->next; /* of the last one it may be changing */
        }
    }
    sim_crew_copy(run.pieces, run.count);
    for (size_t index = 0; index < run.count; ++index) {
        sim_piece_put(&run.pieces[index]);
    }
    return ran;
}

static aclError pending_error(sim_stream *stream)
{
    aclError code;

    pthread_mutex_lock(&stream->lock);
    code = stream->error.code;
    pthread_mutex_unlock(&stream->lock);
    return code;
}

uint64_t sim_tasks_run(sim_stream *stream, sim_task *first, uint64_t count)
{
    if (sim_option.delay_us > 0 && !stream->abandoned) {
        const struct timespec delay = {sim_option.delay_us / 1000000, sim_option.delay_us % 1000000 * 1000L};

        nanosleep(&delay, NULL);
        count = 1;
    }
    switch (first->kind) {
    case SIM_TASK_COPY: return stream->abandoned ? 1 : run_copies(stream, first, count);
    case SIM_TASK_RECORD: sim_record_done(first->record, pending_error(stream)); return 1;
    case SIM_TASK_WAIT: sim_record_wait(first->record, stream); return 1;
    }
    return 1;
}
