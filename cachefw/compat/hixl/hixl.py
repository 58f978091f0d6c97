"""Class `Hixl`: engines that connect by address and move memory one-sidedly, answering with status numbers."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any

import attrs

from cachefw.compat import npu
from cachefw.compat.engine import Engine, address_of, decode_note, encode_note, log_error, named_arguments, over, text
from cachefw.compat.hixl import options as hixl_options
from cachefw.compat.hixl.answers import Answer, answers
from cachefw.compat.hixl.connecting import Connector
from cachefw.compat.hixl.values import *  # noqa: F403
from cachefw.compat.hixl.values import (
    ALREADY_CONNECTED,
    FAILED,
    FEATURE_SUPPORTED,
    NOT_CONNECTED,
    NOTIFY_FAILED,
    PARAM_INVALID,
    RESOURCE_EXHAUSTED,
    SUCCESS,
    TIMEOUT,
    UNSUPPORTED,
    AsyncConnectStatus,
    FeatureType,
    GetTransferStatusArgs,
    MemDesc,
    MemType,
    NotifyDesc,
    TransferArgs,
    TransferOp,
    TransferOpDesc,
    TransferResult,
    TransferStatus,
)
from cachefw.compat.protocols import available, chosen, device_settings
from cachefw.errors import (
    BrokenError,
    RequestError,
    refusal,
)
from cachefw.links.door import parse_address
from cachefw.links.link import Link, LinkState
from cachefw.registry import Memory
from cachefw.transport import Operation, Transfer

__all__ = [  # noqa: F405 - all but two come from `values`
    "ALREADY_CONNECTED",
    "AUTO_CONNECT",
    "CLIENT_SERVER_COMM",
    "CONNECTED",
    "CONNECTING",
    "CONNECT_FAILED",
    "CONNECT_PENDING",
    "DISCONNECTING",
    "DISCONNECT_PENDING",
    "FAILED",
    "FEATURE_NOT_SUPPORTED",
    "FEATURE_SUPPORTED",
    "MEM_DEVICE",
    "MEM_HOST",
    "NOTIFY_FAILED",
    "NOT_CONNECT",
    "NOT_CONNECTED",
    "OPTION_AUTO_CONNECT",
    "OPTION_BUFFER_POOL",
    "OPTION_ENABLE_USE_FABRIC_MEM",
    "OPTION_GLOBAL_RESOURCE_CONFIG",
    "OPTION_LOCAL_COMM_RES",
    "OPTION_RDMA_SERVICE_LEVEL",
    "OPTION_RDMA_TRAFFIC_CLASS",
    "PARAM_INVALID",
    "READ",
    "RESOURCE_EXHAUSTED",
    "SUCCESS",
    "TIMEOUT",
    "UNSUPPORTED",
    "WRITE",
    "AsyncConnectStatus",
    "FeatureType",
    "GetTransferStatusArgs",
    "Hixl",
    "MemDesc",
    "MemType",
    "NotifyDesc",
    "TransferArgs",
    "TransferOp",
    "TransferOpDesc",
    "TransferResult",
    "TransferStatus",
    "get_capability",
]

_log = logging.getLogger("cachefw.compat")
_NOTE_LIMIT = 1024
_OPERATIONS = {TransferOp.READ: Operation.READ, TransferOp.WRITE: Operation.WRITE}


@attrs.define
class _Connection:
    """A remote engine that this side connected to."""

    link: Link


@attrs.frozen(eq=False)
class _Request:
    """An asynchronous transfer. None: it had nothing to move."""

    transfer: Transfer | None
    user_data: int

    def status(self) -> TransferStatus:
        if self.transfer is None:
            return TransferStatus.COMPLETED
        if not self.transfer.settled:
            return TransferStatus.WAITING
        error = self.transfer.error
        if error is None:
            return TransferStatus.COMPLETED
        log_error("hixl", "transfer_async", error, TransferStatus.FAILED)
        return TransferStatus.FAILED


class _State:
    """What an initialised engine has."""

    def __init__(self, engine: Engine, name: str, options: hixl_options.Options) -> None:
        self.engine = engine
        self.name = name
        self.auto_connect = options.auto_connect
        self.connector = Connector(options.connect_threads, options.connect_capacity)
        self.lock = threading.Lock()
        self.connections: dict[str, _Connection] = {}
        self.memory: dict[int, Memory] = {}
        self.requests: dict[int, _Request] = {}
        self.serials = itertools.count(1)


class Hixl:
    """An engine. Every call but a wrong argument's type is answered by a status; `SUCCESS` is 0.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: _State | None = None

    def _running(self) -> _State:
        state = self._state
        if state is None:
            raise Answer(FAILED, "this engine is not initialised, or finalized")
        return state

    # ------------------------------------------------------------------ life

    @answers()
    def initialize(self, local_engine: str, options: dict[str, str] = {}) -> int:  # noqa: B006 - HIXL's default
        """Start the engine.

        Args:
            local_engine: ``"ip:port"``, IPv6 in brackets; port 0 connects only. Loopback addresses only.
            options: Of the ``OPTION_...`` keys, and ``cachefw.transports``.

        Returns:
            `SUCCESS`, also for an engine that is initialised already, which changes nothing; `PARAM_INVALID` for a bad
            address or option; `UNSUPPORTED` for a protocol or transport that is not to be had; `FAILED`.
        """
        text("local_engine", local_engine)
        with self._lock:
            if self._state is not None:
                return SUCCESS
            _, port = parse_address(local_engine, "initialize")
            checked = hixl_options.read(options)
            transports = chosen(checked.protocols, checked.transports) or available()
            # HIXL takes the device that the caller's thread has set; here only the shim knows of one.
            settings = device_settings(transports, npu.current_device())
            engine = Engine(local_engine if port else None, transports, None, settings)
            self._state = _State(engine, local_engine, checked)
            _log.info("hixl: %s uses %s", local_engine, ", ".join(engine.manager.transports))
        return SUCCESS

    def finalize(self) -> None:
        """Close the engine; it may be initialised again. Idempotent."""
        with self._lock:
            state, self._state = self._state, None
            if state is not None:
                state.connector.close()
                state.engine.close()

    # ------------------------------------------------------------------ memory

    @answers(lambda status: (status, 0))
    def register_mem(self, mem_desc: MemDesc, mem_type: MemType, /) -> tuple[int, int]:
        """Register memory that connected engines may then read and write.

        Returns:
            Status and handle; the same handle for the same range.
        """
        _expect("mem_desc", mem_desc, MemDesc)
        _expect("mem_type", mem_type, MemType)
        state = self._running()
        if not mem_desc.addr:
            raise Answer(PARAM_INVALID, "the address is 0")
        with state.lock:
            for handle, memory in state.memory.items():
                if (memory.region.address, memory.region.length) == (mem_desc.addr, mem_desc.len):
                    return SUCCESS, handle
            memory = state.engine.register(mem_desc.addr, mem_desc.len, mem_type is MemType.MEM_DEVICE)
            state.memory[memory.memory_id] = memory
        return SUCCESS, memory.memory_id

    @answers()
    def deregister_mem(self, handle: int, /) -> int:
        """Give memory back; connected engines let go of it first.

        Returns:
            `SUCCESS`, also for a handle that is unknown or given back; `PARAM_INVALID` for 0; `FAILED` while a transfer
            uses the memory.
        """
        number = address_of("handle", handle)
        state = self._running()
        if not number:
            raise Answer(PARAM_INVALID, "the handle is 0")
        with state.lock:
            memory = state.memory.get(number)
            if memory is not None:
                state.engine.manager.unregister_memory(memory)
                del state.memory[number]
        return SUCCESS

    # ------------------------------------------------------------------ connections

    @answers()
    def connect(self, remote_engine: str, timeout_in_millis: int = 1000) -> int:
        """Connect to an engine, for transfers that start here.

        Returns:
            `SUCCESS`; `ALREADY_CONNECTED`; `PARAM_INVALID` for a bad address, this engine's own, or a timeout of 0;
            `TIMEOUT` when it does not answer; `FAILED` when nothing listens there.
        """
        timeout = _seconds(timeout_in_millis)
        return self._connect(self._running(), self._remote(remote_engine), timeout)

    def _remote(self, remote_engine: str) -> str:
        text("remote_engine", remote_engine)
        _, port = parse_address(remote_engine, "connect")
        if not port:
            raise Answer(PARAM_INVALID, f"{remote_engine} has port 0: it takes no connections")
        if remote_engine == self._running().name:
            raise Answer(PARAM_INVALID, f"{remote_engine} is this engine itself")
        return remote_engine

    @staticmethod
    def _connect(state: _State, remote: str, timeout: float) -> int:
        known = state.connections.get(remote)
        if known is not None and known.link.state is LinkState.UP:
            return ALREADY_CONNECTED
        link = state.engine.link(remote, timeout)
        with state.lock:
            state.connections[remote] = _Connection(link)
        return SUCCESS

    @answers()
    def disconnect(self, remote_engine: str, timeout_in_millis: int = 1000) -> int:
        """Undo `connect`; running transfers settle first.

        Returns:
            `SUCCESS`; `NOT_CONNECTED`.
        """
        _seconds(timeout_in_millis)
        return self._disconnect(self._running(), text("remote_engine", remote_engine))

    @staticmethod
    def _disconnect(state: _State, remote: str) -> int:
        with state.lock:
            known = state.connections.pop(remote, None)
            if known is None:
                raise Answer(NOT_CONNECTED, f"{remote} is not connected")
            shared = any(other.link is known.link for other in state.connections.values())
        if not shared:
            state.engine.node.unlink(known.link)
        return SUCCESS

    @answers()
    def connect_async(self, remote_engine: str, timeout_in_millis: int = 1000) -> int:
        """Queue a `connect`; see `get_async_connect_status`. `RESOURCE_EXHAUSTED` when the queue is full."""
        timeout, state, remote = _seconds(timeout_in_millis), self._running(), self._remote(remote_engine)
        return self._queue(state, remote, True, answers()(lambda: self._connect(state, remote, timeout)))

    @answers()
    def disconnect_async(self, remote_engine: str, timeout_in_millis: int = 1000) -> int:
        """Queue a `disconnect`; see `get_async_connect_status`. `RESOURCE_EXHAUSTED` when the queue is full."""
        _seconds(timeout_in_millis)
        state, remote = self._running(), self._remote(remote_engine)
        return self._queue(state, remote, False, answers()(lambda: self._disconnect(state, remote)))

    @staticmethod
    def _queue(state: _State, remote: str, connecting: bool, work: Callable[[], int]) -> int:
        if not state.connector.submit(remote, connecting, work):
            raise Answer(RESOURCE_EXHAUSTED, "too many connects and disconnects are waiting")
        return SUCCESS

    @answers(lambda status: (status, AsyncConnectStatus.NOT_CONNECT))
    def get_async_connect_status(self, remote: str, /) -> tuple[int, AsyncConnectStatus]:
        """How far the latest asynchronous task of an engine is; `NOT_CONNECT` when it never had one."""
        return SUCCESS, self._running().connector.status(text("remote", remote))

    @answers(lambda status: (status, {}))
    def get_all_async_connect_status(self) -> tuple[int, dict[str, AsyncConnectStatus]]:
        """The same of every engine that had one."""
        return SUCCESS, self._running().connector.statuses()

    def _link(self, state: _State, remote: str, timeout: float) -> Link:
        """The link for a transfer to an engine."""
        known = state.connections.get(remote)
        if known is not None and known.link.state is LinkState.UP:
            return known.link
        if state.auto_connect:
            self._connect(state, self._remote(remote), timeout)
            return state.connections[remote].link
        if known is None:
            raise Answer(NOT_CONNECTED, f"{text('remote_engine', remote)} is not connected")
        # One link serves both sides, and the other side's disconnect took it down. This side is connected still, unless
        # what listens there now was started anew: its memory is not the one that was meant.
        old, reason = known.link.incarnation, known.link.reason
        try:
            link = state.engine.link(remote, timeout)
        except BrokenError as error:
            raise Answer(NOT_CONNECTED, f"the connection to {remote} is gone ({reason}): {error}") from error
        if link.incarnation != old:
            raise Answer(NOT_CONNECTED, f"{remote} was started anew; disconnect and connect again")
        known.link = link
        return link

    # ------------------------------------------------------------------ transfers

    @answers()
    def transfer_sync(
        self, remote_engine: str, op: TransferOp, op_descs: list[TransferOpDesc], timeout_in_millis: int = 1000
    ) -> int:
        """Move pieces, and return when they are moved.

        Returns:
            `SUCCESS`; `PARAM_INVALID` for a range outside registered memory on either side, two pieces that write the
            same byte, or a timeout of 0; `NOT_CONNECTED`; `TIMEOUT`; `FAILED`.
        """
        timeout = _seconds(timeout_in_millis)
        _expect("op", op, TransferOp)
        local, remote, lengths = _columns(op_descs)
        link = self._link(self._running(), remote_engine, timeout)
        over(link, _OPERATIONS[op], local, remote, lengths, wait=True, timeout=timeout)
        return SUCCESS

    @answers(lambda status: (status, 0))
    def transfer_async(
        self,
        remote_engine: str,
        op: TransferOp,
        op_descs: list[TransferOpDesc],
        args: TransferArgs = TransferArgs(),  # noqa: B008 - HIXL's default
    ) -> tuple[int, int]:
        """Start moving pieces.

        Returns:
            Status and request; the request is 0 on failure. See `get_transfer_status`.
        """
        _expect("op", op, TransferOp)
        _expect("args", args, TransferArgs)
        local, remote, lengths = _columns(op_descs)
        state = self._running()
        link = self._link(state, remote_engine, state.engine.manager.link_timeout)
        transfer = over(link, _OPERATIONS[op], local, remote, lengths, wait=False, timeout=None)
        # The node keeps a list for those who ask it what has finished; here each request is asked itself.
        state.engine.node.completed()
        request = next(state.serials)
        state.requests[request] = _Request(transfer, args.user_data)
        return SUCCESS, request

    @answers(lambda status: (status, TransferStatus.FAILED))
    def get_transfer_status(self, req: int, /) -> tuple[int, TransferStatus]:
        """How far a request is; once it is reported as completed or failed it is gone."""
        number = address_of("req", req)
        state = self._running()
        if not number:
            raise Answer(FAILED, "the request is 0")
        request = state.requests.get(number)
        if request is None:
            raise Answer(PARAM_INVALID, f"there is no request {number}, or its end was reported already")
        return SUCCESS, self._report(state, number, request)

    @answers(lambda status: (status, []))
    def get_all_transfer_status(
        self,
        args: GetTransferStatusArgs = GetTransferStatusArgs(),  # noqa: B008 - HIXL's default
    ) -> tuple[int, list[TransferResult]]:
        """How far requests are, oldest first; those reported as completed or failed are gone."""
        _expect("args", args, GetTransferStatusArgs)
        state = self._running()
        results: list[TransferResult] = []
        for number, request in sorted(state.requests.items()):
            if len(results) >= args.max_query_count:
                break
            if args.skip_waiting and request.transfer is not None and not request.transfer.settled:
                continue
            status = self._report(state, number, request)
            results.append(TransferResult.of(number, request.user_data, status))
        return SUCCESS, results

    @staticmethod
    def _report(state: _State, number: int, request: _Request) -> TransferStatus:
        status = request.status()
        if status is not TransferStatus.WAITING:
            state.requests.pop(number, None)
            state.engine.node.completed()
        return status

    # ------------------------------------------------------------------ notifications

    @answers()
    def send_notify(self, remote_engine: str, notify: NotifyDesc, timeout_in_millis: int = 1000) -> int:
        """Send a notification, and return when the other engine has it.

        Returns:
            `SUCCESS`; `PARAM_INVALID` for a name or message of more than 1024 characters; `NOT_CONNECTED`; `TIMEOUT`;
            `NOTIFY_FAILED`.
        """
        timeout = _seconds(timeout_in_millis)
        _expect("notify", notify, NotifyDesc)
        for name, value in (("name", notify.name), ("notify_msg", notify.notify_msg)):
            if len(value) > _NOTE_LIMIT:
                raise Answer(PARAM_INVALID, f"{name} has {len(value):,} characters; at most {_NOTE_LIMIT:,}")
        link = self._link(self._running(), remote_engine, timeout)
        try:
            link.notify(encode_note(notify.name, notify.notify_msg))
            # Messages stay in order, so the answer to this one says that the one before it has arrived.
            link.sync(timeout)
        except BrokenError as error:
            raise Answer(NOTIFY_FAILED, str(error)) from error
        return SUCCESS

    @answers(lambda status: (status, []))
    def get_notifies(self) -> tuple[int, list[NotifyDesc]]:
        """The notifications that came since the last call."""
        notes = (decode_note(note.payload) for note in self._running().engine.node.notifications())
        return SUCCESS, [NotifyDesc(name, message) for name, message in notes]


@named_arguments
def get_capability(feature: FeatureType, /) -> tuple[int, int]:
    """Whether a feature is to be had: status and `FEATURE_SUPPORTED`, which every one is."""
    _expect("feature", feature, FeatureType)
    return SUCCESS, FEATURE_SUPPORTED


def _expect(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise refusal(
            RequestError, {TypeError}, f"{name} must be a {kind.__name__}, not {value!r} ({type(value).__name__})"
        )


def _seconds(millis: Any) -> float:
    if not isinstance(millis, int):
        raise refusal(RequestError, {TypeError}, f"timeout_in_millis must be an int, not {millis!r}")
    if millis <= 0:
        raise Answer(PARAM_INVALID, f"timeout_in_millis must be more than 0, not {millis}")
    return millis / 1000


def _columns(op_descs: Any) -> tuple[list[int], list[int], list[int]]:
    if not isinstance(op_descs, (list, tuple)):
        raise refusal(RequestError, {TypeError}, f"op_descs must be a list, not {type(op_descs).__name__}")
    if not op_descs:
        raise Answer(PARAM_INVALID, "op_descs is empty")
    if set(map(type, op_descs)) != {TransferOpDesc}:
        for index, desc in enumerate(op_descs):
            _expect(f"op_descs[{index}]", desc, TransferOpDesc)
    return (
        [desc.local_addr for desc in op_descs],
        [desc.remote_addr for desc in op_descs],
        [desc.len for desc in op_descs],
    )
