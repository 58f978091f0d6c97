/* OpenSSL 3, opened at run time: nothing is linked, and what needs no TLS needs no OpenSSL. */
#define _GNU_SOURCE
#include "openssl.h"

#include <dlfcn.h>
#include <string.h>

cfw_openssl openssl;

bool cfw_openssl_open(void)
{
    static const char *const names[] = {
        "TLS_method", "SSL_CTX_new", "SSL_CTX_free", "SSL_CTX_ctrl", "SSL_CTX_set_ciphersuites",
        "SSL_CTX_set_num_tickets",
        "SSL_CTX_set_psk_use_session_callback", "SSL_CTX_set_psk_find_session_callback", "SSL_new",
        "SSL_free", "SSL_set_bio", "SSL_set_ex_data", "SSL_get_ex_data", "SSL_set_connect_state",
        "SSL_set_accept_state", "SSL_do_handshake", "SSL_session_reused", "SSL_read_ex", "SSL_write_ex",
        "SSL_get_error", "SSL_has_pending", "SSL_CIPHER_find", "SSL_SESSION_new", "SSL_SESSION_free",
        "SSL_SESSION_set1_master_key", "SSL_SESSION_set_cipher", "SSL_SESSION_set_protocol_version",
        "ERR_clear_error", "BIO_meth_new", "BIO_meth_free", "BIO_meth_set_read", "BIO_meth_set_write",
        "BIO_meth_set_ctrl", "BIO_new", "BIO_set_data", "BIO_get_data", "BIO_set_init", "BIO_set_flags",
        "BIO_clear_flags"};
    /* The one that Python has loaded, if it has; it stays open. */
    void *library = dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);

    _Static_assert(sizeof(openssl) == sizeof(names) / sizeof(names[0]) * sizeof(void *),
                   "a name for each function");
    for (size_t index = 0; library != NULL && index < sizeof(names) / sizeof(names[0]); ++index) {
        void *found = dlsym(library, names[index]);

        if (found == NULL) {
            return false;
        }
        memcpy((char *)&openssl + index * sizeof(found), &found, sizeof(found));
    }
    return library != NULL;
}
