/* The library: loading it, looking at it, and the table of its functions. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dlinfo */
#endif
#include "shim.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t cfw_lock = PTHREAD_MUTEX_INITIALIZER; /* of opening, and of the list */
static cfw_ucx        *cfw_libraries;

static void set_text(char *text, size_t size, const char *value)
{
    snprintf(text, size, "%s", value == NULL ? "" : value);
}

/* Data and function pointers are of one size wherever dlsym exists. */
static void look_up(cfw_ucx *ucx, const char *name, void *slot, int optional, cfw_ucx_info *info)
{
    void *address = dlsym(ucx->handle, name);

    memcpy(slot, &address, sizeof(address));
    if (address == NULL && !optional) {
        if (info->missing == 0) {
            set_text(info->lacks, sizeof(info->lacks), name);
        }
        info->missing++;
    }
}

static int look_at(cfw_ucx *ucx, cfw_ucx_info *info)
{
    ucp_lib_attr attr = {.mask = UCP_LIB_MAX_THREAD_LEVEL};
    unsigned     version[3] = {0, 0, 0};

#define UCP(result, name, params) look_up(ucx, #name, &ucx->name, 0, info);
#define UCP_OPTIONAL(result, name, params) look_up(ucx, #name, &ucx->name, 1, info);
#include "ucp.def"
#undef UCP
#undef UCP_OPTIONAL
    /* A library that is merely old still says how old. */
    if (ucx->ucp_get_version != NULL) {
        ucx->ucp_get_version(&version[0], &version[1], &version[2]);
        for (int part = 0; part < 3; ++part) {
            info->version[part] = version[part];
        }
        if (version[0] < CFW_UCX_MAJOR || (version[0] == CFW_UCX_MAJOR && version[1] < CFW_UCX_MINOR)) {
            return CFW_RDMA_TOO_OLD;
        }
    }
    if (info->missing > 0) {
        return CFW_RDMA_FOREIGN;
    }
    info->parallel = ucx->ucp_lib_query(&attr) == UCP_OK && attr.max_thread_level >= UCP_THREAD_MULTI;
    ucx->parallel  = info->parallel;
    return 0;
}

static int open_locked(const char *path, cfw_ucx_info *info, cfw_ucx **ucx_p)
{
    struct link_map *map = NULL;
    cfw_ucx         *ucx;
    int              status;

    ucx = calloc(1, sizeof(*ucx));
    if (ucx == NULL) {
        return CFW_RDMA_NO_MEMORY;
    }
    ucx->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (ucx->handle == NULL) {
        set_text(info->text, sizeof(info->text), dlerror());
        free(ucx);
        return CFW_RDMA_NOT_LOADED;
    }
    if (dlinfo(ucx->handle, RTLD_DI_LINKMAP, &map) == 0 && map != NULL) {
        set_text(info->path, sizeof(info->path), map->l_name);
    }
    status = look_at(ucx, info);
    if (status != 0) {
        dlclose(ucx->handle);
        free(ucx);
        return status;
    }
    for (cfw_ucx *other = cfw_libraries; other != NULL; other = other->next) {
        if (other->handle == ucx->handle) {
            dlclose(ucx->handle); /* one reference is enough */
            free(ucx);
            *ucx_p = other;
            return 0;
        }
    }
    ucx->next     = cfw_libraries;
    cfw_libraries = ucx;
    *ucx_p        = ucx;
    return 0;
}

int cfw_ucx_open(const char *path, cfw_ucx_info *info_p, cfw_ucx **ucx_p)
{
    int status;

    memset(info_p, 0, sizeof(*info_p));
    pthread_mutex_lock(&cfw_lock);
    status = open_locked(path, info_p, ucx_p);
    pthread_mutex_unlock(&cfw_lock);
    return status;
}

const char *cfw_ucx_text(const cfw_ucx *ucx, int status)
{
    const char *text = NULL;

    if (status <= 1 && status > UCP_LAST_ERROR) {
        text = ucx->ucs_status_string((ucp_status)status);
    }
    return text == NULL ? "" : text;
}
