"""What the tests of `cachefw.compat` share: the second process, and ports."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PEER = Path(__file__).with_name("compat_peer.py")
SECONDS = 60


def _load_pattern() -> Any:
    spec = importlib.util.spec_from_file_location("compat_test_peer", _PEER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.pattern


pattern = _load_pattern()


def free_port() -> int:
    """A port that was free a moment ago; HIXL's engines name the one they listen on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_listener(port: int) -> None:
    """Wait until something listens on a port, without connecting to it: a sample takes just one guest."""
    end = time.monotonic() + SECONDS
    while f":{port:04X} 00000000:0000 0A" not in Path("/proc/net/tcp").read_text():
        assert time.monotonic() < end, f"nothing listens on {port}"
        time.sleep(0.02)


class Peer:
    """The other process."""

    def __init__(self, library: str, address: str, size: int = 2**20, seed: int = 1, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(_PEER), library, address, str(size), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        about = self._answer()
        assert (about["answer"], about["registered"]) == (0, 0)
        self.address, self.buffer = about["address"], about["buffer"]

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        assert line, f"the peer ended with {self.process.wait(10)}"
        return json.loads(line)

    def tell(self, do: str, **order: object) -> dict[str, Any]:
        self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def holds(self, seed: int, start: int, length: int) -> bool:
        return self.tell("check", seed=seed, start=start, length=length)["same"]

    def call(self, name: str, *args: object) -> Any:
        return self.tell("call", name=name, args=args)["answer"]

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        # Until it has stopped, not only been told.
        os.waitpid(self.process.pid, os.WUNTRACED)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(SECONDS)

    def end(self) -> None:
        with self.process:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
            assert self.process.wait(SECONDS) in (0, -signal.SIGKILL)


@contextlib.contextmanager
def running(library: str, address: str, **how: Any) -> Iterator[Peer]:
    peer = Peer(library, address, **how)
    try:
        yield peer
    finally:
        peer.end()
