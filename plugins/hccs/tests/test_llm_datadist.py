"""LLM-DataDist's sample programs, written anew, on emulated devices: each process has one."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

FLOWS = Path(__file__).resolve().parents[3] / "tests" / "llm_datadist_flows.py"

# The environment comes from conftest.py.
pytestmark = pytest.mark.skipif(
    os.environ.get("CACHEFW_ASCENDCL") != "simulator", reason="on the simulator; this run uses hardware"
)


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("llm_datadist_flows", FLOWS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


flows = _load()


@pytest.mark.parametrize("flow", flows.FLOWS)
def test_a_sample_does_what_its_description_says(flow: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CACHEFW_TRANSPORTS", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    flows.run(flow, {"FLOW_MEMORY": "device"})
