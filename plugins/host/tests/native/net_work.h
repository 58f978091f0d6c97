/* Two nets in one process, connected: one asks, one serves. */
#ifndef CACHEFW_NET_WORK_H
#define CACHEFW_NET_WORK_H

#include "work.h"

#include "net.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#define SECOND 1000000000ull

typedef struct {
    cfw_pool *pool;
    cfw_net  *net;
    cfw_peer *peer;
} side;

static inline side make_side(uint32_t threads, uint64_t timeout_ns)
{
    side made = {.pool = make_pool(0)};

    CHECK_EQUAL(cfw_net_create(made.pool, threads, NULL, 0, timeout_ns, &made.net), 0);
    CHECK_EQUAL(cfw_peer_create(made.net, &made.peer), 0);
    return made;
}

static inline void free_side(side *made)
{
    cfw_peer_shut(made->peer);
    cfw_net_destroy(made->net);
    /* A peer that was shut may outlive its net. */
    cfw_peer_destroy(made->peer);
    cfw_pool_destroy(made->pool);
}

/* A connected pair over loopback. */
static inline void tcp_pair(int fds[2])
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t          size = sizeof(name);
    int                door = socket(AF_INET, SOCK_STREAM, 0);

    CHECK(door >= 0 && bind(door, (struct sockaddr *)&name, size) == 0 && listen(door, 1) == 0);
    CHECK(getsockname(door, (struct sockaddr *)&name, &size) == 0);
    fds[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fds[0], (struct sockaddr *)&name, size) == 0);
    fds[1] = accept(door, NULL, NULL);
    CHECK(fds[1] >= 0);
    close(door);
}

/* With a key by TLS, where the one that serves has dialled every other time. */
static inline void join_with(const side *asks, const side *serves, int streams, const uint8_t *key)
{
    while (streams-- > 0) {
        int fds[2];

        tcp_pair(fds);
        CHECK_EQUAL(cfw_peer_add(serves->peer, fds[1], CFW_ROLE_SERVE, key, streams % 2), 0);
        CHECK_EQUAL(cfw_peer_add(asks->peer, fds[0], CFW_ROLE_ASK, key, 1 - streams % 2), 0);
    }
}

static inline void join(const side *asks, const side *serves, int streams)
{
    join_with(asks, serves, streams, NULL);
}

static inline cfw_job *send_job(const side *from, cfw_batch *batch)
{
    cfw_job *job;

    CHECK_EQUAL(cfw_peer_post(from->peer, batch, &job), 0);
    return job;
}

/* Waits, gives the handle up, and returns what became of it. */
static inline cfw_result outcome(cfw_job *job)
{
    cfw_result result;

    CHECK_EQUAL(cfw_job_wait(job, 30 * (int64_t)SECOND), 0);
    result = result_of(job);
    cfw_job_release(job);
    return result;
}

/* The same items as `make_work`, over streams. */
static inline work make_net_work(uint32_t op, unsigned seed, uint64_t size, uint64_t count)
{
    work some = {.from = map_memory(AREA), .to = map_memory(AREA)};
    bool read = op == CFW_NET_READ;

    CHECK(size * count <= AREA);
    fill(some.from, AREA, seed);
    some.all   = make_items(op, 0, read ? some.to : some.from, read ? some.from : some.to, size, count);
    some.batch = make_batch(&some.all.part, 1);
    return some;
}

#endif
