"""All that is known about errors and machines: the core's catalogue, rules, settings and hooks, and every plugin's."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import attrs

from cachefw import hookspecs
from cachefw.catalog import (
    Check,
    Diagnosis,
    Diagnostics,
    Entry,
    Health,
    Leftover,
    MachineProfile,
    core_entries,
    rule_entries,
)
from cachefw.catalog.rules import CAUSES
from cachefw.config import SETTINGS
from cachefw.core_rules import CACHE_RULES, MEMORY_RULES
from cachefw.errors import CacheError
from cachefw.plugins import Plugin, catalogue

__all__ = ["Knowledge", "everything", "of"]


@attrs.frozen
class Knowledge:
    """What the core and the plugins know.

    Attributes:
        entries: The catalogue; what several say of one name is joined.
        checks: Those of the plugins, by their names.
        profiles: The machines that each transport knows, by the transport's name.
        leftovers: What may be cleaned away.
    """

    entries: tuple[Entry, ...]
    checks: dict[str, Check]
    profiles: dict[str, tuple[MachineProfile, ...]]
    leftovers: tuple[Leftover, ...]


def of(plugin: Plugin) -> Diagnostics:
    """What a loaded plugin knows.

    A plugin that says nothing knows nothing; one whose hook fails offers a check that says so.
    """
    hook = getattr(plugin.module, "cachefw_diagnostics", None)
    if hook is None:
        return Diagnostics()
    try:
        made = hook()
        if isinstance(made, Diagnostics):
            return made
        fault = f"returned {made!r}, not a Diagnostics"
    except Exception as error:
        fault = f"raised {type(error).__name__}: {error}"

    def broken() -> Iterable[Diagnosis]:
        text = f"cachefw_diagnostics() of {plugin} {fault}"
        yield Diagnosis("", Health.WARNING, text, "what it knows cannot be used", "report it to the plugin's authors")

    return Diagnostics(checks=(Check(f"{plugin.name}.diagnostics", f"what {plugin.name} knows", broken),))


def everything() -> Knowledge:
    """Load every plugin, and ask it. One that is broken is left out: `cachefw.plugins.catalogue` has the reason."""
    entries = [*core_entries(), *_rules(), *_settings(), *_hooks()]
    checks: dict[str, Check] = {}
    profiles: dict[str, tuple[MachineProfile, ...]] = {}
    leftovers: list[Leftover] = []
    try:
        names = sorted(catalogue.plugins())
    except CacheError:
        # A setting names a plugin that is not there; whoever asks for a transport is told, and so is the doctor.
        names = []
    for name in names:
        try:
            plugin = catalogue.get(name)
        except CacheError:
            continue
        known = of(plugin)
        entries += known.entries
        checks.update((check.name, check) for check in known.checks)
        profiles[name] = known.profiles
        leftovers += known.leftovers
    return Knowledge(_joined(entries), checks, profiles, tuple(dict.fromkeys(leftovers)))


def _joined(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    joined: dict[tuple[str, str, str], Entry] = {}
    for entry in entries:
        key = entry.name, entry.sort, entry.owner
        first = joined.setdefault(key, entry)
        if first is not entry:
            joined[key] = attrs.evolve(
                first,
                # What a transport knows is about fewer cases, and so more likely in them.
                causes=tuple(dict.fromkeys((*entry.causes, *first.causes))),
                aliases=tuple(dict.fromkeys((*first.aliases, *entry.aliases))),
            )
    return tuple(joined.values())


def _rules() -> tuple[Entry, ...]:
    rules = {rule.name: rule for rule in (*MEMORY_RULES, *CACHE_RULES)}
    return rule_entries(rules.values(), "cachefw", CAUSES)


def _settings() -> Iterable[Entry]:
    for setting in SETTINGS.values():
        shown = ",".join(setting.default) if isinstance(setting.default, tuple) else setting.default
        text = f"default: {int(shown) if isinstance(shown, bool) else 'unset' if shown == '' else shown}"
        yield Entry(setting.variable, "setting", setting.summary, aliases=(setting.name,), text=text)


def _hooks() -> Iterable[Entry]:
    for name, hook in vars(hookspecs).items():
        if name.startswith("cachefw_"):
            title, _, rest = (inspect.getdoc(hook) or "").partition("\n")
            text = rest.partition("\nExamples:")[0].strip()
            arguments = ", ".join(inspect.signature(hook).parameters)
            yield Entry(name, "hook", title, text=f"{name}({arguments})\n\n{text}", source="docs/hooks.md")
