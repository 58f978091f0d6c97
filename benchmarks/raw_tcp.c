/* The limit of a network: the same bytes over plain blocking connections, one thread for each at both ends. The pieces
 * are told once, when a connection is opened; a run costs a byte there and the data back. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS 16

typedef struct {
    uint64_t count;
    uint64_t *address, *length;
    int      fd;
} raw_stretch;

typedef struct {
    int         port, connections;
    uint64_t    count;
    const uint64_t *to, *source, *length;
    raw_stretch at[CONNECTIONS];
} raw_tcp;

static int whole(int fd, void *data, size_t size, int out)
{
    for (char *at = data; size > 0;) {
        ssize_t done = out ? send(fd, at, size, MSG_NOSIGNAL) : recv(fd, at, size, MSG_WAITALL);

        if (done <= 0) {
            return -1;
        }
        at += done;
        size -= (size_t)done;
    }
    return 0;
}

/* Send or receive every piece. */
static int pass(const raw_stretch *stretch, int out)
{
    struct iovec pieces[VECTORS];
    uint64_t     next = 0;

    while (next < stretch->count) {
        struct msghdr message = {.msg_iov = pieces};
        int           n = 0, first = 0;

        for (; n < VECTORS && next < stretch->count; ++n, ++next) {
            pieces[n] = (struct iovec){(void *)(uintptr_t)stretch->address[next], stretch->length[next]};
        }
        while (first < n) {
            message.msg_iov    = pieces + first;
            message.msg_iovlen = (size_t)(n - first);
            ssize_t done = out ? sendmsg(stretch->fd, &message, MSG_NOSIGNAL) : recvmsg(stretch->fd, &message, 0);

            if (done <= 0) {
                return -1;
            }
            while (first < n && (size_t)done >= pieces[first].iov_len) {
                done -= (ssize_t)pieces[first++].iov_len;
            }
            if (done > 0) {
                pieces[first].iov_base = (char *)pieces[first].iov_base + done;
                pieces[first].iov_len -= (size_t)done;
            }
        }
    }
    return 0;
}

static void quick(int fd)
{
    int one = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static void *serve_one(void *argument)
{
    raw_stretch stretch = {.fd = (int)(intptr_t)argument};
    char        go;

    quick(stretch.fd);
    if (whole(stretch.fd, &stretch.count, 8, 0) == 0) {
        stretch.address = malloc(stretch.count * 8 + 1);
        stretch.length  = malloc(stretch.count * 8 + 1);
        if (whole(stretch.fd, stretch.address, stretch.count * 8, 0) == 0 &&
            whole(stretch.fd, stretch.length, stretch.count * 8, 0) == 0) {
            while (whole(stretch.fd, &go, 1, 0) == 0 && pass(&stretch, 1) == 0) {
            }
        }
    }
    close(stretch.fd);
    free(stretch.address);
    free(stretch.length);
    return NULL;
}

static void *serve(void *argument)
{
    int       listening = (int)(intptr_t)argument, fd;
    pthread_t thread;

    while ((fd = accept(listening, NULL, NULL)) >= 0) {
        if (pthread_create(&thread, NULL, serve_one, (void *)(intptr_t)fd) != 0) {
            close(fd);
        } else {
            pthread_detach(thread);
        }
    }
    return NULL;
}

/* Serve this process's memory to whoever is on loopback; returns the port, or -1. Ends with the process. */
static int raw_tcp_serve(void)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t          size = sizeof(name);
    int                fd   = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pthread_t          thread;

    if (fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof(name)) != 0 || listen(fd, 64) != 0 ||
        getsockname(fd, (struct sockaddr *)&name, &size) != 0 ||
        pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd) != 0) {
        return -1;
    }
    pthread_detach(thread);
    return ntohs(name.sin_port);
}

static void raw_tcp_close(raw_tcp *work)
{
    for (int i = 0; i < work->connections; ++i) {
        if (work->at[i].fd > 0) {
            close(work->at[i].fd);
        }
        free(work->at[i].address);
        free(work->at[i].length);
    }
}

/* Share the pieces out, and tell the other side of its share. */
static int raw_tcp_open(raw_tcp *work)
{
    uint64_t done = 0;

    for (int i = 0; i < work->connections; ++i) {
        struct sockaddr_in name = {.sin_family      = AF_INET,
                                   .sin_port        = htons((uint16_t)work->port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        raw_stretch *at    = &work->at[i];
        uint64_t     until = work->count * (uint64_t)(i + 1) / (uint64_t)work->connections;
        uint64_t     part  = work->length[0] / (uint64_t)work->connections / PAGE * PAGE;
        uint64_t    *sources;
        int          failed;

        at->count   = work->count == 1 ? 1 : until - done;
        at->address = malloc(at->count * 8 + 1);
        at->length  = malloc(at->count * 8 + 1);
        sources     = malloc(at->count * 8 + 1);
        for (uint64_t j = 0; j < at->count; ++j, ++done) {
            uint64_t from = work->count == 1 ? 0 : done, shift = work->count == 1 ? part * (uint64_t)i : 0;

            at->address[j] = work->to[from] + shift;
            sources[j]     = work->source[from] + shift;
            at->length[j]  = work->count > 1                    ? work->length[from]
                             : i + 1 == work->connections ? work->length[0] - shift
                                                          : part;
        }
        at->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        quick(at->fd);
        failed = connect(at->fd, (struct sockaddr *)&name, sizeof(name)) != 0 ||
                 whole(at->fd, &at->count, 8, 1) != 0 || whole(at->fd, sources, at->count * 8, 1) != 0 ||
                 whole(at->fd, at->length, at->count * 8, 1) != 0;
        free(sources);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

static void *fetch(void *stretch)
{
    char go = 1;

    return (void *)(intptr_t)(whole(((raw_stretch *)stretch)->fd, &go, 1, 1) || pass(stretch, 0));
}

/* 0, or -1 when not every byte was moved. */
static int raw_tcp_run(raw_tcp *work)
{
    pthread_t threads[CONNECTIONS];
    void     *outcome;
    int       status, started = 1;

    while (started < work->connections &&
           pthread_create(&threads[started], NULL, fetch, &work->at[started]) == 0) {
        ++started;
    }
    status = fetch(&work->at[0]) != NULL || started < work->connections ? -1 : 0;
    while (--started > 0) {
        pthread_join(threads[started], &outcome);
        status |= outcome != NULL ? -1 : 0;
    }
    return status;
}
