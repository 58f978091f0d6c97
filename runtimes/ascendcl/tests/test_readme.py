"""The example of README.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import cachefw_ascendcl as acl
import pytest

PAGE = Path(__file__).resolve().parents[1] / "README.md"


def test_memory_and_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    if not acl.simulator_path().exists():
        pytest.skip("the simulator was not built (CACHEFW_ASCENDCL_SIMULATOR=OFF)")
    monkeypatch.setenv(acl.VARIABLE, "simulator")
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    exec(example.replace("...", "held = memory.size"), names)
    assert names["held"] == 64 << 20
