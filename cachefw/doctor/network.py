"""Checks of the network: interfaces and their MTU, and who listens on which port."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from cachefw.catalog import Diagnosis
from cachefw.doctor.host import Host, broken, note, ok, unchecked, warning

__all__ = ["Listener", "interfaces", "listeners", "network", "ports"]

_LISTEN = "0A"


def interfaces(host: Host) -> dict[str, dict[str, object]]:
    """Each interface with its MTU, state, and speed in Mbit/s where it has one."""
    found: dict[str, dict[str, object]] = {}
    try:
        folders = sorted(host.path("/sys/class/net").iterdir())
    except OSError:
        return found
    for folder in folders:
        base = f"/sys/class/net/{folder.name}"
        mtu = host.number(f"{base}/mtu")
        if mtu is not None:
            state = host.read(f"{base}/operstate") or "unknown"
            found[folder.name] = {"mtu": mtu, "state": state, "speed": host.number(f"{base}/speed")}
    return found


def network(host: Host) -> Iterable[Diagnosis]:
    """Interfaces."""
    found = interfaces(host)
    if not found:
        yield unchecked("/sys/class/net cannot be read, or there is no interface", "mount /sys")
        return
    # The loopback interface is always in the state "unknown".
    up = {name: row for name, row in found.items() if row["state"] == "up" or name == "lo"}
    text = ", ".join(f"{name} (MTU {row['mtu']})" for name, row in up.items())
    facts: dict[str, Any] = {"interfaces": found}
    mtus = {row["mtu"] for name, row in up.items() if name != "lo"}
    if not set(up) - {"lo"}:
        yield note(f"up: {text or 'none'}", "peers on other hosts are out of reach", **facts)
    elif len(mtus) > 1:
        yield note(f"up: {text}", "interfaces differ in MTU; both ends of a link need the same", **facts)
    else:
        yield ok(f"up: {text}", **facts)


@attrs.frozen
class Listener:
    """A listening TCP socket.

    Attributes:
        address: In the kernel's own spelling; ``"any"`` for every address.
        port: Its port.
        inode: Its number in the kernel.
        uid: The user who made it.
    """

    address: str
    port: int
    inode: int
    uid: int


def listeners(host: Host) -> Iterator[Listener]:
    """Every TCP socket that listens in this network namespace."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (host.read(name) or "").splitlines()[1:]:
            row = line.split()
            if len(row) > 9 and row[3] == _LISTEN:
                address, _, port = row[1].rpartition(":")
                where = "any" if not int(address, 16) else address
                yield Listener(where, int(port, 16), int(row[9]), int(row[7]))


def _holders(host: Host, inodes: set[int]) -> tuple[dict[int, str], int]:
    """Who has each socket, in words, and how many processes could not be looked at."""
    found: dict[int, str] = {}
    hidden = 0
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for process in host.processes():
        try:
            links = list((process / "fd").iterdir())
        except OSError:
            hidden += 1
            continue
        for link in links:
            try:
                inode = wanted.get(os.readlink(link))
            except OSError:
                # Closed meanwhile.
                continue
            if inode is not None:
                found[inode] = _words(host, process.name)
    return found, hidden


def _words(host: Host, pid: str) -> str:
    command = (host.read(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
    name = command if len(command) <= 60 else command[:57] + "..."
    return f"process {pid} ({name or host.read(f'/proc/{pid}/comm') or 'unknown'})"


def ports(host: Host) -> Iterable[Diagnosis]:
    """The wanted ports, or how many ports are in use and by whom."""
    found = list(listeners(host))
    holders, hidden = _holders(host, {listener.inode for listener in found})
    by_port: dict[int, list[str]] = {}
    for listener in found:
        who = holders.get(listener.inode, f"a process of user {listener.uid} that cannot be looked at from here")
        if who not in by_port.setdefault(listener.port, []):
            by_port[listener.port].append(who)
    if host.read("/proc/net/tcp") is None:
        yield unchecked("/proc/net/tcp cannot be read", "mount /proc")
        return
    for port in host.ports:
        if port in by_port:
            text = f"port {port} is taken by {' and '.join(by_port[port])}"
            yield broken(text, "a node cannot listen there", "end it, or listen on port 0, a free one", port=port)
        elif port < 1024 and os.geteuid():
            yield warning(
                f"port {port} is free and needs a privilege", "ports below 1024 are root's", "take a higher one"
            )
        else:
            yield ok(f"port {port} is free", port=port)
    if not host.ports:
        low, high = (host.read("/proc/sys/net/ipv4/ip_local_port_range") or "32768 60999").split()
        text = f"{len(by_port)} TCP ports are in use; the kernel gives free ones of {low} to {high}"
        yield ok(text, ports={str(port): who for port, who in sorted(by_port.items())}, hidden_processes=hidden)
