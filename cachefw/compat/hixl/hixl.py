"""Class `Hixl`: engines that connect by address and move memory one-sidedly, answering with status numbers."""

from __future__ import annotations

import logging
from typing import Any

from cachefw.compat import npu
from cachefw.compat.engine import Engine, address_of, decode_note, encode_note, named_arguments, over, text
from cachefw.compat.hixl import options as hixl_options
from cachefw.compat.hixl.answers import Answer, answers
from cachefw.compat.hixl.connections import Connecting, Request, State, expect, seconds
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
from cachefw.links.address import parse_address
from cachefw.transport import Operation

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


class Hixl(Connecting):
    """An engine. Every call but a wrong argument's type is answered by a status; `SUCCESS` is 0.

    Thread safety: every method may be called from any thread.
    """

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
            self._state = State(engine, local_engine, checked)
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
        expect("mem_desc", mem_desc, MemDesc)
        expect("mem_type", mem_type, MemType)
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
        timeout = seconds(timeout_in_millis)
        expect("op", op, TransferOp)
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
        expect("op", op, TransferOp)
        expect("args", args, TransferArgs)
        local, remote, lengths = _columns(op_descs)
        state = self._running()
        link = self._link(state, remote_engine, state.engine.manager.link_timeout)
        transfer = over(link, _OPERATIONS[op], local, remote, lengths, wait=False, timeout=None)
        # The node keeps a list for those who ask it what has finished; here each request is asked itself.
        state.engine.node.completed()
        request = next(state.serials)
        state.requests[request] = Request(transfer, args.user_data)
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
        expect("args", args, GetTransferStatusArgs)
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
    def _report(state: State, number: int, request: Request) -> TransferStatus:
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
        timeout = seconds(timeout_in_millis)
        expect("notify", notify, NotifyDesc)
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
    expect("feature", feature, FeatureType)
    return SUCCESS, FEATURE_SUPPORTED


def _columns(op_descs: Any) -> tuple[list[int], list[int], list[int]]:
    if not isinstance(op_descs, (list, tuple)):
        raise refusal(RequestError, {TypeError}, f"op_descs must be a list, not {type(op_descs).__name__}")
    if not op_descs:
        raise Answer(PARAM_INVALID, "op_descs is empty")
    if set(map(type, op_descs)) != {TransferOpDesc}:
        for index, desc in enumerate(op_descs):
            expect(f"op_descs[{index}]", desc, TransferOpDesc)
    return (
        [desc.local_addr for desc in op_descs],
        [desc.remote_addr for desc in op_descs],
        [desc.len for desc in op_descs],
    )
