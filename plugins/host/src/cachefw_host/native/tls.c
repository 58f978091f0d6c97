/* TLS 1.3 for streams, by OpenSSL 3 opened at run time. Both ends hold a key of
 * their own link already and prove it, so there is no certificate to show. */
#define _GNU_SOURCE
#include "net.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

/* Facts of OpenSSL's ABI, which is stable throughout version 3. */
typedef struct ssl_ctx_st     SSL_CTX;
typedef struct ssl_st         SSL;
typedef struct ssl_session_st SSL_SESSION;
typedef struct evp_md_st      EVP_MD;

enum {
    SSL_ERROR_WANT_READ           = 2,
    SSL_ERROR_WANT_WRITE          = 3,
    SSL_ERROR_SYSCALL             = 5,
    SSL_ERROR_ZERO_RETURN         = 6,
    SSL_CTRL_MODE                 = 33,
    SSL_CTRL_SET_READ_AHEAD       = 41,
    SSL_CTRL_SET_MIN_PROTO        = 123,
    SSL_MODE_PARTIAL_WRITE        = 1,
    SSL_MODE_MOVING_WRITE_BUFFER  = 2,
    TLS1_3                        = 0x0304
};

/* Several records are read in one call of the kernel. */
#define READ_BUFFER (256u << 10)

typedef int (*use_callback)(SSL *, const EVP_MD *, const unsigned char **, size_t *, SSL_SESSION **);
typedef int (*find_callback)(SSL *, const unsigned char *, size_t, SSL_SESSION **);

static struct {
    const void *(*TLS_method)(void);
    SSL_CTX *(*SSL_CTX_new)(const void *);
    void (*SSL_CTX_free)(SSL_CTX *);
    long (*SSL_CTX_ctrl)(SSL_CTX *, int, long, void *);
    int (*SSL_CTX_set_ciphersuites)(SSL_CTX *, const char *);
    int (*SSL_CTX_set_num_tickets)(SSL_CTX *, size_t);
    void (*SSL_CTX_set_default_read_buffer_len)(SSL_CTX *, size_t);
    void (*SSL_CTX_set_psk_use_session_callback)(SSL_CTX *, use_callback);
    void (*SSL_CTX_set_psk_find_session_callback)(SSL_CTX *, find_callback);
    SSL *(*SSL_new)(SSL_CTX *);
    void (*SSL_free)(SSL *);
    int (*SSL_set_fd)(SSL *, int);
    int (*SSL_set_ex_data)(SSL *, int, void *);
    void *(*SSL_get_ex_data)(const SSL *, int);
    void (*SSL_set_connect_state)(SSL *);
    void (*SSL_set_accept_state)(SSL *);
    int (*SSL_do_handshake)(SSL *);
    int (*SSL_session_reused)(const SSL *);
    int (*SSL_read_ex)(SSL *, void *, size_t, size_t *);
    int (*SSL_write_ex)(SSL *, const void *, size_t, size_t *);
    int (*SSL_get_error)(const SSL *, int);
    int (*SSL_has_pending)(const SSL *);
    const void *(*SSL_CIPHER_find)(SSL *, const unsigned char *);
    SSL_SESSION *(*SSL_SESSION_new)(void);
    void (*SSL_SESSION_free)(SSL_SESSION *);
    int (*SSL_SESSION_set1_master_key)(SSL_SESSION *, const unsigned char *, size_t);
    int (*SSL_SESSION_set_cipher)(SSL_SESSION *, const void *);
    int (*SSL_SESSION_set_protocol_version)(SSL_SESSION *, int);
    void (*ERR_clear_error)(void);
} openssl;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static SSL_CTX       *context;
static int            missing = -ENOSYS;

struct cfw_tls {
    SSL    *ssl;
    bool    ready;   /* the handshake is done */
    bool    writes;  /* the handshake needs the socket to be writable */
    bool    drained; /* no whole record is left of what was read */
    uint8_t key[CFW_TLS_KEY];
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

static void open_library(void)
{
    static const char *const names[] = {
        "TLS_method", "SSL_CTX_new", "SSL_CTX_free", "SSL_CTX_ctrl", "SSL_CTX_set_ciphersuites",
        "SSL_CTX_set_num_tickets", "SSL_CTX_set_default_read_buffer_len",
        "SSL_CTX_set_psk_use_session_callback", "SSL_CTX_set_psk_find_session_callback", "SSL_new",
        "SSL_free", "SSL_set_fd", "SSL_set_ex_data", "SSL_get_ex_data", "SSL_set_connect_state",
        "SSL_set_accept_state", "SSL_do_handshake", "SSL_session_reused", "SSL_read_ex", "SSL_write_ex",
        "SSL_get_error", "SSL_has_pending", "SSL_CIPHER_find", "SSL_SESSION_new", "SSL_SESSION_free",
        "SSL_SESSION_set1_master_key", "SSL_SESSION_set_cipher", "SSL_SESSION_set_protocol_version",
        "ERR_clear_error"};
    /* The one that Python has loaded, if it has; it stays open. */
    void *library = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);

    _Static_assert(sizeof(openssl) == sizeof(names) / sizeof(names[0]) * sizeof(void *),
                   "a name for each function");
    for (size_t index = 0; library != NULL && index < sizeof(names) / sizeof(names[0]); ++index) {
        void *found = dlsym(library, names[index]);

        if (found == NULL) {
            return;
        }
        memcpy((char *)&openssl + index * sizeof(found), &found, sizeof(found));
    }
    if (library == NULL) {
        return;
    }
    context = openssl.SSL_CTX_new(openssl.TLS_method());
    if (context == NULL) {
        return;
    }
    if (!openssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO, TLS1_3, NULL) ||
        !openssl.SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256")) {
        openssl.SSL_CTX_free(context);
        return;
    }
    openssl.SSL_CTX_ctrl(context, SSL_CTRL_MODE,
                         SSL_MODE_PARTIAL_WRITE | SSL_MODE_MOVING_WRITE_BUFFER, NULL);
    openssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_READ_AHEAD, 1, NULL);
    openssl.SSL_CTX_set_default_read_buffer_len(context, READ_BUFFER);
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
    int      status = cfw_tls_probe();

    if (status != 0) {
        return status;
    }
    tls = calloc(1, sizeof(*tls));
    if (tls == NULL) {
        return -ENOMEM;
    }
    memcpy(tls->key, key, CFW_TLS_KEY);
    tls->ssl = openssl.SSL_new(context);
    if (tls->ssl == NULL || !openssl.SSL_set_fd(tls->ssl, fd) ||
        !openssl.SSL_set_ex_data(tls->ssl, 0, tls)) {
        cfw_tls_destroy(tls);
        return -ENOMEM;
    }
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
    return !tls->drained && openssl.SSL_has_pending(tls->ssl) ? wanted | EPOLLOUT : wanted;
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

int64_t cfw_tls_handshake(cfw_tls *tls)
{
    int done;

    if (tls->ready) {
        return 1;
    }
    openssl.ERR_clear_error();
    errno = 0;
    done  = openssl.SSL_do_handshake(tls->ssl);
    if (done != 1) {
        return outcome(tls, done);
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

int64_t cfw_tls_move(cfw_tls *tls, const struct iovec *vectors, int count, bool out)
{
    uint64_t total = 0;

    for (int index = 0; index < count; ++index) {
        char  *at   = vectors[index].iov_base;
        size_t left = vectors[index].iov_len;

        while (left > 0) {
            size_t  size = 0;
            int     done;
            int64_t why;

            openssl.ERR_clear_error();
            errno = 0;
            if (!out) {
                tls->drained = false;
            }
            done  = out ? openssl.SSL_write_ex(tls->ssl, at, left, &size)
                        : openssl.SSL_read_ex(tls->ssl, at, left, &size);
            if (done != 1) {
                why = outcome(tls, done);
                if (!out) {
                    tls->drained = true;
                }
                return total > 0 ? (int64_t)total : why;
            }
            at         += size;
            left       -= size;
            total      += size;
        }
    }
    return (int64_t)total;
}
