/* The other end of a stream is anything: no crash, no hang, no byte that was not allowed. */
#define _GNU_SOURCE
#include "net_work.h"

#include <poll.h>

#define SECRET 4096u
#define INPUTS 2000

static uint64_t chance_state = 88172645463325252ull;

static uint64_t chance(uint64_t below)
{
    chance_state ^= chance_state << 13;
    chance_state ^= chance_state >> 7;
    chance_state ^= chance_state << 17;
    return chance_state % below;
}

static uint32_t request(uint8_t *to, uint32_t kind, uint32_t pieces, uint64_t bytes, uint64_t address,
                        uint64_t length)
{
    cfw_head head = {.kind   = (uint8_t)kind,
                     .pieces = (uint16_t)pieces,
                     .status = (int32_t)CFW_WIRE_MAGIC,
                     .serial = 1,
                     .bytes  = bytes};

    cfw_head_put(to, &head);
    for (uint32_t index = 0; index < pieces; ++index) {
        cfw_u64_put(to + CFW_WIRE_HEAD + index * CFW_WIRE_PIECE, address);
        cfw_u64_put(to + CFW_WIRE_HEAD + index * CFW_WIRE_PIECE + 8, length);
    }
    return CFW_WIRE_HEAD + pieces * CFW_WIRE_PIECE;
}

/* Send, then read what comes until the end or a pause; returns the bytes read, -1 once the stream was cut. */
static ssize_t tell(int fd, const void *data, size_t size, uint8_t *into, size_t room, int pause_ms)
{
    size_t  have = 0;
    ssize_t done = 0;

    for (size_t sent = 0; sent < size; sent += (size_t)done) {
        done = send(fd, (const char *)data + sent, size - sent, MSG_NOSIGNAL);
        if (done <= 0) {
            return -1;
        }
    }
    for (;;) {
        struct pollfd wanted = {.fd = fd, .events = POLLIN};

        if (poll(&wanted, 1, pause_ms) == 0) {
            return (ssize_t)have;
        }
        done = recv(fd, into + have, room - have, 0);
        if (done <= 0) {
            return have > 0 ? (ssize_t)have : -1;
        }
        have += (size_t)done;
        if (have == room) {
            return (ssize_t)have;
        }
    }
}

/* One page that is served between two that are not. */
static char *make_target(const side *there)
{
    char *memory = map_memory(3 * SECRET);

    memset(memory, 0x5e, 3 * SECRET);
    memset(memory + SECRET, 0x11, SECRET);
    CHECK_EQUAL(cfw_net_expose(there->net, addr(memory) + SECRET, SECRET, 3), 0);
    return memory;
}

static void check_target(const char *memory)
{
    for (size_t at = 0; at < SECRET; ++at) {
        CHECK(memory[at] == 0x5e && memory[2 * SECRET + at] == 0x5e);
    }
}

static void test_requests(void)
{
    struct {
        uint32_t kind, pieces;
        uint64_t bytes, shift, length;
        int      answer; /* 1: status, 0: cut */
    } cases[] = {
        {CFW_WIRE_READ, 1, SECRET, SECRET, SECRET, 1},
        {CFW_WIRE_READ, 1, SECRET, SECRET - 1, SECRET, -ENXIO},
        {CFW_WIRE_READ, 1, SECRET, SECRET + 1, SECRET, -ENXIO},
        {CFW_WIRE_READ, 1, 1, 0, 1, -ENXIO},
        {CFW_WIRE_READ, 2, SECRET, SECRET, SECRET / 2, 1},
        {CFW_WIRE_READ, 1, SECRET + 1, SECRET, SECRET, 0},
        {CFW_WIRE_READ, 1, 0, SECRET, 0, 0},
        {CFW_WIRE_READ, 2, 0, SECRET, UINT64_MAX / 2 + 1, 0},
        {CFW_WIRE_READ, 1, UINT64_MAX, SECRET, UINT64_MAX, 0},
        {CFW_WIRE_READ, 1, CFW_WIRE_BYTES, 0, CFW_WIRE_BYTES, -ENXIO},
        {CFW_WIRE_READ, 1, CFW_WIRE_BYTES + 1, 0, CFW_WIRE_BYTES + 1, 0},
        {CFW_WIRE_READ, CFW_WIRE_PIECES + 1, CFW_WIRE_PIECES + 1, SECRET, 1, 0},
        {CFW_WIRE_READ, 65535, 65535, SECRET, 1, 0},
        {0, 1, 1, SECRET, 1, 0},
        {4, 1, 1, SECRET, 1, 0},
        {CFW_WIRE_MORE, 2, 0, 0, 0, 0},
    };

    for (size_t index = 0; index < sizeof(cases) / sizeof(cases[0]); ++index) {
        side     there  = make_side(1, 20 * SECOND);
        char    *memory = make_target(&there);
        uint8_t *frame  = malloc(CFW_WIRE_HEAD + 65536 * CFW_WIRE_PIECE), got[2 * SECRET];
        int      fds[2];
        ssize_t  had;

        tcp_pair(fds);
        CHECK_EQUAL(cfw_peer_add(there.peer, fds[1], CFW_ROLE_SERVE, NULL, 0), 0);
        had = tell(fds[0], frame,
                   request(frame, cases[index].kind, cases[index].pieces, cases[index].bytes,
                           addr(memory) + cases[index].shift, cases[index].length),
                   got, cases[index].answer > 0 ? CFW_WIRE_HEAD + SECRET : CFW_WIRE_HEAD, 20000);
        if (cases[index].answer == 0) {
            CHECK_EQUAL(had, -1);
        } else if (cases[index].answer > 0) {
            CHECK_EQUAL(had, CFW_WIRE_HEAD + SECRET);
            CHECK_EQUAL(cfw_head_get(got).status, 0);
            CHECK(got[CFW_WIRE_HEAD] == 0x11 && got[CFW_WIRE_HEAD + SECRET - 1] == 0x11);
        } else {
            CHECK_EQUAL(had, CFW_WIRE_HEAD);
            CHECK_EQUAL(cfw_head_get(got).status, cases[index].answer);
        }
        check_target(memory);
        close(fds[0]);
        free_side(&there);
        free(frame);
        munmap(memory, 3 * SECRET);
    }
}

/* Requests with bytes turned, cut short, or made of nothing. */
static void test_fuzz_requests(void)
{
    side     there  = make_side(2, SECOND / 2);
    char    *memory = make_target(&there);
    uint8_t *frame = malloc(CFW_WIRE_FRAME + 8192), *got = malloc(CFW_WIRE_BYTES);

    for (int input = 0; input < INPUTS; ++input) {
        int      fds[2];
        uint32_t pieces = 1 + (uint32_t)chance(4), size;
        uint64_t length = 1 + chance(SECRET);
        ssize_t  had;

        tcp_pair(fds);
        CHECK_EQUAL(cfw_peer_add(there.peer, fds[1], CFW_ROLE_SERVE, NULL, 0), 0);
        size = request(frame, 1 + (uint32_t)chance(3), pieces, pieces * length,
                       addr(memory) + chance(3 * SECRET), length);
        for (uint32_t at = 0; at < 8192; ++at) {
            frame[size + at] = (uint8_t)chance(256);
        }
        size += (uint32_t)chance(8192);
        for (uint64_t flips = chance(4); flips > 0; --flips) {
            frame[chance(CFW_WIRE_HEAD + pieces * CFW_WIRE_PIECE)] ^= (uint8_t)(1u << chance(8));
        }
        had = tell(fds[0], frame, chance(8) == 0 ? chance(size) : size, got, CFW_WIRE_BYTES, 1);
        for (ssize_t at = 0; at < had; ++at) {
            /* What is not served would show; by chance it may be in a head. */
            if (at + 16 <= had && got[at] == 0x5e) {
                CHECK(memcmp(got + at, memory, 16) != 0);
            }
        }
        check_target(memory);
        close(fds[0]);
        if (input % 16 == 0) {
            cfw_peer_shut(there.peer);
            cfw_peer_destroy(there.peer);
            CHECK_EQUAL(cfw_peer_create(there.net, &there.peer), 0);
        }
    }
    free_side(&there);
    free(frame);
    free(got);
    munmap(memory, 3 * SECRET);
}

/* Answers of any kind: the job settles, and nothing around its memory changes. */
static void test_fuzz_answers(void)
{
    side  here   = make_side(2, SECOND / 10);
    char *memory = map_memory(3 * SECRET);

    for (int input = 0; input < INPUTS; ++input) {
        uint64_t   local = addr(memory) + SECRET, remote = 4096, length = SECRET;
        cfw_part   part  = {chance(2) ? CFW_NET_READ : CFW_NET_WRITE, 0, &local, &remote, &length, 1};
        cfw_batch *batch = make_batch(&part, 1);
        cfw_head   head  = {.kind   = (uint8_t)(part.op - CFW_NET_READ + 1),
                            .serial = 1,
                            .status = chance(3) ? 0 : -(int32_t)chance(200),
                            .bytes  = chance(3) ? SECRET : chance(2 * SECRET)};
        uint8_t    answer[CFW_WIRE_HEAD + 2 * SECRET];
        uint8_t    drained[65536];
        cfw_job   *job;
        int        fds[2];

        memset(memory, 0x5e, 3 * SECRET);
        tcp_pair(fds);
        CHECK_EQUAL(cfw_peer_add(here.peer, fds[0], CFW_ROLE_ASK, NULL, 0), 0);
        job = send_job(&here, batch);
        memset(answer, 0x22, sizeof(answer));
        if (chance(4) == 0) {
            head.serial = chance(4);
        }
        cfw_head_put(answer, &head);
        if (chance(2)) {
            answer[chance(CFW_WIRE_HEAD)] ^= (uint8_t)(1u << chance(8));
        }
        CHECK(send(fds[1], answer, chance(sizeof(answer)), MSG_NOSIGNAL) >= 0);
        if (chance(2)) {
            shutdown(fds[1], SHUT_WR);
        }
        CHECK(recv(fds[1], drained, sizeof(drained), MSG_DONTWAIT) != 0);
        outcome(job);
        for (size_t at = 0; at < SECRET; ++at) {
            CHECK(memory[at] == 0x5e && memory[2 * SECRET + at] == 0x5e);
            CHECK(part.op == CFW_NET_READ || memory[SECRET + at] == 0x5e);
        }
        close(fds[1]);
        cfw_peer_shut(here.peer);
        cfw_peer_destroy(here.peer);
        CHECK_EQUAL(cfw_peer_create(here.net, &here.peer), 0);
        cfw_batch_destroy(batch);
    }
    free_side(&here);
    munmap(memory, 3 * SECRET);
}

void test_hostile(void)
{
    test_requests();
    test_fuzz_requests();
    test_fuzz_answers();
}
