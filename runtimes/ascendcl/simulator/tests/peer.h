/* Another process, that does one call per line it is told. */
#ifndef CACHEFW_SIM_PEER_H
#define CACHEFW_SIM_PEER_H

#include "check.h"

#include <signal.h>
#include <sys/types.h>

typedef struct {
    pid_t pid;
    FILE *in, *out;
    char  text[128]; /* of the last answer */
} peer;

peer peer_spawn(void);

/* With its device set. */
peer peer_start(int32_t device);

/* The code it answers. */
int peer_ask(peer *other, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Let it end; its exit status, or 128 + the signal. */
int peer_end(peer *other);
int peer_wait(peer *other);
void peer_kill(peer *other);

#endif
