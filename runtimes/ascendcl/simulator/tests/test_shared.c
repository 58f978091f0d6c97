/* Memory of other processes: keys, who may use them, what closing means. */
#include "peer.h"

#include <unistd.h>

static void test_export_rules(void)
{
    char   *device = device_memory(8 * MIB), *normal, *host = host_memory(4096), *read_only;
    char    key[80], again[80], tiny[64], long_key[100];
    int32_t pids[32] = {1, 2, 3};

    CHECK_OK(aclrtMallocAlign32((void **)&normal, 64 << 10, ACL_MEM_MALLOC_NORMAL_ONLY));
    CHECK_OK(aclrtMallocAlign32((void **)&read_only, 4 * MIB,
                                (aclrtMemMallocPolicy)(ACL_MEM_MALLOC_HUGE_ONLY | ACL_MEM_ACCESS_USER_SPACE_READONLY)));
    CHECK_EQUAL(aclrtIpcMemGetExportKey(NULL, 8, key, sizeof(key), 0), 100000);
    CHECK_EQUAL(aclrtIpcMemGetExportKey(device, 8, NULL, 65, 0), 100000);
    CHECK_EQUAL(aclrtIpcMemGetExportKey(device, 8, tiny, 64, 0), 107000);
    CHECK_EQUAL(aclrtIpcMemGetExportKey(device, 8, key, sizeof(key), 2), 107000);
    CHECK_EQUAL(aclrtIpcMemGetExportKey(device + MIB, MIB, key, sizeof(key), 0), 507899);
    CHECK(strstr(aclGetRecentErrMsg(), "2097152") != NULL); /* says which page */
    CHECK_EQUAL(aclrtIpcMemGetExportKey(normal + 64, 64, key, sizeof(key), 0), 507899);
    CHECK_EQUAL(aclrtIpcMemGetExportKey(host, 64, key, sizeof(key), 0), 507899);
    CHECK_EQUAL(aclrtIpcMemGetExportKey(key, 64, key, sizeof(key), 0), 507899);
    CHECK_EQUAL(aclrtIpcMemGetExportKey(device + 2 * MIB, 7 * MIB, key, sizeof(key), 0), 507899);
    CHECK_EQUAL(aclrtIpcMemGetExportKey(read_only, MIB, key, sizeof(key), 0), 507899);
    CHECK_OK(aclrtIpcMemGetExportKey(normal + 4096, 100, key, sizeof(key), 0)); /* 4 KiB pages */
    CHECK_OK(aclrtIpcMemClose(key));
    CHECK_OK(aclrtIpcMemGetExportKey(device + 2 * MIB, 100, key, 65, 0));
    CHECK_OK(aclrtIpcMemGetExportKey(device + 2 * MIB, 100, again, 65, 0)); /* once more: another key */
    CHECK(strcmp(key, again) != 0);
    CHECK_EQUAL(stats().exports, 2);
    CHECK_EQUAL(aclrtIpcMemSetImportPid(key, pids, 0), 107000);
    CHECK_EQUAL(aclrtIpcMemSetImportPid(key, pids, 32), 107000);
    CHECK_EQUAL(aclrtIpcMemSetImportPid("", pids, 1), 107000);
    memset(long_key, 'a', sizeof(long_key));
    long_key[99] = '\0';
    CHECK_EQUAL(aclrtIpcMemSetImportPid(long_key, pids, 1), 107000);
    CHECK_EQUAL(aclrtIpcMemSetImportPid("nothing", pids, 1), 507899);
    CHECK_EQUAL(aclrtIpcMemClose("nothing"), 507899);
    CHECK_EQUAL(aclrtIpcMemImportByKey((void **)&normal, key, 2), 107000);
    CHECK_EQUAL(aclrtIpcMemImportByKey((void **)&normal, key, 0), 507899); /* its own, not on the list */
    CHECK_OK(aclrtFree(device)); /* and the keys with it */
    CHECK_EQUAL(stats().exports, 0);
    CHECK_EQUAL(aclrtIpcMemClose(key), 507899);
    CHECK_OK(aclrtFree(normal));
    CHECK_OK(aclrtFree(read_only));
    CHECK_OK(aclrtFreeHost(host));
}

/* A process and its own key, which the driver allows when all may import. */
static void test_own_key(void)
{
    char *device = device_memory(2 * MIB), *view;
    char  key[65];

    put(device, MIB, 3);
    CHECK_OK(aclrtIpcMemGetExportKey(device, MIB, key, 65, ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION));
    CHECK_OK(aclrtIpcMemImportByKey((void **)&view, key, 0));
    CHECK(view != device);
    CHECK(same(view, MIB, 3));
    CHECK(aclsimStrict() || memcmp(view, device, MIB) == 0);
    /* The same bytes at two addresses: the order of a stream holds all the same. */
    for (unsigned step = 0; step < 100; ++step) {
        CHECK_OK(aclrtMemcpyAsync(device + (step + 1) * 4096, 4096, view + step * 4096, 4096,
                                  ACL_MEMCPY_DEVICE_TO_DEVICE, NULL));
    }
    CHECK_OK(aclrtSynchronizeStream(NULL));
    CHECK(same(device + 100 * 4096, 4096, 3));
    CHECK_EQUAL(aclrtIpcMemGetExportKey(view, 64, key, 65, 0), 507899); /* imported */
    CHECK_EQUAL(aclrtFree(view), 107000);
    CHECK_OK(aclrtIpcMemClose(key)); /* the import */
    CHECK_EQUAL(stats().imports, 0);
    CHECK_OK(aclrtIpcMemClose(key)); /* the key */
    CHECK_EQUAL(aclrtIpcMemClose(key), 507899);
    CHECK_OK(aclrtFree(device));
}

static void test_two_processes(void)
{
    char              *device = device_memory(4 * MIB), *mine, key[65];
    peer               other  = peer_start(1);
    int32_t            pid    = other.pid;
    aclrtPtrAttributes attributes;

    put(device, 4 * MIB, 8);
    CHECK_OK(aclrtIpcMemGetExportKey(device, 4 * MIB, key, 65, 0));
    CHECK_EQUAL(peer_ask(&other, "import %s 0", key), 507899); /* not on the list */
    CHECK_EQUAL(peer_ask(&other, "admit %s %d", key, pid), 507899); /* not its maker */
    CHECK_OK(aclrtIpcMemSetImportPid(key, &pid, 1));
    CHECK_EQUAL(peer_ask(&other, "import %s 0", key), 0);
    CHECK_EQUAL(peer_ask(&other, "compare 8 %zu", 4 * MIB), 507899); /* the copy fails, not the import */
    CHECK_EQUAL(peer_ask(&other, "import %s 1", key), 507899);       /* a second time */
    CHECK_EQUAL(peer_ask(&other, "close %s", key), 0);
    CHECK_EQUAL(peer_ask(&other, "close %s", key), 507899); /* only its maker destroys it */
    CHECK_EQUAL(peer_ask(&other, "import %s 1", key), 0);
    CHECK_EQUAL(peer_ask(&other, "compare 8 %zu", 4 * MIB), 0);
    CHECK(strcmp(other.text, "1") == 0);
    /* The importer sees what is written now, and keeps the memory when it is freed here. */
    put(device, 4 * MIB, 9);
    CHECK_EQUAL(peer_ask(&other, "compare 9 %zu", 4 * MIB), 0);
    CHECK(strcmp(other.text, "1") == 0);
    CHECK_OK(aclrtFree(device));
    CHECK_EQUAL(peer_ask(&other, "compare 9 %zu", 4 * MIB), 0);
    CHECK(strcmp(other.text, "1") == 0);
    CHECK_EQUAL(peer_ask(&other, "close %s", key), 0);
    CHECK_EQUAL(peer_ask(&other, "import %s 1", key), 507899); /* gone */
    /* The other way round, without a list, and with a range inside. */
    CHECK_EQUAL(peer_ask(&other, "alloc %zu", 4 * MIB), 0);
    CHECK_EQUAL(peer_ask(&other, "put 4 %zu", 4 * MIB), 0);
    CHECK_EQUAL(peer_ask(&other, "export %zu 1", (size_t)100000), 0);
    CHECK_OK(aclrtIpcMemImportByKey((void **)&mine, other.text, 1));
    CHECK_OK(aclrtPointerGetAttributes(mine, &attributes));
    CHECK(attributes.location.type == ACL_MEM_LOCATION_TYPE_DEVICE && attributes.location.id == 1);
    CHECK_EQUAL(attributes.pageSize, 2 * MIB);
    device = device_memory(2 * MIB);
    CHECK_OK(aclrtMemcpy(device, 100000, mine, 100000, ACL_MEMCPY_DEVICE_TO_DEVICE));
    CHECK(same(device, 100000, 4));
    CHECK_EQUAL(aclrtMemcpy(device, 100001, mine, 100001, ACL_MEMCPY_DEVICE_TO_DEVICE), 507899);
    CHECK_EQUAL(aclrtMemcpy(key, 10, mine, 10, ACL_MEMCPY_DEVICE_TO_HOST), 507899); /* of another device */
    CHECK_OK(aclrtMemcpyAsync(device, 10, mine, 10, ACL_MEMCPY_DEFAULT, NULL));
    CHECK_EQUAL(aclrtSynchronizeStream(NULL), 207000); /* no automatic direction */
    CHECK_OK(aclrtIpcMemClose(other.text));
    CHECK_OK(aclrtFree(device));
    CHECK_EQUAL(peer_end(&other), 0);
}

/* An admitted pid is of the process that had it then. */
static void test_list_full(void)
{
    char    *device = device_memory(2 * MIB), key[65];
    int32_t  pids[31], self;

    CHECK_OK(aclrtDeviceGetBareTgid(&self));
    for (int32_t index = 0; index < 31; ++index) {
        pids[index] = 1000000 + index;
    }
    CHECK_OK(aclrtIpcMemGetExportKey(device, 64, key, 65, 0));
    CHECK_EQUAL(aclrtIpcMemSetImportPid(key, &self, 1), 507899);
    CHECK_OK(aclrtIpcMemSetImportPid(key, pids, 31));
    CHECK_EQUAL(aclrtIpcMemSetImportPid(key, pids, 1), 507899);
    CHECK_OK(aclrtIpcMemClose(key));
    CHECK_OK(aclrtIpcMemGetExportKey(device, 64, key, 65, 1));
    CHECK_EQUAL(aclrtIpcMemSetImportPid(key, pids, 1), 507899); /* has no list */
    CHECK_OK(aclrtIpcMemClose(key));
    CHECK_OK(aclrtFree(device));
}

void test_shared(void)
{
    begin(0);
    test_export_rules();
    test_own_key();
    test_two_processes();
    test_list_full();
    end();
}
