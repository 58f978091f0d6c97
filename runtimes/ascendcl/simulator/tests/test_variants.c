/* The three libraries as a loader sees them. */
#include "acl.h"
#include "aclsim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(_condition)                                                                                              \
    do {                                                                                                               \
        if (!(_condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #_condition);                                           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static const char *const names[] = {
#define ACL(name, params, args) #name,
#define ACL_TEXT(name, params, args) #name,
#include "acl.def"
};

int main(int argc, char **argv)
{
    void *libraries[3];

    CHECK(argc == 4);
    for (unsigned index = 0; index < 3; ++index) {
        libraries[index] = dlopen(argv[index + 1], RTLD_NOW | RTLD_LOCAL);
        if (libraries[index] == NULL) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
    }
    for (unsigned index = 0; index < sizeof(names) / sizeof(names[0]); ++index) {
        CHECK(dlsym(libraries[0], names[index]) != NULL);
        CHECK(dlsym(libraries[2], names[index]) != NULL);
    }
    CHECK(dlsym(libraries[1], "aclrtMalloc") != NULL && dlsym(libraries[1], "aclrtMemcpyBatchAsync") != NULL);
    CHECK(dlsym(libraries[1], "aclrtIpcMemGetExportKey") == NULL);
    CHECK(dlsym(libraries[1], "aclrtPointerGetAttributes") == NULL);
    CHECK(dlsym(libraries[0], "aclsimVersion") != NULL && dlsym(libraries[2], "aclsimVersion") == NULL);
    CHECK(dlsym(libraries[0], "sim_fail") == NULL && dlsym(libraries[0], "sim_machine_lock") == NULL);
    CHECK(((aclError(*)(const char *))dlsym(libraries[2], "aclInit"))(NULL) == ACL_ERROR_COMPILING_STUB_MODE);
    CHECK(((aclError(*)(const char *))dlsym(libraries[0], "aclInit"))(NULL) == ACL_SUCCESS);
    dlclose(libraries[0]);
    return 0;
}
