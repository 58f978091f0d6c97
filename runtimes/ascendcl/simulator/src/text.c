/* The text of the last errors, per thread, and the codes' way out. */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static __thread char        pending[2048];
static __thread char        handed_out[2048];
static __thread const char *function = "";

void sim_text_function(const char *name)
{
    function = name;
}

void sim_say(aclError code, const char *format, ...)
{
    size_t  used = strlen(pending);
    int     length;
    va_list arguments;

    if (used > sizeof(pending) / 2) {
        used = 0; /* the newest errors matter */
    }
    length = snprintf(pending + used, sizeof(pending) - used, "%s%s: ", used > 0 ? "\n" : "", function);
    if (length > 0 && used + (size_t)length < sizeof(pending)) {
        used += (size_t)length;
    }
    va_start(arguments, format);
    length = vsnprintf(pending + used, sizeof(pending) - used, format, arguments);
    va_end(arguments);
    if (length > 0 && used + (size_t)length < sizeof(pending)) {
        used += (size_t)length;
        snprintf(pending + used, sizeof(pending) - used, " (%d, SIMULATED)", code);
    }
}

void sim_text_take(char *text, size_t size)
{
    const size_t length = strnlen(pending, size - 1);

    memcpy(text, pending, length);
    text[length] = '\0';
    pending[0]   = '\0';
}

const char *aclGetRecentErrMsg(void)
{
    if (sim_fault_take(SIM_FN_aclGetRecentErrMsg) != ACL_SUCCESS || pending[0] == '\0') {
        return NULL;
    }
    sim_text_take(handed_out, sizeof(handed_out));
    return handed_out;
}
