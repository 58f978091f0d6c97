/* A library that links but does nothing, like the toolkit's own stubs: every call answers that it is one. */
#include "acl.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

#define ACL(name, params, args)                                                                                        \
    aclError name params                                                                                               \
    {                                                                                                                  \
        return ACL_ERROR_COMPILING_STUB_MODE;                                                                          \
    }
#define ACL_TEXT(name, params, args)                                                                                   \
    const char *name params                                                                                            \
    {                                                                                                                  \
        return NULL;                                                                                                   \
    }
#include "acl.def"
