"""Importing one plugin where it can do no harm, and checking what it offers."""

from __future__ import annotations

import difflib
import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pluggy

from cachefw import catalog, hookspecs
from cachefw.config import SETTINGS, setting
from cachefw.discovery import Plugin, PluginState
from cachefw.footprint import Footprint
from cachefw.logs import event
from cachefw.transport import CONTRACT_VERSION, TransportInfo

__all__ = ["adopt", "listed", "load", "note_changes"]

_HOOKS = [name for name in vars(hookspecs) if name.startswith("cachefw_")]


def listed(names: Iterable[str]) -> str:
    """Names for a text, in order."""
    return ", ".join(repr(name) for name in sorted(names)) or "none"


@attrs.frozen
class _Fault:
    reason: str
    behind: BaseException | str | None = None


class _Watched(threading.Thread):
    """Does one piece of work, whatever it raises, in a thread that can be left behind."""

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self.result: Any = None

    def run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:  # also what would end the interpreter, which is not a plugin's to decide
            self.result = _Fault(_import_fault(error), error)

    def stack(self) -> list[traceback.FrameSummary]:
        frame = sys._current_frames().get(self.ident or 0)
        return list(traceback.extract_stack(frame)) if frame else []


def load(plugin: Plugin) -> None:
    """Import it and check what it offers; a fault is filed in the plugin.

    The import has a thread of its own and so many seconds as the setting ``plugin_timeout`` says. One that hangs is
    left behind there. Nothing in this thread is ever undone or repeated for it.
    """
    limit = float(setting("plugin_timeout"))
    before = Footprint.now()
    thread = _Watched(f"cachefw-load-{plugin.name}", lambda: _import(plugin))
    thread.start()
    thread.join(limit)
    outcome = _hanging(thread, limit) if thread.is_alive() else thread.result
    note_changes(plugin, before, "loaded", thread)
    if isinstance(outcome, _Fault):
        plugin.quarantine(outcome.reason, outcome.behind)
        return
    plugin.module, infos = outcome
    plugin.state, plugin.info = PluginState.LOADED, infos[0] if infos else None
    catalog.contribute(plugin.name, plugin.module)


def note_changes(plugin: Plugin, before: Footprint, when: str, own: threading.Thread | None = None) -> None:
    """File what changed in the process since `before`, and log it with the plugin's name."""
    for kind, text in before.changes(own):
        sentence = f"while it was {when}, {text}"
        if sentence in plugin.changes:
            continue
        plugin.changes += (sentence,)
        # Finding a runtime may well need the environment and threads; a signal is always the application's.
        loud = when == "loaded" or kind == "signal"
        level = logging.WARNING if loud else logging.INFO
        event(level, "plugin.changes", "%s: %s", plugin, sentence, plugin=plugin.name, kind=kind)


def _hanging(thread: _Watched, limit: float) -> _Fault:
    stack = thread.stack()
    where = f"; it is at {stack[-1].filename}:{stack[-1].lineno}, in {stack[-1].name}" if stack else ""
    return _Fault(
        f"importing it had not ended after {limit:g} s{where}. {SETTINGS['plugin_timeout'].variable} gives it longer",
        "".join(traceback.format_list(stack)),
    )


def _import_fault(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-2:]
    if isinstance(error, ValueError) and last and last[-1].filename == signal.__file__:
        return (
            f"importing it installs a signal handler ({last[0].filename}:{last[0].lineno}), which is for the "
            "application to do; the thread in which plugins are imported cannot"
        )
    return f"importing it raised {type(error).__name__}: {error}"


def _import(plugin: Plugin) -> tuple[Any, list[TransportInfo]] | _Fault:
    module = plugin.entry_point.load()
    if isinstance(module, str):
        return _Fault("it names a string, not a module or object")
    infos = adopt(module, plugin.name)
    if isinstance(infos, str):
        return _Fault(infos)
    if plugin.is_policy and infos:
        return _Fault("it offers a transport, and its entry point is in the group of policies")
    if infos and [info.name for info in infos] != [plugin.name]:
        return _Fault(
            f"its entry point is named {plugin.name!r} and it offers {listed(i.name for i in infos)}; a plugin offers "
            "one transport, of the same name"
        )
    return module, infos


def adopt(module: Any, name: str) -> list[TransportInfo] | str:
    """Check a plugin's hooks on their own: the transports it offers, or what is wrong with it in words.

    In a manager that is thrown away: pluggy before 1.7 keeps a plugin that it refuses, by name and with the hooks that
    it had read by then.
    """
    lone = pluggy.PluginManager("cachefw")
    lone.add_hookspecs(hookspecs)
    try:
        lone.register(module, name)
        fault = _unknown_hook(lone) or _unmarked_hook(module)
        if fault:
            return fault
        lone.check_pending()
        if not any(getattr(lone.hook, hook).get_hookimpls() for hook in _HOOKS):
            return "it implements no hook: mark its functions with @hookimpl"
    except pluggy.PluginValidationError as error:
        return _unknown_hook(lone) or " ".join(str(error).split())
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


def _unknown_hook(lone: pluggy.PluginManager) -> str | None:
    """Also one marked as optional, which pluggy lets pass."""
    for name in vars(lone.hook):
        if name.startswith("cachefw_") and name not in _HOOKS:
            near = difflib.get_close_matches(name, _HOOKS, 1)
            return f"it implements an unknown hook {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    return None


def _unmarked_hook(module: Any) -> str | None:
    """A function with a hook's name and without the mark, which pluggy does not see."""
    for name in _HOOKS:
        function = getattr(module, name, None)
        if callable(function) and not hasattr(function, "cachefw_impl") and not hasattr(function, "cachefw_spec"):
            return f"its function {name}() is not marked with @hookimpl, so that nobody would call it"
    return None
