"""What this transport and the runtimes below it know about errors and machines."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cachefw.catalog import Cause, Check, Diagnosis, Diagnostics, Entry, Health, Leftover, MachineProfile, rule_entries
from cachefw.errors import CacheError

from . import library, rules
from .case import verbs_devices
from .profiles import PROFILES
from .status import NAMES, TRANSPORT, advice_of

__all__ = ["diagnostics"]

_VERBS = Path("/sys/class/infiniband")
_LINK = Cause("the two ends disagree about cards or transports", "compare the settings tls and net_devices of both")

_UCX: dict[str, tuple[Cause, ...]] = {
    "UCS_ERR_NO_MEMORY": (
        Cause("what may be locked is too little", "raise RLIMIT_MEMLOCK", "limits.memlock", "register"),
        Cause("the host has too little memory left", "use less", "memory.free"),
    ),
    "UCS_ERR_IO_ERROR": (
        Cause("memory of the peer was unmapped or taken back", "keep it registered while peers use it", "", "transfer"),
        Cause("what may be locked is too little", "raise RLIMIT_MEMLOCK", "limits.memlock", "register"),
        Cause("the port of a card is down", "see the check", "rdma.devices"),
    ),
    "UCS_ERR_UNREACHABLE": (_LINK, Cause("no card's port is active", "see the check", "rdma.devices")),
    "UCS_ERR_NO_DEVICE": (
        Cause("net_devices or tls names what this machine does not have", "`ucx_info -d` lists it", "rdma.devices"),
    ),
    "UCS_ERR_INVALID_ADDR": (
        Cause("the memory is not mapped, or not writable", "map it readable and writable", "", "register"),
    ),
    "UCS_ERR_UNSUPPORTED": (
        Cause(
            "this UCX was built without it; the wheel has no InfiniBand and no RoCE",
            "apt-get install libucx0",
            "rdma.ucx",
        ),
    ),
    "UCS_ERR_TIMED_OUT": (Cause("the peer hangs, or packets get lost", "cachefw doctor HOST:PORT", "network"),),
    "UCS_ERR_NOT_CONNECTED": (Cause("the peer's process is gone", "link again"),),
    "UCS_ERR_CONNECTION_RESET": (Cause("the peer's process is gone", "link again"),),
    "UCS_ERR_ENDPOINT_TIMEOUT": (
        Cause("the peer did not answer: it is gone, or its card's port is down", "link again", "rdma.devices"),
    ),
    "UCS_ERR_CANCELED": (Cause("the transfer was cancelled", "nothing has to be done"),),
    "UCS_ERR_BUSY": (Cause("UCX is used by another thread in a way it does not allow", "report it"),),
    "UCS_ERR_EXCEEDS_LIMIT": (Cause("a limit of the card was passed", "register fewer, larger regions"),),
}

#: One failure, many reasons: HIXL says 503900 whatever went wrong below it.
_HIXL: dict[str, tuple[Cause, ...]] = {
    "HIXL_PARAM_INVALID": (
        Cause(
            "the other end runs another version of CANN, or other options",
            "install the same on both",
            "ascendcl.library",
        ),
        Cause(
            "an address was not registered, or after the peer had connected",
            "register first, then link",
            "",
            "transfer",
        ),
        Cause("a region overlaps one that is registered", "register each range once", "", "register"),
    ),
    "HIXL_TIMEOUT": (
        Cause("the two ends started too far apart", "start both within the timeout, or wait longer", "", "link"),
        Cause(
            "the peer failed while connecting, which looks like a timeout from here", "read its log, too", "", "link"
        ),
        Cause("the devices' network loses packets", "ping device to device (hccn_tool)", "", "transfer"),
    ),
    "HIXL_NOT_CONNECTED": (Cause("the link was never made, or broke", "link again"),),
    "HIXL_UNSUPPORTED": (Cause("CANN, or the driver, is older than the feature", "upgrade", "ascendcl.library"),),
    "HIXL_RESOURCE_EXHAUSTED": (Cause("more transfers are under way than HIXL takes", "let some settle first"),),
    "HIXL_FAILED": (
        Cause(
            "one end takes HCCS and the other RoCE",
            "set HCCL_INTRA_ROCE_ENABLE alike on both",
            "ascendcl.environment",
            "link",
        ),
        Cause("TLS is on at one end only", "set it alike on both (hccn_tool -tls)", "", "link"),
        Cause("the port is taken", "take another", "ports", "link"),
        Cause(
            "memory does not start where the page rule wants it: 2 MiB for device memory, a page for host memory",
            "check it: cachefw plan FILE --profile A2",
            "",
            "register",
        ),
        Cause(
            "host memory is of the wrong kind: aclrtMallocHost on A2 and A3, malloc on 950 and host cards",
            "cachefw explain rdma.host_allocator",
            "",
            "register",
        ),
        Cause("it was registered in another instance, or after the link was made", "register first", "", "transfer"),
        Cause("the peer's memory was given back, and its key is stale", "link again", "", "transfer"),
        Cause(
            "the driver refused; its number is in HIXL's log, mostly 507899",
            "cachefw explain 507899",
            "ascendcl.devices",
        ),
    ),
}

_CODES: dict[str, tuple[str, tuple[Cause, ...]]] = {
    "ucx.unavailable": (
        "no usable UCX library was found",
        (Cause("it is not installed", "apt-get install libucx0 (has InfiniBand and RoCE)", "rdma.ucx"),),
    ),
    "ucx.refused": (
        "UCX could not be started with these settings",
        (
            Cause(
                "a setting, or a variable UCX_..., names what is not there",
                "`ucx_info -d`, `ucx_info -cf`",
                "rdma.environment",
            ),
        ),
    ),
    "hixl.unavailable": (
        "no usable HIXL library was found",
        (
            Cause(
                "the toolkit's environment is not set, or CANN is older than 9", "source set_env.sh", "ascendcl.library"
            ),
        ),
    ),
    "hixl.unknown_memory": (
        "the peer publishes memory that HIXL did not tell of when it connected",
        (Cause("it was registered after the link was made", "register all memory first, then link"),),
    ),
    "memory.device": (
        "the range is device memory of the peer, which no network card there reads",
        (Cause("the peer copies it through its own host memory for its own transfers alone", "have it push instead"),),
    ),
    "rdma.descriptors": (
        "the process may open too few descriptors for UCX, which would abort it",
        (Cause("the limit of open files is reached", "raise ulimit -n", "limits.files"),),
    ),
    "device.no_runtime": (
        "device memory was given, and there is no AscendCL to copy it",
        (Cause("it is not installed, or not found", "pip install 'cachefw-rdma[ascendcl]'", "ascendcl.library"),),
    ),
    "peer.version": (
        "the two ends have different versions of the runtime, which do not understand each other",
        (Cause("different releases of UCX are installed", "install the same on both", "rdma.ucx"),),
    ),
    "card.version": (
        "the peer's card has another format",
        (Cause("different versions of cachefw-rdma", "install the same on both", "packages"),),
    ),
    "description.version": (
        "the peer describes its memory in another format",
        (Cause("different versions of cachefw-rdma", "install the same on both", "packages"),),
    ),
}

_RULES: dict[str, tuple[Cause, ...]] = {
    "rdma.product": (
        Cause("the chip is in no profile", "name the machine: the setting profile, or plan(profile=...)"),
    ),
    "rdma.host_allocator": (
        Cause(
            "an engine allocates its host pool with malloc or torch on A2 or A3", "CacheManager.allocate(kind=PINNED)"
        ),
        Cause("memory of aclrtMallocHost, and the card is the host's or the chip a 950", "allocate it with malloc"),
    ),
    "rdma.device_memory": (Cause("a device's tensor was declared host memory", "set placement=Placement.DEVICE"),),
    "rdma.memlock": (Cause("what may be locked is too little", "raise RLIMIT_MEMLOCK", "limits.memlock"),),
    "rdma.access": (Cause("the memory was freed, or is mapped for reading only", "keep it, map it writable"),),
    "rdma.region_size": (Cause("one tensor is larger than a card takes", "register it in several regions"),),
    "rdma.pages": (Cause("malloc gives memory that does not start on a page", "cachefw.aligned_empty"),),
    "rdma.host_limit": (Cause("HDK before 25.5 maps host memory in small pages", "upgrade HDK", "ascendcl.devices"),),
}


def _entries() -> Iterable[Entry]:
    for number, name in NAMES.items():
        if not -100 < number < 0:
            continue
        title = advice_of(number) or name.removeprefix("UCS_ERR_").replace("_", " ").lower()
        yield Entry(str(number), "status", title, "UCX", (name,), _UCX.get(name, ()), "ucs/type/status.h")
    for code, (title, causes) in _CODES.items():
        yield Entry(code, "code", title, TRANSPORT, causes=causes)
    yield from rule_entries(rules.RULES, TRANSPORT, _RULES)
    yield Entry(
        library.VARIABLE,
        "setting",
        "path of libucp.so.0; unset: the loader, then the wheel libucx",
        "cachefw-rdma",
        text="default: unset",
    )
    try:
        from .hixl.library import VARIABLE
        from .hixl.rules import RULES
        from .hixl.status import STATUSES
    except ImportError:
        return
    for number, status in STATUSES.items():
        if number > 0:
            causes = _HIXL.get(status.name) or (Cause(status.text, status.fix),)
            yield Entry(str(number), "status", status.text, "HIXL", (status.name,), causes, "HIXL documentation")
    yield from rule_entries(RULES, TRANSPORT)
    yield Entry(
        VARIABLE, "setting", "path of libcann_hixl.so; unset: the loader", "cachefw-rdma", text="default: unset"
    )


def _ucx() -> Iterable[Diagnosis]:
    try:
        found = library.open_library()
    except CacheError as error:
        text = str(error).partition(". Tried")[0]
        health = Health.BROKEN if verbs_devices() else Health.NOTE
        meaning = "network cards are there and cannot be used" if verbs_devices() else "this transport cannot be used"
        yield Diagnosis("", health, text, meaning, "apt-get install libucx0", {"error": str(error)})
        return
    facts = {"path": found.path, "source": found.source, "version": list(found.version)}
    if library.WHEEL in found.source and verbs_devices():
        text, fix = f"{found}, from the wheel", "apt-get install libucx0"
        yield Diagnosis("", Health.WARNING, text, "it has no InfiniBand and no RoCE inside", fix, facts)
    else:
        yield Diagnosis("", Health.OK, str(found), facts=facts)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _devices() -> Iterable[Diagnosis]:
    names = verbs_devices(_VERBS)
    if not names:
        yield Diagnosis("", Health.NOTE, "this host has no verbs device; UCX takes tcp and shared memory")
        return
    closed = [str(path) for path in Path("/dev/infiniband").glob("uverbs*") if not os.access(path, os.R_OK | os.W_OK)]
    if closed or not Path("/dev/infiniband").exists():
        what = ", ".join(closed) or "/dev/infiniband"
        yield Diagnosis(
            "",
            Health.BROKEN,
            f"{what} cannot be opened",
            "no card can be used",
            "--device=/dev/infiniband, or the group",
        )
    for name in names:
        for port in sorted((_VERBS / name / "ports").glob("*")):
            facts = {key: _read(port / key) for key in ("state", "phys_state", "link_layer", "rate")}
            facts["mtu"] = _mtu(_VERBS / name)
            state = facts["state"].rpartition(": ")[2]
            text = f"{name}:{port.name} is {state.lower()}, {facts['link_layer']}, {facts['rate']}"
            if state == "ACTIVE":
                yield Diagnosis("", Health.OK, text, facts=facts)
            else:
                meaning = "nothing can go over it"
                yield Diagnosis("", Health.WARNING, text, meaning, "see its cable and its network interface", facts)


def _mtu(device: Path) -> str:
    return ", ".join(sorted(_read(path / "mtu") for path in (device / "device" / "net").glob("*"))) or "unknown"


def _environment() -> Iterable[Diagnosis]:
    mine = library.DEFAULTS
    given = {
        name: text for name, text in sorted(os.environ.items()) if name.startswith("UCX_") and mine.get(name) != text
    }
    shown = ", ".join(f"{name}={value}" for name, value in given.items()) or "none"
    meaning = "both ends of a link need the same" if given else ""
    text = f"variables of UCX: {shown}"
    yield Diagnosis("", Health.NOTE if given else Health.OK, text, meaning, facts=given)


def _describe(transport: Any) -> Mapping[str, str]:
    provider = transport.provider
    used = getattr(provider, "library", None)
    version = getattr(used, "version", None)
    return {
        "profile": transport.profile,
        "provider": getattr(provider, "name", "none"),
        "library": ".".join(map(str, version)) if version else str(used or "unknown"),
        "verbs devices": ", ".join(verbs_devices()) or "none",
    }


def _largest(profile: Any) -> int | None:
    return profile.max_region_bytes or None


def diagnostics() -> Diagnostics:
    """Its own, and those of AscendCL where it is installed."""
    entries = tuple(_entries())
    checks = (
        Check("rdma.ucx", "the UCX library", _ucx),
        Check("rdma.devices", "verbs devices", _devices),
        Check("rdma.environment", "variables of UCX", _environment),
    )
    profiles = tuple(MachineProfile(row.name, row.products, None, _largest(row)) for row in PROFILES)
    left = (Leftover("/dev/shm/ucx_shm_posix_*", "UCX"),)  # noqa: S108 - a pattern to look for
    if importlib.util.find_spec("cachefw_ascendcl") is not None:
        below = importlib.import_module("cachefw_ascendcl.catalog")
        entries, checks, left = (*entries, *below.ENTRIES), (*checks, *below.CHECKS), (*left, *below.LEFTOVERS)
    return Diagnostics(entries, checks, profiles, left, _describe)
