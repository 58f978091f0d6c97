/* Every function of the list, doing nothing. What fake.c defines takes precedence.
 *
 * -D STUB makes what the toolkit ships for linking. -D aclrtX=hidden leaves out aclrtX, as an older CANN does. */
#include "acl.h"

int fake_enter(const char *name);

#ifdef STUB
#define ACL(name, params, args) aclError name params { return ACL_ERROR_COMPILING_STUB_MODE; }
#else
#define ACL(name, params, args) __attribute__((weak)) aclError name params { return fake_enter(#name); }
#endif
#define ACL_TEXT(name, params, args) __attribute__((weak)) const char *name params { return NULL; }
#include "acl.def"
