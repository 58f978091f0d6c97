"""Which profile holds, and what is asked of the device runtime."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from cachefw_rdma import profiles
from cachefw_rdma.profiles import PROFILES, UNKNOWN, Ascendcl, Pointer, PointerKind, choose, find_runtime

A = 0x7F0000000000
PAGE = 4096
RUNTIME_HOST, ORDINARY, DEVICE, UNKNOWN_KIND = PointerKind


class Chip:
    """A runtime of which only the name is asked."""

    def __init__(self, soc: str) -> None:
        self.soc = soc

    def soc_name(self) -> str:
        return self.soc

    def pointer(self, address: int) -> Pointer:
        raise AssertionError("choosing asks for no address")

    def driver_version(self) -> str:
        return ""


SOCS = [
    *((soc, "A2") for soc in ("Ascend910B1", "Ascend910B2", "Ascend910B3", "Ascend910B4", "Ascend910B2C")),
    ("Ascend910B4-1", "A2"),
    *((f"Ascend910_{number}", "A3") for number in (9391, 9381, 9392, 9382, 9372, 9362)),
    ("Ascend950PR_9589", "950"),
    ("Ascend950", "950"),
    ("Ascend910B9", "unknown"),
    ("Ascend910_9999", "unknown"),
    ("Ascend310P3", "unknown"),
    ("", "unknown"),
]


@pytest.mark.parametrize(("soc", "name"), SOCS)
def test_the_chip_chooses_the_profile(soc: str, name: str) -> None:
    assert choose(Chip(soc)).profile.name == name


def test_every_row_has_a_source_and_a_name_of_its_own() -> None:
    assert len({row.name for row in PROFILES}) == len(PROFILES)
    assert all(row.source and row.products for row in (*PROFILES, UNKNOWN))
    socs = [soc for row in PROFILES for soc in row.socs]
    assert len(set(socs)) == len(socs)


def test_no_runtime_is_a_profile_and_a_silent_one_is_not() -> None:
    assert choose(None).profile.name == "no-ascend"
    assert choose(None, obstacle="not installed").profile is UNKNOWN


@pytest.mark.parametrize(("wanted", "name"), [("a3", "A3"), ("A3/fabric", "A3"), ("HOST-NIC", "host-nic")])
def test_profile_names_are_forgiving(wanted: str, name: str) -> None:
    assert choose(None, wanted).profile.name == name


# ---- the runtime --------------------------------------------------------------------------------------------------


def device_that_says(location: str | None, *, guessed: bool = False) -> object:
    info = types.SimpleNamespace(
        location=None if location is None else types.SimpleNamespace(name=location),
        page_size=PAGE,
        guessed=guessed,
        raw_location=9,
    )
    return types.SimpleNamespace(identify=lambda address: info)


@pytest.mark.parametrize(
    ("location", "address", "kind"),
    [
        ("HOST", 0x70000001000, RUNTIME_HOST),
        ("HOST", 0x80000001000, RUNTIME_HOST),
        ("HOST", A, UNKNOWN_KIND),
        ("UNREGISTERED", A, ORDINARY),
        ("DEVICE", 0x100000000000, DEVICE),
        ("MANAGED", A, UNKNOWN_KIND),
        (None, A, UNKNOWN_KIND),
    ],
)
def test_ascendcl_is_asked_and_read(location: str | None, address: int, kind: PointerKind) -> None:
    pointer = Ascendcl(None, device_that_says(location)).pointer(address)
    assert pointer.kind is kind
    assert bool(pointer.note) is (kind is UNKNOWN_KIND)


def test_a_guess_or_a_failure_of_ascendcl_is_no_answer() -> None:
    assert Ascendcl(None, device_that_says("DEVICE", guessed=True)).pointer(A).kind is UNKNOWN_KIND

    def fails(address: int) -> None:
        raise RuntimeError("507899")

    failing = Ascendcl(None, types.SimpleNamespace(identify=fails)).pointer(A)
    assert failing.kind is UNKNOWN_KIND
    assert "507899" in failing.note
    empty = Ascendcl(None, types.SimpleNamespace(identify=lambda address: None)).pointer(A)
    assert empty.kind is UNKNOWN_KIND


def test_the_version_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "version.info"
    file.write_text("Version=25.2.0\nascendhal_version=7.35.23\n")
    monkeypatch.setattr(profiles, "_VERSION_FILE", file)
    real = types.SimpleNamespace(library=types.SimpleNamespace(is_simulator=False))
    assert Ascendcl(real, None).driver_version() == "25.2.0"
    simulated = types.SimpleNamespace(library=types.SimpleNamespace(is_simulator=True))
    assert Ascendcl(simulated, None).driver_version() == ""
    file.unlink()
    assert Ascendcl(real, None).driver_version() == ""


def test_no_runtime_is_looked_for_where_nothing_speaks_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "ascendcl_loaded", lambda: False)
    assert find_runtime({}) == (None, None, "")


def test_a_runtime_that_seems_to_be_there_is_never_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profiles.importlib.util, "find_spec", lambda name: None)
    _, _, obstacle = find_runtime({"CACHEFW_ASCENDCL": str(tmp_path / "libascendcl.so")})
    assert "CACHEFW_ASCENDCL" in obstacle
    assert "not installed" in obstacle


def test_a_runtime_that_cannot_be_opened_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(environ: object) -> None:
        raise RuntimeError("no such library")

    monkeypatch.setattr(profiles.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(profiles.importlib, "import_module", lambda name: types.SimpleNamespace(Runtime=refuses))
    runtime, device, obstacle = find_runtime({"CACHEFW_ASCENDCL": "/nowhere"})
    assert runtime is None
    assert device is None
    assert "no such library" in obstacle


def test_a_device_that_cannot_be_opened_closes_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    def device(index: int) -> None:
        raise RuntimeError(f"no device {index}")

    opened = types.SimpleNamespace(device=device, close=lambda: closed.append(1))
    monkeypatch.setattr(profiles.importlib.util, "find_spec", lambda name: name)
    module = types.SimpleNamespace(Runtime=lambda environ: opened)
    monkeypatch.setattr(profiles.importlib, "import_module", lambda name: module)
    assert "no device 3" in find_runtime({"ASCEND_HOME_PATH": "/nowhere"}, device=3)[2]
    assert closed == [1]


WITH_SIMULATOR = """
import numpy as np
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.rules import Request
from cachefw_rdma.rules import Machine, Setup, check

array = np.zeros(8192, np.uint8)
with Machine() as machine:
    assert machine.obstacle == "" and machine.device is not None, machine.obstacle
    with machine.device.allocate_host(8192) as pinned, machine.device.allocate(2**21) as device:
        ordinary = array.__array_interface__["data"][0]
        regions = [MemoryRegion(pinned.address, 8192), MemoryRegion(ordinary, 4096), MemoryRegion(device.address, 4096)]
        for profile in ("A2", "host-nic", None):
            request = Request("register_memory", "rdma", tuple(regions), (0, 1, 2), True, False, profile)
            for finding in check(request, Setup(runtime=machine.runtime, nics=0)):
                print(profile, finding.rule, finding.outcome.value, finding.index)
"""


def test_the_simulator_is_asked(tmp_path: Path) -> None:
    simulator = pytest.importorskip("cachefw_ascendcl", reason="cachefw-ascendcl is not installed").simulator_path()
    if not simulator.exists():
        pytest.skip("the simulator of cachefw-ascendcl was not built")
    environ = {**os.environ, "CACHEFW_ASCENDCL": "simulator", "ACLSIM_SESSION": str(tmp_path)}
    command = [sys.executable, "-W", "error", "-c", WITH_SIMULATOR]
    lines = subprocess.run(command, env=environ, check=True, capture_output=True, text=True).stdout.splitlines()
    assert "A2 rdma.host_allocator refused 1" in lines
    assert "A2 rdma.host_allocator refused 0" not in lines
    assert "host-nic rdma.host_allocator refused 0" in lines
    assert "host-nic rdma.host_allocator refused 1" not in lines
    assert "A2 rdma.device_memory refused 2" in lines
    assert "None rdma.product ok None" in lines
