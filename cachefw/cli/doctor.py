"""``cachefw doctor``: what is wrong on this host, or between it and a node."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import click

from cachefw.catalog import Diagnosis, Health
from cachefw.cli.writing import HEALTH_STYLES, say, styled
from cachefw.diagnostics import Knowledge, everything
from cachefw.doctor import Host, examine, exit_code, host_checks
from cachefw.doctor.leftovers import clean as clean_up
from cachefw.version import VERSION

__all__ = ["doctor"]

_VERDICTS = ("healthy", "it works, with warnings", "something is broken")


@click.command()
@click.argument("node", required=False, metavar="[HOST:PORT]")
@click.option("--transport", "transports", multiple=True, help="Try this one with the node; may be repeated.")
@click.option(
    "--layout",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Compare the caches in this file, as `cachefw plan` reads it, with those that the node publishes.",
)
@click.option("--port", "ports", type=click.IntRange(1, 65535), multiple=True, help="Is it free? May be repeated.")
@click.option("--clean", is_flag=True, help="Remove files of shared memory that killed processes left behind.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, 1e6, min_open=True),
    default=10.0,
    show_default=True,
    help="Seconds for each step with the node.",
)
@click.option("--verbose", "-v", is_flag=True, help="Show what is in order, too, with all that is known of it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write all of it to this file, without secrets, names and addresses, to send it to others.",
)
def doctor(
    node: str | None,
    transports: tuple[str, ...],
    layout: Path | None,
    ports: tuple[int, ...],
    clean: bool,
    timeout: float,
    verbose: bool,
    as_json: bool,
    bundle: Path | None,
) -> None:
    """Find out what is wrong: on this host, or, with HOST:PORT, between it and a node.

    \b
      cachefw doctor                         this host
      cachefw doctor 10.0.0.2:26000          both ends of a link, with small real transfers
      cachefw doctor --bundle report.json    a report to send to others

    Nothing is changed but by --clean. The exit code is 0 when all is well, 1 with warnings, 2 when something is broken.
    """  # noqa: D301 - click takes the character for "leave these lines"
    if (transports or layout) and node is None:
        raise click.UsageError("--transport and --layout are for a node: cachefw doctor HOST:PORT --transport NAME")
    if node is not None and (ports or clean):
        raise click.UsageError("--port and --clean are for this host: leave HOST:PORT out")
    known = everything()
    facts: dict[str, Any] = {}
    with _progress() as begin:
        if node is None:
            host = Host(ports=ports)
            checks = host_checks(known, host)
            found = clean_up(host, known.leftovers) if clean else []
            found += examine(checks, lambda check, place, count: begin(check.title, place, count))
        else:
            from cachefw.cli.description import read
            from cachefw.doctor.peer import examine_peer

            own = read(layout).caches if layout is not None else ()
            found, facts = examine_peer(node, known, transports, timeout, begin, own)
    report = _report(node, found, facts)
    if bundle is not None:
        from cachefw.doctor.bundle import write_bundle

        write_bundle(bundle, report if node is None else report | {"here": _here(known)})
    if as_json:
        click.echo(json.dumps(report, indent=2, default=str))
    else:
        _show(found, facts, verbose=verbose)
        if bundle is not None:
            say(f"The report is in {bundle}; look through it before you send it.")
    raise click.exceptions.Exit(exit_code(found))


def _here(known: Knowledge) -> list[dict[str, Any]]:
    return [_facts(told) for told in examine(host_checks(known), lambda check, place, count: None)]


def _facts(told: Diagnosis) -> dict[str, Any]:
    return attrs.asdict(told) | {"health": told.health.value}


def _report(node: str | None, found: list[Diagnosis], facts: dict[str, Any]) -> dict[str, Any]:
    code = exit_code(found)
    counts = {health.value: sum(told.health is health for told in found) for health in Health}
    return {
        "cachefw": VERSION,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "node": node,
        "verdict": ("healthy", "warnings", "broken")[code],
        "counts": counts,
        "findings": [_facts(told) for told in found],
        **({"link": facts} if facts else {}),
    }


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Says on a terminal's stderr what is looked at."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda title, place, count: None
        return
    with console.status("looking") as status:
        yield lambda title, place, count: status.update(f"{place} of {count}: {title}")


def _show(found: list[Diagnosis], facts: dict[str, Any], *, verbose: bool) -> None:
    order = (Health.BROKEN, Health.WARNING, Health.NOT_CHECKED, Health.NOTE, Health.OK)
    for health in order:
        mine = [told for told in found if told.health is health]
        if not mine:
            continue
        moved = [told for told in mine if told.check.startswith(("transfer.", "link."))]
        if health is Health.OK and not verbose:
            for told in moved:
                _show_one(told, verbose=False)
            mine = [told for told in mine if told not in moved]
            names = dict.fromkeys(told.check for told in mine)
            say(f"{styled('ok', HEALTH_STYLES['ok'])}  {', '.join(names)}", 0, 4)
            continue
        for told in mine:
            _show_one(told, verbose=verbose)
    if facts:
        from cachefw.cli.both_ends import show_both_ends

        show_both_ends(facts)
    code = exit_code(found)
    say()
    counts = [(health, sum(told.health is health for told in found)) for health in order]
    numbers = ", ".join(f"{health.value} {count}" for health, count in counts if count)
    verdict = styled(_VERDICTS[code], ("green", "yellow", "red")[code], bold=True)
    click.echo(f"{verdict}: {numbers}")
    if not verbose and any(told.health is Health.OK for told in found):
        say("-v shows what was found in order, too", dim=True)


def _show_one(told: Diagnosis, *, verbose: bool) -> None:
    state = styled(told.health.value, HEALTH_STYLES[told.health.value], bold=told.health is Health.BROKEN)
    click.echo(f"{state}  {styled(told.check, bold=True)}")
    say(told.found, 4)
    if told.meaning:
        say(told.meaning, 4)
    if told.fix:
        say(f"-> {told.fix}", 4, 7)
    if verbose:
        for name, value in told.facts.items():
            say(f"{name}: {value}", 6, 8, dim=True)
