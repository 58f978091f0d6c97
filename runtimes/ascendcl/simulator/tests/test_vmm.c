/* Virtual memory management: addresses and memory apart. */
#include "peer.h"

static void test_off(void)
{
    void *address;

    begin(0);
    CHECK_EQUAL(aclrtReserveMemAddress(&address, 2 * MIB, 0, NULL, 0), 207000);
    end();
}

static void test_mapping(void)
{
    aclrtPhysicalMemProp prop = {.memAttr = ACL_HBM_MEM_HUGE, .location = {1, ACL_MEM_LOCATION_TYPE_DEVICE}};
    aclrtMemAccessDesc   desc = {.flags = ACL_RT_MEM_ACCESS_FLAGS_READ, .location = {1, ACL_MEM_LOCATION_TYPE_DEVICE}};
    aclrtPtrAttributes   attributes;
    aclrtDrvMemHandle    memory, again;
    size_t               granularity;
    char                *address, key[65];
    void                *wrong;

    CHECK_OK(aclrtMemGetAllocationGranularity(&prop, ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, &granularity));
    CHECK_EQUAL(granularity, 2 * MIB);
    CHECK_EQUAL(aclrtReserveMemAddress(&wrong, 2 * MIB, 4096, NULL, 0), 107000);
    CHECK_EQUAL(aclrtReserveMemAddress(&wrong, 2 * MIB, 0, NULL, 2), 107000);
    CHECK_EQUAL(aclrtReserveMemAddress(&wrong, 2 * MIB, 0, (void *)4096, 0), 107000);
    CHECK_OK(aclrtReserveMemAddress((void **)&address, 8 * MIB, 0, NULL, 1));
    CHECK_EQUAL(aclrtMallocPhysical(&memory, 3 * MIB, &prop, 0), 507899);
    CHECK_EQUAL(aclrtMallocPhysical(&memory, 4 * MIB, &prop, 1), 107000);
    CHECK_OK(aclrtMallocPhysical(&memory, 4 * MIB, &prop, 0));
    CHECK_EQUAL(stats().device_bytes, 4 * MIB);
    CHECK_EQUAL(aclrtMapMem(address, 4 * MIB, 1, memory, 0), 107000);
    CHECK_EQUAL(aclrtMapMem(address, 2 * MIB, 0, memory, 0), 507899);
    CHECK_EQUAL(aclrtMapMem(address + 4096, 4 * MIB, 0, memory, 0), 507899);
    CHECK_EQUAL(aclrtMapMem(address + 6 * MIB, 4 * MIB, 0, memory, 0), 507899);
    CHECK_OK(aclrtMapMem(address + 2 * MIB, 4 * MIB, 0, memory, 0));
    CHECK_EQUAL(aclrtMapMem(address + 2 * MIB, 4 * MIB, 0, memory, 0), 507899);
    CHECK_OK(aclrtPointerGetAttributes(address + 3 * MIB, &attributes));
    CHECK(attributes.location.type == ACL_MEM_LOCATION_TYPE_DEVICE && attributes.location.id == 1);
    CHECK_EQUAL(aclrtPointerGetAttributes(address, &attributes), 507899); /* reserved, not mapped */
    put(address + 2 * MIB, 4 * MIB, 2);
    CHECK(same(address + 2 * MIB, 4 * MIB, 2));
    CHECK_OK(aclrtMemSetAccess(address + 2 * MIB, 4 * MIB, &desc, 1));
    CHECK_EQUAL(aclrtMemset(address + 2 * MIB, 8, 0, 8), 507899);
    CHECK_EQUAL(aclrtIpcMemGetExportKey(address + 2 * MIB, 64, key, 65, 0), 507899);
    CHECK_EQUAL(aclrtFree(address), 107000);
    CHECK_EQUAL(aclrtReleaseMemAddress(address), 107000); /* still mapped */
    CHECK_OK(aclrtMemRetainAllocationHandle(address + 3 * MIB, &again));
    CHECK_OK(aclrtFreePhysical(again));
    CHECK_OK(aclrtFreePhysical(memory)); /* takes effect with the unmap */
    CHECK_EQUAL(stats().device_bytes, 4 * MIB);
    CHECK_OK(aclrtUnmapMem(address + 2 * MIB));
    CHECK_EQUAL(stats().device_bytes, 0);
    CHECK_EQUAL(aclrtUnmapMem(address + 2 * MIB), 107000);
    CHECK_OK(aclrtReleaseMemAddress(address));
    CHECK_EQUAL(aclrtReleaseMemAddress(address), 107000);
}

static void test_sharing(void)
{
    aclrtPhysicalMemProp prop = {.memAttr = ACL_HBM_MEM_HUGE, .location = {0, ACL_MEM_LOCATION_TYPE_DEVICE}};
    aclrtMemFabricHandle fabric;
    aclrtDrvMemHandle    memory, other;
    uint64_t             shareable, more;
    int32_t              pid = 1;
    void                *address;
    peer                 process;

    CHECK_OK(aclrtMallocPhysical(&memory, 2 * MIB, &prop, 0));
    CHECK_EQUAL(aclrtMemExportToShareableHandleV2(memory, 0, ACL_MEM_SHARE_HANDLE_TYPE_FABRIC, &fabric), 207000);
    CHECK_OK(aclrtMemExportToShareableHandle(memory, ACL_MEM_HANDLE_TYPE_NONE, 0, &shareable));
    CHECK_EQUAL(aclrtMemExportToShareableHandle(memory, ACL_MEM_HANDLE_TYPE_NONE, 0, &more), 507899); /* once */
    CHECK_EQUAL(aclrtMemSetPidToShareableHandle(shareable, &pid, 0), 107000);
    CHECK_OK(aclrtMemSetPidToShareableHandle(shareable, &pid, 1));
    CHECK_EQUAL(aclrtMemSetPidToShareableHandle(shareable + 1, &pid, 1), 507899);
    CHECK_EQUAL(aclrtMemImportFromShareableHandle(shareable, 0, &other), 507899); /* its own */
    CHECK_EQUAL(stats().exports, 1);
    CHECK_OK(aclrtReserveMemAddress(&address, 2 * MIB, 0, NULL, 0));
    CHECK_OK(aclrtMapMem(address, 2 * MIB, 0, memory, 0));
    put(address, 2 * MIB, 7);
    process = peer_start(0);
    CHECK_EQUAL(peer_ask(&process, "physical %llu 7 %zu", (unsigned long long)shareable, 2 * MIB), 507899);
    pid = process.pid;
    CHECK_OK(aclrtMemSetPidToShareableHandle(shareable, &pid, 1));
    CHECK_EQUAL(peer_ask(&process, "physical %llu 7 %zu", (unsigned long long)shareable, 2 * MIB), 0);
    CHECK(strcmp(process.text, "1") == 0);
    CHECK_EQUAL(peer_end(&process), 0);
    CHECK_OK(aclrtUnmapMem(address));
    CHECK_OK(aclrtReleaseMemAddress(address));
    CHECK_OK(aclrtFreePhysical(memory));
    CHECK_EQUAL(stats().exports, 0);
}

void test_vmm(void)
{
    test_off();
    setenv("ACLSIM_VMM", "1", 1);
    begin(0);
    test_mapping();
    test_sharing();
    end();
    unsetenv("ACLSIM_VMM");
}
