"""Faults, pauses and figures of the simulator, for tests.

Works on the library that is open, and only while that is a simulator: a real runtime has none of this.
"""

from __future__ import annotations

from typing import Any

from cachefw.errors import RequestError, UnsupportedOperation, refusal

from ._acl import ffi, lib

__all__ = ["calls", "clear", "fail", "link", "pause", "statistics", "strict"]

# In the order of the simulator's struct, behind its size.
_FIGURES = (
    "device_bytes",
    "host_bytes",
    "machine_bytes",
    "capacity",
    "allocations",
    "host_allocations",
    "registered",
    "imports",
    "exports",
    "machine_exports",
    "processes",
    "contexts",
    "streams",
    "events",
    "spaces",
    "device_window",
    "host_window",
)


def _control(name: str, signature: str) -> Any:
    address = lib.cfw_acl_lookup(name.encode())
    if not address:
        raise UnsupportedOperation(
            "no simulator is open in this process: set CACHEFW_ASCENDCL=simulator and open a Runtime", operation=name
        )
    return ffi.cast(signature, address)


def _refuse(operation: str, message: str) -> None:
    raise refusal(RequestError, {ValueError}, message, operation=operation)


def fail(function: str, code: int, nth: int = 1) -> None:
    """Let a function answer `code` and do nothing else.

    Args:
        function: A name of AscendCL, ``"*"`` for any, or ``"task"`` for a copy that a stream executes.
        code: What it answers; not 0.
        nth: Which call from now on, 1 for the next; 0 for every one until `clear`.
    """
    if _control("aclsimFail", "int (*)(const char *, int, int)")(function.encode(), nth, code):
        _refuse("fail", f"the simulator cannot let call {nth} of {function!r} fail with {code}")


def clear() -> None:
    """Forget all faults, mend all links and go on if paused."""
    _control("aclsimClear", "void (*)(void)")()


def calls(function: str) -> int:
    """How often a function was called since the process started."""
    count = int(_control("aclsimCalls", "int64_t (*)(const char *)")(function.encode()))
    if count < 0:
        _refuse("calls", f"the simulator has no function {function!r}")
    return count


def link(device: int, peer: int, up: bool) -> None:
    """Cut or mend the link of two devices, for this process."""
    if _control("aclsimLink", "int (*)(int32_t, int32_t, int)")(device, peer, up):
        _refuse("link", f"the simulator has no devices {device} and {peer}")


def pause(paused: bool = True) -> None:
    """While paused, streams take work but do none."""
    _control("aclsimPause", "void (*)(int)")(paused)


def strict() -> bool:
    """Whether the CPU cannot reach device memory, as on hardware."""
    return bool(_control("aclsimStrict", "int (*)(void)")())


def statistics(device: int = -1) -> dict[str, int]:
    """What this process holds, and all processes together.

    Args:
        device: Whose bytes; -1 for those of all devices.
    """
    figures = ffi.new("uint64_t[]", 1 + len(_FIGURES))
    figures[0] = ffi.sizeof(figures)
    if _control("aclsimStats", "int (*)(int32_t, uint64_t *)")(device, figures):
        _refuse("statistics", f"the simulator has no figures of device {device}")
    return dict(zip(_FIGURES, list(figures)[1:], strict=True))
