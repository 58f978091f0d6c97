"""The seam between the transport and what moves the bytes: UCX on host cards, HIXL on device cards."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from cachefw.errors import RequestError, TransportUnavailable, refusal
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.rules import Finding, Request
from cachefw.transport import Batch, Channel, RegisteredMemory

from .case import Setup
from .profiles import Way
from .status import TRANSPORT

__all__ = ["CHECKS", "DEFAULT", "PROVIDERS", "Provider", "make_provider", "own_findings"]

DEFAULT = "ucx"

#: Where each provider is, ``module:class``; imported when it is asked for.
PROVIDERS: dict[str, str] = {"ucx": "cachefw_rdma.ucx:UcxProvider", "hixl": "cachefw_rdma.hixl:HixlProvider"}
#: Where a provider has rules beyond those of all RDMA memory: called with the request, the setup, and `Provider.held`.
CHECKS: dict[str, str] = {"hixl": "cachefw_rdma.hixl.rules:check"}


class Provider(Protocol):
    """What a provider implements: the methods of `cachefw.transport.Transport`, with the same promises.

    Made without arguments by each opening of the transport. What it refuses is an error with the transport's name.

    Attributes:
        name: The value of the setting ``provider``.
        settings: The settings it knows, besides ``provider``.
        kinds: Memory it can register; at most what the plugin announces.
    """

    name: ClassVar[str]
    settings: ClassVar[tuple[str, ...]]
    kinds: ClassVar[frozenset[MemoryKind]]

    def probe(self) -> str | None:
        """None when the runtime is there, else the reason in words. Takes nothing, raises nothing."""

    def open(self, settings: Mapping[str, Any]) -> None:
        """Take resources. Every name in `settings` is one of `settings`; the values are the provider's to check."""

    def close(self) -> None:
        """Give everything back, channels included. Idempotent, raises nothing."""

    def register(self, region: MemoryRegion) -> RegisteredMemory:
        """See `Transport.register`."""

    def unregister(self, registered: RegisteredMemory) -> None:
        """See `Transport.unregister`."""

    def card(self) -> bytes:
        """See `Transport.card`. Sealed (`envelope.seal`), with the provider's name inside."""

    def describe(self, registered: RegisteredMemory) -> bytes:
        """See `Transport.describe`. Sealed."""

    def connect(self, card: bytes, timeout: float) -> Channel:
        """See `Transport.connect`. Refuses the card of another provider."""

    def copy(self, batch: Batch) -> None:
        """See `Transport.copy`."""

    def held(self) -> Mapping[str, int | str]:
        """What its rules want to know of it, while it is open."""

    @property
    def device(self) -> int:
        """Number of the device of which the rules, and its copies, ask the runtime."""

    def ways(self, *, copies: bool) -> Way:
        """What it does for device memory; `copies` says whether there is a runtime that copies it."""

    def nics(self) -> int | None:
        """How many verbs devices it may use, 0 for none; None when that is not known."""


def own_findings(provider: Provider, request: Request, setup: Setup) -> list[Finding]:
    """What a provider's own rules say; nothing where it has none."""
    if provider.name not in CHECKS:
        return []
    module, _, attribute = CHECKS[provider.name].partition(":")
    found: list[Finding] = getattr(importlib.import_module(module), attribute)(request, setup, **provider.held())
    return found


def make_provider(name: object) -> Provider:
    """A provider, unopened.

    Raises:
        RequestError: There is none of that name.
        TransportUnavailable: It is not in this installation.
    """
    if not isinstance(name, str) or name not in PROVIDERS:
        raise refusal(
            RequestError,
            {ValueError},
            f"provider must be one of {', '.join(PROVIDERS)}, not {name!r}",
            operation="open",
            transport=TRANSPORT,
        )
    module, _, attribute = PROVIDERS[name].partition(":")
    try:
        made: Provider = getattr(importlib.import_module(module), attribute)()
    except ImportError as error:
        raise TransportUnavailable(
            f"the provider {name!r} cannot be loaded: {error}; install the distribution again",
            operation="open",
            transport=TRANSPORT,
        ) from error
    return made
