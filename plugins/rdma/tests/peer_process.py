"""The other process of a test, and the code that it runs."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

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
        if number == signal.SIGSTOP:
            # Until it has stopped, not only been told.
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

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


def load() -> ModuleType:
    """What the other process runs, in this one."""
    spec = importlib.util.spec_from_file_location("rdma_test_peer", PEER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def open_transport(settings: dict[str, object]) -> Any:
    """A transport, open in this process."""
    return load().open_transport(settings)
