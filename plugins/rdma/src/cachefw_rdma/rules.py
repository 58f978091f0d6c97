"""What memory has to be for RDMA."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from pathlib import Path

import attrs

from cachefw.memory import Access, MemoryKind, MemoryRegion
from cachefw.rules import Finding, Outcome, Request, Rule

from .case import At, Case, LockLimits, Machine, Setup, lock_limits, say, unchecked, verbs_devices
from .profiles import HOST_LIMITS, UNKNOWN, Need, PointerKind, Way

__all__ = ["RULES", "Case", "LockLimits", "Machine", "Setup", "check", "lock_limits", "verbs_devices"]

_MAPS = Path("/proc/self/maps")
_VENDOR = "LLM-DataDist CacheManager"


_NAME_IT = "name the machine: the transport's setting profile, or plan(profile=...)"


def _product(case: Case) -> Iterable[Finding]:
    choice = case.choice
    facts = {"profile": choice.profile.name, "soc": choice.soc, "near": choice.near}
    if choice.refused:
        yield say(Outcome.REFUSED, choice.refused, "use one of those, or leave profile out", facts=facts)
    elif choice.profile is UNKNOWN:
        yield say(Outcome.NOT_CHECKED, f"{choice.reason}; its rules for RDMA are not known", _NAME_IT, facts=facts)
    else:
        text = f"profile {choice.profile.name}, {choice.profile.products}: {choice.reason}"
        yield say(Outcome.OK, text, facts=facts, source=choice.profile.source)


def _made(case: Case, region: MemoryRegion) -> tuple[PointerKind | None, str]:
    """How host memory was made, None for partly one way, and who says so. Asked, never guessed."""
    if case.setup.dry:
        pinned = region.kind is MemoryKind.PINNED
        return PointerKind.RUNTIME_HOST if pinned else PointerKind.ORDINARY_HOST, "as it is declared"
    ours = case.setup.allocated(region.address, region.length)
    if ours is not None:
        made = PointerKind.RUNTIME_HOST if ours is MemoryKind.PINNED else PointerKind.ORDINARY_HOST
        return made, "this transport allocated it"
    if case.setup.runtime is not None:
        first, last = case.ends(region)
        if PointerKind.UNKNOWN in (first.kind, last.kind):
            return PointerKind.UNKNOWN, first.note or last.note
        if first.kind is not last.kind:
            return None, f"the runtime says {first.kind} at its first byte and {last.kind} at its last"
        return first.kind, "the runtime says so"
    if case.setup.obstacle or case.setup.loaded():
        return PointerKind.UNKNOWN, case.setup.obstacle or "AscendCL is loaded, but no runtime is open to ask it"
    if region.kind is MemoryKind.PINNED:
        return PointerKind.UNKNOWN, "it is declared pinned, and there is no runtime to confirm that"
    return PointerKind.ORDINARY_HOST, "no AscendCL is loaded in this process that could have made it otherwise"


def _host_allocator(case: Case) -> Iterable[Finding]:
    profile = case.choice.profile
    need = profile.needs_runtime_host_memory
    places = list(case.regions(device=False))
    if need is Need.UNKNOWN:
        yield from unchecked(places, f"which allocator host memory needs is not known ({case.choice.reason})", _NAME_IT)
        return
    if need is Need.ANY:
        return
    wrong = PointerKind.ORDINARY_HOST if need is Need.REQUIRED else PointerKind.RUNTIME_HOST
    unsure: dict[str, list[At]] = {}
    for at in places:
        made, why = _made(case, at[1])
        if made is PointerKind.UNKNOWN and need is Need.FORBIDDEN and at[1].kind is MemoryKind.PINNED:
            made, why = PointerKind.RUNTIME_HOST, "it is declared pinned"
        if made is PointerKind.UNKNOWN:
            unsure.setdefault(why, []).append(at)
        elif made is None or made is wrong:
            yield _wrong_allocator(case, at, made, why)
    for why, unknown in unsure.items():
        fix = "open the transport where the runtime can be asked, or name the machine: the setting profile"
        yield from unchecked(unknown, f"how it was made cannot be told: {why}", fix, {"needs": need.value})


def _wrong_allocator(case: Case, at: At, made: PointerKind | None, why: str) -> Finding:
    profile = case.choice.profile
    index, region = at
    found = f"addrs[{index}] {region} is {made or 'not all of one kind'} ({why})"
    if profile.needs_runtime_host_memory is Need.REQUIRED:
        text = f"{found}; on {profile.name} RDMA needs host memory of aclrtMallocHost, or linking fails"
        fix = "allocate it with aclrtMallocHost (Device.allocate_host of cachefw_ascendcl); if a card of the host "
        fix += "carries it, open the transport with profile='host-nic'"
    else:
        text = f"{found}; with {profile.name} memory of aclrtMallocHost cannot be registered"
        fix = "allocate it with malloc (numpy, torch or mmap do)"
    needs = profile.needs_runtime_host_memory.value
    facts = {"found": str(made), "needs": needs, "profile": profile.name}
    return say(Outcome.REFUSED, text, fix, at, facts, profile.source)


def _device_memory(case: Case) -> Iterable[Finding]:
    profile, ways = case.choice.profile, case.setup.ways
    for at in case.regions(device=False):
        if case.setup.runtime is not None and PointerKind.DEVICE in {pointer.kind for pointer in case.ends(at[1])}:
            yield say(
                Outcome.REFUSED,
                f"addrs[{at[0]}] {at[1]} is declared {at[1].kind}; the runtime says device memory, which the CPU must "
                "not touch",
                "set placement=Placement.DEVICE",
                at,
            )
    places = list(case.regions(device=True))
    if not places:
        return
    if profile.device_memory is None:
        yield from unchecked(places, f"how device memory travels is not known ({case.choice.reason})", _NAME_IT)
    elif ways is None and profile.device_memory:
        text = "whether the transport stages device memory, or has declared peer memory, is not known"
        yield from unchecked(places, text, "open the transport")
    elif not (profile.device_memory & (ways or Way.NONE)):
        reason = f"{profile.name} has no way for it" if not profile.device_memory else "the transport neither stages it"
        reason += "" if not profile.device_memory else " nor has declared peer memory"
        for at in places:
            text = f"addrs[{at[0]}] {at[1]} is device memory; {reason}, and the CPU must not touch it"
            fix = "have it staged through host memory, for which AscendCL has to be found (pip install "
            fix += "'cachefw-rdma[ascendcl]', CACHEFW_ASCENDCL), declare peer_memory where the driver's module is "
            fix += "loaded, or register host memory"
            yield say(Outcome.REFUSED, text, fix, at, {"ways": str(ways)})
    else:
        way = str((profile.device_memory & (ways or Way.NONE)).name).lower()
        yield say(Outcome.OK, f"device memory travels: {way}", facts={"ways": way})


def _memlock(case: Case) -> Iterable[Finding]:
    nics, page = case.nics, case.setup.page
    places = list(case.regions(device=False))
    if not places or nics == 0:
        yield say(Outcome.OK, "no verbs device is used for this memory; nothing is pinned")
        return
    if case.setup.dry:
        text = "what may be pinned on the machine that is meant is not known"
        yield from unchecked(places, text, "look at `ulimit -l` there, or run `cachefw doctor` there")
        return
    need = sum((-(-region.end // page) - region.address // page) * page for _, region in places)
    try:
        now = case.setup.limits()
    except OSError as error:
        yield from unchecked(places, f"what may be pinned cannot be read: {error}", "mount /proc")
        return
    limit = "unlimited" if now.limit is None else f"{now.limit:,}"
    numbers = f"RLIMIT_MEMLOCK {limit}, VmLck {now.locked:,}, VmPin {now.pinned:,}, CAP_IPC_LOCK "
    numbers += "yes" if now.exempt else "no"
    facts = {"need": need, "nics": nics, **attrs.asdict(now)}
    text = f"{need:,} bytes are to be pinned on each of {nics or 'the'} verbs devices; {numbers}"
    if now.limit is None or now.exempt:
        yield say(Outcome.OK, text, facts=facts)
    elif nics is None:
        text = f"{need:,} bytes are to be pinned; how many verbs devices count them is not known; {numbers}"
        yield from unchecked(places, text, "open the transport, or look at `ulimit -l`", facts)
    elif need * nics + now.pinned > now.limit:
        over = need * nics + now.pinned - now.limit
        yield say(
            Outcome.REFUSED,
            f"{text}: {over:,} bytes too many",
            f"lift it for this process: prlimit --pid {now.pid} --memlock=unlimited (as root). For good: `ulimit -l "
            "unlimited` before the start, `docker run --ulimit memlock=-1`, `LimitMEMLOCK=infinity` in a systemd unit, "
            "or `* - memlock unlimited` in /etc/security/limits.conf",
            facts={"over": over, **facts},
        )
    else:
        yield say(Outcome.OK, text, facts=facts)


def _mappings() -> list[tuple[int, int, str]]:
    rows = (line.split(None, 2) for line in _MAPS.read_text().splitlines())
    return [(int(span.split("-")[0], 16), int(span.split("-")[1], 16), rights) for span, rights, *_ in rows]


def _access(case: Case) -> Iterable[Finding]:
    places = list(case.regions(device=False))
    if not places:
        return
    if case.setup.dry:
        fix = "CacheManager.plan() in the process that has the memory checks it"
        yield from unchecked(places, "the addresses are made up; whether the memory is mapped is not known", fix)
        return
    try:
        table = _mappings()
    except OSError as error:
        yield from unchecked(places, f"{_MAPS} cannot be read: {error}", "mount /proc")
        return
    starts = [start for start, _, _ in table]
    for at in places:
        region = at[1]
        # Verbs devices pin memory for writing, whatever the peer may do.
        write = Access.WRITE in region.access or bool(case.nics)
        reached, row, lacking = region.address, bisect.bisect_right(starts, region.address) - 1, ""
        while 0 <= row < len(table) and table[row][0] <= reached < table[row][1] and reached < region.end:
            rights = table[row][2]
            lacking = (
                lacking or ("" if rights[0] == "r" else "read") or ("" if rights[1] == "w" or not write else "write")
            )
            reached, row = table[row][1], row + 1
        if reached < region.end:
            where = "is not mapped" if reached == region.address else f"is mapped only up to {reached:#x}"
            facts = {"mapped_to": reached, "missing": region.end - reached}
            fix = "check the address and the shape; the memory must stay mapped while it is registered"
            yield say(Outcome.REFUSED, f"addrs[{at[0]}] {region} {where}", fix, at, facts)
        elif lacking:
            text = (
                f"addrs[{at[0]}] {region} is mapped without the right to {lacking}; registering it would fail (EFAULT)"
            )
            yield say(Outcome.REFUSED, text, "map it readable and writable", at, {"lacking": lacking})


def _region_size(case: Case) -> Iterable[Finding]:
    most, nics = case.choice.profile.max_region_bytes, case.nics
    places = [*case.regions(device=False), *case.regions(device=True)]
    known = [size for size in (most, case.setup.max_region_bytes) if size]
    if not known:
        if most is None:
            yield from unchecked(places, f"the largest region is not known ({case.choice.reason})", _NAME_IT)
        elif nics == 0:
            yield say(Outcome.OK, "no verbs device is used; nothing limits a region")
        else:
            yield from unchecked(places, "the largest region of the network card is not known", "open the transport")
        return
    for at in places:
        if at[1].length > min(known):
            excess = at[1].length - min(known)
            text = f"addrs[{at[0]}] {at[1]} is {excess:,} bytes longer than the largest region, {min(known):,} bytes"
            fix = "register it in several regions, none longer than that"
            yield say(Outcome.REFUSED, text, fix, at, {"largest": min(known), "excess": excess})


def _pages(case: Case) -> Iterable[Finding]:
    profile = case.choice.profile
    host, device = list(case.regions(device=False)), list(case.regions(device=True))
    if profile.host_on_page is None:
        yield from unchecked([*host, *device], f"its page rules are not known ({case.choice.reason})", _NAME_IT)
        return
    for at in host if profile.host_on_page else ():
        yield from _on_page(at, case.setup.page, f"on {profile.name} the driver maps host memory by whole pages")
    way = (profile.device_memory or Way.NONE) & (case.setup.ways or Way.NONE)
    if not way & Way.PEER or way & Way.DIRECT:
        return
    for at in device:
        page = case.pointer(at[1].address).page
        if page:
            yield from _on_page(at, page, "peer memory has to start on a page of the device")
        elif at[1].address % (2 * 2**20):
            text = "it is no multiple of 2 MiB, and the size of the device's pages there is not known"
            yield from unchecked([at], text, "start it at a multiple of 2 MiB, which every page size takes")


def _on_page(at: At, page: int, why: str) -> Iterable[Finding]:
    past = at[1].address % page
    if past:
        following = at[1].address + page - past
        yield say(
            Outcome.REFUSED,
            f"addrs[{at[0]}] {at[1].address:#x} is {past:,} bytes past a page of {page:,} bytes; {why}; the next one "
            f"starts at {following:#x}, {page - past:,} bytes further",
            f"allocate {page:,} bytes more than needed and start there (cachefw.aligned_empty, cachefw.align_within)",
            at,
            {"remainder": past, "next_aligned": following, "over_allocate": page, "page": page},
        )


def _host_limit(case: Case) -> Iterable[Finding]:
    places = list(case.regions(device=False))
    if not case.choice.profile.host_limits or not places:
        return
    new = sum(region.length for _, region in places)
    before = case.setup.registered_host_bytes
    before = case.request.registered_host_bytes if before is None else before
    # What is registered already may be device memory as far as is known.
    low, high = (new, new + case.request.registered_bytes) if before is None else (new + before, new + before)
    version = tuple(int(part) for part in case.choice.hdk.split(".") if part)
    rows = [row for row in HOST_LIMITS if version >= row.since] if version else []
    least = rows[-1].bytes if rows else min(row.bytes for row in HOST_LIMITS)
    hdk = f"HDK {case.choice.hdk}" if rows else "an unknown version of HDK"
    lifts = next((row for row in HOST_LIMITS if row.bytes > least), None)
    upgrade = "" if lifts is None else f"HDK {'.'.join(map(str, lifts.since))}.0 lifts it to {lifts.bytes:,} bytes"
    facts = {"total": high, "limit": least, "hdk": case.choice.hdk}
    text = f"{high:,} bytes of host memory in all; {hdk} maps {least:,}"
    if low > (least if rows else max(row.bytes for row in HOST_LIMITS)):
        fix = f"upgrade: {upgrade}" if upgrade else "register less host memory"
        yield say(Outcome.REFUSED, text, fix, facts=facts, source=rows[-1].source if rows else "")
    elif high > least:
        text = f"{high:,} bytes of host memory in all; whether {hdk} maps more than {least:,} is not known; {upgrade}"
        yield from unchecked(places, text, "look at /usr/local/Ascend/driver/version.info", facts)


RULES: tuple[Rule, ...] = (
    Rule("rdma.product", "the machine is one whose rules are known", _VENDOR, _product),
    Rule("rdma.host_allocator", "host memory comes from the allocator that the NIC needs", _VENDOR, _host_allocator),
    Rule(
        "rdma.device_memory", "no memory of a device is touched by the CPU", "native ABI of the driver", _device_memory
    ),
    Rule("rdma.memlock", "what has to be pinned may be pinned", "Linux, ib_umem_get", _memlock),
    Rule("rdma.access", "the memory is mapped with the rights it needs", "proc(5), ibv_reg_mr(3)", _access),
    Rule("rdma.region_size", "no region is larger than the device takes", "ibv_query_device(3), hcomm", _region_size),
    Rule("rdma.pages", "memory starts on a page where it has to", "the driver's checks", _pages),
    Rule(
        "rdma.host_limit", "all host memory together fits into the driver's tables", "HIXL documentation", _host_limit
    ),
)


def check(request: Request, setup: Setup, rules: Iterable[Rule] = RULES) -> list[Finding]:
    """All that the rules have to say about a request."""
    case = Case.of(request, setup)
    return [finding for rule in rules for finding in rule.run(case)]
