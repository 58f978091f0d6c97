"""Transfers over a link: prepared once, posted many times, accounted for until they settle."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cachefw.config import setting
from cachefw.errors import BrokenError, CacheError, ClosedError, TransferCancelled, TransferTimeout
from cachefw.registry import Memory, MemoryState, Registry
from cachefw.transport import Operation, Prepared, Transfer

__all__ = ["LinkTransfer", "PreparedTransfer"]


#: Local starts, remote starts, and lengths.
Ranges = tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]


class Way(Protocol):
    """The link, as far as its transfers need it."""

    registry: Registry
    version: int
    inflight: dict[LinkTransfer, PreparedTransfer]
    draining: list[Any]
    inherited: bool

    @property
    def peer_name(self) -> str: ...

    def memory_ids(self) -> set[int]: ...

    @property
    def is_up(self) -> bool: ...

    def check_up(self, operation: str) -> None: ...

    def check_notification(self, payload: Any) -> None: ...

    def notify(self, payload: bytes) -> None: ...

    def left(self, transfer: LinkTransfer) -> None: ...

    def finished(self, transfer: LinkTransfer, notify: bytes | None) -> None: ...

    def hold(self, transfer: LinkTransfer, ranges: Ranges) -> None: ...

    def let_go(self, transfer: LinkTransfer) -> None: ...

    def refuse_held(self, operation: Operation, ranges: Ranges) -> None: ...

    def overdue(self, prepared: PreparedTransfer) -> None: ...


class LinkTransfer(Transfer):
    """A transfer over a link, posted.

    Thread safety: every method may be called from any thread.
    """

    __slots__ = ("_native", "prepared")

    # Set by `PreparedTransfer.post`; an `__init__` would take a tenth of a small transfer.
    _native: Transfer
    prepared: PreparedTransfer

    @property
    def settled(self) -> bool:
        """Whether no byte of it can move any more."""
        return self._native.settled

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it is settled, or `timeout` seconds have passed; True when settled. See `result`."""
        return self._native.wait(timeout)

    @property
    def error(self) -> CacheError | None:
        """Why it failed; None when every byte moved.

        Raises:
            BusyError: It is not settled yet.
        """
        error = self._native.error
        return None if error is None else self.prepared.named(error)

    def result(self, timeout: float | None = None) -> LinkTransfer:
        """Wait for it, and raise if it failed.

        Args:
            timeout: Seconds; None takes the setting ``timeout``.

        Raises:
            TransferTimeout: It is not settled; its memory stays in use until it is.
            BrokenError: It failed; ``failed`` names the item.
        """
        self.prepared.check_here()
        try:
            settled = self.prepared.outlast(self._native, _deadline(timeout))
        except CacheError:
            self.prepared.hold(self)
            raise
        if not settled:
            self.prepared.hold(self)
            raise self.prepared.late(_deadline(timeout))
        error = self.error
        if error is not None:
            raise error
        return self

    async def settle(self, timeout: float | None = None) -> LinkTransfer:
        """`result` for a coroutine: the loop goes on meanwhile.

        Cancelling the wait does not cancel the transfer; its memory then stays held until it has settled.

        Args:
            timeout: Seconds; None takes the setting ``timeout``.

        Raises:
            TransferTimeout: As for `result`.
            BrokenError: As for `result`.
        """
        self.prepared.check_here()
        if not self._native.settled:
            loop = asyncio.get_running_loop()
            done: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not done.done():
                    done.set_result(None)

            def tell(_: Transfer) -> None:
                # A loop that was closed meanwhile has nobody who waits.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(wake)

            self._native.add_done_callback(tell)
            limit = _deadline(timeout)
            try:
                await asyncio.wait([done], timeout=limit)
            except asyncio.CancelledError:
                self.prepared.hold(self)
                raise
            if not self._native.settled:
                self.prepared.hold(self)
                raise self.prepared.late(limit)
        error = self.error
        if error is not None:
            raise error
        return self

    def __await__(self) -> Generator[Any, None, LinkTransfer]:
        return self.settle().__await__()

    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        """Have ``callback(self)`` called once it is settled, from any thread."""
        self._native.add_done_callback(lambda _: callback(self))

    def cancel(self) -> None:
        """Drop what has not begun; it still has to settle.

        Raises:
            UnsupportedOperation: The transport cannot.
        """
        self._native.cancel()

    @property
    def what(self) -> str:
        """It in words."""
        return self.prepared.what

    @property
    def nbytes(self) -> int:
        """Bytes asked for."""
        return self.prepared.nbytes

    @property
    def pieces(self) -> int:
        """Ranges moved, after neighbours were joined."""
        return self.prepared.pieces

    @property
    def path(self) -> str:
        """How the bytes go, e.g. the transport's own word for shared memory."""
        return self._native.path

    def __repr__(self) -> str:
        return f"<{self.prepared.what}, {'settled' if self.settled else 'running'}>"


#: Seconds after which a wait looks whether the link is still up, and that a transfer has for settling once it is not.
_SLICE, _GRACE = 0.5, 1.0


def _deadline(timeout: float | None) -> float:
    return float(setting("timeout")) if timeout is None else timeout


class PreparedTransfer:
    """Checked pieces in native form; `post` starts them, any number of times.

    The memory it touches may be given back meanwhile; posting then is refused.

    Thread safety: every method may be called from any thread.
    """

    __slots__ = (
        "_inflight",
        "_link",
        "_link_version",
        "_local",
        "_local_ids",
        "_native",
        "_owners",
        "_ranges",
        "_registry",
        "_registry_version",
        "_remote",
        "_start",
        "nbytes",
        "operation",
        "pieces",
    )

    def __init__(
        self,
        link: Way,
        operation: Operation,
        native: Prepared,
        start: Callable[[Prepared], Transfer],
        pieces: int,
        local: tuple[Memory, ...],
        ids: tuple[tuple[int, ...], frozenset[int]],
        versions: tuple[int, int],
        ranges: Ranges,
        owners: tuple[object, ...] = (),
    ) -> None:
        self._link = link
        # Looked up once: a small transfer takes less than a microsecond in all.
        self._start, self._inflight, self._registry = start, link.inflight, link.registry
        self._native = native
        self._local = local
        self._owners = owners
        self._local_ids, self._remote = ids
        self._registry_version, self._link_version = versions
        self._ranges = ranges
        self.operation = operation
        self.nbytes = native.nbytes
        self.pieces = pieces

    def post(self, *, wait: bool = True, timeout: float | None = None, notify: bytes | None = None) -> LinkTransfer:
        """Start it.

        Args:
            wait: Return when it is settled, and raise if it failed. False: see `Node.completed`.
            timeout: Seconds to wait; None takes the setting ``timeout``.
            notify: At most 64 KiB that the peer gets after the last byte has moved.

        Raises:
            ClosedError: The link, or memory here, was closed.
            BrokenError: The peer is gone or withdrew memory, or the system failed.
            TransferTimeout: It is not settled; its memory stays in use until it is.
        """
        link = self._link
        transfer = LinkTransfer()
        transfer.prepared = self
        # Entered before the check below, and looked at after memory was marked as leaving: one side sees the other.
        self._inflight[transfer] = self
        try:
            if self._registry_version != self._registry.version or self._link_version != link.version:
                self._check_again()
            if notify is not None:
                link.check_notification(notify)
            transfer._native = native = self._start(self._native)
        except BaseException:
            link.left(transfer)
            raise
        if not wait:
            return self._leave(transfer, notify)
        if not native.settled:
            self._wait(transfer, timeout)
        # `Way.left`, for which a call would take as long as the rest of these lines.
        del self._inflight[transfer]
        if link.draining:
            link.left(transfer)
        error = native.error
        if error is not None:
            raise self.named(error)
        if notify is not None:
            link.notify(notify)
        return transfer

    def launch(self) -> LinkTransfer:
        """Start it for somebody who looks after the transfer: no waiting, and `Node.completed` does not have it."""
        link = self._link
        transfer = LinkTransfer()
        transfer.prepared = self
        self._inflight[transfer] = self
        try:
            self._check_again()
            transfer._native = native = self._start(self._native)
        except BaseException:
            link.left(transfer)
            raise
        native.add_done_callback(lambda _: link.left(transfer))
        return transfer

    def _leave(self, transfer: LinkTransfer, notify: bytes | None) -> LinkTransfer:
        # A closure in `post` would cost those who wait, too.
        link = self._link
        transfer._native.add_done_callback(lambda _: link.finished(transfer, notify))
        return transfer

    def _wait(self, transfer: LinkTransfer, timeout: float | None) -> None:
        native = transfer._native
        try:
            limit = _deadline(timeout)
            settled = self.outlast(native, limit)
        except BaseException:
            # Ctrl-C, as a rule.
            self.hold(transfer)
            raise
        if not settled:
            self.hold(transfer)
            raise self.late(limit)

    def outlast(self, native: Transfer, limit: float) -> bool:
        """Wait until a transfer has settled, which the end of the link mostly sees to; False when `limit` has passed.

        Raises:
            BrokenError: The link has ended, and still the transport cannot say that nothing moves any more.
            ClosedError: As above, where the link was closed here.
        """
        end, ended = time.monotonic() + limit, None
        while (left := end - time.monotonic()) > 0:
            if native.wait(min(left, _SLICE)):
                return True
            if ended is not None and time.monotonic() - ended >= _GRACE:
                try:
                    self._link.check_up(self.operation.value)
                except CacheError as error:
                    error.facts["settled"] = False
                    raise
            elif ended is None and not self._link.is_up:
                ended = time.monotonic()
        return native.settled

    def hold(self, transfer: LinkTransfer) -> None:
        """Nobody waits for it any more: refuse its ranges, here and at the peer, until it settles."""
        link = self._link
        link.hold(transfer, self._ranges)
        transfer._native.add_done_callback(lambda _: link.let_go(transfer))

    @property
    def what(self) -> str:
        """The transfer in words."""
        preposition = "from" if self.operation is Operation.READ else "to"
        verb = self.operation.value
        return f"{verb} of {self.nbytes:,} bytes in {self.pieces:,} pieces {preposition} {self._link.peer_name}"

    @property
    def memories(self) -> tuple[Memory, ...]:
        """The local memory it touches."""
        return self._local

    def check_here(self) -> None:
        """Refuse to wait in a forked process for what its parent moves."""
        if self._link.inherited:
            self._link.check_up(self.operation.value)

    def touches_remote(self, memory_ids: frozenset[int]) -> bool:
        """Whether it touches memory of the peer with one of these ids."""
        return not self._remote.isdisjoint(memory_ids)

    def named(self, error: CacheError) -> CacheError:
        """A transport's error, with peer and operation; the link's where its end cancelled the transfer."""
        if isinstance(error, TransferCancelled):
            try:
                self._link.check_up(self.operation.value)
            except CacheError as ended:
                ended.__cause__ = error
                error = ended
        error.peer = error.peer or self._link.peer_name
        error.operation = error.operation or self.operation.value
        return error

    def late(self, timeout: float) -> TransferTimeout:
        """The error of a deadline that passed."""
        self._link.overdue(self)
        return TransferTimeout(
            f"the {self.what} did not settle within {timeout:g} s; its memory stays in use until it does",
            operation=self.operation.value,
            peer=self._link.peer_name,
            facts={"settled": False, "timeout": timeout},
        )

    def _check_again(self) -> None:
        """Something came, went or closed since this was prepared: is everything it touches still there?"""
        link = self._link
        versions = link.registry.version, link.version
        link.check_up(self.operation.value)
        for memory, number in zip(self._local, self._local_ids, strict=True):
            if memory.state is not MemoryState.LIVE or memory.memory_id != number:
                raise ClosedError(
                    f"{self.what}: {memory} was given back; prepare again", operation=self.operation.value
                )
        gone = self._remote - link.memory_ids()
        if gone:
            raise BrokenError(
                f"{self.what}: the peer withdrew memory {min(gone)}; prepare again",
                code="transfer.withdrawn",
                operation=self.operation.value,
                peer=link.peer_name,
            )
        link.refuse_held(self.operation, self._ranges)
        self._registry_version, self._link_version = versions
