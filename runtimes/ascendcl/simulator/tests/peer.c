/* The two ends of peer.h. */
#define _GNU_SOURCE
#include "peer.h"

#include <fcntl.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE 110 /* seconds: nothing may outlive a test */

peer peer_spawn(void)
{
    peer other = {0};
    int  to[2], from[2];

    CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
    other.pid = fork();
    CHECK(other.pid >= 0);
    if (other.pid == 0) {
        dup2(to[0], STDIN_FILENO);
        dup2(from[1], STDOUT_FILENO);
        execl("/proc/self/exe", "test_simulator", "peer", NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    other.out = fdopen(to[1], "w");
    other.in  = fdopen(from[0], "r");
    CHECK(other.in != NULL && other.out != NULL);
    return other;
}

peer peer_start(int32_t device)
{
    peer other = peer_spawn();

    CHECK_EQUAL(peer_ask(&other, "device %d", device), ACL_SUCCESS);
    return other;
}

int peer_ask(peer *other, const char *format, ...)
{
    char    line[256];
    va_list arguments;
    int     code = -1;

    va_start(arguments, format);
    vfprintf(other->out, format, arguments);
    va_end(arguments);
    fputc('\n', other->out);
    fflush(other->out);
    CHECK(fgets(line, sizeof(line), other->in) != NULL);
    other->text[0] = '\0';
    CHECK(sscanf(line, "%d %127s", &code, other->text) >= 1);
    return code;
}

int peer_wait(peer *other)
{
    int status;

    CHECK_EQUAL(waitpid(other->pid, &status, 0), other->pid);
    fclose(other->in);
    fclose(other->out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int peer_end(peer *other)
{
    fputs("end\n", other->out);
    fflush(other->out);
    return peer_wait(other);
}

void peer_kill(peer *other)
{
    CHECK_EQUAL(kill(other->pid, SIGKILL), 0);
    CHECK_EQUAL(peer_wait(other), 128 + SIGKILL);
}

/* ---- the other end ----------------------------------------------------------------------------------------------- */

static void *memory, *imported;

static void answer(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void answer(int code, const char *format, ...)
{
    va_list arguments;

    printf("%d ", code);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
    (void)aclGetRecentErrMsg();
}

/* Copy from what was imported to memory of this device, by a stream, and look. */
static void compare(unsigned seed, size_t size)
{
    void    *copy = NULL;
    int      equal = 0;
    aclError code = aclrtMallocAlign32(&copy, size, ACL_MEM_MALLOC_HUGE_FIRST);

    if (code == ACL_SUCCESS) {
        code = aclrtMemcpyAsync(copy, size, imported, size, ACL_MEMCPY_DEVICE_TO_DEVICE, NULL);
    }
    if (code == ACL_SUCCESS) {
        code = aclrtSynchronizeStream(NULL);
    }
    if (code == ACL_SUCCESS) {
        equal = same(copy, size, seed);
    }
    if (copy != NULL) {
        CHECK_OK(aclrtFree(copy));
    }
    answer(code, "%d", equal);
}

/* Map physical memory of another process, look, and give all back. */
static void compare_physical(uint64_t number, unsigned seed, size_t size)
{
    aclrtDrvMemHandle handle;
    int               equal = 0;
    aclError          code  = aclrtMemImportFromShareableHandle(number, 0, &handle);

    if (code == ACL_SUCCESS) {
        CHECK_OK(aclrtReserveMemAddress(&imported, size, 0, NULL, 0));
        CHECK_OK(aclrtMapMem(imported, size, 0, handle, 0));
        CHECK_OK(aclrtFreePhysical(handle));
        equal = same(imported, size, seed);
        CHECK_OK(aclrtUnmapMem(imported));
        CHECK_OK(aclrtReleaseMemAddress(imported));
    }
    answer(code, "%d", equal);
}

static void obey(const char *line)
{
    char     key[80] = "";
    unsigned first = 0, seed = 0;
    size_t   size = 0, total;
    int32_t  pid;
    unsigned long long number;

    if (sscanf(line, "physical %llu %u %zu", &number, &seed, &size) == 3) {
        compare_physical(number, seed, size);
    } else if (sscanf(line, "device %u", &first) == 1) {
        answer(aclrtSetDevice((int32_t)first), "-");
    } else if (sscanf(line, "alloc %zu", &size) == 1) {
        int code = aclrtMallocAlign32(&memory, size, ACL_MEM_MALLOC_HUGE_ONLY);

        answer(code, "-");
    } else if (strncmp(line, "free", 4) == 0) {
        answer(aclrtFree(memory), "-");
    } else if (sscanf(line, "put %u %zu", &seed, &size) == 2) {
        put(memory, size, seed);
        answer(0, "-");
    } else if (sscanf(line, "export %zu %u", &size, &first) == 2) {
        int code = aclrtIpcMemGetExportKey(memory, size, key, sizeof(key), first);

        answer(code, "%s", code == 0 ? key : "-");
    } else if (sscanf(line, "admit %79s %d", key, &pid) == 2) {
        answer(aclrtIpcMemSetImportPid(key, &pid, 1), "-");
    } else if (sscanf(line, "import %79s %u", key, &first) == 2) {
        answer(aclrtIpcMemImportByKey(&imported, key, first), "-");
    } else if (sscanf(line, "compare %u %zu", &seed, &size) == 2) {
        compare(seed, size);
    } else if (sscanf(line, "close %79s", key) == 1) {
        answer(aclrtIpcMemClose(key), "-");
    } else if (strncmp(line, "info", 4) == 0) {
        int code = aclrtGetMemInfo(ACL_HBM_MEM, &size, &total);

        answer(code, "%zu", size);
    } else if (strncmp(line, "pid", 3) == 0) {
        int code = aclrtDeviceGetBareTgid(&pid);

        answer(code, "%d", pid);
    } else if (strncmp(line, "touch", 5) == 0) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer would answer otherwise */
        signal(SIGBUS, SIG_DFL);
        answer(*(volatile char *)memory & 0, "-");
    } else if (strncmp(line, "again", 5) == 0) {
        answer(0, "-");
        execl("/proc/self/exe", "test_simulator", "peer", NULL);
        _exit(127);
    } else if (strncmp(line, "poke", 4) == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile char *)memory = 1;
        answer(0, "-");
    } else {
        answer(-1, "-");
    }
}

int peer_main(int argc, char **argv)
{
    char line[256];

    (void)argc;
    (void)argv;
    alarm(PATIENCE);
    while (fgets(line, sizeof(line), stdin) != NULL && strncmp(line, "end", 3) != 0) {
        obey(line);
    }
    return 0; /* without aclFinalize: the library has to notice by itself */
}
