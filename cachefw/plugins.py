"""Finding plugins, loading the ones that are asked for, and keeping a broken one from harming the rest.

Four states are told apart: *discovered* (its metadata was read), *loaded* (its Python was imported), *available* (its
runtime was found) and *open* (it took resources). `import cachefw` does none of this.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from cachefw.config import SETTINGS, setting
from cachefw.discovery import GROUP, POLICIES, Hidden, Plugin, PluginState, by_name, discover
from cachefw.errors import CacheError, PluginError, RequestError, TransportUnavailable, refusal
from cachefw.footprint import Footprint
from cachefw.loading import listed, load, note_changes
from cachefw.transport import Transport

__all__ = ["GROUP", "POLICIES", "Hidden", "Plugin", "PluginState", "catalogue", "open_transports"]


class Catalogue:
    """Every plugin of this environment, by name.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._plugins: dict[str, Plugin] | None = None
        self._hidden: list[Hidden] = []

    def plugins(self) -> dict[str, Plugin]:
        """What is installed, read once from metadata; nothing is imported.

        Raises:
            RequestError: A setting names a plugin that is not installed; the text has near matches.
        """
        with self._lock:
            if self._plugins is None:
                found, hidden = discover()
                _disable(found)
                self._plugins, self._hidden = by_name(found), hidden
            return self._plugins

    def hidden(self) -> list[Hidden]:
        """What is installed a second time, further down the path, and not seen."""
        self.plugins()
        return list(self._hidden)

    def get(self, name: str) -> Plugin:
        """The plugin of that name, loaded.

        Raises:
            TransportUnavailable: No such plugin; the text has near matches, what is installed, and the command to type.
                Or a setting disables it.
            PluginError: It is broken; the text repeats why.
        """
        plugins = self.plugins()
        if name not in plugins:
            near = difflib.get_close_matches(name, plugins, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            hint = "".join(f"{hidden}; " for hidden in self._hidden if hidden.name == name) or hint
            raise TransportUnavailable(
                f"transport {name!r} is not installed: {hint}installed are {listed(plugins)}; a transport comes with "
                f"its distribution, e.g. pip install cachefw-{name}",
                code="transport.not_installed",
                transport=name,
                facts={"installed": sorted(plugins)},
            )
        plugin = plugins[name]
        if _loaded(plugin).state is PluginState.BROKEN:
            raise _broken(plugin)
        if plugin.state is PluginState.DISABLED:
            raise TransportUnavailable(
                f"transport {name!r} is not used: {plugin.reason}", code="transport.disabled", transport=name
            )
        return plugin

    def policies(self) -> list[Plugin]:
        """The plugins that are in force without being named, loaded; see `Plugin.state` for those that are broken."""
        found = [plugin for plugin in self.plugins().values() if plugin.is_policy]
        return [_loaded(plugin) for plugin in found if plugin.state is not PluginState.DISABLED]

    def probe(self, name: str) -> Plugin:
        """Load it, and find out whether its runtime is there; never raises for that, see `Plugin.state`.

        Raises:
            TransportUnavailable: No such plugin.
        """
        try:
            plugin = self.get(name)
            if plugin.info is not None:
                _probed(plugin)
        except PluginError:
            return self.plugins()[name]
        except TransportUnavailable:
            if name in self.plugins():
                return self.plugins()[name]
            raise
        return plugin

    def forget(self) -> None:
        """Read the metadata anew next time, e.g. after an installation in this process."""
        with self._lock:
            self._plugins = None


#: The one catalogue of this process.
catalogue = Catalogue()


def _loaded(plugin: Plugin) -> Plugin:
    with plugin.lock:
        if plugin.state is PluginState.DISCOVERED:
            load(plugin)
    return plugin


def _disable(found: Sequence[Plugin]) -> None:
    """Act on the settings ``plugins`` and ``disable_plugins``."""
    only, without = setting("plugins"), setting("disable_plugins")
    known = {name for plugin in found for name in (plugin.name, plugin.distribution)}
    for setting_name, names in (("plugins", only), ("disable_plugins", without)):
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise refusal(
                    RequestError,
                    {ValueError},
                    f"{SETTINGS[setting_name].variable} names {name!r}, which is not installed: {hint}installed are "
                    f"{listed({plugin.name for plugin in found})}",
                    operation="settings",
                )
    for plugin in found:
        both = {plugin.name, plugin.distribution}
        if both.intersection(without):
            plugin.state = PluginState.DISABLED
            plugin.reason = f"{SETTINGS['disable_plugins'].variable} leaves it out"
        elif only and not both.intersection(only):
            plugin.state = PluginState.DISABLED
            plugin.reason = f"{SETTINGS['plugins'].variable} does not name it"


def _instance(plugin: Plugin) -> Transport:
    assert plugin.info is not None  # noqa: S101 - callers ask only plugins that offer a transport
    try:
        transport = plugin.info.factory()
    except (Exception, SystemExit) as error:
        plugin.quarantine(f"its factory raised {error!r}", error)
        raise _broken(plugin) from error
    if not isinstance(transport, Transport):
        plugin.quarantine(f"its factory made {transport!r}, not a Transport")
        raise _broken(plugin)
    transport.info = plugin.info
    return transport


def _probed(plugin: Plugin) -> Transport:
    """A transport of the plugin, asked whether its runtime is there."""
    before = Footprint.now()
    try:
        transport = _instance(plugin)
        _probe(plugin, transport)
    finally:
        note_changes(plugin, before, "probed")
    return transport


def _probe(plugin: Plugin, transport: Transport) -> None:
    try:
        reason = transport.probe()
        plugin.remark = transport.remark
    except (Exception, SystemExit) as error:
        plugin.quarantine(f"probe() raised {error!r}", error)
        raise _broken(plugin) from error
    plugin.state = PluginState.UNAVAILABLE if reason else PluginState.AVAILABLE
    plugin.reason = reason or ""


def _broken(plugin: Plugin) -> PluginError:
    return PluginError(
        f"{plugin} is broken: {plugin.reason}",
        code="plugin.broken",
        transport=plugin.name,
        detail=plugin.trace or None,
        facts={"distribution": plugin.distribution, "version": plugin.version, "path": plugin.path},
    )


def open_transports(
    names: Sequence[str], settings: Mapping[str, Mapping[str, Any]] | None = None
) -> list[tuple[Plugin, Transport]]:
    """Open transports, in order; all or none.

    Args:
        names: Their names.
        settings: For each name, the transport's own settings.

    Raises:
        TransportUnavailable: Not installed, or its runtime is missing; the text says what was looked for.
        PluginError: Its plugin is broken.
    """
    opened: list[tuple[Plugin, Transport]] = []
    try:
        for name in names:
            plugin = catalogue.get(name)
            if plugin.info is None:
                raise TransportUnavailable(f"{plugin} offers no transport", transport=name)
            transport = _probed(plugin)
            if plugin.reason:
                raise TransportUnavailable(f"transport {name!r} cannot be used here: {plugin.reason}", transport=name)
            try:
                transport.open((settings or {}).get(name, {}))
            except CacheError:
                raise
            except (Exception, SystemExit) as error:
                raise PluginError(
                    f"{plugin} is broken: open() raised {error!r}", code="plugin.broken", transport=name
                ) from error
            opened.append((plugin, transport))
    except BaseException:
        for _, transport in reversed(opened):
            transport.close()
        raise
    return opened
