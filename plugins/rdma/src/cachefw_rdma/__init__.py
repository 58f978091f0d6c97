"""Transport over RDMA network cards with UCX; over tcp and shared memory where there is no card."""

from __future__ import annotations

from collections.abc import Iterable

from cachefw.catalog import Diagnostics
from cachefw.hookspecs import hookimpl
from cachefw.memory import MemoryKind
from cachefw.rules import Finding, Request
from cachefw.transport import Capability, Option, Reach, Transport, TransportInfo

from . import rules
from .case import Machine, Setup
from .transport import RdmaTransport

NAME = "rdma"


@hookimpl
def cachefw_transports() -> Iterable[TransportInfo]:
    """The one transport of this plugin."""
    yield TransportInfo(
        name=NAME,
        factory=RdmaTransport,
        kinds=frozenset({MemoryKind.HOST, MemoryKind.PINNED, MemoryKind.DEVICE}),
        reach=Reach.NETWORK,
        capabilities=(
            Capability.READ | Capability.WRITE | Capability.COPY | Capability.CANCEL | Capability.LATE_REGISTRATION
        ),
        summary="host memory over RDMA network cards (RoCE, InfiniBand) by UCX, and device memory through it; tcp and "
        "shared memory without a card",
        options=(
            Option("--ucx-tls", "tls", "LIST", "UCX's transports, as in UCX_TLS: rc_v, or tcp, or posix,cma,self."),
            Option("--net-device", "net_devices", "NAME", "The card, as in UCX_NET_DEVICES: mlx5_0:1, or eth0."),
        ),
    )


@hookimpl
def cachefw_validate_memory(request: Request, transport: Transport | None) -> Iterable[Finding]:
    """The rules of memory for RDMA, by profile."""
    if isinstance(transport, RdmaTransport):
        return transport.validate(request)
    if request.dry:
        return rules.check(request, Setup(dry=True, page=4096))
    with Machine() as machine:
        return rules.check(request, Setup(runtime=machine.runtime, obstacle=machine.obstacle))


@hookimpl
def cachefw_diagnostics() -> Diagnostics:
    """What is known about errors and machines."""
    from .diagnostics import diagnostics

    return diagnostics()
