"""What both ends of a link said, side by side."""

from __future__ import annotations

from typing import Any

import click

from cachefw.cli.writing import say, styled, width

__all__ = ["show_both_ends"]


def _pairs(here: dict[str, Any], there: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = [
        (name, str(here[name]), str(there[name])) for name in ("cachefw", "python", "kernel", "mtu", "link_timeout")
    ]
    for name in dict.fromkeys((*here["transports"], *there["transports"])):
        mine, theirs = (end["transports"].get(name) for end in (here, there))
        rows.append((name, mine["version"] if mine else "-", theirs["version"] if theirs else "-"))
        for key in dict.fromkeys((*(mine or theirs)["details"], *(theirs or mine)["details"])):
            rows.append((f"  {key}", *((end or {"details": {}})["details"].get(key, "-") for end in (mine, theirs))))
    return rows


def show_both_ends(facts: dict[str, Any]) -> None:
    """Print two columns, then the choice of the transport, then what the node publishes."""
    if "there" not in facts:
        return
    rows = _pairs(facts["here"], facts["there"])
    first = max(len(name) for name, _, _ in rows) + 2
    column = (width() - first - 4) // 2
    say()
    click.echo(styled(f"{'':{first}}{'here':{column}}  {'there':{column}}".rstrip(), bold=True))
    for name, mine, theirs in rows:
        mark = "" if mine == theirs else "*"
        cells = (text if len(text) <= column else text[: column - 3] + "..." for text in (mine, theirs))
        click.echo(
            styled(f"{name:{first}}{next(cells):{column}}  {next(cells)} {mark}".rstrip(), "yellow" if mark else "")
        )
    if "choice" in facts:
        say()
        click.echo(styled("Which transport a link takes", bold=True))
        for row in facts["choice"]:
            say(f"{row['transport']}: {row['why']}", 2, 4)
    if facts["caches"]:
        say()
        click.echo(styled("Caches that the node publishes", bold=True))
        for cache in facts["caches"]:
            names = ", ".join(
                f"blocks of model {model}" if sort == "blocks" else f"{sort} {number}"
                for sort, number, model, _ in cache["names"][:4]
            )
            what = f"{cache['tensors']} tensors of {cache['rows']:,} {cache['sort']} of {cache['stride']:,} bytes"
            say(f"cache {cache['id']}: {what}" + (f"; keys: {names}" if names else ""), 2, 4)
