"""The module ``mooncake.engine``, answered by cachefw: class `TransferEngine`, with sessions named ``"host:port"``.

Signatures and return codes are those of Mooncake 0.3.13, as seen there. What is better, and what is refused, is told in
``docs/moving-from-hixl-and-mooncake.md``. Reasons are logged as ``cachefw.compat``.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import itertools
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import attrs
import msgspec

from cachefw.compat.engine import (
    Engine,
    address_of,
    decode_note,
    encode_note,
    log_error,
    named_arguments,
    text,
)
from cachefw.compat.protocols import chosen, device_settings
from cachefw.errors import CacheError, NotFoundError, RegistrationError, RequestError, UnsupportedOperation, refusal
from cachefw.links.door import parse_address
from cachefw.memory import Allocation, MemoryKind
from cachefw.registry import Memory
from cachefw.rules import GIB, Limits, Outcome
from cachefw.transport import Operation, Transfer

__all__ = ["TransferEngine", "TransferNotify", "TransferOpcode"]

_log = logging.getLogger("cachefw.compat")
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

#: Mooncake's numbers.
_OK, _FAILED = 0, -1
_NOT_REGISTERED, _OVERLAPPED, _UNREACHABLE = -3, -7, -102
_DONE, _RUNNING, _TIMED_OUT = 1, 0, -2

_HANDSHAKE = "P2PHANDSHAKE"
#: Mooncake sets no limit to what is registered.
_NO_LIMITS = Limits(addresses=2**31, device_bytes=2**20 * GIB, host_bytes=2**20 * GIB, source="Mooncake has none")


class TransferOpcode(enum.Enum):
    """READ is from the target, WRITE to it."""

    Read = 0
    Write = 1

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def __str__(self) -> str:
        return f"TransferOpcode.{self.name}"


@attrs.define(eq=False)
class TransferNotify:
    """A notification: two strings."""

    name: str = attrs.field(default="", validator=lambda _, at, value: _check_text(at.name, value))
    msg: str = attrs.field(default="", validator=lambda _, at, value: _check_text(at.name, value))


def _check_text(name: str, value: Any) -> None:
    text(name, value)


_OPERATIONS = {TransferOpcode.Read: Operation.READ, TransferOpcode.Write: Operation.WRITE}


def _answers(
    failed: int = _FAILED,
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Answer an error with a number and say in the log what it was; a wrong type stays a `TypeError`."""

    def decorate(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        @functools.wraps(method)
        def answer(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
            try:
                return method(*args, **kwargs)
            except CacheError as error:
                if isinstance(error, TypeError):
                    raise
                code = failed
                if isinstance(error, NotFoundError) and error.code == "not_found.memory":
                    code = _NOT_REGISTERED
                elif isinstance(error, RegistrationError) and _refused_by(error) == {"core.unique"}:
                    code = _OVERLAPPED
                log_error("mooncake", method.__name__, error, code)
                return code  # type: ignore[return-value]

        return named_arguments(answer)

    return decorate


def _refused_by(error: RegistrationError) -> set[str]:
    return {finding.rule for finding in error.findings if finding.outcome is Outcome.REFUSED}


def _bad(message: str) -> CacheError:
    return refusal(RequestError, {ValueError}, message)


def _timeout() -> float:
    """Seconds a transfer may take: Mooncake's variable, which means at least 5, or its default."""
    value = os.environ.get("MC_TRANSFER_TIMEOUT", "")
    return float(max(5, int(value))) if value.isascii() and value.isdigit() else 30.0


@attrs.frozen(eq=False)
class _Batch:
    """An asynchronous batch. None: it had nothing to wait for."""

    transfer: Transfer | None


class TransferEngine:
    """An engine. Calls answer with numbers, 0 or an id for success; a wrong argument's type is a `TypeError`.

    Thread safety: every method may be called from any thread.
    """

    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._timeout = _timeout()
        self._memory: dict[int, Memory] = {}
        self._buffers: dict[int, tuple[Allocation, int]] = {}
        self._batches: dict[int, _Batch] = {}
        self._ids = itertools.count(1)

    def _running(self) -> Engine:
        engine = self._engine
        if engine is None:
            raise _bad("this engine is not initialised")
        return engine

    # ------------------------------------------------------------------ life

    @_answers()
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
            raise _bad(f"metadata_server must be {_HANDSHAKE!r}, not {metadata_server!r}: peers are told by address")
        transports = chosen([protocol])
        settings = device_settings(transports, _device(device_name, protocol))
        engine = Engine(_listen(local_hostname), transports, _NO_LIMITS, settings)
        with self._lock:
            before, self._engine = self._engine, engine
            self._memory, self._buffers, self._batches = {}, {}, {}
        if before is not None:
            _log.warning("mooncake: initialised again; everything registered before is given back")
            before.close()
        _log.info("mooncake: listening on %s, by %s", engine.node.address, ", ".join(engine.manager.transports))
        return _OK

    @_answers()
    def initialize_ext(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str, /
    ) -> int:
        """As `initialize`; the type of the metadata server does not matter where there is none."""
        text("metadata_type", metadata_type)
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    @_answers()
    def get_rpc_port(self) -> int:
        """The port that peers name this engine by, in ``"host:port"``; -1 before `initialize`."""
        address = self._running().node.address or ""
        return int(address.rpartition(":")[2])

    @_answers("{}")  # type: ignore[arg-type]
    def get_local_topology(self, device_name: str | None = None) -> str:
        """The transports in use, as JSON; cachefw has no map of cards and sockets."""
        return msgspec.json.encode({"transports": self._running().manager.transports}).decode()

    # ------------------------------------------------------------------ memory

    @_answers()
    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Register memory that peers may read and write.

        Args:
            buffer_addr: First byte.
            capacity: Bytes, at least 1.
            location: ``"cpu:0"``, ``"npu:0"``, or ``"*"``, which lets the transports tell.

        Returns:
            0; -7 when it overlaps registered memory; -1 for what the transport's rules refuse.
        """
        address, length = address_of("buffer_addr", buffer_addr), address_of("capacity", capacity)
        engine, device = self._running(), _is_device(text("location", location))
        with self._lock:
            known = self._memory.get(address)
            if known is not None:
                # cachefw would count a second registration of the same range; Mooncake refuses it.
                _log.error("mooncake: register_memory returns %d: %s is registered already", _OVERLAPPED, known)
                return _OVERLAPPED
            self._memory[address] = engine.register(address, length, device)
        return _OK

    @_answers()
    def batch_register_memory(self, buffer_addresses: list[int], capacities: list[int], location: str = "*") -> int:
        """Register several ranges: all of them, or none.

        Returns:
            0; -7 or -1 as for `register_memory`.
        """
        if len(buffer_addresses) != len(capacities):
            raise _bad(f"{len(buffer_addresses)} addresses and {len(capacities)} capacities; give one of each")
        done: list[int] = []
        for address, length in zip(buffer_addresses, capacities, strict=True):
            code = self.register_memory(address, length, location)
            if code != _OK:
                for each in done:
                    self.unregister_memory(each)
                return code
            done.append(address)
        return _OK

    @_answers()
    def unregister_memory(self, buffer_addr: int, /) -> int:
        """Give memory back; peers let go of it first.

        Returns:
            0; -3 when nothing is registered at that address; -1 while a transfer uses it.
        """
        address = address_of("buffer_addr", buffer_addr)
        engine = self._running()
        with self._lock:
            memory = self._memory.get(address)
            if memory is None:
                raise NotFoundError(f"no memory is registered at {address:#x}", code="not_found.memory")
            engine.manager.unregister_memory(memory)
            del self._memory[address]
        return _OK

    @_answers()
    def batch_unregister_memory(self, buffer_addresses: list[int], /) -> int:
        """Give several ranges back, as many as can be; the first failure's code, else 0."""
        codes = [self.unregister_memory(address) for address in buffer_addresses]
        return next((code for code in codes if code != _OK), _OK)

    @_answers(0)
    def allocate_managed_buffer(self, length: int, /) -> int:
        """Memory that the transport moves best, registered; its address, or 0."""
        size = max(address_of("length", length), 1)
        engine = self._running()
        kind = MemoryKind.HOST if MemoryKind.HOST in engine.kinds else MemoryKind.DEVICE
        allocation = engine.manager.allocate(size, kind)
        try:
            memory = engine.register(allocation.address, size, kind is MemoryKind.DEVICE)
        except BaseException:
            allocation.close()
            raise
        with self._lock:
            self._memory[allocation.address] = memory
            self._buffers[allocation.address] = allocation, size
        return allocation.address

    @_answers()
    def free_managed_buffer(self, buffer_addr: int, length: int, /) -> int:
        """Give a managed buffer back.

        Returns:
            0; -1 for an address or a length that `allocate_managed_buffer` did not have, or while a transfer uses it.
        """
        address, size = address_of("buffer_addr", buffer_addr), max(address_of("length", length), 1)
        held = self._buffers.get(address)
        if held is None or held[1] != size:
            have = f"{held[1]:,} bytes are there" if held else "no managed buffer begins there"
            raise _bad(f"cannot free {size:,} bytes at {address:#x}: {have}")
        code = self.unregister_memory(address)
        if code == _OK:
            with self._lock:
                del self._buffers[address]
            held[0].close()
        return code

    @_answers()
    def write_bytes_to_buffer(self, dest_address: int, src_ptr: str | bytes, length: int, /) -> int:
        """Copy `length` bytes of a string into registered host memory; 0, or -1 when they are not in it."""
        data = src_ptr if isinstance(src_ptr, bytes) else text("src_ptr", src_ptr).encode()
        address, size = address_of("dest_address", dest_address), address_of("length", length)
        if size > len(data):
            raise _bad(f"{size:,} bytes are asked for, and the string has {len(data):,}")
        self._check_held(address, size)
        ctypes.memmove(address, data, size)
        return _OK

    def read_bytes_from_buffer(self, source_address: int, length: int, /) -> bytes:
        """A copy of registered host memory.

        Raises:
            RequestError: Also a `ValueError`: the bytes are not all in it.
        """
        address, size = address_of("source_address", source_address), address_of("length", length)
        self._check_held(address, size)
        return ctypes.string_at(address, size)

    def _check_held(self, address: int, length: int) -> None:
        """What is not registered may not be there, and touching it would end the process."""
        for memory in self._running().manager.registry.overlapping(address, address + max(length, 1)):
            region = memory.region
            if region.address <= address and address + length <= region.end and region.kind is not MemoryKind.DEVICE:
                return
        raise _bad(f"[{address:#x}, {address + length:#x}) is not in registered host memory")

    @_answers(0)
    def get_first_buffer_address(self, segment_name: str, /) -> int:
        """Where a peer's first registered memory begins; 0 when it has none, or cannot be reached."""
        link = self._running().link(text("segment_name", segment_name))
        link.sync()
        return min(((m.memory_id, m.address) for m in link.memories), default=(0, 0))[1]

    # ------------------------------------------------------------------ transfers

    @_answers()
    def transfer_sync_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Copy local memory into a peer's; 0 when it is there, else -1."""
        return self._sync(target_hostname, Operation.WRITE, buffer, peer_buffer_address, length, transport_hint)

    @_answers()
    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = ""
    ) -> int:
        """Copy a peer's memory into local memory; 0 when it is there, else -1."""
        return self._sync(target_hostname, Operation.READ, buffer, peer_buffer_address, length, transport_hint)

    @_answers()
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
        operation, note = _operation(opcode), _note(notify)
        return self._sync(target_hostname, operation, buffer, peer_buffer_address, length, transport_hint, note)

    def _sync(
        self, target: str, operation: Operation, local: int, remote: int, length: int, hint: str, note: Any = None
    ) -> int:
        pieces = address_of("buffer", local), address_of("peer_buffer_address", remote), address_of("length", length)
        return self._batch(target, operation, *pieces, hint, note)

    @_answers()
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

    @_answers()
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

    @_answers()
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
        operation, note = _operation(opcode), _note(notify)
        return self._batch(
            target_hostname, operation, buffers, peer_buffer_addresses, lengths, transport_hint, note
        )

    def _batch(
        self, target: str, operation: Operation, local: Any, remote: Any, lengths: Any, hint: str, note: Any = None
    ) -> int:
        self._move(target, operation, local, remote, lengths, hint, wait=True, note=note)
        return _OK

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

    @_answers(0)
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

    @_answers(0)
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

    @_answers(0)
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
        operation = _operation(opcode)
        return self._start(target_hostname, operation, buffers, peer_buffer_addresses, lengths, transport_hint)

    @_answers(0)
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

    @_answers()
    def get_batch_transfer_status(self, batch_ids: list[int], /) -> int:
        """Wait until batches are done, and forget those that are; 0 when all moved, -1 when one did not in time."""
        failed = False
        for number in batch_ids:
            code = self._end(address_of("batch_id", number), self._timeout)
            failed = failed or code != _DONE
        return _FAILED if failed else _OK

    @_answers()
    def transfer_check_status(self, batch_id: int, /) -> int:
        """1 when it is done and 0 while it runs, -1 when it failed; what has ended is forgotten."""
        code = self._end(address_of("batch_id", batch_id), None)
        return _RUNNING if code == _TIMED_OUT else code

    def _end(self, number: int, timeout: float | None) -> int:
        batch = self._batches.get(number)
        if batch is None:
            raise _bad(f"there is no batch {number}, or its end was told already")
        transfer = batch.transfer
        if transfer is not None and not transfer.settled and (timeout is None or not transfer.wait(timeout)):
            if timeout is not None:
                _log.error("mooncake: batch %d did not settle within %g s: %r", number, timeout, transfer)
            return _TIMED_OUT
        self._batches.pop(number, None)
        self._running().node.completed()
        error = None if transfer is None else transfer.error
        if error is not None:
            log_error("mooncake", f"batch {number}", error, _FAILED)
            return _FAILED
        return _DONE

    # ------------------------------------------------------------------ the rest

    @_answers()
    def get_notifies(self) -> list[TransferNotify]:
        """The notifications that came since the last call."""
        engine = self._engine
        notes = [] if engine is None else engine.node.notifications()
        return [TransferNotify(*decode_note(note.payload)) for note in notes]

    @_answers(_UNREACHABLE)
    def send_probe(self, peer_server_name: str, /) -> int:
        """Whether a peer answers now: 0, or -102."""
        link = self._running().link(text("peer_server_name", peer_server_name))
        link.sync()
        return _OK

    def __getattr__(self, name: str) -> Any:
        # Only for what is not there: calls of Mooncake that have no meaning here say so.
        if name in _ABSENT:
            raise UnsupportedOperationAttribute(f"TransferEngine.{name}: {_ABSENT[name]}", operation=name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)


class UnsupportedOperationAttribute(UnsupportedOperation, AttributeError):
    """A call of Mooncake's that cachefw does not offer; `hasattr` sees that it is not there."""


_CUDA = "cachefw has no transport for CUDA; use the calls without a stream"
_NATIVE = "there is no native engine of Mooncake's behind this one, so its store cannot share it"
_ABSENT = {
    "batch_transfer_read_on_cuda": _CUDA,
    "batch_transfer_write_on_cuda": _CUDA,
    "get_engine": _NATIVE,
    "get_engine_ptr": _NATIVE,
    "transfer_read_on_cuda": _CUDA,
    "transfer_write_on_cuda": _CUDA,
    "warmup_efa_segment": "cachefw has no transport for EFA",
}


def _operation(opcode: Any) -> Operation:
    if not isinstance(opcode, TransferOpcode):
        raise refusal(RequestError, {TypeError}, f"opcode must be a TransferOpcode, not {opcode!r}")
    return _OPERATIONS[opcode]


def _note(notify: Any) -> bytes | None:
    if notify is None:
        return None
    if not isinstance(notify, TransferNotify):
        raise refusal(RequestError, {TypeError}, f"notify must be a TransferNotify or None, not {notify!r}")
    return encode_note(notify.name, notify.msg)


def _listen(local_hostname: str) -> str:
    """The address to listen on; a free port unless Mooncake too would take the one that is given."""
    if not local_hostname:
        raise _bad("local_hostname is empty")
    host, port = local_hostname, 0
    if local_hostname.count(":") == 1 or "]:" in local_hostname:
        host, port = parse_address(local_hostname, "initialize")
        if not os.environ.get("MC_LEGACY_RPC_PORT_BINDING"):
            port = 0
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _device(device_name: str, protocol: str) -> int:
    number = device_name.rpartition(":")[2]
    if protocol == "ascend" and number.isascii() and number.isdigit():
        return int(number)
    if device_name:
        _log.warning("mooncake: device_name %r is passed over; the transport chooses", device_name)
    return 0


def _is_device(location: str) -> bool | None:
    kind = location.partition(":")[0]
    if kind in ("cpu", "*", ""):
        return False if kind == "cpu" else None
    return True
