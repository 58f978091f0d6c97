"""``cachefw transports``: what is installed, and what can be used here."""

from __future__ import annotations

import json
from typing import Any

import click

from cachefw.plugins import Plugin, PluginState, catalogue
from cachefw.transport import Capability, Reach

__all__ = ["transports"]

_REACH = {
    Reach.PROCESS: "nodes of the same process",
    Reach.HOST: "processes of the same host",
    Reach.NETWORK: "other hosts too",
}
_STYLES = {PluginState.AVAILABLE: "green", PluginState.UNAVAILABLE: "yellow", PluginState.BROKEN: "bold red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
def transports(as_json: bool) -> None:
    """Show the transports that are installed, and which can be used here.

    Every plugin is loaded and asked whether its runtime is there; nothing is opened. One that is broken is shown with
    the reason, and the exit code is 0 all the same.
    """
    plugins = [catalogue.probe(name) for name in sorted(catalogue.plugins())]
    if as_json:
        click.echo(json.dumps([_facts(plugin) for plugin in plugins], indent=2))
    elif plugins:
        _show(plugins)
    else:
        click.echo("no transport is installed; pip install --force-reinstall cachefw brings the built-in one back")


def _facts(plugin: Plugin) -> dict[str, Any]:
    info = plugin.info
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "path": plugin.path,
        "target": plugin.target,
        "state": plugin.state.value,
        "remark": plugin.remark,
        "kinds": sorted(kind.value for kind in info.kinds) if info else [],
        "reach": info.reach.name.lower() if info else None,
        "capabilities": [ability.name.lower() for ability in _abilities(info.capabilities)] if info else [],
        "summary": info.summary if info else "",
        "reason": plugin.reason,
        "changes": list(plugin.changes),
        "hides": [f"{hidden.version} in {hidden.path}" for hidden in catalogue.hidden() if hidden.name == plugin.name],
        "trace": plugin.trace,
    }


def _abilities(capabilities: Capability) -> list[Any]:
    # A flag can be iterated from Python 3.11 on.
    return [ability for ability in Capability if ability.value and ability in capabilities]


def _show(plugins: list[Plugin]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True)
    for column in ("transport", "state", "what it is"):
        table.add_column(column, no_wrap=column != "what it is")
    for plugin in plugins:
        facts = _facts(plugin)
        lines = [facts["summary"]] if facts["summary"] else []
        if plugin.info is not None:
            lines += [
                f"memory: {', '.join(facts['kinds'])}",
                f"reaches: {_REACH[plugin.info.reach]}",
                f"can: {', '.join(facts['capabilities']).replace('_', ' ') or 'register only'}",
            ]
        elif plugin.state is PluginState.LOADED:
            lines.append(
                "a policy, in force without being named" if plugin.is_policy else "offers hooks, and no transport"
            )
        lines.append(f"from: {plugin.distribution} {plugin.version} in {plugin.path}")
        lines += [f"hides: {plugin.distribution} {hidden}" for hidden in facts["hides"]]
        text = Text("\n".join(lines))
        if plugin.reason:
            text.append(f"\n{plugin.reason}", "red" if plugin.state is PluginState.BROKEN else "yellow")
        for change in plugin.changes:
            text.append(f"\n{change}", "yellow")
        state = Text(plugin.state.value, _STYLES.get(plugin.state, ""))
        if plugin.remark:
            state.append(f"\n{plugin.remark}", "bold yellow")
        table.add_row(plugin.name, state, text)
    Console().print(table)
