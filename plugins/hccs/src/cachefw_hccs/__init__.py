"""Transport for device memory of Huawei Ascend accelerators over HCCS, between processes of one server."""

from __future__ import annotations

from collections.abc import Iterable

from cachefw.catalog import Diagnostics
from cachefw.hookspecs import hookimpl
from cachefw.memory import MemoryKind
from cachefw.rules import Finding, Request
from cachefw.transport import Capability, Reach, Transport, TransportInfo

from .rules import RULES, Case
from .transport import HccsTransport

NAME = "hccs"


@hookimpl
def cachefw_transports() -> Iterable[TransportInfo]:
    """The one transport of this plugin."""
    yield TransportInfo(
        name=NAME,
        factory=HccsTransport,
        kinds=frozenset({MemoryKind.DEVICE}),
        reach=Reach.HOST,
        capabilities=(
            Capability.READ
            | Capability.WRITE
            | Capability.COPY
            | Capability.ALLOCATE
            | Capability.IDENTIFY
            | Capability.LATE_REGISTRATION
        ),
        summary="device memory of Ascend accelerators over HCCS, between processes of one server",
    )


@hookimpl
def cachefw_validate_memory(request: Request, transport: Transport | None) -> Iterable[Finding]:
    """The rules of HCCS memory on this machine, or on the one that the request names."""
    facts = transport.facts if isinstance(transport, HccsTransport) else None
    case = Case.of(request, facts)
    return [finding for rule in RULES for finding in rule.run(case)]


@hookimpl
def cachefw_diagnostics() -> Diagnostics:
    """What is known about errors and machines."""
    from .diagnostics import diagnostics

    return diagnostics()
