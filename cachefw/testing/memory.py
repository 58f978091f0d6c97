"""A transport within one process, in Python alone: the contract's reference, and what the core's own tests run on.

Addresses are taken at face value and bytes are copied with numpy, so a wrong address crashes here as it would in a
native transport. What a native transport cannot do on purpose, this one can: fail at a chosen step
(`MemoryTransport.fail_next`) and hold transfers in flight (`MemoryTransport.pause`).
"""

from __future__ import annotations

import collections
import ctypes
import secrets
import struct
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cachefw.errors import (
    BrokenError,
    BusyError,
    CacheError,
    ClosedError,
    NotFoundError,
    OutOfMemoryError,
    RequestError,
    TransportUnavailable,
    UnsupportedOperation,
    refusal,
)
from cachefw.memory import Allocation, MemoryKind, MemoryRegion, aligned_empty
from cachefw.testing._channel import DESCRIPTION, DESCRIPTION_MAGIC, HeldMemory, MemoryChannel, MemoryTransfer
from cachefw.transport import Batch, Capability, Channel, Reach, RegisteredMemory, Session, Transport, TransportInfo

__all__ = ["MemoryChannel", "MemoryTransfer", "MemoryTransport"]

EVERYTHING = ~Capability.NONE
STEPS = ("open", "register", "unregister", "allocate", "connect", "attach", "prepare", "post", "move")

_CARD = struct.Struct("<8s16s")
_CARD_MAGIC = b"cfw-mem1"

# How peers find each other. Weak, so that a transport that was forgotten instead of closed is gone for its peers too.
_open: weakref.WeakValueDictionary[bytes, MemoryTransport] = weakref.WeakValueDictionary()
_open_lock = threading.Lock()


def _view(address: int, length: int) -> NDArray[np.uint8]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(address))


class MemoryTransport(Transport):
    """Moves host memory between transports of one process, with every capability of the contract.

    It offers what its `info` says and refuses the rest, so that a transport with fewer capabilities is one call away:
    ``MemoryTransport.info_named("reader", Capability.READ)``.

    Settings for `open`: ``background`` (bool, default False) gives each transfer a thread of its own; ``limit`` (bytes,
    default 4 GiB) is the most that `allocate` hands out at one time.
    """

    #: What `connect` and `Channel.post` make; a test that wants a faulty one derives from these.
    channel_type: ClassVar[type[MemoryChannel]] = MemoryChannel
    transfer_type: ClassVar[type[MemoryTransfer]] = MemoryTransfer

    def __init__(self) -> None:
        self.info = self.info_named()
        self._lock = threading.Lock()
        self._gate = threading.Condition()
        self._paused = False
        self._faults: dict[str, collections.deque[tuple[int, CacheError]]] = {}
        self._background = False
        self._limit = 0
        self._token: bytes | None = None
        self._registered: dict[bytes, MemoryRegion] = {}
        self._allocated: dict[int, tuple[NDArray[np.uint8], MemoryKind]] = {}
        self._channels: set[MemoryChannel] = set()

    @classmethod
    def info_named(
        cls,
        name: str = "memory",
        capabilities: Capability = EVERYTHING,
        kinds: Iterable[MemoryKind] = (MemoryKind.HOST,),
    ) -> TransportInfo:
        """What a plugin yields to offer this transport.

        Args:
            name: The transport's name.
            capabilities: What it is to offer.
            kinds: Memory it is to take. It is ordinary memory whatever it is called.
        """
        return TransportInfo(
            name=name,
            factory=cls,
            kinds=kinds,
            reach=Reach.PROCESS,
            capabilities=capabilities,
            summary="memory of this process, for tests",
        )

    def fail_next(self, step: str, *, after: int = 0, error: CacheError | None = None) -> None:
        """Make a step fail, once. Several orders for one step are carried out one after the other.

        Args:
            step: One of ``"open"``, ``"register"``, ``"unregister"``, ``"allocate"``, ``"connect"``, ``"attach"``,
                ``"prepare"``, ``"post"``, which count calls, or ``"move"``, which counts the pieces that are moved by
                transfers and by `copy`.
            after: How many are let through first.
            error: What is raised, or for ``"move"`` what the transfer settles with; by default the error class that the
                contract has for a runtime that refuses, with status 5. Items that it names in ``facts["failed"]``
                are kept, else the item is added.

        Thread safety: any thread.
        """
        if step not in STEPS:
            raise ValueError(f"no step {step!r}; the steps are {', '.join(STEPS)}")
        if error is None:
            family = {"open": TransportUnavailable, "allocate": OutOfMemoryError}.get(step, BrokenError)
            error = family(f"{step} fails on request", operation=step, transport=self.info.name, status=5)
        with self._lock:
            self._faults.setdefault(step, collections.deque()).append((after, error))

    def pause(self) -> None:
        """Hold the transfers that this transport posts from now on; each waits in a thread of its own.

        They go on at `resume`. Cancelling them, or closing the channel, settles them at once.

        Thread safety: any thread.
        """
        with self._gate:
            self._paused = True

    def resume(self) -> None:
        """Let what `pause` holds go on. Does nothing when nothing is held.

        Thread safety: any thread.
        """
        with self._gate:
            self._paused = False
            self._gate.notify_all()

    def probe(self) -> str | None:
        """Always there."""
        return None

    def open(self, settings: Mapping[str, Any]) -> None:
        """Become visible to peers."""
        if self._token is not None:
            raise BusyError("the transport is open already", operation="open", transport=self.info.name)
        known: dict[str, tuple[type, Any]] = {"background": (bool, False), "limit": (int, 2**32)}
        for name, value in settings.items():
            if name not in known:
                message = f"transport {self.info.name!r} has no setting {name!r}; it has {', '.join(known)}"
                raise refusal(RequestError, {ValueError}, message, operation="open", transport=self.info.name)
            if not isinstance(value, known[name][0]):
                message = f"setting {name!r} must be of type {known[name][0].__name__}, not {value!r}"
                raise refusal(RequestError, {TypeError}, message, operation="open", transport=self.info.name)
        self._step("open")
        self._background, self._limit = (settings.get(name, default) for name, (_, default) in known.items())
        token = secrets.token_bytes(16)
        with _open_lock:
            _open[token] = self
        self._token = token

    def close(self) -> None:
        """Close the channels, drop the registrations, and vanish for peers."""
        token, self._token = self._token, None
        if token is None:
            return
        with _open_lock:
            _open.pop(token, None)
        for channel in list(self._channels):
            channel.close()
        with self._lock:
            self._registered.clear()

    def register(self, region: MemoryRegion) -> RegisteredMemory:
        """Remember the region under a new token."""
        self._check_open("register")
        self._step("register")
        held = HeldMemory(region, self.info.name, secrets.token_bytes(16))
        with self._lock:
            self._registered[held.token] = region
        return held

    def unregister(self, registered: RegisteredMemory) -> None:
        """Forget the region."""
        self._check_open("unregister")
        self._step("unregister")
        with self._lock:
            known = isinstance(registered, HeldMemory) and self._registered.pop(registered.token, None) is not None
        if not known:
            message = f"{registered.region} is not registered here; it was given back or is another transport's"
            raise NotFoundError(message, operation="unregister", transport=self.info.name)

    def card(self) -> bytes:
        """The token that peers look for."""
        return _CARD.pack(_CARD_MAGIC, self._token or bytes(16))

    def describe(self, registered: RegisteredMemory) -> bytes:
        """The region's token and range."""
        region = registered.region
        token = registered.token if isinstance(registered, HeldMemory) else bytes(16)
        return DESCRIPTION.pack(DESCRIPTION_MAGIC, token, region.address, region.length)

    def connect(self, card: bytes, timeout: float, session: Session) -> Channel:
        """Find the peer with this card; never waits."""
        self._check_open("connect")
        self._step("connect")
        try:
            magic, token = _CARD.unpack(card)
        except struct.error as error:
            raise self._broken(f"the peer's card is malformed: {error}", "connect") from None
        if magic != _CARD_MAGIC:
            raise self._broken("the peer's card is malformed: it is not that of a memory transport", "connect")
        with _open_lock:
            peer = _open.get(token)
        if peer is None:
            raise self._broken("the peer is gone: no open transport of this process has that card", "connect")
        channel = self.channel_type(self, peer, token, session)
        self._channels.add(channel)
        return channel

    def identify(self, address: int, length: int) -> MemoryKind | None:
        """The kind of a range that lies in memory it made or holds."""
        self._require("identify", Capability.IDENTIFY)
        with self._lock:
            for region in self._registered.values():
                if region.address <= address and address + length <= region.end:
                    return region.kind
        for start, (array, kind) in self._allocated.copy().items():
            if start <= address and address + length <= start + array.nbytes:
                return kind
        return None

    def allocate(
        self, size: int, kind: MemoryKind, alignment: int, options: Mapping[str, Any] | None = None
    ) -> Allocation:
        """Make ordinary memory, counted against the setting ``limit``."""
        self._require("allocate", Capability.ALLOCATE)
        self._check_open("allocate")
        name = self.info.name
        if kind not in self.info.kinds:
            message = f"transport {name!r} does not allocate {kind} (Capability.ALLOCATE is for its own kinds)"
            raise UnsupportedOperation(message, operation="allocate", transport=name)
        if options:
            message = f"transport {name!r} has no allocation option {next(iter(options))!r}; it has none"
            raise refusal(RequestError, {ValueError}, message, operation="allocate", transport=name)
        self._step("allocate")
        with self._lock:
            left = self._limit - sum(array.nbytes for array, _ in self._allocated.copy().values())
            if size > left:
                message = f"{size:,} bytes asked for, {left:,} left of the limit of {self._limit:,} bytes"
                raise OutOfMemoryError(message, operation="allocate", transport=name)
            try:
                array = aligned_empty(size, alignment)
            except MemoryError as error:
                message = f"{size:,} bytes asked for, and the system has not that much: {error}"
                raise OutOfMemoryError(message, operation="allocate", transport=name) from None
            address = int(array.__array_interface__["data"][0])
            self._allocated[address] = array, kind
        return Allocation(address, size, kind, lambda: self._release(address))

    def copy(self, batch: Batch) -> None:
        """Copy piece by piece."""
        self._require("copy", Capability.COPY)
        self._check_open("copy")
        pieces = zip(batch.local.tolist(), batch.remote.tolist(), batch.length.tolist(), strict=True)
        for index, piece in enumerate(pieces):
            self._step("move", index)
            self._move_piece(*piece)

    def _move_piece(self, to: int, start: int, length: int) -> None:
        """Copy `length` bytes from the address `start` to the address `to`; the one place where bytes move."""
        np.copyto(_view(to, length), _view(start, length))

    def _release(self, address: int) -> None:
        # Without the lock: the garbage collector may call this in a thread that holds it.
        self._allocated.pop(address, None)

    def _step(self, step: str, index: int | None = None) -> None:
        if step not in self._faults:
            return
        with self._lock:
            orders = self._faults.get(step)
            if not orders:
                return
            after, error = orders[0]
            if after:
                orders[0] = (after - 1, error)
                return
            orders.popleft()
            if not orders:
                del self._faults[step]
        if index is not None:
            error.facts.setdefault("failed", (index,))
        raise error

    def _check_open(self, operation: str) -> None:
        if self._token is None:
            message = f"transport {self.info.name!r} is not open"
            raise ClosedError(message, operation=operation, transport=self.info.name)

    def _require(self, operation: str, ability: Capability) -> None:
        if ability not in self.info.capabilities:
            raise self._unsupported(operation, ability)

    def _broken(self, message: str, operation: str, index: int | None = None) -> BrokenError:
        facts = {} if index is None else {"failed": (index,)}
        return BrokenError(message, operation=operation, transport=self.info.name, facts=facts)
