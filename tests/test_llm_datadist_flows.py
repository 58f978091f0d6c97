"""LLM-DataDist's sample programs, written anew, each in processes of its own; on host memory."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from llm_datadist_flows import FLOWS, run


@pytest.mark.parametrize("flow", FLOWS)
def test_a_sample_does_what_its_description_says(flow: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CACHEFW_ASCENDCL", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    run(flow, {"CACHEFW_TRANSPORTS": "host"})
