/* Streams: bytes both ways, what is refused, and every way to end. */
#define _GNU_SOURCE
#include "net_work.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

static void sleep_ms(long milliseconds)
{
    poll(NULL, 0, (int)milliseconds);
}

static uint64_t remote_area(const work *some, uint32_t op)
{
    return addr(op == CFW_NET_READ ? some->from : some->to);
}

static const uint8_t some_key[CFW_TLS_KEY] = {1, 2, 3}, other_key[CFW_TLS_KEY] = {1, 2, 4};

static void move(uint32_t op, uint64_t size, uint64_t count, int streams, const uint8_t *key)
{
    side here = make_side(2, 20 * SECOND), there = make_side(2, 20 * SECOND);
    work some = make_net_work(op, 3, size, count);

    CHECK_EQUAL(cfw_net_expose(there.net, remote_area(&some, op), AREA, 3), 0);
    join_with(&here, &there, streams, key);
    CHECK_EQUAL(cfw_peer_live(here.peer), streams);
    for (int round = 0; round < 2; ++round) {
        memset(some.to, 0, AREA);
        cfw_result result = outcome(send_job(&here, some.batch));

        CHECK_EQUAL(result.status, 0);
        CHECK_EQUAL(result.bytes, size * count);
        CHECK(memcmp(some.to, some.from, size * count) == 0);
        CHECK_EQUAL(arrived(&some), size * count);
    }
    free_side(&here);
    free_side(&there);
    free_work(&some);
}

static void test_moves(const uint8_t *key)
{
    for (uint32_t op = CFW_NET_READ; op <= CFW_NET_WRITE; ++op) {
        move(op, 1, 1, 1, key);
        move(op, 4096, 1, 1, key);
        move(op, 4001, 800, 1, key);
        move(op, ITEM, COUNT, 2, key);
        move(op, ITEM * 198, 1, 3, key);
        move(op, 3, 3000, 2, key);
    }
}

/* Two ends with different keys, and one that does not encrypt, move nothing. */
static void test_keys(void)
{
    const uint8_t *keys[] = {other_key, NULL};

    for (int way = 0; way < 4; ++way) {
        side       here = make_side(1, SECOND / 4), there = make_side(1, SECOND / 4);
        work       some = make_net_work(CFW_NET_READ, 7, ITEM, COUNT);
        int        fds[2];
        cfw_job   *job;
        int        status;

        CHECK_EQUAL(cfw_net_expose(there.net, addr(some.from), AREA, 3), 0);
        tcp_pair(fds);
        CHECK_EQUAL(cfw_peer_add(there.peer, fds[1], CFW_ROLE_SERVE, way < 2 ? some_key : keys[way % 2], 1), 0);
        CHECK_EQUAL(cfw_peer_add(here.peer, fds[0], CFW_ROLE_ASK, way < 2 ? keys[way % 2] : some_key, 0), 0);
        status = cfw_peer_post(here.peer, some.batch, &job);
        CHECK(status == -ENOTCONN || outcome(job).status < 0);
        CHECK_EQUAL(arrived(&some), 0);
        free_side(&here);
        free_side(&there);
        free_work(&some);
    }
}

/* Each piece is checked where it is served, whatever the one who asks believes. */
static void test_bounds(void)
{
    side here = make_side(1, 20 * SECOND), there = make_side(1, 20 * SECOND);
    work reads  = make_net_work(CFW_NET_READ, 1, ITEM, COUNT);
    work writes = make_net_work(CFW_NET_WRITE, 2, ITEM, COUNT);
    cfw_result result;

    join(&here, &there, 1);
    /* Nothing is served yet. */
    CHECK_EQUAL(outcome(send_job(&here, reads.batch)).status, -ENXIO);
    CHECK_EQUAL(outcome(send_job(&here, writes.batch)).status, -ENXIO);
    /* One byte too few at the end; which item that is depends on the order. */
    CHECK_EQUAL(cfw_net_expose(there.net, addr(reads.from), AREA - 1, 1), 0);
    result = outcome(send_job(&here, reads.batch));
    CHECK_EQUAL(result.status, -ENXIO);
    CHECK_EQUAL(reads.all.remote[result.item], addr(reads.from) + AREA - ITEM);
    CHECK_EQUAL(cfw_net_conceal(there.net, addr(reads.from)), 0);
    CHECK_EQUAL(cfw_net_conceal(there.net, addr(reads.from)), -ENXIO);
    /* And one at the beginning. */
    CHECK_EQUAL(cfw_net_expose(there.net, addr(writes.to) + 1, AREA - 1, 2), 0);
    result = outcome(send_job(&here, writes.batch));
    CHECK_EQUAL(result.status, -ENXIO);
    CHECK_EQUAL(writes.all.remote[result.item], addr(writes.to));
    CHECK_EQUAL(cfw_net_conceal(there.net, addr(writes.to) + 1), 0);
    /* Rights. */
    for (uint32_t rights = 0; rights < 4; ++rights) {
        CHECK_EQUAL(cfw_net_expose(there.net, addr(reads.from), AREA, rights), 0);
        CHECK_EQUAL(cfw_net_expose(there.net, addr(reads.from), AREA, rights), 0);
        CHECK_EQUAL(cfw_net_expose(there.net, addr(writes.to), AREA, rights), 0);
        memset(writes.to, 0, AREA);
        CHECK_EQUAL(outcome(send_job(&here, reads.batch)).status, rights & 1 ? 0 : -EACCES);
        CHECK_EQUAL(outcome(send_job(&here, writes.batch)).status, rights & 2 ? 0 : -EACCES);
        CHECK_EQUAL(arrived(&writes), rights & 2 ? AREA : 0);
        CHECK_EQUAL(cfw_net_expose(there.net, addr(reads.from) + 5, 1, rights), -EEXIST);
        CHECK_EQUAL(cfw_net_conceal(there.net, addr(reads.from)), 0);
        CHECK_EQUAL(cfw_net_conceal(there.net, addr(writes.to)), 0);
    }
    CHECK_EQUAL(cfw_net_expose(there.net, 5, 0, 1), -EINVAL);
    CHECK_EQUAL(cfw_net_expose(there.net, UINT64_MAX, 2, 1), -EINVAL);
    CHECK_EQUAL(cfw_net_expose(there.net, 5, 1, 4), -EINVAL);
    CHECK_EQUAL(cfw_peer_live(here.peer), 1);
    free_side(&here);
    free_side(&there);
    free_work(&reads);
    free_work(&writes);
}

/* Memory that nobody may touch any more while a write is coming in. */
static void test_conceal(void)
{
    side here = make_side(2, 20 * SECOND), there = make_side(2, 20 * SECOND);
    work some = make_net_work(CFW_NET_WRITE, 7, ITEM, COUNT);

    for (int round = 0; round < 20; ++round) {
        cfw_job   *job;
        cfw_result result;

        if (cfw_peer_live(here.peer) == 0) {
            join(&here, &there, 2);
        }
        CHECK_EQUAL(cfw_net_expose(there.net, addr(some.to), AREA, 2), 0);
        job = send_job(&here, some.batch);
        sleep_ms(round % 4 == 0 ? 1 : 0);
        CHECK_EQUAL(cfw_net_conceal(there.net, addr(some.to)), 0);
        memset(some.to, 0, AREA);
        result = outcome(job);
        CHECK(result.status == 0 || result.status == -ENXIO || result.status == -ECONNRESET ||
              result.status == -EPIPE || result.status == -ENOTCONN);
        CHECK_EQUAL(arrived(&some), 0);
    }
    free_side(&here);
    free_side(&there);
    free_work(&some);
}

/* The other end answers nothing: it is cut, once and in time. */
static void test_silence(void)
{
    for (uint32_t op = CFW_NET_READ; op <= CFW_NET_WRITE; ++op) {
        side    here = make_side(1, SECOND / 4);
        work    some = make_net_work(op, 7, ITEM, COUNT);
        int     fds[2];
        cfw_job *job;

        tcp_pair(fds);
        CHECK_EQUAL(cfw_peer_add(here.peer, fds[0], CFW_ROLE_ASK, NULL, 0), 0);
        job = send_job(&here, some.batch);
        CHECK_EQUAL(cfw_job_wait(job, 1000000), -ETIMEDOUT);
        CHECK_EQUAL(cfw_job_settled(job), 0);
        CHECK_EQUAL(outcome(job).status, -ETIMEDOUT);
        CHECK_EQUAL(cfw_peer_live(here.peer), 0);
        CHECK_EQUAL(cfw_peer_post(here.peer, some.batch, &job), -ENOTCONN);
        close(fds[1]);
        free_side(&here);
        free_work(&some);
    }
}

static void test_ends(void)
{
    enum { JOBS = 4 };

    for (int round = 0; round < 12; ++round) {
        uint32_t op   = round % 2 ? CFW_NET_READ : CFW_NET_WRITE;
        side     here = make_side(2, 20 * SECOND), there = make_side(2, 20 * SECOND);
        work     some[JOBS];
        cfw_job *jobs[JOBS];

        join(&here, &there, 2);
        for (int index = 0; index < JOBS; ++index) {
            some[index] = make_net_work(op, 7, ITEM, COUNT);
            CHECK_EQUAL(cfw_net_expose(there.net, remote_area(&some[index], op), AREA, 3), 0);
        }
        for (int index = 0; index < JOBS; ++index) {
            jobs[index] = send_job(&here, some[index].batch);
        }
        if (round % 4 == 0) {
            cfw_job_cancel(jobs[3]);
        } else if (round % 4 == 1) {
            cfw_peer_shut(here.peer);
            for (int index = 0; index < JOBS; ++index) {
                /* On return, and nothing moves afterwards. */
                CHECK_EQUAL(cfw_job_settled(jobs[index]), 1);
            }
        } else if (round % 4 == 2) {
            cfw_peer_shut(there.peer);
        }
        for (int index = 0; index < JOBS; ++index) {
            cfw_result result = outcome(jobs[index]);

            CHECK(result.status == 0 || result.status == -ECANCELED || result.status == -ECONNRESET ||
                  result.status == -EPIPE || result.status == -ENOTCONN);
            CHECK(result.status != 0 || memcmp(some[index].to, some[index].from, AREA) == 0);
        }
        /* An end that gave its handle up does not stop the transfer. */
        if (cfw_peer_live(here.peer) > 0) {
            cfw_job_release(send_job(&here, some[0].batch));
        }
        free_side(&here);
        free_side(&there);
        for (int index = 0; index < JOBS; ++index) {
            free_work(&some[index]);
        }
    }
}

/* More streams are wanted by the end that cannot dial. */
static void test_more(void)
{
    side          here = make_side(1, 20 * SECOND), there = make_side(1, 20 * SECOND);
    struct pollfd told = {.fd = cfw_net_more_fd(there.net), .events = POLLIN};

    CHECK_EQUAL(cfw_peer_ask_more(here.peer, 3), -ENOTCONN);
    join(&here, &there, 1);
    CHECK_EQUAL(cfw_peer_wanted(there.peer), 0);
    CHECK_EQUAL(cfw_peer_ask_more(here.peer, 3), 0);
    CHECK_EQUAL(poll(&told, 1, 20000), 1);
    CHECK_EQUAL(cfw_peer_wanted(there.peer), 3);
    CHECK_EQUAL(cfw_peer_wanted(there.peer), 0);
    free_side(&here);
    free_side(&there);
}

typedef struct {
    const side *from;
    work        some;
    uint64_t    rounds;
} poster;

static void *post_many(void *argument)
{
    poster *self = argument;

    for (uint64_t round = 0; round < self->rounds; ++round) {
        cfw_job *job = send_job(self->from, self->some.batch);

        if (round % 3 == 0) {
            cfw_job_attend(job);
        }
        if (round % 7 == 0) {
            CHECK(cfw_job_wait(job, 1000) != -EINVAL);
        }
        CHECK_EQUAL(outcome(job).status, 0);
    }
    return NULL;
}

/* Large and small, read and write, from many threads over the same streams. */
static void test_threads(void)
{
    enum { POSTERS = 6 };
    side      here = make_side(2, 20 * SECOND), there = make_side(2, 20 * SECOND);
    poster    posters[POSTERS];
    pthread_t threads[POSTERS];

    join(&here, &there, 2);
    for (int index = 0; index < POSTERS; ++index) {
        uint32_t op   = index % 2 ? CFW_NET_READ : CFW_NET_WRITE;
        bool     tiny = index < 4;

        posters[index] = (poster){&here, make_net_work(op, (unsigned)index, tiny ? 512 : ITEM, tiny ? 1 : COUNT),
                                  tiny ? 400 : 15};
        CHECK_EQUAL(cfw_net_expose(there.net, remote_area(&posters[index].some, op), AREA, 3), 0);
        CHECK_EQUAL(pthread_create(&threads[index], NULL, post_many, &posters[index]), 0);
    }
    for (int index = 0; index < POSTERS; ++index) {
        work *some = &posters[index].some;

        pthread_join(threads[index], NULL);
        CHECK(memcmp(some->to, some->from, index < 4 ? 512 : AREA) == 0);
    }
    free_side(&here);
    free_side(&there);
    for (int index = 0; index < POSTERS; ++index) {
        free_work(&posters[index].some);
    }
}

void test_streams(void)
{
    test_moves(NULL);
    test_bounds();
    test_conceal();
    test_silence();
    test_ends();
    test_more();
    test_threads();
}

/* Through a socket that takes little at a time, from vectors of every size into others: no byte is lost, doubled or told of
 * before its record has left. */
static void test_narrow(void)
{
    enum { SIZE = 3 << 20, STEPS = 2000000 };
    static const size_t sizes[] = {24, 1, 4096, 4096, 4096, 16384, 100, 16385, 300000, 16383, 2, 5, 70000};
    char    *from = map_memory(SIZE), *to = map_memory(SIZE);
    cfw_tls *ends[2];
    uint64_t sent = 0, received = 0, partial = 0, empty = 0;
    int      fds[2], little = 4096;

    fill(from, SIZE, 9);
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    for (int end = 0; end < 2; ++end) {
        CHECK_EQUAL(setsockopt(fds[end], SOL_SOCKET, SO_SNDBUF, &little, sizeof(little)), 0);
        CHECK_EQUAL(cfw_tls_create(fds[end], some_key, end == 1, &ends[end]), 0);
    }
    for (int step = 0; !cfw_tls_ready(ends[0]) || !cfw_tls_ready(ends[1]); ++step) {
        CHECK(step < 100);
        CHECK(cfw_tls_handshake(ends[step % 2]) >= 0);
    }
    for (uint64_t step = 0; received < SIZE; ++step) {
        struct iovec vectors[7];
        int64_t      done;
        bool         out   = step % 3 != 2 && sent < SIZE;
        uint64_t     place = out ? sent : received, offered = 0;

        CHECK(step < STEPS);
        for (int index = 0; index < 7; ++index) {
            /* Who sends offers the same bytes again, as from the same place. */
            size_t size = sizes[((out ? sent : step) + (uint64_t)index) % (sizeof(sizes) / sizeof(sizes[0]))];

            size           = size < SIZE - place - offered ? size : SIZE - place - offered;
            vectors[index] = (struct iovec){(out ? from : to) + place + offered, size};
            offered       += size;
        }
        done = cfw_tls_move(ends[!out], vectors, 7, out);
        CHECK(done >= 0 && (uint64_t)done <= offered);
        partial  += done > 0 && (uint64_t)done < offered;
        empty    += done == 0;
        sent     += out ? (uint64_t)done : 0;
        received += out ? 0 : (uint64_t)done;
        CHECK(received <= sent + (128u << 10));
    }
    CHECK_EQUAL(sent, SIZE);
    CHECK(memcmp(from, to, SIZE) == 0);
    CHECK(partial > 100 && empty > 100);
    /* The end of the other side shows as one. */
    cfw_tls_destroy(ends[0]);
    close(fds[0]);
    CHECK(cfw_tls_move(ends[1], &(struct iovec){to, 1}, 1, false) < 0);
    CHECK(cfw_tls_move(ends[1], &(struct iovec){to, 1}, 1, true) < 0);
    cfw_tls_destroy(ends[1]);
    close(fds[1]);
    munmap(from, SIZE);
    munmap(to, SIZE);
}

void test_tls(void)
{
    if (cfw_tls_probe() != 0) {
        printf("tls: NOT TESTED, as there is no OpenSSL 3 here\n");
        return;
    }
    test_narrow();
    test_moves(some_key);
    test_keys();
}
