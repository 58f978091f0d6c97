"""What the plugin knows of errors and machines agrees with its tables."""

from __future__ import annotations

from pathlib import Path

import cachefw_rdma
import pytest
from cachefw_rdma import cachefw_diagnostics, diagnostics, library
from cachefw_rdma.hixl.status import STATUSES
from cachefw_rdma.profiles import PROFILES
from cachefw_rdma.status import NAMES

from cachefw import Node
from cachefw.catalog import Health
from cachefw.diagnostics import everything
from cachefw.doctor.peer import examine_peer
from cachefw.plugins import catalogue
from cachefw.testing.codes import lacking_codes

SECONDS = 30.0


def test_every_status_is_explained() -> None:
    entries = {(entry.owner, entry.name): entry for entry in cachefw_diagnostics().entries if entry.sort == "status"}
    for number, name in NAMES.items():
        if -100 < number < 0:
            assert entries["UCX", str(number)].aliases == (name,)
    for number, status in STATUSES.items():
        if number > 0:
            assert entries["HIXL", str(number)].aliases == (status.name,)
            assert entries["HIXL", str(number)].causes


def test_causes_belong_to_names_that_exist() -> None:
    assert set(diagnostics._UCX) <= set(NAMES.values())
    assert set(diagnostics._HIXL) <= {status.name for status in STATUSES.values()}


def test_profiles_are_those_of_the_rules() -> None:
    told = {profile.name: profile.largest_region for profile in cachefw_diagnostics().profiles}
    assert told == {profile.name: profile.max_region_bytes or None for profile in PROFILES}


def test_a_missing_library_is_a_note_without_cards_and_broken_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, "/nowhere/libucp.so.0")
    check = next(check for check in cachefw_diagnostics().checks if check.name == "rdma.ucx")
    for cards, health in (((), Health.NOTE), (("mlx5_0",), Health.BROKEN)):
        monkeypatch.setattr(diagnostics, "verbs_devices", lambda *_, cards=cards: cards)
        (told,) = check.diagnose()
        assert told.health is health
        assert "no usable UCX library was found" in told.found


def test_ports_of_cards(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for number, state in (("1", "4: ACTIVE"), ("2", "1: DOWN")):
        port = tmp_path / "mlx5_0" / "ports" / number
        port.mkdir(parents=True)
        (port / "state").write_text(state + "\n")
        (port / "link_layer").write_text("Ethernet\n")
        (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    monkeypatch.setattr(diagnostics, "_VERBS", tmp_path)
    told = [each for each in diagnostics._devices() if "mlx5_0:" in each.found]
    assert [each.health for each in told] == [Health.OK, Health.WARNING]
    assert told[1].found == "mlx5_0:2 is down, Ethernet, 100 Gb/sec (4X EDR)"


def test_every_code_has_its_entry() -> None:
    assert lacking_codes(Path(cachefw_rdma.__file__).parent, cachefw_diagnostics().entries) == {}


def test_the_doctor_moves_bytes_over_it() -> None:
    reason = catalogue.probe("rdma").reason
    if reason:
        pytest.skip(reason)
    with Node(1, listen="127.0.0.1:0", transports=["rdma"]) as node:
        found, told = examine_peer(node.address, everything(), ["rdma"], SECONDS, lambda *_: None)
    states = {each.check: each.health for each in found}
    assert states["link.rdma"] is states["transfer.rdma"] is Health.OK
    here, there = (told[end]["transports"]["rdma"]["details"] for end in ("here", "there"))
    assert here == there
    assert here.keys() >= {"profile", "provider", "library"}
