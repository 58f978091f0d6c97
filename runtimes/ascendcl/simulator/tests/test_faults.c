/* A fault at every function of the list in turn: it returns the code, changes nothing, and the next call works. */
#include "check.h"

typedef struct {
    aclrtStream stream;
    aclrtEvent  event;
    char       *device, *host;
} things;

/* Every function, with arguments that need not be right: a fault comes before any of them is looked at. */
static aclError call(unsigned function)
{
    switch (function) {
    case SIM_FN_aclInit: return aclInit(NULL);
    case SIM_FN_aclFinalize: return aclFinalize();
    case SIM_FN_aclrtGetVersion: return aclrtGetVersion(NULL, NULL, NULL);
    case SIM_FN_aclrtSetDevice: return aclrtSetDevice(0);
    case SIM_FN_aclrtResetDevice: return aclrtResetDevice(0);
    case SIM_FN_aclrtResetDeviceForce: return aclrtResetDeviceForce(0);
    case SIM_FN_aclrtGetDevice: return aclrtGetDevice(NULL);
    case SIM_FN_aclrtGetDeviceCount: return aclrtGetDeviceCount(NULL);
    case SIM_FN_aclrtGetRunMode: return aclrtGetRunMode(NULL);
    case SIM_FN_aclrtGetDeviceInfo: return aclrtGetDeviceInfo(0, ACL_DEV_ATTR_PHY_CHIP_ID, NULL);
    case SIM_FN_aclrtGetPhyDevIdByLogicDevId: return aclrtGetPhyDevIdByLogicDevId(0, NULL);
    case SIM_FN_aclrtSynchronizeDevice: return aclrtSynchronizeDevice();
    case SIM_FN_aclrtCreateContext: return aclrtCreateContext(NULL, 0);
    case SIM_FN_aclrtDestroyContext: return aclrtDestroyContext(NULL);
    case SIM_FN_aclrtSetCurrentContext: return aclrtSetCurrentContext(NULL);
    case SIM_FN_aclrtGetCurrentContext: return aclrtGetCurrentContext(NULL);
    case SIM_FN_aclrtMalloc: return aclrtMalloc(NULL, 0, ACL_MEM_MALLOC_HUGE_FIRST);
    case SIM_FN_aclrtMallocAlign32: return aclrtMallocAlign32(NULL, 0, ACL_MEM_MALLOC_HUGE_FIRST);
    case SIM_FN_aclrtFree: return aclrtFree(NULL);
    case SIM_FN_aclrtMallocHost: return aclrtMallocHost(NULL, 0);
    case SIM_FN_aclrtFreeHost: return aclrtFreeHost(NULL);
    case SIM_FN_aclrtGetMemInfo: return aclrtGetMemInfo(ACL_HBM_MEM, NULL, NULL);
    case SIM_FN_aclrtPointerGetAttributes: return aclrtPointerGetAttributes(NULL, NULL);
    case SIM_FN_aclrtMemGetAddressRange: return aclrtMemGetAddressRange(NULL, NULL, NULL);
    case SIM_FN_aclrtMemset: return aclrtMemset(NULL, 0, 0, 0);
    case SIM_FN_aclrtMemcpy: return aclrtMemcpy(NULL, 0, NULL, 0, ACL_MEMCPY_DEFAULT);
    case SIM_FN_aclrtMemcpyAsync: return aclrtMemcpyAsync(NULL, 0, NULL, 0, ACL_MEMCPY_DEFAULT, NULL);
    case SIM_FN_aclrtMemcpyBatch: return aclrtMemcpyBatch(NULL, NULL, NULL, NULL, 0, NULL, NULL, 0, NULL);
    case SIM_FN_aclrtMemcpyBatchAsync:
        return aclrtMemcpyBatchAsync(NULL, NULL, NULL, NULL, 0, NULL, NULL, 0, NULL, NULL);
    case SIM_FN_aclrtCreateStream: return aclrtCreateStream(NULL);
    case SIM_FN_aclrtCreateStreamWithConfig: return aclrtCreateStreamWithConfig(NULL, 0, 0);
    case SIM_FN_aclrtDestroyStream: return aclrtDestroyStream(NULL);
    case SIM_FN_aclrtSynchronizeStream: return aclrtSynchronizeStream(NULL);
    case SIM_FN_aclrtSynchronizeStreamWithTimeout: return aclrtSynchronizeStreamWithTimeout(NULL, 0);
    case SIM_FN_aclrtStreamQuery: return aclrtStreamQuery(NULL, NULL);
    case SIM_FN_aclrtCreateEvent: return aclrtCreateEvent(NULL);
    case SIM_FN_aclrtCreateEventExWithFlag: return aclrtCreateEventExWithFlag(NULL, 0);
    case SIM_FN_aclrtDestroyEvent: return aclrtDestroyEvent(NULL);
    case SIM_FN_aclrtRecordEvent: return aclrtRecordEvent(NULL, NULL);
    case SIM_FN_aclrtQueryEventStatus: return aclrtQueryEventStatus(NULL, NULL);
    case SIM_FN_aclrtSynchronizeEvent: return aclrtSynchronizeEvent(NULL);
    case SIM_FN_aclrtStreamWaitEvent: return aclrtStreamWaitEvent(NULL, NULL);
    case SIM_FN_aclrtIpcMemGetExportKey: return aclrtIpcMemGetExportKey(NULL, 0, NULL, 0, 0);
    case SIM_FN_aclrtIpcMemSetImportPid: return aclrtIpcMemSetImportPid(NULL, NULL, 0);
    case SIM_FN_aclrtIpcMemImportByKey: return aclrtIpcMemImportByKey(NULL, NULL, 0);
    case SIM_FN_aclrtIpcMemClose: return aclrtIpcMemClose(NULL);
    case SIM_FN_aclrtDeviceGetBareTgid: return aclrtDeviceGetBareTgid(NULL);
    case SIM_FN_aclrtDeviceCanAccessPeer: return aclrtDeviceCanAccessPeer(NULL, 0, 0);
    case SIM_FN_aclrtDeviceEnablePeerAccess: return aclrtDeviceEnablePeerAccess(0, 1);
    case SIM_FN_aclrtDeviceDisablePeerAccess: return aclrtDeviceDisablePeerAccess(-1);
    case SIM_FN_aclrtDevicePeerAccessStatus: return aclrtDevicePeerAccessStatus(0, 0, NULL);
    case SIM_FN_aclrtGetDevicesTopo: return aclrtGetDevicesTopo(0, 0, NULL);
    case SIM_FN_aclrtMallocWithCfg: return aclrtMallocWithCfg(NULL, 0, ACL_MEM_MALLOC_HUGE_FIRST, NULL);
    case SIM_FN_aclrtMallocHostWithCfg: return aclrtMallocHostWithCfg(NULL, 0, NULL);
    case SIM_FN_aclrtHostRegister: return aclrtHostRegister(NULL, 0, ACL_HOST_REGISTER_MAPPED, NULL);
    case SIM_FN_aclrtHostRegisterV2: return aclrtHostRegisterV2(NULL, 0, 0);
    case SIM_FN_aclrtHostGetDevicePointer: return aclrtHostGetDevicePointer(NULL, NULL, 0);
    case SIM_FN_aclrtHostUnregister: return aclrtHostUnregister(NULL);
    case SIM_FN_aclrtReserveMemAddress: return aclrtReserveMemAddress(NULL, 0, 0, NULL, 0);
    case SIM_FN_aclrtReleaseMemAddress: return aclrtReleaseMemAddress(NULL);
    case SIM_FN_aclrtMallocPhysical: return aclrtMallocPhysical(NULL, 0, NULL, 0);
    case SIM_FN_aclrtFreePhysical: return aclrtFreePhysical(NULL);
    case SIM_FN_aclrtMapMem: return aclrtMapMem(NULL, 0, 0, NULL, 0);
    case SIM_FN_aclrtUnmapMem: return aclrtUnmapMem(NULL);
    case SIM_FN_aclrtMemSetAccess: return aclrtMemSetAccess(NULL, 0, NULL, 0);
    case SIM_FN_aclrtMemGetAllocationGranularity:
        return aclrtMemGetAllocationGranularity(NULL, ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, NULL);
    case SIM_FN_aclrtMemRetainAllocationHandle: return aclrtMemRetainAllocationHandle(NULL, NULL);
    case SIM_FN_aclrtMemExportToShareableHandle:
        return aclrtMemExportToShareableHandle(NULL, ACL_MEM_HANDLE_TYPE_NONE, 0, NULL);
    case SIM_FN_aclrtMemExportToShareableHandleV2:
        return aclrtMemExportToShareableHandleV2(NULL, 0, ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT, NULL);
    case SIM_FN_aclrtMemImportFromShareableHandle: return aclrtMemImportFromShareableHandle(0, 0, NULL);
    case SIM_FN_aclrtMemImportFromShareableHandleV2:
        return aclrtMemImportFromShareableHandleV2(NULL, ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT, 0, NULL);
    case SIM_FN_aclrtMemSetPidToShareableHandle: return aclrtMemSetPidToShareableHandle(0, NULL, 0);
    case SIM_FN_aclrtMemSetPidToShareableHandleV2:
        return aclrtMemSetPidToShareableHandleV2(NULL, ACL_MEM_SHARE_HANDLE_TYPE_DEFAULT, NULL, 0);
    default: check_failed(__FILE__, __LINE__, "a function of the list has no fault test");
    }
}

static bool gives_text(unsigned function)
{
    return function == SIM_FN_aclGetRecentErrMsg || function == SIM_FN_aclrtGetSocName;
}

static void test_every_function(void)
{
    const char *text;

    for (unsigned function = 0; function < SIM_NUM_FUNCTIONS; ++function) {
        const aclsimStatistics before = stats();
        const char            *name   = sim_function_name(function);
        aclsimStatistics       after;

        if (gives_text(function)) {
            continue;
        }
        CHECK_EQUAL(aclsimFail(name, 1, 654321), 0);
        CHECK_EQUAL(call(function), 654321);
        text = aclGetRecentErrMsg();
        CHECK(text != NULL && strstr(text, name) != NULL && strstr(text, "654321") != NULL);
        after = stats();
        CHECK(memcmp(&before, &after, sizeof(before)) == 0);
        /* Spent, and no other call is touched; some of these would succeed, and end the process's things. */
        if (function != SIM_FN_aclFinalize && function != SIM_FN_aclrtResetDevice &&
            function != SIM_FN_aclrtResetDeviceForce && function != SIM_FN_aclrtSetDevice) {
            CHECK(call(function) != 654321);
        }
        (void)aclGetRecentErrMsg();
    }
    CHECK_EQUAL(aclsimFail("aclrtGetSocName", 1, 5), 0);
    CHECK(aclrtGetSocName() == NULL);
    CHECK(aclrtGetSocName() != NULL);
    CHECK_EQUAL(aclsimFail("aclGetRecentErrMsg", 1, 5), 0);
    CHECK(aclGetRecentErrMsg() == NULL);
}

static aclError use(things *all)
{
    aclError code;

    memset(all, 0, sizeof(*all));
    if ((code = aclrtCreateStream(&all->stream)) != 0 || (code = aclrtCreateEvent(&all->event)) != 0 ||
        (code = aclrtMalloc((void **)&all->device, MIB, ACL_MEM_MALLOC_HUGE_FIRST)) != 0 ||
        (code = aclrtMallocHost((void **)&all->host, MIB)) != 0 ||
        (code = aclrtMemcpyAsync(all->device, MIB, all->host, MIB, ACL_MEMCPY_HOST_TO_DEVICE, all->stream)) != 0 ||
        (code = aclrtRecordEvent(all->event, all->stream)) != 0) {
        return code;
    }
    return aclrtSynchronizeStream(all->stream);
}

static void undo(things *all)
{
    if (all->device != NULL) {
        CHECK_OK(aclrtFree(all->device));
    }
    if (all->host != NULL) {
        CHECK_OK(aclrtFreeHost(all->host));
    }
    if (all->event != NULL) {
        CHECK_OK(aclrtDestroyEvent(all->event));
    }
    if (all->stream != NULL) {
        CHECK_OK(aclrtDestroyStream(all->stream));
    }
}

/* The nth call of a piece of work, whatever it is, for every n. */
static void test_every_call(void)
{
    const uint64_t streams = stats().streams;
    things         all;
    int            nth = 1;

    for (;; ++nth) {
        aclError code;

        CHECK_EQUAL(aclsimFail("*", nth, 207001), 0);
        code = use(&all);
        aclsimClear();
        undo(&all);
        CHECK_EQUAL(stats().device_bytes, 0);
        CHECK_EQUAL(stats().streams, streams);
        if (code == ACL_SUCCESS) {
            break;
        }
        CHECK_EQUAL(code, 207001);
    }
    CHECK_EQUAL(nth, 8);
}

static void test_requests(void)
{
    const int64_t calls = aclsimCalls("aclrtGetDevice");
    int32_t       device;

    CHECK_EQUAL(aclsimFail("aclrtNothing", 1, 5), -1);
    CHECK_EQUAL(aclsimFail(NULL, 1, 5), -1);
    CHECK_EQUAL(aclsimFail("aclrtFree", -1, 5), -1);
    CHECK_EQUAL(aclsimFail("aclrtFree", 1, 0), -1);
    CHECK_EQUAL(aclsimCalls("aclrtNothing"), -1);
    CHECK_EQUAL(aclsimFail("aclrtGetDevice", 3, 107001), 0);
    CHECK_EQUAL(aclsimFail("aclrtGetDevice", 2, 107002), 0);
    CHECK_OK(aclrtGetDevice(&device));
    CHECK_EQUAL(aclrtGetDevice(&device), 107002);
    CHECK_EQUAL(aclrtGetDevice(&device), 107001);
    CHECK_OK(aclrtGetDevice(&device));
    CHECK_EQUAL(aclsimCalls("aclrtGetDevice"), calls + 4);
    CHECK_EQUAL(aclsimFail("aclrtGetDevice", 0, 107001), 0);
    CHECK_EQUAL(aclrtGetDevice(&device), 107001);
    CHECK_EQUAL(aclrtGetDevice(&device), 107001);
    aclsimClear();
    CHECK_OK(aclrtGetDevice(&device));
    for (unsigned index = 0; index < 32; ++index) {
        CHECK_EQUAL(aclsimFail("aclrtFree", 1000, 5), 0);
    }
    CHECK_EQUAL(aclsimFail("aclrtFree", 1000, 5), -1);
    aclsimClear();
}

void test_faults(void)
{
    setenv("ACLSIM_FAIL", "aclInit:x:5", 1);
    CHECK_EQUAL(aclInit(NULL), 100000);
    setenv("ACLSIM_FAIL", "aclInit:1:207004,aclrtSetDevice:2:507899", 1);
    setenv("ACLSIM_VMM", "1", 1);
    CHECK_EQUAL(aclInit(NULL), 207004);
    begin(0);
    CHECK_EQUAL(aclrtSetDevice(0), 507899);
    test_every_function();
    test_every_call();
    test_requests();
    end();
    unsetenv("ACLSIM_FAIL");
    unsetenv("ACLSIM_VMM");
}
