"""What can be asked of a device, or of a context on it."""

from __future__ import annotations

import enum

from ._acl import ffi, lib
from ._handle import Scope, pointer
from .copies import CopyKind
from .ipc import IpcKey, IpcMapping
from .memory import (
    Allocation,
    HostRegistration,
    MallocPolicy,
    MemoryInfo,
    PointerInfo,
    address_range,
    pointer_info,
)
from .status import check
from .streams import Event, Stream

__all__ = ["Calls", "DeviceAttribute", "Topology"]


class DeviceAttribute(enum.IntEnum):
    """Questions for `Device.attribute`."""

    TOTAL_MEMORY = lib.ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE
    PHYSICAL_CHIP = lib.ACL_DEV_ATTR_PHY_CHIP_ID
    SUPER_POD_DEVICE = lib.ACL_DEV_ATTR_SUPER_POD_DEVICE_ID
    SUPER_POD_SERVER = lib.ACL_DEV_ATTR_SUPER_POD_SERVER_ID
    SUPER_POD = lib.ACL_DEV_ATTR_SUPER_POD_ID
    HOST_CONNECTION = lib.ACL_DEV_ATTR_HD_CONNECT_TYPE


class Topology(enum.IntFlag):
    """Links that join two devices."""

    NONE = 0
    HCCS = lib.ACL_RT_DEVS_TOPOLOGY_HCCS
    PIX = lib.ACL_RT_DEVS_TOPOLOGY_PIX
    PIB = lib.ACL_RT_DEVS_TOPOLOGY_PIB
    PHB = lib.ACL_RT_DEVS_TOPOLOGY_PHB
    SYS = lib.ACL_RT_DEVS_TOPOLOGY_SYS
    SIO = lib.ACL_RT_DEVS_TOPOLOGY_SIO
    HCCS_SW = lib.ACL_RT_DEVS_TOPOLOGY_HCCS_SW


class Calls(Scope):
    """What can be asked of a device or a context.

    Every method may be called from any thread, whatever context that thread has, and leaves it as it was.
    """

    def stream(self, *, fast: bool = False) -> Stream:
        """A new stream.

        Args:
            fast: Ask for quick launching and synchronising, which keeps resources of the device.
        """
        return Stream(self, fast=fast)

    def event(self, *, waitable: bool = False) -> Event:
        """A new event.

        Args:
            waitable: Other streams will wait for it. The number of those is limited; of the others it is not.
        """
        return Event(self, waitable=waitable)

    def allocate(self, size: int, policy: int = MallocPolicy.HUGE_ONLY) -> Allocation:
        """Memory of the device.

        Args:
            size: Bytes, at least 1. What the runtime rounds it up to is not told.
            policy: A `MallocPolicy`, or-ed with the runtime's further bits. By default only huge pages, because only
                memory that starts on such a page can be shared between processes.

        Raises:
            OutOfMemoryError: The device has not so much left.
        """
        return Allocation(self, size, policy)

    def allocate_host(self, size: int) -> Allocation:
        """Memory of the host that the device reaches without a detour."""
        return Allocation(self, size, None)

    def register_host(
        self, address: int, size: int, register_type: int = lib.ACL_HOST_REGISTER_MAPPED
    ) -> HostRegistration:
        """Let the device reach host memory that others allocated. `address` is a multiple of 4096."""
        return HostRegistration(self, address, size, register_type)

    def export(self, address: int, size: int, *, any_process: bool = False) -> IpcKey:
        """Give memory of this device a name that other processes can map it by.

        Args:
            address: First byte, at the start of a page: 2 MiB for memory on huge pages.
            size: Bytes.
            any_process: True asks no pid of an importer; by default `IpcKey.allow` has to name it.

        Raises:
            BrokenError: Status 507899, for all that the driver objects to: alignment, memory of another device or
                process, a range that is not allocated whole.
        """
        return IpcKey(self, address, size, any_process=any_process)

    def import_key(self, key: bytes, *, peer_access: bool = True) -> IpcMapping:
        """Map another process's memory.

        Args:
            key: `IpcKey.key` of the other process.
            peer_access: Let this device reach the other one's memory as well, without which copies fail.
        """
        return IpcMapping(self, key, peer_access=peer_access)

    def copy(self, dst: int, src: int, length: int, kind: CopyKind = CopyKind.DEFAULT) -> None:
        """Copy, and be done on return."""
        with self.bound():
            check(
                lib.cfw_aclrtMemcpy(pointer(dst), length, pointer(src), length, kind),
                "aclrtMemcpy",
                dst=dst,
                src=src,
                length=length,
            )

    def fill(self, address: int, size: int, value: int = 0) -> None:
        """Set every byte of a range."""
        with self.bound():
            check(lib.cfw_aclrtMemset(pointer(address), size, value, size), "aclrtMemset", address=address, size=size)

    def identify(self, address: int) -> PointerInfo | None:
        """What an address is; None when it lies among device memory where nothing is allocated."""
        return pointer_info(self, address)

    def address_range(self, address: int) -> tuple[int, int]:
        """Start and bytes of the allocation that an address lies in."""
        return address_range(self, address)

    def memory_info(self, attribute: int = lib.ACL_HBM_MEM) -> MemoryInfo:
        """Free and total bytes of the device, of all kinds of pages by default."""
        free_p, total_p = ffi.new("size_t *"), ffi.new("size_t *")
        with self.bound():
            check(lib.cfw_aclrtGetMemInfo(attribute, free_p, total_p), "aclrtGetMemInfo")
        return MemoryInfo(free_p[0], total_p[0])

    def enable_peer_access(self, peer: int) -> None:
        """Let this device reach memory of another. One direction; the other device's process does its own."""
        with self.bound():
            check(lib.cfw_aclrtDeviceEnablePeerAccess(peer, 0), "aclrtDeviceEnablePeerAccess", peer=peer)

    def disable_peer_access(self, peer: int) -> None:
        """Take back `enable_peer_access`."""
        with self.bound():
            check(lib.cfw_aclrtDeviceDisablePeerAccess(peer), "aclrtDeviceDisablePeerAccess", peer=peer)

    def can_access(self, peer: int) -> bool:
        """Whether this device could reach memory of another."""
        can_p = ffi.new("int32_t *")
        with self.bound():
            check(
                lib.cfw_aclrtDeviceCanAccessPeer(can_p, self.index, peer),
                "aclrtDeviceCanAccessPeer",
                device=self.index,
                peer=peer,
            )
        return bool(can_p[0])

    def peer_access(self, peer: int) -> bool:
        """Whether `enable_peer_access` is in force."""
        status_p = ffi.new("int32_t *")
        with self.bound():
            check(
                lib.cfw_aclrtDevicePeerAccessStatus(self.index, peer, status_p),
                "aclrtDevicePeerAccessStatus",
                device=self.index,
                peer=peer,
            )
        return bool(status_p[0])

    def topology(self, other: int) -> Topology:
        """The links that join this device and another."""
        links_p = ffi.new("uint64_t *")
        with self.bound():
            check(
                lib.cfw_aclrtGetDevicesTopo(self.index, other, links_p),
                "aclrtGetDevicesTopo",
                device=self.index,
                other=other,
            )
        return Topology(links_p[0])

    def attribute(self, attribute: int) -> int:
        """One number about the device, by `DeviceAttribute` or the vendor's own number."""
        value_p = ffi.new("int64_t *")
        with self.bound():
            check(lib.cfw_aclrtGetDeviceInfo(self.index, attribute, value_p), "aclrtGetDeviceInfo", attribute=attribute)
        return value_p[0]

    def physical_index(self) -> int:
        """The device's number on the host, whatever this process was given to see."""
        index_p = ffi.new("int32_t *")
        with self.bound():
            check(lib.cfw_aclrtGetPhyDevIdByLogicDevId(self.index, index_p), "aclrtGetPhyDevIdByLogicDevId")
        return index_p[0]

    def synchronize(self) -> None:
        """Sleep until the device did all that this context gave it to do."""
        with self.bound():
            check(lib.cfw_aclrtSynchronizeDevice(), "aclrtSynchronizeDevice")
