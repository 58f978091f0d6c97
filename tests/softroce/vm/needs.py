"""What this machine must have before a virtual machine can start, and getting it with apt."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from vm import kernel

__all__ = ["NeedError", "apt", "install", "missing"]

#: Debian packages, and what each is for. The virtual machine sees this file system, so its tools are here too.
PACKAGES = {
    "qemu-system-x86": "runs the virtual machine",
    "busybox-static": "the virtual machine's first program",
    "ibverbs-providers": "libibverbs' driver for soft-RoCE",
    "iproute2": "`ip` and `rdma`, which set up the device",
    "kmod": "finds the kernel modules' dependencies",
    "util-linux": "`setpriv`, so that no virtual machine outlives this program",
}
MIB = 2**20
#: To unpack the kernel package, of which a tenth is kept.
DISK = 700 * MIB
#: For the virtual machine and for what runs beside it.
MEMORY = 1536 * MIB


class NeedError(Exception):
    """Something could not be installed; the text says what and why."""


def missing(cache: Path, further: Iterable[str] = ()) -> list[str]:
    """What is missing, a sentence each; empty when a virtual machine can start.

    Args:
        cache: Where the unpacked kernel is kept.
        further: Further Debian packages that the command needs.
    """
    found = _obstacles()
    absent = _absent(further)
    for name in absent:
        found.append(f"package {name} is not installed ({PACKAGES.get(name, 'asked for with --needs')})")
    if not kernel.ready(cache):
        found += [f"no kernel is unpacked in {cache}", *_disk(cache)]
    return found


def install(cache: Path, further: Iterable[str] = ()) -> None:
    """Install the packages that are missing, and unpack a kernel. The kernel package itself is not installed.

    Raises:
        NeedError: apt failed, or there is no apt.
    """
    hopeless = _obstacles()
    if not kernel.ready(cache):
        hopeless += _disk(cache)
    if hopeless:
        raise NeedError("; ".join(hopeless))
    absent = _absent(further)
    if absent:
        apt("update")
        apt("install", "--yes", "--no-install-recommends", *absent)
    if not kernel.ready(cache):
        kernel.unpack(cache, apt)


def apt(*arguments: str, cwd: Path | None = None) -> None:
    """Run apt-get, which never asks and waits at most two minutes for another apt; silent unless it fails.

    Raises:
        NeedError: It failed.
    """
    command = ["apt-get", "--quiet", "-o", "DPkg::Lock::Timeout=120", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NeedError(f"apt-get {arguments[0]} was not done after 10 minutes") from error
    if done.returncode:
        raise NeedError(f"apt-get {' '.join(arguments)} failed with {done.returncode}:\n{done.stdout.strip()}")


def available_memory() -> int:
    """Bytes that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _obstacles() -> list[str]:
    """What no installation can change."""
    found = []
    if platform.machine() != "x86_64":
        found.append(f"this machine is {platform.machine()}, and the virtual machine is x86_64 like its host")
    if shutil.which("apt-get") is None or shutil.which("dpkg-query") is None:
        found.append("there is no apt-get: the kernel and the tools come from Debian")
    if os.geteuid() != 0:
        found.append(
            f"user {os.geteuid()} is not root, who alone may show all of the file system to the virtual machine"
        )
    if available_memory() < MEMORY:
        found.append(f"{MEMORY // MIB} MiB of memory are needed, and {available_memory() // MIB} MiB are available")
    return found


def _disk(cache: Path) -> list[str]:
    folder = next(folder for folder in (cache, *cache.parents) if os.path.exists(folder))
    free = shutil.disk_usage(folder).free
    if free >= DISK:
        return []
    return [f"unpacking a kernel takes {DISK // MIB} MiB of disk at {cache}, and {free // MIB} MiB are free"]


def _absent(further: Iterable[str]) -> list[str]:
    if shutil.which("dpkg-query") is None:
        return []
    names = list(dict.fromkeys([*PACKAGES, *further]))
    # Unknown packages are missing from the answer and make the status 1.
    form = "${Package} ${db:Status-Status}\n"
    answer = subprocess.run(
        ["dpkg-query", "-W", "-f", form, *names], capture_output=True, text=True, check=False
    ).stdout
    installed = {line.split()[0] for line in answer.splitlines() if line.endswith(" installed")}
    return [name for name in names if name not in installed]
