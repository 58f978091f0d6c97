"""HccsTransport: one device of this process, its exported memory, and local copies to and from it."""

from __future__ import annotations

import functools
import secrets
import threading
import weakref
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import numpy as np

from cachefw.errors import (
    BrokenError,
    CacheError,
    ClosedError,
    RequestError,
    TransportUnavailable,
    UnsupportedOperation,
    refusal,
)
from cachefw.memory import Allocation, MemoryKind, MemoryRegion
from cachefw.transport import Batch, RegisteredMemory, Transport
from cachefw.transport import Session as LinkSession

from .channel import Card, Description, HccsChannel
from .lanes import Lanes
from .rules import Pointer
from .session import Session
from .status import TRANSPORT, close_all, named

if TYPE_CHECKING:
    from cachefw_ascendcl import Device, IpcKey

__all__ = ["HccsTransport"]

_SETTINGS = ("device", "any_process")
HUGE_PAGE = 2 * 2**20


@attrs.define(eq=False)
class HccsMemory(RegisteredMemory):
    """A region that other processes may import."""

    key: IpcKey


class HccsTransport(Transport):
    """Device memory over HCCS.

    Settings:
        device: Number of the device among those that this process sees; default 0.
        any_process: True exports memory without a list of processes that may import it. By default only linked peers
            may; the runtime takes at most 31 of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._lanes: Lanes | None = None
        self._soc: str | None = None
        # Tells transports of one process apart.
        self._nonce = secrets.token_bytes(8)
        self._any_process = False
        self._simulated = False
        self._registered: set[HccsMemory] = set()
        # How many channels lead to each process.
        self._peers: Counter[int] = Counter()
        self._channels: weakref.WeakSet[HccsChannel] = weakref.WeakSet()

    # ------------------------------------------------------------------ life

    def probe(self) -> str | None:
        """None when an AscendCL library can be opened, else every place that was looked at."""
        try:
            from cachefw_ascendcl import Runtime
        except ImportError as error:
            return f"cachefw-ascendcl cannot be imported: {error}; pip install cachefw-ascendcl"
        try:
            with Runtime() as runtime:
                self._simulated = runtime.library.is_simulator
        except CacheError as error:
            return str(error)
        return None

    def open(self, settings: Mapping[str, Any]) -> None:
        """Take the device."""
        index, self._any_process = _checked(settings)
        try:
            # Read once, here: `card` may not fail.
            _host_identity()
        except OSError as error:
            raise TransportUnavailable(
                f"the host's identity cannot be read: {error}",
                operation="open",
                transport=TRANSPORT,
                status=error.errno,
                detail=str(error),
            ) from None
        with named("open"):
            self._session = Session(index)
        self._lanes = Lanes(self._session.device)
        self._soc = self._session.soc
        self._simulated = self._session.runtime.library.is_simulator

    def close(self) -> None:
        """Close the channels, withdraw every key, and let go of the device."""
        with self._lock:
            session, self._session = self._session, None
            lanes, self._lanes = self._lanes, None
            registered, self._registered = self._registered, set()
        for channel in list(self._channels):
            channel.close()
        close_all([memory.key for memory in registered])
        if lanes is not None:
            lanes.close()
        if session is not None:
            session.leave()

    def _opened(self, operation: str) -> Session:
        if self._session is None:
            raise ClosedError(f"{operation}: this transport is not open", operation=operation, transport=TRANSPORT)
        return self._session

    # ------------------------------------------------------------------ memory

    def register(self, region: MemoryRegion) -> HccsMemory:
        """Export it; the peers that are connected may import it."""
        device = self._opened("register").device
        with named("register"):
            key = device.export(region.address, region.length, any_process=self._any_process)
            memory = HccsMemory(region, TRANSPORT, key)
            with self._lock:
                try:
                    if self._peers and not self._any_process:
                        key.allow(list(self._peers))
                except BaseException:
                    close_all([key])
                    raise
                self._registered.add(memory)
        return memory

    def unregister(self, registered: RegisteredMemory) -> None:
        """Withdraw the key."""
        self._opened("unregister")
        if not isinstance(registered, HccsMemory):
            raise refusal(RequestError, {TypeError}, f"{registered!r} was not registered by this transport")
        with named("unregister"):
            registered.key.close()
        with self._lock:
            self._registered.discard(registered)

    def describe(self, registered: RegisteredMemory) -> bytes:
        """The key, by which a peer imports it."""
        if not isinstance(registered, HccsMemory):
            raise refusal(RequestError, {TypeError}, f"{registered!r} was not registered by this transport")
        return msgspec.msgpack.encode(Description("hccs1", registered.key.key, registered.region.address))

    def identify(self, address: int, length: int) -> MemoryKind | None:
        """What the runtime says of the address; host memory that it does not know counts when it is mapped."""
        from cachefw_ascendcl import Location

        device = self._opened("identify").device
        with named("identify"):
            info = device.identify(address)
        if info is None or info.guessed:
            return None
        if info.location is Location.UNREGISTERED:
            return MemoryKind.HOST if _mapped(address) else None
        return _kinds().get(info.location)

    def allocate(
        self, size: int, kind: MemoryKind, alignment: int, options: Mapping[str, Any] | None = None
    ) -> Allocation:
        """Device memory in huge pages only, at a multiple of 2 MiB at least."""
        from cachefw_ascendcl import MallocPolicy

        session = self._opened("allocate")
        if kind is not MemoryKind.DEVICE:
            raise UnsupportedOperation(
                f"this transport allocates device memory, not {kind}", operation="allocate", transport=TRANSPORT
            )
        if options:
            raise refusal(
                RequestError,
                {ValueError},
                f"this transport has no allocation option {', '.join(sorted(options))}; it has none",
                operation="allocate",
                transport=TRANSPORT,
            )
        # The runtime gives huge pages at their own boundary; for a larger one there has to be room to move.
        slack = alignment if alignment > HUGE_PAGE else 0
        with named("allocate"):
            made = session.device.allocate(size + slack, MallocPolicy.HUGE_ONLY)
        start = -(-made.address // max(alignment, HUGE_PAGE)) * max(alignment, HUGE_PAGE)
        if start + size > made.address + size + slack:
            made.close()
            raise BrokenError(
                f"the runtime gave memory at {made.address:#x}, which is not a multiple of {HUGE_PAGE:,}",
                code="allocate.unaligned",
                operation="allocate",
                transport=TRANSPORT,
            )
        session.use()

        def release() -> None:
            close_all([made])
            session.leave()

        return Allocation(start, size, MemoryKind.DEVICE, release)

    def copy(self, batch: Batch) -> None:
        """Copy within this process: device to device, host to device, or device to host."""
        from cachefw_ascendcl import CopyKind

        device = self._opened("copy").device
        lanes = self._lanes
        if not len(batch) or lanes is None:
            return
        here, there = self._on_device(device, batch.local), self._on_device(device, batch.remote)
        lane = lanes.take()
        try:
            for into, out_of, kind in (
                (True, True, CopyKind.DEVICE_TO_DEVICE),
                (True, False, CopyKind.HOST_TO_DEVICE),
                (False, True, CopyKind.DEVICE_TO_HOST),
            ):
                where = np.flatnonzero((here == into) & (there == out_of))
                if len(where):
                    with named("copy", positions=where):
                        lane.copies(batch.local[where], batch.remote[where], batch.length[where], kind).post()
            if not (here | there).all():
                where = np.flatnonzero(~(here | there))
                raise UnsupportedOperation(
                    f"piece {where[0]} is a copy from host to host memory, which this transport does not do",
                    operation="copy",
                    transport=TRANSPORT,
                )
            with named("copy"):
                lane.stream.synchronize()
        except BaseException:
            lane.spoiled = True
            raise
        finally:
            lanes.give_back(lane)

    @staticmethod
    def _on_device(device: Device, addresses: Any) -> Any:
        """Whether each address lies on a device, asked once for each huge page."""
        from cachefw_ascendcl import Location

        pages, inverse = np.unique(addresses // np.uint64(HUGE_PAGE), return_inverse=True)
        # A page may hold several small host allocations, and never host and device memory.
        first = {int(page): int(address) for page, address in zip(pages[inverse], addresses, strict=True)}
        answers = []
        for page in pages.tolist():
            info = device.identify(first[page])
            answers.append(info is not None and info.location is Location.DEVICE)
        return np.array(answers, np.bool_)[inverse]

    # ------------------------------------------------------------------ peers

    def card(self) -> bytes:
        """Which process this is to the driver, and on which host."""
        from cachefw_ascendcl import bare_pid

        device = self._opened("card").device
        with named("card"):
            return msgspec.msgpack.encode(
                Card("hccs1", _host_identity(), bare_pid(), device.index, self._soc or "", self._nonce)
            )

    def connect(self, card: bytes, timeout: float, session: LinkSession) -> HccsChannel:
        """Let the peer's process import what is exported here, now and later.

        The peer proved who it is before its card was taken, so the session's key is not needed: the driver admits
        processes by number.
        """
        from cachefw_ascendcl import bare_pid

        try:
            peer = msgspec.msgpack.decode(card, type=Card)
        except msgspec.MsgspecError as error:
            raise BrokenError(
                f"the peer's card makes no sense to this transport: {error}", code="card.malformed", transport=TRANSPORT
            ) from None
        if peer.host != _host_identity():
            raise UnsupportedOperation(
                "the peer is on another host; this transport reaches processes of this host only",
                code="peer.unreachable",
                operation="connect",
                transport=TRANSPORT,
            )
        device = self._opened("connect").device
        lanes = self._lanes
        assert lanes is not None  # noqa: S101 - set and cleared with the device
        with named("connect"):
            same_process = peer.pid == bare_pid()
            if same_process and peer.device != device.index:
                device.enable_peer_access(peer.device)
            if not same_process:
                self._admit(peer.pid)
        channel = HccsChannel(device, lanes, peer, same_process=same_process, on_close=self._dismiss)
        self._channels.add(channel)
        return channel

    def _admit(self, pid: int) -> None:
        with self._lock:
            self._peers[pid] += 1
            if self._peers[pid] > 1:
                return
            # The runtime counts up to 31 importers of a key, dead ones included.
            try:
                if not self._any_process:
                    for memory in self._registered:
                        memory.key.allow(list(self._peers))
            except BaseException:
                del self._peers[pid]
                raise

    def _dismiss(self, pid: int) -> None:
        # Keys that name it keep doing so; those made from now on do not.
        with self._lock:
            if self._peers[pid] > 1:
                self._peers[pid] -= 1
            else:
                del self._peers[pid]

    # ------------------------------------------------------------------ facts for the rules

    @property
    def facts(self) -> HccsTransport | None:
        """The open runtime, for rules to ask; None while it is closed."""
        return self if self._session is not None else None

    @property
    def soc(self) -> str | None:
        """The SoC's name."""
        return self._soc

    @property
    def device(self) -> int:
        """The number of the device in use."""
        return self._opened("rules").device.index

    def pointer(self, address: int) -> Pointer | None:
        """What the runtime says of an address."""
        device = self._opened("rules").device
        with named("rules"):
            info = device.identify(address)
            if info is None:
                return Pointer(None)
            start, length = None, 0
            try:
                start, length = device.address_range(address)
            except (UnsupportedOperation, BrokenError):
                # Older than the question, or not an address of a device: the other facts stand.
                start = None
        return Pointer(_kinds().get(info.location), info.device, info.page_size, start, length)

    @property
    def remark(self) -> str:
        """Says so when the runtime is the simulator."""
        return "SIMULATED" if self._simulated else ""


def _checked(settings: Mapping[str, Any]) -> tuple[int, bool]:
    unknown = sorted(set(settings) - set(_SETTINGS))
    wrong = []
    if unknown:
        wrong.append(f"transport {TRANSPORT!r} has no setting {', '.join(unknown)}; it has {', '.join(_SETTINGS)}")
    device, any_process = settings.get("device", 0), settings.get("any_process", False)
    if not isinstance(device, int) or isinstance(device, bool) or device < 0:
        wrong.append(f"device must be a number from 0, not {device!r}")
    if not isinstance(any_process, bool):
        wrong.append(f"any_process must be True or False, not {any_process!r}")
    if wrong:
        raise refusal(RequestError, {ValueError}, "; ".join(wrong), operation="open", transport=TRANSPORT)
    return device, any_process


def _kinds() -> dict[Any, MemoryKind]:
    from cachefw_ascendcl import Location

    return {Location.DEVICE: MemoryKind.DEVICE, Location.HOST: MemoryKind.PINNED}


@functools.cache
def _host_identity() -> bytes:
    return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()


def _mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split(None, 1)[0].split("-"))
        if start <= address < end:
            return True
    return False
