"""A second process, and the reason why there is no UCX here."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cachefw.plugins import catalogue

PEER = Path(__file__).with_name("peer.py")


class Peer:
    """The other process."""

    def __init__(self, settings: dict[str, object], *, bare: bool) -> None:
        command = [sys.executable, str(PEER), json.dumps(settings), *(["bare"] if bare else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.about = self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        assert line, f"the peer ended with {self.process.wait(10)}"
        return json.loads(line)

    def tell(self, do: str, **order: object) -> dict[str, Any]:
        self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def make(self, size: int, *, seed: int = 7, fill: list[tuple[int, int]] | None = None) -> dict[str, Any]:
        return self.tell("make", size=size, seed=seed, fill=[(0, size)] if fill is None else fill)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def end(self) -> None:
        """Ends it as it should end; a peer that died of something else fails the test."""
        self.process.stdin.close()
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
        try:
            status = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.stdout.close()
        assert status in (0, -signal.SIGKILL), f"the peer ended with {status}"


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
    spec = importlib.util.spec_from_file_location("rdma_test_peer", PEER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
