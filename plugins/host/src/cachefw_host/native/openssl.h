/* What of OpenSSL 3 is called, opened at run time. */
#ifndef CACHEFW_HOST_OPENSSL_H
#define CACHEFW_HOST_OPENSSL_H

#include <stdbool.h>
#include <stddef.h>

/* Facts of OpenSSL's ABI, which is stable throughout version 3. */
typedef struct ssl_ctx_st     SSL_CTX;
typedef struct ssl_st         SSL;
typedef struct ssl_session_st SSL_SESSION;
typedef struct evp_md_st      EVP_MD;
typedef struct bio_st         BIO;
typedef struct bio_method_st  BIO_METHOD;

enum {
    SSL_ERROR_WANT_READ           = 2,
    SSL_ERROR_WANT_WRITE          = 3,
    SSL_ERROR_SYSCALL             = 5,
    SSL_ERROR_ZERO_RETURN         = 6,
    SSL_CTRL_SET_MIN_PROTO        = 123,
    BIO_CTRL_EOF                  = 2,
    BIO_CTRL_FLUSH                = 11,
    BIO_FLAGS_READ                = 1,
    BIO_FLAGS_SHOULD_RETRY        = 8,
    BIO_TYPE_SOURCE_SINK          = 0x400,
    TLS1_3                        = 0x0304
};

typedef int (*use_callback)(SSL *, const EVP_MD *, const unsigned char **, size_t *, SSL_SESSION **);
typedef int (*find_callback)(SSL *, const unsigned char *, size_t, SSL_SESSION **);

/* NULL each until cfw_openssl_open() has found all of them. */
typedef struct {
    const void *(*TLS_method)(void);
    SSL_CTX *(*SSL_CTX_new)(const void *);
    void (*SSL_CTX_free)(SSL_CTX *);
    long (*SSL_CTX_ctrl)(SSL_CTX *, int, long, void *);
    int (*SSL_CTX_set_ciphersuites)(SSL_CTX *, const char *);
    int (*SSL_CTX_set_num_tickets)(SSL_CTX *, size_t);
    void (*SSL_CTX_set_psk_use_session_callback)(SSL_CTX *, use_callback);
    void (*SSL_CTX_set_psk_find_session_callback)(SSL_CTX *, find_callback);
    SSL *(*SSL_new)(SSL_CTX *);
    void (*SSL_free)(SSL *);
    void (*SSL_set_bio)(SSL *, BIO *, BIO *);
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
    BIO_METHOD *(*BIO_meth_new)(int, const char *);
    void (*BIO_meth_free)(BIO_METHOD *);
    int (*BIO_meth_set_read)(BIO_METHOD *, int (*)(BIO *, char *, int));
    int (*BIO_meth_set_write)(BIO_METHOD *, int (*)(BIO *, const char *, int));
    int (*BIO_meth_set_ctrl)(BIO_METHOD *, long (*)(BIO *, int, long, void *));
    BIO *(*BIO_new)(const BIO_METHOD *);
    void (*BIO_set_data)(BIO *, void *);
    void *(*BIO_get_data)(BIO *);
    void (*BIO_set_init)(BIO *, int);
    void (*BIO_set_flags)(BIO *, int);
    void (*BIO_clear_flags)(BIO *, int);
} cfw_openssl;

extern cfw_openssl openssl __attribute__((visibility("hidden")));

/* Whether it is here. Not for two threads at once. */
bool cfw_openssl_open(void);

#endif
