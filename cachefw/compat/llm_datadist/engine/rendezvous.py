"""Links by rank table: how members find each other by name and table alone, and how far each link has come.

On one host a member leaves its card in a directory of the user's, under a name made of the communicator's name and the
table. Members on different hosts take links at ``host_ip`` of the table, on port ``HCCL_IF_BASE_PORT`` (60000) plus
their ``device_id``. Of two members the one of higher rank dials.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import itertools
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from cachefw.compat.llm_datadist.engine.linking import Links
from cachefw.compat.llm_datadist.engine.peers import EngineNode
from cachefw.compat.llm_datadist.status import LLMStatusCode, failed, invalid
from cachefw.compat.llm_datadist.utils.log import log
from cachefw.compat.llm_datadist.v2._caches import RegisterMemStatus
from cachefw.errors import CacheError
from cachefw.links.link import Link

__all__ = ["Communicators"]

#: Communicators of one process that may live at a time.
_MOST = 512
#: Seconds between two looks for what other members have left.
_PAUSE = 0.02
#: Seconds that one attempt to reach a member may take.
_ATTEMPT = 3.0


@attrs.frozen
class _Place:
    """Where a member is, as the table says."""

    host: str = ""
    device: int = 0


@attrs.define(eq=False)
class _Communicator:
    """One `link` call: its members, and how far it has come."""

    name: str
    members: dict[int, int]
    places: dict[int, _Place]
    folder: Path | None
    status: RegisterMemStatus = RegisterMemStatus.PREPARING
    links: list[Link] = attrs.field(factory=list)
    stop: threading.Event = attrs.field(factory=threading.Event)
    thread: threading.Thread | None = None


class Communicators:
    """The rank-table links of one instance.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, node: EngineNode, links: Links, total_time: float) -> None:
        self._node = node
        self._links = links
        self._total_time = total_time
        self._lock = threading.Lock()
        self._live: dict[int, _Communicator] = {}
        self._ids = itertools.count(1)

    def link(self, name: str, members: Mapping[int, int], table: str) -> int:
        """Begin to link the members; returns the communicator's id at once.

        Raises:
            LLMException: This instance is no member, there are too many communicators, or the table cannot be used.
        """
        own = self._node.cluster_id
        if own not in members:
            raise invalid(f"cluster_rank_info {dict(members)} does not name cluster {own}, this one", "link")
        places = _places(table, members)
        hosts = {place.host for place in places.values()}
        with self._lock:
            if len(self._live) >= _MOST:
                raise invalid(f"{_MOST} communicators live already; unlink some", "link")
            if len(hosts) == 1:
                folder = _folder(name, members, table)
                if self._node.address is None:
                    self._node.listen("127.0.0.1:0")
                _leave(folder, own, self._node.card())
            else:
                folder = None
                self._listen_at(places[own])
            communicator = _Communicator(name, dict(members), places, folder)
            number = next(self._ids)
            self._live[number] = communicator
        communicator.thread = threading.Thread(
            target=self._prepare, args=(communicator,), name=f"llm-datadist-{name}", daemon=True
        )
        communicator.thread.start()
        return number

    def _listen_at(self, place: _Place) -> None:
        wanted = _address(place)
        if self._node.address is not None:
            if self._node.address != wanted:
                raise failed(
                    LLMStatusCode.LLM_LINK_FAILED,
                    f"members on other hosts look for this one at {wanted}, and it listens on {self._node.address}; "
                    "leave llm.listenIpInfo out, or set it to that address",
                    "link",
                )
            return
        try:
            self._node.listen(wanted)
        except CacheError as error:
            raise failed(LLMStatusCode.LLM_LINK_FAILED, f"cannot listen on {wanted}: {error}", "link") from error

    def _prepare(self, communicator: _Communicator) -> None:
        deadline = time.monotonic() + self._total_time
        own = self._node.cluster_id
        try:
            for other in sorted(set(communicator.members) - {own}):
                dials = communicator.members[own] > communicator.members[other]
                link = self._meet(communicator, other, dials, deadline)
                self._links.check_peer(link, deadline)
                communicator.links.append(link)
        except CacheError as error:
            given_up = communicator.stop.is_set()
            log.log(logging.INFO if given_up else logging.ERROR, "communicator %r: %s", communicator.name, error)
            communicator.status = RegisterMemStatus.FAILED
            return
        communicator.status = RegisterMemStatus.OK

    def _meet(self, communicator: _Communicator, other: int, dials: bool, deadline: float) -> Link:
        """The link to one member, once there is one."""
        last: CacheError | None = None
        while time.monotonic() < deadline and not communicator.stop.is_set():
            for link in self._node.links:
                if link.cluster_id == other:
                    return link
            target = self._target(communicator, other) if dials else None
            if target is not None:
                try:
                    link = self._node.link(target, min(_ATTEMPT, max(deadline - time.monotonic(), 0.001)))
                    if link.cluster_id == other:
                        return link
                    raise failed(
                        LLMStatusCode.LLM_LINK_FAILED,
                        f"at {link.address} is cluster {link.cluster_id}, and the table has cluster {other} there",
                    )
                except CacheError as error:
                    # What an earlier run has left, or a member that is not there yet.
                    last = error
            communicator.stop.wait(_PAUSE)
        if communicator.stop.is_set():
            raise failed(LLMStatusCode.LLM_LINK_FAILED, "it was unlinked before it was ready")
        where = f"looked in {communicator.folder}" if communicator.folder else "looked at the table's addresses"
        raise failed(
            LLMStatusCode.LLM_TIMEOUT,
            f"cluster {other} did not come within {self._total_time:g} s ({where}); it has to call link() with the "
            f"same name, cluster_rank_info and rank_table{f'; last: {last}' if last else ''}",
        )

    @staticmethod
    def _target(communicator: _Communicator, other: int) -> str | bytes | None:
        if communicator.folder is None:
            return _address(communicator.places[other])
        with contextlib.suppress(FileNotFoundError):
            return (communicator.folder / str(other)).read_bytes()
        return None

    def unlink(self, number: int) -> None:
        """End a communicator: what is not ready is given up, what is ready is closed.

        Raises:
            LLMException: With `LLM_NOT_YET_LINK`: there is none of that id.
        """
        with self._lock:
            communicator = self._find(number)
            del self._live[number]
        self._end(communicator)
        for link in communicator.links:
            with self._lock:
                shared = any(link in other.links for other in self._live.values())
            if not shared:
                self._node.unlink(link)

    def _end(self, communicator: _Communicator) -> None:
        communicator.stop.set()
        if communicator.thread is not None:
            communicator.thread.join()
        if communicator.folder is not None:
            (communicator.folder / str(self._node.cluster_id)).unlink(missing_ok=True)
            # The last member takes the directory away.
            with contextlib.suppress(OSError):
                communicator.folder.rmdir()

    def status(self, number: int) -> RegisterMemStatus:
        """How far a communicator has come.

        Raises:
            LLMException: With `LLM_NOT_YET_LINK`: there is none of that id.
        """
        with self._lock:
            return self._find(number).status

    def _find(self, number: int) -> _Communicator:
        communicator = self._live.get(number)
        if communicator is None:
            have = ", ".join(map(str, sorted(self._live))) or "none"
            raise failed(
                LLMStatusCode.LLM_NOT_YET_LINK, f"there is no communicator {number}; there are: {have}", "link"
            )
        return communicator

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            live, self._live = list(self._live.values()), {}
        for communicator in live:
            self._end(communicator)


def _places(table: str, members: Mapping[int, int]) -> dict[int, _Place]:
    """Where each member is; one place for all where the table does not tell them apart."""
    try:
        document = json.loads(table)
        servers = document["server_list"]
        by_rank = {
            int(device["rank_id"]): (server, device) for server in servers for device in server.get("device", ())
        }
    except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise failed(
            LLMStatusCode.LLM_LINK_FAILED,
            f"rank_table is no HCCL rank table (server_list with device and rank_id): {error!r}",
            "link",
        ) from None
    missing = sorted(set(members.values()) - set(by_rank))
    if missing:
        raise failed(LLMStatusCode.LLM_LINK_FAILED, f"rank_table has no device of rank_id {missing}", "link")
    found = {cluster: by_rank[rank] for cluster, rank in members.items()}
    if len({str(server.get("server_id")) for server, _ in found.values()}) == 1:
        return dict.fromkeys(members, _Place())
    return {cluster: _Place(_ip(server), _device(device)) for cluster, (server, device) in found.items()}


def _ip(server: Mapping[str, Any]) -> str:
    for field in ("host_ip", "server_id"):
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(str(server.get(field))))
    raise failed(
        LLMStatusCode.LLM_LINK_FAILED,
        f"rank_table: server {server.get('server_id')!r} has no address; members on several hosts need host_ip",
        "link",
    )


def _device(device: Mapping[str, Any]) -> int:
    try:
        return int(device["device_id"])
    except (KeyError, TypeError, ValueError):
        text = f"rank_table: device_id must be a number, not {device.get('device_id')!r}"
        raise failed(LLMStatusCode.LLM_LINK_FAILED, text, "link") from None


def _address(place: _Place) -> str:
    base = os.environ.get("HCCL_IF_BASE_PORT", "")
    port = (int(base) if base.isdigit() else 60000) + place.device
    return f"[{place.host}]:{port}" if ":" in place.host else f"{place.host}:{port}"


def _folder(name: str, members: Mapping[int, int], table: str) -> Path:
    """The directory where the members of a communicator leave their cards, only for this user."""
    root = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"cachefw-{os.getuid()}"
    meaning = json.dumps([name, sorted(members.items()), json.loads(table)], sort_keys=True)
    folder = root / hashlib.sha256(meaning.encode()).hexdigest()[:32]
    for each in (root, folder):
        each.mkdir(mode=0o700, exist_ok=True)
        facts = each.lstat()
        if facts.st_uid != os.getuid() or facts.st_mode & 0o077 or each.is_symlink():
            raise failed(
                LLMStatusCode.LLM_LINK_FAILED,
                f"{each} belongs to another user or is open to others; remove it, or set XDG_RUNTIME_DIR",
                "link",
            )
    return folder


def _leave(folder: Path, cluster_id: int, card: bytes) -> None:
    """Put a card where the others look, whole or not at all."""
    fresh = folder / f"{cluster_id}.{os.getpid()}"
    fresh.write_bytes(card)
    fresh.rename(folder / str(cluster_id))
