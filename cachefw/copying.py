"""Copies within this process: which ranges they name, who can make them, and that nothing else is touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from cachefw.errors import CacheError, RequestError, UnsupportedOperation, refusal
from cachefw.memory import MemoryKind, MemoryRegion, region_of
from cachefw.quarantine import Quarantine
from cachefw.ranges import refuse_feedback, refuse_overlap
from cachefw.registry import Memory, Registry
from cachefw.transport import Batch, Capability, Transport

__all__ = ["Copier", "LocalCopy", "copy_of"]

Flags = NDArray[np.bool_]
_HOST = frozenset({MemoryKind.HOST, MemoryKind.PINNED})


@attrs.frozen(eq=False)
class LocalCopy:
    """A batch within this process, and which ends of its pieces lie on a device; one flag may stand for all pieces."""

    batch: Batch
    into_device: Flags | bool
    from_device: Flags | bool

    def checked(self, operation: str) -> LocalCopy:
        """The same without pieces that are copied onto themselves.

        Raises:
            RequestError: Also a `ValueError`: a byte would be written twice, or written by one piece and read by
                another; pieces run in any order.
        """
        batch = self.batch
        moving = batch.local != batch.remote
        if not moving.all():
            kept = Batch(batch.local[moving], batch.remote[moving], batch.length[moving], batch.regions)
            sides = [side if isinstance(side, bool) else side[moving] for side in (self.into_device, self.from_device)]
            return LocalCopy(kept, *sides).checked(operation)
        refuse_overlap(batch.local, batch.length, operation)
        refuse_feedback(batch.local, batch.remote, batch.length, operation)
        return self


class Copier:
    """Has each piece copied by the first open transport that reaches both its ends.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, transports: Mapping[str, Transport], quarantine: Quarantine) -> None:
        self._transports = transports
        self._quarantine = quarantine

    def pick(self, into_device: bool, from_device: bool, only: str | None = None) -> Transport:
        """The transport for copies between two places.

        Raises:
            UnsupportedOperation: No open transport copies between them.
        """
        for name, candidate in self._transports.items():
            if Capability.COPY not in candidate.info.capabilities or only not in (None, name):
                continue
            kinds = candidate.info.kinds
            if only or (MemoryKind.DEVICE in kinds if into_device or from_device else not kinds.isdisjoint(_HOST)):
                return candidate
        named = f"named {only!r} " if only else ""
        way = " to ".join("device memory" if device else "host memory" for device in (from_device, into_device))
        raise UnsupportedOperation(
            f"no open transport {named}copies {way}; open are " + (", ".join(self._transports) or "none"),
            operation="copy",
            transport=only,
        )

    def run(self, copy: LocalCopy, only: str | None = None) -> None:
        """Copy; done on return.

        Raises:
            UnsupportedOperation: No open transport copies between these kinds of memory; nothing was copied.
            BusyError: A transfer whose deadline has passed may still touch the memory; nothing was copied.
            BrokenError: The runtime failed; ``failed`` names the piece.
        """
        batch, into, out_of = copy.batch, copy.into_device, copy.from_device
        if not len(batch):
            return
        if self._quarantine:
            for side, starts in (("dst", batch.local), ("src", batch.remote)):
                self._quarantine.refuse(starts, batch.length, "copy", side, writes=side == "dst")
        if isinstance(into, bool) and isinstance(out_of, bool):
            self.pick(into, out_of, only).copy(batch)
            return
        parts = []
        for to_device in (False, True):
            for of_device in (False, True):
                where = np.flatnonzero(np.broadcast_to((into == to_device) & (out_of == of_device), len(batch)))
                if len(where):
                    parts.append((self.pick(to_device, of_device, only), where))
        for transport, where in parts:
            piece = Batch(batch.local[where], batch.remote[where], batch.length[where], batch.regions)
            try:
                transport.copy(piece)
            except CacheError as error:
                if "failed" in error.facts:
                    error.facts["failed"] = tuple(int(where[index]) for index in error.facts["failed"])
                raise


def copy_of(registry: Registry, dst: Any, src: Any) -> tuple[LocalCopy, list[Memory]]:
    """What a copy between named ranges is, and the registered memory that it names without owning it.

    Args:
        registry: A `MemoryRegion` among the ranges has to lie in memory that is registered here.
        dst: A `MemoryRegion`, an allocation, a tensor, an array or a buffer; or a list of them.
        src: As many, each as long as its counterpart.

    Raises:
        RequestError: Also a `TypeError`, `ValueError` or `AttributeError`: no usable memory, unequal lengths, a byte
            written twice, or a bare region that is not registered.
    """
    targets, sources = (item if isinstance(item, (list, tuple)) else [item] for item in (dst, src))
    if len(targets) != len(sources) or not targets:
        raise _bad(f"{len(targets)} places to copy to and {len(sources)} to copy from; give as many, and at least one")
    used: set[int] = set()
    into, out_of = _regions(registry, "dst", targets, used), _regions(registry, "src", sources, used)
    for index, (to, of) in enumerate(zip(into, out_of, strict=True)):
        if to.length != of.length:
            raise _bad(f"piece {index}: {of.length:,} bytes do not fill {to.length:,}; give ranges of one length")
    local = np.array([region.address for region in into], np.uint64)
    length = np.array([region.length for region in into], np.uint64)
    remote = np.array([region.address for region in out_of], np.uint64)
    devices = [np.array([region.kind is MemoryKind.DEVICE for region in side], np.bool_) for side in (into, out_of)]
    copy = LocalCopy(Batch(local, remote, length, np.zeros(0, np.uint64)), *devices).checked("copy")
    return copy, [registry.memory(number) for number in used]


def _regions(registry: Registry, side: str, sources: Sequence[Any], used: set[int]) -> list[MemoryRegion]:
    regions = [region_of(source, writable=side == "dst") for source in sources]
    bare = [index for index, source in enumerate(sources) if isinstance(source, MemoryRegion)]
    if bare:
        # An object keeps its memory; a number does not, and copying to or from what is not there ends the process.
        starts = np.array([regions[index].address for index in bare], np.uint64)
        lengths = np.array([regions[index].length for index in bare], np.uint64)
        ids, first = registry.table().find(starts, lengths)
        if first >= 0:
            region = regions[bare[first]]
            raise _bad(f"{side} {bare[first]}: {region} is not in registered memory; give its owner, or register it")
        used.update(ids.tolist())
        for index, number in zip(bare, ids.tolist(), strict=True):
            regions[index] = attrs.evolve(regions[index], kind=registry.memory(number).region.kind)
    return regions


def _bad(text: str) -> Exception:
    return refusal(RequestError, {ValueError}, text, operation="copy")
