"""A Ray cluster on this machine for the tests with Ray, which only run where it is installed (``tox -e ray``)."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ray"
sys.path.insert(0, str(EXAMPLE))
_found = importlib.util.find_spec("ray")
# Without an origin it is this very folder, taken for a package without an `__init__.py`.
if _found is None or _found.origin is None:
    if os.environ.get("CACHEFW_RAY") == "required":
        raise RuntimeError("Ray is not installed, and these tests were asked for")
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Two processors, a small object store, nothing that other machines could reach."""
    import ray

    environment = {"PYTHONPATH": str(EXAMPLE)}
    ray.init(
        num_cpus=2,
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": environment},
    )
    yield
    ray.shutdown()
