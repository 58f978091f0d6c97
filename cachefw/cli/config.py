"""``cachefw config``: every setting, its value, and where that comes from."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from cachefw.cli.writing import say, styled
from cachefw.config import SETTINGS, Value, value
from cachefw.doctor.variables import plugin_settings, wrong_variables

__all__ = ["config"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def config(as_json: bool) -> None:
    """Show every setting, its value, and where that comes from.

    The variables that plugins read are among them. One that begins with CACHEFW_ and is read by nobody is pointed out.
    The exit code is 1 if a value makes no sense, or nobody reads a variable.
    """
    told = [value(name) for name in SETTINGS]
    others = {entry.name: entry for entry in plugin_settings()}
    unknown = wrong_variables(os.environ)
    if as_json:
        settings = [_facts(each) for each in told]
        settings += [
            {
                "variable": name,
                "value": os.environ.get(name) or None,
                "source": name if os.environ.get(name) else "default",
                "default": None,
                "summary": entry.title,
                "read_by": entry.owner,
            }
            for name, entry in others.items()
        ]
        click.echo(json.dumps({"settings": settings, "unknown": unknown}, indent=2))
    else:
        for each in told:
            _show(each)
        for name, entry in others.items():
            given = os.environ.get(name, "")
            _head(name, given or "unset", name if given else "default")
            say(f"{entry.title}; read by {entry.owner}", 2, dim=True)
        for name, near in unknown.items():
            say()
            hint = f"; did you mean {near}?" if near else ""
            say(f"{name} is set, and nobody reads it{hint}", 0, 2, "yellow")
    if unknown or any(each.fault for each in told):
        raise click.exceptions.Exit(1)


def _text(given: Any) -> str:
    if isinstance(given, bool):
        return str(int(given))
    if given in ((), ""):
        return "unset"
    return ",".join(given) if isinstance(given, tuple) else f"{given:g}" if isinstance(given, float) else str(given)


def _head(variable: str, shown: str, source: str) -> None:
    where = "default" if source == "default" else "from the environment"
    click.echo(f"{styled(variable, bold=True)} = {shown}  ({where})")


def _show(told: Value) -> None:
    known = told.setting
    if told.fault:
        _head(known.variable, told.text, told.source)
        say(f"it makes no sense: {told.fault}", 2, colour="red")
        return
    _head(known.variable, _text(told.value), told.source)
    beside = "" if told.source == "default" else f"; default: {_text(known.default)}"
    say(known.summary + beside, 2, dim=True)


def _facts(told: Value) -> dict[str, Any]:
    return {
        "name": told.setting.name,
        "variable": told.setting.variable,
        "value": told.value,
        "source": told.source,
        "default": told.setting.default,
        "summary": told.setting.summary,
        "read_by": "cachefw",
        **({"text": told.text, "fault": told.fault} if told.fault else {}),
    }
