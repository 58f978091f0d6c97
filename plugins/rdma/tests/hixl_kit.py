"""What the tests of HIXL's provider share: the stand-in library, and two providers that reach each other."""

from __future__ import annotations

import ctypes
import gc
import itertools
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cachefw_rdma.hixl import HixlProvider, library
from cachefw_rdma.hixl.channel import HixlChannel

from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.transport import Batch, Operation

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent / "src" / "cachefw_rdma" / "hixl" / "native"
READ, WRITE = Operation.READ, Operation.WRITE
PORTS = itertools.count(20000)
LONG = 30.0  # far beyond what anything here takes


def build(target: Path, *flags: str, source: Path = HERE / "hixl_shim.c") -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in for HIXL with")
    warnings = ["-Wall", "-Wextra", "-Werror"]
    command = [
        compiler,
        "-std=c11",
        *warnings,
        "-shared",
        "-fPIC",
        f"-I{NATIVE}",
        *flags,
        str(source),
        "-o",
        str(target),
    ]
    subprocess.run(command, check=True)
    return target


@pytest.fixture(scope="session")
def shim_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("hixl") / "libcann_hixl.so")


@pytest.fixture
def shim(shim_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """The stand-in as the provider will find it; afterwards nothing of it may be alive."""
    monkeypatch.setenv(library.VARIABLE, str(shim_path))
    control = ctypes.CDLL(str(shim_path))
    control.shim_timeout.restype = ctypes.c_uint32
    control.shim_reset()
    yield control
    control.shim_reset()
    gc.collect()
    assert (control.shim_handles(), control.shim_memories(), control.shim_calls()) == (0, 0, 0)
    assert library._uses == 0


def fail(shim: ctypes.CDLL, function: str, code: int, after: int = 0) -> None:
    shim.shim_fail(function.encode(), ctypes.c_uint32(code), after)


def settings(**more: object) -> dict[str, object]:
    return {"ip": "127.0.0.1", "address": "192.168.10.1", "port": next(PORTS), **more}


@contextmanager
def opened(**more: object) -> Iterator[HixlProvider]:
    provider = HixlProvider()
    provider.open(settings(**more))
    try:
        yield provider
    finally:
        provider.close()


class Pair:
    """Two providers of this process with memory each; the first reads and writes the second's."""

    def __init__(self, size: int = 1 << 16, **more: object) -> None:
        self.near, self.far = HixlProvider(), HixlProvider()
        self.near.open(settings(**more))
        self.far.open(settings(address="fe80::1"))
        self.local = np.zeros(size, np.uint8)
        self.remote = np.arange(size, dtype=np.uint64).astype(np.uint8)
        self.own = self.near.register(region_of(self.local))
        self.theirs = self.far.register(region_of(self.remote))
        self._channel: HixlChannel | None = None

    @property
    def channel(self) -> HixlChannel:
        if self._channel is None:
            self._channel = self.near.connect(self.far.card(), 3.0)
            self._channel.attach(7, self.theirs.region, self.far.describe(self.theirs))
        return self._channel

    def batch(self, pieces: list[tuple[int, int, int]]) -> Batch:
        """Pieces as (offset here, offset there, length)."""
        here, there, length = (np.array(column, np.uint64) for column in zip(*pieces, strict=True))
        bases = np.uint64(address_of(self.local)), np.uint64(address_of(self.remote))
        return Batch(bases[0] + here, bases[1] + there, length, np.full(len(pieces), 7, np.uint64))

    def post(self, operation: Operation, *pieces: tuple[int, int, int]) -> Any:
        return self.channel.post(self.channel.prepare(operation, self.batch(list(pieces))))

    def close(self) -> None:
        self.near.close()
        self.far.close()


@pytest.fixture
def pair(shim: ctypes.CDLL) -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def address_of(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def region_of(array: np.ndarray[Any, Any], kind: MemoryKind = MemoryKind.HOST) -> MemoryRegion:
    return MemoryRegion(address_of(array), array.nbytes, kind)


def until(condition: Callable[[], bool]) -> None:
    """Give way to other threads until something is so; the run's own timeout is the limit."""
    while not condition():
        threading.Event().wait(0.001)
