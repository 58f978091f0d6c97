"""What this transport, and the runtime below it, know about errors and machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachefw.catalog import Cause, Diagnostics, Entry, MachineProfile, rule_entries

from .profiles import PROFILES, for_soc
from .rules import RULES
from .status import TRANSPORT

__all__ = ["diagnostics"]

_OFFSET = Cause(
    "torch gives out tensors inside of larger allocations, at multiples of 512 bytes",
    "allocate 2 MiB more than needed and start at a multiple (cachefw.align_within), or use CacheManager.allocate",
)


def _describe(transport: Any) -> Mapping[str, str]:
    soc = transport.soc or "unknown"
    return {"SoC": soc, "profile": for_soc(transport.soc).name, "device": str(transport.device)}


def diagnostics() -> Diagnostics:
    """Its own, and those of AscendCL where it is installed."""
    own = (
        Entry(
            "allocate.unaligned",
            "code",
            "the runtime gave memory in huge pages that does not start on one",
            TRANSPORT,
            causes=(Cause("a fault of the driver", "report it with `cachefw doctor --bundle`", "ascendcl.library"),),
        ),
        *rule_entries(
            RULES,
            TRANSPORT,
            {
                "hccs.product": (
                    Cause("the machine is none of those that LLM-DataDist supports", "use another transport"),
                    Cause("no runtime is open", "name the machine: plan(profile=...)", "ascendcl.library"),
                ),
                "hccs.device_only": (Cause("host memory was given", "open a transport for host memory, too"),),
                "hccs.alignment": (_OFFSET,),
                "hccs.page": (
                    Cause("it was allocated in normal pages", "allocate with ACL_MEM_MALLOC_HUGE_ONLY"),
                    Cause("torch's expandable segments are on", "switch them off", "allocator"),
                ),
                "hccs.device": (Cause("the process uses several devices", "one node for each device"),),
                "hccs.range": (Cause("the shape is larger than the tensor", "compare the two"),),
            },
        ),
    )
    profiles = tuple(MachineProfile(row.name, row.products, row.alignment) for row in PROFILES)
    try:
        from cachefw_ascendcl import catalog
    except ImportError:
        return Diagnostics(own, profiles=profiles, describe=_describe)
    return Diagnostics((*own, *catalog.ENTRIES), catalog.CHECKS, profiles, catalog.LEFTOVERS, _describe)
