"""What AscendCL's numbers mean, why they come, and what can be seen of it on a machine: for the plugins that use it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from cachefw.catalog import Cause, Check, Diagnosis, Entry, Health, Leftover
from cachefw.errors import CacheError

from .library import VARIABLE
from .status import meanings

__all__ = ["CHECKS", "ENTRIES", "LEFTOVERS"]

_OWNER = "AscendCL"

#: Why a number comes, the likeliest first. What the kernel's driver refuses is always 507899, whatever the reason.
_CAUSES: dict[str, tuple[Cause, ...]] = {
    "ACL_ERROR_INVALID_PARAM": (
        Cause("a pointer is NULL, a size 0, or a reserved argument not 0", "correct the call"),
    ),
    "ACL_ERROR_UNINITIALIZE": (
        Cause("aclInit was not called, or aclFinalize was, by another library", "keep a Runtime"),
    ),
    "ACL_ERROR_COMPILING_STUB_MODE": (
        Cause(
            "the toolkit's library for linking was found before the runtime's",
            "source set_env.sh of the runtime; take .../stub out of LD_LIBRARY_PATH",
            "ascendcl.library",
        ),
    ),
    "ACL_ERROR_RT_PARAM_INVALID": (
        Cause("more bytes than the destination holds, or an address where nothing is allocated", "check the lengths"),
        Cause("a list of importers of 0 or more than 31 processes", "close links, or open with any_process"),
    ),
    "ACL_ERROR_RT_INVALID_DEVICEID": (
        Cause(
            "the number counts all devices, and this process sees some of them",
            "count among the visible ones: ASCEND_RT_VISIBLE_DEVICES",
            "ascendcl.environment",
        ),
        Cause(
            "the device is not passed into the container", "--device=/dev/davinci0 and its managers", "ascendcl.devices"
        ),
    ),
    "ACL_ERROR_RT_CONTEXT_NULL": (
        Cause("the calling thread has no context: it is another one than set the device", "use bound() in that thread"),
    ),
    "ACL_ERROR_RT_FEATURE_NOT_SUPPORT": (
        Cause(
            "the driver or CANN is older than the feature: fabric memory needs HDK 26.0.0 and CANN 9.0.0",
            "upgrade",
            "ascendcl.library",
        ),
        Cause("an asynchronous copy from host to host memory", "copy it with the CPU"),
    ),
    "ACL_ERROR_RT_MEMORY_ALLOCATION": (
        Cause("the device's memory is used up, by all processes together", "free some; see the device's own tool"),
        Cause("one aclrtMallocHost above some 200 GB, which the driver refuses", "allocate in several pieces"),
    ),
    "ACL_ERROR_RT_NO_DEVICE": (
        Cause("no device is visible here", "pass /dev/davinci* into the container", "ascendcl.devices"),
    ),
    "ACL_ERROR_RT_NO_PERMISSION": (
        Cause("this user may not open the device", "join the group of /dev/davinci*", "ascendcl.devices"),
    ),
    "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT": (
        Cause("the device is still at work, or hangs", "wait on; the buffers stay in use until it settles"),
    ),
    "ACL_ERROR_RT_DEVICE_MEM_ERROR": (Cause("a hardware fault", "take the device out of service"),),
    "ACL_ERROR_RT_LINK_ERROR": (Cause("the link between two devices has a fault", "see the device's own tool"),),
    "ACL_ERROR_RT_SUSPECT_REMOTE_ERROR": (
        Cause("the peer's process or device failed in the middle of a copy", "look at the peer, then link again"),
    ),
    "ACL_ERROR_RT_DRV_INTERNAL_ERROR": (
        Cause(
            "memory to be shared does not start on a page of its own: a multiple of 2 MiB for huge pages",
            "align it; CacheManager.allocate does. `cachefw explain hccs.alignment`",
            "",
            "register",
            "device memory",
        ),
        Cause(
            "the process is not on the list of importers of the memory",
            "link first, so that it gets listed",
            "",
            "transfer",
            "device memory",
        ),
        Cause(
            "the process that shared the memory is gone, or took it back", "link again", "", "transfer", "device memory"
        ),
        Cause(
            "the range goes past its allocation, or is no device memory",
            "check address and shape",
            "",
            "register",
            "device memory",
        ),
        Cause(
            "host memory to be registered does not start on a page, or overlaps",
            "align it to 4 KiB",
            "",
            "register",
            "host memory",
        ),
        Cause(
            "the driver does not fit CANN, or the container lacks a device node",
            "see the kernel's log (dmesg)",
            "ascendcl.devices",
        ),
    ),
    "ACL_ERROR_RT_HOST_MEMORY_ALREADY_REGISTERED": (
        Cause("two parts of the program register the same host memory", "register it once and share it"),
    ),
    "ACL_ERROR_RT_HOST_MEMORY_NOT_REGISTERED": (Cause("it was given back already", "unregister once"),),
}

_CODES: dict[str, tuple[str, tuple[Cause, ...]]] = {
    "acl.unavailable": (
        "no usable AscendCL library was found",
        (
            Cause("the toolkit's environment is not set", "source set_env.sh", "ascendcl.library"),
            Cause("there is no NPU here", "CACHEFW_ASCENDCL=simulator works without one", "ascendcl.devices"),
        ),
    ),
    "acl.missing": (
        "the open library lacks a function",
        (Cause("its CANN is older than the call", "upgrade CANN", "ascendcl.library"),),
    ),
    "acl.closed": ("no AscendCL library is open in this process", (Cause("the last Runtime was closed", "keep one"),)),
    "acl.uninitialised": ("AscendCL is not initialised", (Cause("another library finalised it", "keep a Runtime"),)),
    "acl.stub": (
        "the library is the toolkit's for linking only",
        (Cause("LD_LIBRARY_PATH has .../stub first", "take it out", "ascendcl.library"),),
    ),
    "acl.no_context": ("the calling thread has no context", (Cause("it did not set a device", "use bound()"),)),
    "acl.no_device": ("there is no device", (Cause("none is visible here", "pass it in", "ascendcl.devices"),)),
    "acl.forked": (
        "the object belongs to the parent of this process",
        (Cause("the process was forked", "start processes with spawn", "fork"),),
    ),
    "acl.no_soc_name": (
        "the runtime does not say what chip this is",
        (Cause("the driver does not answer", "see dmesg", "ascendcl.devices"),),
    ),
}

_SETTING = Entry(
    VARIABLE,
    "setting",
    "path of libascendcl.so, or the word simulator; unset: the toolkit's variables, then the loader",
    "cachefw-ascendcl",
    text="default: unset",
)


def _entries() -> Iterable[Entry]:
    for number, (name, text) in meanings().items():
        yield Entry(
            str(number), "status", text, _OWNER, (name,), _CAUSES.get(name, ()), "acl_base_rt.h; the driver's map"
        )
    for code, (title, causes) in _CODES.items():
        yield Entry(code, "code", title, "cachefw-ascendcl", causes=causes)


ENTRIES: tuple[Entry, ...] = (*_entries(), _SETTING)

#: What a killed process of the simulator leaves; the next one on the same machine removes it, too.
LEFTOVERS = (Leftover("/dev/shm/aclsim.*", "the AscendCL simulator"),)  # noqa: S108 - a pattern to look for


def _library() -> Iterable[Diagnosis]:
    from .runtime import Runtime

    try:
        with Runtime() as runtime:
            library = runtime.library
            facts: dict[str, object] = {"path": library.path, "source": library.source, "missing": library.missing}
            facts |= {"version": library.version, "devices": library.device_count, "simulated": library.is_simulator}
            facts["soc"] = runtime.soc_name() if library.device_count else ""
    except CacheError as error:
        there = bool(_nodes())
        health = Health.BROKEN if there else Health.NOTE
        meaning = "devices are there, and cannot be used" if there else "this machine has no NPU that cachefw can use"
        text = str(error).partition(". Tried")[0]
        yield Diagnosis("", health, text, meaning, f"source set_env.sh, or set {VARIABLE}", {"error": str(error)})
        return
    text = f"{library}, {library.device_count} devices" + (f" of {facts['soc']}" if facts["soc"] else "")
    if library.is_simulator:
        meaning = "no figure of it says anything about hardware"
        yield Diagnosis("", Health.WARNING, text, meaning, f"unset {VARIABLE} on a machine with NPUs", facts)
    elif library.device_status:
        text += f"; asked for devices it answers {library.device_status}"
        fix = f"cachefw explain {library.device_status}"
        yield Diagnosis("", Health.BROKEN, text, "the driver does not work", fix, facts)
    else:
        yield Diagnosis("", Health.OK, text, facts=facts)


_MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")


def _nodes() -> list[str]:
    return sorted(str(path) for path in Path("/dev").glob("davinci[0-9]*"))


def _devices() -> Iterable[Diagnosis]:
    nodes = _nodes()
    if not nodes:
        yield Diagnosis("", Health.NOTE, "there is no /dev/davinci*: no NPU, or none passed into this container")
        return
    missing = [name for name in _MANAGERS if not Path(name).exists()]
    closed = [name for name in (*nodes, *_MANAGERS) if Path(name).exists() and not os.access(name, os.R_OK | os.W_OK)]
    facts = {"nodes": nodes, "missing": missing, "closed": closed, "driver": _driver()}
    text = f"{len(nodes)} devices, driver {facts['driver'] or 'of an unknown version'}"
    if missing or closed:
        text += f"; not there: {', '.join(missing) or 'none'}; not to be opened: {', '.join(closed) or 'none'}"
        fix = "pass them into the container, and join their group"
        yield Diagnosis("", Health.BROKEN, text, "the driver cannot be used", fix, facts)
    else:
        yield Diagnosis("", Health.OK, text, facts=facts)


def _driver() -> str:
    try:
        text = Path("/usr/local/Ascend/driver/version.info").read_text()
    except OSError:
        return ""
    found = re.search(r"^\s*version\s*=\s*([\w.]+)", text, re.IGNORECASE | re.MULTILINE)
    return found[1] if found else ""


_VARIABLES = re.compile(r"(ASCEND|HCCL|ACL|ACLSIM|NPU)_\w+")


def _environment() -> Iterable[Diagnosis]:
    given = {name: os.environ[name] for name in sorted(os.environ) if _VARIABLES.fullmatch(name)}
    shown = ", ".join(f"{name}={value}" for name, value in given.items()) or "none"
    text = f"variables of the runtime: {shown}"
    meaning = "both ends of a link need the same, those of HCCL above all" if given else ""
    yield Diagnosis("", Health.NOTE if given else Health.OK, text, meaning, facts=given)


CHECKS: tuple[Check, ...] = (
    Check("ascendcl.library", "the AscendCL library", _library),
    Check("ascendcl.devices", "device nodes and driver", _devices),
    Check("ascendcl.environment", "variables of Ascend", _environment),
)
