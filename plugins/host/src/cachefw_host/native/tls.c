/* TLS 1.3 for streams, by OpenSSL 3 opened at run time. Both ends hold a key of
 * their own link already and prove it, so there is no certificate to show. */
#define _GNU_SOURCE
#include "net.h"
#include "openssl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* Several records are read in one call of the kernel, and sent in one. */
#define BUFFER (128u << 10)
/* The most that one record holds, and more than it is larger by on the wire. */
#define RECORD   (16u << 10)
#define OVERHEAD 64u
/* Always left in the buffer for what the protocol itself has to say. */
#define RESERVE (4u << 10)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static SSL_CTX       *context;
static BIO_METHOD    *socket_ends;
static int            missing = -ENOSYS;

struct cfw_tls {
    SSL     *ssl;
    int      fd;
    bool     ready;   /* the handshake is done */
    bool     writes;  /* the handshake needs the socket to be writable */
    bool     drained; /* no whole record is left of what was read */
    uint8_t  key[CFW_TLS_KEY];
    uint64_t owed;    /* bytes in the records below that the caller does not know of yet */
    uint32_t sent, size; /* of the records that go out together */
    uint32_t read, got;  /* of what came in together */
    bool     ended;      /* nothing more will come */
    uint8_t  out[BUFFER];
    uint8_t  in[BUFFER];
};

static const unsigned char identity[] = "cachefw";

static SSL_SESSION *session_of(SSL *ssl)
{
    static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
    struct cfw_tls            *tls     = openssl.SSL_get_ex_data(ssl, 0);
    SSL_SESSION               *session = openssl.SSL_SESSION_new();

    if (session == NULL) {
        return NULL;
    }
    if (!openssl.SSL_SESSION_set1_master_key(session, tls->key, CFW_TLS_KEY) ||
        !openssl.SSL_SESSION_set_cipher(session, openssl.SSL_CIPHER_find(ssl, aes_128_gcm_sha256)) ||
        !openssl.SSL_SESSION_set_protocol_version(session, TLS1_3)) {
        openssl.SSL_SESSION_free(session);
        return NULL;
    }
    return session;
}

static int use_session(SSL *ssl, const EVP_MD *digest, const unsigned char **name, size_t *size,
                       SSL_SESSION **session_p)
{
    (void)digest;
    *name      = identity;
    *size      = sizeof(identity) - 1;
    *session_p = session_of(ssl);
    return *session_p != NULL;
}

static int find_session(SSL *ssl, const unsigned char *name, size_t size, SSL_SESSION **session_p)
{
    bool known = size == sizeof(identity) - 1 && memcmp(name, identity, size) == 0;

    *session_p = known ? session_of(ssl) : NULL;
    return !known || *session_p != NULL;
}

/* OpenSSL's way out: records gather here, and leave by flush(). */
static int put(BIO *bio, const char *from, int size)
{
    cfw_tls *tls = openssl.BIO_get_data(bio);

    if (size < 0 || (uint32_t)size > sizeof(tls->out) - tls->size) {
        return -1;
    }
    memcpy(tls->out + tls->size, from, (size_t)size);
    tls->size += (uint32_t)size;
    return size;
}

/* Its way in. It could read ahead itself, but then moves all of that at each record. */
static int get(BIO *bio, char *to, int size)
{
    cfw_tls *tls = openssl.BIO_get_data(bio);
    uint32_t here;

    openssl.BIO_clear_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
    if (tls->read == tls->got) {
        ssize_t done = recv(tls->fd, tls->in, sizeof(tls->in), MSG_DONTWAIT);

        if (done < 0 && (errno == EAGAIN || errno == EINTR)) {
            openssl.BIO_set_flags(bio, BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY);
        }
        if (done <= 0) {
            tls->ended = done == 0;
            return (int)done;
        }
        tls->read = 0;
        tls->got  = (uint32_t)done;
    }
    here = tls->got - tls->read;
    here = here < (uint32_t)size ? here : (uint32_t)size;
    memcpy(to, tls->in + tls->read, here);
    tls->read += here;
    return (int)here;
}

static long control(BIO *bio, int command, long number, void *pointer)
{
    const cfw_tls *tls = openssl.BIO_get_data(bio);

    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH || (command == BIO_CTRL_EOF && tls != NULL && tls->ended);
}

static void open_library(void)
{
    if (!cfw_openssl_open()) {
        return;
    }
    socket_ends = openssl.BIO_meth_new(BIO_TYPE_SOURCE_SINK, "cachefw");
    if (socket_ends == NULL) {
        return;
    }
    context = openssl.SSL_CTX_new(openssl.TLS_method());
    if (context == NULL) {
        openssl.BIO_meth_free(socket_ends);
        return;
    }
    if (!openssl.BIO_meth_set_read(socket_ends, get) || !openssl.BIO_meth_set_write(socket_ends, put) ||
        !openssl.BIO_meth_set_ctrl(socket_ends, control) ||
        !openssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO, TLS1_3, NULL) ||
        !openssl.SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256")) {
        openssl.SSL_CTX_free(context);
        openssl.BIO_meth_free(socket_ends);
        return;
    }
    openssl.SSL_CTX_set_num_tickets(context, 0);
    openssl.SSL_CTX_set_psk_use_session_callback(context, use_session);
    openssl.SSL_CTX_set_psk_find_session_callback(context, find_session);
    missing = 0;
}

int cfw_tls_probe(void)
{
    pthread_once(&once, open_library);
    return missing;
}

int cfw_tls_create(int fd, const uint8_t *key, bool accepts, cfw_tls **tls_p)
{
    cfw_tls *tls;
    BIO     *bio;
    int      status = cfw_tls_probe();

    if (status != 0) {
        return status;
    }
    tls = calloc(1, sizeof(*tls));
    if (tls == NULL) {
        return -ENOMEM;
    }
    tls->fd = fd;
    memcpy(tls->key, key, CFW_TLS_KEY);
    tls->ssl = openssl.SSL_new(context);
    if (tls->ssl == NULL || !openssl.SSL_set_ex_data(tls->ssl, 0, tls)) {
        cfw_tls_destroy(tls);
        return -ENOMEM;
    }
    bio = openssl.BIO_new(socket_ends);
    if (bio == NULL) {
        cfw_tls_destroy(tls);
        return -ENOMEM;
    }
    openssl.BIO_set_data(bio, tls);
    openssl.BIO_set_init(bio, 1);
    openssl.SSL_set_bio(tls->ssl, bio, bio);
    if (accepts) {
        openssl.SSL_set_accept_state(tls->ssl);
    } else {
        openssl.SSL_set_connect_state(tls->ssl);
    }
    *tls_p = tls;
    return 0;
}

void cfw_tls_destroy(cfw_tls *tls)
{
    if (tls->ssl != NULL) {
        openssl.SSL_free(tls->ssl);
    }
    explicit_bzero(tls->key, sizeof(tls->key));
    free(tls);
}

bool cfw_tls_ready(const cfw_tls *tls)
{
    return tls->ready;
}

uint32_t cfw_tls_events(const cfw_tls *tls, uint32_t wanted)
{
    if (!tls->ready) {
        wanted &= ~(uint32_t)(EPOLLIN | EPOLLOUT);
        return wanted | (tls->writes ? EPOLLOUT : EPOLLIN);
    }
    /* What was read ahead makes no socket readable; one can always be written. */
    return !tls->drained && (tls->read < tls->got || openssl.SSL_has_pending(tls->ssl)) ? wanted | EPOLLOUT : wanted;
}

/* 0 when it has to wait for the socket, else why it does not go on. */
static int64_t outcome(cfw_tls *tls, int returned)
{
    int reason = openssl.SSL_get_error(tls->ssl, returned);
    int number = errno;

    tls->writes = reason == SSL_ERROR_WANT_WRITE;
    if (reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE) {
        return 0;
    }
    if (reason == SSL_ERROR_ZERO_RETURN) {
        return -ECONNRESET;
    }
    if (reason == SSL_ERROR_SYSCALL) {
        return number > 0 ? -number : -ECONNRESET;
    }
    return tls->ready ? -EPROTO : -EKEYREJECTED;
}

/* Bytes of records sent (0: not now), or a negative errno. */
static int64_t flush(cfw_tls *tls)
{
    ssize_t done;

    if (tls->sent == tls->size) {
        return 0;
    }
    done = send(tls->fd, tls->out + tls->sent, tls->size - tls->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done < 0) {
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    }
    tls->sent += (uint32_t)done;
    if (tls->sent == tls->size) {
        tls->sent = tls->size = 0;
    }
    return done;
}

int64_t cfw_tls_handshake(cfw_tls *tls)
{
    int64_t why = 1, flushed;
    int     done;

    if (tls->ready) {
        return 1;
    }
    openssl.ERR_clear_error();
    errno = 0;
    done  = openssl.SSL_do_handshake(tls->ssl);
    if (done != 1) {
        why = outcome(tls, done);
    }
    /* The other end is told also what is wrong. */
    flushed = flush(tls);
    if (why < 0 || flushed < 0) {
        return why < 0 ? why : flushed;
    }
    tls->writes = tls->size > 0;
    if (why == 0 || tls->writes) {
        return 0;
    }
    /* Never without the key: a certificate could not stand in for it. */
    if (!openssl.SSL_session_reused(tls->ssl)) {
        return -EKEYREJECTED;
    }
    explicit_bzero(tls->key, sizeof(tls->key));
    tls->ready  = true;
    tls->writes = false;
    return 1;
}

/* Encrypt what fits. Small vectors share a record, whose cost is that of several kilobytes. */
static int64_t seal(cfw_tls *tls, const struct iovec *vectors, int count)
{
    uint64_t total  = 0;
    size_t   offset = 0;
    int      index  = 0;

    while (index < count) {
        uint8_t     shared[RECORD];
        const void *from = (const char *)vectors[index].iov_base + offset;
        size_t      left = vectors[index].iov_len - offset;
        size_t      size = left < RECORD ? left : RECORD;
        int         next = left > RECORD ? index : index + 1;
        int         done;

        if (next < count && next > index && size + vectors[next].iov_len <= RECORD) {
            memcpy(shared, from, size);
            from = shared;
            for (; next < count && size + vectors[next].iov_len <= RECORD; ++next) {
                memcpy(shared + size, vectors[next].iov_base, vectors[next].iov_len);
                size += vectors[next].iov_len;
            }
        }
        if (sizeof(tls->out) - RESERVE - tls->size < size + OVERHEAD) {
            break;
        }
        done = openssl.SSL_write_ex(tls->ssl, from, size, &size);
        if (done != 1) {
            int64_t why = outcome(tls, done);

            return why < 0 ? why : -EPROTO;
        }
        offset = next == index ? offset + size : 0;
        index  = next;
        total += size;
    }
    return (int64_t)total;
}

static int64_t send_some(cfw_tls *tls, const struct iovec *vectors, int count)
{
    int64_t done;

    if (tls->owed == 0) {
        done = seal(tls, vectors, count);
        if (done < 0) {
            return done;
        }
        tls->owed = (uint64_t)done;
    }
    done = flush(tls);
    if (done < 0) {
        return done;
    }
    /* Who sends goes on with the same bytes until the last of their records has left; a little
     * is owed until then. */
    if (tls->size > 0 && (uint64_t)done >= tls->owed) {
        done = (int64_t)tls->owed - 1;
    } else if (tls->size == 0) {
        done = (int64_t)tls->owed;
    }
    tls->owed -= (uint64_t)done;
    return done;
}

static int64_t receive_some(cfw_tls *tls, const struct iovec *vectors, int count)
{
    uint64_t total = 0;

    tls->drained = false;
    for (int index = 0; index < count; ++index) {
        char  *at   = vectors[index].iov_base;
        size_t left = vectors[index].iov_len;

        while (left > 0) {
            size_t size = 0;
            int    done = openssl.SSL_read_ex(tls->ssl, at, left, &size);

            if (done != 1) {
                int64_t why = outcome(tls, done);

                tls->drained = true;
                return total > 0 ? (int64_t)total : why;
            }
            at    += size;
            left  -= size;
            total += size;
        }
    }
    return (int64_t)total;
}

int64_t cfw_tls_move(cfw_tls *tls, const struct iovec *vectors, int count, bool out)
{
    openssl.ERR_clear_error();
    errno = 0;
    return out ? send_some(tls, vectors, count) : receive_some(tls, vectors, count);
}
