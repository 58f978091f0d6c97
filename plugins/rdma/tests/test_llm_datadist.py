"""LLM-DataDist's sample programs, written anew, over UCX: links are RDMA's, pools and local copies the host's."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FLOWS = Path(__file__).resolve().parents[3] / "tests" / "llm_datadist_flows.py"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("llm_datadist_flows", FLOWS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


flows = _load()
# One for each way of linking, and a pool.
SOME = ["pull_cache_sample", "push_blocks_sample", "hixl_transfer_backend_sample", "device_and_host_memory"]


@pytest.mark.parametrize("flow", SOME)
def test_a_sample_does_what_its_description_says(flow: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CACHEFW_ASCENDCL", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    flows.run(flow, {"CACHEFW_TRANSPORTS": "rdma,host"})
