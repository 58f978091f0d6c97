"""The rules of RDMA memory: every profile, every kind of memory, and each limit with its numbers."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
import pytest
from cachefw_rdma.profiles import PROFILES, UNKNOWN, Need, Pointer, PointerKind, Way
from cachefw_rdma.rules import RULES, Case, LockLimits, Setup, check, lock_limits, verbs_devices

from cachefw.memory import Access, MemoryKind, MemoryRegion, aligned_empty
from cachefw.rules import Finding, Outcome, Request

GIB = 2**30
PAGE = 4096
A = 0x7F0000000000
OK, REFUSED, NOT_CHECKED = Outcome.OK, Outcome.REFUSED, Outcome.NOT_CHECKED
RUNTIME_HOST, ORDINARY, DEVICE, UNKNOWN_KIND = PointerKind


@attrs.define
class Chip:
    """A runtime that says what it is told to."""

    soc: str = "Ascend910B3"
    kind: PointerKind = ORDINARY
    page: int = PAGE
    hdk: str = ""
    last: PointerKind | None = None
    asked: list[int] = attrs.field(factory=list)

    def soc_name(self) -> str:
        return self.soc

    def pointer(self, address: int) -> Pointer:
        self.asked.append(address)
        kind = self.last if self.last is not None and len(self.asked) > 1 else self.kind
        return Pointer(kind, self.page, "the fake does not say" if kind is UNKNOWN_KIND else "")

    def driver_version(self) -> str:
        return self.hdk


def request(*regions: MemoryRegion, profile: str | None = None, registered: int = 0, linked: bool = False) -> Request:
    indices = tuple(range(len(regions)))
    return Request("register_memory", "rdma", regions, indices, True, linked, profile, registered)


def setup(runtime: Chip | None = None, **more: object) -> Setup:
    settings: dict[str, object] = {"nics": 0, "loaded": lambda: False, "page": PAGE, **more}
    return Setup(runtime=runtime, **settings)  # type: ignore[arg-type]


def by_rule(findings: list[Finding]) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {rule.name: [] for rule in RULES}
    for finding in findings:
        found[finding.rule].append(finding)
    return found


def one(name: str, asked: Request, told: Setup) -> Finding:
    (finding,) = by_rule(check(asked, told))[name]
    return finding


# ---- which profile ------------------------------------------------------------------------------------------------


def test_a_request_overrides_the_setting_which_overrides_the_chip() -> None:
    chip = Chip("Ascend910B3")
    assert Case.of(request(), setup(chip)).choice.profile.name == "A2"
    assert Case.of(request(), setup(chip, profile="host-nic")).choice.profile.name == "host-nic"
    assert Case.of(request(profile="950"), setup(chip, profile="host-nic")).choice.profile.name == "950"


@pytest.mark.parametrize(
    ("wanted", "near"), [("A4", "A2"), ("hostnic", "host-nic"), ("noascend", "no-ascend"), ("unknwon", "unknown")]
)
def test_a_name_that_no_profile_has_is_refused_with_near_ones(wanted: str, near: str) -> None:
    finding = one("rdma.product", request(MemoryRegion(A, PAGE), profile=wanted), setup())
    assert finding.outcome is REFUSED
    assert wanted in finding.message
    assert near in finding.facts["near"]
    assert f"did you mean {finding.facts['near'][0]}" in finding.message
    assert "A2, A3, 950, host-nic, no-ascend, unknown" in finding.message
    others = by_rule(check(request(MemoryRegion(A, PAGE), profile=wanted), setup()))
    assert others["rdma.host_allocator"][0].outcome is NOT_CHECKED


def test_product_says_ok_refused_and_not_checked() -> None:
    asked = request(MemoryRegion(A, PAGE))
    assert one("rdma.product", asked, setup(Chip("Ascend910_9391", RUNTIME_HOST))).outcome is OK
    assert one("rdma.product", asked, setup(Chip("Ascend310P3", RUNTIME_HOST))).outcome is REFUSED
    unknown = one("rdma.product", asked, setup(Chip("AscendNext", RUNTIME_HOST)))
    assert unknown.outcome is NOT_CHECKED
    assert "AscendNext" in unknown.message


# ---- host_allocator and device_memory: every profile and every kind ------------------------------------------------

HOST_KINDS = [MemoryKind.HOST, MemoryKind.PINNED]
# What the rule says, by the profile's need and the runtime's answer. None: another rule refuses it.
EXPECTED = {
    (Need.REQUIRED, RUNTIME_HOST): OK,
    (Need.REQUIRED, ORDINARY): REFUSED,
    (Need.REQUIRED, UNKNOWN_KIND): NOT_CHECKED,
    (Need.FORBIDDEN, RUNTIME_HOST): REFUSED,
    (Need.FORBIDDEN, ORDINARY): OK,
    (Need.FORBIDDEN, UNKNOWN_KIND): NOT_CHECKED,
    (Need.ANY, RUNTIME_HOST): OK,
    (Need.ANY, ORDINARY): OK,
    (Need.ANY, UNKNOWN_KIND): OK,
    (Need.UNKNOWN, RUNTIME_HOST): NOT_CHECKED,
    (Need.UNKNOWN, ORDINARY): NOT_CHECKED,
    (Need.UNKNOWN, UNKNOWN_KIND): NOT_CHECKED,
}
NEEDS = {"A2": "required", "A3": "required", "950": "forbidden", "host-nic": "forbidden"}
NEEDS |= {"no-ascend": "any", "unknown": "unknown"}


def test_the_needs_are_the_documented_ones() -> None:
    assert {row.name: row.needs_runtime_host_memory.value for row in (*PROFILES, UNKNOWN)} == NEEDS


@pytest.mark.parametrize("made", [RUNTIME_HOST, ORDINARY, UNKNOWN_KIND], ids=lambda kind: kind.name)
@pytest.mark.parametrize("kind", HOST_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("profile", [row.name for row in (*PROFILES, UNKNOWN)])
def test_host_memory(profile: str, kind: MemoryKind, made: PointerKind) -> None:
    expected = EXPECTED[Need(NEEDS[profile]), made]
    if (NEEDS[profile], kind, made) == ("forbidden", MemoryKind.PINNED, UNKNOWN_KIND):
        expected = REFUSED  # the caller's own word
    finding = one("rdma.host_allocator", request(MemoryRegion(A, PAGE, kind), profile=profile), setup(Chip(kind=made)))
    assert finding.outcome is expected
    if expected is not OK:
        assert finding.fix
        assert f"{A:#x}" in finding.message


WAYS = [Way.NONE, Way.STAGED, Way.PEER, Way.DIRECT, None]


@pytest.mark.parametrize("ways", WAYS, ids=str)
@pytest.mark.parametrize("profile", [row.name for row in (*PROFILES, UNKNOWN)])
def test_device_memory(profile: str, ways: Way | None) -> None:
    row = next(row for row in (*PROFILES, UNKNOWN) if row.name == profile)
    region = MemoryRegion(0x120000000000, 2**21, MemoryKind.DEVICE, device=0)
    finding = one("rdma.device_memory", request(region, profile=profile), setup(Chip(kind=DEVICE), ways=ways))
    if row.device_memory is None or (ways is None and profile != "no-ascend"):
        expected = NOT_CHECKED
    else:
        expected = OK if row.device_memory & (ways or Way.NONE) else REFUSED
    assert finding.outcome is expected
    # And its host rule has nothing to say about it.
    allocator = one("rdma.host_allocator", request(region, profile=profile), setup(Chip(kind=DEVICE), ways=ways))
    assert allocator.outcome is OK


@pytest.mark.parametrize("kind", HOST_KINDS, ids=lambda kind: kind.name)
def test_device_memory_that_is_declared_host_is_refused(kind: MemoryKind) -> None:
    finding = one("rdma.device_memory", request(MemoryRegion(A, PAGE, kind)), setup(Chip(kind=DEVICE)))
    assert finding.outcome is REFUSED
    assert "Placement.DEVICE" in finding.fix


def test_one_region_under_the_profiles() -> None:
    region = MemoryRegion(A, PAGE)
    plain, pinned = setup(Chip(kind=ORDINARY)), setup(Chip(kind=RUNTIME_HOST))
    on_a2 = one("rdma.host_allocator", request(region, profile="A2"), plain)
    assert on_a2.outcome is REFUSED
    assert "aclrtMallocHost" in on_a2.fix
    assert "host-nic" in on_a2.fix
    on_950 = one("rdma.host_allocator", request(region, profile="950"), pinned)
    assert on_950.outcome is REFUSED
    assert "malloc" in on_950.fix.replace("aclrtMallocHost", "")
    nowhere = by_rule(check(request(region), setup(Chip("Ascend1234", kind=ORDINARY))))
    for name in ("rdma.product", "rdma.host_allocator", "rdma.region_size", "rdma.pages"):
        assert [finding.outcome for finding in nowhere[name]] == [NOT_CHECKED]


def test_a_region_that_is_only_partly_of_the_runtime_is_refused_either_way() -> None:
    for profile in ("A2", "host-nic"):
        chip = Chip(kind=RUNTIME_HOST, last=ORDINARY)
        finding = one("rdma.host_allocator", request(MemoryRegion(A, PAGE), profile=profile), setup(chip))
        assert finding.outcome is REFUSED
        assert "first byte" in finding.message
        assert chip.asked == [A, A + PAGE - 1]


def test_the_transports_own_allocator_needs_no_runtime() -> None:
    pinned = setup(allocated=lambda address, length: MemoryKind.PINNED)
    plain = setup(allocated=lambda address, length: MemoryKind.HOST)
    region = MemoryRegion(A, PAGE)
    assert one("rdma.host_allocator", request(region, profile="A3"), pinned).outcome is OK
    assert one("rdma.host_allocator", request(region, profile="A3"), plain).outcome is REFUSED
    assert one("rdma.host_allocator", request(region, profile="host-nic"), plain).outcome is OK


def test_without_a_runtime_nothing_is_guessed() -> None:
    host, pinned = MemoryRegion(A, PAGE), MemoryRegion(A, PAGE, MemoryKind.PINNED)
    # Nothing that could have made it is loaded: that is known.
    refused = one("rdma.host_allocator", request(host, profile="A2"), setup())
    assert refused.outcome is REFUSED
    assert "no AscendCL is loaded" in refused.message
    assert one("rdma.host_allocator", request(host, profile="950"), setup()).outcome is OK
    # It is loaded and cannot be asked, or the caller says so and nobody confirms it: that is not known.
    loaded = setup(loaded=lambda: True)
    for told, region in ((loaded, host), (loaded, pinned), (setup(obstacle="no such file"), host), (setup(), pinned)):
        assert one("rdma.host_allocator", request(region, profile="A2"), told).outcome is NOT_CHECKED
    assert one("rdma.host_allocator", request(host), setup()).outcome is OK


def test_what_cannot_be_told_is_one_finding_for_all_regions() -> None:
    regions = [MemoryRegion(A + index * PAGE, PAGE) for index in range(50)]
    finding = one("rdma.host_allocator", request(*regions), setup(Chip(kind=UNKNOWN_KIND)))
    assert finding.facts["count"] == 50
    assert "and 49 more" in finding.message


# ---- memlock ------------------------------------------------------------------------------------------------------


def locks(limit: int | None, *, pinned: int = 0, exempt: bool = False) -> object:
    return lambda: LockLimits(limit, 8192, pinned, exempt, 42)


def memlock(told: Setup, *regions: MemoryRegion) -> Finding:
    return one("rdma.memlock", request(*(regions or (MemoryRegion(A + 100, 2 * PAGE),))), told)


def test_memlock_names_all_numbers_and_the_command() -> None:
    finding = memlock(setup(nics=2, limits=locks(8 * PAGE, pinned=3 * PAGE)))
    assert finding.outcome is REFUSED
    # The region touches three pages, each of two NICs counts them.
    assert finding.facts["need"] == 3 * PAGE
    assert finding.facts["over"] == PAGE
    for part in ("12,288", "each of 2 verbs devices", "RLIMIT_MEMLOCK 32,768", "VmLck 8,192", "VmPin 12,288"):
        assert part in finding.message
    assert "CAP_IPC_LOCK no" in finding.message
    assert "prlimit --pid 42 --memlock=unlimited" in finding.fix
    for part in ("limits.conf", "docker run --ulimit memlock=-1", "LimitMEMLOCK=infinity"):
        assert part in finding.fix


def test_memlock_is_kept_to_the_byte() -> None:
    assert memlock(setup(nics=2, limits=locks(6 * PAGE))).outcome is OK
    assert memlock(setup(nics=2, limits=locks(6 * PAGE - 1))).outcome is REFUSED
    assert memlock(setup(nics=1, limits=locks(0))).outcome is REFUSED


@pytest.mark.parametrize("limits", [locks(None), locks(0, exempt=True)])
def test_memlock_without_a_limit(limits: object) -> None:
    assert memlock(setup(nics=4, limits=limits)).outcome is OK


def test_memlock_does_not_apply_without_a_verbs_device() -> None:
    assert memlock(setup(nics=0, limits=locks(0))).outcome is OK
    assert memlock(setup(nics=None, devices=lambda: (), limits=locks(0))).outcome is OK
    assert memlock(setup(nics=None, devices=lambda: ("rxe0",), limits=locks(0))).outcome is NOT_CHECKED
    device = MemoryRegion(A, PAGE, MemoryKind.DEVICE)
    assert memlock(setup(nics=1, limits=locks(0)), device).outcome is OK


def test_memlock_that_cannot_be_read_is_not_checked() -> None:
    def broken() -> LockLimits:
        raise FileNotFoundError("/proc/self/status")

    assert memlock(setup(nics=1, limits=broken)).outcome is NOT_CHECKED


def test_the_kernels_own_numbers() -> None:
    limits = lock_limits()
    assert limits.pid == os.getpid()
    assert limits.locked >= 0
    assert limits.pinned >= 0


def test_verbs_devices_are_the_kernels(tmp_path: Path) -> None:
    assert verbs_devices(tmp_path / "missing") == ()
    (tmp_path / "rxe0").mkdir()
    assert verbs_devices(tmp_path) == ("rxe0",)


# ---- access, region size, pages -----------------------------------------------------------------------------------


@pytest.fixture
def read_only() -> Iterator[int]:
    with mmap.mmap(-1, 2 * mmap.PAGESIZE, prot=mmap.PROT_READ) as area:
        view = np.frombuffer(area, np.uint8)
        address = int(view.__array_interface__["data"][0])
        del view
        yield address


def test_access() -> None:
    array = aligned_empty(4 * PAGE, PAGE)
    address = int(array.__array_interface__["data"][0])
    assert one("rdma.access", request(MemoryRegion(address, 4 * PAGE)), setup()).outcome is OK
    nothing = one("rdma.access", request(MemoryRegion(PAGE, PAGE)), setup())
    assert nothing.outcome is REFUSED
    assert "is not mapped" in nothing.message


def test_access_needs_the_right_to_write_for_verbs_even_when_peers_only_read(read_only: int) -> None:
    region = MemoryRegion(read_only, mmap.PAGESIZE)
    refused = one("rdma.access", request(region), setup())
    assert refused.outcome is REFUSED
    assert refused.facts["lacking"] == "write"
    reads = attrs.evolve(region, access=Access.READ)
    assert one("rdma.access", request(reads), setup()).outcome is OK
    assert one("rdma.access", request(reads), setup(nics=1, limits=locks(None))).outcome is REFUSED


def test_access_of_memory_that_ends_early() -> None:
    with mmap.mmap(-1, mmap.PAGESIZE) as area:
        view = np.frombuffer(area, np.uint8)
        address = int(view.__array_interface__["data"][0])
        del view
        finding = one("rdma.access", request(MemoryRegion(address, 2**46)), setup())
    assert finding.outcome is REFUSED
    assert finding.facts["mapped_to"] >= address + mmap.PAGESIZE
    assert finding.facts["missing"] == address + 2**46 - finding.facts["mapped_to"]


def test_device_memory_is_not_looked_for_among_mappings() -> None:
    assert one("rdma.access", request(MemoryRegion(PAGE, PAGE, MemoryKind.DEVICE)), setup()).outcome is OK


def size(told: Setup, length: int, profile: str, kind: MemoryKind = MemoryKind.HOST) -> Finding:
    return one("rdma.region_size", request(MemoryRegion(A, length, kind), profile=profile), told)


@pytest.mark.parametrize("kind", MemoryKind, ids=lambda kind: kind.name)
def test_region_size_of_the_device_nic(kind: MemoryKind) -> None:
    assert size(setup(), 64 * GIB - 1, "A3", kind).outcome is OK
    refused = size(setup(), 64 * GIB + 10, "A3", kind)
    assert refused.outcome is REFUSED
    assert refused.facts["excess"] == 11
    assert "68,719,476,735" in refused.message


def test_region_size_of_a_network_card() -> None:
    known = setup(nics=1, max_region_bytes=GIB)
    assert size(known, GIB, "host-nic").outcome is OK
    assert size(known, GIB + 1, "host-nic").outcome is REFUSED
    assert size(setup(nics=1), GIB, "host-nic").outcome is NOT_CHECKED
    assert size(setup(nics=0), GIB, "host-nic").outcome is OK
    assert size(setup(), GIB, "unknown").outcome is NOT_CHECKED
    # The smaller of both limits holds.
    assert size(known, 2 * GIB, "A2").outcome is REFUSED


@pytest.mark.parametrize("profile", ["A2", "A3"])
def test_host_memory_of_a_device_nic_starts_on_a_page(profile: str) -> None:
    asked = request(MemoryRegion(A, PAGE), MemoryRegion(A + 5 * PAGE + 8, PAGE), profile=profile)
    finding = one("rdma.pages", asked, setup())
    assert finding.outcome is REFUSED
    assert finding.index == 1
    assert finding.facts == {
        "remainder": 8,
        "next_aligned": A + 6 * PAGE,
        "over_allocate": PAGE,
        "page": PAGE,
    }
    assert "4,088 bytes further" in finding.message


def test_pages_are_those_of_the_machine() -> None:
    finding = one("rdma.pages", request(MemoryRegion(A + PAGE, PAGE), profile="A2"), setup(page=65536))
    assert finding.outcome is REFUSED
    assert "65,536" in finding.message


@pytest.mark.parametrize("profile", ["950", "host-nic", "no-ascend"])
def test_a_host_nic_takes_any_address(profile: str) -> None:
    assert one("rdma.pages", request(MemoryRegion(A + 1, 3), profile=profile), setup()).outcome is OK


def test_peer_memory_starts_on_a_page_of_the_device() -> None:
    base = 0x120000000000
    told = {"ways": Way.PEER, "nics": 1, "limits": locks(None)}

    def pages(address: int, page: int, ways: Way = Way.PEER) -> Outcome:
        region = MemoryRegion(address, PAGE, MemoryKind.DEVICE)
        chip = Chip(kind=DEVICE, page=page)
        return one("rdma.pages", request(region, profile="host-nic"), setup(chip, **{**told, "ways": ways})).outcome

    assert pages(base, 2**21) is OK
    assert pages(base + PAGE, 2**21) is REFUSED
    assert pages(base + PAGE, PAGE) is OK
    assert pages(base + PAGE, 0) is NOT_CHECKED
    assert pages(base, 0) is OK
    assert pages(base + 1, 2**21, Way.STAGED) is OK


# ---- the driver's limit of host memory ----------------------------------------------------------------------------


def three(profile: str, told: Setup) -> list[Outcome]:
    """Three regions of 8 GiB, one after the other."""
    outcomes = []
    for number in range(3):
        now = attrs.evolve(told, registered_host_bytes=number * 8 * GIB)
        asked = request(MemoryRegion(A + number * 8 * GIB, 8 * GIB), profile=profile)
        outcomes.append(one("rdma.host_limit", asked, now).outcome)
    return outcomes


def test_host_memory_by_version_of_hdk() -> None:
    assert three("A2/hdk25.2", setup()) == [OK, OK, REFUSED]
    assert three("A2/HDK 25.5.0", setup()) == [OK, OK, OK]
    assert three("A2", setup()) == [OK, OK, NOT_CHECKED]
    assert three("A3", setup(Chip(kind=RUNTIME_HOST, hdk="24.1.0"))) == [OK, OK, REFUSED]
    assert three("host-nic", setup(Chip(hdk="24.1.0"))) == [OK, OK, OK]


def test_the_refusal_names_the_total_and_the_version_that_lifts_it() -> None:
    regions = [MemoryRegion(A + number * 8 * GIB, 8 * GIB) for number in range(3)]
    finding = one("rdma.host_limit", request(*regions, profile="A2/hdk25.2"), setup())
    assert finding.facts["total"] == 24 * GIB
    assert f"{24 * GIB:,}" in finding.message
    assert "HDK 25.5.0" in finding.fix
    note = one("rdma.host_limit", request(*regions, profile="A2"), setup())
    assert note.outcome is NOT_CHECKED
    assert "25.5.0" in note.message


def test_what_no_version_maps_is_refused() -> None:
    finding = one("rdma.host_limit", request(MemoryRegion(A, 1025 * GIB), profile="A2"), setup())
    assert finding.outcome is REFUSED


def test_a_total_that_may_be_device_memory_is_not_checked() -> None:
    asked = request(MemoryRegion(A, 8 * GIB), profile="A2/hdk25.2", registered=40 * GIB)
    assert one("rdma.host_limit", asked, setup()).outcome is NOT_CHECKED
    assert one("rdma.host_limit", asked, setup(registered_host_bytes=0)).outcome is OK


def test_every_finding_names_its_source_and_every_refusal_its_fix() -> None:
    regions = [MemoryRegion(A + 1, 65 * GIB, kind) for kind in MemoryKind]
    told = setup(Chip(kind=ORDINARY), nics=1, limits=locks(0), ways=Way.NONE)
    findings = check(request(*regions, profile="A2"), told)
    assert {finding.rule for finding in findings} == {rule.name for rule in RULES}
    assert all(finding.source and finding.message for finding in findings)
    refused = {finding.rule for finding in findings if finding.outcome is REFUSED}
    assert refused == {rule.name for rule in RULES} - {"rdma.product", "rdma.host_limit"}
    assert all(finding.fix for finding in findings if finding.outcome is not OK)
