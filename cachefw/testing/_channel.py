"""The channel of `cachefw.testing.memory.MemoryTransport`, and what moves on it."""

from __future__ import annotations

import struct
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import attrs

from cachefw.errors import BusyError, CacheError, ClosedError, RequestError, TransferCancelled, refusal
from cachefw.memory import MemoryRegion
from cachefw.transport import (
    Batch,
    Capability,
    Channel,
    Operation,
    Prepared,
    RegisteredMemory,
    Session,
    Transfer,
    call_back,
)

if TYPE_CHECKING:
    from cachefw.testing.memory import MemoryTransport

__all__ = ["DESCRIPTION", "DESCRIPTION_MAGIC", "HeldMemory", "MemoryChannel", "MemoryTransfer"]

DESCRIPTION = struct.Struct("<8s16sQQ")
DESCRIPTION_MAGIC = b"cfw-mem2"

#: Where the bytes of one piece go, where they come from, and how many they are.
Piece = tuple[int, int, int]


class MemoryTransfer(Transfer):
    """A batch on its way: moved by the thread that posted it, or by one of its own."""

    __slots__ = ("_callbacks", "_cancelled", "_done", "_error", "_lock", "_pieces", "_transport", "thread")

    def __init__(self, transport: MemoryTransport, pieces: list[Piece]) -> None:
        self._transport = transport
        self._pieces = pieces
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._callbacks: list[Callable[[Transfer], None]] = []
        self._error: CacheError | None = None
        self._cancelled = False
        self.thread: threading.Thread | None = None

    @property
    def settled(self) -> bool:
        """Whether no byte can move any more."""
        return self._done.is_set()

    @property
    def error(self) -> CacheError | None:
        """Why it failed, None when every byte moved."""
        if not self.settled:
            name = self._transport.info.name
            raise BusyError("the transfer has not settled yet; wait for it first", operation="error", transport=name)
        return self._error

    @property
    def path(self) -> str:
        """How the bytes went."""
        return "inline" if self.thread is None else "thread"

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it is settled, or `timeout` seconds have passed."""
        return self._done.wait(timeout)

    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        """Have ``callback(self)`` called once it is settled."""
        with self._lock:
            if not self.settled:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def cancel(self) -> None:
        """Drop the pieces that have not begun."""
        self._transport._require("cancel", Capability.CANCEL)
        self.drop()

    def drop(self) -> None:
        """`cancel`, whether it is offered or not: closing a channel needs it."""
        with self._transport._gate:
            self._cancelled = True
            self._transport._gate.notify_all()

    def run(self) -> None:
        """Move the pieces and settle, whatever happens; in a thread nobody else would see a failure."""
        error: CacheError | None = None
        try:
            self._move()
        except CacheError as failure:
            error = failure
        except BaseException as failure:
            error = self._transport._broken(f"moving stopped: {failure!r}", "post")
            if not isinstance(failure, Exception):
                raise
        finally:
            self._settle(error)

    def _move(self) -> None:
        transport = self._transport
        for index, piece in enumerate(self._pieces):
            if self.thread is not None:
                with transport._gate:
                    transport._gate.wait_for(lambda: self._cancelled or not transport._paused)
            if self._cancelled:
                raise TransferCancelled(
                    f"cancelled before item {index} of {len(self._pieces)}",
                    operation="post",
                    transport=transport.info.name,
                    facts={"failed": (index,)},
                )
            transport._step("move", index)
            transport._move_piece(*piece)

    def _settle(self, error: CacheError | None) -> None:
        with self._lock:
            self._error = error
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[Transfer], None]) -> None:
        call_back(callback, self)


class _Prepared(Prepared):
    __slots__ = ("memory", "pieces")

    def __init__(self, pieces: list[Piece], memory: list[int]) -> None:
        self.pieces = pieces
        self.memory = memory

    @property
    def nbytes(self) -> int:
        return sum(length for _, _, length in self.pieces)


@attrs.define(eq=False)
class HeldMemory(RegisteredMemory):
    """A region in a `MemoryTransport`; `token` is what a peer's channel finds it by."""

    token: bytes


class MemoryChannel(Channel):
    """The way to another `MemoryTransport` of this process."""

    def __init__(self, transport: MemoryTransport, peer: MemoryTransport, token: bytes, session: Session) -> None:
        self.session = session
        self._transport = transport
        self._peer = weakref.ref(peer)
        self._token = token
        self._lock = threading.Lock()
        self._attached: dict[int, bytes] = {}
        self._running: set[MemoryTransfer] = set()
        self._posted = False
        self._closed = False

    def attach(self, memory_id: int, region: MemoryRegion, description: bytes) -> None:
        """Learn of memory that the peer published."""
        transport = self._transport
        if self._closed:
            raise self._closed_error("attach")
        transport._step("attach")
        if self._posted:
            transport._require("attach after the first transfer", Capability.LATE_REGISTRATION)
        try:
            magic, token, address, length = DESCRIPTION.unpack(description)
        except struct.error as error:
            raise transport._broken(f"the description of memory {memory_id} is malformed: {error}", "attach") from None
        if magic != DESCRIPTION_MAGIC or (address, length) != (region.address, region.length):
            raise transport._broken(
                f"the description of memory {memory_id} is malformed, or is not that of {region}", "attach"
            )
        if not self._reachable(token):
            raise transport._broken(f"the peer holds no memory {memory_id} at {region}", "attach")
        with self._lock:
            self._attached[memory_id] = token

    def detach(self, memory_id: int) -> None:
        """Forget memory that the peer withdraws."""
        with self._lock:
            self._attached.pop(memory_id, None)

    def prepare(self, operation: Operation, batch: Batch) -> Prepared:
        """Turn a batch into a list of pieces."""
        transport = self._transport
        transport._require(operation.value, Capability[operation.name])
        transport._step("prepare")
        memory = batch.regions.tolist()
        self._check(memory, "prepare")
        to, start = (batch.local, batch.remote) if operation is Operation.READ else (batch.remote, batch.local)
        return _Prepared(list(zip(to.tolist(), start.tolist(), batch.length.tolist(), strict=True)), memory)

    def post(self, prepared: Prepared) -> Transfer:
        """Start it; a transfer without a thread of its own is settled on return."""
        transport = self._transport
        if not isinstance(prepared, _Prepared):
            message = f"a batch that channel.prepare gave is needed, not a {type(prepared).__name__}"
            raise refusal(RequestError, {TypeError}, message, operation="post", transport=transport.info.name)
        if self._closed:
            raise self._closed_error("post")
        peer = self._peer()
        if peer is None or peer._token != self._token:
            raise transport._broken("the peer is gone", "post")
        if not any(channel.session.key == self.session.key for channel in list(peer._channels)):
            raise transport._broken("the peer has no open channel with this session's key", "post")
        self._check(prepared.memory, "post")
        transport._step("post")
        transfer = transport.transfer_type(transport, prepared.pieces)
        if transport._background or transport._paused:
            transfer.thread = threading.Thread(target=transfer.run, name="cachefw-memory-transfer", daemon=True)
        with self._lock:
            if self._closed:
                raise self._closed_error("post")
            self._posted = True
            self._running.add(transfer)
            # Started under the lock: `close` joins every thread that it finds.
            if transfer.thread is not None:
                try:
                    transfer.thread.start()
                except RuntimeError as error:
                    self._running.discard(transfer)
                    raise transport._broken(f"no thread for the transfer: {error}", "post") from None
        if transfer.thread is None:
            transfer.run()
        transfer.add_done_callback(self._forget)
        return transfer

    def close(self) -> None:
        """Cancel what runs, wait until it has settled, and forget the peer's memory."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for transfer in running:
            transfer.drop()
        for transfer in running:
            transfer.wait()
            # A done callback may close the channel; its own thread cannot be waited for.
            if transfer.thread not in (None, threading.current_thread()):
                transfer.thread.join()
        with self._lock:
            self._attached.clear()
            self._running.clear()
        self._transport._channels.discard(self)

    def _forget(self, transfer: Transfer) -> None:
        with self._lock:
            # A thread that has not ended yet stays listed, so that `close` waits for it.
            self._running = {t for t in self._running if not t.settled or (t.thread and t.thread.is_alive())}

    def _reachable(self, token: bytes) -> bool:
        peer = self._peer()
        return peer is not None and token in peer._registered

    def _check(self, memory: Iterable[int], operation: str) -> None:
        for index, memory_id in enumerate(memory):
            token = self._attached.get(memory_id)
            if token is None:
                message = f"memory {memory_id} is not attached: it is unknown or was withdrawn. Attach it first"
                raise self._transport._broken(message, operation, index)
            if not self._reachable(token):
                raise self._transport._broken(f"the peer no longer holds memory {memory_id}", operation, index)

    def _closed_error(self, operation: str) -> ClosedError:
        return ClosedError("the channel is closed", operation=operation, transport=self._transport.info.name)
