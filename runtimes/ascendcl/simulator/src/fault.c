/* Faults on request, and the table of functions they are named by. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FAULTS 32

/* The addresses are here to make a function of the list that nobody defines an error of the linker. */
static const struct {
    const char *name;
    void (*address)(void);
} functions[] = {
#define ACL(name, params, args) {#name, (void (*)(void))name},
#define ACL_TEXT(name, params, args) {#name, (void (*)(void))name},
#include "acl.def"
#undef ACL
#undef ACL_TEXT
    {"task", NULL},
    {"*", NULL},
};

typedef struct {
    unsigned function;
    uint32_t left; /* calls until it strikes; 0: always */
    int      code;
} fault;

static pthread_mutex_t   lock = PTHREAD_MUTEX_INITIALIZER;
static fault             faults[MAX_FAULTS];
static atomic_uint       num_faults;
static bool              loaded;
static _Atomic(uint64_t) calls[SIM_FN_ANY + 1];

const char *sim_function_name(unsigned function)
{
    return functions[function].name;
}

static int find_function(const char *name)
{
    for (unsigned index = 0; index <= SIM_FN_ANY; ++index) {
        if (strcmp(functions[index].name, name) == 0) {
            return (int)index;
        }
    }
    return -1;
}

static aclError strike(unsigned function)
{
    aclError code = ACL_SUCCESS;

    pthread_mutex_lock(&lock);
    for (unsigned index = 0; index < num_faults;) {
        fault *each = &faults[index];

        if (each->function != function && (each->function != SIM_FN_ANY || function == SIM_FN_TASK)) {
            ++index;
        } else if (each->left == 0) {
            code = code != ACL_SUCCESS ? code : each->code;
            ++index;
        } else if (--each->left > 0) {
            ++index;
        } else {
            code  = each->code;
            *each = faults[num_faults - 1];
            atomic_fetch_sub(&num_faults, 1);
        }
    }
    pthread_mutex_unlock(&lock);
    return code;
}

aclError sim_fault_take(unsigned function)
{
    aclError code;

    atomic_fetch_add_explicit(&calls[function], 1, memory_order_relaxed);
    sim_text_function(functions[function].name);
    if (atomic_load_explicit(&num_faults, memory_order_relaxed) == 0) {
        return ACL_SUCCESS;
    }
    code = strike(function);
    return code == ACL_SUCCESS ? ACL_SUCCESS : sim_fail(code, "fault on request");
}

int aclsimFail(const char *function, int nth, int code)
{
    int index  = function != NULL ? find_function(function) : -1;
    int status = -1;

    if (index < 0 || nth < 0 || code == 0) {
        return -1;
    }
    pthread_mutex_lock(&lock);
    if (num_faults < MAX_FAULTS) {
        faults[num_faults] = (fault){(unsigned)index, (uint32_t)nth, code};
        atomic_fetch_add(&num_faults, 1);
        status = 0;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void aclsimClear(void)
{
    pthread_mutex_lock(&lock);
    atomic_store(&num_faults, 0);
    pthread_mutex_unlock(&lock);
    for (int32_t device = 0; device < SIM_MAX_DEVICES; ++device) {
        for (int32_t peer = 0; peer < device; ++peer) {
            (void)aclsimLink(device, peer, 1);
        }
    }
    sim_streams_pause(false);
}

int64_t aclsimCalls(const char *function)
{
    int index = function != NULL ? find_function(function) : -1;

    return index < 0 ? -1 : (int64_t)atomic_load_explicit(&calls[index], memory_order_relaxed);
}

/* name:nth:code[,...], where nth is a number or * */
static aclError parse(char *text)
{
    char *rest = NULL;

    for (char *item = strtok_r(text, ",", &rest); item != NULL; item = strtok_r(NULL, ",", &rest)) {
        char *nth  = strchr(item, ':');
        char *code = nth != NULL ? strchr(nth + 1, ':') : NULL;

        if (code == NULL) {
            return sim_fail(ACL_ERROR_INVALID_PARAM, "ACLSIM_FAIL has '%s' where function:nth:code belongs", item);
        }
        *nth++  = '\0';
        *code++ = '\0';
        if (aclsimFail(item, strcmp(nth, "*") == 0 ? 0 : atoi(nth) > 0 ? atoi(nth) : -1, atoi(code)) != 0) {
            return sim_fail(ACL_ERROR_INVALID_PARAM, "ACLSIM_FAIL asks for call '%s' of '%s' to return '%s'", nth, item,
                            code);
        }
    }
    return ACL_SUCCESS;
}

aclError sim_fault_load(void)
{
    const char *variable = getenv("ACLSIM_FAIL");
    aclError    code;
    char       *text;

    if (loaded || variable == NULL) {
        return ACL_SUCCESS;
    }
    text = strdup(variable);
    if (text == NULL) {
        return sim_fail(ACL_ERROR_BAD_ALLOC, "no memory for the faults");
    }
    code   = parse(text);
    loaded = code == ACL_SUCCESS;
    free(text);
    return code;
}
