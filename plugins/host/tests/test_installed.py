"""The tests of this folder are about the distribution cachefw-host, not the copy inside the wheel of cachefw."""

from __future__ import annotations

import os
from importlib.metadata import distribution, version
from pathlib import Path

import pytest

import cachefw
from cachefw.plugins import catalogue

pytestmark = pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox installs wheels")


def test_wheels_are_tested() -> None:
    assert "site-packages" in Path(cachefw.__file__).parts
    assert version("cachefw-host") == version("cachefw")
    (compiled,) = (path for path in distribution("cachefw-host").files or () if path.name.startswith("_native.abi3"))
    assert "site-packages" in Path(compiled.locate()).parts


def test_own_distribution_is_preferred_to_the_embedded_copy() -> None:
    plugin = catalogue.plugins()["host"]
    assert (plugin.distribution, plugin.target) == ("cachefw-host", "cachefw_host")
