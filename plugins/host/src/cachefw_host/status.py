"""From the kernel's error numbers to cachefw's errors, in one place."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from cachefw.errors import BrokenError, CacheError, OutOfMemoryError, TransferCancelled

__all__ = ["cma_advice", "memory_error", "net_error", "transfer_error"]

TRANSPORT = "host"


def _text(number: int) -> str:
    name = errno.errorcode.get(number, str(number))
    return f"{name}: {os.strerror(number)}"


def transfer_error(status: int, item: int | None, pid: int | None) -> CacheError:
    """The error of a transfer that ended with `status`, a negative errno.

    Args:
        status: What the native side gave.
        item: Index of the failing piece, None when nothing is known to have failed.
        pid: The peer's process for a cross-memory read or write.
    """
    number = -status
    where = "" if item is None else f" at piece {item}"
    failed = () if item is None else (item,)
    code = "transfer.failed"
    text = f"the transfer stopped{where}: {_text(number)}"
    if number == errno.ECANCELED:
        return TransferCancelled(f"the transfer was cancelled before piece {item}", transport=TRANSPORT)
    if number == errno.ESRCH:
        code, text = "peer.gone", f"the peer's process {pid} is gone ({_text(number)})"
    elif number == errno.EFAULT:
        text += "; memory there or here is no longer mapped with the rights it had when it was registered"
    elif number == errno.EPERM:
        code, text = "cma.denied", f"the transfer stopped{where}: " + cma_advice(pid or 0)
    return BrokenError(
        text, code=code, transport=TRANSPORT, status=number, detail=_text(number), facts={"failed": failed}
    )


#: What a stream ended with, in words, and the code of the error; {} is the time without a byte.
_NET = {
    errno.ENXIO: ("memory.withdrawn", "the peer does not serve memory there, or no longer"),
    errno.EACCES: ("memory.rights", "the peer does not allow that of its memory"),
    errno.ETIMEDOUT: ("peer.silent", "the peer, or the network to it, was silent for {:g} s"),
    errno.ECONNRESET: ("peer.gone", "the peer closed the data stream"),
    errno.EPIPE: ("peer.gone", "the peer closed the data stream"),
    errno.ENOTCONN: ("peer.gone", "no data stream to the peer is up"),
    errno.EPROTO: ("stream.protocol", "the peer sent what makes no sense on a data stream"),
    errno.EKEYREJECTED: ("auth.stream", "the two ends of the data stream do not hold the same key"),
    errno.ECONNABORTED: ("memory.withdrawn", "memory was given back while it was being moved"),
}


def net_error(status: int, item: int | None, timeout: float) -> CacheError:
    """The error of a transfer over streams that ended with `status`, a negative errno.

    Args:
        status: What the native side gave.
        item: Index of the failing piece, None when nothing is known to have failed.
        timeout: Seconds after which a silent stream is cut.
    """
    number = -status
    if number not in _NET:
        return transfer_error(status, item, None)
    code, words = _NET[number]
    where = "" if item is None else f" at piece {item}"
    return BrokenError(
        f"the transfer stopped{where}: {words.format(timeout)} ({_text(number)})",
        code=code,
        transport=TRANSPORT,
        status=number,
        detail=_text(number),
        facts={"failed": () if item is None else (item,)},
    )


def memory_error(status: int, size: int, what: str, advice: str = "") -> CacheError:
    """The error of an allocation that ended with `status`, a negative errno."""
    number = -status
    return OutOfMemoryError(
        f"{size:,} bytes of {what} could not be had: {_text(number)}" + (f"; {advice}" if advice else ""),
        operation="allocate",
        transport=TRANSPORT,
        status=number,
        detail=_text(number),
        facts={"size": size},
    )


def cma_advice(pid: int) -> str:
    """Why the kernel does not let this process reach into another's memory, and what to do about it."""
    found = [f"the kernel forbids process {os.getpid()} to reach the memory of process {pid}"]
    advice = []
    own, other = os.geteuid(), _owner(pid)
    if other is not None and own not in (0, other):
        found.append(f"this process runs as user {own}, that one as user {other}")
        advice.append("run both as the same user")
    scope = _read("/proc/sys/kernel/yama/ptrace_scope")
    if scope not in (None, "0"):
        found.append(f"kernel.yama.ptrace_scope is {scope}")
        advice.append("set it to 0 (sysctl kernel.yama.ptrace_scope=0)")
    if not _has_ptrace_capability():
        found.append("this process lacks CAP_SYS_PTRACE")
        advice.append("grant it (in a container: --cap-add=SYS_PTRACE)")
    advice.append("or take the memory from CacheManager.allocate, which peers map instead")
    return "; ".join(found) + ". To mend it: " + ", ".join(advice)


def _owner(pid: int) -> int | None:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _has_ptrace_capability() -> bool:
    status = _read("/proc/self/status") or ""
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> 19 & 1)
