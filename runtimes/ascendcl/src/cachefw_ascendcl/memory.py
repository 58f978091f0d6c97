"""Memory: allocating it, registering that of others, and telling what an address is."""

from __future__ import annotations

import enum
from typing import Any

import attrs

from cachefw.errors import RequestError, refusal

from ._acl import ffi, lib
from ._handle import Owned, Scope, address_of, pointer
from .status import check, recent_message

__all__ = [
    "Allocation",
    "HostRegistration",
    "Location",
    "MallocPolicy",
    "MemoryInfo",
    "PointerInfo",
    "address_range",
    "pointer_info",
]


class MallocPolicy(enum.IntEnum):
    """Which pages device memory lies on.

    The ``HUGE`` ones are 2 MiB, those of ``HUGE1G`` 1 GiB. ``HUGE_FIRST`` takes huge pages only for more than 1 MiB,
    and normal ones when there are no others.
    """

    HUGE_FIRST = lib.ACL_MEM_MALLOC_HUGE_FIRST
    HUGE_ONLY = lib.ACL_MEM_MALLOC_HUGE_ONLY
    NORMAL_ONLY = lib.ACL_MEM_MALLOC_NORMAL_ONLY
    HUGE_FIRST_P2P = lib.ACL_MEM_MALLOC_HUGE_FIRST_P2P
    HUGE_ONLY_P2P = lib.ACL_MEM_MALLOC_HUGE_ONLY_P2P
    NORMAL_ONLY_P2P = lib.ACL_MEM_MALLOC_NORMAL_ONLY_P2P
    HUGE1G_ONLY = lib.ACL_MEM_MALLOC_HUGE1G_ONLY
    HUGE1G_ONLY_P2P = lib.ACL_MEM_MALLOC_HUGE1G_ONLY_P2P


class Location(enum.IntEnum):
    """Where memory lies. `UNREGISTERED` is ordinary host memory; older drivers call that `HOST`, too."""

    HOST = lib.ACL_MEM_LOCATION_TYPE_HOST
    DEVICE = lib.ACL_MEM_LOCATION_TYPE_DEVICE
    UNREGISTERED = lib.ACL_MEM_LOCATION_TYPE_UNREGISTERED
    MANAGED = lib.ACL_MEM_LOCATION_TYPE_MANAGED
    HOST_NUMA = lib.ACL_MEM_LOCATION_TYPE_HOST_NUMA


@attrs.frozen
class MemoryInfo:
    """Bytes of a device's memory."""

    free: int
    total: int


@attrs.frozen
class PointerInfo:
    """What an address is.

    Attributes:
        location: Where it lies; None for a location that this binding does not know (see `raw_location`).
        device: Number of the device for `Location.DEVICE`; -1 when unknown or not on one.
        page_size: Bytes of one page; 0 when unknown.
        guessed: True when the runtime is too old to be asked (before CANN 8.5), and the address was compared with the
            window that device memory lies in.
        raw_location: The runtime's own number.
    """

    location: Location | None
    device: int
    page_size: int
    guessed: bool = False
    raw_location: int = -1


# The driver maps all memory of devices into one window of 8 TiB.
_DEVICE_WINDOW = range(0x100000000000, 0x100000000000 + (8 << 40))
_LOCATIONS = {int(location): location for location in Location}


def pointer_info(scope: Scope, address: int) -> PointerInfo | None:
    """What an address is; None when it lies among device memory where nothing is allocated.

    Raises:
        CacheError: The runtime could not be asked.
    """
    attributes = ffi.new("aclrtPtrAttributes *")
    with scope.bound():
        status = lib.cfw_aclrtPointerGetAttributes(pointer(address), attributes)
        if status == lib.ACL_ERROR_RT_DRV_INTERNAL_ERROR and address in _DEVICE_WINDOW:
            recent_message()
            return None
        if status == lib.CFW_ACL_MISSING:
            inside = address in _DEVICE_WINDOW
            return PointerInfo(Location.DEVICE if inside else Location.UNREGISTERED, -1, 0, guessed=True)
        check(status, "aclrtPointerGetAttributes", address=address)
    raw = int(attributes.location.type)
    location = _LOCATIONS.get(raw)
    device = attributes.location.id if location is Location.DEVICE else -1
    return PointerInfo(location, device, attributes.pageSize, raw_location=raw)


def address_range(scope: Scope, address: int) -> tuple[int, int]:
    """Start and bytes of the allocation that an address of a device lies in.

    Raises:
        UnsupportedOperation: The runtime is older than the question (before CANN 9.0).
        CacheError: Nothing is allocated there.
    """
    base_p, size_p = ffi.new("void **"), ffi.new("size_t *")
    with scope.bound():
        check(
            lib.cfw_aclrtMemGetAddressRange(pointer(address), base_p, size_p),
            "aclrtMemGetAddressRange",
            address=address,
        )
    return address_of(base_p[0]), size_p[0]


class Allocation(Owned):
    """Memory of a device, or of the host and pinned for it.

    Made by `Device.allocate` and `Device.allocate_host`. Closing does not wait for the device: copies have to be done.

    Attributes:
        address: First byte. Of device memory it is no address for the CPU.
        size: Bytes that were asked for.
        location: `Location.DEVICE` or `Location.HOST`.
    """

    kind = "allocation"

    def __init__(self, scope: Scope, size: int, policy: int | None) -> None:
        if not 0 < size < 1 << 63:
            raise refusal(
                RequestError,
                {ValueError},
                f"{size:,} bytes cannot be allocated; at least 1 is needed",
                operation="allocate",
            )
        made_p = ffi.new("void **")
        self.size = size
        self.location = Location.HOST if policy is None else Location.DEVICE

        def create() -> Any:
            if policy is None:
                check(lib.cfw_aclrtMallocHost(made_p, size), "aclrtMallocHost", size=size)
            else:
                # The older call adds 32 bytes, which costs one more page when the size is a multiple of a page.
                status, call = lib.cfw_aclrtMallocAlign32(made_p, size, policy), "aclrtMallocAlign32"
                if status == lib.CFW_ACL_MISSING:
                    status, call = lib.cfw_aclrtMalloc(made_p, size, policy), "aclrtMalloc"
                check(status, call, size=size, policy=int(policy))
            return made_p[0]

        super().__init__(scope, create)
        self.address = address_of(made_p[0])

    def _destroy(self, raw: Any) -> None:
        if self.location is Location.HOST:
            check(lib.cfw_aclrtFreeHost(raw), "aclrtFreeHost", address=address_of(raw))
        else:
            check(lib.cfw_aclrtFree(raw), "aclrtFree", address=address_of(raw))

    def _describe(self) -> str:
        return f"allocation of {self.size:,} bytes of {self.location.name.lower()} memory at {self.address:#x}"


class HostRegistration(Owned):
    """Host memory of others that a device may reach.

    Made by `Device.register_host`.

    Attributes:
        address: First byte.
        size: Bytes.
        device_address: The same memory as the device sees it. Not for copies.
    """

    kind = "host registration"

    def __init__(self, scope: Scope, address: int, size: int, register_type: int) -> None:
        device_p = ffi.new("void **")
        self.address, self.size = address, size

        def create() -> Any:
            check(
                lib.cfw_aclrtHostRegister(pointer(address), size, register_type, device_p),
                "aclrtHostRegister",
                address=address,
                size=size,
            )
            return pointer(address)

        super().__init__(scope, create)
        self.device_address = address_of(device_p[0])

    def _destroy(self, raw: Any) -> None:
        check(lib.cfw_aclrtHostUnregister(raw), "aclrtHostUnregister", address=self.address)

    def _describe(self) -> str:
        return f"host registration of {self.size:,} bytes at {self.address:#x}"
