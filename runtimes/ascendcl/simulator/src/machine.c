/* The file that all processes of one emulated machine map: its devices, who uses how much of them, and the keys.
 *
 * Nothing but this file has a name. Emulated memory is in memfds, which the kernel frees with their last user, so that
 * a killed process costs nothing but its rows here; whoever looks next takes those away. The file itself goes with the
 * last process that leaves in peace, and otherwise with the next one that starts, on whatever machine.
 *
 * The lock is flock, because the kernel gives it back for the dead. Every row has one word that makes it valid, written
 * last and cleared first: a process killed half way leaves no half row. */
#define _GNU_SOURCE
#include "sim.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x41434c53494d0001u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sim_table      *table;
static sim_slot       *slot;
static int             table_fd = -1;
static char            path[256];

static int lock_file(int fd, int operation)
{
    int status;

    do {
        status = flock(fd, operation);
    } while (status != 0 && errno == EINTR);
    return status;
}

/* Open and lock; false when there is no such file, or, not waiting, when another has the lock. */
static bool open_locked(const char *name, int flags, int operation, int *fd_p)
{
    struct stat opened, named;

    for (;;) {
        int fd = open(name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | flags, 0600);

        if (fd < 0) {
            return false;
        }
        if (lock_file(fd, operation) != 0) {
            close(fd);
            return false;
        }
        /* It may have been removed between the two. */
        if (fstat(fd, &opened) == 0 && stat(name, &named) == 0 && opened.st_ino == named.st_ino &&
            opened.st_dev == named.st_dev) {
            *fd_p = fd;
            return true;
        }
        close(fd);
    }
}

static sim_table *map_table(int fd)
{
    void *mapped = mmap(NULL, sizeof(sim_table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    return mapped == MAP_FAILED ? NULL : mapped;
}

static bool alive(const sim_slot *each)
{
    return each->pid != 0 && sim_process_started(each->pid) == each->start;
}

static bool deserted(const sim_table *of)
{
    for (unsigned index = 0; index < SIM_MAX_PROCESSES; ++index) {
        if (alive(&of->slots[index])) {
            return false;
        }
    }
    return true;
}

static void remove_keys(sim_table *of, const sim_slot *owner)
{
    for (uint32_t row = of->num_rows; row > 0; --row) {
        sim_key *key = &of->keys[row - 1];

        if (key->kind != SIM_KEY_FREE && key->pid == owner->pid && key->start == owner->start) {
            sim_key_remove(of, key);
        }
    }
}

void sim_machine_reap(sim_table *of)
{
    for (unsigned index = 0; index < SIM_MAX_PROCESSES; ++index) {
        sim_slot *each = &of->slots[index];

        /* One with this process's own pid is of the program that it was before exec. */
        if (each->pid != 0 && each != slot && (each->pid == getpid() || !alive(each))) {
            remove_keys(of, each);
            each->pid = 0;
        }
    }
}

/* Remove the files that killed processes of other machines left. */
static void sweep(const char *own)
{
    DIR           *directory = opendir(sim_option.directory);
    struct dirent *entry;
    char           prefix[48], name[sizeof(path)];

    snprintf(prefix, sizeof(prefix), "aclsim.%u.%zx.", (unsigned)getuid(), sizeof(sim_table));
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        struct stat info;
        int         fd;

        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0 ||
            snprintf(name, sizeof(name), "%s/%s", sim_option.directory, entry->d_name) >= (int)sizeof(name) ||
            strcmp(name, own) == 0 || !open_locked(name, 0, LOCK_EX | LOCK_NB, &fd)) {
            continue;
        }
        if (fstat(fd, &info) == 0 && info.st_size == (off_t)sizeof(sim_table)) {
            sim_table *other = map_table(fd);

            if (other != NULL && deserted(other)) {
                unlink(name);
            }
            if (other != NULL) {
                munmap(other, sizeof(sim_table));
            }
        }
        close(fd);
    }
    if (directory != NULL) {
        closedir(directory);
    }
}

static void build(sim_table *new)
{
    new->magic    = 0;
    new->devices  = sim_option.devices;
    new->hbm      = sim_option.hbm;
    new->next_key = 1;
    memcpy(new->soc, sim_option.soc, sizeof(new->soc));
    for (unsigned index = 0; index < SIM_MAX_PROCESSES; ++index) {
        new->slots[index].pid = 0;
    }
    for (uint32_t row = 0; row < new->num_rows && row < SIM_MAX_KEYS; ++row) {
        new->keys[row].kind = SIM_KEY_FREE;
    }
    new->num_rows = 0;
    new->free_row = 0;
    new->magic = MAGIC;
}

/* The first process decides what the machine is like; the others take it as it is, unless they ask for another. */
static aclError agree(const sim_table *with)
{
    if ((sim_option.devices_given && sim_option.devices != with->devices) ||
        (sim_option.hbm_given && sim_option.hbm != with->hbm) ||
        (sim_option.soc_given && strcmp(sim_option.soc, with->soc) != 0)) {
        return sim_fail(ACL_ERROR_RT_FAILURE,
                        "machine '%s' runs with %u devices of type %s with %llu bytes; this process asks for others: "
                        "name another with ACLSIM_MACHINE",
                        sim_option.machine, with->devices, with->soc, (unsigned long long)with->hbm);
    }
    sim_option.devices = with->devices;
    sim_option.hbm     = with->hbm;
    memcpy(sim_option.soc, with->soc, sizeof(sim_option.soc));
    return ACL_SUCCESS;
}

static aclError enter(sim_table *into)
{
    aclError code;

    if (into->magic == MAGIC) {
        sim_machine_reap(into);
    }
    if (into->magic != MAGIC || deserted(into)) {
        build(into);
    }
    code = agree(into);
    if (code != ACL_SUCCESS) {
        return code;
    }
    for (unsigned index = 0; index < SIM_MAX_PROCESSES; ++index) {
        sim_slot *each = &into->slots[index];

        if (each->pid == 0) {
            memset(each->used, 0, sizeof(each->used));
            each->start = sim_process_started(getpid());
            atomic_thread_fence(memory_order_release);
            each->pid = getpid();
            slot      = each;
            return ACL_SUCCESS;
        }
    }
    return sim_fail(ACL_ERROR_RT_RESOURCE_ALLOC_FAIL, "%d processes use machine '%s' already", SIM_MAX_PROCESSES,
                    sim_option.machine);
}

aclError sim_machine_attach(void)
{
    sim_table *mapped;
    aclError   code = ACL_SUCCESS;
    int        fd;

    /* Simulators of another build lay the file out differently: to them it is another machine. */
    snprintf(path, sizeof(path), "%s/aclsim.%u.%zx.%s", sim_option.directory, (unsigned)getuid(), sizeof(sim_table),
             sim_option.machine);
    sweep(path);
    if (!open_locked(path, O_CREAT, LOCK_EX, &fd)) {
        return sim_fail(ACL_ERROR_RT_FAILURE, "%s: %s", path, strerror(errno));
    }
    if (ftruncate(fd, sizeof(sim_table)) != 0 || (mapped = map_table(fd)) == NULL) {
        code = sim_fail(ACL_ERROR_RT_FAILURE, "%s: %s", path, strerror(errno));
        goto err_close;
    }
    (void)madvise(mapped, sizeof(sim_table), MADV_DONTFORK);
    code = enter(mapped);
    if (code != ACL_SUCCESS) {
        goto err_unmap;
    }
    lock_file(fd, LOCK_UN);
    pthread_mutex_lock(&lock);
    table    = mapped;
    table_fd = fd;
    pthread_mutex_unlock(&lock);
    return ACL_SUCCESS;

err_unmap:
    munmap(mapped, sizeof(sim_table));
err_close:
    close(fd);
    return code;
}

void sim_machine_detach(void)
{
    if (sim_machine_lock() == NULL) {
        return;
    }
    remove_keys(table, slot);
    slot->pid = 0;
    if (deserted(table)) {
        unlink(path);
    }
    munmap(table, sizeof(sim_table));
    table = NULL;
    slot  = NULL;
    close(table_fd); /* and with it the lock */
    table_fd = -1;
    pthread_mutex_unlock(&lock);
}

sim_table *sim_machine_lock(void)
{
    pthread_mutex_lock(&lock);
    if (table == NULL) {
        pthread_mutex_unlock(&lock);
        return NULL;
    }
    lock_file(table_fd, LOCK_EX);
    return table;
}

void sim_machine_unlock(void)
{
    lock_file(table_fd, LOCK_UN);
    pthread_mutex_unlock(&lock);
}

sim_slot *sim_machine_slot(void)
{
    return slot;
}

uint64_t sim_machine_used(const sim_table *of, int32_t device)
{
    uint64_t used = 0;

    for (unsigned index = 0; index < SIM_MAX_PROCESSES; ++index) {
        used += of->slots[index].pid != 0 ? of->slots[index].used[device] : 0;
    }
    return used;
}

aclError sim_charge(int32_t device, uint64_t bytes)
{
    sim_table *locked = sim_machine_lock();
    uint64_t   used;

    if (locked == NULL) {
        return sim_fail(ACL_ERROR_UNINITIALIZE, "the runtime was finalized meanwhile");
    }
    used = sim_machine_used(locked, device);
    if (bytes > locked->hbm || used > locked->hbm - bytes) {
        sim_machine_reap(locked);
        used = sim_machine_used(locked, device);
    }
    if (bytes > locked->hbm || used > locked->hbm - bytes) {
        uint64_t hbm = locked->hbm;

        sim_machine_unlock();
        return sim_fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "%llu bytes do not fit on device %d: %llu of %llu are in use",
                        (unsigned long long)bytes, device, (unsigned long long)used, (unsigned long long)hbm);
    }
    slot->used[device] += bytes;
    sim_machine_unlock();
    return ACL_SUCCESS;
}

void sim_refund(int32_t device, uint64_t bytes)
{
    if (sim_machine_lock() != NULL) {
        slot->used[device] -= bytes < slot->used[device] ? bytes : slot->used[device];
        sim_machine_unlock();
    }
}
