"""The data port of one open transport, and the thread that greets new streams, whichever end dialled them."""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from cachefw.errors import AuthenticationError, BrokenError, CacheError

from .greeting import HELLO_BYTES, Greeting, Role, answer, name_in
from .status import TRANSPORT

__all__ = ["GREETING_SECONDS", "Gate", "Session", "listener", "tuned"]

#: How long a new stream may take until it has proved whose it is.
GREETING_SECONDS = 5.0
#: As many may be at it at once that others dialled; the oldest makes room.
HALF_OPEN = 64


class Session(Protocol):
    """What a gate has to know of a link."""

    name: bytes
    key: bytes

    def join(self, connection: socket.socket, role: Role, *, accepted: bool) -> None:
        """Both ends have greeted each other: this stream is the session's. Takes the socket over, whatever happens.

        Args:
            connection: The socket.
            role: This end's.
            accepted: Whether the other end dialled.
        """

    def failed(self, error: CacheError) -> None:
        """A stream that this end dialled did not come about."""

    def look(self) -> None:
        """The native side may have something to say."""


class _HalfOpen:
    __slots__ = ("accepted", "connecting", "got", "greeting", "need", "session", "socket", "until")

    def __init__(self, connection: socket.socket, session: Session | None = None) -> None:
        self.socket = connection
        self.session = session
        self.accepted = session is None
        self.greeting: Greeting | None = None
        self.got = b""
        self.need = HELLO_BYTES
        self.connecting = False
        self.until = time.monotonic() + GREETING_SECONDS


class Gate:
    """Accepts streams, holds each to its greeting, and hands those that pass to their session.

    Thread safety: every method may be called from any thread.

    Args:
        more: A descriptor that is readable when sessions have to be looked at.
        timeout: Seconds after which a connection whose other end is silent counts as cut.
    """

    def __init__(self, more: int, timeout: float) -> None:
        self._more = more
        self._timeout = timeout
        self._lock = threading.Lock()
        self._sessions: dict[bytes, Session] = {}
        # Names of those that have ended, as many as are worth a quick answer.
        self._ended: collections.deque[bytes] = collections.deque(maxlen=1024)
        self._orders: collections.deque[Callable[[], None]] = collections.deque()
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        # Touched by the thread alone.
        self._selector = selectors.DefaultSelector()
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError:
            self._selector.close()
            raise
        self._half_open: dict[_HalfOpen, None] = {}
        self._looks: list[tuple[float, Session]] = []

    def listen(self, connection: socket.socket) -> None:
        """Accept from a listening socket, which it takes over."""
        with self._lock:
            self._listener = connection
            if self._thread is not None:
                self._order(lambda: self._watch(connection))

    def _watch(self, connection: socket.socket) -> None:
        self._selector.register(connection, selectors.EVENT_READ)

    def admit(self, session: Session) -> None:
        """Let streams of this session in, from now on."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="cachefw-host-gate", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise BrokenError(
                        f"the thread that lets streams in cannot be started: {error}",
                        code="stream.thread",
                        operation="connect",
                        transport=TRANSPORT,
                        detail=str(error),
                    ) from None
                self._thread = thread
                if (connection := self._listener) is not None:
                    self._order(lambda: self._watch(connection))
            self._sessions[session.name] = session
        self._order(self._unpark)

    def dismiss(self, session: Session) -> None:
        """Let no stream of this session in any more."""
        with self._lock:
            if self._sessions.pop(session.name, None) is not None:
                self._ended.append(session.name)

    def greet(self, connection: socket.socket, session: Session, greeting: Greeting, *, connecting: bool) -> None:
        """Have a stream that this end dialled greet the other end, which may not know the session yet."""

        def start() -> None:
            half = _HalfOpen(connection, session)
            half.greeting, half.connecting = greeting, connecting
            self._half_open[half] = None
            if connecting:
                self._selector.register(connection, selectors.EVENT_WRITE, half)
            else:
                self._begin(half)

        self._order(start)

    def later(self, session: Session, seconds: float) -> None:
        """Have a session look again after a while."""
        self._order(lambda: self._looks.append((time.monotonic() + seconds, session)))

    def close(self) -> None:
        """Close the port and every stream that is still greeting. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
        os.eventfd_write(self._wake, 1)
        if thread is None:
            self._end()
        elif thread is not threading.current_thread():
            thread.join()

    def _order(self, work: Callable[[], None]) -> None:
        self._orders.append(work)
        os.eventfd_write(self._wake, 1)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._selector.register(self._more, selectors.EVENT_READ)
        try:
            while not self._closed:
                times = [half.until for half in self._half_open] + [at for at, _ in self._looks]
                until = min(times, default=None)
                events = self._selector.select(None if until is None else max(until - time.monotonic(), 0))
                for key, _ in events:
                    self._happened(key.fileobj, key.data)
                while self._orders:
                    self._orders.popleft()()
                now = time.monotonic()
                for half in [half for half in self._half_open if half.until <= now]:
                    self._drop(half, _silent())
                due = [session for at, session in self._looks if at <= now]
                self._looks = [(at, session) for at, session in self._looks if at > now]
                self._look(due)
        finally:
            self._end()

    def _look(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            with self._lock:
                known = self._sessions.get(session.name) is session
            if known:
                session.look()

    def _happened(self, source: Any, half: _HalfOpen | None) -> None:
        if half is not None:
            # Dropped meanwhile, in the same round, to make room for another?
            if half in self._half_open:
                self._go_on(half)
        elif source is self._listener:
            self._accept()
        else:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(source)
            if source == self._more:
                with self._lock:
                    sessions = list(self._sessions.values())
                self._look(sessions)

    def _accept(self) -> None:
        assert self._listener is not None  # noqa: S101 - it is what has happened
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # Gone again already, or no descriptor is left: a pause, or this would be tried without end.
            time.sleep(0.01)
            return
        strangers = [half for half in self._half_open if half.session is None]
        if len(strangers) >= HALF_OPEN:
            self._drop(strangers[0], _silent())
        half = _HalfOpen(connection)
        try:
            tuned(connection, self._timeout)
            connection.setblocking(False)
        except OSError:
            connection.close()
            return
        self._half_open[half] = None
        self._selector.register(connection, selectors.EVENT_READ, half)

    def _go_on(self, half: _HalfOpen) -> None:
        if half.connecting:
            number = half.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._selector.unregister(half.socket)
            half.connecting = False
            if number:
                self._drop(half, unreachable(number))
            else:
                self._begin(half)
            return
        try:
            # Never more than is due: what follows is for the native side.
            data = half.socket.recv(half.need - len(half.got))
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(half, unreachable(error.errno or errno.EIO))
            return
        if not data:
            self._drop(half, unreachable(errno.ECONNRESET))
            return
        half.got += data
        if len(half.got) < half.need:
            return
        said, half.got = half.got, b""
        if half.greeting is not None:
            self._answered(half, said)
        else:
            self._introduced(half, said)

    def _begin(self, half: _HalfOpen) -> None:
        self._selector.register(half.socket, selectors.EVENT_READ, half)
        self._answered(half, None)

    def _introduced(self, half: _HalfOpen, hello: bytes) -> None:
        try:
            name = name_in(hello)
        except AuthenticationError as error:
            self._drop(half, error)
            return
        with self._lock:
            session = self._sessions.get(name)
            ended = name in self._ended
        if ended:
            self._drop(half, _silent())
            return
        if session is None:
            # The two ends of a link open their channels at the same time: ours may be about to.
            half.got, half.need = hello, 0
            self._selector.unregister(half.socket)
            return
        half.session = session
        half.greeting = answer(session.key, hello)
        self._answered(half, None)

    def _unpark(self) -> None:
        for half in [half for half in self._half_open if half.greeting is None and half.need == 0]:
            hello, half.got = half.got, b""
            self._selector.register(half.socket, selectors.EVENT_READ, half)
            self._introduced(half, hello)

    def _answered(self, half: _HalfOpen, said: bytes | None) -> None:
        assert half.greeting is not None  # noqa: S101 - set by the callers
        try:
            while True:
                words, half.need = half.greeting.send(said)  # type: ignore[arg-type]
                # A few bytes into an empty buffer: all or a peer that does not read.
                if half.socket.send(words) != len(words):
                    self._drop(half, _silent())
                    return
                if half.need:
                    return
                said = b""
        except StopIteration as done:
            self._forget(half)
            session = half.session
            assert session is not None  # noqa: S101 - it has greeted
            with self._lock:
                known = self._sessions.get(session.name) is session
            if known:
                session.join(half.socket, done.value, accepted=half.accepted)
            else:
                half.socket.close()
        except CacheError as error:
            self._drop(half, error)
        except OSError as error:
            self._drop(half, unreachable(error.errno or errno.EIO))

    def _forget(self, half: _HalfOpen) -> None:
        self._half_open.pop(half, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(half.socket)

    def _drop(self, half: _HalfOpen, error: CacheError) -> None:
        self._forget(half)
        half.socket.close()
        if half.session is not None:
            half.session.failed(error)

    def _end(self) -> None:
        while self._orders:
            self._orders.popleft()()
        for half in list(self._half_open):
            self._drop(half, _silent())
        self._selector.close()
        if self._listener is not None:
            self._listener.close()
        os.close(self._wake)


def _silent() -> CacheError:
    return BrokenError(
        f"the other end of a data stream did not introduce itself within {GREETING_SECONDS:g} s",
        code="stream.silent",
        transport=TRANSPORT,
    )


def unreachable(number: int, where: str = "the peer's data port") -> CacheError:
    """The error of a stream that could not be opened."""
    text = os.strerror(number)
    return BrokenError(
        f"{where} cannot be reached: {text}; is it open in the firewall?",
        code="stream.unreachable",
        transport=TRANSPORT,
        status=number,
        detail=text,
    )


def listener(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        OSError: The address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.bind((host, port))
        connection.listen(HALF_OPEN)
        connection.setblocking(False)
    except BaseException:
        connection.close()
        raise
    return connection


def tuned(connection: socket.socket, timeout: float) -> None:
    """Have the kernel give up on an end that is silent for `timeout` seconds, and send small things at once."""
    tcp, third = socket.IPPROTO_TCP, max(1, round(timeout / 3))
    connection.setsockopt(tcp, socket.TCP_NODELAY, 1)
    connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, max(1, round(timeout * 1000)))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPIDLE, third)
    connection.setsockopt(tcp, socket.TCP_KEEPINTVL, third)
    connection.setsockopt(tcp, socket.TCP_KEEPCNT, 3)
