"""The tests of this folder are about the installed distribution, not the checkout."""

from __future__ import annotations

import os
from importlib.metadata import distribution, version
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox installs wheels")


def test_wheel_is_tested() -> None:
    assert version("cachefw-ascendcl") == version("cachefw")
    files = distribution("cachefw-ascendcl").files or ()
    (compiled,) = (path for path in files if path.name.startswith("_acl.abi3"))
    assert "site-packages" in Path(str(compiled.locate())).parts


def test_inputs_of_the_build_are_not_shipped() -> None:
    files = distribution("cachefw-ascendcl").files or ()
    assert not [path for path in files if path.suffix in {".c", ".h", ".def"}]
