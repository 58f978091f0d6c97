"""Finding plugins by metadata alone: nothing of theirs is imported here."""

from __future__ import annotations

import enum
import traceback
import warnings
from importlib import metadata
from typing import Any

import attrs

from cachefw.transport import TransportInfo

__all__ = ["GROUP", "Plugin", "PluginState", "discover"]

#: The entry-point group of plugins.
GROUP = "cachefw.plugins"


class PluginState(enum.Enum):
    """How far a plugin got."""

    DISCOVERED = "discovered"
    LOADED = "loaded"
    AVAILABLE = "available"
    UNAVAILABLE = "unavailable"
    BROKEN = "broken"


@attrs.define(eq=False)
class Plugin:
    """One discovered plugin.

    Attributes:
        name: Its entry point's name, and its transport's.
        distribution, version: Where it comes from.
        target: What the entry point names.
        state: How far it got.
        reason: Why it got no further, in words; "" if nothing is wrong.
        remark: What every report has to say beside its transport's name, once it is probed; see `Transport.remark`.
        trace: The traceback behind `reason`, if there is one.
        module: The plugin itself, once loaded.
        info: Its transport, once loaded.
    """

    name: str
    distribution: str
    version: str
    target: str
    entry_point: metadata.EntryPoint
    state: PluginState = PluginState.DISCOVERED
    reason: str = ""
    remark: str = ""
    trace: str = ""
    module: Any = None
    info: TransportInfo | None = None

    def __str__(self) -> str:
        return f"plugin {self.name!r} of {self.distribution} {self.version} ({self.target})"

    def quarantine(self, reason: str, error: BaseException | None = None) -> None:
        """Keep it out, with the reason."""
        self.state, self.reason = PluginState.BROKEN, reason
        if error is not None:
            self.trace = "".join(traceback.format_exception(error))


def discover() -> dict[str, Plugin]:
    """Every plugin that is installed, by name."""
    found: list[Plugin] = []
    seen: set[str] = set()
    for dist in metadata.distributions():
        name = dist.metadata["Name"]
        key = (name or "").lower().replace("_", "-")
        # A distribution further down the path is hidden by the first of its name.
        if not key or key in seen:
            continue
        seen.add(key)
        try:
            entries = [entry for entry in dist.entry_points if entry.group == GROUP]
        except Exception as error:
            text = f"the entry points of {name} cannot be read, so that it has no plugin: {error!r}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            continue
        found += [Plugin(entry.name, name, dist.version, entry.value, entry) for entry in entries]
    plugins: dict[str, Plugin] = {}
    # An installed distribution goes before the copy that is embedded in the core's own.
    for plugin in sorted(found, key=lambda plugin: plugin.distribution == "cachefw"):
        first = plugins.setdefault(plugin.name, plugin)
        if first is not plugin and plugin.distribution != "cachefw":
            first.quarantine(f"{first.distribution} and {plugin.distribution} both bring a plugin of this name")
    return plugins
