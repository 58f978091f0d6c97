/* Life, devices, contexts per thread, handles, messages. */
#include "check.h"

static void test_life(void)
{
    int32_t     major, minor, patch;
    const char *text;

    CHECK_EQUAL(aclFinalize(), ACL_ERROR_UNINITIALIZE);
    CHECK_OK(aclInit(NULL));
    CHECK_EQUAL(aclInit(NULL), ACL_ERROR_REPEAT_INITIALIZE);
    text = aclGetRecentErrMsg();
    CHECK(text != NULL && strstr(text, "aclInit") != NULL && strstr(text, "100002") != NULL);
    CHECK(aclGetRecentErrMsg() == NULL); /* reading takes it */
    CHECK_OK(aclrtGetVersion(&major, &minor, &patch));
    CHECK(strstr(aclsimVersion(), "SIMULATED") != NULL);
    CHECK(strcmp(aclrtGetSocName(), "Ascend910B3") == 0);
    CHECK_OK(aclFinalize());
    CHECK_EQUAL(aclFinalize(), ACL_ERROR_REPEAT_FINALIZE);
    CHECK_EQUAL(aclInit("/nowhere/acl.json"), ACL_ERROR_INVALID_PARAM);
    CHECK_OK(aclInit(""));
    CHECK_OK(aclFinalize());
}

static void test_options(void)
{
    uint32_t count;
    uint64_t links;

    setenv("ACLSIM_MODE", "opem", 1);
    CHECK_EQUAL(aclInit(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK(strstr(aclGetRecentErrMsg(), "opem") != NULL);
    unsetenv("ACLSIM_MODE");
    setenv("ACLSIM_DEVICES", "4", 1);
    setenv("ACLSIM_HBM", "64M", 1);
    setenv("ACLSIM_SOC", "Ascend910_9392", 1);
    setenv("ACLSIM_TOPOLOGY", "0..1-2..3=none,0-3=pix", 1);
    CHECK_OK(aclInit(NULL));
    CHECK_OK(aclrtGetDeviceCount(&count));
    CHECK_EQUAL(count, 4);
    CHECK(strcmp(aclrtGetSocName(), "Ascend910_9392") == 0);
    CHECK_OK(aclrtGetDevicesTopo(0, 1, &links));
    CHECK_EQUAL(links, ACL_RT_DEVS_TOPOLOGY_HCCS);
    CHECK_OK(aclrtGetDevicesTopo(2, 1, &links));
    CHECK_EQUAL(links, 0);
    CHECK_OK(aclrtGetDevicesTopo(3, 0, &links));
    CHECK_EQUAL(links, ACL_RT_DEVS_TOPOLOGY_PIX);
    CHECK_EQUAL(aclrtGetDevicesTopo(4, 0, &links), ACL_ERROR_RT_INVALID_DEVICEID);
    CHECK_OK(aclrtSetDevice(0));
    CHECK_EQUAL(aclrtDeviceEnablePeerAccess(2, 0), ACL_ERROR_RT_FEATURE_NOT_SUPPORT);
    CHECK_OK(aclrtDeviceEnablePeerAccess(3, 0));
    CHECK_OK(aclFinalize());
    unsetenv("ACLSIM_DEVICES");
    unsetenv("ACLSIM_HBM");
    unsetenv("ACLSIM_SOC");
    setenv("ACLSIM_TOPOLOGY", "0-1=wire", 1);
    CHECK(aclrtGetSocName() == NULL);
    CHECK(strstr(aclGetRecentErrMsg(), "0-1=wire") != NULL);
    unsetenv("ACLSIM_TOPOLOGY");
}

/* Older drivers and kernels. */
static void test_older(void)
{
    aclrtPtrAttributes attributes;
    void              *memory = aligned_alloc(4096, 4096), *host, *device;

    setenv("ACLSIM_PLAIN_MEMORY", "host", 1);
    setenv("ACLSIM_HOST_REGISTER", "pinned", 1);
    begin(0);
    CHECK_OK(aclrtPointerGetAttributes(memory, &attributes));
    CHECK_EQUAL(attributes.location.type, ACL_MEM_LOCATION_TYPE_HOST);
    CHECK_EQUAL(aclrtHostRegister(memory, 4096, ACL_HOST_REGISTER_MAPPED, &device), 207000);
    host = host_memory(4096);
    CHECK_OK(aclrtHostRegister(host, 4096, ACL_HOST_REGISTER_MAPPED, &device));
    CHECK_OK(aclrtHostUnregister(host));
    CHECK_OK(aclrtFreeHost(host));
    end();
    unsetenv("ACLSIM_PLAIN_MEMORY");
    unsetenv("ACLSIM_HOST_REGISTER");
    free(memory);
}

static void test_devices(void)
{
    aclrtRunMode mode;
    int64_t      value;
    int32_t      device;

    CHECK_OK(aclInit(NULL));
    CHECK_EQUAL(aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK_EQUAL(aclrtSetDevice(8), ACL_ERROR_RT_INVALID_DEVICEID);
    CHECK_EQUAL(aclrtSetDevice(-1), ACL_ERROR_RT_INVALID_DEVICEID);
    CHECK_OK(aclrtSetDevice(3));
    CHECK_OK(aclrtSetDevice(3));
    CHECK_OK(aclrtResetDevice(3));
    CHECK_OK(aclrtGetDevice(&device)); /* counted */
    CHECK_EQUAL(device, 3);
    CHECK_OK(aclrtSetDevice(3));
    CHECK_OK(aclrtResetDeviceForce(3));
    CHECK_EQUAL(aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK_EQUAL(aclrtResetDevice(3), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK_OK(aclrtGetRunMode(&mode));
    CHECK_EQUAL(mode, ACL_HOST);
    CHECK_OK(aclrtGetDeviceInfo(2, ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE, &value));
    CHECK_EQUAL(value, 4ll << 30);
    CHECK_EQUAL(aclrtGetDeviceInfo(2, (aclrtDevAttr)9999, &value), ACL_ERROR_RT_PARAM_INVALID);
    CHECK_OK(aclrtGetPhyDevIdByLogicDevId(2, &device));
    CHECK_EQUAL(device, 2);
    CHECK_EQUAL(aclrtGetDeviceCount(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK_OK(aclFinalize());
}

static void *without_context(void *nothing)
{
    int32_t device;
    void   *memory;

    CHECK_EQUAL(aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK_EQUAL(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK_EQUAL(aclrtMallocHost(&memory, 64), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK_EQUAL(aclrtMemcpy(&memory, 8, &device, 4, ACL_MEMCPY_DEFAULT), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK_EQUAL(aclrtCreateStream(&memory), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK_EQUAL(aclrtCreateEvent(&memory), ACL_ERROR_RT_CONTEXT_NULL);
    CHECK(strstr(aclGetRecentErrMsg(), "aclrtCreateEvent") != NULL);
    CHECK_OK(aclrtSetDevice(1));
    CHECK_OK(aclrtGetDevice(&device));
    CHECK_EQUAL(device, 1);
    return nothing;
}

static void test_contexts(void)
{
    aclrtContext first, second, now;
    aclrtStream  stream;
    pthread_t    thread;
    int32_t      device;

    begin(0);
    CHECK_OK(aclrtGetCurrentContext(&first));
    CHECK_EQUAL(pthread_create(&thread, NULL, without_context, NULL), 0);
    pthread_join(thread, NULL);
    CHECK_OK(aclrtGetDevice(&device)); /* not the other thread's */
    CHECK_EQUAL(device, 0);
    CHECK_OK(aclrtCreateContext(&second, 0));
    CHECK_OK(aclrtGetCurrentContext(&now));
    CHECK(now == second);
    CHECK_OK(aclrtCreateStream(&stream));
    CHECK_OK(aclrtSetCurrentContext(first));
    CHECK_EQUAL(aclrtSynchronizeStream(stream), ACL_ERROR_RT_STREAM_CONTEXT);
    CHECK_EQUAL(aclrtDestroyStream(stream), ACL_ERROR_RT_STREAM_CONTEXT);
    CHECK_EQUAL(aclrtDestroyContext(first), ACL_ERROR_RT_PARAM_INVALID);
    CHECK_OK(aclrtDestroyContext(second));
    CHECK_EQUAL(aclrtSynchronizeStream(stream), ACL_ERROR_RT_INVALID_HANDLE); /* went with it */
    CHECK_EQUAL(aclrtSetCurrentContext(second), ACL_ERROR_RT_INVALID_HANDLE);
    CHECK_EQUAL(aclrtSetCurrentContext(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK_EQUAL(aclrtDestroyEvent(first), ACL_ERROR_RT_INVALID_HANDLE); /* a handle, but of something else */
    CHECK_EQUAL(aclrtDestroyStream(&device), ACL_ERROR_RT_INVALID_HANDLE);
    end();
}

static void test_peers(void)
{
    int32_t answer;

    begin(0);
    CHECK_OK(aclrtDeviceCanAccessPeer(&answer, 0, 1));
    CHECK_EQUAL(answer, 1);
    CHECK_OK(aclrtDeviceCanAccessPeer(&answer, 0, 0));
    CHECK_EQUAL(answer, 0);
    CHECK_EQUAL(aclrtDeviceEnablePeerAccess(1, 1), ACL_ERROR_FEATURE_UNSUPPORTED);
    CHECK_EQUAL(aclrtDeviceEnablePeerAccess(0, 0), ACL_ERROR_INVALID_PARAM);
    CHECK_EQUAL(aclrtDeviceEnablePeerAccess(64, 0), ACL_ERROR_RT_INVALID_DEVICEID);
    CHECK_OK(aclrtDeviceEnablePeerAccess(1, 0));
    CHECK_OK(aclrtDevicePeerAccessStatus(0, 1, &answer));
    CHECK_EQUAL(answer, 1);
    CHECK_OK(aclrtDevicePeerAccessStatus(1, 0, &answer)); /* one way */
    CHECK_EQUAL(answer, 0);
    CHECK_OK(aclrtDeviceDisablePeerAccess(1));
    CHECK_OK(aclrtDevicePeerAccessStatus(0, 1, &answer));
    CHECK_EQUAL(answer, 0);
    end();
}

void test_calls(void)
{
    const char *mode = getenv("ACLSIM_MODE");
    char        kept[16];

    snprintf(kept, sizeof(kept), "%s", mode != NULL ? mode : "strict");
    setenv("ACLSIM_MODE", "strict", 1); /* test_options leaves the default */
    test_life();
    test_options();
    test_older();
    test_devices();
    test_contexts();
    test_peers();
    setenv("ACLSIM_MODE", kept, 1);
}
