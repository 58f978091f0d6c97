/* UCX, opened at run time: the table of its functions. Nothing here links against it. */
#ifndef CACHEFW_RDMA_SHIM_H
#define CACHEFW_RDMA_SHIM_H

#include "rdma.h"
#include "ucp.h"

/* What one library offers. Never changed nor freed once it was handed out: UCX leaves threads and handlers behind, so
 * it can not be unloaded, and another thread may be calling through it. */
struct cfw_ucx {
    void    *handle;
    cfw_ucx *next;
    int      parallel; /* memory calls may run beside those of a worker */
#define UCP(result, name, params) result(*name) params;
#define UCP_OPTIONAL UCP
#include "ucp.def"
#undef UCP
#undef UCP_OPTIONAL
};

#endif
