/* What the files of the simulator share. Order of the locks: the process's, the devices', that of imports, the
 * machine's; an event's before a stream's; all others are taken last. */
#ifndef CACHEFW_SIM_H
#define CACHEFW_SIM_H

#pragma GCC visibility push(default)
#include "acl.h"
#include "aclsim.h"
#pragma GCC visibility pop

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define SIM_MAX_DEVICES 64
#define SIM_PAGE ((size_t)4096)
#define SIM_HUGE_PAGE ((size_t)2 << 20)
#define SIM_GIANT_PAGE ((size_t)1 << 30)
#define SIM_DRIVER_REFUSED ACL_ERROR_RT_DRV_INTERNAL_ERROR

static inline size_t sim_round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

/* ---- text.c ------------------------------------------------------------------------------------------------------ */

/* Keep a text for aclGetRecentErrMsg of this thread. */
void sim_say(aclError code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* That, and the code as the value: a macro, for the compiler to see that it is not 0. */
#define sim_fail(_code, ...) (sim_say((_code), __VA_ARGS__), (_code))

/* Move this thread's text to `text`, so that another thread can report it. */
void sim_text_take(char *text, size_t size);

/* Name the function of the list that this thread is in. */
void sim_text_function(const char *name);

#define SIM_NOT_NULL(_argument)                                                                                        \
    do {                                                                                                               \
        if ((_argument) == NULL) {                                                                                     \
            return sim_fail(ACL_ERROR_INVALID_PARAM, #_argument " is NULL");                                           \
        }                                                                                                              \
    } while (0)

/* ---- fault.c ----------------------------------------------------------------------------------------------------- */

enum {
#define ACL(name, params, args) SIM_FN_##name,
#define ACL_TEXT(name, params, args) SIM_FN_##name,
#include "acl.def"
#undef ACL
#undef ACL_TEXT
    SIM_NUM_FUNCTIONS,
    SIM_FN_TASK = SIM_NUM_FUNCTIONS,
    SIM_FN_ANY
};

const char *sim_function_name(unsigned function);

/* Count a call; the code to fail with, or 0. */
aclError sim_fault_take(unsigned function);

/* Read ACLSIM_FAIL, the first time only. */
aclError sim_fault_load(void);

/* ---- process.c --------------------------------------------------------------------------------------------------- */

/* To be the first thing in every function: faults, and the start of the simulator. */
aclError sim_enter(unsigned function);

#define SIM_ENTER(_name)                                                                                               \
    do {                                                                                                               \
        aclError entered_ = sim_enter(SIM_FN_##_name);                                                                 \
        if (entered_ != ACL_SUCCESS) {                                                                                 \
            return entered_;                                                                                           \
        }                                                                                                              \
    } while (0)

/* Start if not started. */
aclError sim_process_start(void);

/* ---- options.c --------------------------------------------------------------------------------------------------- */

typedef enum { SIM_FILL_NONE, SIM_FILL_EDGES, SIM_FILL_ALL } sim_fill;

typedef struct {
    char     machine[65];
    char     soc[32];
    char     directory[96];
    uint32_t devices;
    uint64_t hbm;
    bool     strict;
    bool     vmm;
    bool     small_pages; /* back huge pages with the system's small ones */
    bool     old_driver;  /* plain memory is reported as host memory */
    bool     old_kernel;  /* only aclrtMallocHost memory can be registered */
    bool     soc_given, devices_given, hbm_given; /* by the environment */
    sim_fill fill;
    uint32_t delay_us;
    uint32_t copy_threads;
    uint8_t  links[SIM_MAX_DEVICES][SIM_MAX_DEVICES];
} sim_options;

/* As read at the start; changes only while the simulator is not running. */
extern sim_options sim_option;

aclError sim_options_load(void);

/* ---- topology.c -------------------------------------------------------------------------------------------------- */

/* Fill the links from a text, or from the file it names after an @. */
aclError sim_topology_load(const char *text, sim_options *options);

/* May a copy on `device` touch memory of `owner`? */
aclError sim_peer_check(int32_t device, int32_t owner);
aclError sim_peer_enable(int32_t device, int32_t peer);
void     sim_peer_forget(int32_t device);

/* ---- machine.c: what all processes share ------------------------------------------------------------------------- */

#define SIM_MAX_PROCESSES 256
#define SIM_MAX_KEYS 16384
#define SIM_MAX_PIDS 31
#define SIM_KEY_LENGTH 65

typedef struct {
    int32_t  pid; /* 0: free. Written last, cleared first. */
    uint64_t start;
    uint64_t used[SIM_MAX_DEVICES];
} sim_slot;

typedef enum { SIM_KEY_FREE, SIM_KEY_IPC, SIM_KEY_PHYSICAL } sim_key_kind;

typedef struct {
    uint32_t kind; /* written last, cleared first */
    int32_t  pid;
    uint64_t start;
    char     name[SIM_KEY_LENGTH];
    uint64_t number;
    int32_t  fd; /* of the owner */
    uint64_t inode;
    uint64_t offset, size;
    int32_t  device;
    uint64_t page;
    uint32_t open_to_all;
    uint32_t num_pids;
    struct {
        int32_t  pid;
        uint64_t ticks; /* when it was let in */
    } pids[SIM_MAX_PIDS];
} sim_key;

typedef struct {
    uint64_t magic; /* written last */
    uint32_t devices;
    uint64_t hbm;
    char     soc[32];
    uint64_t next_key;
    uint32_t num_rows; /* of keys; all behind are free */
    uint32_t free_row; /* none before it is free, as far as known */
    sim_slot slots[SIM_MAX_PROCESSES];
    sim_key  keys[SIM_MAX_KEYS];
} sim_table;

aclError sim_machine_attach(void);
void     sim_machine_detach(void);

/* NULL when not attached; then there is nothing to unlock. */
sim_table *sim_machine_lock(void);
void       sim_machine_unlock(void);

/* With the lock held. */
void      sim_machine_reap(sim_table *table);
sim_slot *sim_machine_slot(void);
uint64_t  sim_machine_used(const sim_table *table, int32_t device);

/* Take device memory from the common capacity, or give it back. */
aclError sim_charge(int32_t device, uint64_t bytes);
void     sim_refund(int32_t device, uint64_t bytes);

/* ---- liveness.c -------------------------------------------------------------------------------------------------- */

/* Clock ticks between boot and the start of a process; 0 when it is dead. */
uint64_t sim_process_started(int32_t pid);
uint64_t sim_ticks_now(void);

/* ---- key.c: rows of the table of keys, with the machine's lock held ---------------------------------------------- */

sim_key *sim_key_add(sim_table *table, const sim_key *key);
sim_key *sim_key_find(sim_table *table, sim_key_kind kind, const char *name);
sim_key *sim_key_number(sim_table *table, sim_key_kind kind, uint64_t number);
void     sim_key_remove(sim_table *table, sim_key *key);
bool     sim_key_mine(const sim_key *key);

/* Let processes in. */
aclError sim_key_admit(sim_key *key, const int32_t *pids, size_t count);

/* Open the memory behind a key of a process that may be another: a descriptor, or a refusal. */
aclError sim_key_open(const sim_key *key, int *fd_p);

/* ---- window.c ---------------------------------------------------------------------------------------------------- */

typedef enum { SIM_WINDOW_DEVICE, SIM_WINDOW_HOST, SIM_NUM_WINDOWS } sim_window;

aclError  sim_window_start(void);
bool      sim_window_holds(sim_window window, uintptr_t address);
uintptr_t sim_window_base(sim_window window);
size_t    sim_window_spaces(void);

/* Take a range of addresses that start at `phase` from a multiple of alignment; 0 when there is none. A guard as wide
 * as a page follows. `wanted`, not 0, is tried first. */
uintptr_t sim_window_take(sim_window window, size_t size, size_t alignment, size_t phase, uintptr_t wanted);

/* Give it back, whatever is mapped there. */
void sim_window_release(sim_window window, uintptr_t base, size_t size);

/* Map device memory into a taken range, for the user or, strictly, only for the simulator's own copies; the address
 * those use, or NULL. */
char *sim_window_map(uintptr_t base, size_t size, size_t page, int fd, size_t offset);
void  sim_window_unmap(uintptr_t base, size_t size);

/* ---- region.c ---------------------------------------------------------------------------------------------------- */

typedef enum { SIM_DEVICE_MEMORY, SIM_HOST_MEMORY, SIM_REGISTERED, SIM_IMPORTED, SIM_MAPPED } sim_region_kind;

typedef struct sim_region {
    sim_region_kind kind;
    uintptr_t       base;
    size_t          size;
    char           *data; /* where copies find it */
    size_t          page;
    int32_t         device;
    int32_t         home; /* the device that takes it along when it is reset: the importing one */
    int             fd;
    uint64_t        inode, file_offset; /* which bytes these are, whatever addresses they are seen at */
    atomic_bool     no_read, no_write;
    atomic_bool     exported; /* ever */
    bool            charged;
    uintptr_t       device_address; /* of registered memory */
    char            key[SIM_KEY_LENGTH];
    void           *physical;
    atomic_uint     refs;
    void (*destroy)(struct sim_region *region);
} sim_region;

/* Makes it findable and owns the first reference. False when the range is taken, or without memory. */
bool sim_region_add(sim_region *region);

/* The one that holds the address, with a reference; NULL. */
sim_region *sim_region_get(uintptr_t address);
sim_region *sim_region_get_any(uintptr_t base, size_t size);

/* Take it out; the reference of sim_region_add goes to the caller. False when another was faster. */
bool sim_region_remove(sim_region *region);
void sim_region_put(sim_region *region);

/* The first of a kind that `matches`, with a reference. */
sim_region *sim_region_find(sim_region_kind kind, bool (*matches)(const sim_region *, const void *), const void *what);

/* Take out all of a device, or all of all (-1). */
void   sim_region_clear(int32_t device);
size_t sim_region_count(sim_region_kind kind, uint64_t *bytes_p);

/* ---- memory.c ---------------------------------------------------------------------------------------------------- */

/* A fresh memfd of emulated device memory. */
aclError sim_memory_open(size_t size, int *fd_p, uint64_t *inode_p);
void     sim_memory_fill(char *data, size_t size);

/* Is the policy one of the ABI, and which pages does it ask for? */
aclError sim_policy_page(uint32_t policy, size_t size, size_t *page_p);
aclError sim_memory_alloc(void **ptr, size_t size, uint32_t policy, int32_t device);
aclError sim_host_alloc(void **ptr, size_t size);

/* ---- handle.c ---------------------------------------------------------------------------------------------------- */

typedef enum { SIM_CONTEXT, SIM_STREAM, SIM_EVENT, SIM_PHYSICAL, SIM_NUM_KINDS } sim_kind;

typedef struct sim_object {
    sim_kind    kind;
    atomic_uint refs;
    void (*destroy)(struct sim_object *object);
} sim_object;

/* Handles are numbers that no dereference survives and that are never used twice. */
void       *sim_handle_add(sim_object *object);
sim_object *sim_handle_get(sim_kind kind, const void *handle);
sim_object *sim_handle_remove(sim_kind kind, const void *handle);
sim_object *sim_handle_remove_any(sim_kind kind, bool (*matches)(const sim_object *, const void *), const void *what);

/* The next one that matches, with a reference; *from_p is 0 for the first. */
sim_object *sim_handle_next(sim_kind kind, bool (*matches)(const sim_object *, const void *), const void *what,
                            uint32_t *from_p);
size_t      sim_handle_count(sim_kind kind);
void        sim_object_init(sim_object *object, sim_kind kind, void (*destroy)(sim_object *));
void        sim_object_keep(sim_object *object);
void        sim_object_put(sim_object *object);

/* ---- device.c ---------------------------------------------------------------------------------------------------- */

typedef struct {
    sim_object object;
    int32_t    device;
    bool       primary;
    void      *handle;
    void      *stream; /* the default one, once used */
} sim_context;

/* Of this thread, with a reference to put; NULL, and then sim_no_context() says so. */
sim_context *sim_context_current(void);
aclError     sim_no_context(void);
aclError     sim_current_device(int32_t *device_p);
bool         sim_device_exists(int32_t device);
aclError     sim_device_check(int32_t device);
void         sim_device_reset_all(void);

/* ---- stream.c, task.c -------------------------------------------------------------------------------------------- */

typedef struct sim_record sim_record;

typedef struct {
    char       *to;
    const char *from;
    size_t      size;
    sim_region *to_region, *from_region; /* NULL for memory of the user */
} sim_piece;

typedef enum { SIM_TASK_COPY, SIM_TASK_RECORD, SIM_TASK_WAIT } sim_task_kind;

typedef struct sim_task {
    struct sim_task *next;
    sim_task_kind    kind;
    uintptr_t        to, from;
    size_t           size;
    aclrtMemcpyKind  direction;
    sim_record      *record;
} sim_task;

typedef struct {
    aclError code;
    char     text[224];
} sim_error;

typedef struct {
    sim_object      object;
    int32_t         device;
    void           *context; /* its handle */
    pthread_t       thread;
    pthread_mutex_t lock;
    pthread_cond_t  work, done;
    sim_task       *head, **tail_p;
    uint64_t        submitted, completed;
    uint32_t        waiters;
    atomic_bool     closing;
    atomic_bool     abandoned; /* finish without doing what is left */
    sim_error       error; /* of the tasks since the last synchronise */
} sim_stream;

/* The stream behind a handle, the default one behind NULL, if it is of the current context; to be put. */
aclError sim_stream_get(aclrtStream handle, sim_stream **stream_p);
aclError sim_stream_open(sim_context *context, void **handle_p);
void     sim_stream_close(sim_stream *stream, bool abandon);

/* Takes the tasks, a list of `count`, over. The last one's place in the order is *place_p. */
aclError sim_stream_submit(sim_stream *stream, sim_task *first, sim_task *last, uint64_t count, uint64_t *place_p);
aclError sim_stream_wait(sim_stream *stream, uint64_t place, int32_t timeout_ms);
uint64_t sim_stream_end(sim_stream *stream);

/* What failed since the last time, on this thread. */
aclError sim_stream_report(sim_stream *stream);

/* Keep the first error until then: the text is taken from this thread. */
void sim_stream_failed(sim_stream *stream, aclError code);
void sim_streams_pause(bool paused);
void sim_tasks_free(sim_task *first, sim_task *end);

/* Execute tasks that follow each other: at least one, at most those given; how many. */
uint64_t sim_tasks_run(sim_stream *stream, sim_task *first, uint64_t count);

/* ---- event.c ----------------------------------------------------------------------------------------------------- */

void sim_record_done(sim_record *record, aclError code);
void sim_record_wait(sim_record *record, const sim_stream *stream);
void sim_record_put(sim_record *record);
void sim_pause_wait(const sim_stream *stream);

/* Let the streams that wait look whether they are closed. */
void sim_records_wake(void);

/* ---- crew.c, kernel.c -------------------------------------------------------------------------------------------- */

/* Move pieces that do not depend on each other, on several threads where that pays. */
void sim_crew_copy(const sim_piece *pieces, size_t count);
void sim_crew_stop(void);

/* A thread that no signal of the program goes to. */
bool sim_thread_start(pthread_t *thread_p, const char *name, void *(*run)(void *), void *argument);

/* From this size on, a run of copies goes past the caches. */
#define SIM_STREAMING_BYTES ((size_t)2 << 20)

void sim_kernel_copy(char *to, const char *from, size_t size, bool streaming);
void sim_kernel_fence(void);

/* ---- memcpy.c ---------------------------------------------------------------------------------------------------- */

/* Look the two ends up and see whether `device` may copy between them; `strictly`, the kind has to be true. The piece
 * holds references. */
aclError sim_piece_make(int32_t device, uintptr_t to, uintptr_t from, size_t size, aclrtMemcpyKind kind, bool strictly,
                        sim_piece *piece_p);
void     sim_piece_put(sim_piece *piece);

/* ---- clock ------------------------------------------------------------------------------------------------------- */

/* Monotonic. */
void sim_cond_init(pthread_cond_t *cond);
void sim_deadline(int32_t milliseconds, struct timespec *deadline);

#endif
