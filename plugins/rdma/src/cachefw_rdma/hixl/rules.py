"""What HIXL demands of memory beyond the rules of all RDMA."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from cachefw.memory import MemoryKind
from cachefw.rules import Finding, Outcome, Request, Rule

from ..case import Case, Setup, say, unchecked
from ..profiles import UNKNOWN

__all__ = ["RULES", "HixlCase", "check"]

GIB = 2**30
_REGIONS = 4096
_DEVICE_BYTES = 50 * GIB
_DOCS = "HIXL_CS documentation"


@attrs.frozen
class HixlCase:
    """A case, with what the provider holds.

    Attributes:
        case: The request and the machine.
        regions: Regions registered already.
        device_bytes: Device memory registered already.
        placement: Where the NIC is, ``device`` or ``host``.
        protocol: What it speaks.
    """

    case: Case
    regions: int = 0
    device_bytes: int = 0
    placement: str = "device"
    protocol: str = "roce"


def _product(asked: HixlCase) -> Iterable[Finding]:
    choice = asked.case.choice
    if choice.profile is UNKNOWN:
        text = f"{choice.reason}; whether HIXL's C interface works there is not known"
        yield say(Outcome.NOT_CHECKED, text, "name the machine: the transport's setting profile")
    elif choice.profile.name in ("host-nic", "no-ascend"):
        text = f"profile {choice.profile.name}: HIXL moves memory by Ascend's devices only"
        yield say(
            Outcome.REFUSED, text, "open the transport with provider='ucx'", facts={"profile": choice.profile.name}
        )
    elif choice.profile.name != "950":
        text = f"HIXL documents its C interface for Ascend 950 only; for {choice.profile.products} it is unverified"
        yield say(
            Outcome.NOT_CHECKED, text, "try it there with the steps in the provider's README", facts={"soc": choice.soc}
        )


def _order(asked: HixlCase) -> Iterable[Finding]:
    request = asked.case.request
    if request.linked:
        for index, region in zip(request.indices, request.regions, strict=True):
            text = f"addrs[{index}] {region}: a link exists, and HIXL takes no memory once a peer is connected"
            yield say(Outcome.REFUSED, text, "register all memory first, or unlink and link again", (index, region))


def _count(asked: HixlCase) -> Iterable[Finding]:
    total = asked.regions + len(asked.case.request.regions)
    if total > _REGIONS:
        text = f"{total:,} regions, {asked.regions:,} of them registered already; HIXL takes {_REGIONS:,}"
        fix = "register whole allocations instead of the tensors in them"
        yield say(Outcome.REFUSED, text, fix, facts={"total": total, "limit": _REGIONS})


def _device_bytes(asked: HixlCase) -> Iterable[Finding]:
    total = asked.device_bytes + sum(region.length for _, region in asked.case.regions(device=True))
    if total > _DEVICE_BYTES:
        text = f"{total:,} bytes of device memory in all; HIXL takes {_DEVICE_BYTES:,}"
        yield say(Outcome.REFUSED, text, "register less", facts={"total": total, "limit": _DEVICE_BYTES})


def _host_nic(asked: HixlCase) -> Iterable[Finding]:
    """Host RoCE turns the rule of the allocator round, whatever the chip."""
    case = asked.case
    if (asked.placement, asked.protocol) != ("host", "roce"):
        return
    unsure = []
    for at in case.regions(device=False):
        pinned = (
            at[1].kind is MemoryKind.PINNED or case.setup.allocated(at[1].address, at[1].length) is MemoryKind.PINNED
        )
        if pinned or "RUNTIME_HOST" in {pointer.kind.name for pointer in case.ends(at[1])}:
            text = f"addrs[{at[0]}] {at[1]} is memory of aclrtMallocHost, which HIXL cannot register for host RoCE"
            yield say(
                Outcome.REFUSED, text, "allocate it with malloc, or use the device's NIC (placement='device')", at
            )
        elif case.setup.runtime is None and (case.setup.obstacle or case.setup.loaded()):
            unsure.append(at)
    yield from unchecked(unsure, "whether it comes from aclrtMallocHost cannot be asked", "open the device's runtime")


def _mapped(asked: HixlCase) -> Iterable[Finding]:
    """UB endpoints on a device map host memory through aclrtHostRegister."""
    case = asked.case
    if asked.placement != "device" or not asked.protocol.startswith("ub"):
        return
    for at in case.regions(device=False):
        past = at[1].address % case.setup.page
        if past:
            text = f"addrs[{at[0]}] {at[1].address:#x} is {past:,} bytes past a page; the device maps host memory by "
            text += f"pages of {case.setup.page:,} bytes"
            facts = {"remainder": past, "next_aligned": at[1].address + case.setup.page - past}
            yield say(Outcome.REFUSED, text, "start it on a page (cachefw.aligned_empty)", at, facts)


RULES: tuple[Rule, ...] = (
    Rule("rdma.hixl.product", "HIXL's C interface is documented for the machine", _DOCS, _product),
    Rule("rdma.hixl.order", "memory is registered before anyone is linked", _DOCS, _order),
    Rule("rdma.hixl.regions", "HIXL has room for all regions", "HIXL documentation, limits", _count),
    Rule("rdma.hixl.device_bytes", "HIXL has room for all device memory", "HIXL documentation, limits", _device_bytes),
    Rule("rdma.hixl.host_nic", "host RoCE gets no memory of aclrtMallocHost", _DOCS, _host_nic),
    Rule(
        "rdma.hixl.mapped",
        "host memory that a device maps starts on a page",
        "HIXL sources; aclrtHostRegister",
        _mapped,
    ),
)


def check(request: Request, setup: Setup, **held: int | str) -> list[Finding]:
    """All that HIXL's own rules have to say, after those of `cachefw_rdma.rules`.

    Args:
        request: The new regions.
        setup: What rules are told of the transport.
        **held: `HixlCase.regions`, `device_bytes`, `placement` and `protocol` of the open provider.
    """
    asked = HixlCase(Case.of(request, setup), **held)  # type: ignore[arg-type]
    return [finding for rule in RULES for finding in rule.run(asked)]
