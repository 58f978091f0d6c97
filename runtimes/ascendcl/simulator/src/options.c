/* The environment variables, read once at the start. A value that is not understood is an error, not the default. */
#include "sim.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

sim_options sim_option;

static aclError read_number(const char *name, uint64_t least, uint64_t most, uint64_t *number_p, bool *given_p)
{
    const char *text = getenv(name);
    char       *end;
    uint64_t    number;

    if (text == NULL || *text == '\0') {
        return ACL_SUCCESS;
    }
    errno  = 0;
    number = strtoull(text, &end, 10);
    switch (*end) {
    case 'G': number *= 1024; /* fall through */
    case 'M': number *= 1024; /* fall through */
    case 'K': number *= 1024; ++end; break;
    default: break;
    }
    if (errno != 0 || !isdigit((unsigned char)*text) || *end != '\0' || number < least || number > most) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "%s is '%s', not a number from %llu to %llu", name, text,
                        (unsigned long long)least, (unsigned long long)most);
    }
    *number_p = number;
    if (given_p != NULL) {
        *given_p = true;
    }
    return ACL_SUCCESS;
}

static aclError read_text(const char *name, char *to, size_t size, const char *allowed, bool *given_p)
{
    const char *text = getenv(name);

    if (text == NULL || *text == '\0') {
        return ACL_SUCCESS;
    }
    if (strlen(text) >= size) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "%s has more than %zu characters", name, size - 1);
    }
    for (const char *each = text; *each != '\0'; ++each) {
        if (!isalnum((unsigned char)*each) && strchr(allowed, *each) == NULL) {
            return sim_fail(ACL_ERROR_INVALID_PARAM, "%s has a '%c'; letters, digits and '%s' are allowed", name, *each,
                            allowed);
        }
    }
    strcpy(to, text);
    if (given_p != NULL) {
        *given_p = true;
    }
    return ACL_SUCCESS;
}

static aclError read_choice(const char *name, const char *const choices[], unsigned *choice_p)
{
    const char *text = getenv(name);

    if (text == NULL || *text == '\0') {
        return ACL_SUCCESS;
    }
    for (unsigned index = 0; choices[index] != NULL; ++index) {
        if (strcmp(text, choices[index]) == 0) {
            *choice_p = index;
            return ACL_SUCCESS;
        }
    }
    return sim_fail(ACL_ERROR_INVALID_PARAM, "%s is '%s'; it can be %s, %s%s%s", name, text, choices[0], choices[1],
                    choices[2] != NULL ? ", " : "", choices[2] != NULL ? choices[2] : "");
}

#define TRY(_call)                                                                                                     \
    do {                                                                                                               \
        aclError code_ = (_call);                                                                                      \
        if (code_ != ACL_SUCCESS) {                                                                                    \
            return code_;                                                                                              \
        }                                                                                                              \
    } while (0)

aclError sim_options_load(void)
{
    static const char *const modes[]    = {"open", "strict", NULL};
    static const char *const fills[]    = {"none", "edges", "all", NULL};
    static const char *const off_on[]   = {"0", "1", NULL};
    static const char *const backing[]  = {"huge", "small", NULL};
    static const char *const plain[]    = {"unregistered", "host", NULL};
    static const char *const registry[] = {"pageable", "pinned", NULL};
    const long               cpus       = sysconf(_SC_NPROCESSORS_ONLN);
    sim_options              options    = {.machine = "default", .soc = "Ascend910B3", .directory = "/dev/shm"};
    uint64_t devices = 8, hbm = 4 * (uint64_t)SIM_GIANT_PAGE, delay = 0, threads = cpus >= 2 ? 2 : 1;
    unsigned mode = 1, fill = SIM_FILL_EDGES, vmm = 0, driver = 0, kernel = 0, pages = 0;

    TRY(read_text("ACLSIM_MACHINE", options.machine, sizeof(options.machine), "-_", NULL));
    TRY(read_text("ACLSIM_DIRECTORY", options.directory, sizeof(options.directory), "/-_.", NULL));
    TRY(read_text("ACLSIM_SOC", options.soc, sizeof(options.soc), "-_", &options.soc_given));
    TRY(read_number("ACLSIM_DEVICES", 0, SIM_MAX_DEVICES, &devices, &options.devices_given));
    TRY(read_number("ACLSIM_HBM", SIM_HUGE_PAGE, 1024 * (uint64_t)SIM_GIANT_PAGE, &hbm, &options.hbm_given));
    TRY(read_number("ACLSIM_DELAY_US", 0, 10000000, &delay, NULL));
    TRY(read_number("ACLSIM_COPY_THREADS", 1, 16, &threads, NULL));
    TRY(read_choice("ACLSIM_MODE", modes, &mode));
    TRY(read_choice("ACLSIM_FILL", fills, &fill));
    TRY(read_choice("ACLSIM_PAGES", backing, &pages));
    TRY(read_choice("ACLSIM_VMM", off_on, &vmm));
    TRY(read_choice("ACLSIM_PLAIN_MEMORY", plain, &driver));
    TRY(read_choice("ACLSIM_HOST_REGISTER", registry, &kernel));
    options.devices      = (uint32_t)devices;
    options.hbm          = hbm / SIM_HUGE_PAGE * SIM_HUGE_PAGE;
    options.delay_us     = (uint32_t)delay;
    options.copy_threads = (uint32_t)threads;
    options.strict       = mode == 1;
    options.fill         = (sim_fill)fill;
    options.vmm          = vmm == 1;
    options.small_pages  = pages == 1;
    options.old_driver   = driver == 1;
    options.old_kernel   = kernel == 1;
    TRY(sim_topology_load(getenv("ACLSIM_TOPOLOGY"), &options));
    sim_option = options;
    return ACL_SUCCESS;
}

int aclsimStrict(void)
{
    return sim_process_start() == ACL_SUCCESS && sim_option.strict;
}
