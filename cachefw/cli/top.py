"""``cachefw top``: what a node is doing now."""

from __future__ import annotations

import secrets
import sys
import time
from typing import Any

import click
import msgspec

from cachefw.errors import CacheError
from cachefw.links.address import parse_address
from cachefw.links.link import Link
from cachefw.node import Node

__all__ = ["top"]

_LAST = 8


@click.command()
@click.argument("node", metavar="HOST:PORT")
@click.option("--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, help="Seconds between.")
@click.option("--once", is_flag=True, help="Look once, print, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print what `Node.stats` gives, one JSON object a line.")
@click.option("--transport", "transports", multiple=True, help="Link by this one; may be repeated.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, 1e6, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds for each answer.",
)
def top(node: str, interval: float, once: bool, as_json: bool, transports: tuple[str, ...], timeout: float) -> None:
    """Watch a node: its links, its memory, what it moved and how fast.

    The node is asked over a link, so that the same secret or certificates are needed as for any other. Transfers are
    counted by nodes that were made with metrics=True, or with CACHEFW_METRICS=1.
    """
    parse_address(node, "top")
    with Node(secrets.randbits(62) + 1, transports=list(transports) or None) as own:
        link = own.link(node, timeout)
        if as_json:
            _lines(link, own.cluster_id, timeout, interval, once=once)
        elif once or not sys.stdout.isatty():
            _print(link, own.cluster_id, timeout, interval, once=once)
        else:
            _live(link, own.cluster_id, timeout, interval)


def _ask(link: Link, own: int, timeout: float) -> dict[str, Any]:
    """The node's statistics without the link that asks for them.

    Raises:
        CacheError: The node does not answer, or cannot.
    """
    told: dict[str, Any] = msgspec.json.decode(link.inquire("stats", timeout))
    if "error" in told:
        raise CacheError(f"{link.peer_name}: {told['error']}", code=told.get("code", "error"), peer=link.peer_name)
    told["links"] = [each for each in told["links"] if each["cluster_id"] != own]
    return told


def _lines(link: Link, own: int, timeout: float, interval: float, *, once: bool) -> None:
    while True:
        click.echo(msgspec.json.encode(_ask(link, own, timeout)).decode())
        if once:
            return
        time.sleep(interval)


def _print(link: Link, own: int, timeout: float, interval: float, *, once: bool) -> None:
    from rich.console import Console

    console, before = Console(), None
    while True:
        now = _ask(link, own, timeout)
        console.print(_view(now, before))
        if once:
            return
        before = now
        time.sleep(interval)


def _live(link: Link, own: int, timeout: float, interval: float) -> None:
    from rich.live import Live

    before = _ask(link, own, timeout)
    with Live(_view(before, None), auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(interval)
            now = _ask(link, own, timeout)
            live.update(_view(now, before), refresh=True)
            before = now


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:,.0f} {unit}" if unit == "B" else f"{number:,.1f} {unit}"
        number /= 1024
    return f"{number:,.1f} TiB"


def _table(title: str, *columns: str) -> Any:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    for column in columns:
        table.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", no_wrap=False)
    return table


def _sort(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("cluster_id", "transport", "path", "operation", "outcome", "staged"))


def _view(now: dict[str, Any], before: dict[str, Any] | None) -> Any:
    """Everything as tables; rates where there is something to compare with."""
    from rich.console import Group
    from rich.text import Text

    refused = sum(now["refused"].values())
    head = (
        f"cluster {now['cluster_id']}, {now['software']}, security {now['security']}\n"
        f"links {now['links_made']} made, {now['links_closed']} closed, {now['links_broken']} broken, "
        f"{refused} refused; {now['retries']} dials again; {now['timeouts']} transfers late; {now['caches']} caches"
    )
    links = _table("links", "peer", "by", "proof", "state", ">moving", ">late")
    for link in now["links"]:
        moving = f"{link['inflight']} ({_size(link['inflight_bytes'])})"
        late = f"{link['unsettled']} ({_size(link['unsettled_bytes'])})"
        links.add_row(*(Text(link[name]) for name in ("peer", "transport", "security", "state")), moving, late)
    memory = _table("registered memory", "kind", ">regions", ">bytes", ">for peers")
    for kind in now["memory"]:
        memory.add_row(
            Text(kind["kind"]), str(kind["regions"]), _size(kind["nbytes"]), _size(kind["remote_accessible"])
        )
    parts = [Text(head), links, memory]
    if not now["metrics"]:
        parts.append(Text("transfers are not counted: Node(metrics=True), or CACHEFW_METRICS=1"))
        return Group(*parts)
    traffic = _table("transfers", "cluster", "by", "path", "what", "outcome", ">count", ">bytes", ">mean", ">rate")
    former = {_sort(row): row for row in before["traffic"]} if before is not None else {}
    for row in now["traffic"]:
        rate = ""
        if before is not None and now["time"] > before["time"]:
            moved = row["nbytes"] - former.get(_sort(row), {"nbytes": 0})["nbytes"]
            rate = f"{_size(moved / (now['time'] - before['time']))}/s"
        traffic.add_row(
            "others" if row["cluster_id"] is None else str(row["cluster_id"]),
            Text(row["transport"]),
            Text(row["path"]),
            row["operation"],
            row["outcome"],
            f"{row['transfers']:,}",
            _size(row["nbytes"]),
            f"{row['seconds'] / row['transfers'] * 1e6:,.0f} us",
            rate,
        )
    last = _table("last transfers", ">number", "ended", "cluster", "what", ">bytes", ">pieces", ">took", "outcome")
    for row in now["recent"][-_LAST:]:
        ended = time.strftime("%H:%M:%S", time.localtime(row["ended"]))
        outcome = Text(row["code"] or row["outcome"])
        took = f"{row['seconds'] * 1e6:,.0f} us"
        cells = str(row["cluster_id"]), row["operation"], _size(row["nbytes"]), str(row["pieces"]), took, outcome
        last.add_row(str(row["number"]), ended, *cells)
    return Group(*parts, traffic, last)
