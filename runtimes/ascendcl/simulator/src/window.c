/* The two ranges of addresses that tell device memory, pinned host memory and anything else apart.
 *
 * They are where the driver has them, if they can be; under a sanitizer, which needs those addresses itself, they are
 * wherever there is room. In strict mode the device window stays closed and the simulator copies through a second
 * window of the same size: nothing the user does with a device pointer can meet a moment in which it is open. */
#define _GNU_SOURCE
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NO_MEMORY (PROT_NONE), (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

typedef struct {
    uintptr_t base;
    size_t    size;
} space;

static struct {
    uintptr_t base, data; /* data: of the second window, or the same */
    size_t    size;
    uintptr_t next;
    space    *spaces; /* taken, in order */
    size_t    count, room;
} windows[SIM_NUM_WINDOWS] = {
    [SIM_WINDOW_DEVICE] = {.base = 0x100000000000, .size = (size_t)8 << 40},
    [SIM_WINDOW_HOST]   = {.base = 0x70000000000, .size = (size_t)1 << 40},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool            reserved;

/* At an address, if not 0, or anywhere on a giant page. */
static uintptr_t reserve(uintptr_t wanted, size_t size)
{
    void *base;

    if (wanted != 0) {
        base = mmap((void *)wanted, size, NO_MEMORY | MAP_FIXED_NOREPLACE, -1, 0);
        if (base != MAP_FAILED && (uintptr_t)base != wanted) { /* a kernel that does not know the flag */
            munmap(base, size);
            base = MAP_FAILED;
        }
        return base == MAP_FAILED ? 0 : wanted;
    }
    base = mmap(NULL, size + SIM_GIANT_PAGE, NO_MEMORY, -1, 0);
    return base == MAP_FAILED ? 0 : sim_round_up((uintptr_t)base, SIM_GIANT_PAGE);
}

static bool reserve_window(sim_window window, bool twice)
{
    uintptr_t base = reserve(windows[window].base, windows[window].size);

    for (size_t size = windows[window].size; base == 0 && size > SIM_GIANT_PAGE; size /= 2) {
        base                 = reserve(0, size);
        windows[window].size = size;
    }
    windows[window].base = base;
    windows[window].data = base;
    if (base != 0 && twice) {
        windows[window].data = reserve(0, windows[window].size);
        while (windows[window].data == 0 && windows[window].size > SIM_GIANT_PAGE) {
            windows[window].size /= 2;
            windows[window].data = reserve(0, windows[window].size);
        }
    }
    (void)madvise((void *)base, windows[window].size, MADV_DONTFORK);
    if (windows[window].data != base) {
        (void)madvise((void *)windows[window].data, windows[window].size, MADV_DONTFORK);
    }
    return base != 0 && windows[window].data != 0;
}

aclError sim_window_start(void)
{
    static bool second;

    if (sysconf(_SC_PAGESIZE) != (long)SIM_PAGE) {
        return sim_fail(ACL_ERROR_RT_FAILURE, "this system's pages are of %ld bytes, not of %zu", sysconf(_SC_PAGESIZE),
                        SIM_PAGE);
    }
    pthread_mutex_lock(&lock);
    if (!reserved) {
        reserved = reserve_window(SIM_WINDOW_DEVICE, sim_option.strict) && reserve_window(SIM_WINDOW_HOST, false);
        second   = sim_option.strict;
        for (unsigned window = 0; window < SIM_NUM_WINDOWS; ++window) {
            /* An address that means the same in every process would hide that it does not on the hardware. */
            windows[window].next = windows[window].base + (size_t)getpid() % 4096 * (SIM_GIANT_PAGE / 4) %
                                                              (windows[window].size / 2);
        }
    }
    pthread_mutex_unlock(&lock);
    if (!reserved) {
        return sim_fail(ACL_ERROR_RT_FAILURE, "the address space has no room for the windows");
    }
    if (second != sim_option.strict) {
        return sim_fail(ACL_ERROR_RT_FAILURE, "ACLSIM_MODE can not change within a process");
    }
    return ACL_SUCCESS;
}

bool sim_window_holds(sim_window window, uintptr_t address)
{
    return address - windows[window].base < windows[window].size;
}

uintptr_t sim_window_base(sim_window window)
{
    return windows[window].base;
}

size_t sim_window_spaces(void)
{
    size_t count;

    pthread_mutex_lock(&lock);
    count = windows[SIM_WINDOW_DEVICE].count + windows[SIM_WINDOW_HOST].count;
    pthread_mutex_unlock(&lock);
    return count;
}

/* The first taken space that ends after the address. */
static size_t find_space(sim_window window, uintptr_t address)
{
    size_t low = 0, high = windows[window].count;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (windows[window].spaces[middle].base + windows[window].spaces[middle].size <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static uintptr_t fit(sim_window window, uintptr_t from, uintptr_t end, size_t size, size_t alignment, size_t phase)
{
    size_t index = find_space(window, from);

    for (uintptr_t at = from;;) {
        at = sim_round_up(at - phase, alignment) + phase;
        if (at < from || at > end || end - at < size) {
            return 0;
        }
        if (index == windows[window].count || at + size <= windows[window].spaces[index].base) {
            return at;
        }
        at = windows[window].spaces[index].base + windows[window].spaces[index].size;
        ++index;
    }
}

static bool insert(sim_window window, uintptr_t base, size_t size)
{
    size_t index = find_space(window, base);

    if (windows[window].count == windows[window].room) {
        size_t room  = windows[window].room * 2 + 64;
        space *grown = realloc(windows[window].spaces, room * sizeof(space));

        if (grown == NULL) {
            return false;
        }
        windows[window].spaces = grown;
        windows[window].room   = room;
    }
    memmove(windows[window].spaces + index + 1, windows[window].spaces + index,
            (windows[window].count - index) * sizeof(space));
    windows[window].spaces[index] = (space){base, size};
    windows[window].count++;
    return true;
}

uintptr_t sim_window_take(sim_window window, size_t size, size_t alignment, size_t phase, uintptr_t wanted)
{
    const uintptr_t begin = windows[window].base, end = begin + windows[window].size;
    const size_t    guarded = sim_round_up(size, SIM_PAGE) + SIM_PAGE;
    uintptr_t       base    = 0;

    if (size > windows[window].size) {
        return 0;
    }
    pthread_mutex_lock(&lock);
    if (wanted >= begin && wanted < end) {
        base = fit(window, wanted, end, guarded, 1, 0);
        base = base == wanted ? base : 0;
    }
    if (base == 0) {
        base = fit(window, windows[window].next, end, guarded, alignment, phase);
    }
    if (base == 0) {
        base = fit(window, begin + alignment, end, guarded, alignment, phase);
    }
    if (base != 0 && !insert(window, base, guarded)) {
        base = 0;
    }
    if (base != 0 && base != wanted) {
        windows[window].next = base + guarded;
    }
    pthread_mutex_unlock(&lock);
    return base;
}

void sim_window_release(sim_window window, uintptr_t base, size_t size)
{
    size_t index;

    if (window == SIM_WINDOW_DEVICE) {
        sim_window_unmap(base, size);
    } else {
        (void)mmap((void *)base, size, NO_MEMORY | MAP_FIXED, -1, 0);
        (void)madvise((void *)base, size, MADV_DONTFORK);
    }
    pthread_mutex_lock(&lock);
    index = find_space(window, base);
    if (index < windows[window].count && windows[window].spaces[index].base == base) {
        windows[window].count--;
        memmove(windows[window].spaces + index, windows[window].spaces + index + 1,
                (windows[window].count - index) * sizeof(space));
    }
    pthread_mutex_unlock(&lock);
}

static char *data_of(uintptr_t base)
{
    return (char *)(base - windows[SIM_WINDOW_DEVICE].base + windows[SIM_WINDOW_DEVICE].data);
}

char *sim_window_map(uintptr_t base, size_t size, size_t page, int fd, size_t offset)
{
    char *data = data_of(base);

    if (mmap(data, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) == MAP_FAILED) {
        return NULL;
    }
    (void)madvise(data, size, MADV_DONTFORK);
    if (page >= SIM_HUGE_PAGE && !sim_option.small_pages) {
        (void)madvise(data, size, MADV_HUGEPAGE);
    }
    return data;
}

void sim_window_unmap(uintptr_t base, size_t size)
{
    (void)mmap(data_of(base), size, NO_MEMORY | MAP_FIXED, -1, 0);
    (void)madvise(data_of(base), size, MADV_DONTFORK);
}
