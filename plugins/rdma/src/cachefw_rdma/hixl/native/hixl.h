/* Prototypes of the functions in hixl.def, and checks that the structures are laid out as the vendor's are. */
#ifndef CACHEFW_HIXL_H
#define CACHEFW_HIXL_H

#include "hixl_types.h"

#define HIXL(name, params, args) HixlStatus name params;
#include "hixl.def"
#undef HIXL

#if UINTPTR_MAX == UINT64_MAX
#define HIXL_LAYOUT(type, member, at, size) \
    _Static_assert(offsetof(type, member) == (at) && sizeof(type) == (size), #type "." #member)
HIXL_LAYOUT(CommMem, size, 16, 24);
HIXL_LAYOUT(HixlAddress, bytes, 4, 40);
HIXL_LAYOUT(HixlLocation, super_pod, 16, 64);
HIXL_LAYOUT(EndpointDesc, location, 44, 160);
HIXL_LAYOUT(HixlServerConfig, reserved, 8, 128);
HIXL_LAYOUT(HixlClientConfig, reserved, 8, 128);
HIXL_LAYOUT(HixlServerDesc, endpoint_list_num, 20, 128);
HIXL_LAYOUT(HixlClientDesc, sl, 29, 128);
HIXL_LAYOUT(HixlOneSideOpDesc, len, 16, 24);
_Static_assert(sizeof(HixlCompleteStatus) == 4, "enumerations are as big as int");
#undef HIXL_LAYOUT
#endif

#endif
