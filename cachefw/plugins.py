"""Finding plugins, loading the ones that are asked for, and keeping a broken one from harming the rest.

Four states are told apart: *discovered* (its metadata was read), *loaded* (its Python was imported), *available* (its
runtime was found) and *open* (it took resources). `import cachefw` does none of this.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from cachefw.discovery import GROUP, Plugin, PluginState, discover
from cachefw.errors import CacheError, PluginError, TransportUnavailable
from cachefw.loading import listed, load
from cachefw.transport import Transport

__all__ = ["GROUP", "Plugin", "PluginState", "catalogue", "open_transports"]


class Catalogue:
    """Every plugin of this environment, by name.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._plugins: dict[str, Plugin] | None = None

    def plugins(self) -> dict[str, Plugin]:
        """What is installed, read once from metadata; nothing is imported."""
        with self._lock:
            if self._plugins is None:
                self._plugins = discover()
            return self._plugins

    def get(self, name: str) -> Plugin:
        """The plugin of that name, loaded.

        Raises:
            TransportUnavailable: No such plugin; the text has near matches, what is installed, and the command to type.
            PluginError: It is broken; the text repeats why.
        """
        plugins = self.plugins()
        if name not in plugins:
            near = difflib.get_close_matches(name, plugins, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise TransportUnavailable(
                f"transport {name!r} is not installed: {hint}installed are {listed(plugins)}; a transport comes with "
                f"its distribution, e.g. pip install cachefw-{name}",
                code="transport.not_installed",
                transport=name,
                facts={"installed": sorted(plugins)},
            )
        plugin = plugins[name]
        with self._lock:
            if plugin.state is PluginState.DISCOVERED:
                load(plugin)
        if plugin.state is PluginState.BROKEN:
            raise _broken(plugin)
        return plugin

    def probe(self, name: str) -> Plugin:
        """Load it, and find out whether its runtime is there; never raises for that, see `Plugin.state`.

        Raises:
            TransportUnavailable: No such plugin.
        """
        try:
            plugin = self.get(name)
            if plugin.info is not None:
                _probe(plugin, _instance(plugin))
        except PluginError:
            return self.plugins()[name]
        return plugin

    def forget(self) -> None:
        """Read the metadata anew next time, e.g. after an installation in this process."""
        with self._lock:
            self._plugins = None


#: The one catalogue of this process.
catalogue = Catalogue()


def _instance(plugin: Plugin) -> Transport:
    assert plugin.info is not None  # noqa: S101 - callers ask only plugins that offer a transport
    try:
        transport = plugin.info.factory()
    except Exception as error:
        plugin.quarantine(f"its factory raised {error!r}", error)
        raise _broken(plugin) from error
    if not isinstance(transport, Transport):
        plugin.quarantine(f"its factory made {transport!r}, not a Transport")
        raise _broken(plugin)
    transport.info = plugin.info
    return transport


def _probe(plugin: Plugin, transport: Transport) -> None:
    try:
        reason = transport.probe()
        plugin.remark = transport.remark
    except Exception as error:
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
            transport = _instance(plugin)
            _probe(plugin, transport)
            if plugin.reason:
                raise TransportUnavailable(f"transport {name!r} cannot be used here: {plugin.reason}", transport=name)
            try:
                transport.open((settings or {}).get(name, {}))
            except CacheError:
                raise
            except Exception as error:
                raise PluginError(
                    f"{plugin} is broken: open() raised {error!r}", code="plugin.broken", transport=name
                ) from error
            opened.append((plugin, transport))
    except BaseException:
        for _, transport in reversed(opened):
            transport.close()
        raise
    return opened
