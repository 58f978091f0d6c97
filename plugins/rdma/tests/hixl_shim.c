/*
 * A stand-in for HIXL: the same functions over memory of one process, with the rules of the real one. Bytes move when a
 * transfer is asked after, so what is never asked after never moves, and a destroyed client's transfers are gone.
 *
 * shim_* are the test's own: faults, delays, and counts of what is alive.
 */
#include "hixl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64
#define MAGIC_SERVER 0x5e4e4u
#define MAGIC_CLIENT 0xc11e47u
#define MAGIC_CALL 0xca11u

typedef struct memory {
    struct memory *next;
    CommMem        mem;
    char           tag[64];
} memory;

typedef struct {
    uint32_t     magic;
    char         ip[64];
    uint32_t     port;
    int          listening;
    EndpointDesc endpoint;
    memory      *memories;
} server;

typedef struct call {
    uint32_t           magic;
    struct call       *next;
    int                put;
    uint32_t           count;
    int                polls;
    HixlOneSideOpDesc *pieces;
} call;

typedef struct {
    uint32_t       magic;
    HixlClientDesc desc;
    char           ip[64];
    EndpointDesc   remote_endpoint;
    server        *peer;
    memory        *memories;
    call          *calls;
    CommMem       *list;
    char         **tags;
} client;

static server *servers[MOST];

/* ---- what the test sets and reads ---------------------------------------------------------------------------- */

static struct {
    char     function[64];
    uint32_t status;
    int      after; /* calls that pass first */
} fault;
static int      polls_needed;
static int      end_state = HIXL_COMPLETE_STATUS_COMPLETED;
static int      most_calls = 1000;
static int      handles, memories_alive, calls_alive;
static int      most_seen, issued;
static uint8_t  seen_tc, seen_sl;
static uint32_t seen_timeout;
static int      hold; /* transfers never complete */

void shim_fail(const char *function, uint32_t status, int after)
{
    snprintf(fault.function, sizeof(fault.function), "%s", function);
    fault.status = status;
    fault.after  = after;
}

void shim_reset(void)
{
    memset(&fault, 0, sizeof(fault));
    polls_needed = 0;
    end_state    = HIXL_COMPLETE_STATUS_COMPLETED;
    most_calls   = 1000;
    most_seen = issued = hold = 0;
}

void shim_polls(int polls) { polls_needed = polls; }
void shim_end_state(int state) { end_state = state; }
void shim_most_calls(int most) { most_calls = most; }
void shim_hold(int on) { __atomic_store_n(&hold, on, __ATOMIC_SEQ_CST); }
int  shim_handles(void) { return handles; }
int  shim_memories(void) { return memories_alive; }
int  shim_calls(void) { return __atomic_load_n(&calls_alive, __ATOMIC_SEQ_CST); }
int  shim_most_seen(void) { return most_seen; }
int  shim_issued(void) { return __atomic_load_n(&issued, __ATOMIC_SEQ_CST); }
int  shim_tc_sl(void) { return seen_tc << 8 | seen_sl; }
uint32_t shim_timeout(void) { return seen_timeout; }

static uint32_t faulty(const char *function)
{
    if (strcmp(function, fault.function) != 0) {
        return 0;
    }
    return fault.after-- > 0 ? 0 : fault.status;
}

#define FAULT()                                  \
    do {                                         \
        uint32_t status_ = faulty(__func__);     \
        if (status_ != 0) {                      \
            return status_;                      \
        }                                        \
    } while (0)
#define DEMAND(condition)               \
    do {                                \
        if (!(condition)) {             \
            return HIXL_PARAM_INVALID;  \
        }                               \
    } while (0)

/* ---- memory -------------------------------------------------------------------------------------------------- */

static HixlStatus memory_add(memory **list, const char *tag, const CommMem *mem, HixlMemHandle *handle)
{
    uint64_t begin = (uint64_t)(uintptr_t)mem->addr;
    memory  *made;

    DEMAND(mem->addr != NULL && mem->size > 0 && begin + mem->size > begin);
    DEMAND(mem->type == COMM_MEM_TYPE_HOST || mem->type == COMM_MEM_TYPE_DEVICE);
    for (memory *other = *list; other != NULL; other = other->next) {
        uint64_t start = (uint64_t)(uintptr_t)other->mem.addr;

        DEMAND(begin >= start + other->mem.size || begin + mem->size <= start);
    }
    made = calloc(1, sizeof(*made));
    made->mem  = *mem;
    made->next = *list;
    snprintf(made->tag, sizeof(made->tag), "%s", tag == NULL ? "" : tag);
    *list   = made;
    *handle = made;
    ++memories_alive;
    return HIXL_SUCCESS;
}

static HixlStatus memory_remove(memory **list, HixlMemHandle handle)
{
    for (memory **at = list; *at != NULL; at = &(*at)->next) {
        if (*at == handle) {
            memory *gone = *at;

            *at = gone->next;
            free(gone);
            --memories_alive;
            return HIXL_SUCCESS;
        }
    }
    return HIXL_PARAM_INVALID;
}

static int memory_holds(const memory *list, const void *address, uint64_t length)
{
    uint64_t begin = (uint64_t)(uintptr_t)address;

    for (; list != NULL; list = list->next) {
        uint64_t start = (uint64_t)(uintptr_t)list->mem.addr;

        if (start <= begin && begin + length <= start + list->mem.size) {
            return 1;
        }
    }
    return 0;
}

/* ---- servers ------------------------------------------------------------------------------------------------- */

static server *server_of(HixlServerHandle handle)
{
    for (int index = 0; index < MOST; ++index) {
        if (servers[index] != NULL && servers[index] == handle) {
            return servers[index];
        }
    }
    return NULL;
}

static server *server_at(const char *ip, uint32_t port)
{
    for (int index = 0; index < MOST; ++index) {
        if (servers[index] != NULL && servers[index]->port == port && strcmp(servers[index]->ip, ip) == 0) {
            return servers[index];
        }
    }
    return NULL;
}

HixlStatus HixlCSServerCreate(const HixlServerDesc *desc, const HixlServerConfig *config, HixlServerHandle *handle)
{
    server *made;

    FAULT();
    DEMAND(desc != NULL && config != NULL && handle != NULL && desc->server_ip != NULL);
    DEMAND(desc->endpoint_list_num == 1 && desc->server_port > 0);
    DEMAND(server_at(desc->server_ip, desc->server_port) == NULL);
    made = calloc(1, sizeof(*made));
    made->magic    = MAGIC_SERVER;
    made->port     = desc->server_port;
    made->endpoint = *desc->endpoint_list;
    snprintf(made->ip, sizeof(made->ip), "%s", desc->server_ip);
    for (int index = 0; index < MOST; ++index) {
        if (servers[index] == NULL) {
            servers[index] = made;
            *handle        = made;
            ++handles;
            return HIXL_SUCCESS;
        }
    }
    free(made);
    return HIXL_RESOURCE_EXHAUSTED;
}

HixlStatus HixlCSServerRegMem(HixlServerHandle handle, const char *tag, const CommMem *mem, HixlMemHandle *mem_p)
{
    server *self = server_of(handle);

    FAULT();
    DEMAND(self != NULL && mem != NULL && mem_p != NULL);
    return memory_add(&self->memories, tag, mem, mem_p);
}

#ifndef WITHOUT_LISTEN
HixlStatus HixlCSServerListen(HixlServerHandle handle, uint32_t backlog)
{
    server *self = server_of(handle);

    FAULT();
    DEMAND(self != NULL && backlog > 0);
    self->listening = 1;
    return HIXL_SUCCESS;
}
#endif

HixlStatus HixlCSServerUnregMem(HixlServerHandle handle, HixlMemHandle mem)
{
    server *self = server_of(handle);

    FAULT();
    DEMAND(self != NULL);
    return memory_remove(&self->memories, mem);
}

HixlStatus HixlCSServerDestroy(HixlServerHandle handle)
{
    server *self = server_of(handle);

    DEMAND(self != NULL);
    while (self->memories != NULL) {
        (void)memory_remove(&self->memories, self->memories);
    }
    for (int index = 0; index < MOST; ++index) {
        if (servers[index] == self) {
            servers[index] = NULL;
        }
    }
    self->magic = 0;
    free(self);
    --handles;
    FAULT();
    return HIXL_SUCCESS;
}

/* ---- clients ------------------------------------------------------------------------------------------------- */

static client *client_of(HixlClientHandle handle)
{
    client *self = handle;

    return self != NULL && self->magic == MAGIC_CLIENT ? self : NULL;
}

HixlStatus HixlCSClientCreate(const HixlClientDesc *desc, const HixlClientConfig *config, HixlClientHandle *handle)
{
    client *made;

    FAULT();
    DEMAND(desc != NULL && config != NULL && handle != NULL && desc->local_endpoint != NULL);
    DEMAND(desc->remote_endpoint != NULL && desc->server_ip != NULL);
    made = calloc(1, sizeof(*made));
    made->magic           = MAGIC_CLIENT;
    made->desc            = *desc;
    made->remote_endpoint = *desc->remote_endpoint;
    snprintf(made->ip, sizeof(made->ip), "%s", desc->server_ip);
    seen_tc = desc->tc;
    seen_sl = desc->sl;
    *handle = made;
    ++handles;
    return HIXL_SUCCESS;
}

HixlStatus HixlCSClientConnect(HixlClientHandle handle, uint32_t timeout_ms)
{
    client *self = client_of(handle);
    server *peer;

    FAULT();
    DEMAND(self != NULL);
    seen_timeout = timeout_ms;
    if (self->peer != NULL) {
        return HIXL_ALREADY_CONNECTED;
    }
    peer = server_at(self->ip, self->desc.server_port);
    if (peer == NULL || !peer->listening) {
        return HIXL_TIMEOUT;
    }
    DEMAND(memcmp(&peer->endpoint, &self->remote_endpoint, sizeof(EndpointDesc)) == 0);
    self->peer = peer;
    return HIXL_SUCCESS;
}

HixlStatus HixlCSClientGetRemoteMem(HixlClientHandle handle, CommMem **list, char ***tags, uint32_t *count, uint32_t ms)
{
    client  *self = client_of(handle);
    uint32_t number = 0;

    FAULT();
    DEMAND(self != NULL && list != NULL && tags != NULL && count != NULL && ms > 0);
    if (self->peer == NULL) {
        return HIXL_NOT_CONNECTED;
    }
    free(self->list);
    free(self->tags);
    for (memory *each = self->peer->memories; each != NULL; each = each->next) {
        ++number;
    }
    self->list = calloc(number + 1, sizeof(*self->list));
    self->tags = calloc(number + 1, sizeof(*self->tags));
    number     = 0;
    for (memory *each = self->peer->memories; each != NULL; each = each->next) {
        self->list[number]   = each->mem;
        self->tags[number++] = each->tag;
    }
    *list  = self->list;
    *tags  = self->tags;
    *count = number;
    return HIXL_SUCCESS;
}

HixlStatus HixlCSClientRegMem(HixlClientHandle handle, const char *tag, const CommMem *mem, HixlMemHandle *mem_p)
{
    client *self = client_of(handle);

    FAULT();
    DEMAND(self != NULL && mem != NULL && mem_p != NULL);
    DEMAND(self->peer == NULL); /* all memory comes before the connection */
    return memory_add(&self->memories, tag, mem, mem_p);
}

HixlStatus HixlCSClientUnregMem(HixlClientHandle handle, HixlMemHandle mem)
{
    client *self = client_of(handle);

    FAULT();
    DEMAND(self != NULL);
    return memory_remove(&self->memories, mem);
}

static void call_free(client *self, call *gone)
{
    for (call **at = &self->calls; *at != NULL; at = &(*at)->next) {
        if (*at == gone) {
            *at = gone->next;
            break;
        }
    }
    gone->magic = 0;
    free(gone->pieces);
    free(gone);
    __atomic_sub_fetch(&calls_alive, 1, __ATOMIC_SEQ_CST);
}

HixlStatus HixlCSClientDestroy(HixlClientHandle handle)
{
    client *self = client_of(handle);

    DEMAND(self != NULL);
    while (self->calls != NULL) {
        call_free(self, self->calls);
    }
    while (self->memories != NULL) {
        (void)memory_remove(&self->memories, self->memories);
    }
    free(self->list);
    free(self->tags);
    self->magic = 0;
    free(self);
    --handles;
    FAULT();
    return HIXL_SUCCESS;
}

/* ---- transfers ----------------------------------------------------------------------------------------------- */

static HixlStatus check_pieces(client *self, uint32_t count, const HixlOneSideOpDesc *pieces)
{
    DEMAND(self != NULL && count > 0 && pieces != NULL);
    if (self->peer == NULL) {
        return HIXL_NOT_CONNECTED;
    }
    DEMAND(count <= 4000);
    for (uint32_t index = 0; index < count; ++index) {
        DEMAND(memory_holds(self->memories, pieces[index].local_buf, pieces[index].len));
        DEMAND(memory_holds(self->peer->memories, pieces[index].remote_buf, pieces[index].len));
    }
    return HIXL_SUCCESS;
}

static void move(int put, uint32_t count, const HixlOneSideOpDesc *pieces)
{
    for (uint32_t index = 0; index < count; ++index) {
        const HixlOneSideOpDesc *piece = &pieces[index];

        memcpy(put ? piece->remote_buf : piece->local_buf, put ? piece->local_buf : piece->remote_buf, piece->len);
    }
}

static HixlStatus post(client *self, int put, uint32_t count, const HixlOneSideOpDesc *pieces, HixlCompleteHandle *out)
{
    HixlStatus status = check_pieces(self, count, pieces);
    call      *made;
    int        alive;

    if (status != HIXL_SUCCESS) {
        return status;
    }
    if (shim_calls() >= most_calls) {
        return HIXL_RESOURCE_EXHAUSTED;
    }
    made         = calloc(1, sizeof(*made));
    made->magic  = MAGIC_CALL;
    made->put    = put;
    made->count  = count;
    made->pieces = malloc(count * sizeof(*pieces));
    memcpy(made->pieces, pieces, count * sizeof(*pieces));
    made->next  = self->calls;
    self->calls = made;
    alive       = __atomic_add_fetch(&calls_alive, 1, __ATOMIC_SEQ_CST);
    most_seen   = alive > most_seen ? alive : most_seen;
    __atomic_add_fetch(&issued, 1, __ATOMIC_SEQ_CST);
    *out = made;
    return HIXL_SUCCESS;
}

HixlStatus HixlCSClientBatchPutAsync(HixlClientHandle handle, uint32_t count, const HixlOneSideOpDesc *pieces,
                                     HixlCompleteHandle *complete)
{
    FAULT();
    return post(client_of(handle), 1, count, pieces, complete);
}

HixlStatus HixlCSClientBatchGetAsync(HixlClientHandle handle, uint32_t count, const HixlOneSideOpDesc *pieces,
                                     HixlCompleteHandle *complete)
{
    FAULT();
    return post(client_of(handle), 0, count, pieces, complete);
}

HixlStatus HixlCSClientQueryCompleteStatus(HixlClientHandle handle, HixlCompleteHandle complete,
                                           HixlCompleteStatus *state)
{
    client *self = client_of(handle);
    call   *asked = NULL;

    FAULT();
    DEMAND(self != NULL && complete != NULL && state != NULL);
    for (call *each = self->calls; each != NULL; each = each->next) {
        asked = each == complete ? each : asked;
    }
    DEMAND(asked != NULL && asked->magic == MAGIC_CALL); /* ended already, or never was */
    *state = HIXL_COMPLETE_STATUS_WAITING;
    if (__atomic_load_n(&hold, __ATOMIC_SEQ_CST) || asked->polls++ < polls_needed) {
        return HIXL_SUCCESS;
    }
    *state = (HixlCompleteStatus)end_state;
    if (end_state == HIXL_COMPLETE_STATUS_COMPLETED) {
        move(asked->put, asked->count, asked->pieces);
        call_free(self, asked);
    }
    return HIXL_SUCCESS;
}

#ifndef WITHOUT_SYNC
HixlStatus HixlCSClientBatchPutSync(HixlClientHandle handle, uint32_t count, const HixlOneSideOpDesc *pieces,
                                    uint32_t ms)
{
    HixlStatus status = check_pieces(client_of(handle), count, pieces);

    FAULT();
    seen_timeout = ms;
    if (status == HIXL_SUCCESS) {
        move(1, count, pieces);
    }
    return status;
}

HixlStatus HixlCSClientBatchGetSync(HixlClientHandle handle, uint32_t count, const HixlOneSideOpDesc *pieces,
                                    uint32_t ms)
{
    HixlStatus status = check_pieces(client_of(handle), count, pieces);

    FAULT();
    seen_timeout = ms;
    if (status == HIXL_SUCCESS) {
        move(0, count, pieces);
    }
    return status;
}
#endif
