"""The examples of README.md run, and those of other pages that need this plugin."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import cachefw

PAGE = Path(__file__).resolve().parents[1] / "README.md"
EXAMPLES = Path(__file__).resolve().parents[3] / "tests" / "test_examples.py"


@pytest.mark.parametrize("example", re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))
def test_a_node_opens_with_these_settings(example: str) -> None:
    names = {"Node": cachefw.Node}
    with eval(example, names) as node:
        assert node.cache_manager.transports == ("hccs",)


@pytest.mark.skipif(not EXAMPLES.exists(), reason="the documentation is not beside these tests")
def test_the_pages_that_need_this_plugin_say_what_is_printed(tmp_path: Path) -> None:
    """Where the core is tested alone, their commands cannot be run."""
    examples = runpy.run_path(str(EXAMPLES))
    ours = [block for block in examples["CONSOLE"] if re.search("hccs|507899", block.text)]
    assert len(ours) >= 2
    for block in ours:
        examples["test_commands_run_and_print_what_the_page_says"](block, tmp_path)
