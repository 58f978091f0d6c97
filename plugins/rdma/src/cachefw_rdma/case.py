"""What rules are told: the request, the machine's profile, its runtime, and what the open transport uses."""

from __future__ import annotations

import mmap
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.rules import Finding, Outcome, Request

from .profiles import Ascendcl, Choice, Pointer, PointerKind, Runtime, Way, ascendcl_loaded, choose, find_runtime

__all__ = ["At", "Case", "LockLimits", "Machine", "Setup", "lock_limits", "say", "unchecked", "verbs_devices"]

#: A region, with its place in the caller's list.
At = tuple[int, MemoryRegion]


@attrs.frozen
class LockLimits:
    """What this process may pin.

    Attributes:
        limit: RLIMIT_MEMLOCK in bytes, None for no limit.
        locked: VmLck in bytes: locked by mlock, counted apart.
        pinned: VmPin in bytes: pinned by verbs devices already, counted against the limit.
        exempt: Whether CAP_IPC_LOCK lifts the limit. In a user namespace of its own it does not.
        pid: The process.
    """

    limit: int | None
    locked: int
    pinned: int
    exempt: bool
    pid: int


def lock_limits() -> LockLimits:
    """What the kernel says of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    kib = {name: int(status.get(name, "0 kB").split()[0]) for name in ("VmLck", "VmPin")}
    # The kernel asks for the capability in the first user namespace, whose users are mapped to themselves.
    first = Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]
    capable = bool(int(status.get("CapEff", "0").strip(), 16) >> 14 & 1)
    return LockLimits(
        None if soft == resource.RLIM_INFINITY else soft,
        kib["VmLck"] * 1024,
        kib["VmPin"] * 1024,
        capable and first,
        int(status["Pid"]),
    )


def verbs_devices(folder: Path = Path("/sys/class/infiniband")) -> tuple[str, ...]:
    """Names of the verbs devices of this host."""
    try:
        return tuple(sorted(path.name for path in folder.iterdir()))
    except OSError:
        return ()


class Machine:
    """The device runtime of this process for as long as rules, or a provider, may ask it.

    Args:
        environ: The variables that say where AscendCL is; those of the process by default.
        device: Number of the device to ask.

    Attributes:
        runtime: The runtime; None where there is none.
        device: The ``cachefw_ascendcl.Device``, or None.
        obstacle: Why a runtime that seems to be there cannot be asked.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, device: int = 0) -> None:
        self._opened, self.device, self.obstacle = find_runtime(environ, device)
        self.runtime: Runtime | None = None if self.device is None else Ascendcl(self._opened, self.device)

    @property
    def simulated(self) -> bool:
        """Whether the runtime is a simulator."""
        return self._opened is not None and bool(self._opened.library.is_simulator)

    def close(self) -> None:
        """Give the runtime back. Idempotent."""
        opened, device = self._opened, self.device
        self._opened = self.device = self.runtime = None
        for handle in (device, opened):
            if handle is not None:
                handle.close()

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@attrs.frozen
class Setup:
    """What rules are told of the transport. The defaults are those of a dry run without one.

    Attributes:
        runtime: The device runtime, None where there is none.
        obstacle: Why a runtime that seems to be there cannot be asked.
        profile: The transport's setting; a request's own profile comes first.
        nics: How many verbs devices are used, 0 for none; None when that is not known.
        devices: Names the verbs devices of this host: where there are none, none is used.
        max_region_bytes: Largest region that those devices take; None when that is not known.
        ways: What the transport can do for device memory; None when that is not known.
        registered_host_bytes: Host memory registered already; None when that is not known.
        allocated: What memory a range is that the transport's own `allocate` made; None for any other.
        limits: Reads what may be pinned.
        loaded: Tells whether AscendCL is loaded in this process.
        page: Bytes of a page of host memory.
        dry: Whether the request is a dry run, for which this process and machine say nothing.
    """

    runtime: Runtime | None = None
    obstacle: str = ""
    profile: str | None = None
    nics: int | None = None
    devices: Callable[[], tuple[str, ...]] = verbs_devices
    max_region_bytes: int | None = None
    ways: Way | None = None
    registered_host_bytes: int | None = None
    allocated: Callable[[int, int], MemoryKind | None] = lambda address, length: None
    limits: Callable[[], LockLimits] = lock_limits
    loaded: Callable[[], bool] = ascendcl_loaded
    page: int = mmap.PAGESIZE
    dry: bool = False


@attrs.define
class Case:
    """A request, with what is known of the machine and of the transport."""

    request: Request
    setup: Setup
    choice: Choice
    _asked: dict[int, Pointer] = attrs.field(factory=dict, init=False)

    @classmethod
    def of(cls, request: Request, setup: Setup) -> Case:
        """Choose the profile: the request's, the transport's, or the machine's."""
        wanted = request.profile if request.profile is not None else setup.profile
        return cls(request, setup, choose(setup.runtime, wanted, setup.obstacle))

    @property
    def nics(self) -> int | None:
        """How many verbs devices are used; None when that is not known."""
        if self.setup.nics is None and not self.setup.dry and not self.setup.devices():
            return 0
        return self.setup.nics

    def regions(self, *, device: bool) -> Iterator[At]:
        """The regions of device memory, or those of host memory, with their places in the caller's list."""
        for at in zip(self.request.indices, self.request.regions, strict=True):
            if (at[1].kind is MemoryKind.DEVICE) is device:
                yield at

    def pointer(self, address: int) -> Pointer:
        """What the runtime says of an address; asked once."""
        if self.setup.runtime is None:
            return Pointer(PointerKind.UNKNOWN, note=self.setup.obstacle or "there is no runtime to ask")
        if address not in self._asked:
            self._asked[address] = self.setup.runtime.pointer(address)
        return self._asked[address]

    def ends(self, region: MemoryRegion) -> tuple[Pointer, Pointer]:
        """What the first and the last byte are."""
        return self.pointer(region.address), self.pointer(region.end - 1)


def say(
    outcome: Outcome,
    text: str,
    fix: str = "",
    at: At | None = None,
    facts: Mapping[str, object] | None = None,
    source: str = "",
) -> Finding:
    """A finding about one region, or about the whole call."""
    facts = facts or {}
    if at is None:
        return Finding("", outcome, text, fix=fix, source=source, facts=facts)
    index, region = at
    return Finding(
        "",
        outcome,
        text,
        index=index,
        address=region.address,
        length=region.length,
        fix=fix,
        source=source,
        facts=facts,
    )


def unchecked(places: list[At], text: str, fix: str, facts: Mapping[str, object] | None = None) -> Iterable[Finding]:
    """One finding for all regions that could not be checked for one reason; none for none."""
    if places:
        index, region = places[0]
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        facts = {"count": len(places), **(facts or {})}
        yield say(Outcome.NOT_CHECKED, f"addrs[{index}] {region}{more}: {text}", fix, places[0], facts)
