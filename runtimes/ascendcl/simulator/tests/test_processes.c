/* Processes that die, common capacity, strict mode, and that nothing stays behind. */
#include "peer.h"

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

static unsigned count_entries(const char *path)
{
    DIR     *directory = opendir(path);
    unsigned count     = 0;

    CHECK(directory != NULL);
    while (readdir(directory) != NULL) {
        ++count;
    }
    closedir(directory);
    return count;
}

static unsigned count_mappings(void)
{
    FILE    *maps = fopen("/proc/self/maps", "re");
    unsigned count = 0;
    char     line[512];

    CHECK(maps != NULL);
    while (fgets(line, sizeof(line), maps) != NULL) {
        count += strstr(line, "memfd:aclsim") != NULL;
    }
    fclose(maps);
    return count;
}

static void file_of(const char *machine, char *path, size_t size)
{
    snprintf(path, size, "/dev/shm/aclsim.%u.%zx.%s", (unsigned)getuid(), sizeof(sim_table), machine);
}

static void test_exporter_killed(void)
{
    char  *device = device_memory(4 * MIB), *view, second[65];
    peer   other = peer_start(1);
    size_t free_bytes, total;

    CHECK_EQUAL(peer_ask(&other, "alloc %zu", 4 * MIB), 0);
    CHECK_EQUAL(peer_ask(&other, "put 2 %zu", 4 * MIB), 0);
    CHECK_EQUAL(peer_ask(&other, "export %zu 1", 4 * MIB), 0);
    strcpy(second, other.text);
    CHECK_EQUAL(peer_ask(&other, "export %zu 1", 4 * MIB), 0);
    CHECK_OK(aclrtIpcMemImportByKey((void **)&view, other.text, 1));
    CHECK_OK(aclrtSetDevice(1));
    CHECK_OK(aclrtGetMemInfo(ACL_HBM_MEM, &free_bytes, &total));
    CHECK_EQUAL(total - free_bytes, 4 * MIB);
    peer_kill(&other);
    CHECK_OK(aclrtGetMemInfo(ACL_HBM_MEM, &free_bytes, &total));
    CHECK_EQUAL(total - free_bytes, 0);
    CHECK_OK(aclrtResetDevice(1));
    CHECK_OK(aclrtSetDevice(0));
    CHECK_EQUAL(stats().machine_exports, 0);
    /* Who has it keeps it; nobody else gets it. */
    CHECK_EQUAL(aclrtIpcMemImportByKey((void **)&device, second, 1), 507899);
    CHECK_OK(aclrtMemcpy(device, 4 * MIB, view, 4 * MIB, ACL_MEMCPY_DEVICE_TO_DEVICE));
    CHECK(same(device, 4 * MIB, 2));
    CHECK_OK(aclrtIpcMemClose(other.text));
    CHECK_OK(aclrtFree(device));
}

/* Killed before the import: refused also when nobody has cleaned up yet. */
static void test_killed_between(void)
{
    peer      other = peer_start(1);
    siginfo_t info;
    void     *view;

    CHECK_EQUAL(peer_ask(&other, "alloc %zu", 2 * MIB), 0);
    CHECK_EQUAL(peer_ask(&other, "export %zu 1", 2 * MIB), 0);
    /* Dead as soon as it is one, not when its parent has noticed. */
    CHECK_EQUAL(kill(other.pid, SIGKILL), 0);
    CHECK_EQUAL(waitid(P_PID, (id_t)other.pid, &info, WEXITED | WNOWAIT), 0);
    CHECK_EQUAL(aclrtIpcMemImportByKey(&view, other.text, 1), 507899);
    CHECK(strstr(aclGetRecentErrMsg(), "gone") != NULL);
    CHECK_EQUAL(stats().processes, 1);
    CHECK_EQUAL(peer_wait(&other), 128 + SIGKILL);
}

static void test_importer_killed(void)
{
    char   *device = device_memory(2 * MIB), key[65];
    peer    other  = peer_start(1), next;
    int32_t pid    = other.pid;

    CHECK_OK(aclrtIpcMemGetExportKey(device, 2 * MIB, key, 65, 0));
    CHECK_OK(aclrtIpcMemSetImportPid(key, &pid, 1));
    CHECK_EQUAL(peer_ask(&other, "import %s 1", key), 0);
    CHECK_EQUAL(stats().processes, 2);
    peer_kill(&other);
    CHECK_EQUAL(stats().processes, 1);
    next = peer_start(1);
    pid  = next.pid;
    put(device, 2 * MIB, 6);
    CHECK_OK(aclrtIpcMemSetImportPid(key, &pid, 1));
    CHECK_EQUAL(peer_ask(&next, "import %s 1", key), 0);
    CHECK_EQUAL(peer_ask(&next, "compare 6 %zu", 2 * MIB), 0);
    CHECK(strcmp(next.text, "1") == 0);
    CHECK_EQUAL(peer_end(&next), 0);
    CHECK_OK(aclrtFree(device));
}

static void test_capacity(void)
{
    const size_t half = 2048 * MIB;
    void        *device = NULL, *more = NULL;
    peer         other  = peer_start(0);

    CHECK_EQUAL(peer_ask(&other, "alloc %zu", half), 0);
    device = device_memory(half - 2 * MIB);
    CHECK_EQUAL(aclrtMallocAlign32(&more, 4 * MIB, ACL_MEM_MALLOC_HUGE_ONLY), 207001);
    CHECK_EQUAL(peer_ask(&other, "info"), 0);
    CHECK_EQUAL(atoll(other.text), 2 * MIB);
    CHECK_EQUAL(peer_ask(&other, "free"), 0);
    more = device_memory(half);
    CHECK_OK(aclrtFree(more));
    CHECK_EQUAL(peer_ask(&other, "alloc %zu", half), 0);
    CHECK_EQUAL(aclrtMallocAlign32(&more, half, ACL_MEM_MALLOC_HUGE_ONLY), 207001);
    peer_kill(&other);
    more = device_memory(half); /* what the dead one had */
    CHECK_OK(aclrtFree(more));
    CHECK_OK(aclrtFree(device));
}

/* The CPU and device memory. */
static void test_touch(void)
{
    static const char *const acts[] = {"touch", "poke"};

    for (unsigned index = 0; index < 2; ++index) {
        peer other = peer_start(0);

        CHECK_EQUAL(peer_ask(&other, "alloc %zu", 2 * MIB), 0);
        if (aclsimStrict()) {
            fprintf(other.out, "%s\n", acts[index]);
            fflush(other.out);
            CHECK_EQUAL(peer_wait(&other), 128 + SIGSEGV);
        } else {
            CHECK_EQUAL(peer_ask(&other, "%s", acts[index]), 0);
            CHECK_EQUAL(peer_end(&other), 0);
        }
    }
}

/* The same pid and the same start, and yet another program. */
static void test_exec(void)
{
    peer other = peer_start(0);

    CHECK_EQUAL(peer_ask(&other, "alloc %zu", 2 * MIB), 0);
    CHECK_EQUAL(peer_ask(&other, "export %zu 1", 2 * MIB), 0);
    CHECK_EQUAL(peer_ask(&other, "again"), 0);
    CHECK_EQUAL(peer_ask(&other, "device 0"), 0);
    CHECK_EQUAL(stats().processes, 2);
    CHECK_EQUAL(stats().machine_bytes, 0);
    CHECK_EQUAL(stats().machine_exports, 0);
    CHECK_EQUAL(peer_end(&other), 0);
}

static void test_rounds(void)
{
    char    *device = device_memory(2 * MIB), key[65];
    peer     other  = peer_start(1);
    int32_t  pid    = other.pid;
    unsigned files = 0, mappings = 0;

    put(device, 4096, 1);
    for (unsigned round = 0; round < 1000; ++round) {
        char *copy, *view;

        CHECK_OK(aclrtIpcMemGetExportKey(device, 2 * MIB, key, 65, 0));
        CHECK_OK(aclrtIpcMemSetImportPid(key, &pid, 1));
        CHECK_EQUAL(peer_ask(&other, "import %s 1", key), 0);
        CHECK_EQUAL(peer_ask(&other, "compare 1 4096"), 0);
        CHECK_EQUAL(peer_ask(&other, "close %s", key), 0);
        CHECK_OK(aclrtIpcMemClose(key));
        CHECK_EQUAL(peer_ask(&other, "alloc %zu", 2 * MIB), 0);
        CHECK_EQUAL(peer_ask(&other, "export %zu 1", 2 * MIB), 0);
        CHECK_OK(aclrtIpcMemImportByKey((void **)&view, other.text, 1));
        copy = device_memory(2 * MIB);
        CHECK_OK(aclrtMemcpy(copy, 4096, view, 4096, ACL_MEMCPY_DEVICE_TO_DEVICE));
        CHECK_OK(aclrtIpcMemClose(other.text));
        CHECK_EQUAL(peer_ask(&other, "free"), 0);
        CHECK_OK(aclrtFree(copy));
        if (round == 0) {
            files    = count_entries("/proc/self/fd");
            mappings = count_mappings();
        }
    }
    CHECK_EQUAL(count_entries("/proc/self/fd"), files);
    CHECK_EQUAL(count_mappings(), mappings);
    CHECK_EQUAL(stats().machine_exports, 0);
    CHECK_EQUAL(stats().machine_bytes, 2 * MIB);
    CHECK_EQUAL(stats().spaces, 1);
    CHECK_EQUAL(peer_end(&other), 0);
    CHECK_EQUAL(stats().processes, 1);
    CHECK_OK(aclrtFree(device));
}

/* What processes of one machine have to agree on. */
static void test_other_machine(void)
{
    peer other = peer_start(0);

    CHECK_EQUAL(stats().processes, 2);
    CHECK_EQUAL(peer_end(&other), 0);
    setenv("ACLSIM_HBM", "64M", 1); /* asks for another machine than the one there is */
    other = peer_spawn();
    CHECK_EQUAL(peer_ask(&other, "device 0"), 500003);
    CHECK_EQUAL(peer_end(&other), 0);
    unsetenv("ACLSIM_HBM");
}

/* A child of fork has neither the threads nor the memory, and is told so. */
static void test_fork(void)
{
    void *device = device_memory(2 * MIB);
    pid_t child  = fork();
    int   status, number;

    if (child == 0) {
        _exit(aclrtGetDevice(&number) == 500003 && aclGetRecentErrMsg() != NULL ? 0 : 1);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK_EQUAL(status, 0);
    put(device, 64, 1);
    CHECK_OK(aclrtFree(device));
}

static void test_files(const char *machine)
{
    char path[160], stray[160];
    peer other;

    file_of(machine, path, sizeof(path));
    CHECK(access(path, F_OK) == 0);
    /* A machine whose only process is killed leaves its file until anybody starts. */
    setenv("ACLSIM_MACHINE", "test-stray", 1);
    file_of("test-stray", stray, sizeof(stray));
    other = peer_start(0);
    CHECK(access(stray, F_OK) == 0);
    peer_kill(&other);
    CHECK(access(stray, F_OK) == 0);
    setenv("ACLSIM_MACHINE", machine, 1);
    other = peer_start(0);
    CHECK(access(stray, F_OK) != 0);
    CHECK_EQUAL(peer_end(&other), 0);
    CHECK(access(path, F_OK) == 0); /* this process still has it */
}

void test_processes(void)
{
    char machine[65], path[160];

    snprintf(machine, sizeof(machine), "%s", getenv("ACLSIM_MACHINE"));
    begin(0);
    test_exporter_killed();
    test_killed_between();
    test_importer_killed();
    test_capacity();
    test_touch();
    test_other_machine();
    test_fork();
    test_exec();
    test_files(machine);
    test_rounds();
    end();
    file_of(machine, path, sizeof(path));
    CHECK(access(path, F_OK) != 0);
}
