"""The transport ``files``: memory that peers reach lies in files of a directory that all of them see."""

from __future__ import annotations

from collections.abc import Iterable

from cachefw.hookspecs import hookimpl
from cachefw.memory import MemoryKind
from cachefw.rules import Finding, Outcome, Request
from cachefw.transport import Capability, Reach, Transport, TransportInfo

from .transport import NAME, FilesTransport


@hookimpl
def cachefw_transports() -> Iterable[TransportInfo]:
    """Offer the transport."""
    yield TransportInfo(
        name=NAME,
        factory=FilesTransport,
        kinds={MemoryKind.HOST},
        reach=Reach.NETWORK,
        capabilities=Capability.READ
        | Capability.WRITE
        | Capability.ALLOCATE
        | Capability.CANCEL
        | Capability.LATE_REGISTRATION,
        summary="host memory kept in files of a shared directory, read and written there by peers",
    )


@hookimpl
def cachefw_validate_memory(request: Request, transport: Transport | None) -> Iterable[Finding]:
    """What peers are to reach has to be in a file."""
    rule, source = "files.allocated", "cachefw-files"
    if not request.remote_accessible:
        yield Finding(rule, Outcome.OK, "peers do not reach it, so that it may lie anywhere", source=source)
        return
    if not isinstance(transport, FilesTransport):
        fix = "plan with the transport open"
        yield Finding(rule, Outcome.NOT_CHECKED, "the transport is not open", fix=fix, source=source)
        return
    loose = [(i, r) for i, r in zip(request.indices, request.regions, strict=True) if transport.holding(r) is None]
    for index, region in loose:
        yield Finding(
            rule,
            Outcome.REFUSED,
            f"{request.place(index)} {region} is to be reached by peers and lies in no file of this transport",
            index=index,
            address=region.address,
            length=region.length,
            fix=f"take it from allocate(size, transport={NAME!r}); what only pulls and spills may be any memory",
            source=source,
        )
    if not loose:
        yield Finding(rule, Outcome.OK, "it lies in files of this transport", source=source)
