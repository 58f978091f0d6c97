"""What memory has to be for HCCS: facts from the profile of the machine, and from the runtime where one is open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import attrs

from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.rules import Finding, Outcome, Request, Rule

from .profiles import UNKNOWN, Profile, by_name, for_soc

__all__ = ["RULES", "Case", "Facts", "Pointer"]


@attrs.frozen
class Pointer:
    """What the runtime says of an address.

    Attributes:
        kind: What memory it is; None when the runtime does not know it.
        device: The device that holds it, or -1.
        page: Bytes of its pages, or 0 when that is not known.
        start: First byte of its allocation, or None when that is not known.
        length: Bytes of its allocation.
    """

    kind: MemoryKind | None
    device: int = -1
    page: int = 0
    start: int | None = None
    length: int = 0


class Facts(Protocol):
    """The open runtime, as far as rules ask it."""

    @property
    def soc(self) -> str | None:
        """The SoC's name."""

    @property
    def device(self) -> int:
        """The device that the transport uses."""

    def pointer(self, address: int) -> Pointer | None:
        """What an address is; None when the runtime cannot tell."""


@attrs.frozen
class Case:
    """A request, with what is known of the machine."""

    request: Request
    profile: Profile
    unknown_profile: str = ""
    facts: Facts | None = None

    @classmethod
    def of(cls, request: Request, facts: Facts | None) -> Case:
        """Take the profile that was asked for, else the one of the runtime's SoC."""
        # A dry run for another machine must not be told what this one's memory is.
        if request.profile is not None:
            named = by_name(request.profile)
            return cls(request, UNKNOWN, named) if isinstance(named, str) else cls(request, named)
        return cls(request, for_soc(facts.soc if facts else None), facts=facts)

    def place(self, index: int) -> str:
        """What the caller calls the region at `index`."""
        return self.request.place(index)

    def at(self, index: int, region: MemoryRegion) -> str:
        """The same, with its address."""
        return f"{self.place(index)} {region.address:#x}"

    def regions(self) -> Iterator[tuple[int, MemoryRegion]]:
        """Each region with its place in the caller's list."""
        return zip(self.request.indices, self.request.regions, strict=True)

    def device_regions(self) -> Iterator[tuple[int, MemoryRegion]]:
        """The regions that could be HCCS memory."""
        return ((index, region) for index, region in self.regions() if region.kind is MemoryKind.DEVICE)


def _say(outcome: Outcome, text: str, fix: str, at: tuple[int, MemoryRegion] | None = None, **facts: object) -> Finding:
    if at is None:
        return Finding("", outcome, text, fix=fix, facts=facts)
    index, region = at
    return Finding("", outcome, text, index=index, address=region.address, length=region.length, fix=fix, facts=facts)


def _product(case: Case) -> Iterable[Finding]:
    if case.unknown_profile:
        yield _say(Outcome.REFUSED, case.unknown_profile, "use one of those names, or leave profile out")
        return
    soc = case.facts.soc if case.facts else None
    if case.profile is UNKNOWN:
        what = f"SoC {soc!r} is in no profile" if soc else "no runtime is open and no profile was named"
        yield _say(
            Outcome.NOT_CHECKED,
            f"{what}; its rules for HCCS are not known",
            "name the machine: plan(profile=...), or open the transport on it",
        )
    elif not case.profile.supported:
        what = f"SoC {soc!r} is {case.profile.products}" if soc else case.profile.products
        yield _say(
            Outcome.REFUSED,
            f"{what}, which is not supported; supported are Atlas A2 (800I A2, 300I A2, A200I A2 Box) and Atlas A3",
            "use the rdma or another transport there",
            soc=soc,
        )


def _device_only(case: Case) -> Iterable[Finding]:
    for index, region in case.regions():
        if region.kind is MemoryKind.DEVICE or case.profile.host_memory:
            continue
        place = f"{case.at(index, region)} is {region.kind}"
        if case.profile.host_memory is None:
            text = f"{place}; whether HCCS carries that on {case.profile.products} is not known"
            yield _say(Outcome.NOT_CHECKED, text, "use device memory", (index, region))
        else:
            yield _say(
                Outcome.REFUSED,
                f"{place}; HCCS carries device memory only on {case.profile.products}",
                "set placement=Placement.DEVICE if it is device memory, or open a transport for host memory",
                (index, region),
            )


def _alignment(case: Case) -> Iterable[Finding]:
    alignment = case.profile.alignment
    for index, region in case.device_regions():
        if alignment is None:
            text = f"{case.at(index, region)}: the alignment that {case.profile.products} needs is not known"
            yield _say(Outcome.NOT_CHECKED, text, "align it to 2 MiB, which every known machine takes", (index, region))
            continue
        past = region.address % alignment
        if past:
            ahead = alignment - past
            yield _say(
                Outcome.REFUSED,
                f"{case.at(index, region)} is {past:,} bytes past a multiple of {alignment:,}; the next one is "
                f"{region.address + ahead:#x}, {ahead:,} bytes further",
                f"take the memory from CacheManager.allocate, or allocate {alignment:,} bytes more than needed and "
                "start at such an address (cachefw.align_within)",
                (index, region),
                remainder=past,
                next_aligned=region.address + ahead,
                ahead=ahead,
                over_allocate=alignment,
            )


def _pointers(case: Case) -> Iterator[tuple[tuple[int, MemoryRegion], Pointer]]:
    if case.facts is not None:
        for at in case.device_regions():
            pointer = case.facts.pointer(at[1].address)
            if pointer is not None:
                yield at, pointer


def _unasked(case: Case, what: str) -> Iterable[Finding]:
    if case.facts is None and any(True for _ in case.device_regions()):
        yield _say(Outcome.NOT_CHECKED, f"no runtime is open to ask {what}", "open the transport where the memory is")


def _device(case: Case) -> Iterable[Finding]:
    yield from _unasked(case, "which device holds the memory")
    for at, pointer in _pointers(case):
        if case.facts and pointer.kind is MemoryKind.DEVICE and pointer.device not in (-1, case.facts.device):
            yield _say(
                Outcome.REFUSED,
                f"{case.at(*at)} lies on device {pointer.device}; this transport is open on device {case.facts.device}",
                "register it in the process, or with the node, of its own device",
                at,
                device=pointer.device,
            )


def _range(case: Case) -> Iterable[Finding]:
    yield from _unasked(case, "where the allocation ends")
    for at, pointer in _pointers(case):
        if pointer.start is None:
            continue
        over = at[1].end - pointer.start - pointer.length
        if over > 0:
            yield _say(
                Outcome.REFUSED,
                f"{case.place(at[0])} {at[1]} goes {over:,} bytes past its allocation, which ends at "
                f"{pointer.start + pointer.length:#x}",
                "check the address and the shape",
                at,
                excess=over,
            )


def _page(case: Case) -> Iterable[Finding]:
    yield from _unasked(case, "how large the pages are")
    page = case.profile.page
    for at, pointer in _pointers(case):
        if page is None or pointer.page == 0:
            text = f"{case.at(*at)}: the size of its pages, or the one needed, is not known"
            yield _say(Outcome.NOT_CHECKED, text, "allocate with huge pages only", at)
        elif pointer.page < page:
            yield _say(
                Outcome.REFUSED,
                f"{case.at(*at)} lies in pages of {pointer.page:,} bytes; HCCS memory is to lie in pages of {page:,}",
                "allocate it with huge pages only (ACL_MEM_MALLOC_HUGE_ONLY), as CacheManager.allocate does",
                at,
                page=pointer.page,
            )


_DRIVER = "the driver's check on IPC export"

RULES: tuple[Rule, ...] = (
    Rule("hccs.product", "the machine is a supported Atlas A2 or A3", "LLM-DataDist CacheManager", _product),
    Rule("hccs.device_only", "the memory is device memory", "LLM-DataDist CacheManager", _device_only),
    Rule("hccs.alignment", "addresses are multiples of 2 MiB", "LLM-DataDist CacheManager", _alignment),
    Rule("hccs.device", "the memory lies on the transport's own device", _DRIVER, _device),
    Rule("hccs.range", "the memory lies within one allocation", _DRIVER, _range),
    Rule("hccs.page", "the memory lies in huge pages", _DRIVER, _page),
)
