"""``cachefw explain``: what a code, number, rule, setting or hook means, and how to find out why it was met."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from typing import Any

import attrs
import click

from cachefw.catalog import Cause, Check, Diagnosis, Entry, find, near
from cachefw.catalog.elsewhere import elsewhere
from cachefw.cli.writing import HEALTH_STYLES, say, styled
from cachefw.diagnostics import Knowledge, everything
from cachefw.memory import MemoryKind

__all__ = ["explain"]

_SORTS = {
    "code": "code",
    "status": "status",
    "errno": "error number",
    "rule": "rule",
    "setting": "setting",
    "hook": "hook",
}
_PLURALS = {
    "code": "Codes of errors",
    "status": "Statuses of vendors",
    "errno": "Error numbers of the kernel",
    "rule": "Rules",
    "setting": "Settings",
    "hook": "Hooks",
}
_KINDS = {kind.name.lower(): kind for kind in MemoryKind}
_WHEN = {
    "register": "when registering",
    "transfer": "in a transfer",
    "link": "when linking",
    "listen": "when listening",
    "allocate": "when allocating",
}


class _Numbers(click.Command):
    """Takes a negative number for what it is, and not for options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        negative = [arg for arg in args if re.fullmatch(r"-\d+", arg)]
        if negative and "--" not in args:
            args = [*(arg for arg in args if arg not in negative), "--", *negative]
        return super().parse_args(ctx, args)


@click.command(cls=_Numbers)
@click.argument("what", required=False)
@click.option("--probe", is_flag=True, help="Run the checks that tell which of the causes it is.")
@click.option("--operation", default="", help="Only causes that can occur there: register, transfer, link, ...")
@click.option("--kind", type=click.Choice(list(_KINDS)), help="Only causes that can occur with this memory.")
@click.option("--transport", default="", help="Only causes that can occur with this transport.")
@click.option("--list", "as_list", is_flag=True, help="Show all that can be asked.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
def explain(
    what: str | None, probe: bool, operation: str, kind: str | None, transport: str, as_list: bool, as_json: bool
) -> None:
    """Explain WHAT: the code of an error, a vendor's or the kernel's number or name, a rule, a setting or a hook.

    \b
      cachefw explain link.timeout
      cachefw explain 507899
      cachefw explain ENOMEM --operation register --probe
    """  # noqa: D301 - click takes the character for "leave these lines"
    if as_list is (what is not None):
        raise click.UsageError("give WHAT, or --list")
    known = everything()
    found = list(known.entries) if what is None else find(known.entries, what)
    if not found and what is not None:
        raise click.BadParameter(_unknown(known, what), param_hint="WHAT")
    found = [_narrowed(entry, operation, _KINDS[kind].value if kind else "", transport) for entry in found]
    probes = _probe(known, found) if probe else {}
    if as_json:
        click.echo(json.dumps([_facts(entry, probes) for entry in found], indent=2))
    elif as_list:
        _show_list(found)
    else:
        _show(found, probes)
        if not probe and any(cause.probe for entry in found for cause in entry.causes):
            say()
            say(f"To see which it is: cachefw explain {what} --probe")


def _narrowed(entry: Entry, operation: str, kind: str, transport: str) -> Entry:
    causes = [cause for cause in entry.causes if cause.applies(operation, kind, transport)]
    # The more of a cause fits what was asked, the more likely it is.
    asked = (("operation", operation), ("kind", kind), ("transport", transport))
    causes.sort(key=lambda cause: -sum(bool(value) and getattr(cause, name) == value for name, value in asked))
    return attrs.evolve(entry, causes=tuple(causes))


def _unknown(known: Knowledge, what: str) -> str:
    close = near(known.entries, what)
    owners = {entry.owner for entry in known.entries}
    looks = elsewhere(what)
    others = [row for row in looks if row.owner not in owners]
    if others:
        them = " or ".join(f"{row.owner}'s, which {row.distribution} knows" for row in others)
        return f"nothing here knows {what!r}. It looks like {them}; pip install it, and ask again"
    if looks and not close:
        row = looks[0]
        return f"{what!r} looks like {row.owner}'s, and {row.distribution}, which is installed, has no entry for it"
    owner, dot, _ = what.partition(".")
    firsts = {entry.name.partition(".")[0] for entry in known.entries}
    foreign = dot and owner not in firsts and not difflib.get_close_matches(owner, firsts, 1, 0.7)
    hint = f"a transport {owner!r} would come with cachefw-{owner}; " if foreign else ""
    more = f"did you mean {', '.join(close)}?" if close else "cachefw explain --list shows all that can be asked"
    return f"nothing is called {what!r}; {hint}{more}"


def _probe(known: Knowledge, entries: Iterable[Entry]) -> dict[str, list[Diagnosis]]:
    from cachefw.doctor import host_checks

    checks: dict[str, Check] = {check.name: check for check in host_checks(known)}
    names = dict.fromkeys(cause.probe for entry in entries for cause in entry.causes if cause.probe)
    return {name: checks[name].diagnose() for name in names if name in checks}


def _facts(entry: Entry, probes: dict[str, list[Diagnosis]]) -> dict[str, Any]:
    facts = attrs.asdict(entry)
    for cause in facts["causes"]:
        if cause["probe"] in probes:
            cause["probed"] = [
                {"health": told.health.value, "found": told.found, "meaning": told.meaning, "fix": told.fix}
                for told in probes[cause["probe"]]
            ]
    return facts


def _show_list(entries: list[Entry]) -> None:
    for sort in dict.fromkeys(entry.sort for entry in entries):
        mine = sorted((entry for entry in entries if entry.sort == sort), key=lambda entry: entry.owner)
        click.echo(styled(f"{_PLURALS[sort]}:", bold=True))
        for entry in mine:
            name = f"{entry.name} ({entry.owner} {entry.aliases[0]})" if entry.sort == "status" else entry.name
            say(f"{name}: {entry.title}", 2, 6)


def _show(entries: list[Entry], probes: dict[str, list[Diagnosis]]) -> None:
    for number, entry in enumerate(entries):
        if number:
            say()
        click.echo(f"{styled(entry.name, bold=True)}: {_SORTS[entry.sort]} of {entry.owner}")
        others = [name for name in entry.aliases if "." not in name]
        if others:
            say("also: " + ", ".join(others), 2, dim=True)
        say(entry.title, 2)
        if entry.text:
            say()
            say(entry.text, 2)
        if entry.causes:
            say()
            say("Likely causes, the likeliest first:" if len(entry.causes) > 1 else "Likely cause:", 2)
        for place, cause in enumerate(entry.causes, 1):
            where = f" ({_where(cause)})" if _where(cause) else ""
            say(f"{place}. {cause.what}{where}", 4 if place < 10 else 3, 7)
            say(f"-> {cause.fix}", 7, 10)
            for told in probes.get(cause.probe, ()):
                say(f"{told.check}: {told.health.value}: {told.found}", 7, 10, HEALTH_STYLES[told.health.value])
        if entry.source:
            say()
            say(f"source: {entry.source}", 2, dim=True)


def _where(cause: Cause) -> str:
    parts = [_WHEN.get(cause.operation, f"in {cause.operation}")] if cause.operation else []
    parts += [cause.kind] if cause.kind else []
    parts += [f"over {cause.transport}"] if cause.transport else []
    return ", ".join(parts)
