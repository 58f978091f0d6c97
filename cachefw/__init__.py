"""Register key/value caches with the rules of each transport, and move them between processes.

Layers, each importing only what stands before it: values (`errors`, `cache`, `memory`), rules, the contract with
plugins (`transport`, `hookspecs`), their discovery (`plugins`), registration (`registry`, `planning`, `registrar`),
`manager`, `links`, `node`, and the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachefw.version import VERSION

if TYPE_CHECKING:
    from cachefw.cache import (
        ABSENT_ID,
        BlocksCacheKey,
        Cache,
        CacheDesc,
        CacheKey,
        CacheKeyByIdAndIndex,
        DataType,
        Placement,
    )
    from cachefw.errors import (
        AuthenticationError,
        BrokenError,
        BusyError,
        CacheError,
        ClosedError,
        NotFoundError,
        OutOfMemoryError,
        PluginError,
        RegistrationError,
        RequestError,
        TransferCancelled,
        TransferTimeout,
        TransportUnavailable,
        UnsupportedOperation,
    )
    from cachefw.hookspecs import hookimpl
    from cachefw.links.link import Link, LinkState
    from cachefw.links.transfers import LinkTransfer, PreparedTransfer
    from cachefw.manager import CacheManager
    from cachefw.memory import Access, Allocation, MemoryKind, MemoryRegion, align_within, aligned_empty
    from cachefw.node import Node, Notification
    from cachefw.registry import Memory
    from cachefw.reports import TransferReport
    from cachefw.rules import Finding, Limits, Outcome, Plan
    from cachefw.tasks import CacheTask, LayerSynchronizer, TransferConfig, TransferWithCacheKeyConfig
    from cachefw.transport import Operation

__version__ = VERSION

# Where each public name lives. Loaded when first asked for: `import cachefw` costs next to nothing, and a program that
# only looks at plugins never pays for links.
_HOMES = {
    "ABSENT_ID": "cache",
    "Access": "memory",
    "Allocation": "memory",
    "AuthenticationError": "errors",
    "BlocksCacheKey": "cache",
    "BrokenError": "errors",
    "BusyError": "errors",
    "Cache": "cache",
    "CacheDesc": "cache",
    "CacheError": "errors",
    "CacheKey": "cache",
    "CacheKeyByIdAndIndex": "cache",
    "CacheManager": "manager",
    "CacheTask": "tasks",
    "ClosedError": "errors",
    "DataType": "cache",
    "Finding": "rules",
    "LayerSynchronizer": "tasks",
    "Limits": "rules",
    "Link": "links.link",
    "LinkState": "links.link",
    "LinkTransfer": "links.transfers",
    "Memory": "registry",
    "MemoryKind": "memory",
    "MemoryRegion": "memory",
    "Node": "node",
    "NotFoundError": "errors",
    "Notification": "node",
    "Operation": "transport",
    "OutOfMemoryError": "errors",
    "Outcome": "rules",
    "Placement": "cache",
    "Plan": "rules",
    "PluginError": "errors",
    "PreparedTransfer": "links.transfers",
    "RegistrationError": "errors",
    "RequestError": "errors",
    "TransferCancelled": "errors",
    "TransferConfig": "tasks",
    "TransferReport": "reports",
    "TransferTimeout": "errors",
    "TransferWithCacheKeyConfig": "tasks",
    "TransportUnavailable": "errors",
    "UnsupportedOperation": "errors",
    "align_within": "memory",
    "aligned_empty": "memory",
    "hookimpl": "hookspecs",
}

__all__ = [  # noqa: RUF022 - kept beside the table above, which is sorted
    "ABSENT_ID",
    "Access",
    "Allocation",
    "AuthenticationError",
    "BlocksCacheKey",
    "BrokenError",
    "BusyError",
    "Cache",
    "CacheDesc",
    "CacheError",
    "CacheKey",
    "CacheKeyByIdAndIndex",
    "CacheManager",
    "CacheTask",
    "ClosedError",
    "DataType",
    "Finding",
    "LayerSynchronizer",
    "Limits",
    "Link",
    "LinkState",
    "LinkTransfer",
    "Memory",
    "MemoryKind",
    "MemoryRegion",
    "Node",
    "NotFoundError",
    "Notification",
    "Operation",
    "OutOfMemoryError",
    "Outcome",
    "Placement",
    "Plan",
    "PluginError",
    "PreparedTransfer",
    "RegistrationError",
    "RequestError",
    "TransferCancelled",
    "TransferConfig",
    "TransferReport",
    "TransferTimeout",
    "TransferWithCacheKeyConfig",
    "TransportUnavailable",
    "UnsupportedOperation",
    "align_within",
    "aligned_empty",
    "hookimpl",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
