"""Importing one plugin and checking what it offers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import pluggy

from cachefw import hookspecs
from cachefw.discovery import Plugin, PluginState
from cachefw.transport import CONTRACT_VERSION, TransportInfo

__all__ = ["adopt", "listed", "load"]


def listed(names: Iterable[str]) -> str:
    """Names for a text, in order."""
    return ", ".join(repr(name) for name in sorted(names)) or "none"


def load(plugin: Plugin) -> None:
    """Import it and check what it offers; a fault is filed in the plugin."""
    try:
        module = plugin.entry_point.load()
    except (Exception, SystemExit) as error:
        plugin.quarantine(f"importing it raised {type(error).__name__}: {error}", error)
        return
    fault = adopt(module, plugin.name) if not isinstance(module, str) else "it names a string, not a module or object"
    if isinstance(fault, str):
        plugin.quarantine(fault)
        return
    plugin.module, plugin.state = module, PluginState.LOADED
    infos = fault
    if infos and [info.name for info in infos] != [plugin.name]:
        plugin.quarantine(
            f"its entry point is named {plugin.name!r} and it offers {listed(i.name for i in infos)}; a plugin offers "
            "one transport, of the same name"
        )
    elif infos:
        plugin.info = infos[0]


def adopt(module: Any, name: str) -> list[TransportInfo] | str:
    """Check a plugin's hooks on their own: the transports it offers, or what is wrong with it in words."""
    lone = pluggy.PluginManager("cachefw")
    lone.add_hookspecs(hookspecs)
    try:
        lone.register(module, name)
        lone.check_pending()
    except pluggy.PluginValidationError as error:
        return _hook_fault(str(error), lone)
    except Exception as error:
        return f"its hooks cannot be read: {error!r}"
    try:
        offered = [info for infos in lone.hook.cachefw_transports() for info in infos]
    except (Exception, SystemExit) as error:
        return f"cachefw_transports() raised {error!r}"
    for info in offered:
        if not isinstance(info, TransportInfo):
            return f"cachefw_transports() yielded {info!r}, not a TransportInfo"
        if info.contract != CONTRACT_VERSION:
            return (
                f"it is written for version {info.contract} of the plugin contract; this is version {CONTRACT_VERSION}"
            )
    return offered


def _hook_fault(text: str, lone: pluggy.PluginManager) -> str:
    known = [name for name in vars(hookspecs) if name.startswith("cachefw_")]
    for name in vars(lone.hook):
        if name.startswith("cachefw_") and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            return f"it implements an unknown hook {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    return " ".join(text.split())
