/*
 * HIXL, opened at run time. Nothing here links against it.
 *
 * Every function of hixl.def has a forwarder with the prefix cfw_, which answers the vendor's status, or one of our own
 * codes, which are negative. Every function may be called from any thread as far as HIXL allows it. Out-arguments end
 * in _p.
 *
 * With CACHEFW_HIXL_CDEF defined the preprocessor makes from this file what cffi reads.
 */
#ifndef CACHEFW_HIXL_SHIM_H
#define CACHEFW_HIXL_SHIM_H

#include "hixl_types.h"

enum {
    CFW_HIXL_MISSING    = -1, /* the open library has no such function */
    CFW_HIXL_CLOSED     = -2, /* no library is open */
    CFW_HIXL_BUSY       = -3, /* a library is open already */
    CFW_HIXL_NOT_LOADED = -4, /* the loader refused the file; `text` says why */
    CFW_HIXL_FOREIGN    = -5, /* loaded, but not one function of HIXL is in it */
    CFW_HIXL_STOPPED    = -6, /* cfw_hixl_stop was called, and something was dropped */
    CFW_HIXL_BAD_STATE  = -7  /* a transfer ended in a state that is not COMPLETED; `state` has it */
};

/* ---- the library --------------------------------------------------------------------------------------------- */

typedef struct {
    uint32_t missing;    /* functions of hixl.def that are not in it */
    char     path[4096]; /* as the loader knows it */
    char     text[512];  /* the loader's message */
} cfw_hixl_info;

/* Load the library that all forwarders call. The info is written in either case. */
int cfw_hixl_open(const char *path, cfw_hixl_info *info_p);

/* From now on forwarders answer CFW_HIXL_CLOSED. The file stays mapped, since HIXL has threads of its own. */
void cfw_hixl_close(void);

/* The functions of hixl.def: how many, the name of one (NULL past the end), and whether the open library has it. */
uint32_t cfw_hixl_num_symbols(void);
const char *cfw_hixl_symbol(uint32_t index);
int cfw_hixl_has(uint32_t index);

/* ---- transfers ----------------------------------------------------------------------------------------------- */

typedef struct {
    void                    *client;
    const HixlOneSideOpDesc *pieces;
    uint64_t                 count;
    uint32_t                 chunk;     /* pieces of one call */
    uint32_t                 in_flight; /* calls under way at once, at most 16 */
    int32_t                  put;       /* 1 writes to the peer, 0 reads from it */
    int32_t                  stop;      /* see cfw_hixl_stop */
} cfw_hixl_job;

typedef struct {
    int64_t  status;    /* 0, HIXL's, or one of our own */
    int32_t  state;     /* the last HixlCompleteStatus that ended the job */
    uint32_t unsettled; /* calls of which bytes may still move */
    uint64_t done;      /* pieces known to have moved */
    uint64_t failed;    /* first piece of the call that failed; `count` when none did */
} cfw_hixl_result;

/* Move all pieces and return when all have settled, or when one call failed, or at a stop: then `unsettled` counts the
 * calls that nobody knows the end of, and only destroying the client ends them. */
void cfw_hixl_run(cfw_hixl_job *job, cfw_hixl_result *result_p);

enum {
    CFW_STOP_CANCEL  = 1, /* issue no further call, and return when those under way have settled */
    CFW_STOP_ABANDON = 2  /* return soon, whatever is under way */
};

/* Make a run end early. From any thread, any number of times. */
void cfw_hixl_stop(cfw_hixl_job *job, int how);

/* ---- forwarders ---------------------------------------------------------------------------------------------- */

#define HIXL(name, params, args) int64_t cfw_##name params;
#include "hixl.def"
#undef HIXL

#endif
