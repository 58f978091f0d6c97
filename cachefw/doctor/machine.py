"""Checks of the machine: system, limits, memory."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterable, Iterator
from typing import Any

from cachefw.catalog import Diagnosis
from cachefw.doctor.host import Host, note, ok, size, unchecked, warning

__all__ = ["cgroup", "files", "free", "huge_pages", "maps", "memlock", "shm", "system"]

_GIB = 2**30
_ENOUGH_FILES = 4096
_ENOUGH_MAPS = 0.8


def system(host: Host) -> Iterable[Diagnosis]:
    """Kernel, processor and Python."""
    name, release = platform.system(), platform.release()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"{name} {release} on {platform.machine()}, {processors} processors, {python}"
    facts = {"kernel": release, "machine": platform.machine(), "processors": processors, "python": python}
    if name == "Linux":
        yield ok(text, **facts)
    else:
        yield warning(text, "cachefw is written for Linux", "use it on Linux", **facts)


def _limit(which: int) -> tuple[int | None, int | None]:
    soft, hard = resource.getrlimit(which)
    return (None if soft < 0 else soft), (None if hard < 0 else hard)


def memlock(host: Host) -> Iterable[Diagnosis]:
    """What may be locked, and what is: each network card counts pages again."""
    soft, hard = _limit(resource.RLIMIT_MEMLOCK)
    status = host.fields("/proc/self/status")
    held = {name: int(status.get(name, "0 kB").split()[0]) * 1024 for name in ("VmLck", "VmPin")}
    exempt = _capable(status, 14)
    facts: dict[str, Any] = {"soft": soft, "hard": hard, "exempt": exempt, **held}
    limit = "unlimited" if soft is None else size(soft)
    text = f"RLIMIT_MEMLOCK is {limit}; locked {size(held['VmLck'])}, pinned {size(held['VmPin'])}"
    if soft is None or exempt:
        yield ok(text + (", and CAP_IPC_LOCK lifts the limit" if exempt and soft is not None else ""), **facts)
    elif soft < _GIB:
        yield warning(
            text,
            "memory for a network card has to be locked; shared mappings and TCP do not need it",
            "ulimit -l unlimited before the start, docker run --ulimit memlock=-1, or LimitMEMLOCK=infinity in a unit",
            **facts,
        )
    else:
        yield note(text, "each network card counts the pages again", **facts)


def _capable(status: dict[str, str], bit: int) -> bool:
    return bool(int(status.get("CapEff", "0") or "0", 16) >> bit & 1)


def files(host: Host) -> Iterable[Diagnosis]:
    """Open files: a link takes one, and each mapping of a peer's segment another."""
    soft, hard = _limit(resource.RLIMIT_NOFILE)
    try:
        used = len(list(host.path("/proc/self/fd").iterdir()))
    except OSError:
        used = 0
    text = f"{'any number of' if soft is None else f'{soft:,}'} open files are allowed, {used} are open here"
    if soft is not None and soft < _ENOUGH_FILES:
        fix = f"ulimit -n {min(hard or 65536, 65536)}, or docker run --ulimit nofile=65536"
        yield note(text, "each link takes one, and each segment of a peer another", fix, soft=soft, hard=hard)
    else:
        yield ok(text, soft=soft, hard=hard)


def maps(host: Host) -> Iterable[Diagnosis]:
    """Mappings of this process: pinning splits them, until no more are allowed."""
    most = host.number("/proc/sys/vm/max_map_count")
    table = host.read("/proc/self/maps")
    if most is None or table is None:
        yield unchecked("/proc/sys/vm/max_map_count or /proc/self/maps cannot be read", "mount /proc")
        return
    used = len(table.splitlines())
    text = f"{used:,} of {most:,} mappings are used by this process"
    if used > most * _ENOUGH_MAPS:
        meaning = "registering or allocating will soon fail with ENOMEM, though memory is free"
        yield warning(text, meaning, "sysctl vm.max_map_count=1048576, or register fewer, larger regions", used=used)
    else:
        yield ok(text, used=used, limit=most)


def _meminfo(host: Host) -> dict[str, int]:
    rows = host.fields("/proc/meminfo")
    return {
        name: int(value.split()[0]) * (1024 if value.endswith("kB") else 1) for name, value in rows.items() if value
    }


def free(host: Host) -> Iterable[Diagnosis]:
    """Memory of the host."""
    info = _meminfo(host)
    total, available = info.get("MemTotal"), info.get("MemAvailable")
    if total is None or available is None:
        yield unchecked("/proc/meminfo cannot be read", "mount /proc")
        return
    overcommit = host.number("/proc/sys/vm/overcommit_memory")
    facts: dict[str, Any] = {"total": total, "available": available, "overcommit": overcommit}
    text = f"{size(available)} of {size(total)} are available"
    if overcommit == 2:
        meaning = "memory that is only reserved counts too, so that large mappings are refused early"
        yield note(text + "; overcommit is off", meaning, "sysctl vm.overcommit_memory=0", **facts)
    elif available < total / 20:
        yield warning(text, "the kernel may end a process soon", "end what is not needed", **facts)
    else:
        yield ok(text, **facts)


def _group(host: Host) -> Iterator[tuple[str, str]]:
    """(limit file, usage file) of the control groups that this process is in, the innermost first, both versions."""
    for line in (host.read("/proc/self/cgroup") or "").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            base, names = "/sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base, names = "/sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1):
            folder = "/".join([base, *parts[:depth]])
            yield f"{folder}/{names[0]}", f"{folder}/{names[1]}"


def cgroup(host: Host) -> Iterable[Diagnosis]:
    """The memory limit of the container: the tightest of the groups that this process is in."""
    found = []
    for limit, usage in _group(host):
        most, used = host.number(limit), host.number(usage)
        # A limit near 2^63 is version 1's way to say that there is none.
        if most is not None and most < 2**60:
            found.append((most, used, limit))
    if not found:
        yield ok("no control group limits memory")
        return
    most, used, where = min(found, key=lambda row: row[0] - (row[1] or 0))
    text = f"the control group allows {size(most)}, and {size(used or 0)} are used"
    facts: dict[str, Any] = {"limit": most, "used": used, "file": where}
    if used is not None and used > most * 0.9:
        yield warning(text, "the kernel ends processes at the limit", "raise it, or use less", **facts)
    else:
        yield note(text, "pinned and shared memory count against it", **facts)


def huge_pages(host: Host) -> Iterable[Diagnosis]:
    """Reserved and transparent huge pages."""
    info = _meminfo(host)
    total, left, page = (info.get(name, 0) for name in ("HugePages_Total", "HugePages_Free", "Hugepagesize"))
    base = "/sys/kernel/mm/transparent_hugepage"
    modes = {name: _chosen(host.read(f"{base}/{name}")) for name in ("enabled", "shmem_enabled")}
    reserved = (
        f"{left} of {total} reserved huge pages of {size(page)} are free" if total else "no huge pages are reserved"
    )
    text = f"{reserved}; transparent ones: {modes['enabled']}, in shared memory: {modes['shmem_enabled']}"
    facts: dict[str, Any] = {"total": total, "free": left, "page": page, **modes}
    if modes["shmem_enabled"] in ("never", "deny") and not total:
        meaning = "shared memory is mapped in small pages, and a first transfer into it is slower"
        yield note(text, meaning, f"echo advise > {base}/shmem_enabled, or sysctl vm.nr_hugepages=N", **facts)
    else:
        yield ok(text, **facts)


def _chosen(text: str | None) -> str:
    inside = (text or "").partition("[")[2].partition("]")[0]
    return inside or "not known"


def shm(host: Host) -> Iterable[Diagnosis]:
    """The size of /dev/shm; containers get 64 MB unless told otherwise."""
    try:
        told = os.statvfs(host.path("/dev/shm"))  # noqa: S108 - only its size is asked for
    except OSError as error:
        yield unchecked(f"shared memory (/dev/shm) cannot be looked at: {error.strerror}", "mount it")
        return
    total, left = told.f_frsize * told.f_blocks, told.f_frsize * told.f_bavail
    text = f"shared memory (/dev/shm) has {size(total)}, {size(left)} of them free"
    facts = {"total": total, "free": left}
    fix = "docker run --shm-size=8g, or a memory-backed emptyDir at /dev/shm"
    if total <= 64 * 2**20:
        yield warning(text, "that is the default of containers; torch, NCCL and UCX need more", fix, **facts)
    elif left < total / 20:
        yield warning(text, "a process that writes past its end is killed (SIGBUS)", "cachefw doctor --clean", **facts)
    else:
        yield ok(text, **facts)
