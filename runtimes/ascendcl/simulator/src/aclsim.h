/* What the simulator offers beside AscendCL, for tests: faults, a look inside, and a way to tell it from the real
 * thing. Look the symbols up; a real runtime has none of them. */
#ifndef CACHEFW_ACLSIM_H
#define CACHEFW_ACLSIM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Always contains the word SIMULATED. */
const char *aclsimVersion(void);

/* Let the `nth` call of `function` from now on (1 is the next) return `code` and do nothing else; functions that return
 * a text return NULL. nth 0: every call. Each fault strikes once, except with nth 0. `function` is a name of the list,
 * `*` for any of them, or `task` for the nth copy that a stream executes, which then fails at synchronise.
 * Returns 0, or -1 when the name is unknown, nth is negative, code is 0, or 32 faults are waiting. */
int aclsimFail(const char *function, int nth, int code);

/* Forget all faults, put all links up and go on if paused. */
void aclsimClear(void);

/* Calls of `function` since the process started, -1 when there is none of that name. */
int64_t aclsimCalls(const char *function);

/* Cut (up = 0) or mend the link of two devices, for this process: copies between them fail with 507056.
 * Returns -1 when there are no such devices. */
int aclsimLink(int32_t device, int32_t peer, int up);

/* While paused, streams take tasks but execute none. A stream being destroyed does not wait for the end of it. */
void aclsimPause(int paused);

/* 1 in strict mode, 0 in open mode. */
int aclsimStrict(void);

/* What this process holds, and the devices' bytes over all processes. */
typedef struct {
    uint64_t size;          /* in: sizeof of what the caller knows; out: what was filled */
    uint64_t device_bytes;  /* of this process */
    uint64_t host_bytes;    /* aclrtMallocHost */
    uint64_t machine_bytes; /* device bytes of all processes */
    uint64_t capacity;      /* of all devices */
    uint64_t allocations;   /* device memory, physical memory included */
    uint64_t host_allocations;
    uint64_t registered;    /* aclrtHostRegister */
    uint64_t imports;
    uint64_t exports;       /* keys of this process */
    uint64_t machine_exports;
    uint64_t processes;
    uint64_t contexts;
    uint64_t streams;
    uint64_t events;
    uint64_t spaces;        /* taken ranges of the address windows */
    uint64_t device_window; /* where device memory begins in this process */
    uint64_t host_window;
} aclsimStatistics;

/* Returns 0, -1 when the simulator can not start, size is 0, or device (-1 for all) does not exist. With a device, the
 * byte counts are of that one. */
int aclsimStats(int32_t device, aclsimStatistics *statistics);

#ifdef __cplusplus
}
#endif

#endif
