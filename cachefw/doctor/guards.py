"""Checks of what stands between processes, and of what surrounds them: privileges, filters, container, allocator."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Iterable

from cachefw.catalog import Diagnosis
from cachefw.doctor.host import Host, note, ok, unchecked, warning

__all__ = ["allocator", "container", "ptrace", "seccomp", "start_method"]

_SCOPES = {
    0: "processes of one user may reach each other's memory",
    1: "only a parent may reach into its children's memory",
    2: "only processes with CAP_SYS_PTRACE may reach another's memory",
    3: "no process may reach another's memory",
}


def ptrace(host: Host) -> Iterable[Diagnosis]:
    """Whether the kernel lets one process read another's memory (Yama)."""
    scope = host.number("/proc/sys/kernel/yama/ptrace_scope")
    capable = bool(int(host.fields("/proc/self/status").get("CapEff", "0") or "0", 16) >> 19 & 1)
    facts = {"ptrace_scope": scope, "cap_sys_ptrace": capable}
    if scope is None:
        yield ok("the kernel has no ptrace_scope: processes of one user may reach each other's memory", **facts)
        return
    text = f"kernel.yama.ptrace_scope is {scope}: {_SCOPES.get(scope, 'unknown')}"
    if scope == 0:
        yield ok(text, **facts)
    elif capable and scope < 3:
        yield ok(f"{text}; this process has CAP_SYS_PTRACE", **facts)
    else:
        yield warning(
            text,
            "memory that was not made by CacheManager.allocate cannot be read by peers on this host",
            "sysctl kernel.yama.ptrace_scope=0, or --cap-add=SYS_PTRACE for a container; or allocate by the manager",
            **facts,
        )


def seccomp(host: Host) -> Iterable[Diagnosis]:
    """Whether a filter of system calls is on."""
    mode = host.fields("/proc/self/status").get("Seccomp")
    if mode is None:
        yield unchecked("the kernel does not say whether a filter of system calls is on")
    elif mode == "0":
        yield ok("no filter of system calls is on", seccomp=0)
    else:
        yield note(
            "a filter of system calls is on (seccomp)",
            "old container engines forbid process_vm_readv with it",
            "if peers are refused: --cap-add=SYS_PTRACE, or a profile that allows it",
            seccomp=int(mode),
        )


def container(host: Host) -> Iterable[Diagnosis]:
    """Signs of a container, and the namespaces that part processes."""
    signs = [name for name in ("/.dockerenv", "/run/.containerenv") if host.path(name).exists()]
    signs += [name for name in ("KUBERNETES_SERVICE_HOST", "container") if host.environ.get(name)]
    groups = host.read("/proc/self/cgroup") or ""
    signs += [f"cgroup of {word}" for word in ("docker", "kubepods", "containerd", "lxc") if word in groups]
    first = (host.read("/proc/1/comm") or "").strip()
    namespaces = {}
    for kind in ("pid", "ipc", "net", "user", "mnt"):
        try:
            namespaces[kind] = os.readlink(host.path(f"/proc/self/ns/{kind}"))
        except OSError:
            namespaces[kind] = "not readable"
    facts = {"signs": signs, "first_process": first, "namespaces": namespaces}
    if signs:
        yield note(
            f"this seems to be a container ({', '.join(signs)})",
            "peers in other containers need a common pid namespace for cross-memory reads, devices have to be passed "
            "in, and limits are the container's",
            "docker run --pid=host --ipc=host --ulimit memlock=-1 --device=...",
            **facts,
        )
    else:
        yield ok(f"no sign of a container; process 1 is {first or 'not visible'}", **facts)


_ALLOCATORS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def allocator(host: Host) -> Iterable[Diagnosis]:
    """Settings of torch's allocators that make memory which cannot be registered."""
    given = {name: host.environ[name] for name in _ALLOCATORS if host.environ.get(name)}
    for name, text in given.items():
        if re.search(r"expandable_segments\s*:\s*true", text, re.IGNORECASE):
            yield warning(
                f"{name}={text}",
                "expandable segments are virtual memory in pieces; many drivers do not register it as one range",
                "take expandable_segments:True out where device memory is registered, or use CacheManager.allocate",
                variable=name,
                value=text,
            )
        else:
            yield ok(f"{name}={text}", variable=name, value=text)
    if not given:
        yield ok("torch's allocators have no settings of their own")


def start_method(host: Host) -> Iterable[Diagnosis]:
    """How Python starts processes: registered memory does not survive fork()."""
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    safe = [name for name in ("RDMAV_FORK_SAFE", "IBV_FORK_SAFE") if host.environ.get(name)]
    if method == "fork":
        yield note(
            "multiprocessing forks by default here" + (f"; {', '.join(safe)} is set" if safe else ""),
            "a forked child must not use a node of its parent's, and copy-on-write can move pages that a card reads",
            "multiprocessing.set_start_method('spawn') in processes that register memory",
            method=method,
            safe=safe,
        )
    else:
        yield ok(f"multiprocessing starts processes by {method}", method=method)
