/* Allocation, pages, attributes, capacity; host memory. */
#include "check.h"

#include <sys/mman.h>

static void range_of(void *memory, void **base, size_t *size)
{
    CHECK_OK(aclrtMemGetAddressRange(memory, base, size));
}

static void test_sizes(void)
{
    static const struct {
        aclrtMemMallocPolicy policy;
        size_t               size, page, rounded;
        bool                 align32;
    } cases[] = {
        {ACL_MEM_MALLOC_HUGE_FIRST, 1, 4096, 4096, false},
        {ACL_MEM_MALLOC_HUGE_FIRST, MIB - 32, 4096, MIB, false},
        {ACL_MEM_MALLOC_HUGE_FIRST, MIB, 2 * MIB, 2 * MIB, false}, /* rounded it exceeds the threshold */
        {ACL_MEM_MALLOC_HUGE_FIRST, MIB, 4096, MIB, true},
        {ACL_MEM_MALLOC_HUGE_ONLY, 1, 2 * MIB, 2 * MIB, false},
        {ACL_MEM_MALLOC_HUGE_ONLY, 2 * MIB, 2 * MIB, 4 * MIB, false}, /* 32 bytes more */
        {ACL_MEM_MALLOC_HUGE_ONLY, 2 * MIB, 2 * MIB, 2 * MIB, true},
        {ACL_MEM_MALLOC_NORMAL_ONLY, 4 * MIB, 4096, 4 * MIB, true},
        {ACL_MEM_MALLOC_HUGE_ONLY_P2P, 3 * MIB, 2 * MIB, 4 * MIB, true},
        {ACL_MEM_MALLOC_HUGE1G_ONLY, 1, 1024 * MIB, 1024 * MIB, true},
    };
    aclrtPtrAttributes attributes;
    void              *memory, *base;
    size_t             size;

    for (size_t index = 0; index < sizeof(cases) / sizeof(cases[0]); ++index) {
        CHECK_OK(cases[index].align32 ? aclrtMallocAlign32(&memory, cases[index].size, cases[index].policy)
                                      : aclrtMalloc(&memory, cases[index].size, cases[index].policy));
        CHECK_EQUAL((uintptr_t)memory % cases[index].page, 0);
        CHECK(cases[index].page > 4096 || (uintptr_t)memory % (2 * MIB) != 0);
        CHECK_OK(aclrtPointerGetAttributes((char *)memory + cases[index].size - 1, &attributes));
        CHECK_EQUAL(attributes.location.type, ACL_MEM_LOCATION_TYPE_DEVICE);
        CHECK_EQUAL(attributes.location.id, 0);
        CHECK_EQUAL(attributes.pageSize, cases[index].page);
        range_of((char *)memory + 1, &base, &size);
        CHECK(base == memory && size == cases[index].rounded);
        CHECK_EQUAL(stats().device_bytes, cases[index].rounded);
        CHECK_OK(aclrtFree(memory));
    }
}

static void test_refusals(void)
{
    void *memory = device_memory(2 * MIB), *host = host_memory(4096), *none = NULL;
    char  plain[64];

    CHECK_EQUAL(aclrtMalloc(NULL, 1, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
    CHECK_EQUAL(aclrtMalloc(&none, 0, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
    CHECK_EQUAL(aclrtMalloc(&none, 1, (aclrtMemMallocPolicy)77), ACL_ERROR_RT_INVALID_MALLOC_TYPE);
    CHECK_EQUAL(aclrtMalloc(&none, SIZE_MAX - 5, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_MEMORY_ALLOCATION);
    CHECK(none == NULL);
    CHECK_EQUAL(aclrtFree(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK_EQUAL(aclrtFree(plain), ACL_ERROR_RT_PARAM_INVALID);
    CHECK_EQUAL(aclrtFree((char *)memory + 64), ACL_ERROR_RT_PARAM_INVALID);
    CHECK_EQUAL(aclrtFree(host), ACL_ERROR_RT_PARAM_INVALID);
    CHECK_EQUAL(aclrtFreeHost(memory), ACL_ERROR_RT_PARAM_INVALID);
    CHECK_EQUAL(aclrtFreeHost(NULL), ACL_ERROR_INVALID_PARAM);
    CHECK_OK(aclrtFree(memory));
    CHECK_EQUAL(aclrtFree(memory), ACL_ERROR_RT_PARAM_INVALID);
    CHECK_OK(aclrtFreeHost(host));
    CHECK_EQUAL(aclrtFreeHost(host), ACL_ERROR_RT_PARAM_INVALID);
}

static void test_capacity(void)
{
    const size_t unit = 1024 * MIB;
    void        *memory[4], *more = NULL;
    size_t       before, after, total;

    CHECK_OK(aclrtGetMemInfo(ACL_HBM_MEM, &before, &total));
    CHECK(before == total && total == 4 * unit);
    for (unsigned index = 0; index < 4; ++index) {
        memory[index] = device_memory(unit);
    }
    CHECK_OK(aclrtGetMemInfo(ACL_HBM_MEM_HUGE, &after, &total));
    CHECK_EQUAL(after, 0);
    CHECK_EQUAL(aclrtMalloc(&more, 1, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_ERROR_RT_MEMORY_ALLOCATION);
    CHECK(strstr(aclGetRecentErrMsg(), "device 0") != NULL);
    CHECK_OK(aclrtFree(memory[2]));
    memory[2] = device_memory(unit - 2 * MIB);
    CHECK_EQUAL(aclrtMalloc(&more, 3 * MIB, ACL_MEM_MALLOC_HUGE_ONLY), ACL_ERROR_RT_MEMORY_ALLOCATION);
    CHECK_OK(aclrtMalloc(&more, 2 * MIB - 64, ACL_MEM_MALLOC_HUGE_FIRST));
    CHECK_OK(aclrtFree(more));
    for (unsigned index = 0; index < 4; ++index) {
        CHECK_OK(aclrtFree(memory[index]));
    }
    CHECK_EQUAL(aclrtGetMemInfo((aclrtMemAttr)99, &after, &total), ACL_ERROR_RT_PARAM_INVALID);
}

static void test_pointers(void)
{
    void              *memory = device_memory(2 * MIB), *host = host_memory(5000);
    aclrtPtrAttributes attributes;
    char               plain[64];
    void              *base;
    size_t             size;

    CHECK_OK(aclrtPointerGetAttributes(host, &attributes));
    CHECK_EQUAL(attributes.location.type, ACL_MEM_LOCATION_TYPE_HOST);
    CHECK_EQUAL(attributes.pageSize, 4096);
    CHECK_OK(aclrtPointerGetAttributes(plain, &attributes));
    CHECK_EQUAL(attributes.location.type, ACL_MEM_LOCATION_TYPE_UNREGISTERED);
    CHECK_OK(aclrtFree(memory));
    CHECK_EQUAL(aclrtPointerGetAttributes(memory, &attributes), 507899);
    CHECK_EQUAL(aclrtMemGetAddressRange(memory, &base, &size), 507899);
    CHECK_EQUAL(aclrtMemGetAddressRange(plain, &base, &size), 507899);
    range_of((char *)host + 4999, &base, &size);
    CHECK(base == host && size == 8192);
    fill(host, 5000, 1); /* host memory is the CPU's */
    CHECK_OK(aclrtFreeHost(host));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    CHECK((uintptr_t)host >= 0x70000000000 && (uintptr_t)host < 0x80000000000);
    CHECK((uintptr_t)memory >= 0x100000000000 && (uintptr_t)memory < 0x180000000000);
#endif
}

static void test_registered(void)
{
    char              *memory = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void              *host = host_memory(8192), *device = NULL, *again = NULL;
    aclrtPtrAttributes attributes;

    CHECK(memory != MAP_FAILED);
    CHECK_EQUAL(aclrtHostRegister(NULL, 1, ACL_HOST_REGISTER_MAPPED, &device), ACL_ERROR_INVALID_PARAM);
    CHECK_EQUAL(aclrtHostRegister(memory, 0, ACL_HOST_REGISTER_MAPPED, &device), ACL_ERROR_INVALID_PARAM);
    CHECK_EQUAL(aclrtHostRegister(memory + 64, 4096, ACL_HOST_REGISTER_MAPPED, &device), 507899);
    CHECK_EQUAL(aclrtHostRegister(memory, 4096, (aclrtHostRegisterType)2, &device), 207000);
    CHECK_OK(aclrtHostRegister(memory, 5000, ACL_HOST_REGISTER_MAPPED, &device));
    CHECK(device != NULL && device != memory);
    CHECK_EQUAL(aclrtHostRegister(memory + 4096, 4096, ACL_HOST_REGISTER_MAPPED, &again), 507910);
    CHECK_OK(aclrtHostGetDevicePointer(memory + 10, &again, 0));
    CHECK(again == (char *)device + 10);
    CHECK_EQUAL(aclrtHostGetDevicePointer(memory, &again, 1), ACL_ERROR_RT_PARAM_INVALID);
    CHECK_EQUAL(aclrtHostGetDevicePointer(memory + 32768, &again, 0), 507911);
    CHECK_OK(aclrtPointerGetAttributes(memory + 100, &attributes));
    CHECK_EQUAL(attributes.location.type, ACL_MEM_LOCATION_TYPE_HOST);
    CHECK_EQUAL(aclrtHostUnregister(memory + 4096), 507911);
    CHECK_OK(aclrtHostUnregister(memory));
    CHECK_EQUAL(aclrtHostUnregister(memory), 507911);
    CHECK_EQUAL(aclrtHostRegisterV2(memory, 4096, 0), ACL_ERROR_RT_PARAM_INVALID);
    CHECK_EQUAL(aclrtHostRegisterV2(host, 4096, ACL_HOST_REG_PINNED), ACL_ERROR_RT_PARAM_INVALID);
    CHECK_OK(aclrtHostRegisterV2(memory, 4096, ACL_HOST_REG_MAPPED | ACL_HOST_REG_PINNED));
    CHECK_OK(aclrtHostUnregister(memory));
    CHECK_OK(aclrtFreeHost(host));
    munmap(memory, 65536);
}

static void test_configured(void)
{
    aclrtMallocAttribute attribute = {ACL_RT_MEM_ATTR_DEVICE_ID, {.deviceId = 2}};
    aclrtMallocConfig    config    = {&attribute, 1};
    aclrtPtrAttributes   attributes;
    void                *memory;

    CHECK_OK(aclrtMallocWithCfg(&memory, 100, ACL_MEM_MALLOC_HUGE_FIRST, &config));
    CHECK_OK(aclrtPointerGetAttributes(memory, &attributes));
    CHECK_EQUAL(attributes.location.id, 2);
    CHECK_OK(aclrtFree(memory));
    attribute = (aclrtMallocAttribute){ACL_RT_MEM_ATTR_VA_FLAG, {.vaFlag = 1}};
    CHECK_OK(aclrtMallocHostWithCfg(&memory, 100, &config));
    CHECK_OK(aclrtFreeHost(memory));
    attribute.attr = (aclrtMallocAttrType)9;
    CHECK_EQUAL(aclrtMallocHostWithCfg(&memory, 100, &config), ACL_ERROR_RT_PARAM_INVALID);
    CHECK_OK(aclrtMallocWithCfg(&memory, 100, ACL_MEM_MALLOC_HUGE_FIRST, NULL));
    CHECK_OK(aclrtFree(memory));
}

static void test_reset_frees(void)
{
    (void)device_memory(2 * MIB);
    CHECK_OK(aclrtSetDevice(1));
    (void)device_memory(2 * MIB);
    CHECK_OK(aclrtResetDevice(1));
    CHECK_EQUAL(stats().device_bytes, 2 * MIB);
    CHECK_OK(aclrtSetDevice(0));
    CHECK_OK(aclrtResetDeviceForce(0));
    CHECK_EQUAL(stats().device_bytes, 0);
    CHECK_OK(aclrtSetDevice(0));
}

static void *allocate_much(void *nothing)
{
    CHECK_OK(aclrtSetDevice(0));
    for (unsigned round = 0; round < 200; ++round) {
        void *memory[4];

        for (unsigned index = 0; index < 4; ++index) {
            CHECK_OK(aclrtMalloc(&memory[index], 100 + index * MIB / 2, ACL_MEM_MALLOC_HUGE_FIRST));
        }
        for (unsigned index = 0; index < 4; ++index) {
            put(memory[index], 100, index);
            CHECK(same(memory[index], 100, index));
            CHECK_OK(aclrtFree(memory[index]));
        }
    }
    return nothing;
}

static void test_threads(void)
{
    pthread_t threads[4];

    for (unsigned index = 0; index < 4; ++index) {
        CHECK_EQUAL(pthread_create(&threads[index], NULL, allocate_much, NULL), 0);
    }
    for (unsigned index = 0; index < 4; ++index) {
        pthread_join(threads[index], NULL);
    }
}

void test_memory(void)
{
    begin(0);
    test_sizes();
    test_refusals();
    test_capacity();
    test_pointers();
    test_registered();
    test_configured();
    test_reset_frees();
    test_threads();
    end();
}
