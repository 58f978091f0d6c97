"""Finding plugins by metadata alone: nothing of theirs is imported here."""

from __future__ import annotations

import enum
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any

import attrs

from cachefw.transport import TransportInfo

__all__ = ["GROUP", "POLICIES", "Hidden", "Plugin", "PluginState", "by_name", "discover", "folder"]

#: The entry-point group of transports; an entry's name is its transport's.
GROUP = "cachefw.plugins"
#: The entry-point group of plugins without a transport, which are in force for every manager without being named.
POLICIES = "cachefw.policies"


class PluginState(enum.Enum):
    """How far a plugin got."""

    DISCOVERED = "discovered"
    LOADED = "loaded"
    AVAILABLE = "available"
    UNAVAILABLE = "unavailable"
    BROKEN = "broken"
    DISABLED = "disabled"


@attrs.define(eq=False)
class Plugin:
    """One discovered plugin.

    Attributes:
        name: Its entry point's name, and its transport's.
        distribution, version, path: Where it comes from.
        target: What the entry point names.
        group: `GROUP` or `POLICIES`.
        state: How far it got.
        reason: Why it got no further, in words; "" if nothing is wrong.
        remark: What every report has to say beside its transport's name, once it is probed; see `Transport.remark`.
        trace: The traceback behind `reason`, if there is one.
        changes: What changed in the process while it was loaded, in words: signal handlers, environment, threads.
        module: The plugin itself, once loaded.
        info: Its transport, once loaded.
    """

    name: str
    distribution: str
    version: str
    path: str
    target: str
    group: str
    entry_point: metadata.EntryPoint
    state: PluginState = PluginState.DISCOVERED
    reason: str = ""
    remark: str = ""
    trace: str = ""
    changes: tuple[str, ...] = ()
    module: Any = None
    info: TransportInfo | None = None
    #: Held while it is loaded: one that hangs keeps nobody from the others.
    lock: threading.RLock = attrs.field(factory=threading.RLock, repr=False)

    def __str__(self) -> str:
        return f"plugin {self.name!r} of {self.distribution} {self.version} ({self.target}, in {self.path})"

    @property
    def is_policy(self) -> bool:
        """Whether it is in force without being named."""
        return self.group == POLICIES

    def quarantine(self, reason: str, error: BaseException | str | None = None) -> None:
        """Keep it out, with the reason, and the exception or the traceback behind it."""
        self.state, self.reason = PluginState.BROKEN, reason
        if error is not None:
            self.trace = error if isinstance(error, str) else "".join(traceback.format_exception(error))


@attrs.frozen
class Hidden:
    """A plugin that is installed and cannot be seen: another distribution of the same name stands before it."""

    name: str
    distribution: str
    version: str
    path: str
    by_version: str
    by_path: str

    def __str__(self) -> str:
        return (
            f"{self.distribution} {self.version} in {self.path} brings {self.name!r} and is hidden by "
            f"{self.distribution} {self.by_version} in {self.by_path}"
        )


def discover() -> tuple[list[Plugin], list[Hidden]]:
    """Every plugin that is installed, in the order of the path, and those hidden by a distribution of the same name."""
    found: list[Plugin] = []
    hidden: list[Hidden] = []
    seen: set[str] = set()
    for dist, name, version, entries in _bringing():
        path = folder(dist)
        first = next(iter(metadata.distributions(name=name)), dist)
        if name not in seen and folder(first) == path and _entry_points(first) == _entry_points(dist):
            found += [Plugin(e.name, name, version, path, e.value, e.group, e) for e in entries]
        else:
            hidden += [Hidden(e.name, name, version, path, first.version, folder(first)) for e in entries]
        seen.add(name)
    return found, hidden


def _bringing() -> Iterator[tuple[metadata.Distribution, str, str, list[metadata.EntryPoint]]]:
    """The distributions with plugins. Of the others nothing is read but the list of their entry points."""
    for dist in metadata.distributions():
        try:
            if "[cachefw." not in _entry_points(dist):
                continue
            entries = [entry for entry in dist.entry_points if entry.group in (GROUP, POLICIES)]
            head = dist.metadata
        except Exception as error:
            text = f"the entry points of {_title(dist)} cannot be read, so that it has no plugin: {error!r}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            continue
        if entries and head["Name"]:
            yield dist, head["Name"], head["Version"] or "?", entries


def _entry_points(dist: metadata.Distribution) -> str:
    return dist.read_text("entry_points.txt") or ""


def folder(dist: metadata.Distribution) -> str:
    """Where a distribution is installed."""
    return str(dist.locate_file("")).rstrip("/")


def _title(dist: metadata.Distribution) -> str:
    try:
        return f"{dist.metadata['Name']} in {folder(dist)}"
    except Exception as error:
        return f"a distribution in {folder(dist)}, whose name cannot be read either ({error!r}),"


def by_name(found: Iterable[Plugin]) -> dict[str, Plugin]:
    """Plugins by name; where two distributions bring one name, neither can be used."""
    plugins: dict[str, Plugin] = {}
    # An installed distribution goes before the copy that is embedded in the core's own, and a disabled one last.
    for plugin in sorted(found, key=lambda p: (p.state is PluginState.DISABLED, p.distribution == "cachefw")):
        first = plugins.setdefault(plugin.name, plugin)
        if first is not plugin and plugin.distribution != "cachefw" and plugin.state is not PluginState.DISABLED:
            one, two = sorted(f"{p.distribution} {p.version} (in {p.path})" for p in (first, plugin))
            first.quarantine(f"{one} and {two} both bring a plugin of this name")
    return plugins
