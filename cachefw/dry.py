"""Planning registrations without the memory, the devices or the machine: every rule, over made-up addresses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from cachefw.cache import Cache, CacheDesc
from cachefw.catalog import MachineProfile
from cachefw.diagnostics import of
from cachefw.errors import TransportUnavailable
from cachefw.hooks import Hooks
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.planning import Planner
from cachefw.plugins import Plugin, catalogue
from cachefw.registry import Registry
from cachefw.rules import Finding, Limits, Outcome, Plan

__all__ = ["DryCache", "DryMemory", "DryRun", "Group", "Step", "dry_run", "grouped", "joined", "lay_out", "pieces"]

#: Where made-up addresses begin: beyond what an allocator would give, and on a boundary of any page.
_BASE = {MemoryKind.DEVICE: 0x1000_0000_0000, MemoryKind.HOST: 0x2000_0000_0000, MemoryKind.PINNED: 0x3000_0000_0000}
#: What a region is split at when nothing asks for more.
_UNIT = 2 * 2**20


@attrs.frozen
class DryMemory:
    """Memory to plan for `register_memory`."""

    name: str
    region: MemoryRegion
    remote_accessible: bool | None = None


@attrs.frozen
class DryCache:
    """A cache to plan for one of the register calls.

    Attributes:
        name: For people.
        desc: What its tensors are.
        addrs: Start address of each.
        kind: What memory it lies in.
        blocks: Whether it is a blocks cache.
        remote_accessible: As for the register calls.
    """

    name: str
    desc: CacheDesc
    addrs: tuple[int, ...]
    kind: MemoryKind
    blocks: bool = True
    remote_accessible: bool | None = None


@attrs.frozen
class Group:
    """What one rule said, once for all addresses of which it said the same sort of thing."""

    transport: str
    rule: str
    outcome: Outcome
    count: int
    indices: tuple[int, ...]
    message: str
    fix: str
    source: str


@attrs.frozen
class Step:
    """One registration of a dry run.

    Attributes:
        name: Of the cache or memory.
        plan: What every rule said.
        joined: The regions, those that touch taken together.
        pieces: For each transport that knows a largest region: in how many registrations the joined regions go.
    """

    name: str
    plan: Plan
    joined: tuple[MemoryRegion, ...]
    pieces: dict[str, int]


@attrs.frozen
class DryRun:
    """All registrations of a dry run, in order.

    Attributes:
        transports: Those whose rules were run.
        profile: The machine that was assumed, None for none.
        machines: What each transport knows of that profile.
        limits: Those of the node.
        steps: In order.
    """

    transports: tuple[str, ...]
    profile: str | None
    machines: dict[str, MachineProfile]
    limits: Limits
    steps: tuple[Step, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is refused."""
        return all(step.plan.ok for step in self.steps)

    def changes(self) -> list[str]:
        """What to change, each once, the most frequent refusal first."""
        fixes: dict[str, int] = {}
        for step in self.steps:
            for finding in step.plan.refused:
                who = f"{finding.transport}: " if finding.transport else ""
                text = f"{who}{finding.fix or finding.message}"
                fixes[text] = fixes.get(text, 0) + 1
        return sorted(fixes, key=lambda text: -fixes[text])


def lay_out(desc: CacheDesc, kind: MemoryKind, alignment: int = _UNIT, after: int = 0) -> tuple[int, ...]:
    """Addresses for tensors, one behind the other, each at a multiple of `alignment`.

    Args:
        desc: The tensors.
        kind: What memory they are to lie in.
        alignment: Bytes.
        after: Where the last layout ended; 0 begins anew.
    """
    start = max(after, _BASE[kind])
    step = -(-max(desc.size, 1) // alignment) * alignment
    start = -(-start // alignment) * alignment
    return tuple(start + index * step for index in range(max(desc.num_tensors, 0)))


def joined(regions: Iterable[MemoryRegion]) -> tuple[MemoryRegion, ...]:
    """Regions of one kind that touch, taken together, by address."""
    found: list[MemoryRegion] = []
    for region in sorted(regions, key=lambda region: region.address):
        last = found[-1] if found else None
        if last is not None and last.end == region.address and last.kind is region.kind:
            found[-1] = attrs.evolve(last, length=last.length + region.length)
        else:
            found.append(region)
    return tuple(found)


def pieces(region: MemoryRegion, largest: int, unit: int = _UNIT) -> list[MemoryRegion]:
    """A region in pieces of at most `largest` bytes, each but the last a multiple of `unit` where that fits."""
    size = largest // unit * unit or largest
    return [
        attrs.evolve(region, address=region.address + offset, length=min(size, region.length - offset))
        for offset in range(0, region.length, size)
    ]


def grouped(findings: Iterable[Finding]) -> list[Group]:
    """Findings by transport, rule and outcome, in their order."""
    found: dict[tuple[str, str, Outcome], list[Finding]] = {}
    for finding in findings:
        found.setdefault((finding.transport or "core", finding.rule, finding.outcome), []).append(finding)
    return [
        Group(
            transport,
            rule,
            outcome,
            len(mine),
            tuple(finding.index for finding in mine if finding.index is not None),
            mine[0].message,
            mine[0].fix,
            mine[0].source,
        )
        for (transport, rule, outcome), mine in found.items()
    ]


def _loaded(names: Sequence[str]) -> list[Plugin]:
    plugins = []
    for name in names:
        plugin = catalogue.get(name)
        if plugin.info is None:
            raise TransportUnavailable(f"{plugin} offers no transport", operation="plan", transport=name)
        plugins.append(plugin)
    return plugins


def dry_run(
    names: Sequence[str],
    caches: Sequence[DryCache],
    memories: Sequence[DryMemory] = (),
    *,
    profile: str | None = None,
    limits: Limits | None = None,
    linked: bool = False,
) -> DryRun:
    """Run every rule over registrations in order; each sees what those before it hold. Nothing is opened or touched.

    Args:
        names: Transports, installed and not necessarily usable here.
        caches: What would be registered.
        memories: What would be registered before, by `register_memory`.
        profile: The machine to assume.
        limits: Those of the node.
        linked: Whether a link exists.

    Raises:
        TransportUnavailable: A transport is not installed.
        PluginError: Its plugin is broken.
    """
    plugins = _loaded(names)
    hooks = Hooks({plugin.name: plugin.module for plugin in plugins}, policies=catalogue.policies())
    infos = [plugin.info.factory() for plugin in plugins if plugin.info is not None]
    for transport, plugin in zip(infos, plugins, strict=True):
        transport.info = plugin.info
    limits = limits or Limits()
    registry = Registry()
    planner = Planner(
        registry, limits, infos, lambda request, transport: hooks.validate(request), lambda: linked, dry=True
    )
    base = (profile or "").partition("/")[0]
    machines = {}
    for plugin in plugins:
        rows = {row.name: row for row in of(plugin).profiles}
        row = rows.get(profile or "") or rows.get(base)
        if row is not None:
            machines[plugin.name] = row
    steps = [_memory_step(planner, memory, profile, machines) for memory in memories]
    steps += [_cache_step(planner, cache, profile, machines) for cache in caches]
    return DryRun(tuple(names), profile, machines, limits, tuple(steps))


def _memory_step(planner: Planner, memory: DryMemory, profile: str | None, machines: dict[str, MachineProfile]) -> Step:
    draft = planner.memory_draft(memory.region, memory.remote_accessible)
    plan = planner.plan(draft, profile)
    _hold(planner.registry, draft.regions, memory.name, shared=True, overlaps=bool(draft.overlaps))
    return _step(memory.name, plan, machines)


def _cache_step(planner: Planner, cache: DryCache, profile: str | None, machines: dict[str, MachineProfile]) -> Step:
    operation = "register_blocks_cache" if cache.blocks else "register_cache"
    keys = None if cache.blocks else ()
    draft = planner.cache_draft(
        operation, cache.desc, list(cache.addrs), keys, cache.remote_accessible, blocks=cache.blocks
    )
    if cache.kind is MemoryKind.PINNED:
        draft.regions = [(index, attrs.evolve(region, kind=cache.kind)) for index, region in draft.regions]
    plan = planner.plan(draft, profile)
    _hold(planner.registry, draft.regions, cache.name, shared=False, overlaps=bool(draft.overlaps))
    registry = planner.registry
    held = Cache(registry.next_cache_id(), cache.desc, cache.addrs, cache.blocks, bool(cache.remote_accessible), ())
    registry.add_cache(held, (), operation)
    return _step(cache.name, plan, machines)


def _hold(
    registry: Registry, regions: Sequence[tuple[int, MemoryRegion]], name: str, *, shared: bool, overlaps: bool
) -> None:
    """File the regions, so that later registrations see them. Those of a registration that overlaps cannot be filed."""
    if not overlaps:
        made = registry.reserve(
            [region for _, region in regions],
            label=name,
            origin="this plan",
            shared=shared,
            remote_accessible=True,
            owners=[None] * len(regions),
        )
        registry.go_live(made)


def _step(name: str, plan: Plan, machines: dict[str, MachineProfile]) -> Step:
    together = joined(plan.regions)
    counts = {
        transport: sum(len(pieces(region, machine.largest_region)) for region in together)
        for transport, machine in machines.items()
        if machine.largest_region
    }
    return Step(name, plan, together, counts)
