"""What HCCS demands of memory, by machine: one row for each, with its source."""

from __future__ import annotations

import difflib

import attrs

__all__ = ["PROFILES", "UNKNOWN", "Profile", "by_name", "for_soc"]

MIB = 2**20

_A2 = frozenset({"Ascend910B1", "Ascend910B2", "Ascend910B3", "Ascend910B4", "Ascend910B2C", "Ascend910B4-1"})
_A3 = frozenset(
    {"Ascend910_9391", "Ascend910_9381", "Ascend910_9392", "Ascend910_9382", "Ascend910_9372", "Ascend910_9362"}
)


@attrs.frozen
class Profile:
    """One machine's rules. None means that it is not known.

    Attributes:
        name: What `plan(profile=...)` takes.
        socs: SoC names as ``aclrtGetSocName`` gives them.
        products: The machines in words.
        alignment: Bytes that a region's start must be a multiple of; 1 for any.
        page: Bytes of the pages that the memory must lie in; 1 for any.
        host_memory: Whether HCCS carries host memory.
        supported: Whether this plugin works there.
        source: Where the row comes from.
    """

    name: str
    socs: frozenset[str]
    products: str
    alignment: int | None
    page: int | None
    host_memory: bool | None
    supported: bool | None
    source: str


PROFILES: tuple[Profile, ...] = (
    Profile(
        "A2",
        _A2,
        "Atlas A2: 800I A2 inference server, 300I A2 inference card, A200I A2 Box",
        alignment=2 * MIB,
        page=2 * MIB,
        host_memory=False,
        supported=True,
        source="LLM-DataDist CacheManager; the driver's check on IPC export (base on the page size of the memory)",
    ),
    Profile(
        "A3",
        _A3,
        "Atlas A3",
        alignment=2 * MIB,
        page=2 * MIB,
        host_memory=False,
        supported=True,
        source="LLM-DataDist CacheManager; the driver's check on IPC export (base on the page size of the memory)",
    ),
    Profile(
        "A3/fabric",
        frozenset(),
        "Atlas A3 in FabricMem mode",
        alignment=2 * MIB,
        page=2 * MIB,
        host_memory=True,
        supported=True,
        source="HIXL documentation, FabricMem mode (option EnableUseFabricMem)",
    ),
    Profile(
        "950",
        frozenset(),
        "Ascend 950",
        alignment=1,
        page=1,
        host_memory=None,
        supported=False,
        source="HIXL documentation: no alignment rule for Ascend 950; not among the products of CacheManager",
    ),
)

#: What is assumed of a machine that no row names: nothing.
UNKNOWN = Profile("unknown", frozenset(), "a machine that is not known", None, None, None, None, "no source")


def for_soc(soc: str | None) -> Profile:
    """The row of a SoC, by the name that the runtime gives; `UNKNOWN` when no row has it."""
    if soc and "Ascend950" in soc:
        return next(profile for profile in PROFILES if profile.name == "950")
    return next((profile for profile in PROFILES if soc in profile.socs), UNKNOWN)


def by_name(name: str) -> Profile | str:
    """The row of that name, or in words that there is none, with near matches."""
    names = [profile.name for profile in PROFILES]
    if name in names:
        return PROFILES[names.index(name)]
    if name == UNKNOWN.name:
        return UNKNOWN
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no profile {name!r}; {hint}there are {', '.join(names)}"
