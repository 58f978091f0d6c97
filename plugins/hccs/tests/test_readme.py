"""The examples of README.md run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cachefw

PAGE = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.parametrize("example", re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))
def test_a_node_opens_with_these_settings(example: str) -> None:
    names = {"Node": cachefw.Node}
    with eval(example, names) as node:
        assert node.cache_manager.transports == ("hccs",)
