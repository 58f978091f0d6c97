/* The shim without Python, for the sanitizers: threads that call while libraries are opened and closed, and batches.
 * Arguments: a whole library, one without batches, one for linking only. */
#include "shim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

enum { ITEMS = 64, TURNS = 200, THREADS = 4 };

static cfw_acl_info info;
static atomic_int   done;

static void check_opening(char *const *paths)
{
    CHECK(cfw_acl_open("/nowhere/libascendcl.so", 0, &info) == CFW_ACL_NOT_LOADED && info.text[0] != '\0');
    CHECK(cfw_acl_open(paths[2], 0, &info) == CFW_ACL_STUB && info.missing == 0);
    CHECK(cfw_aclInit(NULL) == CFW_ACL_CLOSED && cfw_aclGetRecentErrMsg() == NULL);
    CHECK(cfw_acl_open(paths[1], 0, &info) == 0 && info.missing == 1 && info.device_count == 8);
    CHECK(strcmp(info.path, paths[1]) == 0 && info.version[1] == 16);
    CHECK(cfw_acl_open(paths[0], 0, &info) == CFW_ACL_BUSY);
    CHECK(cfw_aclrtMemcpyBatchAsync(NULL, NULL, NULL, NULL, 0, NULL, NULL, 0, NULL, NULL) == CFW_ACL_MISSING);
    for (uint32_t index = 0; index < cfw_acl_num_symbols(); ++index) {
        CHECK(cfw_acl_has(index) == (strcmp(cfw_acl_symbol(index), "aclrtMemcpyBatchAsync") != 0));
    }
    CHECK(cfw_acl_symbol(cfw_acl_num_symbols()) == NULL && !cfw_acl_has(cfw_acl_num_symbols()));
    cfw_acl_close();
    cfw_acl_close();
}

static void check_batch(aclrtContext context, int32_t kind, uint32_t batches)
{
    static _Thread_local char from[ITEMS], to[ITEMS];
    uint64_t                  dst[ITEMS], src[ITEMS], length[ITEMS];
    cfw_acl_copies            copies = {.context = context, .dst = dst, .src = src, .length = length,
                                        .count = ITEMS, .kind = kind};
    cfw_acl_result            result;

    for (int item = 0; item < ITEMS; ++item) {
        from[item]   = (char)item;
        to[item]     = -1;
        dst[item]    = (uint64_t)(uintptr_t)&to[item];
        src[item]    = (uint64_t)(uintptr_t)&from[ITEMS - 1 - item];
        length[item] = 1;
    }
    CHECK(cfw_acl_copy_batch(&copies, &result) == 0);
    CHECK(result.failed == ITEMS && result.issued == ITEMS && result.batches == batches && result.event == 0);
    for (int item = 0; item < ITEMS; ++item) {
        CHECK(to[item] == from[ITEMS - 1 - item]);
    }
}

static void *copy(void *context)
{
    for (int turn = 0; turn < TURNS; ++turn) {
        check_batch(context, ACL_MEMCPY_DEVICE_TO_DEVICE, 0);
    }
    return NULL;
}

static void check_copies(const char *path, uint32_t batches)
{
    aclrtContext context;
    pthread_t    threads[THREADS];

    CHECK(cfw_acl_open(path, 0, &info) == 0);
    CHECK(cfw_aclrtSetDevice(2) == 0 && cfw_aclrtGetCurrentContext(&context) == 0);
    CHECK(cfw_aclrtSetDevice(1) == 0);
    check_batch(context, ACL_MEMCPY_HOST_TO_DEVICE, batches);
    check_batch(NULL, ACL_MEMCPY_DEVICE_TO_HOST, batches);
    for (int index = 0; index < THREADS; ++index) {
        CHECK(pthread_create(&threads[index], NULL, copy, context) == 0);
    }
    for (int index = 0; index < THREADS; ++index) {
        pthread_join(threads[index], NULL);
    }
    CHECK(cfw_aclrtResetDevice(1) == 0 && cfw_aclrtResetDevice(2) == 0);
    cfw_acl_close();
}

static void *call(void *unused)
{
    int32_t part[3];

    (void)unused;
    while (!atomic_load(&done)) {
        int status = cfw_aclrtGetVersion(&part[0], &part[1], &part[2]);

        CHECK(status == 0 || status == CFW_ACL_CLOSED);
    }
    return NULL;
}

static void check_changing(char *const *paths)
{
    pthread_t threads[THREADS];

    for (int index = 0; index < THREADS; ++index) {
        CHECK(pthread_create(&threads[index], NULL, call, NULL) == 0);
    }
    for (int turn = 0; turn < TURNS; ++turn) {
        CHECK(cfw_acl_open(paths[turn % 2], 0, &info) == 0);
        cfw_acl_close();
    }
    atomic_store(&done, 1);
    for (int index = 0; index < THREADS; ++index) {
        pthread_join(threads[index], NULL);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 4);
    check_opening(argv + 1);
    check_copies(argv[1], 1);
    check_copies(argv[2], 0);
    check_changing(argv + 1);
    return 0;
}
