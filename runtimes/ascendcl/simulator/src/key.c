/* Keys: the rows by which one process finds the memory of another. */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The first free row from one on; SIM_MAX_KEYS: none. */
static uint32_t find_row(sim_table *table, uint32_t from)
{
    while (from < table->num_rows && table->keys[from].kind != SIM_KEY_FREE) {
        ++from;
    }
    return from;
}

/* A key's number gives its row, so that looking one up costs no search. */
sim_key *sim_key_add(sim_table *table, const sim_key *key)
{
    uint32_t index = find_row(table, table->free_row);
    sim_key *row;

    if (index == SIM_MAX_KEYS) {
        index = find_row(table, 0); /* somebody was killed before he said which row he freed */
    }
    if (index == SIM_MAX_KEYS) {
        return NULL;
    }
    if (index >= table->num_rows) {
        table->num_rows = index + 1;
    }
    table->free_row = index + 1;
    row             = &table->keys[index];
    *row            = *key;
    row->kind       = SIM_KEY_FREE;
    row->pid        = sim_machine_slot()->pid;
    row->start      = sim_machine_slot()->start;
    row->number     = table->next_key++ * SIM_MAX_KEYS + index;
    snprintf(row->name, sizeof(row->name), "%08x%016llx%02x%02x", (unsigned)row->pid, (unsigned long long)row->number,
             (unsigned)row->device, 0u);
    atomic_thread_fence(memory_order_release);
    row->kind = key->kind;
    return row;
}

sim_key *sim_key_number(sim_table *table, sim_key_kind kind, uint64_t number)
{
    sim_key *row = &table->keys[number % SIM_MAX_KEYS];

    return row->kind == (uint32_t)kind && row->number == number ? row : NULL;
}

sim_key *sim_key_find(sim_table *table, sim_key_kind kind, const char *name)
{
    unsigned           pid;
    unsigned long long number;
    sim_key           *row;

    if (strnlen(name, SIM_KEY_LENGTH) >= SIM_KEY_LENGTH || sscanf(name, "%8x%16llx", &pid, &number) != 2) {
        return NULL;
    }
    row = sim_key_number(table, kind, number);
    return row != NULL && strcmp(row->name, name) == 0 ? row : NULL;
}

void sim_key_remove(sim_table *table, sim_key *key)
{
    const uint32_t index = (uint32_t)(key - table->keys);

    key->kind       = SIM_KEY_FREE;
    table->free_row = index < table->free_row ? index : table->free_row;
    while (table->num_rows > 0 && table->keys[table->num_rows - 1].kind == SIM_KEY_FREE) {
        table->num_rows--;
    }
}

bool sim_key_mine(const sim_key *key)
{
    const sim_slot *slot = sim_machine_slot();

    return key->pid == slot->pid && key->start == slot->start;
}

aclError sim_key_admit(sim_key *key, const int32_t *pids, size_t count)
{
    size_t admitted = 0;

    if (!sim_key_mine(key)) {
        return sim_fail(SIM_DRIVER_REFUSED, "only process %d, which made key %s, can admit others", key->pid,
                        key->name);
    }
    if (key->open_to_all) {
        return sim_fail(SIM_DRIVER_REFUSED, "key %s was exported without a list of processes", key->name);
    }
    if (key->num_pids + count > SIM_MAX_PIDS) {
        return sim_fail(SIM_DRIVER_REFUSED, "%zu processes on top of %u are more than %d", count, key->num_pids,
                        SIM_MAX_PIDS);
    }
    for (size_t index = 0; index < count; ++index) {
        unsigned row = 0;

        if (pids[index] <= 0 || pids[index] == key->pid) {
            continue; /* the driver passes these over */
        }
        while (row < key->num_pids && key->pids[row].pid != pids[index]) {
            ++row;
        }
        key->pids[row].pid   = pids[index];
        key->pids[row].ticks = sim_ticks_now();
        key->num_pids        = row < key->num_pids ? key->num_pids : row + 1;
        ++admitted;
    }
    return admitted > 0 ? ACL_SUCCESS
                        : sim_fail(SIM_DRIVER_REFUSED, "none of %zu is the pid of another process", count);
}

static aclError check_admitted(const sim_key *key)
{
    const sim_slot *slot = sim_machine_slot();

    if (key->open_to_all) {
        return ACL_SUCCESS;
    }
    for (unsigned row = 0; row < key->num_pids; ++row) {
        if (key->pids[row].pid == slot->pid) {
            /* A process younger than its entry is another one with a pid used again. */
            return slot->start <= key->pids[row].ticks
                       ? ACL_SUCCESS
                       : sim_fail(SIM_DRIVER_REFUSED, "pid %d was admitted to key %s before this process started",
                                  slot->pid, key->name);
        }
    }
    return sim_fail(SIM_DRIVER_REFUSED, "process %d is not among the %u admitted to key %s", slot->pid, key->num_pids,
                    key->name);
}

aclError sim_key_open(const sim_key *key, int *fd_p)
{
    aclError    code = check_admitted(key);
    char        path[48];
    struct stat info;
    int         fd;

    if (code != ACL_SUCCESS) {
        return code;
    }
    if (sim_process_started(key->pid) != key->start) {
        return sim_fail(SIM_DRIVER_REFUSED, "process %d, which exported key %s, is gone", key->pid, key->name);
    }
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", key->pid, key->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return sim_fail(SIM_DRIVER_REFUSED, "the memory of process %d can not be opened: %s", key->pid,
                        strerror(errno));
    }
    if (fstat(fd, &info) != 0 || info.st_ino != key->inode) {
        close(fd);
        return sim_fail(SIM_DRIVER_REFUSED, "process %d has closed the memory of key %s", key->pid, key->name);
    }
    *fd_p = fd;
    return ACL_SUCCESS;
}
