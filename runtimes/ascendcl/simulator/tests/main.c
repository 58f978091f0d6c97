/* Runs the group its argument names, or plays the other process of one. */
#include "check.h"

#include <signal.h>
#include <unistd.h>

_Noreturn void check_failed(const char *file, int line, const char *what)
{
    const char *text = aclGetRecentErrMsg();

    fprintf(stderr, "%s:%d: %s [%s]\n", file, line, what, text != NULL ? text : "");
    _exit(1);
}

aclsimStatistics stats(void)
{
    aclsimStatistics found = {.size = sizeof(found)};

    CHECK_EQUAL(aclsimStats(-1, &found), 0);
    return found;
}

void begin(int32_t device)
{
    CHECK_OK(aclInit(NULL));
    CHECK_OK(aclrtSetDevice(device));
}

void end(void)
{
    aclsimStatistics left = stats();

    CHECK_EQUAL(left.allocations, 0);
    CHECK_EQUAL(left.device_bytes, 0);
    CHECK_EQUAL(left.host_allocations, 0);
    CHECK_EQUAL(left.registered, 0);
    CHECK_EQUAL(left.imports, 0);
    CHECK_EQUAL(left.exports, 0);
    CHECK_EQUAL(left.events, 0);
    CHECK_EQUAL(left.spaces, 0);
    aclsimClear();
    CHECK_OK(aclFinalize());
}

void *device_memory(size_t size)
{
    void *memory = NULL;

    CHECK_OK(aclrtMallocAlign32(&memory, size, ACL_MEM_MALLOC_HUGE_ONLY));
    return memory;
}

void *host_memory(size_t size)
{
    void *memory = NULL;

    CHECK_OK(aclrtMallocHost(&memory, size));
    return memory;
}

void fill(void *memory, size_t size, unsigned seed)
{
    unsigned char *byte = memory;

    for (size_t at = 0; at < size; ++at) {
        byte[at] = (unsigned char)(1 + (at * 7 + at / 251 + seed * 31) % 255);
    }
}

void put(void *device, size_t size, unsigned seed)
{
    char *bytes = malloc(size);

    CHECK(bytes != NULL);
    fill(bytes, size, seed);
    CHECK_OK(aclrtMemcpy(device, size, bytes, size, ACL_MEMCPY_HOST_TO_DEVICE));
    free(bytes);
}

int same(const void *device, size_t size, unsigned seed)
{
    char *bytes = malloc(size), *wanted = malloc(size);
    int   equal;

    CHECK(bytes != NULL && wanted != NULL);
    fill(wanted, size, seed);
    CHECK_OK(aclrtMemcpy(bytes, size, device, size, ACL_MEMCPY_DEVICE_TO_HOST));
    equal = memcmp(bytes, wanted, size) == 0;
    free(bytes);
    free(wanted);
    return equal;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } groups[] = {
        {"calls", test_calls},   {"memory", test_memory}, {"copies", test_copies},       {"streams", test_streams},
        {"faults", test_faults}, {"shared", test_shared}, {"processes", test_processes}, {"vmm", test_vmm},
    };
    char machine[65];

    if (argc > 1 && strcmp(argv[1], "peer") == 0) {
        signal(SIGPIPE, SIG_IGN);
        return peer_main(argc - 2, argv + 2);
    }
    signal(SIGPIPE, SIG_IGN);
    for (size_t index = 0; index < sizeof(groups) / sizeof(groups[0]); ++index) {
        if (argc < 2 || strcmp(argv[1], groups[index].name) == 0) {
            snprintf(machine, sizeof(machine), "test-%s-%d", groups[index].name, (int)getpid());
            setenv("ACLSIM_MACHINE", machine, 1);
            groups[index].run();
            printf("%s: ok\n", groups[index].name);
        }
    }
    return 0;
}
