"""A dry run as people and scripts read it."""

from __future__ import annotations

from typing import Any

import attrs
import click

from cachefw.cli.writing import say, styled
from cachefw.doctor.host import size
from cachefw.dry import DryRun, Group, Step, grouped
from cachefw.memory import MemoryRegion
from cachefw.rules import Outcome

__all__ = ["facts_of", "show"]

_STYLES = {Outcome.OK: "green", Outcome.REFUSED: "red", Outcome.NOT_CHECKED: "magenta"}
_SHOWN = 4


def _region(region: MemoryRegion) -> dict[str, Any]:
    return {"address": region.address, "length": region.length, "kind": region.kind.value}


def facts_of(run: DryRun) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    return {
        "ok": run.ok,
        "transports": list(run.transports),
        "profile": run.profile,
        "machines": {name: attrs.asdict(row) for name, row in run.machines.items()},
        "limits": attrs.asdict(run.limits),
        "steps": [
            {
                "name": step.name,
                "operation": step.plan.operation,
                "ok": step.plan.ok,
                "addresses": len(step.plan.regions) + step.plan.views,
                "views": step.plan.views,
                "bytes": sum(region.length for region in step.plan.regions),
                "regions": len(step.plan.regions),
                "joined": [_region(region) for region in step.joined],
                "pieces": step.pieces,
                "rules": [
                    attrs.asdict(group) | {"outcome": group.outcome.value, "indices": list(group.indices)}
                    for group in grouped(step.plan.findings)
                ],
            }
            for step in run.steps
        ],
        "changes": run.changes(),
    }


def show(run: DryRun, facts: dict[str, Any], *, verbose: bool) -> None:
    """Print it."""
    machine = f"on {run.profile}" if run.profile else "on a machine that is not named (--profile)"
    say(f"A dry run for {', '.join(run.transports)} {machine}; nothing is opened or registered.")
    for name, row in run.machines.items():
        knows = [row.products]
        knows += (
            [f"regions start at multiples of {size(row.alignment)}"]
            if row.alignment is not None and row.alignment > 1
            else []
        )
        knows += [f"regions of at most {row.largest_region:,} bytes"] if row.largest_region else []
        say(f"{name}: {', '.join(knows)}", 2, 4, dim=True)
    if "model" in facts:
        say(facts["model"]["words"], 2, 4, dim=True)
    for step in run.steps:
        say()
        _show_step(step, run, verbose=verbose)
    if "model" in facts:
        fits = facts["model"]["fits"]
        say()
        room = f"{fits['blocks']:,} blocks, {fits['tokens']:,} tokens"
        say(f"{size(fits['limit_bytes'])} have room for {room}, on one rank.")
    changes = run.changes()
    if changes:
        say()
        click.echo(styled("What to change", bold=True))
        for number, text in enumerate(changes, 1):
            say(f"{number}. {text}", 2, 5)
    say()
    unsure = sum(len(step.plan.not_checked) for step in run.steps)
    refused = [finding for step in run.steps for finding in step.plan.refused]
    if refused:
        rules = len({finding.rule for finding in refused})
        count = "1 rule is broken" if rules == 1 else f"{rules} rules are broken"
        places = f", at {len(refused)} places" if len(refused) > rules else ""
        verdict, colour = f"{count}{places}: that would not be registered", "red"
    else:
        verdict, colour = "it would be registered", "green"
    if unsure:
        verdict += f"; {unsure} not checked here"
    say(verdict, colour=colour)


def _show_step(step: Step, run: DryRun, *, verbose: bool) -> None:
    plan = step.plan
    total = sum(region.length for region in plan.regions)
    head = f"{step.name}: {plan.operation} of {len(plan.regions) + plan.views} addresses, {size(total)}"
    click.echo(styled(head, bold=True))
    if plan.views:
        say(f"{plan.views} of them are views of memory that is registered already", 2)
    if plan.regions:
        kinds = ", ".join(sorted({str(region.kind) for region in plan.regions}))
        text = f"{len(plan.regions)} regions of {kinds}"
        if len(step.joined) < len(plan.regions):
            text += f", which touch and make {len(step.joined)}"
        say(f"{text}:", 2)
        for region in step.joined[:_SHOWN]:
            say(f"{region.address:#x} .. {region.end:#x}  {size(region.length)}", 4)
        if len(step.joined) > _SHOWN:
            say(f"and {len(step.joined) - _SHOWN} more", 4)
    for name, count in step.pieces.items():
        if count > len(step.joined):
            most = size(run.machines[name].largest_region or 0)
            say(f"{name} takes regions of at most {most}: the joined ones go in {count} pieces", 2, 4)
    _show_rules(grouped(plan.findings), run, verbose=verbose)


def _show_rules(groups: list[Group], run: DryRun, *, verbose: bool) -> None:
    owners = list(dict.fromkeys(group.transport for group in groups))
    indent = max(map(len, owners), default=4) + 4
    for owner in owners:
        mine = [group for group in groups if group.transport == owner]
        fine = [group.rule.removeprefix(f"{owner}.") for group in mine if group.outcome is Outcome.OK]
        if fine and not verbose:
            click.echo(f"  {owner:{indent - 2}}{styled('ok', _STYLES[Outcome.OK])}")
            say(", ".join(dict.fromkeys(fine)), indent + 2)
        for group in mine:
            if verbose or group.outcome is not Outcome.OK:
                _show_group(group, owner, indent)
    for name in run.transports:
        if name not in owners:
            say(f"{name} is not asked: it does not take this memory, or there is none to ask about", 2, 4)


def _show_group(group: Group, owner: str, indent: int) -> None:
    times = f", {group.count} times" if group.count > 1 else ""
    outcome = styled(f"{group.outcome.value}{times}", _STYLES[group.outcome])
    click.echo(f"  {owner:{indent - 2}}{outcome}  {group.rule}")
    say(group.message, indent + 2)
    if group.count > 1 and group.indices:
        others = ", ".join(map(str, group.indices[1 : _SHOWN + 1]))
        more = f" and {len(group.indices) - _SHOWN - 1} more" if len(group.indices) > _SHOWN + 1 else ""
        say(f"the same at {others}{more}", indent + 2)
    if group.fix and group.outcome is not Outcome.OK:
        say(f"-> {group.fix}", indent + 2, indent + 5)
