"""The half of `Hixl` that connects, and what an initialised engine has."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import attrs

from cachefw.compat.engine import Engine, log_error, text
from cachefw.compat.hixl.answers import Answer, answers
from cachefw.compat.hixl.connector import Connector
from cachefw.compat.hixl.options import Options
from cachefw.compat.hixl.values import (
    ALREADY_CONNECTED,
    FAILED,
    NOT_CONNECTED,
    PARAM_INVALID,
    RESOURCE_EXHAUSTED,
    SUCCESS,
    AsyncConnectStatus,
    TransferStatus,
)
from cachefw.errors import BrokenError, RequestError, refusal
from cachefw.links.address import parse_address
from cachefw.links.link import Link, LinkState
from cachefw.registry import Memory
from cachefw.transport import Transfer

__all__ = ["Connecting", "Request", "State", "expect", "seconds"]


@attrs.define
class Connection:
    """A remote engine that this side connected to."""

    link: Link


@attrs.frozen(eq=False)
class Request:
    """An asynchronous transfer. None: it had nothing to move."""

    transfer: Transfer | None
    user_data: int

    def status(self) -> TransferStatus:
        """How far it is."""
        if self.transfer is None:
            return TransferStatus.COMPLETED
        if not self.transfer.settled:
            return TransferStatus.WAITING
        error = self.transfer.error
        if error is None:
            return TransferStatus.COMPLETED
        log_error("hixl", "transfer_async", error, TransferStatus.FAILED)
        return TransferStatus.FAILED


class State:
    """What an initialised engine has."""

    def __init__(self, engine: Engine, name: str, options: Options) -> None:
        self.engine = engine
        self.name = name
        self.auto_connect = options.auto_connect
        self.connector = Connector(options.connect_threads, options.connect_capacity)
        self.lock = threading.Lock()
        self.connections: dict[str, Connection] = {}
        self.memory: dict[int, Memory] = {}
        self.requests: dict[int, Request] = {}
        self.serials = itertools.count(1)


class Connecting:
    """Connections by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: State | None = None

    def _running(self) -> State:
        state = self._state
        if state is None:
            raise Answer(FAILED, "this engine is not initialised, or finalized")
        return state

    @answers()
    def connect(self, remote_engine: str, timeout_in_millis: int = 1000) -> int:
        """Connect to an engine, for transfers that start here.

        Returns:
            `SUCCESS`; `ALREADY_CONNECTED`; `PARAM_INVALID` for a bad address, this engine's own, or a timeout of 0;
            `TIMEOUT` when it does not answer; `FAILED` when nothing listens there.
        """
        timeout = seconds(timeout_in_millis)
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
    def _connect(state: State, remote: str, timeout: float) -> int:
        known = state.connections.get(remote)
        if known is not None and known.link.state is LinkState.UP:
            return ALREADY_CONNECTED
        link = state.engine.link(remote, timeout)
        with state.lock:
            state.connections[remote] = Connection(link)
        return SUCCESS

    @answers()
    def disconnect(self, remote_engine: str, timeout_in_millis: int = 1000) -> int:
        """Undo `connect`; running transfers settle first.

        Returns:
            `SUCCESS`; `NOT_CONNECTED`.
        """
        seconds(timeout_in_millis)
        return self._disconnect(self._running(), text("remote_engine", remote_engine))

    @staticmethod
    def _disconnect(state: State, remote: str) -> int:
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
        timeout, state, remote = seconds(timeout_in_millis), self._running(), self._remote(remote_engine)
        return self._queue(state, remote, True, answers()(lambda: self._connect(state, remote, timeout)))

    @answers()
    def disconnect_async(self, remote_engine: str, timeout_in_millis: int = 1000) -> int:
        """Queue a `disconnect`; see `get_async_connect_status`. `RESOURCE_EXHAUSTED` when the queue is full."""
        seconds(timeout_in_millis)
        state, remote = self._running(), self._remote(remote_engine)
        return self._queue(state, remote, False, answers()(lambda: self._disconnect(state, remote)))

    @staticmethod
    def _queue(state: State, remote: str, connecting: bool, work: Callable[[], int]) -> int:
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

    def _link(self, state: State, remote: str, timeout: float) -> Link:
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


def expect(name: str, value: Any, kind: type) -> None:
    """Refuse a value of another type."""
    if not isinstance(value, kind):
        raise refusal(
            RequestError, {TypeError}, f"{name} must be a {kind.__name__}, not {value!r} ({type(value).__name__})"
        )


def seconds(millis: Any) -> float:
    """A timeout in seconds; `PARAM_INVALID` for 0 and less."""
    if not isinstance(millis, int):
        raise refusal(RequestError, {TypeError}, f"timeout_in_millis must be an int, not {millis!r}")
    if millis <= 0:
        raise Answer(PARAM_INVALID, f"timeout_in_millis must be more than 0, not {millis}")
    return millis / 1000
