"""The provider ``ucx``: memory over the host's network cards, by UCX; device memory through host memory."""

from __future__ import annotations

import ctypes
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from cachefw.errors import (
    BrokenError,
    CacheError,
    ClosedError,
    RequestError,
    TransferTimeout,
    TransportUnavailable,
    UnsupportedOperation,
    refusal,
)
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.transport import Batch, RegisteredMemory

from . import envelope
from .case import Machine, verbs_devices
from .channel import UcxChannel
from .engine import Engine
from .keys import fits
from .library import Library, open_library
from .profiles import Way
from .settings import ERROR_MODES, WITHOUT_CARDS, Settings, checked, refused
from .staging import Stage, no_device
from .status import TRANSPORT, connect_error, register_error

__all__ = ["UcxMemory", "UcxProvider"]


@attrs.define(eq=False)
class UcxMemory(RegisteredMemory):
    """A registered region.

    Attributes:
        handle: The native side's, given back by `UcxProvider.unregister`; None for device memory that is staged.
        key: What a peer needs; empty for memory that only this end can use.
    """

    handle: Any
    key: bytes


class UcxProvider:
    """UCX.

    Settings:
        tls: UCX's transports, as in ``UCX_TLS``: ``"rc_v"``, ``"tcp"``, ``"posix,cma,self"``; default: the
            environment's or UCX's choice.
        net_devices: The cards, as in ``UCX_NET_DEVICES``: ``"mlx5_0:1"``, ``"eth0"``; default as above.
        inflight: How many requests of one transfer UCX works on at a time, 1 to 4096; default 64, or 16 over shared
            memory alone.
        error_mode: Whether UCX watches over peers. ``"peer"``: yes, so that a peer's death ends transfers; over
            transports that can alone: cards, tcp, and shared memory where `tls` names nothing else. ``"none"``: no,
            which lets UCX use all. ``"auto"`` (default): yes where it can with `tls`.
        device: Number of the device whose runtime is asked and copies; default 0.
        staging_bytes: Host memory that device memory is staged through, at most: 8 buffers, made when they are needed.
        peer_memory: True declares that the cards read device memory themselves, by the driver's peer-memory module:
            it is registered as it is, and nothing is staged. Over cards alone; unverified on hardware.

    Every other setting of UCX is taken from its environment variables.
    """

    name: ClassVar[str] = "ucx"
    settings: ClassVar[tuple[str, ...]] = tuple(field.name for field in attrs.fields(Settings))
    kinds: ClassVar[frozenset[MemoryKind]] = frozenset({MemoryKind.HOST, MemoryKind.PINNED, MemoryKind.DEVICE})

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._library: Library | None = None
        self._channels: weakref.WeakSet[UcxChannel] = weakref.WeakSet()
        self._settings = Settings()
        self._machine: Machine | None = None
        self._stage: Stage | None = None
        self._nonce = b""
        self._card = b""

    @property
    def library(self) -> Library | None:
        """The UCX in use, once it was probed."""
        return self._library

    def probe(self) -> str | None:
        """Load the native module and UCX."""
        try:
            from . import _native  # noqa: F401 - whether it is there
        except ImportError as error:
            return f"the native module cannot be loaded: {error}; install the distribution again"
        try:
            self._library = open_library()
        except TransportUnavailable as error:
            return str(error)
        return None

    def open(self, settings: Mapping[str, Any]) -> None:
        """Start a UCX worker and the thread that keeps it going."""
        self._settings = checked(settings)
        self._check_peer_memory()
        assert self._library is not None, "probe comes first"  # noqa: S101
        with self._settings.environment():
            self._engine = Engine(self._library, self._settings.ucx(), *self._settings.flow)
        self._nonce = secrets.token_bytes(16)
        self._beacon = ctypes.create_string_buffer(self._nonce, len(self._nonce))
        address = ctypes.addressof(self._beacon)
        try:
            handle, key = self._engine.register(address, len(self._nonce))
        except CacheError:
            self._engine.close()
            raise
        self._engine.kept += [self._beacon, handle]
        # A release that lays its keys out otherwise must not have them refused.
        self._engine.checks_keys = fits(key)
        self._card = envelope.seal(
            envelope.Card(self.name, self._version(), self._nonce, self._engine.address, address, key)
        )

    def close(self) -> None:
        """Close the channels, then the worker."""
        with self._lock:
            engine, self._engine = self._engine, None
            stage, self._stage = self._stage, None
            machine, self._machine = self._machine, None
        for channel in list(self._channels):
            channel.close()
        if engine is not None:
            engine.close()
        # After the engine, which settles whatever its threads still wait for.
        if stage is not None:
            stage.close()
        if machine is not None:
            machine.close()

    def register(self, region: MemoryRegion) -> UcxMemory:
        """Map the region into UCX, which pins it where a card is used; device memory is noted, and staged."""
        engine = self._opened("register")
        if region.kind is MemoryKind.DEVICE and not self._settings.peer_memory:
            self._staged(str(region)).add(region)
            return UcxMemory(region, TRANSPORT, None, b"")
        handle, key = engine.register(region.address, region.length)
        if len(key) > envelope.MOST - 128:
            engine.unregister(handle)
            raise register_error(-21, f"its key has {len(key)} bytes", region.address, region.length)
        return UcxMemory(region, TRANSPORT, handle, key)

    def unregister(self, registered: RegisteredMemory) -> None:
        """Take it out of UCX."""
        memory = _own(registered)
        engine = self._engine
        if engine is None:
            return
        if memory.handle is None:
            self._staged(str(memory.region)).remove(memory.region)
            return
        status = engine.unregister(memory.handle)
        if status:
            raise register_error(status, engine.text(status), memory.region.address, memory.region.length)

    def card(self) -> bytes:
        """The worker's address, and where the nonce lies."""
        self._opened("card")
        return self._card

    def describe(self, registered: RegisteredMemory) -> bytes:
        """Where the region lies, and its key."""
        memory = _own(registered)
        return envelope.seal(envelope.Description(self._nonce, memory.region.address, memory.region.length, memory.key))

    def connect(self, card: bytes, timeout: float) -> UcxChannel:
        """Connect to the peer's worker."""
        peer = envelope.open_card(card)
        engine = self._opened("connect")
        if peer.provider != self.name:
            raise UnsupportedOperation(
                f"the peer's cards are driven by {peer.provider!r} and this end's by {self.name!r}; give both the same "
                "setting provider",
                code="peer.unreachable",
                operation="connect",
                transport=TRANSPORT,
            )
        if tuple(peer.version) != self._version():
            here, there = (".".join(map(str, version)) for version in (self._version(), peer.version))
            raise BrokenError(
                f"the peer uses UCX {there} and this end UCX {here}; addresses and keys of one mean nothing to the "
                "other. Install the same release at both ends, or name one with CACHEFW_UCX",
                code="peer.version",
                operation="connect",
                transport=TRANSPORT,
                facts={"here": here, "there": there},
            )
        end = time.monotonic() + timeout
        kept = engine.reuse(peer.address)
        while True:
            status, handle = (
                (0, kept) if kept else engine.connect(peer.address, ERROR_MODES.index(self._settings.error_mode))
            )
            if handle is None:
                raise connect_error(status, engine.text(status), timeout)
            channel = UcxChannel(engine, handle, peer, self._settings.tls or "", lambda: self._stage)
            self._channels.add(channel)
            try:
                error = channel.greet(end - time.monotonic(), timeout)
                if error is None and self._engine is None:
                    error = _closed("connect")
            except BaseException:
                channel.close()
                raise
            if error is None:
                return channel
            channel.close()
            if not kept or isinstance(error, TransferTimeout):
                raise error
            # What was kept is of no use any more; a new connection may be.
            kept = None

    def copy(self, batch: Batch) -> None:
        """Copy within this process, without UCX; by the device's runtime where this process uses one."""
        engine = self._opened("copy")
        # Whatever made device memory here has loaded one of these.
        loaded = not {"cachefw_ascendcl", "torch_npu"}.isdisjoint(sys.modules)
        if self._stage is not None or (loaded and self._opened_machine().device is not None):
            self._staged("what is to be copied").copy(batch)
        else:
            engine.copy(batch)

    def held(self) -> dict[str, int | str]:
        """Nothing: it has no rules of its own."""
        return {}

    @property
    def device(self) -> int:
        """The setting."""
        return self._settings.device

    def ways(self, *, copies: bool) -> Way:
        """As declared, else staged where there is a runtime to copy it."""
        if self._settings.peer_memory:
            return Way.PEER
        return Way.STAGED if copies else Way.NONE

    def nics(self) -> int | None:
        """As the settings `tls` and `net_devices` say, or the environment; None where UCX may take one or leave it."""
        names = self._settings.tls or os.environ.get("UCX_TLS", "")
        if names and set(names.split(",")) <= WITHOUT_CARDS:
            return 0
        wanted = self._settings.net_devices or os.environ.get("UCX_NET_DEVICES", "all")
        here = set(verbs_devices())
        used = here if wanted == "all" else here & {device.partition(":")[0] for device in wanted.split(",")}
        return len(used) if names or not used else None

    def _version(self) -> tuple[int, int]:
        assert self._library is not None, "probe comes first"  # noqa: S101
        return self._library.version[:2]

    def _opened_machine(self) -> Machine:
        with self._lock:
            if self._machine is None:
                self._machine = Machine(device=self._settings.device)
            return self._machine

    def _staged(self, what: str) -> Stage:
        """The stage, made when it is first needed."""
        engine, machine = self._opened("register"), self._opened_machine()
        with self._lock:
            if self._stage is None:
                if machine.device is None:
                    raise no_device(what, machine.obstacle)
                self._stage = Stage(engine, machine.device, self._settings.staging_bytes)
            return self._stage

    def _check_peer_memory(self) -> None:
        if self._settings.peer_memory and self.nics() == 0:
            with Machine(device=self._settings.device) as machine:
                if not machine.simulated:
                    raise refused(
                        "peer_memory needs a network card that reads device memory, and none is used: without one the "
                        "CPU would have to. Name cards in tls and net_devices, or leave peer_memory out"
                    )

    def _opened(self, operation: str) -> Engine:
        engine = self._engine
        if engine is None:
            raise _closed(operation)
        return engine


def _closed(operation: str) -> CacheError:
    return ClosedError(f"{operation}: this transport is not open", operation=operation, transport=TRANSPORT)


def _own(registered: RegisteredMemory) -> UcxMemory:
    if not isinstance(registered, UcxMemory):
        raise refusal(RequestError, {TypeError}, f"{registered!r} was not registered by this transport")
    return registered
