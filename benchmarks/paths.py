"""The ways that bytes go, and the nodes and the memory that take each of them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import cachefw

__all__ = [
    "HCCS",
    "HCCS_WORKLOADS",
    "PATHS",
    "RDMA",
    "RDMA_WORKLOADS",
    "SHARED",
    "SIMULATED",
    "TCP",
    "DeviceMemory",
    "environment",
    "installed",
    "node",
]

HCCS = "hccs"
TCP, TLS = "tcp", "tls"
#: Paths over plain connections or encrypted ones; the limit of both is what plain ones can do.
NETWORK = (TCP, TLS)
#: Over UCX, and its transports in `benchmarks.rdma.TLS`.
RDMA = ("rdma-tcp", "rdma-shm")
PATHS = ("shm", "cma", TCP, TLS, HCCS, *RDMA)
#: Paths whose memory the raw limits can map.
SHARED = ("shm", HCCS)
HCCS_WORKLOADS = ("w1", "w2", "w3", "w4")
RDMA_WORKLOADS = ("w1", "w2", "w3")
#: Always told beside a figure of `HCCS`, which has never seen a device.
SIMULATED = "SIMULATED"


def installed() -> tuple[str, ...]:
    """The paths whose transports are there."""
    there = {HCCS: importlib.util.find_spec("cachefw_hccs") is not None, TLS: shutil.which("openssl") is not None}
    there.update(dict.fromkeys(RDMA, importlib.util.find_spec("cachefw_rdma") is not None))
    return tuple(path for path in PATHS if there.get(path, True))


def environment(path: str) -> dict[str, str]:
    """What both processes of a path have to agree on."""
    if path != HCCS:
        return {}
    # Open, so that the raw limits too can reach the memory of the emulated devices.
    machine = f"benchmarks-{os.getpid()}"
    return {"CACHEFW_ASCENDCL": "simulator", "ACLSIM_MODE": "open", "ACLSIM_MACHINE": machine}


def node(cluster: int, path: str, address: str | None = None, **options: Any) -> cachefw.Node:
    """The node of one side: on `HCCS` each side has a device of its own."""
    if path == HCCS:
        settings = {"hccs": {"device": cluster - 1}}
        return cachefw.Node(cluster, address, transports=["hccs"], settings=settings, **options)
    if path in RDMA:
        from benchmarks import rdma

        settings = {"rdma": {"tls": rdma.TLS[path]}}
        return cachefw.Node(cluster, address, transports=["rdma"], settings=settings, **options)
    if path in NETWORK:
        options["settings"] = {"host": {"paths": [TCP]}}
    if path == TLS:
        options["tls"] = _certificate()
    return cachefw.Node(cluster, address, transports=["host"], **options)


def _certificate() -> tuple[Path, Path, Path]:
    """A certificate that both sides show and trust, made once, and its key."""
    from benchmarks import raw

    cert, key = (raw.folder() / f"benchmark.{kind}" for kind in ("crt", "key"))
    if not cert.exists():
        cert.parent.mkdir(parents=True, exist_ok=True)
        command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=benchmarks"
        subprocess.run([*command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key, cert


class DeviceMemory:
    """Reads and writes the memory of a device through the runtime, as is done on hardware."""

    def __init__(self, device: int) -> None:
        from cachefw_ascendcl import Runtime

        self._runtime = Runtime()
        if not self._runtime.library.is_simulator:
            raise RuntimeError("this path is measured on the simulator only: the raw limits map its memory")
        self._device = self._runtime.device(device)

    def close(self) -> None:
        """Let go of the device."""
        self._device.close()
        self._runtime.close()

    def put(self, address: int, words: NDArray[np.uint64]) -> None:
        """Write."""
        from cachefw_ascendcl import CopyKind

        self._device.copy(address, words.ctypes.data, words.nbytes, CopyKind.HOST_TO_DEVICE)

    def get(self, address: int, words: NDArray[np.uint64]) -> None:
        """Read."""
        from cachefw_ascendcl import CopyKind

        self._device.copy(words.ctypes.data, address, words.nbytes, CopyKind.DEVICE_TO_HOST)
