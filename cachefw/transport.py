"""What a transport implements.

A plugin offers a `TransportInfo`; opening it gives a `Transport`; connecting that to a peer's card gives a `Channel`;
posting a batch on the channel gives a `Transfer`. The docstring of each method is its specification, and
`cachefw.testing.TransportTests` checks it.

Opening, registering and connecting are cold paths. `Channel.prepare` turns arrays into native form once, and
`Channel.post` is one native call however many pieces there are.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from cachefw.errors import CacheError, UnsupportedOperation
from cachefw.memory import Allocation, MemoryKind, MemoryRegion
from cachefw.offer import CONTRACT_VERSION, Capability, Option, Reach, TransportInfo
from cachefw.session import Session

__all__ = [
    "CONTRACT_VERSION",
    "Batch",
    "Capability",
    "Channel",
    "Operation",
    "Option",
    "Prepared",
    "Reach",
    "RegisteredMemory",
    "Session",
    "Transfer",
    "Transport",
    "TransportInfo",
    "call_back",
]


class Operation(enum.Enum):
    """Direction of a one-sided transfer, seen from the initiator."""

    READ = "read"
    WRITE = "write"


@attrs.define(eq=False)
class RegisteredMemory:
    """The native side of one region in one transport. A transport may subclass it to hold its handles.

    Attributes:
        region: What was registered, whole.
        transport: Name of the transport that holds it.
    """

    region: MemoryRegion
    transport: str


U64 = NDArray[np.uint64]


@attrs.frozen(eq=False)
class Batch:
    """Pieces to move: item i is ``length[i]`` bytes between ``local[i]`` and ``remote[i]``.

    All arrays are one-dimensional, contiguous and of equal size. The core has checked every piece: it lies inside one
    local region and, for a channel, inside one region that the peer has published; no two pieces write the same byte.
    Lengths are at least 1.

    Attributes:
        local: Addresses in this process, uint64.
        remote: Addresses in the peer's process (for `Transport.copy`: also in this one), uint64.
        length: Bytes, uint64.
        regions: For a channel, which attached memory each remote piece lies in, as its ``memory_id``, uint64. Empty
            for `Transport.copy`.
    """

    local: U64
    remote: U64
    length: U64
    regions: U64

    def __len__(self) -> int:
        return len(self.length)


class Transfer(abc.ABC):
    """One posted batch. States: running, then settled for good (done, failed or cancelled).

    Thread safety: every method may be called from any thread.
    """

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def settled(self) -> bool:
        """Whether no byte of it can move any more. Cheap, never blocks, never goes back to False.

        Raises nothing.

        Thread safety: any thread.
        """

    @abc.abstractmethod
    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it is settled, or `timeout` seconds have passed; True when settled.

        Does not spin, holds no lock that another transfer needs, releases the GIL while it sleeps, and returns at
        least every 0.2 s to the interpreter so that signals are handled. None waits without end. The calling thread
        may move bytes meanwhile.

        Raises nothing about the outcome, which is `error`; what a signal handler raises passes through.

        Thread safety: any thread, several at once.
        """

    @property
    @abc.abstractmethod
    def error(self) -> CacheError | None:
        """Why it failed, None when every byte moved. Asked only once settled.

        Only the one success value of a runtime is success; anything unknown is a failure with the raw value. A
        failure names the first failing item in ``facts["failed"]`` as far as the runtime tells.

        Raises:
            BusyError: It is not settled yet.

        Thread safety: any thread.
        """

    @abc.abstractmethod
    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        """Have ``callback(self)`` called once it is settled: at once in this thread if it is, else later from any.

        Raises nothing; what the callback raises goes to `sys.unraisablehook`.

        Thread safety: any thread.
        """

    def cancel(self) -> None:
        """Drop what has not begun. It still has to settle; its error is a `TransferCancelled` if anything was dropped.

        Raises:
            UnsupportedOperation: `Capability.CANCEL` is not offered.

        Thread safety: any thread.
        """
        raise UnsupportedOperation("this transport cannot cancel a transfer (no Capability.CANCEL)", operation="cancel")

    @property
    def path(self) -> str:
        """How the bytes went, for people: a transport with several ways names the one taken."""
        return ""


class _Unraisable:
    """Hands an exception to `sys.unraisablehook`, whose argument Python code cannot make, by dying of it."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure

    def __del__(self) -> None:
        raise self.failure


def call_back(callback: Callable[[Transfer], None], transfer: Transfer) -> None:
    """Call a done callback as `Transfer.add_done_callback` promises: what it raises goes to `sys.unraisablehook`."""
    try:
        callback(transfer)
    except Exception as failure:
        _Unraisable(failure)


class Prepared(abc.ABC):
    """A batch in native form; may be posted any number of times, one post at a time.

    Keeps what it needs of the arrays alive. It is dropped without a call: it owns nothing but memory.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def nbytes(self) -> int:
        """Sum of the lengths.

        Raises nothing.

        Thread safety: any thread.
        """

    @property
    def path(self) -> str:
        """How the bytes will go, for people."""
        return ""


class Channel(abc.ABC):
    """A transport's way to one peer.

    Thread safety: `attach`, `detach` and `close` are called from one thread at a time; `prepare` and `post` from any,
    also during an `attach`.
    """

    @property
    def fences(self) -> bool:
        """Whether `close` stops the peer too: once it has returned, nothing the peer posted touches memory here.

        So it is where software or a card of this host serves the peer's requests. Where the peer reaches memory by
        itself it is not, and the core waits until the peer has closed its own channel, or has ended.
        """
        return False

    @abc.abstractmethod
    def attach(self, memory_id: int, region: MemoryRegion, description: bytes) -> None:
        """Learn of memory that the peer published: its place there, and what `Transport.describe` said of it.

        Whatever is expensive may wait for the first `prepare` that touches the memory.

        Raises:
            BrokenError: The description is malformed, or the memory cannot be reached; other memory is not affected.
            UnsupportedOperation: Bytes have moved already, and `Capability.LATE_REGISTRATION` is not offered.

        Thread safety: one thread at a time.
        """

    @abc.abstractmethod
    def detach(self, memory_id: int) -> None:
        """Forget memory that the peer withdraws, and give back what was taken for it. No transfer touches it.

        Raises nothing for an unknown id.

        Thread safety: one thread at a time.
        """

    @abc.abstractmethod
    def prepare(self, operation: Operation, batch: Batch) -> Prepared:
        """Turn a batch into native form.

        Raises:
            UnsupportedOperation: The operation is not in `capabilities`.
            BrokenError: Memory in the batch cannot be reached; the text says why and what to do.

        Thread safety: any thread.
        """

    @abc.abstractmethod
    def post(self, prepared: Prepared) -> Transfer:
        """Start it: one native call however many pieces. A small batch may be settled on return.

        After a failed post nothing moves. When the transfer settles without error, a read's bytes are visible to this
        process and a write's bytes to the peer.

        Raises:
            ClosedError: The channel is closed.
            BrokenError: The peer is gone.

        Thread safety: any thread.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give back everything. Running transfers settle first: they are cancelled where that is possible. Idempotent.

        Raises nothing.

        Thread safety: one thread at a time.
        """


class Transport(abc.ABC):
    """One way to move memory, opened once per node.

    Thread safety: `probe`, `open` and `close` are called by one thread; everything else by any.
    """

    #: What the plugin said about it; set by whoever made it, before anything is called.
    info: TransportInfo

    #: The address that the node listens on, for a transport that has a port of its own; None: it does not listen, and
    #: no peer dials it. Set by whoever made it, before `card` is called.
    listen_host: str | None = "127.0.0.1"

    @abc.abstractmethod
    def probe(self) -> str | None:
        """Find the runtime without taking resources: None when it can be opened, else the reason in words.

        Raises nothing; an exception counts as a broken plugin.

        Thread safety: one thread.
        """

    @abc.abstractmethod
    def open(self, settings: Mapping[str, Any]) -> None:
        """Take resources.

        Args:
            settings: The transport's own settings, by name. Unknown names are refused with the known ones.

        Raises:
            TransportUnavailable: The runtime is missing or refuses.
            RequestError: A setting is unknown or wrong.

        Thread safety: one thread.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give everything back, channels included; allocations stay until they are closed themselves. Idempotent.

        Raises nothing.

        Thread safety: one thread.
        """

    @abc.abstractmethod
    def register(self, region: MemoryRegion) -> RegisteredMemory:
        """Make a region usable, whole or not at all. Its rules have passed and it overlaps no other registration.

        Raises:
            CacheError: The runtime refused; its number is in `status`. Nothing of the region stays registered.
            ClosedError: The transport is not open.

        Thread safety: any thread.
        """

    @abc.abstractmethod
    def unregister(self, registered: RegisteredMemory) -> None:
        """Give one registration back. No transfer touches it.

        Raises:
            CacheError: The runtime refused; the region then still counts as registered.

        Thread safety: any thread.
        """

    @abc.abstractmethod
    def card(self) -> bytes:
        """How peers reach this transport: at most 4096 bytes, given to `connect` on the other side, over a link.

        Raises nothing.

        Thread safety: any thread.
        """

    @abc.abstractmethod
    def describe(self, registered: RegisteredMemory) -> bytes:
        """What a peer needs to use this memory: at most 4096 bytes, given to its `Channel.attach`.

        Raises nothing.

        Thread safety: any thread.
        """

    @abc.abstractmethod
    def connect(self, card: bytes, timeout: float, session: Session) -> Channel:
        """Open the way to the peer whose `card` this is.

        Both ends of a link call it, each with the other's card and both with the same key. The peer's own call comes
        before, during or after this one, so this one must not wait for it. Both have returned when the first batch is
        prepared. A transport that is reached over something others can reach too (a port, a socket's name) takes only
        who shows that it knows the key of an open channel, and never sends the key itself.

        Args:
            card: The peer's `card`.
            timeout: Seconds it may take.
            session: The link that it is for.

        Raises:
            BrokenError: The card is malformed, or the peer is gone.
            UnsupportedOperation: The peer is out of reach for this transport.
            ClosedError: The transport is not open.
            TransferTimeout: It took longer than `timeout` seconds.

        Thread safety: any thread.
        """

    @property
    def remark(self) -> str:
        """What every report has to say beside this transport's name once it is probed: "SIMULATED", or "".

        Raises nothing.

        Thread safety: any thread.
        """
        return ""

    def identify(self, address: int, length: int) -> MemoryKind | None:
        """What kind of memory a range is, as far as the runtime knows; None when it does not, or nothing is there.

        Raises:
            UnsupportedOperation: `Capability.IDENTIFY` is not offered.

        Thread safety: any thread.
        """
        raise self._unsupported("identify", Capability.IDENTIFY)

    def allocate(
        self, size: int, kind: MemoryKind, alignment: int, options: Mapping[str, Any] | None = None
    ) -> Allocation:
        """Make memory that this transport moves best and that passes its own rules.

        Args:
            size: Bytes, at least 1.
            kind: One of the transport's kinds.
            alignment: A power of two.
            options: The transport's own wishes, by name; unknown names are refused with the known ones.

        Raises:
            UnsupportedOperation: `Capability.ALLOCATE` is not offered, or not for this kind.
            RequestError: An option is unknown.
            OutOfMemoryError: There is not enough; the text has the size and the limit.

        Thread safety: any thread.
        """
        raise self._unsupported("allocate", Capability.ALLOCATE)

    def copy(self, batch: Batch) -> None:
        """Copy within this process: ``length[i]`` bytes from ``remote[i]`` to ``local[i]``, done on return.

        Raises:
            UnsupportedOperation: `Capability.COPY` is not offered.
            BrokenError: The runtime failed; ``failed`` names the item.

        Thread safety: any thread.
        """
        raise self._unsupported("copy", Capability.COPY)

    def _unsupported(self, operation: str, ability: Capability) -> UnsupportedOperation:
        return UnsupportedOperation(
            f"transport {self.info.name!r} does not offer {operation} (no Capability.{ability.name})",
            operation=operation,
            transport=self.info.name,
        )
