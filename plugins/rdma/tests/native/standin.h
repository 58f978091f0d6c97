/* What the tests tell the stand-in for libucp, and what it counts. */
#ifndef CACHEFW_STANDIN_H
#define CACHEFW_STANDIN_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct {
    atomic_int held;       /* requests stay until this is 0 */
    atomic_int immediate;  /* transfers are over when they are asked for */
    atomic_int fail_at;    /* the how many-th transfer from now fails when it is over; 0: none */
    atomic_int refuse_at;  /* ... is refused */
    atomic_int peerless;   /* endpoints can not watch over their peers */
    atomic_int map_status; /* what mapping memory answers */
    atomic_int asked;      /* transfers asked for */
    atomic_int most;       /* the most that were in flight at once */
    atomic_int flushes;
    atomic_int mapped, keys, endpoints, workers, contexts; /* how many there are */
    atomic_int die_at_flush; /* the peer is gone when a write is flushed, which succeeds all the same */
} standin_control;

#endif
