"""Both ends of a link: what each says of itself, which transport would be chosen and why, and small real transfers."""

from __future__ import annotations

import hashlib
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import msgspec
import numpy as np

from cachefw.catalog import Diagnosis, Health
from cachefw.config import setting
from cachefw.diagnostics import Knowledge
from cachefw.doctor.host import broken, headline, note, ok, unchecked, warning
from cachefw.doctor.layouts import compare_layouts
from cachefw.dry import DryCache
from cachefw.errors import CacheError
from cachefw.links.address import parse_address
from cachefw.links.answers import facts as facts_of
from cachefw.links.link import Link
from cachefw.memory import MemoryKind, aligned_empty
from cachefw.node import Node
from cachefw.plugins import PluginState, catalogue

__all__ = ["examine_peer"]

_ROUNDS = 20
_PIECE = 4096
#: Seconds that two clocks may differ before logs of both ends cannot be read side by side.
_CLOCK = 1.0

Begin = Callable[[str, int, int], None]


@attrs.define
class _Findings:
    found: list[Diagnosis] = attrs.field(factory=list)

    def add(self, name: str, told: Diagnosis) -> None:
        self.found.append(attrs.evolve(told, check=name))


def examine_peer(
    address: str,
    known: Knowledge,
    transports: Sequence[str],
    timeout: float,
    begin: Begin,
    own: Sequence[DryCache] = (),
) -> tuple[list[Diagnosis], dict[str, Any]]:
    """Link to a node with each transport in turn, compare both ends, and move a few bytes.

    Args:
        address: ``"host:port"`` of the node.
        known: What the plugins know.
        transports: Names of those to try, best first; empty takes the setting, then all that can be used here.
        timeout: Seconds for each step.
        begin: Told of each step.
        own: What this end would register, to be compared with what the node publishes.

    Returns:
        The findings, and what both ends said, to be shown side by side.

    Raises:
        RequestError: It is no address.
        TransportUnavailable: A transport that was named is not installed.
    """
    host, _ = parse_address(address, "doctor")
    order = tuple(transports) or tuple(setting("transports"))
    for name in order:
        catalogue.get(name)
    # What the other end may have beyond those that would be used is worth trying, too.
    tried = [*order, *(name for name in sorted(catalogue.plugins()) if name not in order and not transports)]
    findings = _Findings()
    told: dict[str, Any] = {}
    reached: list[str] = []
    for place, name in enumerate(tried, 1):
        begin(f"{name} to {address}", place, len(tried))
        plugin = catalogue.probe(name)
        if plugin.state is not PluginState.AVAILABLE:
            state = broken if name in order else note
            reason = headline(plugin.reason or "it offers no transport")
            findings.add(f"link.{name}", state(f"{name} cannot be used on this end: {reason}", "", "cachefw doctor"))
            continue
        if _try(address, name, name in order, host, timeout, findings, told):
            reached.append(name)
        elif told.get("stop"):
            break
    told.pop("stop", None)
    if "there" in told:
        _compare(told, findings)
        for layout in compare_layouts(own, told["caches"]):
            findings.add("peer.layout", layout)
        _chosen(order, told, reached, findings)
    return findings.found, told


def _try(
    address: str, name: str, wanted: bool, host: str, timeout: float, findings: _Findings, told: dict[str, Any]
) -> bool:
    check = f"link.{name}"
    try:
        with Node(secrets.randbits(62) + 1, transports=[name]) as node:
            begun = time.monotonic()
            link = node.link(address, timeout)
            seconds = time.monotonic() - begun
            findings.add(check, ok(f"linked in {seconds * 1e3:.1f} ms", seconds=seconds))
            _ask(node, link, host, timeout, findings, told)
            _transfer(node, link, name, timeout, findings)
            node.unlink(link)
    except CacheError as error:
        if error.code == "transport.none_shared":
            state = broken if wanted else note
            fix = f"open {name} there, or choose one of theirs with --transport" if wanted else ""
            findings.add(check, state(f"the node at {address} does not have {name} open", "", fix, error=str(error)))
            return False
        entry = error.entry
        causes = entry.causes if entry is not None else ()
        likely = "; or ".join(f"{cause.what} ({cause.fix})" for cause in causes[:3])
        findings.add(
            check,
            Diagnosis(
                "",
                Health.BROKEN if wanted or "there" not in told else Health.WARNING,
                str(error),
                f"likely: {likely}" if likely else "",
                f"cachefw explain {error.code}",
                {"code": error.code, "status": error.status},
            ),
        )
        # Where nobody answers, or the handshake itself is refused, another transport fares no better.
        first = ("link.unreachable", "link.timeout", "link.protocol", "authentication")
        told["stop"] = error.code.startswith(first)
        return False
    return True


def _ask(node: Node, link: Link, host: str, timeout: float, findings: _Findings, told: dict[str, Any]) -> None:
    before = time.time()
    theirs = msgspec.json.decode(link.inquire("facts", timeout))
    after = time.time()
    if "error" in theirs:
        findings.add("peer.facts", unchecked(f"the node does not say what it is: {theirs['error']}"))
        return
    mine = facts_of(node.cache_manager, host)
    offset = theirs["clock"] - (before + after) / 2
    if "there" not in told:
        told.update(here=mine, there=theirs, offset=offset, round_trip=after - before)
        told["caches"] = [
            {
                "id": cache.cache_id,
                "sort": "blocks" if cache.blocks else "rows",
                "tensors": len(cache.tensors),
                "rows": cache.rows,
                "stride": cache.stride,
                "names": [list(name) for name in cache.names],
            }
            for cache in link.caches
        ]
        told["memories"] = [{"length": memory.length, "kind": memory.kind} for memory in link.memories]
    else:
        told["here"]["transports"] |= mine["transports"]


def _transfer(node: Node, link: Link, name: str, timeout: float, findings: _Findings) -> None:
    """Read what the node lends, write it and read it back; for memory that cannot be lent, read what is published."""
    check = f"transfer.{name}"
    loan = msgspec.json.decode(link.inquire("lend", timeout))
    if "error" in loan:
        _read_published(node, link, check, loan["error"], timeout, findings)
        return
    length = loan["length"]
    here = aligned_empty(length, length)
    here[:] = 0
    node.cache_manager.register_memory(here, MemoryKind.HOST, remote_accessible=False)
    moved = link.read(here.ctypes.data, loan["address"], length, timeout=timeout)
    if hashlib.sha256(here.tobytes()).hexdigest() != loan["sha256"]:
        text = f"{length:,} bytes were read, and are not those that the node holds"
        findings.add(check, broken(text, "data of this transport cannot be trusted", "report it with --bundle"))
        return
    prepared = link.prepare(_read(), here.ctypes.data, loan["address"], _PIECE)
    seconds = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        prepared.post(timeout=timeout)
        seconds.append(time.perf_counter() - begun)
    facts = {"bytes": length, "path": moved.path, "p50_seconds": statistics.median(seconds)}
    text = f"{length:,} bytes read and checked; {_PIECE:,} bytes take {statistics.median(seconds) * 1e6:,.0f} us (p50)"
    text += f", path {moved.path}" if moved.path else ""
    content = np.frombuffer(secrets.token_bytes(length), np.uint8)
    here[:] = content
    link.write(here.ctypes.data, loan["address"], length, timeout=timeout)
    here[:] = 0
    link.read(here.ctypes.data, loan["address"], length, timeout=timeout)
    if not np.array_equal(here, content):
        findings.add(
            check, broken(f"{text}; written bytes came back changed", "writes lose data", "report it", **facts)
        )
    else:
        findings.add(check, ok(f"{text}; as many written and read back", **facts))


def _read() -> Any:
    from cachefw.transport import Operation

    return Operation.READ


def _read_published(node: Node, link: Link, check: str, why: str, timeout: float, findings: _Findings) -> None:
    """Move bytes of memory that the node has published; what they are is not known, so only that they move."""
    reason = headline(why)
    memory = next((each for each in link.memories), None)
    if memory is None:
        fix = "register remote-accessible memory there before linking, and ask again"
        findings.add(check, unchecked(f"nothing to read: the node lends no memory ({reason}), and publishes none", fix))
        return
    kind = MemoryKind(memory.kind)
    length = min(memory.length, 2**16)
    with node.cache_manager.allocate(length, kind=kind) as own:
        held = node.cache_manager.register_memory(own, remote_accessible=False)
        begun = time.perf_counter()
        link.read(own.address, memory.address, length, timeout=timeout)
        seconds = time.perf_counter() - begun
        node.cache_manager.unregister_memory(held)
    text = f"{length:,} bytes of published {kind} read in {seconds * 1e3:.2f} ms; not compared, as nobody knows them"
    findings.add(check, ok(text, bytes=length, seconds=seconds))


def _compare(told: dict[str, Any], findings: _Findings) -> None:
    here, there = told["here"], told["there"]
    if here["cachefw"] != there["cachefw"]:
        text = f"cachefw is {here['cachefw']} here and {there['cachefw']} there"
        findings.add(
            "peer.version", warning(text, "only equal versions are tried together", "install the same on both")
        )
    else:
        findings.add("peer.version", ok(f"both ends have cachefw {here['cachefw']}"))
    offset, trip = told["offset"], told["round_trip"]
    text = f"the clock there is {abs(offset):.3f} s {'ahead' if offset > 0 else 'behind'}, within {trip * 1e3:.1f} ms"
    if abs(offset) > _CLOCK + trip:
        meaning = "logs of both ends cannot be read side by side"
        findings.add("peer.clock", warning(text, meaning, "synchronise both (chrony, ntpd)", offset=offset))
    else:
        findings.add("peer.clock", ok(text, offset=offset))
    mtu = here["mtu"], there["mtu"]
    if None in mtu:
        findings.add("peer.mtu", unchecked("an end does not know the MTU of the way"))
    elif mtu[0] != mtu[1]:
        text = f"the way's MTU is {mtu[0]} from here and {mtu[1]} from there"
        findings.add("peer.mtu", warning(text, "large packets may get lost one way", "set both interfaces alike"))
    else:
        findings.add("peer.mtu", ok(f"MTU {mtu[0]} on both ends"))
    _compare_transports(here["transports"], there["transports"], findings)
    for name, row in there["transports"].items():
        if row["remark"]:
            text = f"{name} is {row['remark']} there"
            findings.add(f"peer.{name}", warning(text, "its figures say nothing of hardware", ""))
    if not told["caches"]:
        text = "the node publishes no cache"
        meaning = "there is nothing to pull: none is registered, or none is remote-accessible, as host memory is not"
        findings.add("peer.caches", note(text, meaning, "register_blocks_cache(..., remote_accessible=True)"))


def _compare_transports(ours: dict[str, Any], theirs: dict[str, Any], findings: _Findings) -> None:
    for name in sorted(ours.keys() & theirs.keys()):
        here, there = ours[name], theirs[name]
        if here["version"] != there["version"]:
            text = f"its plugin is {here['version']} here and {there['version']} there"
            findings.add(f"peer.{name}", warning(text, "cards and memory may not be understood", "install the same"))
        for key in sorted(here["details"].keys() & there["details"].keys()):
            if here["details"][key] != there["details"][key]:
                text = f"{key}: {here['details'][key]} here, {there['details'][key]} there"
                findings.add(f"peer.{name}", note(text, "the two ends differ; see whether they are meant to"))


def _chosen(order: Sequence[str], told: dict[str, Any], reached: list[str], findings: _Findings) -> None:
    theirs = told["there"]["transports"]
    rows = []
    chosen = next((name for name in order if name in theirs), None)
    for name in dict.fromkeys((*order, *theirs)):
        if name == chosen:
            why = "chosen: the first here that both ends have"
        elif name not in theirs:
            why = "not open there"
        elif name not in order:
            why = "not asked for here (CACHEFW_TRANSPORTS)" + ("" if name in reached else ", and not to be used here")
        else:
            why = f"would do, after {chosen}"
        rows.append({"transport": name, "why": why})
    told["choice"] = rows
    if chosen is None:
        text = f"no transport would be chosen: here {', '.join(order)}, there {', '.join(theirs) or 'none'}"
        findings.add(
            "link.choice", broken(text, "a link cannot be made", "open one of theirs, or have ours opened there")
        )
    elif chosen not in reached:
        text = f"{chosen} would be chosen, and does not work"
        findings.add("link.choice", broken(text, "a link cannot be made", f"see link.{chosen} and transfer.{chosen}"))
    else:
        findings.add("link.choice", ok(f"{chosen} would be chosen: the first here that both ends have"))
