/* Links between devices, and who may reach whom over them. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    uint8_t     bits;
} link_names[] = {
    {"none", 0},
    {"hccs", ACL_RT_DEVS_TOPOLOGY_HCCS},
    {"pix", ACL_RT_DEVS_TOPOLOGY_PIX},
    {"pib", ACL_RT_DEVS_TOPOLOGY_PIB},
    {"phb", ACL_RT_DEVS_TOPOLOGY_PHB},
    {"sys", ACL_RT_DEVS_TOPOLOGY_SYS},
    {"sio", ACL_RT_DEVS_TOPOLOGY_SIO},
    {"hccs_sw", ACL_RT_DEVS_TOPOLOGY_HCCS_SW},
};

static _Atomic(bool) enabled[SIM_MAX_DEVICES][SIM_MAX_DEVICES]; /* [who][whose] */
static _Atomic(bool) cut[SIM_MAX_DEVICES][SIM_MAX_DEVICES];

/* A number, a range n..m, or * */
static bool parse_range(const char *text, unsigned *first_p, unsigned *last_p)
{
    char end;

    if (strcmp(text, "*") == 0) {
        *first_p = 0;
        *last_p  = SIM_MAX_DEVICES - 1;
        return true;
    }
    if (sscanf(text, "%u..%u%c", first_p, last_p, &end) == 2) {
        return *first_p <= *last_p && *last_p < SIM_MAX_DEVICES;
    }
    if (sscanf(text, "%u%c", first_p, &end) != 1) {
        return false;
    }
    *last_p = *first_p;
    return *first_p < SIM_MAX_DEVICES;
}

static bool parse_link(const char *text, uint8_t *bits_p)
{
    for (size_t index = 0; index < sizeof(link_names) / sizeof(link_names[0]); ++index) {
        if (strcmp(text, link_names[index].name) == 0) {
            *bits_p = link_names[index].bits;
            return true;
        }
    }
    return false;
}

static bool parse_item(const char *item, sim_options *options)
{
    char     left[16], right[16], name[16], end;
    unsigned first, last, other_first, other_last;
    uint8_t  bits;

    if (sscanf(item, "%15[0-9.*]-%15[0-9.*]=%15[a-z_]%c", left, right, name, &end) != 3 ||
        !parse_range(left, &first, &last) || !parse_range(right, &other_first, &other_last) ||
        !parse_link(name, &bits)) {
        return false;
    }
    for (unsigned one = first; one <= last; ++one) {
        for (unsigned other = other_first; other <= other_last; ++other) {
            if (one != other) {
                options->links[one][other] = bits;
                options->links[other][one] = bits;
            }
        }
    }
    return true;
}

static aclError parse(char *text, sim_options *options)
{
    char *rest = NULL;

    for (char *item = strtok_r(text, ", \t\n", &rest); item != NULL; item = strtok_r(NULL, ", \t\n", &rest)) {
        if (!parse_item(item, options)) {
            return sim_fail(ACL_ERROR_INVALID_PARAM, "ACLSIM_TOPOLOGY has '%s' where A-B=link belongs", item);
        }
    }
    return ACL_SUCCESS;
}

static aclError read_file(const char *path, char *text, size_t size)
{
    FILE  *file = fopen(path, "re");
    size_t length;

    if (file == NULL) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "ACLSIM_TOPOLOGY names '%s', which can not be opened", path);
    }
    length = fread(text, 1, size - 1, file);
    fclose(file);
    text[length] = '\0';
    for (char *comment; (comment = strchr(text, '#')) != NULL;) {
        size_t width = strcspn(comment, "\n");
        memset(comment, ' ', width);
    }
    return length == size - 1 ? sim_fail(ACL_ERROR_INVALID_PARAM, "'%s' is longer than %zu bytes", path, size - 2)
                              : ACL_SUCCESS;
}

aclError sim_topology_load(const char *text, sim_options *options)
{
    char     copy[4096] = "";
    aclError code       = ACL_SUCCESS;

    for (unsigned one = 0; one < SIM_MAX_DEVICES; ++one) {
        memset(options->links[one], ACL_RT_DEVS_TOPOLOGY_HCCS, SIM_MAX_DEVICES);
        options->links[one][one] = 0;
    }
    if (text != NULL && text[0] == '@') {
        code = read_file(text + 1, copy, sizeof(copy));
    } else if (text != NULL && strlen(text) >= sizeof(copy)) {
        code = sim_fail(ACL_ERROR_INVALID_PARAM, "ACLSIM_TOPOLOGY is longer than %zu bytes", sizeof(copy) - 1);
    } else if (text != NULL) {
        strcpy(copy, text);
    }
    return code != ACL_SUCCESS ? code : parse(copy, options);
}

int aclsimLink(int32_t device, int32_t peer, int up)
{
    if (device < 0 || peer < 0 || device >= SIM_MAX_DEVICES || peer >= SIM_MAX_DEVICES || device == peer) {
        return -1;
    }
    cut[device][peer] = !up;
    cut[peer][device] = !up;
    return 0;
}

aclError sim_peer_check(int32_t device, int32_t owner)
{
    if (device == owner) {
        return ACL_SUCCESS;
    }
    if (!enabled[device][owner]) {
        return sim_fail(SIM_DRIVER_REFUSED, "device %d has no peer access to device %d", device, owner);
    }
    if (cut[device][owner]) {
        return sim_fail(ACL_ERROR_RT_LINK_ERROR, "the link of the devices %d and %d is down", device, owner);
    }
    return ACL_SUCCESS;
}

aclError sim_peer_enable(int32_t device, int32_t peer)
{
    if (device == peer) {
        return ACL_SUCCESS;
    }
    if (sim_option.links[device][peer] == 0) {
        return sim_fail(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "no link joins the devices %d and %d", device, peer);
    }
    enabled[device][peer] = true;
    return ACL_SUCCESS;
}

void sim_peer_forget(int32_t device)
{
    for (int32_t peer = 0; peer < SIM_MAX_DEVICES; ++peer) {
        enabled[device][peer] = false;
    }
}

aclError aclrtDeviceCanAccessPeer(int32_t *can_access, int32_t device, int32_t peer)
{
    aclError code;

    SIM_ENTER(aclrtDeviceCanAccessPeer);
    SIM_NOT_NULL(can_access);
    if ((code = sim_device_check(device)) != ACL_SUCCESS || (code = sim_device_check(peer)) != ACL_SUCCESS) {
        return code;
    }
    *can_access = sim_option.links[device][peer] != 0;
    return ACL_SUCCESS;
}

aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t reserved)
{
    int32_t  device;
    aclError code;

    SIM_ENTER(aclrtDeviceEnablePeerAccess);
    if (reserved != 0) {
        return sim_fail(ACL_ERROR_FEATURE_UNSUPPORTED, "flags are %u, not 0", reserved);
    }
    if ((code = sim_device_check(peer)) != ACL_SUCCESS || (code = sim_current_device(&device)) != ACL_SUCCESS) {
        return code;
    }
    if (device == peer) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "device %d is the current one itself", peer);
    }
    return sim_peer_enable(device, peer);
}

aclError aclrtDeviceDisablePeerAccess(int32_t peer)
{
    int32_t  device;
    aclError code;

    SIM_ENTER(aclrtDeviceDisablePeerAccess);
    if ((code = sim_device_check(peer)) != ACL_SUCCESS || (code = sim_current_device(&device)) != ACL_SUCCESS) {
        return code;
    }
    if (device == peer) {
        return sim_fail(ACL_ERROR_INVALID_PARAM, "device %d is the current one itself", peer);
    }
    enabled[device][peer] = false;
    return ACL_SUCCESS;
}

aclError aclrtDevicePeerAccessStatus(int32_t device, int32_t peer, int32_t *status)
{
    aclError code;

    SIM_ENTER(aclrtDevicePeerAccessStatus);
    SIM_NOT_NULL(status);
    if ((code = sim_device_check(device)) != ACL_SUCCESS || (code = sim_device_check(peer)) != ACL_SUCCESS) {
        return code;
    }
    *status = enabled[device][peer];
    return ACL_SUCCESS;
}

aclError aclrtGetDevicesTopo(uint32_t device, uint32_t other, uint64_t *topology)
{
    aclError code;

    SIM_ENTER(aclrtGetDevicesTopo);
    SIM_NOT_NULL(topology);
    if ((code = sim_device_check((int32_t)device)) != ACL_SUCCESS ||
        (code = sim_device_check((int32_t)other)) != ACL_SUCCESS) {
        return code;
    }
    *topology = sim_option.links[device][other];
    return ACL_SUCCESS;
}
