"""From the arguments of a registration to a plan: every rule of the core and of every open transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from cachefw.cache import Placement, as_int
from cachefw.core_rules import CACHE_RULES, MEMORY_RULES, address_list, published
from cachefw.drafts import Draft, Holder, Overlap
from cachefw.errors import CacheError, RegistrationError, refusal
from cachefw.memory import MemoryKind, MemoryRegion, is_memory, region_of
from cachefw.registry import Memory, MemoryState, Registry
from cachefw.rules import Finding, Limits, Outcome, Plan, Request
from cachefw.transport import Capability, Transport

__all__ = ["Planner", "refuse"]


@attrs.define(eq=False)
class Planner:
    """Makes drafts and plans against one registry.

    Attributes:
        registry: Where memory is filed.
        limits: The node's limits.
        transports: The open transports, best first.
        validate: Asks the plugins of a transport, or the policies.
        linked: Tells whether a link exists.
        dry: Whether addresses are made up and the transports are not open; see `Request.dry`.
    """

    registry: Registry
    limits: Limits
    transports: Sequence[Transport]
    validate: Callable[[Request, Transport | None], list[Finding]]
    linked: Callable[[], bool]
    dry: bool = False

    def cache_draft(
        self, operation: str, desc: Any, addrs: Any, keys: Any, remote_accessible: Any, *, blocks: bool
    ) -> Draft:
        """Read the arguments of a cache registration; never raises for what is wrong with them."""
        draft = self._draft(operation, desc, addrs, keys, remote_accessible, blocks=blocks)
        draft.given = address_list(addrs) or []
        if set(map(type, draft.given)) - {int}:
            self._resolve(draft)
        draft.usable = [(i, a) for i, a in ((i, as_int(raw)) for i, raw in enumerate(draft.given)) if a and a > 0]
        desc = draft.sized
        if desc is not None:
            draft.length = size = desc.size
            kind = MemoryKind.DEVICE if desc.placement is Placement.DEVICE else MemoryKind.HOST
            wanted = [(i, MemoryRegion(a, size, kind)) for i, a in draft.usable if a + size <= 2**64]
            for position, (index, region) in enumerate(wanted if draft.sources else ()):
                found = draft.sources.get(index, (None, region))[1]
                if isinstance(found, MemoryRegion) and found.kind is kind:
                    wanted[position] = index, attrs.evolve(region, device=found.device)
            self._place(draft, wanted)
        draft.counts = self.registry.counts()
        draft.taken_keys = self.registry.names
        return draft

    @staticmethod
    def _resolve(draft: Draft) -> None:
        """Put addresses in the place of tensors and other memory."""
        for index, value in enumerate(draft.given):
            if not is_memory(value):
                continue
            try:
                region = region_of(value)
            except CacheError as error:
                draft.sources[index] = value, error
                draft.given[index] = None
            else:
                draft.sources[index] = value, region
                draft.given[index] = region.address

    def memory_draft(self, region: MemoryRegion, remote_accessible: Any) -> Draft:
        """Read the arguments of a memory registration."""
        draft = self._draft("register_memory", None, None, None, remote_accessible, blocks=False)
        draft.given, draft.length = [region.address], region.length
        if region.address > 0 and region.length > 0 and region.end <= 2**64:
            self._collide(draft, [(0, region)])
        return draft

    def _draft(
        self, operation: str, desc: Any, addrs: Any, keys: Any, remote_accessible: Any, *, blocks: bool
    ) -> Draft:
        return Draft(
            operation,
            desc,
            addrs,
            keys,
            remote_accessible,
            blocks,
            self.limits,
            self.linked(),
            {},
            self.registry.bytes(device=True),
            self.registry.bytes(device=False),
        )

    def _place(self, draft: Draft, wanted: list[tuple[int, MemoryRegion]]) -> None:
        """Tell views of shared memory from regions that have to be registered."""
        fresh = []
        for index, region in wanted:
            holders = list(self.registry.overlapping(region.address, region.end))
            if len(holders) == 1 and _holds(holders[0], region):
                draft.views.append((index, Holder(holders[0].region, str(holders[0]), holders[0].remote_accessible)))
            else:
                fresh.append((index, region))
        self._collide(draft, fresh)

    def _collide(self, draft: Draft, fresh: list[tuple[int, MemoryRegion]]) -> None:
        for index, region in fresh:
            for memory in self.registry.overlapping(region.address, region.end):
                draft.overlaps.append(Overlap(index, region, Holder(memory.region, str(memory))))
        # Each region is held against the one before it that reaches furthest; the earlier index is the holder.
        far: tuple[int, MemoryRegion] | None = None
        for index, region in sorted(fresh, key=lambda item: (item[1].address, item[0])):
            if far is not None and region.address < far[1].end:
                first, second = sorted((far, (index, region)), key=lambda item: item[0])
                draft.overlaps.append(Overlap(second[0], second[1], Holder(first[1], "this call"), first[0]))
            if far is None or region.end > far[1].end:
                far = index, region
        draft.overlaps.sort(key=lambda overlap: overlap.index)
        draft.regions = fresh

    def plan(self, draft: Draft, profile: str | None = None) -> Plan:
        """Run every rule over a draft."""
        rules = MEMORY_RULES if draft.operation == "register_memory" else CACHE_RULES
        findings = [finding for rule in rules for finding in rule.run(draft)]
        # What is no region for the core is none for a transport, and a region met twice is checked once.
        clashing = {overlap.index for overlap in draft.overlaps}
        sound = [(index, region) for index, region in draft.regions if index not in clashing]
        for transport in self.transports:
            mine = [item for item in sound if takes(self.transports, transport, item[1].kind)]
            if mine:
                findings += self.validate(self._request(draft, transport.info.name, mine, profile), transport)
                findings += [] if self.dry else _kind_findings(transport, mine, draft)
        if sound:
            findings += self.validate(self._request(draft, None, sound, profile), None)
        # Where a transport said itself that it does not take the memory, there is nothing to add.
        if not any(finding.outcome is Outcome.REFUSED and finding.transport for finding in findings):
            findings += self._takers(sound)
        return Plan(draft.operation, tuple(findings), tuple(region for _, region in draft.regions), len(draft.views))

    def _request(
        self, draft: Draft, transport: str | None, items: list[tuple[int, MemoryRegion]], profile: str | None
    ) -> Request:
        indices, regions = zip(*items, strict=True)
        return Request(
            draft.operation,
            transport,
            regions,
            indices,
            published(draft.remote_accessible, regions, ()),
            draft.linked,
            profile,
            draft.device_bytes + draft.host_bytes,
            self.dry,
            draft.host_bytes,
        )

    def _takers(self, sound: list[tuple[int, MemoryRegion]]) -> list[Finding]:
        if not self.transports:
            return []
        lost = sorted({str(r.kind) for _, r in sound if not any(r.kind in t.info.kinds for t in self.transports)})
        return [
            Finding(
                "core.transport",
                Outcome.REFUSED,
                f"no open transport takes {kind}: "
                + ", ".join(f"{t.info.name} takes {_kinds(t)}" for t in self.transports),
                fix="open a transport that takes it: transports=[...]",
                source="cachefw",
            )
            for kind in lost
        ]


def takes(transports: Sequence[Transport], transport: Transport, kind: MemoryKind) -> bool:
    """Whether a transport is asked about memory of a kind: it takes it, or nobody does and each says why."""
    return kind in transport.info.kinds or not any(kind in other.info.kinds for other in transports)


def _holds(memory: Memory, region: MemoryRegion) -> bool:
    return (
        memory.shared
        and memory.state is MemoryState.LIVE
        and memory.region.address <= region.address
        and region.end <= memory.region.end
    )


def _kinds(transport: Transport) -> str:
    return " and ".join(sorted(str(kind) for kind in transport.info.kinds))


def _kind_findings(transport: Transport, items: list[tuple[int, MemoryRegion]], draft: Draft) -> list[Finding]:
    """What the runtime knows of the memory against what the caller said."""
    if Capability.IDENTIFY not in transport.info.capabilities:
        return []
    findings = []
    for index, region in items:
        found = transport.identify(region.address, region.length)
        # A runtime's own host memory is host memory too; which of them it has to be is for the transport's rules.
        both = {found, region.kind}
        if found is not None and found is not region.kind and both != {MemoryKind.HOST, MemoryKind.PINNED}:
            findings.append(
                Finding(
                    "core.kind",
                    Outcome.REFUSED,
                    f"{draft.place(index)} {region.address:#x} is declared {region.kind}, the runtime says {found}",
                    transport=transport.info.name,
                    index=index,
                    address=region.address,
                    length=region.length,
                    facts={"declared": str(region.kind), "found": str(found)},
                    fix="correct the placement of the cache_desc, or the address",
                    source="cachefw",
                )
            )
    return findings


def refuse(plan: Plan, *, strict: bool) -> CacheError | None:
    """The one error that holds every refusal of a plan, or None."""
    fatal = [*plan.refused, *(plan.not_checked if strict else ())]
    if not fatal:
        return None
    lines = []
    for number, finding in enumerate(fatal, 1):
        who = f" ({finding.transport})" if finding.transport else ""
        unchecked = " [not checked, and strict=True]" if finding.outcome is Outcome.NOT_CHECKED else ""
        lines.append(f"  {number}. {finding.rule}{who}: {finding.message}{unchecked}")
        if finding.fix:
            lines.append(f"     -> {finding.fix}")
    count = "1 rule broken" if len(fatal) == 1 else f"{len(fatal)} rules broken"
    return refusal(
        RegistrationError,
        {finding.builtin for finding in fatal},
        f"{plan.operation}: {count}, nothing was registered\n" + "\n".join(lines),
        code=fatal[0].rule if len(fatal) == 1 else "registration.refused",
        operation=plan.operation,
        transport=fatal[0].transport if len(fatal) == 1 else None,
        findings=plan.findings,
        status=next((finding.facts["status"] for finding in fatal if finding.facts.get("status")), None),
        detail=next((finding.facts["detail"] for finding in fatal if finding.facts.get("detail")), None),
    )
