"""Debian's stock kernel and the modules the virtual machine needs, unpacked into a cache and not installed."""

from __future__ import annotations

import fcntl
import lzma
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Kernel", "locked", "ready", "unpack"]

#: Names the package of Debian's current kernel. The cloud flavour has neither RDMA nor 9p.
PACKAGE = "linux-image-amd64"
#: In this order, each after what it depends on.
MODULES = (
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_net",
    "dummy",
    "sch_netem",  # `tc qdisc ... netem`, for lossy networks
    "crc32_generic",  # rdma_rxe asks for it by another name, and fails without
    "rdma_rxe",
    "rdma_ucm",
)
XZ = b"\xfd7zXZ\0"
ELF = b"\x7fELF"


class Kernel:
    """A kernel in the cache."""

    def __init__(self, cache: Path) -> None:
        self.folder = cache / "kernel"
        self.image = self.folder / "image"

    @property
    def modules(self) -> list[Path]:
        """The modules, in the order of loading."""
        return [self.folder / "modules" / name for name in (self.folder / "order").read_text().split()]


def ready(cache: Path) -> bool:
    """Whether a kernel is unpacked, with all modules that this version of the program loads."""
    try:
        return (cache / "kernel" / "complete").read_text().split() == list(MODULES)
    except OSError:
        return False


@contextmanager
def locked(cache: Path) -> Iterator[None]:
    """Keep other runs from installing at the same time."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def unpack(cache: Path, apt: Callable[..., None]) -> None:
    """Download the kernel package and keep of it what the virtual machine needs.

    Args:
        cache: Where to.
        apt: Runs apt-get, with an optional ``cwd``.

    Raises:
        OSError, subprocess.CalledProcessError: The package is not what was expected.
    """
    with tempfile.TemporaryDirectory(dir=cache, prefix="unpacking.") as folder:
        scratch = Path(folder)
        package = _current() or (apt("update"), _current())[1]
        if package is None:
            raise OSError(f"apt knows no {PACKAGE}: this needs Debian's own package sources")
        try:
            apt("download", package, cwd=scratch)
        except Exception:
            # The lists may be older than what the mirrors keep.
            apt("update")
            apt("download", package, cwd=scratch)
        (file,) = scratch.glob("*.deb")
        tree = scratch / "tree"
        subprocess.run(["dpkg-deb", "-x", file, tree], check=True)
        made = scratch / "kernel"
        (made / "modules").mkdir(parents=True)
        release = package.removeprefix("linux-image-").removesuffix("-unsigned")
        paths = _load_order(tree, release)
        for path in paths:
            shutil.copy(path, made / "modules")
        (made / "order").write_text("\n".join(path.name for path in paths))
        (made / "image").write_bytes(_inner((tree / f"boot/vmlinuz-{release}").read_bytes()))
        (made / "complete").write_text("\n".join(MODULES))
        shutil.rmtree(cache / "kernel", ignore_errors=True)
        made.rename(cache / "kernel")


def _current() -> str | None:
    answer = subprocess.run(["apt-cache", "depends", PACKAGE], capture_output=True, text=True, check=False).stdout
    found = re.search(r"Depends: (linux-image-\d\S*)", answer)
    return found and found[1]


def _load_order(tree: Path, release: str) -> list[Path]:
    subprocess.run(["depmod", "-b", tree, release], check=True, env=_path())
    paths: dict[Path, None] = {}
    for module in MODULES:
        command = ["modprobe", "-d", str(tree), "-S", release, "--show-depends", module]
        lines = subprocess.run(command, check=True, capture_output=True, text=True, env=_path()).stdout.splitlines()
        paths.update({Path(line.split()[1]): None for line in lines if line.startswith("insmod ")})
    return list(paths)


def _path() -> dict[str, str]:
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}


def _inner(image: bytes) -> bytes:
    """The kernel inside its self-extracting image, so that no emulated processor has to unpack it at each start."""
    start = image.find(XZ)
    if start >= 0:
        try:
            kernel = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(image[start:])
        except lzma.LZMAError:
            return image
        if kernel.startswith(ELF):
            return kernel
    return image
