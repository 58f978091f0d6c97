/* The memory this process can name, by address. Tasks hold references, so that memory freed while it is copied stays
 * until the copy ends: the hardware would corrupt something, the simulator must not crash. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

/* Registrations lie over memory of any owner, that of aclrtMallocHost too, so they have a list of their own. */
typedef struct {
    sim_region **regions; /* in order of their addresses */
    size_t       count, room;
} list;

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static list             lists[2]; /* what is the runtime's, what is registered */

static list *list_of(sim_region_kind kind)
{
    return &lists[kind == SIM_REGISTERED];
}

/* The first region that ends after the address. */
static size_t find(const list *in, uintptr_t address)
{
    size_t low = 0, high = in->count;

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (in->regions[middle]->base + in->regions[middle]->size <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void take_out(list *from, size_t index)
{
    from->count--;
    memmove(from->regions + index, from->regions + index + 1, (from->count - index) * sizeof(*from->regions));
}

static sim_region *keep(sim_region *region)
{
    atomic_fetch_add_explicit(&region->refs, 1, memory_order_relaxed);
    return region;
}

bool sim_region_add(sim_region *region)
{
    list  *into  = list_of(region->kind);
    bool   added = false;
    size_t index;

    pthread_rwlock_wrlock(&lock);
    if (into->count == into->room) {
        const size_t room  = into->room * 2 + 64;
        sim_region **grown = realloc(into->regions, room * sizeof(*grown));

        if (grown != NULL) {
            into->regions = grown;
            into->room    = room;
        }
    }
    index = find(into, region->base);
    if (into->count < into->room &&
        (index == into->count || region->base + region->size <= into->regions[index]->base)) {
        memmove(into->regions + index + 1, into->regions + index, (into->count - index) * sizeof(*into->regions));
        into->regions[index] = region;
        into->count++;
        atomic_store(&region->refs, 1);
        added = true;
    }
    pthread_rwlock_unlock(&lock);
    return added;
}

sim_region *sim_region_get_any(uintptr_t base, size_t size)
{
    sim_region *region = NULL;

    pthread_rwlock_rdlock(&lock);
    for (unsigned each = 0; each < 2 && region == NULL; ++each) {
        const list  *in    = &lists[each];
        const size_t index = find(in, base);

        if (index < in->count && (in->regions[index]->base <= base || in->regions[index]->base - base < size)) {
            region = keep(in->regions[index]);
        }
    }
    pthread_rwlock_unlock(&lock);
    return region;
}

sim_region *sim_region_get(uintptr_t address)
{
    return sim_region_get_any(address, 1);
}

bool sim_region_remove(sim_region *region)
{
    list  *from = list_of(region->kind);
    size_t index;
    bool   found;

    pthread_rwlock_wrlock(&lock);
    index = find(from, region->base);
    found = index < from->count && from->regions[index] == region;
    if (found) {
        take_out(from, index);
    }
    pthread_rwlock_unlock(&lock);
    return found;
}

void sim_region_put(sim_region *region)
{
    if (region != NULL && atomic_fetch_sub_explicit(&region->refs, 1, memory_order_acq_rel) == 1) {
        region->destroy(region);
    }
}

sim_region *sim_region_find(sim_region_kind kind, bool (*matches)(const sim_region *, const void *), const void *what)
{
    const list *in     = list_of(kind);
    sim_region *region = NULL;

    pthread_rwlock_rdlock(&lock);
    for (size_t index = 0; index < in->count && region == NULL; ++index) {
        if (in->regions[index]->kind == kind && matches(in->regions[index], what)) {
            region = keep(in->regions[index]);
        }
    }
    pthread_rwlock_unlock(&lock);
    return region;
}

static sim_region *take_any(list *from, int32_t device)
{
    sim_region *region = NULL;

    pthread_rwlock_wrlock(&lock);
    for (size_t index = from->count; index > 0 && region == NULL; --index) {
        sim_region *each = from->regions[index - 1];
        const bool  host = each->kind == SIM_HOST_MEMORY || each->kind == SIM_REGISTERED;

        if (device < 0 || (!host && each->home == device)) {
            region = each;
            take_out(from, index - 1);
        }
    }
    pthread_rwlock_unlock(&lock);
    return region;
}

void sim_region_clear(int32_t device)
{
    for (unsigned each = 0; each < 2; ++each) {
        for (sim_region *region; (region = take_any(&lists[each], device)) != NULL;) {
            sim_region_put(region);
        }
    }
}

size_t sim_region_count(sim_region_kind kind, uint64_t *bytes_p)
{
    const list *in    = list_of(kind);
    size_t      count = 0;
    uint64_t    bytes = 0;

    pthread_rwlock_rdlock(&lock);
    for (size_t index = 0; index < in->count; ++index) {
        if (in->regions[index]->kind == kind) {
            ++count;
            bytes += in->regions[index]->size;
        }
    }
    pthread_rwlock_unlock(&lock);
    if (bytes_p != NULL) {
        *bytes_p = bytes;
    }
    return count;
}
