"""A directory of nodes in etcd, with leases; needs ``cachefw[etcd]``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs
import msgspec
from etcd3gw.client import Etcd3Client
from etcd3gw.exceptions import ConnectionFailedError, ConnectionTimeoutError, Etcd3Exception
from etcd3gw.lease import Lease

from cachefw.errors import BrokenError, BusyError, CacheError, ClosedError, RequestError, refusal
from cachefw.fleet import Entry, check_name, not_there
from cachefw.forking import forked_error, watch
from cachefw.links.address import parse_address
from cachefw.logs import event

__all__ = ["EtcdDirectory"]

_Result = TypeVar("_Result")


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """What stands under a name, as JSON."""

    address: str
    card: bytes | None = None


@attrs.define
class _Announced:
    entry: Entry
    lease: Lease


class EtcdDirectory:
    """Names of nodes in etcd: one key for each, which goes with its lease.

    Entries made here are kept alive by one thread. When this process dies, they go after `ttl` seconds; when etcd was
    away for longer, they are made again. A context manager.

    Args:
        endpoints: ``"host:port"`` of etcd's clients' port, or several, which are tried in turn.
        ttl: Seconds that an entry outlives its node, 2 or more.
        prefix: What all keys begin with; nodes of one group share it.
        timeout: Seconds that one question to etcd may take.
        tls: Paths of the CA's certificates, of a certificate and of its key; None speaks HTTP in the open.

    Raises:
        RequestError: Also a `ValueError` or `TypeError`: a wrong address, `ttl` or `prefix`.

    Thread safety: every method may be called from any thread.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        ttl: int = 10,
        prefix: str = "/cachefw/nodes/",
        timeout: float = 3.0,
        tls: tuple[str, str, str] | None = None,
    ) -> None:
        places = [endpoints] if isinstance(endpoints, str) else list(endpoints)
        if not places:
            raise _bad("no endpoint of etcd is given")
        if not isinstance(ttl, int) or isinstance(ttl, bool) or ttl < 2:
            raise _bad(f"ttl is a number of seconds, 2 or more, not {ttl!r}")
        if not isinstance(prefix, str) or not prefix.endswith("/"):
            raise _bad(f"prefix ends with '/', which {prefix!r} does not")
        self._ttl, self._prefix = ttl, prefix
        self._clients = []
        for place in places:
            host, port = parse_address(place, "directory")
            ca, cert, key = tls or (None, None, None)
            client = Etcd3Client(host, port, "https" if tls else "http", ca, key, cert, timeout=timeout, session=None)
            # A proxy that the environment names is none for a store of the fleet.
            client.session.trust_env = False
            self._clients.append(client)
        self._places = ", ".join(places)
        # Held while etcd is asked: sessions are not for several threads at once.
        self._lock = threading.Lock()
        self._announced: dict[str, _Announced] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._inherited = False
        watch(self)

    # ------------------------------------------------------------------ the directory

    def announce(self, name: str, entry: Entry) -> None:
        """Have a name stand for a node, until `withdraw`, `close`, or `ttl` seconds after this process died.

        An entry that names the same address is replaced: it is of a former start of the node.

        Raises:
            BusyError: A node elsewhere has the name.
            BrokenError: etcd cannot be reached, or refuses.
            ClosedError: The directory is closed.
        """
        check_name(name, "announce")
        self._check_open("announce")
        with self._lock:
            self._announced[name] = self._put(name, entry)
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="cachefw-etcd", daemon=True)
                self._thread.start()

    def withdraw(self, name: str) -> None:
        """Take a name back that was announced here; any other does nothing.

        Raises:
            BrokenError: etcd cannot be reached; the entry goes when its lease ends.
        """
        if self._inherited:
            return
        with self._lock:
            announced = self._announced.pop(name, None)
            if announced is not None:
                self._ask("withdraw", lambda client: _with(announced.lease, client).revoke())

    def find(self, name: str) -> Entry:
        """As `cachefw.fleet.Directory.find`.

        Raises:
            NotFoundError: Nobody has the name now.
            BrokenError: etcd cannot be reached, or the entry is none of cachefw's.
        """
        check_name(name, "find")
        self._check_open("find")
        with self._lock:
            found = self._get(name)
        if found is None:
            raise not_there(name, self.names())
        return found

    def names(self) -> list[str]:
        """As `cachefw.fleet.Directory.names`.

        Raises:
            BrokenError: etcd cannot be reached.
        """
        self._check_open("names")
        with self._lock:
            rows = self._ask("names", lambda client: client.get_prefix(self._prefix))
        keys = (row["key"].decode(errors="replace") for _, row in rows)
        return sorted(key.removeprefix(self._prefix) for key in keys)

    def close(self) -> None:
        """Withdraw what was announced, and keep nothing alive any more. Idempotent; never raises for etcd's sake."""
        if self._inherited or self._stop.is_set():
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for name in list(self._announced):
            try:
                self.withdraw(name)
            except BrokenError as error:
                text = "%s stays in the directory until its lease ends: %s"
                event(logging.WARNING, "directory.lost", text, name, error, error=error, name=name)
        for client in self._clients:
            client.session.close()

    def forked(self) -> None:
        """Be no more than a name, in a process that was forked: its parent keeps the entries alive."""
        self._inherited = True

    def __enter__(self) -> EtcdDirectory:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check_open(self, operation: str) -> None:
        if self._inherited:
            raise forked_error(operation, "EtcdDirectory")
        if self._stop.is_set():
            raise ClosedError(f"{operation}: this directory is closed", operation=operation)

    # ------------------------------------------------------------------ etcd, with the lock held

    def _ask(self, operation: str, question: Callable[[Etcd3Client], _Result]) -> _Result:
        """Ask the first endpoint that answers; the one that did is asked first the next time."""
        last: Exception | None = None
        for client in list(self._clients):
            try:
                answer = question(client)
            except (ConnectionFailedError, ConnectionTimeoutError) as error:
                last = error
                continue
            except (Etcd3Exception, OSError, ValueError, LookupError) as error:
                said = getattr(error, "detail_text", None) or str(error)
                text = f"{operation}: etcd at {client.base_url} refused: {said.strip()}"
                raise BrokenError(text, code="directory.refused", operation=operation, detail=said) from error
            self._clients.remove(client)
            self._clients.insert(0, client)
            return answer
        said = getattr(last, "detail_text", None) or str(last)
        text = f"{operation}: etcd cannot be reached at {self._places}: {said.strip()}"
        raise BrokenError(text, code="directory.unreachable", operation=operation, detail=said) from last

    def _get(self, name: str) -> Entry | None:
        values = self._ask("find", lambda client: client.get(self._prefix + name))
        if not values:
            return None
        try:
            value = msgspec.json.decode(values[0], type=_Value)
        except msgspec.MsgspecError as error:
            text = f"what etcd has under {self._prefix + name} is no entry of cachefw's: {error}"
            raise BrokenError(text, code="directory.entry", operation="find") from None
        return Entry(value.address, value.card)

    def _put(self, name: str, entry: Entry) -> _Announced:
        key, value = self._prefix + name, msgspec.json.encode(_Value(entry.address, entry.card))
        lease = self._ask("announce", lambda client: client.lease(self._ttl))
        try:
            if not self._ask("announce", lambda client: client.create(key, value, lease)):
                held = self._get(name)
                if held is not None and held.address != entry.address:
                    text = f"the name {name!r} is taken by a node at {held.address}; take another, or wait"
                    raise BusyError(text, code="directory.taken", operation="announce", peer=held.address)
                self._ask("announce", lambda client: client.put(key, value, lease))
        except BaseException:
            try:
                self._ask("announce", lambda client: _with(lease, client).revoke())
            except BrokenError as error:
                event(logging.DEBUG, "directory.lost", "a lease ends by itself: %s", error, error=error)
            raise
        return _Announced(entry, lease)

    # ------------------------------------------------------------------ keeping alive

    def _keep(self) -> None:
        away: set[str] = set()
        while not self._stop.wait(self._ttl / 3):
            for name in list(self._announced):
                try:
                    self._refresh(name)
                except CacheError as error:
                    if name not in away:
                        text = "%s may go from the directory: %s"
                        event(logging.WARNING, "directory.lost", text, name, error, error=error, name=name)
                    away.add(name)
                else:
                    if name in away:
                        event(logging.INFO, "directory.kept", "%s is in the directory again", name, name=name)
                    away.discard(name)

    def _refresh(self, name: str) -> None:
        with self._lock:
            announced = self._announced.get(name)
            if announced is None:
                return
            if self._ask("announce", lambda client: _with(announced.lease, client).refresh()) < 1:
                # etcd, or this process, was away for longer than the lease.
                self._announced[name] = self._put(name, announced.entry)


def _with(lease: Lease, client: Etcd3Client) -> Lease:
    return Lease(lease.id, client)


def _bad(text: str) -> Any:
    return refusal(RequestError, {ValueError}, text, operation="directory")
