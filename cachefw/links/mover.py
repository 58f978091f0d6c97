"""The calls of a link that move bytes, and what is refused while a transfer is late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from cachefw.errors import ClosedError
from cachefw.links import pieces
from cachefw.links.transfers import LinkTransfer, PreparedTransfer, Ranges
from cachefw.memory import MemoryKind
from cachefw.published import PublishedMemory
from cachefw.quarantine import Quarantine
from cachefw.ranges import Pieces, from_arguments
from cachefw.registry import Memory, MemoryState, RangeTable, Registry
from cachefw.staging import Detour
from cachefw.transport import Channel, Operation, Prepared, Transfer

__all__ = ["Mover"]


class Mover(Protocol):
    """The moving half of `cachefw.Link`, which derives from it and brings what it works on."""

    transport: str
    channel: Channel
    staging: Detour
    registry: Registry
    version: int
    inflight: dict[LinkTransfer, PreparedTransfer]
    draining: list[Any]
    inherited: bool
    quarantine: Quarantine
    start: Callable[[Prepared], Transfer]

    @property
    def peer_name(self) -> str:
        """The peer in words."""
        ...

    @property
    def memories(self) -> list[PublishedMemory]:
        """The peer's memory that may be reached."""
        ...

    @property
    def strangers(self) -> list[PublishedMemory]:
        """Memory that the peer published for other transports."""
        ...

    def memory_ids(self) -> set[int]:
        """Their ids."""
        ...

    def remote_table(self) -> RangeTable:
        """The same for finding many pieces at once."""
        ...

    def sync(self, timeout: float | None = None) -> None:
        """Wait until all that the peer has published is known."""
        ...

    @property
    def is_up(self) -> bool:
        """Whether the link can be used."""
        ...

    def check_up(self, operation: str) -> None:
        """Raise unless the link is up."""
        ...

    def check_rights(self, operation: Operation, memory_ids: Iterable[int]) -> None:
        """Refuse what the peer does not allow."""
        ...

    def check_notification(self, payload: Any) -> None:
        """Refuse what `notify` could not send."""
        ...

    def notify(self, payload: bytes) -> None:
        """Send bytes to the peer's application."""
        ...

    def left(self, transfer: LinkTransfer) -> None:
        """A transfer has settled, or was never started."""
        ...

    def finished(self, transfer: LinkTransfer, notify: bytes | None) -> None:
        """A transfer that nobody waits for has settled."""
        ...

    def overdue(self, prepared: PreparedTransfer) -> None:
        """A transfer's deadline has passed."""
        ...

    def changed(self) -> None:
        """Have everything that was prepared looked at again."""
        ...

    def read(
        self,
        local_addrs: Any,
        remote_addrs: Any,
        lengths: Any = None,
        notify: bytes | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> LinkTransfer:
        """Copy from the peer's memory into local memory, without the peer's CPU.

        Args:
            local_addrs: Addresses here: an int, a list, or an integer array; or tensors, arrays, buffers or regions in
                their place, one or in a list, which are kept until the bytes have moved. Each piece lies in one region
                that is registered here.
            remote_addrs: Addresses there, as many. Each piece lies in one region that the peer published.
            lengths: Bytes of each piece, at least 1. None takes the sizes of the tensors.
            notify: At most 64 KiB that the peer gets after the last byte has moved.
            wait: Return when it is settled. False returns at once; see `Node.completed`.
            timeout: Seconds to wait; None takes the setting ``timeout``.

        Raises:
            RequestError: Also a `TypeError`, `ValueError` or `AttributeError`: nothing was sent. Unregistered memory, a
                piece past the end of a region, lists of unequal length, a byte written twice.
            BrokenError: The peer or the system failed; ``failed`` names the item.
            TransferTimeout: The deadline passed; ``settled`` tells whether bytes may still land.
        """
        prepared = self.prepare(Operation.READ, local_addrs, remote_addrs, lengths)
        return prepared.post(wait=wait, timeout=timeout, notify=notify)

    def write(
        self,
        local_addrs: Any,
        remote_addrs: Any,
        lengths: Any = None,
        notify: bytes | None = None,
        wait: bool = True,
        timeout: float | None = None,
    ) -> LinkTransfer:
        """Copy from local memory into the peer's memory, without the peer's CPU. Everything else is as for `read`."""
        prepared = self.prepare(Operation.WRITE, local_addrs, remote_addrs, lengths)
        return prepared.post(wait=wait, timeout=timeout, notify=notify)

    def _refuse_dangling(self, operation: Operation, memory: Memory) -> None:
        self.registry.put([memory], MemoryState.DANGLING)
        raise ClosedError(
            f"{operation.value}: {memory} is dangling: its owner has released or moved it; unregister it",
            code="closed.dangling",
            operation=operation.value,
        )

    async def transfer(
        self,
        operation: Operation,
        local_addrs: Any,
        remote_addrs: Any,
        lengths: Any = None,
        notify: bytes | None = None,
        timeout: float | None = None,
    ) -> LinkTransfer:
        """`read` or `write` for a coroutine: the loop goes on meanwhile, and `Node.completed` does not have it.

        When the wait is cancelled, the transfer is not: its memory stays held until it has settled (`unsettled`), and
        `notify` is not sent.

        Args:
            operation: Which of the two.
            local_addrs: As for `read`.
            remote_addrs: As for `read`.
            lengths: As for `read`.
            notify: As for `read`.
            timeout: As for `read`.

        Raises:
            RequestError: As for `read`.
            BrokenError: As for `read`.
            TransferTimeout: As for `read`.
        """
        if notify is not None:
            self.check_notification(notify)
        # In a thread: what the peer registered a moment ago may have to be asked for.
        prepared = await asyncio.to_thread(self.prepare, operation, local_addrs, remote_addrs, lengths)
        transfer = prepared.launch()
        await transfer.settle(timeout)
        if notify is not None:
            self.notify(notify)
        return transfer

    def prepare(
        self, operation: Operation, local_addrs: Any, remote_addrs: Any, lengths: Any = None
    ) -> PreparedTransfer:
        """Check pieces and turn them into native form, to be posted any number of times.

        Raises:
            RequestError: As for `read`.
        """
        return self._prepare(
            operation, from_arguments(local_addrs, remote_addrs, lengths, writable=operation is Operation.READ)
        )

    def read_pieces(self, wanted: Pieces, *, wait: bool, timeout: float | None, notify: bytes | None) -> LinkTransfer:
        """Move what a pull asks for."""
        return self._prepare(Operation.READ, wanted).post(wait=wait, timeout=timeout, notify=notify)

    def write_pieces(self, wanted: Pieces, *, wait: bool, timeout: float | None, notify: bytes | None) -> LinkTransfer:
        """Move what a push asks for."""
        return self._prepare(Operation.WRITE, wanted).post(wait=wait, timeout=timeout, notify=notify)

    def launch_pieces(self, wanted: Pieces) -> LinkTransfer:
        """Begin to move what a layer of a task is; see `PreparedTransfer.launch`."""
        return self._prepare(Operation.WRITE, wanted).launch()

    def _prepare(self, operation: Operation, wanted: Pieces) -> PreparedTransfer:
        self.check_up(operation.value)
        versions = self.registry.version, self.version
        checked = pieces.check(self, operation, wanted)
        self.refuse_held(operation, (checked.batch.local, checked.batch.remote, checked.batch.length))
        memories = tuple(self.registry.memory(number) for number in checked.local_ids)
        for memory in memories:
            if memory.probe is not None and memory.gone():
                self._refuse_dangling(operation, memory)
        native: Prepared
        start, batch = self.start, checked.batch
        if all(self.transport in memory.registered for memory in memories):
            native = self.channel.prepare(operation, batch)
        else:
            devices = [memory.memory_id for memory in memories if memory.region.kind is MemoryKind.DEVICE]
            on_device = np.isin(self.registry.table().find(batch.local, batch.length)[0], devices)
            native, start = self.staging.prepare(operation, batch, on_device), self.staging.post
        ids = tuple(checked.local_ids), frozenset(checked.remote_ids)
        ranges = batch.local, batch.remote, batch.length
        return PreparedTransfer(
            self, operation, native, start, len(batch), memories, ids, versions, ranges, wanted.owners
        )

    @property
    def unsettled(self) -> list[LinkTransfer]:
        """Transfers that have not settled although their deadline has passed, or their wait was broken off.

        Until one settles, its memory here is refused for unregistering, and its ranges, here and at the peer, for other
        transfers. `LinkTransfer.cancel` hurries it up where the transport can; ending the link always settles it.
        """
        return self.quarantine.holders()

    def hold(self, transfer: LinkTransfer, ranges: Ranges) -> None:
        """Refuse what a transfer may still touch to other transfers; once more does nothing."""
        local, remote, length = ranges
        reads = transfer.prepared.operation is Operation.READ
        self.registry.quarantine.hold(transfer, local, length, writes=reads)
        self.quarantine.hold(transfer, remote, length, writes=not reads)
        self.registry.touch()
        self.changed()

    def let_go(self, transfer: LinkTransfer) -> None:
        """It has settled after all."""
        self.registry.quarantine.free(transfer)
        self.quarantine.free(transfer)
        self.registry.touch()
        self.changed()
        self.left(transfer)

    def refuse_held(self, operation: Operation, ranges: Ranges) -> None:
        """Refuse ranges that a transfer may still touch whose deadline has passed.

        Raises:
            BusyError: With the piece and that transfer.
        """
        local, remote, length = ranges
        reads = operation is Operation.READ
        if self.registry.quarantine:
            self.registry.quarantine.refuse(local, length, operation.value, "local", writes=reads)
        if self.quarantine:
            self.quarantine.refuse(remote, length, operation.value, f"on {self.peer_name}", writes=not reads)
