"""Engines for the tests with vLLM, which only run where it is installed (``tox -e vllm``)."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# The engines are processes that import these helpers by name.
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "examples" / "vllm")]
_found = importlib.util.find_spec("vllm")
# Without an origin it is this very folder, taken for a package without an `__init__.py`.
if _found is None or _found.origin is None:
    if os.environ.get("CACHEFW_VLLM") == "required":
        raise RuntimeError("vLLM is not installed, and these tests were asked for")
    collect_ignore_glob = ["test_*.py"]

CONNECTOR = {"kv_connector": "CachefwConnector", "kv_load_failure_policy": "recompute"}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    import tiny_model

    folder = tmp_path_factory.mktemp("model")
    tiny_model.make(folder)
    return folder


@pytest.fixture(scope="session")
def start(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Starts instances, of the tiny model or of that in a folder; all are stopped at the end."""
    from instance import Instance

    logs = tmp_path_factory.mktemp("logs")
    made = []

    def start(
        name: str,
        role: str | None = None,
        settings: dict[str, Any] | None = None,
        folder: Path | None = None,
        **engine: Any,
    ) -> Instance:
        transfer = None
        if role is not None:
            transfer = {**CONNECTOR, "kv_role": role, "kv_connector_extra_config": settings or {}}
        instance = Instance(logs, name, folder or model, transfer, **engine)
        made.append(instance)
        return instance

    yield start
    for instance in made:
        instance.stop()


@pytest.fixture(scope="session")
def pair(start: Callable[..., Any]) -> tuple[Any, Any]:
    """A prefill and a decode instance; the prefill keeps what nobody fetches for two seconds."""
    prefill = start("prefill", "kv_producer", {"lease": 2.0, "model": "tiny"})
    decode = start("decode", "kv_consumer", {"model": "tiny"})
    return prefill.ready(), decode.ready()
