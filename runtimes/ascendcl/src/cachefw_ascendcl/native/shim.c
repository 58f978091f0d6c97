/* The library: loading it, the table of its functions, and the forwarders. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dlinfo */
#endif
#include "shim.h"

#include "acl.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every simulator has it and no runtime does: const char *(void), what it is in words. */
#define SIMULATOR_MARK "aclsimVersion"

typedef void (*cfw_function)(void);

#define ACL(name, params, args) CFW_INDEX_##name,
#define ACL_TEXT ACL
enum {
#include "acl.def"
    CFW_NUM_SYMBOLS
};
#undef ACL
#undef ACL_TEXT

#define ACL(name, params, args) #name,
#define ACL_TEXT ACL
static const char *const cfw_names[CFW_NUM_SYMBOLS] = {
#include "acl.def"
};
#undef ACL
#undef ACL_TEXT

/* What one library offers. Never changed nor freed once it was published: another thread may be calling through it. */
typedef struct cfw_table {
    void             *handle;
    struct cfw_table *next;
    cfw_function      functions[CFW_NUM_SYMBOLS];
} cfw_table;

static _Atomic(const cfw_table *) cfw_current;
static pthread_mutex_t            cfw_lock = PTHREAD_MUTEX_INITIALIZER; /* of opening, closing and the list */
static cfw_table                 *cfw_tables;

static inline const cfw_table *cfw_table_get(void)
{
    return atomic_load_explicit(&cfw_current, memory_order_acquire);
}

/* ---- forwarders ---------------------------------------------------------------------------------------------- */

#define ACL(name, params, args)                                                 \
    aclError cfw_##name params                                                  \
    {                                                                           \
        const cfw_table *table = cfw_table_get();                               \
                                                                                \
        if (table == NULL) {                                                    \
            return CFW_ACL_CLOSED;                                              \
        }                                                                       \
        if (table->functions[CFW_INDEX_##name] == NULL) {                       \
            return CFW_ACL_MISSING;                                             \
        }                                                                       \
        return ((aclError (*) params)table->functions[CFW_INDEX_##name])args;   \
    }
#define ACL_TEXT(name, params, args)                                            \
    const char *cfw_##name params                                               \
    {                                                                           \
        const cfw_table *table = cfw_table_get();                               \
                                                                                \
        if (table == NULL || table->functions[CFW_INDEX_##name] == NULL) {      \
            return NULL;                                                        \
        }                                                                       \
        return ((const char *(*) params)table->functions[CFW_INDEX_##name])args; \
    }
#include "acl.def"
#undef ACL
#undef ACL_TEXT

/* The types of the forwarders are those of acl.h, which the simulator implements. */
#define ACL(name, params, args) \
    _Static_assert(__builtin_types_compatible_p(__typeof__(name), __typeof__(cfw_##name)), #name);
#define ACL_TEXT ACL
#include "acl.def"
#undef ACL
#undef ACL_TEXT

/* ---- opening ------------------------------------------------------------------------------------------------- */

static void cfw_text_set(char *text, size_t size, const char *value)
{
    snprintf(text, size, "%s", value == NULL ? "" : value);
}

/* The table of a library, a new one unless it was open before. The handle belongs to it afterwards. */
static cfw_table *cfw_table_find(void *handle)
{
    cfw_table *table;

    for (table = cfw_tables; table != NULL; table = table->next) {
        if (table->handle == handle) {
            dlclose(handle); /* one reference is enough */
            return table;
        }
    }
    table = calloc(1, sizeof(*table));
    if (table == NULL) {
        return NULL;
    }
    table->handle = handle;
    for (uint32_t index = 0; index < CFW_NUM_SYMBOLS; ++index) {
        void *address = dlsym(handle, cfw_names[index]);

        memcpy(&table->functions[index], &address, sizeof(address));
    }
    return table;
}

static void cfw_info_simulator(void *handle, cfw_acl_info *info)
{
    void *address = dlsym(handle, SIMULATOR_MARK);
    const char *(*text)(void);

    if (address != NULL) {
        memcpy(&text, &address, sizeof(address));
        info->simulated = 1;
        cfw_text_set(info->text, sizeof(info->text), text());
    }
}

static void cfw_info_path(void *handle, cfw_acl_info *info)
{
    struct link_map *map = NULL;

    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != NULL) {
        cfw_text_set(info->path, sizeof(info->path), map->l_name);
    }
}

/* Ask what every real runtime answers without being initialised. The libraries that the toolkit ships for linking have
 * all the functions and load without a driver, but answer each call with one code. */
static int cfw_table_look(const cfw_table *table, uint32_t flags, cfw_acl_info *info)
{
    cfw_function version = table->functions[CFW_INDEX_aclrtGetVersion];
    cfw_function count   = table->functions[CFW_INDEX_aclrtGetDeviceCount];

    for (uint32_t index = 0; index < CFW_NUM_SYMBOLS; ++index) {
        info->missing += table->functions[index] == NULL;
    }
    if (info->missing == CFW_NUM_SYMBOLS) {
        return CFW_ACL_FOREIGN;
    }
    cfw_info_simulator(table->handle, info);
    if (info->simulated && !(flags & CFW_ACL_ALLOW_SIMULATOR)) {
        return CFW_ACL_SIMULATED;
    }
    if (version != NULL) {
        info->version_status = ((__typeof__(aclrtGetVersion) *)version)(&info->version[0], &info->version[1],
                                                                        &info->version[2]);
    }
    if (info->version_status == ACL_ERROR_COMPILING_STUB_MODE) {
        return CFW_ACL_STUB;
    }
    if (count != NULL) {
        info->count_status = ((__typeof__(aclrtGetDeviceCount) *)count)(&info->device_count);
    }
    return info->count_status == ACL_ERROR_COMPILING_STUB_MODE ? CFW_ACL_STUB : 0;
}

static int cfw_is_listed(const cfw_table *table)
{
    const cfw_table *other = cfw_tables;

    while (other != NULL && other != table) {
        other = other->next;
    }
    return other != NULL;
}

static int cfw_open_locked(const char *path, uint32_t flags, cfw_acl_info *info)
{
    cfw_table *table;
    void      *handle;
    int        status;

    if (cfw_table_get() != NULL) {
        return CFW_ACL_BUSY;
    }
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        cfw_text_set(info->text, sizeof(info->text), dlerror());
        return CFW_ACL_NOT_LOADED;
    }
    cfw_info_path(handle, info);
    table = cfw_table_find(handle);
    if (table == NULL) {
        dlclose(handle);
        return CFW_ACL_NO_MEMORY;
    }
    status = cfw_table_look(table, flags, info);
    if (status == 0) {
        if (!cfw_is_listed(table)) {
            table->next = cfw_tables;
            cfw_tables  = table;
        }
        atomic_store_explicit(&cfw_current, table, memory_order_release);
    } else if (!cfw_is_listed(table)) {
        free(table);
        dlclose(handle);
    }
    return status;
}

int cfw_acl_open(const char *path, uint32_t flags, cfw_acl_info *info_p)
{
    int status;

    memset(info_p, 0, sizeof(*info_p));
    info_p->version_status = CFW_ACL_MISSING;
    info_p->count_status   = CFW_ACL_MISSING;
    pthread_mutex_lock(&cfw_lock);
    status = cfw_open_locked(path, flags, info_p);
    pthread_mutex_unlock(&cfw_lock);
    return status;
}

void cfw_acl_close(void)
{
    pthread_mutex_lock(&cfw_lock);
    atomic_store_explicit(&cfw_current, NULL, memory_order_release);
    pthread_mutex_unlock(&cfw_lock);
}

uint32_t cfw_acl_num_symbols(void)
{
    return CFW_NUM_SYMBOLS;
}

const char *cfw_acl_symbol(uint32_t index)
{
    return index < CFW_NUM_SYMBOLS ? cfw_names[index] : NULL;
}

void *cfw_acl_lookup(const char *name)
{
    const cfw_table *table = cfw_table_get();

    return table == NULL ? NULL : dlsym(table->handle, name);
}

int cfw_acl_has(uint32_t index)
{
    const cfw_table *table = cfw_table_get();

    return table != NULL && index < CFW_NUM_SYMBOLS && table->functions[index] != NULL;
}
