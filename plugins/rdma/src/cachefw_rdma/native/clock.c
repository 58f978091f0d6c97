/* Deadlines, and waiting for a condition until one. */
#include "internal.h"

#define NANOSECONDS 1000000000

int cfw_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    int                status;

    status = pthread_condattr_init(&attr);
    if (status != 0) {
        return CFW_RDMA_SYSTEM;
    }
    status = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (status == 0) {
        status = pthread_cond_init(cond, &attr);
    }
    pthread_condattr_destroy(&attr);
    return status == 0 ? 0 : CFW_RDMA_SYSTEM;
}

const struct timespec *cfw_deadline(int64_t timeout_ns, struct timespec *storage)
{
    if (timeout_ns < 0) {
        return NULL;
    }
    clock_gettime(CLOCK_MONOTONIC, storage);
    storage->tv_sec  += timeout_ns / NANOSECONDS;
    storage->tv_nsec += timeout_ns % NANOSECONDS;
    if (storage->tv_nsec >= NANOSECONDS) {
        storage->tv_sec++;
        storage->tv_nsec -= NANOSECONDS;
    }
    return storage;
}

int64_t cfw_left(const struct timespec *deadline)
{
    struct timespec now;
    int64_t         left;

    if (deadline == NULL) {
        return -1;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    left = (int64_t)(deadline->tv_sec - now.tv_sec) * NANOSECONDS + (deadline->tv_nsec - now.tv_nsec);
    return left > 0 ? left : 0;
}

void cfw_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *deadline)
{
    if (deadline == NULL) {
        pthread_cond_wait(cond, lock);
    } else {
        pthread_cond_timedwait(cond, lock, deadline);
    }
}
