"""The command line over HCCS, with two processes on two emulated devices."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 60
PAGE = Path(__file__).resolve().parents[3] / "docs" / "without-an-npu.md"

# The environment comes from conftest.py: on hardware there is nothing simulated to be said.
pytestmark = pytest.mark.skipif(
    os.environ.get("CACHEFW_ASCENDCL") != "simulator", reason="says what is SIMULATED; this run uses hardware"
)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cachefw", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=SECONDS,
        check=False,
    )


def demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run("demo", "--transport", "hccs", "--tokens", "256", *arguments, **environment)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3"])
def test_device_memory_goes_from_device_0_to_device_1_and_is_verified(model: str) -> None:
    done = demo("--model", model, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["verified"] is True
    assert facts["remark"] == "SIMULATED"
    assert facts["memory"] == "device memory"
    assert facts["path"] == "ipc"
    assert facts["prefill_settings"] == {"device": 0}
    assert facts["decode_settings"] == {"device": 1}
    assert facts["checked_blocks"] == 2 * facts["blocks"] * facts["tensors"]


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_table_says_that_it_was_simulated(columns: str) -> None:
    done = demo(COLUMNS=columns)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert any("hccs, path ipc; SIMULATED" in line for line in lines)
    assert "figures of a simulation say nothing about the hardware" in done.stdout


def test_a_flipped_bit_is_found_through_device_memory() -> None:
    done = demo("--corrupt", "--json")
    assert done.returncode == 1
    facts = json.loads(done.stdout)
    assert facts["verified"] is False
    assert facts["wrong_blocks"] == 2
    assert facts["remark"] == "SIMULATED"
    assert "tensor 32 (keys of layer 16)" in done.stderr


def test_both_sides_use_the_one_device_that_there_is() -> None:
    done = demo("--json", ACLSIM_DEVICES="1", ACLSIM_MACHINE=f"hccs-one-device-{os.getpid()}")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["verified"] is True
    assert facts["decode_settings"] == {}


def test_settings_are_given_to_the_side_that_they_are_for() -> None:
    options = ["--prefill-setting", "device=5", "--prefill-setting", "any_process=true"]
    done = demo("--json", *options, "--decode-setting", "device=2")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["verified"] is True
    assert facts["prefill_settings"] == {"device": 5, "any_process": True}
    assert facts["decode_settings"] == {"device": 2}


@pytest.mark.parametrize(
    ("setting", "said"),
    [("device=99", "there is no device 99; this process sees devices 0 to"), ("devise=1", "has no setting devise")],
)
def test_a_setting_that_makes_no_sense_is_the_error_of_its_side(setting: str, said: str) -> None:
    done = demo("--decode-setting", setting)
    assert done.returncode == 1
    assert "decode (process " in done.stderr
    assert said in done.stderr


def test_the_list_of_transports_says_that_it_is_simulated() -> None:
    done = run("transports", "--json")
    (entry,) = (entry for entry in json.loads(done.stdout) if entry["name"] == "hccs")
    assert entry["state"] == "available"
    assert entry["remark"] == "SIMULATED"
    assert "SIMULATED" in run("transports").stdout


@pytest.mark.skipif(not PAGE.exists(), reason="the documentation is not beside these tests")
def test_faults_on_request_are_as_the_page_says(tmp_path: Path) -> None:
    found = re.search(r"```python\n# faults.py\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    script = tmp_path / "faults.py"
    script.write_text(found[1])
    done = subprocess.run(
        [sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", found[2])
