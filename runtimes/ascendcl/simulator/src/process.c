/* The life of the simulator in one process. */
#define _GNU_SOURCE
#include "sim.h"

#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool     started, forked;
static bool            initialized, finalized;

/* The threads and the memory stay with the parent, as with the real runtime. */
static void in_child(void)
{
    forked = true;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

aclError sim_process_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    aclError              code = ACL_SUCCESS;

    if (atomic_load_explicit(&forked, memory_order_relaxed)) {
        return sim_fail(ACL_ERROR_RT_FAILURE, "the runtime does not work in a child of fork");
    }
    if (atomic_load_explicit(&started, memory_order_acquire)) {
        return ACL_SUCCESS;
    }
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    if (!started) {
        code = sim_options_load();
        if (code == ACL_SUCCESS) {
            code = sim_fault_load();
        }
        if (code == ACL_SUCCESS) {
            code = sim_window_start();
        }
        if (code == ACL_SUCCESS) {
            code = sim_machine_attach();
        }
        started = code == ACL_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

aclError sim_enter(unsigned function)
{
    aclError code;

    sim_text_function(sim_function_name(function));
    code = sim_process_start();
    return code == ACL_SUCCESS ? sim_fault_take(function) : code;
}

aclError aclInit(const char *config_path)
{
    aclError code = ACL_SUCCESS;

    SIM_ENTER(aclInit);
    if (config_path != NULL && *config_path != '\0' && access(config_path, R_OK) != 0) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "the configuration '%s' can not be read", config_path);
    }
    pthread_mutex_lock(&lock);
    if (initialized) {
        code = ACL_ERROR_REPEAT_INITIALIZE;
    }
    initialized = true;
    pthread_mutex_unlock(&lock);
    return code == ACL_SUCCESS ? code : sim_fail(code, "it was called before");
}

aclError aclFinalize(void)
{
    aclError code = ACL_SUCCESS;

    SIM_ENTER(aclFinalize);
    pthread_mutex_lock(&lock);
    if (!initialized) {
        code = finalized ? ACL_ERROR_REPEAT_FINALIZE : ACL_ERROR_UNINITIALIZE;
    } else {
        sim_device_reset_all();
        sim_crew_stop();
        sim_machine_detach();
        initialized = false;
        finalized   = true;
        started     = false;
    }
    pthread_mutex_unlock(&lock);
    return code == ACL_SUCCESS ? code
                               : sim_fail(code, finalized ? "it was called before" : "aclInit was not called");
}

/* Other threads may still copy, so only what the machine would miss is put in order; the kernel does the rest. */
__attribute__((destructor)) static void leave(void)
{
    if (!forked) {
        sim_machine_detach();
    }
}

const char *aclsimVersion(void)
{
    return "SIMULATED AscendCL, cachefw simulator 1";
}

aclError aclrtGetVersion(int32_t *major, int32_t *minor, int32_t *patch)
{
    SIM_ENTER(aclrtGetVersion);
    SIM_NOT_NULL(major);
    SIM_NOT_NULL(minor);
    SIM_NOT_NULL(patch);
    *major = 1;
    *minor = 17;
    *patch = 0;
    return ACL_SUCCESS;
}

const char *aclrtGetSocName(void)
{
    if (sim_enter(SIM_FN_aclrtGetSocName) != ACL_SUCCESS) {
        return NULL;
    }
    return sim_option.soc;
}

aclError aclrtGetRunMode(aclrtRunMode *mode)
{
    SIM_ENTER(aclrtGetRunMode);
    SIM_NOT_NULL(mode);
    *mode = ACL_HOST;
    return ACL_SUCCESS;
}

aclError aclrtDeviceGetBareTgid(int32_t *pid)
{
    SIM_ENTER(aclrtDeviceGetBareTgid);
    SIM_NOT_NULL(pid);
    *pid = getpid();
    return ACL_SUCCESS;
}
