"""RdmaTransport: what the core sees, over one of the providers."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from cachefw.errors import CacheError, ClosedError, RequestError, TransportUnavailable, refusal
from cachefw.memory import MemoryRegion
from cachefw.rules import Finding, Request
from cachefw.transport import Batch, Channel, RegisteredMemory, Session, Transport

from . import rules
from .case import Machine, Setup
from .descriptors import check_descriptors
from .profiles import choose
from .provider import DEFAULT, Provider, make_provider, own_findings
from .status import TRANSPORT

__all__ = ["RdmaTransport"]

_OWN = ("provider", "profile")


class RdmaTransport(Transport):
    """Memory over RDMA network cards; over tcp and shared memory where UCX has no card to use.

    Settings:
        provider: ``"ucx"`` (default): the host's cards, by UCX. ``"hixl"``: the cards of Ascend devices.
        profile: Which machine the rules of memory are to assume; default: this one.

    Further settings are the provider's: see `cachefw_rdma.ucx.UcxProvider`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._provider: Provider | None = None
        self._machine: Machine | None = None
        self._profile: str | None = None

    @property
    def provider(self) -> Provider | None:
        """What moves the bytes, while it is open."""
        return self._provider

    def probe(self) -> str | None:
        """Whether the default provider's runtime is there."""
        return make_provider(DEFAULT).probe()

    def open(self, settings: Mapping[str, Any]) -> None:
        """Open the provider."""
        provider = make_provider(settings.get("provider", DEFAULT))
        unknown = sorted(set(settings) - {*_OWN, *provider.settings})
        if unknown:
            known = ", ".join((*_OWN, *provider.settings))
            raise refusal(
                RequestError,
                {ValueError},
                f"transport {TRANSPORT!r} with provider {provider.name!r} has no setting {', '.join(unknown)}; it has "
                f"{known}",
                operation="open",
                transport=TRANSPORT,
            )
        self._profile = _checked_profile(settings.get("profile"))
        reason = provider.probe()
        if reason:
            raise TransportUnavailable(reason, operation="open", transport=TRANSPORT)
        check_descriptors("open")
        provider.open({name: value for name, value in settings.items() if name not in _OWN})
        self._provider = provider

    def close(self) -> None:
        """Close the provider, and its channels with it."""
        with self._lock:
            provider, self._provider = self._provider, None
            machine, self._machine = self._machine, None
        if provider is not None:
            provider.close()
        if machine is not None:
            machine.close()

    def validate(self, request: Request) -> list[Finding]:
        """What the rules say of memory, for this machine and the open provider."""
        provider = self._open("validate")
        machine = self._known_machine(provider)
        setup = Setup(
            runtime=machine.runtime,
            obstacle=machine.obstacle,
            profile=self._profile,
            nics=provider.nics(),
            ways=provider.ways(copies=machine.device is not None),
        )
        return [*rules.check(request, setup), *own_findings(provider, request, setup)]

    def _known_machine(self, provider: Provider) -> Machine:
        with self._lock:
            if self._machine is None:
                self._machine = Machine(device=provider.device)
            return self._machine

    @property
    def profile(self) -> str:
        """The name of the profile whose rules hold, while it is open."""
        machine = self._known_machine(self._open("profile"))
        return choose(machine.runtime, self._profile, machine.obstacle).profile.name

    def register(self, region: MemoryRegion) -> RegisteredMemory:
        """Make it known to the network card."""
        return self._open("register").register(region)

    def unregister(self, registered: RegisteredMemory) -> None:
        """Take it back from the network card; closing the transport has done so already."""
        if self._provider is not None:
            self._provider.unregister(registered)

    def card(self) -> bytes:
        """How peers reach this transport."""
        return self._open("card").card()

    def describe(self, registered: RegisteredMemory) -> bytes:
        """What a peer needs to use this memory."""
        return self._open("describe").describe(registered)

    def connect(self, card: bytes, timeout: float, session: Session) -> Channel:
        """Connect, and wait until the peer answers.

        The session is not used: neither UCX nor HIXL has a way to authenticate an endpoint, see the README.
        """
        provider = self._open("connect")
        check_descriptors("connect")
        return provider.connect(card, timeout)

    def copy(self, batch: Batch) -> None:
        """Copy within this process."""
        self._open("copy").copy(batch)

    @property
    def remark(self) -> str:
        """Says so when the devices are those of a simulator."""
        with self._lock:
            return "SIMULATED" if self._machine is not None and self._machine.simulated else ""

    def _open(self, operation: str) -> Provider:
        provider = self._provider
        if provider is None:
            raise _closed(operation)
        return provider


def _closed(operation: str) -> CacheError:
    return ClosedError(f"{operation}: this transport is not open", operation=operation, transport=TRANSPORT)


def _checked_profile(profile: object) -> str | None:
    if profile is not None and not isinstance(profile, str):
        raise refusal(
            RequestError,
            {TypeError},
            f"profile must be the name of a profile, not {profile!r}",
            operation="open",
            transport=TRANSPORT,
        )
    return profile
