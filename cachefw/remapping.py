"""The call of a CacheManager that has registered device memory mapped anew, here and at every peer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachefw.errors import CacheError, NotFoundError, RequestError, UnsupportedOperation, refusal
from cachefw.managed import Managed
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.registry import Memory
from cachefw.transport import Capability

__all__ = ["Remapping"]

_NAME = "remap_registered_memory"


class Remapping(Managed):
    """The part of `cachefw.CacheManager` that maps registered memory anew."""

    def remap_registered_memory(self, regions: MemoryRegion | Memory | Sequence[MemoryRegion | Memory]) -> None:
        """Register device memory anew with every transport that has it, and have linked peers map it anew.

        For memory whose mapping went bad, e.g. after the driver replaced pages. Moves no bytes, and caches stay what
        they are. Peers cannot reach the memory meanwhile; what was prepared before has to be prepared again.

        Args:
            regions: Ranges of registered device memory, or the `Memory` itself. What holds a range is mapped anew as a
                whole.

        Raises:
            RequestError: Also a `TypeError`, `ValueError` or `AttributeError`: nothing given, or no device memory.
            NotFoundError: No link exists, or a range is not registered.
            BusyError: A transfer uses the memory now.
            TransferTimeout: A peer did not confirm that it let go, or that it mapped anew.
            UnsupportedOperation: A transport cannot register memory while links exist.
            RegistrationError: A transport did not register it again, or did not give it back; it is then no longer
                registered, and its caches are only there to be unregistered.
        """
        self._check_open(_NAME)
        memories = self._held(regions)
        if not self._registrar.peers.linked():
            raise NotFoundError(f"{_NAME}: no link exists", code="not_found.link", operation=_NAME)
        for memory in memories:
            for name in memory.registered:
                if Capability.LATE_REGISTRATION not in self._transports[name].info.capabilities:
                    raise UnsupportedOperation(
                        f"{_NAME}: transport {name!r} cannot register memory while links exist",
                        operation=_NAME,
                        transport=name,
                    )
        self._registrar.remap(_NAME, memories)

    def _held(self, regions: Any) -> list[Memory]:
        """The memory that holds each range, each once."""
        given = list(regions) if isinstance(regions, (list, tuple)) else [regions]
        if not given:
            raise _bad("no region is given; name at least one")
        held: dict[int, Memory] = {}
        for index, item in enumerate(given):
            if not isinstance(item, (Memory, MemoryRegion)):
                builtin = AttributeError if item is None else TypeError
                raise _bad(f"region {index} must be a MemoryRegion or a Memory, not {item!r}", builtin)
            region = item.region if isinstance(item, Memory) else item
            if region.kind is not MemoryKind.DEVICE:
                raise _bad(f"region {index}, {region}, is {region.kind}; only device memory is mapped anew")
            if region.address < 1 or region.length < 1:
                raise _bad(f"region {index}, {region}, has to begin at 1 or later and to have at least 1 byte")
            found = list(self._registry.overlapping(region.address, region.end))
            if len(found) != 1 or found[0].region.address > region.address or found[0].region.end < region.end:
                raise NotFoundError(
                    f"{_NAME}: region {index}, {region}, does not lie in one registered region",
                    code="not_found.memory",
                    operation=_NAME,
                )
            if found[0].region.kind is not MemoryKind.DEVICE:
                raise _bad(f"region {index}, {region}, is registered as {found[0].region.kind}")
            held[found[0].memory_id] = found[0]
        return list(held.values())


def _bad(text: str, builtin: type[Exception] = ValueError) -> CacheError:
    return refusal(RequestError, {builtin}, f"{_NAME}: {text}", operation=_NAME)
