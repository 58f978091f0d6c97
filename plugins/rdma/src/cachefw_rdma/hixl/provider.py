"""HixlProvider: the device's NIC through HIXL's C interface. Unverified on hardware."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import msgspec

from cachefw.errors import (
    BrokenError,
    BusyError,
    CacheError,
    ClosedError,
    RequestError,
    TransportUnavailable,
    UnsupportedOperation,
    refusal,
)
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.transport import Batch, RegisteredMemory

from .. import envelope
from ..case import Machine
from ..profiles import Way
from .settings import ENDPOINT, SETTINGS, checked
from .status import TRANSPORT

if TYPE_CHECKING:
    from .channel import HixlChannel
    from .handles import Endpoint, Server
    from .library import Library

__all__ = ["VERIFIED", "Address", "HixlMemory", "HixlProvider"]

#: Whether this was ever run on an Ascend device.
VERIFIED = False

# Of what an address and a key mean; both ends need the same.
_VERSION = (1, 0)


class Address(msgspec.Struct, frozen=True, array_like=True):
    """Where a server is; what an `envelope.Card` carries."""

    ip: str
    port: int
    endpoint: tuple[str, str, str, int]


@attrs.define(eq=False)
class HixlMemory(RegisteredMemory):
    """A region that HIXL knows, by the name it is registered under."""

    tag: str = ""


class HixlProvider:
    """One server, which all peers' clients come to, and a client for each peer.

    HIXL wants memory registered before anyone connects, and unregistered after everyone has gone; both are refused here
    while a channel of this side is open. Peers that are connected to the server are not told to it by HIXL: the link's
    own rules keep that order.

    Thread safety: `open` and `close` are called by one thread, everything else by any.

    Args:
        bound: Makes a ``with`` block in whose thread the device's context is current. Every call of HIXL is made in
            one. By default that of the device, through ``cachefw-ascendcl``; nothing where there is no AscendCL.
    """

    name: ClassVar[str] = "hixl"
    settings: ClassVar[tuple[str, ...]] = tuple(SETTINGS)
    kinds: ClassVar[frozenset[MemoryKind]] = frozenset({MemoryKind.HOST, MemoryKind.PINNED, MemoryKind.DEVICE})
    verified: ClassVar[bool] = VERIFIED

    def __init__(self, bound: Callable[[], AbstractContextManager[Any]] | None = None) -> None:
        self._given = bound
        self._bound: Callable[[], AbstractContextManager[Any]] = bound or nullcontext
        self._machine: Machine | None = None
        self._nonce = b""
        self._here: Endpoint | None = None
        self._lock = threading.RLock()
        self._library: Library | None = None
        self._server: Server | None = None
        self._settings: dict[str, Any] = {}
        self._memory: dict[str, MemoryRegion] = {}
        self._channels: set[HixlChannel] = set()
        self._connecting = 0
        self._numbers = 0

    @property
    def library(self) -> Library | None:
        """The library that is open."""
        return self._library

    def probe(self) -> str | None:
        """None when HIXL can be loaded, else the reason in words."""
        try:
            from . import library
        except ImportError as error:
            return f"the native module of HIXL's binding cannot be loaded: {error}; install the distribution again"
        try:
            library.hold()
        except CacheError as failure:
            return str(failure)
        library.unhold()
        return None

    def open(self, settings: Mapping[str, Any]) -> None:
        """Load HIXL, make the server and let it listen.

        Args:
            settings: ``ip`` and ``port`` that peers dial on the host; the NIC's ``address``, ``protocol``,
                ``placement`` and ``device``, its number among those that this process sees; ``tc`` and ``sl`` of
                RoCE; ``backlog``.

        Raises:
            RequestError: A setting is unknown, missing or wrong.
            TransportUnavailable: HIXL is missing, or AscendCL is there and cannot be used.
            CacheError: HIXL refused.
        """
        chosen = checked(settings)
        try:
            from . import handles, library
        except ImportError as error:
            text = f"the native module of HIXL's binding cannot be loaded: {error}; install the distribution again"
            raise TransportUnavailable(text, operation="open", transport=TRANSPORT) from None
        with self._lock:
            if self._server is not None:
                raise BusyError("this provider is open already", operation="open", transport=TRANSPORT)
            told = handles.Endpoint(*(chosen[name] for name in ENDPOINT))
            told.native()
            server = None
            self._library = library.hold()
            try:
                here = attrs.evolve(told, device=self._enter_device(chosen))
                with self._bound():
                    server = handles.Server(here, chosen["ip"], chosen["port"])
                    server.listen(chosen["backlog"])
            except BaseException:
                if server is not None:
                    with self._bound():
                        server.close()
                self._leave_device()
                self._library = None
                library.unhold()
                raise
            self._here, self._settings, self._server = here, chosen, server
            self._nonce = secrets.token_bytes(8)

    def _enter_device(self, chosen: Mapping[str, Any]) -> int:
        """Make the device's context available; the physical number of the device."""
        number: int = chosen["device"]
        if self._given is not None or chosen["placement"] != "device":
            return number
        self._machine = Machine(device=number)
        if self._machine.obstacle:
            text = f"the device's NIC needs its runtime. {self._machine.obstacle}"
            raise TransportUnavailable(text, operation="open", transport=TRANSPORT)
        device = self._machine.device
        if device is None:
            return number
        self._bound = device.bound
        return int(device.physical_index())

    def _leave_device(self) -> None:
        machine, self._machine = self._machine, None
        self._bound = self._given or nullcontext
        if machine is not None:
            machine.close()

    @property
    def device(self) -> int:
        """The setting."""
        number: int = self._settings.get("device", 0)
        return number

    def ways(self, *, copies: bool) -> Way:
        """The device's NIC reads its memory itself."""
        return Way.DIRECT

    def close(self) -> None:
        """Close the channels and the server, and let the library go. Idempotent."""
        with self._lock:
            server, self._server = self._server, None
            channels = list(self._channels)
        for channel in channels:
            channel.close()
        if server is None:
            return
        from . import library

        try:
            with self._bound():
                server.close()
        except CacheError:
            # Destroyed all the same; there is nobody left who could do anything about it.
            pass
        finally:
            self._leave_device()
            self._memory.clear()
            self._library = None
            library.unhold()

    def register(self, region: MemoryRegion) -> HixlMemory:
        """Register with the server, and with every client that is made later.

        Raises:
            UnsupportedOperation: A channel is open.
            CacheError: HIXL refused.
        """
        with self._lock:
            server = self._opened("register")
            if self._channels or self._connecting:
                raise UnsupportedOperation(
                    f"{region}: HIXL takes no memory once a peer is linked ({len(self._channels)} channels are open); "
                    "register before linking",
                    operation="register",
                    transport=TRANSPORT,
                )
            self._numbers += 1
            tag = f"cachefw-{self._numbers}"
            with self._bound():
                server.register(tag, region)
            self._memory[tag] = region
        return HixlMemory(region, TRANSPORT, tag)

    def unregister(self, registered: RegisteredMemory) -> None:
        """Give it back.

        Raises:
            BusyError: A channel is open, whose client has the memory registered too.
            CacheError: HIXL refused; the memory is still registered.
        """
        tag = _tag(registered)
        with self._lock:
            server = self._opened("unregister")
            if self._channels or self._connecting:
                raise BusyError(
                    f"{registered.region}: HIXL keeps memory until its peers are gone ({len(self._channels)} channels "
                    "are open); unlink first",
                    operation="unregister",
                    transport=TRANSPORT,
                )
            with self._bound():
                server.unregister(tag)
            self._memory.pop(tag, None)

    def nics(self) -> int:
        """No verbs device: it uses the network port of the accelerator itself."""
        return 0

    def held(self) -> dict[str, int | str]:
        """What `cachefw_rdma.hixl.rules.check` wants to know of an open provider."""
        with self._lock:
            regions = list(self._memory.values())
        return {
            "regions": len(regions),
            "device_bytes": sum(region.length for region in regions if region.kind is MemoryKind.DEVICE),
            "placement": self._settings["placement"],
            "protocol": self._settings["protocol"],
        }

    def card(self) -> bytes:
        """How peers reach this server."""
        self._opened("card")
        here, own = self._here, self._settings
        assert here is not None  # noqa: S101
        endpoint = (here.address, here.protocol, here.placement, here.device)
        address = msgspec.msgpack.encode(Address(own["ip"], own["port"], endpoint))
        return envelope.seal(envelope.Card(self.name, _VERSION, self._nonce, address, beacon=0, key=b""))

    def describe(self, registered: RegisteredMemory) -> bytes:
        """The name that the memory has with HIXL."""
        region, tag = registered.region, _tag(registered)
        return envelope.seal(envelope.Description(self._nonce, region.address, region.length, tag.encode()))

    def connect(self, card: bytes, timeout: float) -> HixlChannel:
        """Make a client, give it all memory, and connect it to the peer's server.

        Raises:
            BrokenError: The card makes no sense, or the peer is gone.
            UnsupportedOperation: The peer uses another provider, or another version of this one.
            TransferTimeout: It took longer than `timeout` seconds.
        """
        nonce, peer = _peer(card)
        with self._lock:
            self._opened("connect")
            memory, here, own = dict(self._memory), self._here, self._settings
            self._connecting += 1
        from . import channel, handles

        client = None
        try:
            assert here is not None  # noqa: S101
            there = handles.Endpoint(*peer.endpoint)
            try:
                there.native()
            except RequestError as wrong:
                raise _malformed(str(wrong)) from None
            with self._bound():
                client = handles.Client(here, there, peer.ip, peer.port, own["tc"], own["sl"])
                for tag, region in memory.items():
                    client.register(tag, region)
                client.connect(timeout)
                remote = client.remote_memory(timeout)
            made = channel.HixlChannel(client, remote, nonce, self._bound, self._forget)
            with self._lock:
                self._channels.add(made)
                closed = self._server is None
            if closed:
                made.close()
                raise _closed("connect")
            return made
        except BaseException:
            if client is not None and not client.closed:
                with self._bound():
                    _drop(client)
            raise
        finally:
            with self._lock:
                self._connecting -= 1

    def copy(self, batch: Batch) -> None:
        """Nothing that HIXL does.

        Raises:
            UnsupportedOperation: Always.
        """
        raise UnsupportedOperation(
            f"HIXL copies nothing within a process ({len(batch)} pieces); copy with numpy, with the device's "
            "own runtime, or over a transport with provider='ucx'",
            operation="copy",
            transport=TRANSPORT,
        )

    def _forget(self, channel: HixlChannel) -> None:
        with self._lock:
            self._channels.discard(channel)

    def _opened(self, operation: str) -> Server:
        if self._server is None:
            raise _closed(operation)
        return self._server


def _closed(operation: str) -> CacheError:
    return ClosedError(f"{operation}: the HIXL provider is not open", operation=operation, transport=TRANSPORT)


def _drop(client: Any) -> None:
    """Destroy a client that could not be used; the first failure is the one to be told."""
    try:
        client.close()
    except CacheError:
        return


def _tag(registered: RegisteredMemory) -> str:
    if not isinstance(registered, HixlMemory):
        raise refusal(RequestError, {TypeError}, f"{registered!r} was not registered by this provider")
    return registered.tag


def _malformed(words: str) -> CacheError:
    text = f"the peer's card makes no sense to the HIXL provider: {words}"
    return BrokenError(text, code="card.malformed", operation="connect", transport=TRANSPORT)


def _peer(data: bytes) -> tuple[bytes, Address]:
    card = envelope.open_card(data)
    if card.provider != HixlProvider.name or tuple(card.version) != _VERSION:
        here, there = (".".join(map(str, version)) for version in (_VERSION, card.version))
        raise UnsupportedOperation(
            f"the peer uses provider {card.provider!r} of version {there} and this end {HixlProvider.name!r} of "
            f"version {here}; give both the same setting provider, and the same cachefw-rdma",
            code="peer.unreachable",
            operation="connect",
            transport=TRANSPORT,
        )
    try:
        return card.nonce, msgspec.msgpack.decode(card.address, type=Address)
    except msgspec.MsgspecError as error:
        raise _malformed(str(error)) from None
