"""The testing kit for transports.

A transport's author subclasses `TransportTests` and gives it the transport's `TransportInfo`; `MemoryTransport` is a
transport within one process that passes the kit. Nothing here is loaded before it is asked for, so that
`MemoryTransport` can be used where pytest is not installed.

Examples:
    >>> import pytest
    >>> from cachefw.testing import MemoryTransport, TransportTests
    >>> class TestMemoryTransport(TransportTests):
    ...     @pytest.fixture
    ...     def transport_info(self):
    ...         return MemoryTransport.info_named()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cachefw.testing._bench import Bench, KitMemory
    from cachefw.testing.memory import MemoryTransport
    from cachefw.testing.suite import TransportMachine, TransportTests

__all__ = ["Bench", "KitMemory", "MemoryTransport", "TransportMachine", "TransportTests"]

_MODULES = {
    "Bench": "_bench",
    "KitMemory": "_bench",
    "MemoryTransport": "memory",
    "TransportMachine": "suite",
    "TransportTests": "suite",
}
_REWRITTEN = (
    "_bench",
    "_calls",
    "_capabilities",
    "_closing",
    "_contract",
    "_errors",
    "_faults",
    "_fixtures",
    "_lifecycle",
    "_machine",
    "_peers",
    "_registration",
    "_transfers",
)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name] != "memory":
        import pytest

        # The plugin's entry point does this too, but may be switched off; and a module that is imported is too late.
        pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _REWRITTEN))
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
