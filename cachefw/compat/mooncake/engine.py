"""The module ``mooncake.engine``, answered by cachefw: class `TransferEngine`, with sessions named ``"host:port"``.

Signatures and return codes are those of Mooncake 0.3.13, as seen there. What is better, and what is refused, is told in
``docs/moving-from-hixl-and-mooncake.md``. Reasons are logged as ``cachefw.compat``.
"""

from __future__ import annotations

import itertools
import logging
from typing import Any

import attrs
import msgspec

from cachefw.compat.engine import (
    Engine,
    address_of,
    decode_note,
    log_error,
    text,
)
from cachefw.compat.mooncake.buffers import Buffers
from cachefw.compat.mooncake.values import (
    ABSENT,
    DONE,
    FAILED,
    OK,
    RUNNING,
    TIMED_OUT,
    UNREACHABLE,
    TransferNotify,
    TransferOpcode,
    UnsupportedOperationAttribute,
    answers,
    bad,
    device_number,
    listen_address,
    note_of,
    operation_of,
    transfer_timeout,
)
from cachefw.compat.protocols import chosen, device_settings
from cachefw.errors import UnsupportedOperation
from cachefw.rules import GIB, Limits
from cachefw.transport import Operation, Transfer

__all__ = ["TransferEngine", "TransferNotify", "TransferOpcode"]

_log = logging.getLogger("cachefw.compat")
_HANDSHAKE = "P2PHANDSHAKE"
#: Mooncake sets no limit to what is registered.
_NO_LIMITS = Limits(addresses=2**31, device_bytes=2**20 * GIB, host_bytes=2**20 * GIB, source="Mooncake has none")


@attrs.frozen(eq=False)
class _Batch:
    """An asynchronous batch. None: it had nothing to wait for."""

    transfer: Transfer | None


class TransferEngine(Buffers):
    """An engine. Calls answer with numbers, 0 or an id for success; a wrong argument's type is a `TypeError`.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._timeout = transfer_timeout()
        self._batches: dict[int, _Batch] = {}
        self._ids = itertools.count(1)

    # ------------------------------------------------------------------ life

    @answers()
    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, /) -> int:
        """Start the engine.

        Args:
            local_hostname: Where it listens: a loopback address or name. A port in it counts only with
                ``MC_LEGACY_RPC_PORT_BINDING`` set, as in Mooncake; see `get_rpc_port`.
            metadata_server: ``"P2PHANDSHAKE"``; there is no other here.
            protocol: ``tcp``, ``rdma`` or ``ascend``: the transport. ``CACHEFW_TRANSPORTS`` has precedence.
            device_name: ``""``, or for ``ascend`` the device's number. Others are passed over, with a warning.

        Returns:
            0, or -1.
        """
        words = {"local_hostname": local_hostname, "protocol": protocol, "device_name": device_name}
        for name, value in {**words, "metadata_server": metadata_server}.items():
            text(name, value)
        if metadata_server != _HANDSHAKE:
            raise bad(f"metadata_server must be {_HANDSHAKE!r}, not {metadata_server!r}: peers are told by address")
        transports = chosen([protocol])
        settings = device_settings(transports, device_number(device_name, protocol))
        engine = Engine(listen_address(local_hostname), transports, _NO_LIMITS, settings)
        with self._lock:
            before, self._engine = self._engine, engine
            self._memory, self._buffers, self._batches = {}, {}, {}
        if before is not None:
            _log.warning("mooncake: initialised again; everything registered before is given back")
            before.close()
        _log.info("mooncake: listening on %s, by %s", engine.node.address, ", ".join(engine.manager.transports))
        return OK

    @answers()
    def initialize_ext(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str, /
    ) -> int:
        """As `initialize`; the type of the metadata server does not matter where there is none."""
        text("metadata_type", metadata_type)
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    @answers()
    def get_rpc_port(self) -> int:
        """The port that peers name this engine by, in ``"host:port"``; -1 before `initialize`."""
        address = self._running().node.address or ""
        return int(address.rpartition(":")[2])

    @answers("{}")  # type: ignore[arg-type]
    def get_local_topology(self, device_name: str | None = None) -> str:
        """The transports in use, as JSON; cachefw has no map of cards and sockets."""
        return msgspec.json.encode({"transports": self._running().manager.transports}).decode()

    @answers(0)
    def get_first_buffer_address(self, segment_name: str, /) -> int:
        """Where a peer's first registered memory begins; 0 when it has none, or cannot be reached."""
        link = self._running().link(text("segment_name", segment_name))
        link.sync()
        return min(((m.memory_id, m.address) for m in link.memories), default=(0, 0))[1]

    # ------------------------------------------------------------------ transfers

    @answers()
    def transfer_sync_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Copy local memory into a peer's; 0 when it is there, else -1."""
        return self._sync(target_hostname, Operation.WRITE, buffer, peer_buffer_address, length, transport_hint)

    @answers()
    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Copy a peer's memory into local memory; 0 when it is there, else -1."""
        return self._sync(target_hostname, Operation.READ, buffer, peer_buffer_address, length, transport_hint)

    @answers()
    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Copy in the direction of `opcode`; the peer gets the notification after the last byte."""
        operation, note = operation_of(opcode), note_of(notify)
        return self._sync(target_hostname, operation, buffer, peer_buffer_address, length, transport_hint, note)

    def _sync(
        self, target: str, operation: Operation, local: int, remote: int, length: int, hint: str, note: Any = None
    ) -> int:
        pieces = address_of("buffer", local), address_of("peer_buffer_address", remote), address_of("length", length)
        return self._batch(target, operation, *pieces, hint, note)

    @answers()
    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        transport_hint: str = "",
    ) -> int:
        """Copy any number of pieces of local memory into a peer's; 0 when all are there, else -1."""
        return self._batch(target_hostname, Operation.WRITE, buffers, peer_buffer_addresses, lengths, transport_hint)

    @answers()
    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        transport_hint: str = "",
    ) -> int:
        """Copy any number of pieces of a peer's memory into local memory; 0 when all are there, else -1."""
        return self._batch(target_hostname, Operation.READ, buffers, peer_buffer_addresses, lengths, transport_hint)

    @answers()
    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Copy pieces in the direction of `opcode`; the peer gets the notification after the last byte."""
        operation, note = operation_of(opcode), note_of(notify)
        return self._batch(target_hostname, operation, buffers, peer_buffer_addresses, lengths, transport_hint, note)

    def _batch(
        self, target: str, operation: Operation, local: Any, remote: Any, lengths: Any, hint: str, note: Any = None
    ) -> int:
        self._move(target, operation, local, remote, lengths, hint, wait=True, note=note)
        return OK

    def _move(
        self,
        target: str,
        operation: Operation,
        local: Any,
        remote: Any,
        lengths: Any,
        hint: str,
        *,
        wait: bool,
        note: bytes | None = None,
    ) -> Transfer | None:
        if hint:
            raise UnsupportedOperation(f"transport_hint={hint!r}: a link has one transport, chosen when it was made")
        engine = self._running()
        if not isinstance(lengths, int) and len(lengths) == len(local) == len(remote) == 0:
            return None
        return engine.move(
            text("target_hostname", target),
            operation,
            local,
            remote,
            lengths,
            wait=wait,
            timeout=self._timeout,
            note=note,
        )

    @answers(0)
    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        transport_hint: str = "",
    ) -> int:
        """Start a `batch_transfer_sync_write`; its id, or 0."""
        return self._start(target_hostname, Operation.WRITE, buffers, peer_buffer_addresses, lengths, transport_hint)

    @answers(0)
    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        transport_hint: str = "",
    ) -> int:
        """Start a `batch_transfer_sync_read`; its id, or 0."""
        return self._start(target_hostname, Operation.READ, buffers, peer_buffer_addresses, lengths, transport_hint)

    @answers(0)
    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: list[int],
        peer_buffer_addresses: list[int],
        lengths: list[int],
        opcode: TransferOpcode,
        transport_hint: str = "",
    ) -> int:
        """Start a batch in the direction of `opcode`; its id, or 0."""
        operation = operation_of(opcode)
        return self._start(target_hostname, operation, buffers, peer_buffer_addresses, lengths, transport_hint)

    @answers(0)
    def transfer_submit_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Start a `transfer_sync_write`; its id for `transfer_check_status`, or 0."""
        pieces = address_of("buffer", buffer), address_of("peer_buffer_address", peer_buffer_address)
        size = address_of("length", length)
        return self._start(target_hostname, Operation.WRITE, *pieces, size, transport_hint)

    def _start(self, target: str, operation: Operation, local: Any, remote: Any, lengths: Any, hint: str) -> int:
        transfer = self._move(target, operation, local, remote, lengths, hint, wait=False)
        # The node keeps a list for those who ask it what has finished; here each batch is asked itself.
        self._running().node.completed()
        number = next(self._ids)
        self._batches[number] = _Batch(transfer)
        return number

    @answers()
    def get_batch_transfer_status(self, batch_ids: list[int], /) -> int:
        """Wait until batches are done, and forget those that are; 0 when all moved, -1 when one did not in time."""
        failed = False
        for number in batch_ids:
            code = self._end(address_of("batch_id", number), self._timeout)
            failed = failed or code != DONE
        return FAILED if failed else OK

    @answers()
    def transfer_check_status(self, batch_id: int, /) -> int:
        """1 when it is done and 0 while it runs, -1 when it failed; what has ended is forgotten."""
        code = self._end(address_of("batch_id", batch_id), None)
        return RUNNING if code == TIMED_OUT else code

    def _end(self, number: int, timeout: float | None) -> int:
        batch = self._batches.get(number)
        if batch is None:
            raise bad(f"there is no batch {number}, or its end was told already")
        transfer = batch.transfer
        if transfer is not None and not transfer.settled and (timeout is None or not transfer.wait(timeout)):
            if timeout is not None:
                _log.error("mooncake: batch %d did not settle within %g s: %r", number, timeout, transfer)
            return TIMED_OUT
        self._batches.pop(number, None)
        self._running().node.completed()
        error = None if transfer is None else transfer.error
        if error is not None:
            log_error("mooncake", f"batch {number}", error, FAILED)
            return FAILED
        return DONE

    # ------------------------------------------------------------------ the rest

    @answers()
    def get_notifies(self) -> list[TransferNotify]:
        """The notifications that came since the last call."""
        engine = self._engine
        notes = [] if engine is None else engine.node.notifications()
        return [TransferNotify(*decode_note(note.payload)) for note in notes]

    @answers(UNREACHABLE)
    def send_probe(self, peer_server_name: str, /) -> int:
        """Whether a peer answers now: 0, or -102."""
        link = self._running().link(text("peer_server_name", peer_server_name))
        link.sync()
        return OK

    def __getattr__(self, name: str) -> Any:
        # Only for what is not there: calls of Mooncake that have no meaning here say so.
        if name in ABSENT:
            raise UnsupportedOperationAttribute(f"TransferEngine.{name}: {ABSENT[name]}", operation=name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)


# As a field of the class as well, which inside it would hide the type.
TransferEngine.TransferOpcode = TransferOpcode  # type: ignore[attr-defined]
