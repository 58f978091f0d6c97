/* Which processes live. A pid alone would do for the wrong process one day, so the time of its start goes with it. */
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t sim_process_started(int32_t pid)
{
    char               path[32], text[1024], state;
    const char        *rest;
    long               threads;
    unsigned long long start;
    ssize_t            length;
    int                fd;

    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    length = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (length <= 0) {
        return 0;
    }
    text[length] = '\0';
    rest         = strrchr(text, ')'); /* the name before it may hold anything */
    if (rest == NULL || sscanf(rest,
                               ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                               "%ld %*s %llu",
                               &state, &threads, &start) != 3) {
        return 0;
    }
    /* A main thread that ended before the others is a zombie too. */
    if (state == 'X' || (state == 'Z' && threads <= 1)) {
        return 0;
    }
    return start;
}

uint64_t sim_ticks_now(void)
{
    const uint64_t  per_second = (uint64_t)sysconf(_SC_CLK_TCK);
    struct timespec now;

    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * per_second + (uint64_t)now.tv_nsec * per_second / 1000000000u;
}
