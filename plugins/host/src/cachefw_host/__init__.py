"""Transport for host memory: shared mappings and cross-memory reads on one host, TCP streams between hosts.

Built twice from these sources, under two names; imports inside the package are therefore relative.
"""

from __future__ import annotations

from collections.abc import Iterable

from cachefw.catalog import Diagnostics
from cachefw.hookspecs import hookimpl
from cachefw.memory import MemoryKind
from cachefw.rules import Finding, Request
from cachefw.transport import Capability, Reach, TransportInfo

from .rules import RULES
from .transport import HostTransport

NAME = "host"


@hookimpl
def cachefw_transports() -> Iterable[TransportInfo]:
    """The one transport of this plugin."""
    yield TransportInfo(
        name=NAME,
        factory=HostTransport,
        kinds=frozenset({MemoryKind.HOST}),
        reach=Reach.NETWORK,
        capabilities=(
            Capability.READ
            | Capability.WRITE
            | Capability.COPY
            | Capability.ALLOCATE
            | Capability.CANCEL
            | Capability.LATE_REGISTRATION
        ),
        summary="host memory: shared mappings (shm) and cross-memory reads (cma) on one host, TCP (tcp) between hosts",
    )


@hookimpl
def cachefw_validate_memory(request: Request) -> Iterable[Finding]:
    """The rules of host memory."""
    return [finding for rule in RULES for finding in rule.run(request)]


@hookimpl
def cachefw_diagnostics() -> Diagnostics:
    """What is known about errors and machines."""
    from .diagnostics import DIAGNOSTICS

    return DIAGNOSTICS
