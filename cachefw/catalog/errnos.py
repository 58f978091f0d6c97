"""What the kernel's numbers mean where memory is registered and moved: by operation, kind of memory and transport.

Transports add causes of their own to the same names.
"""

from __future__ import annotations

import errno
import os

from cachefw.catalog import Cause, Entry

__all__ = ["ENTRIES", "errno_entry"]


def errno_entry(name: str, *causes: Cause, source: str = "errno(3)") -> Entry:
    """The entry of one of the kernel's numbers.

    Args:
        name: Its name, e.g. ``"EPERM"``.
        causes: The likely ones first.
        source: Where they are known from.
    """
    number = getattr(errno, name)
    return Entry(name, "errno", os.strerror(number), "Linux", (str(number), str(-number)), causes, source)


_UNMAPPED = Cause(
    "the address is not mapped, or not for as many bytes",
    "check the address and the shape; keep the memory alive while it is registered",
    operation="register",
)

ENTRIES: tuple[Entry, ...] = (
    errno_entry(
        "EPERM",
        Cause(
            "the kernel keeps processes out of each other's memory (Yama, or another user)",
            "run both as one user; sysctl kernel.yama.ptrace_scope=0, or --cap-add=SYS_PTRACE for a container; or take "
            "the memory from CacheManager.allocate, which peers map instead",
            "security.ptrace",
            operation="transfer",
            kind="host memory",
        ),
        Cause(
            "a filter of the container (seccomp) forbids process_vm_readv",
            "allow it in the container's profile",
            "security.seccomp",
            operation="transfer",
            kind="host memory",
        ),
        Cause(
            "nothing may be locked: RLIMIT_MEMLOCK is 0",
            "raise it: ulimit -l unlimited, docker run --ulimit memlock=-1",
            "limits.memlock",
            operation="register",
        ),
        source="process_vm_readv(2); ib_umem_get in Linux",
    ),
    errno_entry(
        "ENOENT", Cause("a file or device node is not visible here", "mount it into the container", "container")
    ),
    errno_entry(
        "ESRCH", Cause("the peer's process is gone", "look at its log, start it, link again", operation="transfer")
    ),
    errno_entry(
        "EIO",
        Cause("a device or the way to it failed", "see the kernel's log (dmesg)", operation="transfer"),
    ),
    errno_entry(
        "EAGAIN",
        Cause("a limit of the moment was met, such as locked memory or threads", "raise it", "limits.memlock"),
    ),
    errno_entry(
        "ENOMEM",
        Cause(
            "what may be locked is used up; each network card counts the pages again, and VmPin shows what is pinned",
            "raise RLIMIT_MEMLOCK: ulimit -l unlimited, docker run --ulimit memlock=-1, LimitMEMLOCK=infinity",
            "limits.memlock",
            operation="register",
        ),
        Cause(
            "the process has as many mappings as it may (vm.max_map_count)",
            "raise it with sysctl, or register fewer, larger regions",
            "limits.maps",
        ),
        Cause(
            "the container's memory limit is reached, though the host has some left",
            "raise the limit, or use less",
            "memory.cgroup",
        ),
        Cause("the host has too little memory left", "use less", "memory.free"),
        Cause(
            "no huge pages are reserved",
            "sysctl vm.nr_hugepages, or do without",
            "memory.huge_pages",
            "allocate",
            "host memory",
        ),
        source="ib_umem_get in Linux; mmap(2)",
    ),
    errno_entry(
        "EACCES",
        Cause("a device node or shared file belongs to another user", "run as that user, or join its group"),
        Cause("a security module forbids it", "see the kernel's log (dmesg)", "security.seccomp"),
    ),
    errno_entry(
        "EFAULT",
        _UNMAPPED,
        Cause(
            "the memory is mapped without the right to write, which pinning needs",
            "map it readable and writable",
            operation="register",
            kind="host memory",
        ),
        Cause(
            "the allocator made it of virtual segments (expandable segments), which cannot be registered as one range",
            "switch them off: PYTORCH_NPU_ALLOC_CONF / PYTORCH_CUDA_ALLOC_CONF without expandable_segments:True",
            "allocator",
            operation="register",
            kind="device memory",
        ),
        Cause(
            "the memory was unmapped after it was registered, here or at the peer",
            "keep its owner alive until it is unregistered",
            operation="transfer",
        ),
        source="process_vm_readv(2), ibv_reg_mr(3)",
    ),
    errno_entry(
        "EBUSY", Cause("another process holds the device", "see which (the device's own tool lists them)", "leftovers")
    ),
    errno_entry(
        "ENODEV", Cause("the device, or its driver, is not there", "load the driver; show the device", "container")
    ),
    errno_entry(
        "EINVAL",
        Cause("an address or length is not aligned as the call needs it", "align it (`cachefw.aligned_empty`)"),
        Cause("a flag or setting is unknown to this kernel or driver", "compare versions", "system"),
    ),
    errno_entry(
        "EMFILE",
        Cause("the process has as many files open as it may", "raise ulimit -n", "limits.files"),
    ),
    errno_entry(
        "ENOSPC",
        Cause(
            "shared memory (/dev/shm) is full; containers get 64 MB of it unless told otherwise",
            "docker run --shm-size=..., or a memory-backed emptyDir in Kubernetes",
            "memory.shm",
        ),
        Cause("files of dead processes fill it", "cachefw doctor --clean", "leftovers"),
    ),
    errno_entry(
        "ENOSYS",
        Cause("the kernel, or a filter, does not have the call", "see what the check says", "security.seccomp"),
    ),
    errno_entry(
        "EADDRINUSE",
        Cause("another process listens there", "cachefw doctor --port N says which; port 0 takes a free one", "ports"),
    ),
    errno_entry(
        "EADDRNOTAVAIL", Cause("the address is none of this host's", "listen on one that is", "network", "listen")
    ),
    errno_entry("ENETUNREACH", Cause("no route leads there", "look at the routes and interfaces", "network", "link")),
    errno_entry(
        "ECONNRESET",
        Cause("the peer's process ended in the middle", "look at its log, link again", operation="link"),
    ),
    errno_entry(
        "ETIMEDOUT",
        Cause("the peer, or something on the way, drops packets", "cachefw doctor HOST:PORT", "network", "link"),
    ),
    errno_entry(
        "ECONNREFUSED",
        Cause("nothing listens at that address and port", "start the node there; compare the port", "", "link"),
        Cause("it listens on loopback only", "have it listen on an address that reaches here", "", "link"),
    ),
    errno_entry(
        "EHOSTUNREACH",
        Cause("no host answers at that address", "look at the address and the routes", "network", "link"),
    ),
    errno_entry("ECANCELED", Cause("the transfer was cancelled", "nothing has to be done", operation="transfer")),
)
