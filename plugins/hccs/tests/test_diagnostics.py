"""What the plugin knows of errors and machines agrees with its tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cachefw_hccs
import pytest
from cachefw_hccs import cachefw_diagnostics
from cachefw_hccs.profiles import PROFILES, for_soc
from cachefw_hccs.rules import RULES

from cachefw.catalog import Health
from cachefw.diagnostics import everything
from cachefw.doctor.peer import examine_peer
from cachefw.plugins import catalogue
from cachefw.testing.codes import lacking_codes

SECONDS = 60.0


def test_every_code_has_its_entry() -> None:
    assert lacking_codes(Path(cachefw_hccs.__file__).parent, cachefw_diagnostics().entries) == {}


def test_every_rule_has_its_entry_and_the_runtime_is_explained() -> None:
    names = [entry.name for entry in cachefw_diagnostics().entries]
    assert {rule.name for rule in RULES} <= set(names)
    assert "507899" in names
    assert len(names) == len(set(names))


def test_profiles_are_those_of_the_rules() -> None:
    told = {profile.name: profile.alignment for profile in cachefw_diagnostics().profiles}
    assert told == {profile.name: profile.alignment for profile in PROFILES}


NODE = """
import sys
from cachefw import BlocksCacheKey, CacheDesc, DataType, MemoryKind, Node, Placement
desc = CacheDesc(2, (64, 16, 128), DataType.DT_FLOAT16, Placement.DEVICE)
with Node(7, listen="127.0.0.1:0", transports=["hccs"]) as node:
    made = [node.cache_manager.allocate(desc.size, kind=MemoryKind.DEVICE) for _ in range(desc.num_tensors)]
    node.cache_manager.register_blocks_cache(desc, [memory.address for memory in made], BlocksCacheKey(7))
    print(node.address, flush=True)
    sys.stdin.readline()
for memory in made:
    memory.close()
"""


def test_the_doctor_moves_bytes_of_device_memory() -> None:
    if catalogue.probe("hccs").remark != "SIMULATED":
        pytest.skip("devices of this machine are left alone")
    with subprocess.Popen(
        [sys.executable, "-c", NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            found, told = examine_peer(address, everything(), ["hccs"], SECONDS, lambda *_: None)
            process.communicate("\n", timeout=SECONDS)
        finally:
            process.kill()
    said = {each.check: each for each in found}
    assert said["link.hccs"].health is said["transfer.hccs"].health is Health.OK
    assert "of published device memory read" in said["transfer.hccs"].found
    assert "SIMULATED" in said["peer.hccs"].found
    assert said["peer.hccs"].health is Health.WARNING
    details = told["there"]["transports"]["hccs"]["details"]
    assert details["profile"] == for_soc(details["SoC"]).name
