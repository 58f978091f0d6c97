"""Every test here runs on the simulator, unless it asks for hardware."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Helpers of these tests; with importlib mode their folder is on no path.
sys.path.insert(0, str(Path(__file__).parent))

# Before the runtime is first opened: it looks once.
if os.environ.get("CACHEFW_HCCS_HARDWARE") != "1":
    os.environ["CACHEFW_ASCENDCL"] = "simulator"
    os.environ.setdefault("ACLSIM_MODE", "strict")
    # A machine of this run's own: others on this host neither share its memory nor see its faults.
    os.environ.setdefault("ACLSIM_MACHINE", f"hccs-tests-{os.getpid()}")


@pytest.fixture(autouse=True)
def _forgotten_handles_belong_to_their_test() -> Iterator[None]:
    yield
    gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("hardware") and os.environ.get("CACHEFW_HCCS_HARDWARE") != "1":
            item.add_marker(
                pytest.mark.skip(reason="needs an Ascend NPU; set CACHEFW_HCCS_HARDWARE=1 where there is one")
            )
