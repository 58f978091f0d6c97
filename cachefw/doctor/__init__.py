"""Finding out what is wrong: with one host, and between the two ends of a link.

Every check is data (`cachefw.catalog.Check`) and gives frozen findings (`cachefw.catalog.Diagnosis`). The checks here
are those that hold for every transport; each plugin brings its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

from cachefw.catalog import Check, Diagnosis, Health
from cachefw.diagnostics import Knowledge, everything
from cachefw.doctor import guards, leftovers, machine, network, software
from cachefw.doctor.host import Host

__all__ = ["CORE_CHECKS", "Host", "examine", "exit_code", "host_checks"]

CORE_CHECKS: tuple[tuple[str, str, Callable[[Host], Iterable[Diagnosis]]], ...] = (
    ("system", "kernel and Python", machine.system),
    ("packages", "what is installed", software.packages),
    ("settings", "settings of the environment", software.settings),
    ("plugins", "transports", software.plugins),
    ("libraries", "libraries that are loaded", software.libraries),
    ("limits.memlock", "locked memory", machine.memlock),
    ("limits.files", "open files", machine.files),
    ("limits.maps", "mappings", machine.maps),
    ("memory.free", "memory of the host", machine.free),
    ("memory.cgroup", "memory of the container", machine.cgroup),
    ("memory.huge_pages", "huge pages", machine.huge_pages),
    ("memory.shm", "shared memory", machine.shm),
    ("security.ptrace", "memory of other processes", guards.ptrace),
    ("security.seccomp", "filter of system calls", guards.seccomp),
    ("container", "container", guards.container),
    ("allocator", "torch's allocators", guards.allocator),
    ("fork", "how processes start", guards.start_method),
    ("network", "interfaces", network.network),
    ("ports", "ports", network.ports),
)


def host_checks(known: Knowledge | None = None, host: Host | None = None) -> list[Check]:
    """Every check of one host: the core's, then the plugins'.

    Args:
        known: What the plugins know; None asks them.
        host: The machine; None for this one.
    """
    known = everything() if known is None else known
    host = Host() if host is None else host
    checks = [Check(name, title, functools.partial(run, host)) for name, title, run in CORE_CHECKS]
    left = functools.partial(leftovers.leftovers, host, known.leftovers)
    checks.append(Check("leftovers", "leftovers in shared memory", left))
    return [*checks, *known.checks.values()]


def examine(checks: Sequence[Check], begin: Callable[[Check, int, int], None]) -> list[Diagnosis]:
    """Run checks in order.

    Args:
        checks: Which.
        begin: Told of each before it runs: the check, its place from 1, and how many there are.
    """
    found = []
    for place, check in enumerate(checks, 1):
        begin(check, place, len(checks))
        found += check.diagnose()
    return found


def exit_code(found: Iterable[Diagnosis]) -> int:
    """2 when something is broken, 1 for warnings, else 0. What was not checked and notes change nothing."""
    states = {told.health for told in found}
    return 2 if Health.BROKEN in states else 1 if Health.WARNING in states else 0
