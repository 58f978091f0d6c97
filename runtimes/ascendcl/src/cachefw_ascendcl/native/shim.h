/*
 * AscendCL, opened at run time. Nothing here links against it.
 *
 * Every function of acl.def has a forwarder with the prefix cfw_, which answers what the vendor's function answers, or
 * CFW_ACL_MISSING when the open library lacks it, or CFW_ACL_CLOSED when no library is open. Forwarders that return a
 * text answer NULL in both cases.
 *
 * Every function may be called from any thread. Out-arguments end in _p.
 *
 * With CACHEFW_ACL_CDEF defined the preprocessor makes from this file what cffi reads.
 */
#ifndef CACHEFW_ACL_SHIM_H
#define CACHEFW_ACL_SHIM_H

#include "acl_types.h"

/* Our own status codes, which no vendor code comes near. */
enum {
    CFW_ACL_MISSING      = -900001, /* the open library has no such function */
    CFW_ACL_CLOSED       = -900002, /* no library is open */
    CFW_ACL_BUSY         = -900003, /* a library is open already */
    CFW_ACL_NOT_LOADED   = -900004, /* the loader refused the file; `text` says why */
    CFW_ACL_FOREIGN      = -900005, /* loaded, but not one function of AscendCL is in it */
    CFW_ACL_STUB         = -900006, /* the toolkit's library for linking only */
    CFW_ACL_SIMULATED    = -900007, /* a simulator, and CFW_ACL_ALLOW_SIMULATOR was not given */
    CFW_ACL_NO_MEMORY    = -900008
};

/* ---- the library --------------------------------------------------------------------------------------------- */

enum { CFW_ACL_ALLOW_SIMULATOR = 1 };

typedef struct {
    int32_t  version_status; /* what aclrtGetVersion answered */
    int32_t  version[3];     /* of the programming interface; 0 unless that was 0 */
    int32_t  count_status;   /* what aclrtGetDeviceCount answered: the first call that needs a driver */
    uint32_t device_count;
    uint32_t missing;        /* functions of acl.def that are not in it */
    int32_t  simulated;      /* 1: an emulation */
    char     path[4096];     /* as the loader knows it */
    char     text[512];      /* the loader's message, or the simulator's own text */
} cfw_acl_info;

/* Load, look at, and make the library that all forwarders call. 0 or one of the codes above; the info is written in
 * either case. A library that was refused is unloaded again. */
int cfw_acl_open(const char *path, uint32_t flags, cfw_acl_info *info_p);

/* From now on forwarders answer CFW_ACL_CLOSED; calls that are under way end in the library they began in. It stays
 * mapped for the life of the process, since a runtime has threads of its own; opened again, it goes on where it was. */
void cfw_acl_close(void);

/* The functions of acl.def: how many, the name of one (NULL past the end), and whether the open library has it. */
uint32_t    cfw_acl_num_symbols(void);
const char *cfw_acl_symbol(uint32_t index);
int         cfw_acl_has(uint32_t index);

/* The address of anything else in the open library, or NULL: what a simulator offers besides. */
void *cfw_acl_lookup(const char *name);

#define ACL(name, params, args) aclError cfw_##name params;
#define ACL_TEXT(name, params, args) const char *cfw_##name params;
#include "acl.def"
#undef ACL
#undef ACL_TEXT

/* ---- contexts: one call instead of several ------------------------------------------------------------------- */

/* Make `context` the calling thread's. `previous_p` gets what to give back: NULL when the thread had none, or had this
 * one already. Written also on failure. */
int cfw_acl_enter(aclrtContext context, aclrtContext *previous_p);

/* Give back what cfw_acl_enter found. With NULL nothing changes: AscendCL cannot take a context away. */
int cfw_acl_leave(aclrtContext previous);

/* ---- copies --------------------------------------------------------------------------------------------------- */

enum { CFW_ACL_NO_BATCH = 1 }; /* one call per item even where the runtime has batches */

typedef struct {
    aclrtContext    context; /* current during the call, the thread's own is back afterwards; NULL: leave it alone */
    aclrtStream     stream;
    aclrtEvent      event;   /* recorded behind the last copy that was issued; NULL: none */
    const uint64_t *dst;     /* `count` addresses each */
    const uint64_t *src;
    const uint64_t *length;  /* 0 is allowed */
    uint64_t        count;
    int32_t         kind;    /* aclrtMemcpyKind */
    uint32_t        flags;
} cfw_acl_copies;

typedef struct {
    int32_t  status;  /* of the first failure in order, or 0 */
    int32_t  event;   /* what recording the event answered; 0 without an event */
    uint64_t failed;  /* index of the first failing item; `count` when none is at fault */
    uint64_t issued;  /* items that may be moving now, or were moved */
    uint32_t batches; /* calls of aclrtMemcpyBatchAsync */
} cfw_acl_result;

/*
 * Issue all copies, in order, in one call and without allocating. Stops at the first that is refused: what was issued
 * before is under way, so the event is recorded in that case too. Copies between host and device go through
 * aclrtMemcpyBatchAsync where the library has it, which knows no order within a batch and no other direction; if the
 * runtime says that it does not support that, and for all others, through aclrtMemcpyAsync one by one. Returns the
 * status; the result is always written.
 */
int cfw_acl_copy_batch(const cfw_acl_copies *copies, cfw_acl_result *result_p);

#endif
