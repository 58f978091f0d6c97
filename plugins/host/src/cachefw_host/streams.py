"""The streams of one channel to a peer that is reached over TCP: opened when first needed, and by who dialled the link.

The end that was dialled has the data port; the other may be behind anything that lets connections out. That one
therefore opens every stream: its own, and one with the channel on which the other end asks, and asks for more.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import socket
import threading
import time
from functools import partial
from typing import Any

from cachefw.errors import BrokenError, CacheError, ClosedError, OutOfMemoryError, UnsupportedOperation
from cachefw.transport import Session

from .gate import GREETING_SECONDS, Gate, tuned, unreachable
from .greeting import Greeting, Role, dial, session_name
from .pool import HostPrepared, NetJob, Pool
from .status import TRANSPORT, net_error

__all__ = ["Net", "Streams"]

#: How long after a failure another stream is tried, for the other end to ask on.
AGAIN_SECONDS = 1.0


class Net:
    """The native side of every stream of one open transport, and the gate that they come in by.

    Args:
        native: The native module.
        pool: The pool that jobs are accounted in; it outlives this.
        threads: How many look after all streams together; they start with the first stream.
        cpus: Processors they keep to.
        streams: How many a channel opens for its transfers.
        timeout: Seconds without a byte after which a stream on which something is under way counts as cut.
    """

    def __init__(self, native: Any, pool: Pool, threads: int, cpus: list[int], *, streams: int, timeout: float) -> None:
        self.ffi, self.lib = native.ffi, native.lib
        self.pool = pool
        # Looking the type up takes as long as making one.
        self.new_job = partial(self.ffi.new, self.ffi.typeof("cfw_job **"))
        self.streams = streams
        self.timeout = timeout
        made = self.ffi.new("cfw_net **")
        status = self.lib.cfw_net_create(
            pool.handle, threads, list(cpus) or self.ffi.NULL, len(cpus), int(timeout * 1e9), made
        )
        if status:
            raise net_error(status, None, timeout)
        self._net = made[0]
        try:
            self.gate = Gate(self.lib.cfw_net_more_fd(self._net), timeout)
        except OSError:
            self.lib.cfw_net_destroy(self._net)
            raise
        # Kept until they are closed: what is native in them must not outlive the net unshut.
        self.open: set[Streams] = set()
        self.lock = threading.Lock()
        self.closed = False

    @property
    def handle(self) -> Any:
        """The native net."""
        return self._net

    def expose(self, address: int, length: int, rights: int) -> None:
        """Let peers reach a range. Doing so again changes nothing."""
        status = self.lib.cfw_net_expose(self._net, address, length, rights)
        if status == -errno.ENOMEM:
            raise OutOfMemoryError("there is no memory for the table of what peers may reach", transport=TRANSPORT)
        if status:
            raise net_error(status, None, self.timeout)

    def conceal(self, address: int) -> None:
        """Let nobody reach it any more; what is on its way is cut."""
        self.lib.cfw_net_conceal(self._net, address)

    def close(self) -> None:
        """Cut every stream, and end the gate and the threads."""
        with self.lock:
            self.closed = True
        self.gate.close()
        for streams in list(self.open):
            streams.close()
        self.lib.cfw_net_destroy(self._net)


class Streams:
    """See the module.

    Thread safety: every method may be called from any thread.

    Args:
        net: The transport's.
        session: The link's.
        address: The peer's data port, or None when it dials us.
    """

    def __init__(self, net: Net, session: Session, address: tuple[str, int] | None) -> None:
        self.key = session.key
        self.name = session_name(session.key)
        self._tls: Any = net.ffi.NULL
        if session.tls is not None:
            if net.lib.cfw_tls_probe():
                raise UnsupportedOperation(
                    "the link is one with TLS, and libssl.so.3 (OpenSSL 3), which encrypts data streams, is not here",
                    code="tls.missing",
                    operation="connect",
                    transport=TRANSPORT,
                )
            # Who holds the link's key has shown a certificate for it: the streams need none of their own.
            secret = hmac.digest(session.key, b"cachefw-host TLS of the streams", "sha256")
            self._tls = net.ffi.new("uint8_t[]", secret)
        self._net = net
        self._address = address
        self._opening = threading.Lock()
        self._arrived = threading.Condition()
        # Whether a stream for the other end to ask on is being opened.
        self._dialling = False
        self._closed = False
        made = net.ffi.new("cfw_peer **")
        with net.lock:
            if net.closed:
                raise ClosedError("this transport is closed", operation="connect", transport=TRANSPORT)
            status = net.lib.cfw_peer_create(net.handle, made)
            if status:
                raise net_error(status, None, net.timeout)
            self._peer = net.ffi.gc(made[0], net.lib.cfw_peer_destroy)
            net.open.add(self)

    def start(self, timeout: float) -> None:
        """Take part in the session; who dialled sees whether the peer's data port can be reached.

        Raises:
            BrokenError: It cannot.
        """
        try:
            self._net.gate.admit(self)
            if self._address is None:
                return
            connection = self._connected(min(timeout, GREETING_SECONDS))
        except BaseException:
            self.close()
            raise
        self._dialling = True
        self._net.gate.greet(connection, self, dial(self.key, Role.SERVE), connecting=False)

    def post(self, prepared: HostPrepared) -> NetJob:
        """Start a transfer, on streams that are opened if there are none.

        Raises:
            BrokenError: None can be opened.
            ClosedError: This was closed.
        """
        net = self._net
        made = net.new_job()
        status = net.lib.cfw_peer_post(self._peer, prepared.batch, made)
        if status == -errno.ENOTCONN:
            self._open()
            status = net.lib.cfw_peer_post(self._peer, prepared.batch, made)
        if status == -errno.ESHUTDOWN:
            raise ClosedError("this channel is closed", operation="post", transport=TRANSPORT)
        if status:
            raise net_error(status, None, net.timeout)
        return NetJob(net.pool, prepared, net.ffi.gc(made[0], net.lib.cfw_job_release), net.timeout)

    def close(self) -> None:
        """Cut every stream; what ran has settled when this returns. Idempotent."""
        self._net.gate.dismiss(self)
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()
        self._net.lib.cfw_peer_shut(self._peer)
        self._net.open.discard(self)

    # ------------------------------------------------------------------ opening

    def _open(self) -> None:
        with self._opening:
            lib = self._net.lib
            if lib.cfw_peer_live(self._peer):
                return
            if self._address is None:
                self._await_line()
                lib.cfw_peer_ask_more(self._peer, self._net.streams - 1)
                return
            until = time.monotonic() + GREETING_SECONDS
            for _ in range(self._net.streams):
                connection = self._connected(max(until - time.monotonic(), 0.001))
                try:
                    role = _greet(connection, dial(self.key, Role.ASK), until)
                except BaseException:
                    connection.close()
                    raise
                self.join(connection, role, accepted=False)

    def _await_line(self) -> None:
        with self._arrived:
            self._arrived.wait_for(
                lambda: self._closed or self._net.lib.cfw_peer_live(self._peer), timeout=GREETING_SECONDS
            )
            if not self._closed and not self._net.lib.cfw_peer_live(self._peer):
                raise BrokenError(
                    "the peer, which dialled this link, has no data stream open to here",
                    code="stream.missing",
                    operation="post",
                    transport=TRANSPORT,
                )

    def _connected(self, timeout: float) -> socket.socket:
        assert self._address is not None  # noqa: S101 - seen by the callers
        where = "the peer's data port {}:{}".format(*self._address)
        try:
            connection = socket.create_connection(self._address, timeout)
        except TimeoutError:
            raise unreachable(errno.ETIMEDOUT, where) from None
        except OSError as error:
            raise unreachable(error.errno or errno.EHOSTUNREACH, where) from None
        tuned(connection, self._net.timeout)
        connection.setblocking(False)
        return connection

    # ------------------------------------------------------------------ the gate's

    def join(self, connection: socket.socket, role: Role, *, accepted: bool) -> None:
        """Give a stream that has greeted to the native side."""
        status = self._net.lib.cfw_peer_add(self._peer, connection.fileno(), int(role), self._tls, accepted)
        if status:
            # Closed meanwhile, or too many: the other end sees it end.
            connection.close()
            return
        connection.detach()
        self._dialling = False
        with self._arrived:
            self._arrived.notify_all()

    def failed(self, error: CacheError) -> None:
        """A stream for the other end did not come about: tried again as long as the link lasts."""
        self._dialling = False
        self._net.gate.later(self, AGAIN_SECONDS)

    def look(self) -> None:
        """Open the streams that the peer asks for, and the one on which it can ask; it cannot dial."""
        if self._address is None:
            return
        lib = self._net.lib
        wanted = min(lib.cfw_peer_wanted(self._peer), self._net.streams)
        if not wanted and not self._dialling and not lib.cfw_peer_served(self._peer):
            wanted = 1
        for _ in range(wanted):
            self._dialling = True
            family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
            connection = socket.socket(family, socket.SOCK_STREAM)
            with contextlib.suppress(OSError):
                tuned(connection, self._net.timeout)
                connection.setblocking(False)
                if connection.connect_ex(self._address) in (0, errno.EINPROGRESS):
                    self._net.gate.greet(connection, self, dial(self.key, Role.SERVE), connecting=True)
                    continue
            connection.close()
            self.failed(unreachable(errno.EHOSTUNREACH))


def _greet(connection: socket.socket, greeting: Greeting, until: float) -> Role:
    """Greet in this thread.

    Raises:
        AuthenticationError: The other end does not have the key.
        BrokenError: It said nothing in time, or went away.
    """
    said: bytes | None = None
    try:
        while True:
            words, need = greeting.send(said)  # type: ignore[arg-type]
            connection.settimeout(max(until - time.monotonic(), 0.001))
            connection.sendall(words)
            said = b""
            while len(said) < need:
                connection.settimeout(max(until - time.monotonic(), 0.001))
                data = connection.recv(need - len(said))
                if not data:
                    raise BrokenError(
                        "the peer closed a data stream instead of greeting: it does not know this link, or no longer",
                        code="stream.refused",
                        operation="post",
                        transport=TRANSPORT,
                    )
                said += data
    except StopIteration as done:
        role: Role = done.value
        return role
    except CacheError:
        raise
    except TimeoutError:
        raise unreachable(errno.ETIMEDOUT) from None
    except OSError as error:
        raise unreachable(error.errno or errno.EIO, f"the peer's data port ({os.strerror(error.errno or 0)})") from None
