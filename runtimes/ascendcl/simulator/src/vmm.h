/* Physical memory, as vmm.c makes it and vmm_share.c passes it on. */
#ifndef CACHEFW_SIM_VMM_H
#define CACHEFW_SIM_VMM_H

#include "sim.h"

typedef struct {
    sim_object  object;
    size_t      size, page;
    int32_t     device;
    int         fd;
    uint64_t    inode;
    uint64_t    exported; /* number of its key; 0: none */
    bool        imported;
    atomic_bool mapped;
} sim_physical;

/* Is it on, and is there a context? */
aclError sim_vmm_check(void);

#define VMM_ENTER(_name)                                                                                               \
    do {                                                                                                               \
        aclError off_;                                                                                                 \
        SIM_ENTER(_name);                                                                                              \
        off_ = sim_vmm_check();                                                                                        \
        if (off_ != ACL_SUCCESS) {                                                                                     \
            return off_;                                                                                               \
        }                                                                                                              \
    } while (0)

aclError sim_physical_get(const void *handle, sim_physical **memory_p);
void     sim_physical_destroy(sim_object *object);

/* Give it a handle; it is destroyed when there is none left. */
aclError sim_physical_publish(sim_physical *memory, aclrtDrvMemHandle *handle);

#endif
