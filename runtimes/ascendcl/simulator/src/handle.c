/* Handles. A number with its own generation in it, so that a stale or foreign one is recognised, whatever is at the
 * address it would be. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#define TAG ((uint64_t)0x5ac1 << 48) /* no address has these bits */
#define INDEX_BITS 20
#define GENERATION_BITS 28

typedef struct {
    sim_object *object;
    uint32_t    generation;
    uint32_t    next; /* free one */
} row;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static row            *rows;
static uint32_t        num_rows, first_free; /* first_free == num_rows: none */
static size_t          counts[SIM_NUM_KINDS];

void sim_object_init(sim_object *object, sim_kind kind, void (*destroy)(sim_object *))
{
    object->kind    = kind;
    object->destroy = destroy;
    atomic_init(&object->refs, 1);
}

void sim_object_keep(sim_object *object)
{
    atomic_fetch_add_explicit(&object->refs, 1, memory_order_relaxed);
}

void sim_object_put(sim_object *object)
{
    if (object != NULL && atomic_fetch_sub_explicit(&object->refs, 1, memory_order_acq_rel) == 1) {
        object->destroy(object);
    }
}

static bool grow(void)
{
    const uint32_t more  = num_rows == 0 ? 64 : num_rows;
    row           *grown = num_rows + more > 1u << INDEX_BITS ? NULL : realloc(rows, (num_rows + more) * sizeof(row));

    if (grown == NULL) {
        return false;
    }
    rows = grown;
    for (uint32_t index = num_rows; index < num_rows + more; ++index) {
        rows[index] = (row){NULL, 1, index + 1};
    }
    num_rows += more;
    return true;
}

void *sim_handle_add(sim_object *object)
{
    uint64_t handle = 0;

    pthread_mutex_lock(&lock);
    if (first_free < num_rows || grow()) {
        const uint32_t index = first_free;

        first_free         = rows[index].next;
        rows[index].object = object;
        counts[object->kind]++;
        handle = TAG | (uint64_t)rows[index].generation << INDEX_BITS | index;
    }
    pthread_mutex_unlock(&lock);
    return (void *)(uintptr_t)handle;
}

/* With the lock held. */
static row *find(sim_kind kind, const void *handle)
{
    const uint64_t number     = (uintptr_t)handle;
    const uint32_t index      = (uint32_t)(number & ((1u << INDEX_BITS) - 1));
    const uint32_t generation = (uint32_t)(number >> INDEX_BITS) & ((1u << GENERATION_BITS) - 1);

    if (number >> 48 != TAG >> 48 || index >= num_rows || rows[index].object == NULL ||
        rows[index].generation != generation || rows[index].object->kind != kind) {
        return NULL;
    }
    return &rows[index];
}

static sim_object *release(row *of)
{
    sim_object *object = of->object;

    counts[object->kind]--;
    of->object     = NULL;
    of->generation = of->generation % ((1u << GENERATION_BITS) - 1) + 1;
    of->next       = first_free;
    first_free     = (uint32_t)(of - rows);
    return object;
}

sim_object *sim_handle_get(sim_kind kind, const void *handle)
{
    sim_object *object = NULL;
    row        *found;

    pthread_mutex_lock(&lock);
    found = find(kind, handle);
    if (found != NULL) {
        object = found->object;
        sim_object_keep(object);
    }
    pthread_mutex_unlock(&lock);
    return object;
}

sim_object *sim_handle_remove(sim_kind kind, const void *handle)
{
    sim_object *object = NULL;
    row        *found;

    pthread_mutex_lock(&lock);
    found = find(kind, handle);
    if (found != NULL) {
        object = release(found);
    }
    pthread_mutex_unlock(&lock);
    return object;
}

sim_object *sim_handle_remove_any(sim_kind kind, bool (*matches)(const sim_object *, const void *), const void *what)
{
    sim_object *object = NULL;

    pthread_mutex_lock(&lock);
    for (uint32_t index = 0; index < num_rows && object == NULL; ++index) {
        if (rows[index].object != NULL && rows[index].object->kind == kind && matches(rows[index].object, what)) {
            object = release(&rows[index]);
        }
    }
    pthread_mutex_unlock(&lock);
    return object;
}

sim_object *sim_handle_next(sim_kind kind, bool (*matches)(const sim_object *, const void *), const void *what,
                            uint32_t *from_p)
{
    sim_object *object = NULL;

    pthread_mutex_lock(&lock);
    for (; *from_p < num_rows && object == NULL; ++*from_p) {
        sim_object *each = rows[*from_p].object;

        if (each != NULL && each->kind == kind && matches(each, what)) {
            object = each;
            sim_object_keep(object);
        }
    }
    pthread_mutex_unlock(&lock);
    return object;
}

size_t sim_handle_count(sim_kind kind)
{
    size_t count;

    pthread_mutex_lock(&lock);
    count = counts[kind];
    pthread_mutex_unlock(&lock);
    return count;
}
