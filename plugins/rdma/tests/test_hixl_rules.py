"""The rules of HIXL's provider."""

from __future__ import annotations

import pytest
from cachefw_rdma.hixl import RULES, HixlProvider
from cachefw_rdma.hixl.rules import check
from cachefw_rdma.profiles import Pointer, PointerKind
from cachefw_rdma.rules import Setup

from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.rules import Finding, Outcome, Request

A = 0x7F0000000000
GIB = 2**30


class Chip:
    """A runtime that says one thing of every address."""

    def __init__(self, soc: str, kind: PointerKind = PointerKind.ORDINARY_HOST) -> None:
        self.soc, self.kind = soc, kind

    def soc_name(self) -> str:
        return self.soc

    def pointer(self, address: int) -> Pointer:
        return Pointer(self.kind)

    def driver_version(self) -> str:
        return ""


def asked(*regions: MemoryRegion, linked: bool = False, profile: str | None = None) -> Request:
    return Request("register_memory", "rdma", regions, tuple(range(len(regions))), True, linked, profile)


def found(name: str, request: Request, chip: Chip | None = None, **held: int | str) -> Finding:
    setup = Setup(runtime=chip, nics=0, loaded=lambda: False, page=4096)
    (finding,) = (finding for finding in check(request, setup, **held) if finding.rule == f"rdma.hixl.{name}")
    return finding


HOST, DEVICE = MemoryRegion(A, 4096), MemoryRegion(A, 4096, MemoryKind.DEVICE)


@pytest.mark.parametrize(
    ("profile", "outcome"),
    [
        ("950", Outcome.OK),
        ("A2", Outcome.NOT_CHECKED),
        ("A3", Outcome.NOT_CHECKED),
        ("unknown", Outcome.NOT_CHECKED),
        ("host-nic", Outcome.REFUSED),
        ("no-ascend", Outcome.REFUSED),
    ],
)
def test_products(profile: str, outcome: Outcome) -> None:
    assert found("product", asked(DEVICE, profile=profile)).outcome is outcome


def test_memory_comes_before_links() -> None:
    assert found("order", asked(DEVICE)).outcome is Outcome.OK
    assert found("order", asked(HOST, linked=True)).outcome is Outcome.REFUSED


def test_limits_of_an_instance() -> None:
    assert found("regions", asked(HOST), regions=4095).outcome is Outcome.OK
    refused = found("regions", asked(HOST), regions=4096)
    assert refused.outcome is Outcome.REFUSED
    assert refused.facts == {"total": 4097, "limit": 4096}
    whole = MemoryRegion(A, 50 * GIB, MemoryKind.DEVICE)
    assert found("device_bytes", asked(whole)).outcome is Outcome.OK
    assert found("device_bytes", asked(whole), device_bytes=1).outcome is Outcome.REFUSED
    assert found("device_bytes", asked(HOST), device_bytes=50 * GIB).outcome is Outcome.OK


@pytest.mark.parametrize("soc", ["Ascend910B3", "Ascend910_9391", "Ascend950PR"])
def test_host_roce_takes_no_memory_of_the_runtime(soc: str) -> None:
    made, plain = Chip(soc, PointerKind.RUNTIME_HOST), Chip(soc)
    host = {"placement": "host"}
    assert found("host_nic", asked(HOST), made, **host).outcome is Outcome.REFUSED
    assert found("host_nic", asked(HOST), plain, **host).outcome is Outcome.OK
    assert found("host_nic", asked(HOST), made).outcome is Outcome.OK
    pinned = MemoryRegion(A, 4096, MemoryKind.PINNED)
    assert found("host_nic", asked(pinned, profile="950"), **host).outcome is Outcome.REFUSED


def test_memory_that_a_device_maps_starts_on_a_page() -> None:
    odd = asked(MemoryRegion(A + 64, 4096))
    refused = found("mapped", odd, protocol="ub_ctp")
    assert refused.outcome is Outcome.REFUSED
    assert refused.facts == {"remainder": 64, "next_aligned": A + 4096}
    assert found("mapped", odd).outcome is Outcome.OK
    assert found("mapped", odd, protocol="ub_ctp", placement="host").outcome is Outcome.OK


def test_every_rule_has_a_source_and_every_refusal_a_fix() -> None:
    assert all(rule.source and rule.name.startswith("rdma.hixl.") for rule in RULES)
    assert set(MemoryKind) == HixlProvider.kinds
    setup = Setup(nics=0, loaded=lambda: True, page=4096)
    odd = MemoryRegion(A + 1, 51 * GIB)
    findings = check(asked(odd, DEVICE, linked=True), setup, regions=5000, placement="host")
    assert all(finding.fix for finding in findings if finding.outcome is not Outcome.OK)
    outcomes = {finding.rule: finding.outcome for finding in findings}
    assert outcomes["rdma.hixl.host_nic"] is Outcome.NOT_CHECKED
    assert outcomes["rdma.hixl.order"] is Outcome.REFUSED
