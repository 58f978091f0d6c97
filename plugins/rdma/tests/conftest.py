"""A second process, and the reason why there is no UCX here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from cachefw.plugins import catalogue

# Helpers of these tests; with importlib mode their folder is on no path.
sys.path.insert(0, str(Path(__file__).parent))

from peer_process import Peer, load


@pytest.fixture(scope="session")
def ucx() -> tuple[int, int, int]:
    """UCX's version; the test is skipped where there is none."""
    from cachefw_rdma.library import open_library

    reason = catalogue.get("rdma").info.factory().probe()
    if reason is not None:
        pytest.skip(f"there is no UCX here: {reason}")
    return open_library().version


@pytest.fixture
def peer_of(ucx: tuple[int, int, int]) -> Iterator[Callable[..., Peer]]:
    """Starts other processes; all are ended."""
    started: list[Peer] = []

    def start(*, bare: bool = False, **settings: object) -> Peer:
        started.append(Peer(settings, bare=bare))
        return started[-1]

    yield start
    for peer in started:
        peer.end()


@pytest.fixture(scope="session")
def peer_module() -> ModuleType:
    """The code of the other process."""
    return load()
