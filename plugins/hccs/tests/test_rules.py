"""The rules of HCCS, for every profile and for what a runtime says, without a runtime."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from cachefw_hccs.profiles import PROFILES, by_name, for_soc
from cachefw_hccs.rules import RULES, Case, Pointer

import cachefw
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.rules import Finding, Outcome, Request

MIB = 2**20
BASE = 0x12D400000000


GOOD = Pointer(MemoryKind.DEVICE, 0, 2 * MIB, BASE, 64 * MIB)


@attrs.frozen
class Runtime:
    """A runtime that says what it is told to say."""

    soc: str | None = "Ascend910B3"
    device: int = 0
    answer: Pointer | None = GOOD

    def pointer(self, address: int) -> Pointer | None:
        return self.answer


def judge(
    *regions: MemoryRegion, profile: str | None = None, runtime: Runtime | None = None
) -> dict[str, list[Finding]]:
    request = Request("register_cache", "hccs", regions, tuple(range(len(regions))), True, False, profile)
    case = Case.of(request, runtime)
    return {rule.name: rule.run(case) for rule in RULES}


def outcomes(findings: dict[str, list[Finding]]) -> dict[str, set[Outcome]]:
    return {name: {finding.outcome for finding in found} for name, found in findings.items()}


def device(address: int = BASE, length: int = 2 * MIB) -> MemoryRegion:
    return MemoryRegion(address, length, MemoryKind.DEVICE)


def test_good_memory_passes_every_rule() -> None:
    assert set(map(frozenset, outcomes(judge(device(), runtime=Runtime())).values())) == {frozenset({Outcome.OK})}


@pytest.mark.parametrize(
    ("address", "remainder"), [(BASE + 2 * MIB - 32, 2_097_120), (0x12D6371B8000, 1_802_240), (BASE + 1, 1)]
)
def test_t06_misalignment_says_remainder_next_and_room(address: int, remainder: int) -> None:
    (finding,) = judge(device(address, MIB), profile="A2")["hccs.alignment"]
    assert finding.outcome is Outcome.REFUSED
    assert finding.facts["remainder"] == remainder
    assert finding.facts["next_aligned"] == address + 2 * MIB - remainder
    assert finding.facts["over_allocate"] == 2 * MIB
    assert f"{remainder:,} bytes past a multiple of 2,097,152" in finding.message
    assert "align_within" in finding.fix


def test_t06_every_address_is_checked_and_not_only_the_first() -> None:
    found = judge(device(), device(BASE + 4096), device(BASE + 8 * MIB), device(BASE + 5), profile="A3")
    assert [finding.index for finding in found["hccs.alignment"]] == [1, 3]


def test_t06_a_machine_without_the_rule_takes_any_address() -> None:
    assert outcomes(judge(device(BASE + 32), profile="950"))["hccs.alignment"] == {Outcome.OK}


@pytest.mark.parametrize(
    ("profile", "outcome"),
    [
        ("A2", Outcome.REFUSED),
        ("A3", Outcome.REFUSED),
        ("A3/fabric", Outcome.OK),
        ("unknown", Outcome.NOT_CHECKED),
        ("950", Outcome.NOT_CHECKED),
    ],
)
def test_t13_host_memory_by_profile(profile: str, outcome: Outcome) -> None:
    found = judge(MemoryRegion(BASE, MIB, MemoryKind.HOST), profile=profile)
    assert outcomes(found)["hccs.device_only"] == {outcome}


def test_host_memory_is_told_how_to_be_right() -> None:
    (finding,) = judge(MemoryRegion(BASE, MIB), runtime=Runtime())["hccs.device_only"]
    assert "addrs[0]" in finding.message
    assert "device memory only" in finding.message
    assert "placement=Placement.DEVICE" in finding.fix


@pytest.mark.parametrize(
    ("soc", "outcome"),
    [
        ("Ascend910B1", Outcome.OK),
        ("Ascend910B4-1", Outcome.OK),
        ("Ascend910_9391", Outcome.OK),
        ("Ascend950PR_9599", Outcome.REFUSED),
        ("Ascend310P3", Outcome.NOT_CHECKED),
        ("Ascend910A", Outcome.NOT_CHECKED),
        (None, Outcome.NOT_CHECKED),
    ],
)
def test_products_are_told_apart_by_soc(soc: str | None, outcome: Outcome) -> None:
    (finding,) = judge(device(), runtime=Runtime(soc))["hccs.product"]
    assert finding.outcome is outcome
    if outcome is not Outcome.OK and soc:
        assert soc in finding.message


def test_an_unknown_machine_is_never_ok_where_its_rules_are_not_known() -> None:
    found = outcomes(judge(device(BASE + 7), MemoryRegion(BASE, 1), runtime=Runtime("Ascend310P3")))
    for rule in ("hccs.product", "hccs.alignment", "hccs.device_only", "hccs.page"):
        assert found[rule] == {Outcome.NOT_CHECKED}


def test_an_unknown_profile_is_refused_with_near_matches() -> None:
    (finding,) = judge(device(), profile="A3/fabrik")["hccs.product"]
    assert finding.outcome is Outcome.REFUSED
    assert "did you mean 'A3/fabric'?" in finding.message


def test_memory_of_another_device_is_refused() -> None:
    answer = Pointer(MemoryKind.DEVICE, 3, 2 * MIB, BASE, 64 * MIB)
    (finding,) = judge(device(), runtime=Runtime(device=1, answer=answer))["hccs.device"]
    assert "lies on device 3; this transport is open on device 1" in finding.message


def test_memory_past_its_allocation_is_refused_with_the_excess() -> None:
    answer = Pointer(MemoryKind.DEVICE, 0, 2 * MIB, BASE, 4 * MIB)
    (finding,) = judge(device(BASE + 2 * MIB, 2 * MIB + 1), runtime=Runtime(answer=answer))["hccs.range"]
    assert finding.facts["excess"] == 1
    assert "1 bytes past its allocation" in finding.message


def test_small_pages_are_refused_though_the_driver_would_take_them() -> None:
    answer = Pointer(MemoryKind.DEVICE, 0, 4096, BASE, 4 * MIB)
    (finding,) = judge(device(), runtime=Runtime(answer=answer))["hccs.page"]
    assert finding.outcome is Outcome.REFUSED
    assert "ACL_MEM_MALLOC_HUGE_ONLY" in finding.fix


def test_a_dry_run_for_another_machine_does_not_ask_this_ones_runtime() -> None:
    found = outcomes(judge(device(), profile="A3", runtime=Runtime("Ascend310P3", answer=Pointer(None, page=4096))))
    assert found["hccs.product"] == {Outcome.OK}
    assert found["hccs.page"] == {Outcome.NOT_CHECKED}


def test_every_row_of_the_table_names_its_source_and_is_found_by_its_names() -> None:
    for profile in PROFILES:
        assert profile.source
        assert by_name(profile.name) is profile
        for soc in profile.socs:
            assert for_soc(soc) is profile


def test_t07_aligning_never_leaves_the_buffer_and_keeps_it_alive() -> None:
    need = 3 * MIB
    with pytest.raises(ValueError, match=f"Allocate {need + 2 * MIB - 1:,} bytes"):
        cachefw.align_within(BASE + 1, need, need, 2 * MIB)
    start = cachefw.align_within(BASE + 1, need + 2 * MIB - 1, need, 2 * MIB)
    assert start == BASE + 2 * MIB
    array = cachefw.aligned_empty(need, 2 * MIB)
    assert array.__array_interface__["data"][0] % (2 * MIB) == 0
    assert isinstance(array.base, np.ndarray)
    assert array.base.nbytes >= need
