/* Prototypes of the functions in acl.def, and checks that the structures are laid out as the vendor's are. */
#ifndef CACHEFW_ACL_H
#define CACHEFW_ACL_H

#include "acl_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ACL(name, params, args) aclError name params;
#define ACL_TEXT(name, params, args) const char *name params;
#include "acl.def"
#undef ACL
#undef ACL_TEXT

#ifdef __cplusplus
}
#endif

#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L && UINTPTR_MAX == UINT64_MAX
#define ACL_LAYOUT(type, member, at, size) \
    _Static_assert(offsetof(type, member) == (at) && sizeof(type) == (size), #type "." #member)
ACL_LAYOUT(aclrtMemLocation, type, 4, 8);
ACL_LAYOUT(aclrtPtrAttributes, pageSize, 8, 28);
ACL_LAYOUT(aclrtMallocAttribute, value, 4, 12);
ACL_LAYOUT(aclrtMallocConfig, numAttrs, 8, 16);
ACL_LAYOUT(aclrtMemcpyBatchAttr, rsv, 16, 32);
ACL_LAYOUT(aclrtPhysicalMemProp, location, 12, 32);
ACL_LAYOUT(aclrtPhysicalMemProp, reserve, 24, 32);
ACL_LAYOUT(aclrtMemAccessDesc, location, 4, 24);
ACL_LAYOUT(aclrtMemFabricHandle, data, 0, 128);
_Static_assert(sizeof(aclrtMemcpyKind) == 4 && sizeof(aclrtMemMallocPolicy) == 4, "enumerations are as big as int");
#undef ACL_LAYOUT
#endif

#endif
