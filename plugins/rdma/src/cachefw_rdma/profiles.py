"""What RDMA demands of memory, by machine: a row for each, with its source; and the runtime that tells the machine."""

from __future__ import annotations

import difflib
import enum
import importlib
import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs

__all__ = [
    "HOST_LIMITS",
    "PROFILES",
    "UNKNOWN",
    "Ascendcl",
    "Choice",
    "HostLimit",
    "Need",
    "Pointer",
    "PointerKind",
    "Profile",
    "Runtime",
    "Way",
    "ascendcl_loaded",
    "choose",
    "find_runtime",
]

GIB = 2**30

_A2 = frozenset({"Ascend910B1", "Ascend910B2", "Ascend910B3", "Ascend910B4", "Ascend910B2C", "Ascend910B4-1"})
_A3 = frozenset(
    {"Ascend910_9391", "Ascend910_9381", "Ascend910_9392", "Ascend910_9382", "Ascend910_9372", "Ascend910_9362"}
)
# Chips before A2, by the beginning of their names.
_OLDER = ("Ascend310", "Ascend910A", "Ascend910Pro", "Ascend910Premium")


class Need(enum.Enum):
    """Whether host memory has to come from the device runtime's allocator, ``aclrtMallocHost``."""

    REQUIRED = "required"
    FORBIDDEN = "forbidden"
    ANY = "any"
    UNKNOWN = "unknown"


class Way(enum.Flag):
    """How device memory reaches the network."""

    NONE = 0
    #: Copied to ordinary host memory first.
    STAGED = enum.auto()
    #: The host's NIC reads it itself, through the driver's peer-memory module.
    PEER = enum.auto()
    #: The NIC on the device reads it.
    DIRECT = enum.auto()


@attrs.frozen
class Profile:
    """One machine's rules. None means that it is not known.

    Attributes:
        name: What `plan(profile=...)` and the transport's setting ``profile`` take.
        products: The machine in words.
        socs: SoC names as ``aclrtGetSocName`` gives them.
        soc_part: Instead of names: what a SoC name contains.
        needs_runtime_host_memory: Whether host memory has to come from ``aclrtMallocHost``.
        device_memory: The ways that exist for device memory.
        host_on_page: Whether host memory has to start on a page.
        max_region_bytes: Largest region of the device's NIC; 0 where there is none and the host's NIC decides.
        host_limits: Whether the driver limits the sum of host memory (`HOST_LIMITS`).
        source: Where the row comes from.
    """

    name: str
    products: str
    needs_runtime_host_memory: Need
    device_memory: Way | None
    host_on_page: bool | None
    max_region_bytes: int | None
    host_limits: bool | None
    source: str
    socs: frozenset[str] = frozenset()
    soc_part: str = ""


_DEVICE_NIC = (
    "LLM-DataDist CacheManager (RDMA host memory from aclrtMallocHost); hcomm (regions of less than 64 GiB, host "
    "memory mapped in whole pages)"
)

PROFILES: tuple[Profile, ...] = (
    Profile(
        "A2",
        "Atlas A2: 800I A2 inference server, 300I A2 inference card, A200I A2 Box",
        Need.REQUIRED,
        Way.STAGED | Way.PEER | Way.DIRECT,
        host_on_page=True,
        max_region_bytes=64 * GIB - 1,
        host_limits=True,
        source=_DEVICE_NIC,
        socs=_A2,
    ),
    Profile(
        "A3",
        "Atlas A3",
        Need.REQUIRED,
        Way.STAGED | Way.PEER | Way.DIRECT,
        host_on_page=True,
        max_region_bytes=64 * GIB - 1,
        host_limits=True,
        source=_DEVICE_NIC,
        socs=_A3,
    ),
    Profile(
        "950",
        "Ascend 950",
        Need.FORBIDDEN,
        Way.STAGED | Way.DIRECT,
        host_on_page=False,
        max_region_bytes=0,
        host_limits=False,
        source="HIXL documentation: memory of aclrtMallocHost cannot be registered on 950's host RoCE, use malloc",
        soc_part="Ascend950",
    ),
    Profile(
        "host-nic",
        "a network card of the host, whatever accelerators are there",
        Need.FORBIDDEN,
        Way.STAGED | Way.PEER,
        host_on_page=False,
        max_region_bytes=0,
        host_limits=False,
        source="HIXL_CS documentation (host RoCE); the driver maps aclrtMallocHost memory VM_PFNMAP, not to be pinned",
    ),
    Profile(
        "no-ascend",
        "a machine without AscendCL",
        Need.ANY,
        Way.NONE,
        host_on_page=False,
        max_region_bytes=0,
        host_limits=False,
        source="libibverbs and UCX: any host memory, at any address",
    ),
)

#: What is assumed of a machine that no row names: nothing.
UNKNOWN = Profile("unknown", "a machine that is not known", Need.UNKNOWN, None, None, None, None, "no source")


@attrs.frozen
class HostLimit:
    """How much host memory the driver maps for its NIC, from a version of HDK on."""

    since: tuple[int, ...]
    bytes: int
    source: str


HOST_LIMITS: tuple[HostLimit, ...] = (
    HostLimit((0,), 20 * GIB, "HIXL documentation: 20 GB of host memory before HDK 25.5 (page tables of 4 KiB pages)"),
    HostLimit((25, 5), 1024 * GIB, "HIXL documentation: 1 TB of host memory from HDK 25.5 on (2 MiB pages)"),
)


# ---- the runtime --------------------------------------------------------------------------------------------------


class PointerKind(enum.Enum):
    """What a runtime says of an address."""

    RUNTIME_HOST = "memory of aclrtMallocHost"
    ORDINARY_HOST = "ordinary host memory"
    DEVICE = "device memory"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


@attrs.frozen
class Pointer:
    """What an address is.

    Attributes:
        kind: The runtime's answer; `PointerKind.UNKNOWN` when it has none, or one that could mean several things.
        page: Bytes of the memory's pages, 0 when they are not known.
        note: For `UNKNOWN`, why.
    """

    kind: PointerKind
    page: int = 0
    note: str = ""


class Runtime(Protocol):
    """A device runtime, as far as rules ask it."""

    def soc_name(self) -> str:
        """The chip's name, or "" when the runtime does not say."""

    def pointer(self, address: int) -> Pointer:
        """What memory an address is. Never raises."""

    def driver_version(self) -> str:
        """The version of HDK (driver and firmware), or "" when it is not known."""


def ascendcl_loaded(maps: Path = Path("/proc/self/maps")) -> bool:
    """Whether a library of AscendCL is loaded, without which nothing in this process is made by ``aclrtMallocHost``."""
    try:
        text = maps.read_text()
    except OSError:
        return True
    return re.search(r"/lib(ascendcl|acl_rt|ascend_hal)\.so", text) is not None


_CONFIGURED_BY = ("CACHEFW_ASCENDCL", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_VERSION_FILE = Path("/usr/local/Ascend/driver/version.info")
# Host memory of aclrtMallocHost lies in one window of 1 TiB, at one of two places.
_PINNED = tuple(range(start, start + 2**40) for start in (0x70000000000, 0x80000000000))


class Ascendcl:
    """AscendCL as a `Runtime`, through the distribution ``cachefw-ascendcl``.

    Args:
        runtime: A ``cachefw_ascendcl.Runtime``.
        device: A device of it. Whoever made both closes them.
    """

    def __init__(self, runtime: Any, device: Any) -> None:
        self._runtime = runtime
        self._device = device

    def soc_name(self) -> str:
        """What the chip is called."""
        try:
            return str(self._runtime.soc_name())
        except Exception:
            return ""

    def pointer(self, address: int) -> Pointer:
        """What ``aclrtPointerGetAttributes`` says."""
        try:
            info = self._device.identify(address)
        except Exception as error:
            return Pointer(PointerKind.UNKNOWN, note=f"the runtime cannot tell: {error}")
        if info is None:
            return Pointer(PointerKind.UNKNOWN, note="it lies among device memory where nothing is allocated")
        if info.guessed:
            return Pointer(PointerKind.UNKNOWN, note="this runtime (before CANN 8.5) has no call that tells")
        location = "" if info.location is None else info.location.name
        if location == "HOST" and any(address in window for window in _PINNED):
            return Pointer(PointerKind.RUNTIME_HOST, info.page_size)
        if location == "UNREGISTERED":
            return Pointer(PointerKind.ORDINARY_HOST, info.page_size)
        if location == "DEVICE":
            return Pointer(PointerKind.DEVICE, info.page_size)
        # Drivers before 8.5's last call all host memory HOST; and so is, anywhere, what aclrtHostRegister was told of.
        says = location or f"location {info.raw_location}"
        return Pointer(
            PointerKind.UNKNOWN, info.page_size, f"the runtime says {says}, outside of aclrtMallocHost's window"
        )

    def driver_version(self) -> str:
        """The driver's version file; "" for a simulator, which has no driver."""
        library = getattr(self._runtime, "library", None)
        if library is not None and library.is_simulator:
            return ""
        try:
            found = re.search(r"^\s*version\s*=\s*([\d.]+)", _VERSION_FILE.read_text(), re.IGNORECASE | re.MULTILINE)
        except OSError:
            return ""
        return found[1] if found else ""


def find_runtime(environ: Mapping[str, str] | None = None, device: int = 0) -> tuple[Any, Any, str]:
    """Open AscendCL if it is there: installed, and configured or already loaded.

    Args:
        environ: The variables; those of the process by default.
        device: Number of the device to ask.

    Returns:
        The ``cachefw_ascendcl.Runtime`` and its ``Device``, which the caller closes, or None and None; and why
        AscendCL, though it seems to be there, cannot be asked, or "".
    """
    environ = os.environ if environ is None else environ
    configured = [name for name in _CONFIGURED_BY if environ.get(name)]
    if not configured and not ascendcl_loaded():
        return None, None, ""
    sign = f"{configured[0]} is set" if configured else "a library of it is loaded"
    if importlib.util.find_spec("cachefw_ascendcl") is None:
        return None, None, f"AscendCL seems to be there ({sign}), but cachefw-ascendcl is not installed to ask it"
    runtime = None
    try:
        runtime = importlib.import_module("cachefw_ascendcl").Runtime(environ)
        return runtime, runtime.device(device), ""
    except Exception as error:
        if runtime is not None:
            runtime.close()
        return None, None, f"AscendCL seems to be there ({sign}), but cannot be asked: {error}"


# ---- choosing -----------------------------------------------------------------------------------------------------


@attrs.frozen
class Choice:
    """Which profile holds.

    Attributes:
        profile: The row.
        reason: How it was chosen.
        soc: The chip's name, "" when there is none or it is not known.
        hdk: Version of HDK, "" when it is not known.
        refused: Why there is no such profile, or no such product; "" when there is.
        near: Names that were perhaps meant.
    """

    profile: Profile
    reason: str
    soc: str = ""
    hdk: str = ""
    refused: str = ""
    near: tuple[str, ...] = ()


def choose(runtime: Runtime | None, wanted: str | None = None, obstacle: str = "") -> Choice:
    """Choose the profile: the one that is asked for, else the one of the runtime's chip, else ``no-ascend``.

    Args:
        runtime: The device runtime, real or simulated; None where there is none.
        wanted: A profile's name. After a ``/`` may follow a mode: ``A2/hdk25.2`` sets the version of HDK; modes of
            other transports (``A3/fabric``) change nothing here.
        obstacle: Why a runtime that seems to be there cannot be asked.
    """
    soc = runtime.soc_name() if runtime is not None else ""
    hdk = runtime.driver_version() if runtime is not None else ""
    if wanted is not None:
        return _named(wanted, soc, hdk)
    if runtime is None:
        if obstacle:
            return Choice(UNKNOWN, obstacle)
        return Choice(_row("no-ascend"), "there is no AscendCL in this process")
    for profile in PROFILES:
        if soc in profile.socs or (profile.soc_part and profile.soc_part in soc):
            return Choice(profile, f"the runtime's SoC is {soc}", soc, hdk)
    refused = ""
    if soc.startswith(_OLDER):
        refused = (
            f"SoC {soc} is older than Atlas A2; supported are Atlas A2 (800I A2, 300I A2, A200I A2 Box) and Atlas A3"
        )
    reason = f"SoC {soc!r} is in no profile" if soc else "the runtime does not say what chip this is"
    return Choice(UNKNOWN, reason, soc, hdk, refused)


def _row(name: str) -> Profile:
    return next(profile for profile in PROFILES if profile.name == name)


def _named(wanted: str, soc: str, hdk: str) -> Choice:
    base, *modes = wanted.split("/")
    rows = {profile.name.lower(): profile for profile in (*PROFILES, UNKNOWN)}
    for mode in modes:
        version = re.fullmatch(r"hdk[ -]?(\d+(?:\.\d+)*)", mode.strip(), re.IGNORECASE)
        hdk = version[1] if version else hdk
    profile = rows.get(base.strip().lower())
    if profile is not None:
        return Choice(profile, f"profile {wanted!r} was asked for", soc, hdk)
    names = [profile.name for profile in (*PROFILES, UNKNOWN)]
    near = tuple(rows[name].name for name in difflib.get_close_matches(base.lower(), rows, 3, 0.4))
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    text = f"there is no profile {wanted!r}; {hint}there are {', '.join(names)}"
    return Choice(UNKNOWN, text, soc, hdk, text, near)
