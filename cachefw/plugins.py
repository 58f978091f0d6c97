"""Finding plugins, loading the ones that are asked for, and keeping a broken one from harming the rest.

Four states are told apart: *discovered* (its metadata was read), *loaded* (its Python was imported), *available* (its
runtime was found) and *open* (it took resources). `import cachefw` does none of this.
"""

from __future__ import annotations

import difflib
import enum
import threading
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

import attrs
import pluggy

from cachefw import hookspecs
from cachefw.errors import CacheError, PluginError, TransportUnavailable
from cachefw.memory import MemoryRegion
from cachefw.rules import Finding, Outcome, Request
from cachefw.transport import CONTRACT_VERSION, RegisteredMemory, Transport, TransportInfo

__all__ = ["GROUP", "Hooks", "Plugin", "PluginState", "catalogue", "open_transports"]

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
                self._plugins = _discover()
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
                f"transport {name!r} is not installed: {hint}installed are {_listed(plugins)}; a transport comes with "
                f"its distribution, e.g. pip install cachefw-{name}",
                code="transport.not_installed",
                transport=name,
                facts={"installed": sorted(plugins)},
            )
        plugin = plugins[name]
        with self._lock:
            if plugin.state is PluginState.DISCOVERED:
                _load(plugin)
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


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none"


def _discover() -> dict[str, Plugin]:
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


def _load(plugin: Plugin) -> None:
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
            f"its entry point is named {plugin.name!r} and it offers {_listed(i.name for i in infos)}; a plugin offers "
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


class _Core:
    """The core's own answer to the registration hooks, after every plugin."""

    @staticmethod
    @hookspecs.hookimpl(trylast=True)
    def cachefw_register_memory(region: MemoryRegion, transport: Transport) -> RegisteredMemory:
        return transport.register(region)

    @staticmethod
    @hookspecs.hookimpl(trylast=True)
    def cachefw_unregister_memory(registered: RegisteredMemory, transport: Transport) -> bool:
        transport.unregister(registered)
        return True


class Hooks:
    """The hooks of one manager: its transports' plugins, the plugins given to it, and the core's own answers.

    Args:
        transports: The plugin of each open transport, by name.
        extra: Further plugins, e.g. policies and observers.

    Raises:
        PluginError: One of `extra` breaks the contract.
    """

    def __init__(self, transports: Mapping[str, Any], extra: Iterable[Any] = ()) -> None:
        self._manager = pluggy.PluginManager("cachefw")
        self._manager.add_hookspecs(hookspecs)
        self._manager.register(_Core(), "core")
        self._reported: set[str] = set()
        self._validators: dict[str | None, list[tuple[str, Any]]] = {}
        for name, module in transports.items():
            self._manager.register(module, name)
        for plugin in extra:
            name = getattr(plugin, "__name__", type(plugin).__name__)
            fault = adopt(plugin, name)
            if isinstance(fault, str):
                raise PluginError(f"plugin {name!r}: {fault}", code="plugin.contract")
            if self._manager.is_registered(plugin):
                raise PluginError(f"plugin {name!r} is given twice", code="plugin.contract")
            taken = sum(other.partition("#")[0] == name for other, _ in self._manager.list_name_plugin())
            self._manager.register(plugin, f"{name}#{taken + 1}" if taken else name)
        everyone = self._manager.list_name_plugin()
        for name, plugin in everyone:
            if plugin is None or not hasattr(plugin, "cachefw_validate_memory"):
                continue
            others = [other for _, other in everyone if other is not plugin]
            caller = self._manager.subset_hook_caller("cachefw_validate_memory", others)
            self._validators.setdefault(name if name in transports else None, []).append((name, caller))

    def validate(self, request: Request, transport: Transport | None = None) -> list[Finding]:
        """What the plugins say to a request: the transport's own plugin, or every policy when it names none."""
        findings: list[Finding] = []
        for name, caller in self._validators.get(request.transport, ()):
            try:
                results = [finding for result in caller(request=request, transport=transport) for finding in result]
            except CacheError as error:
                findings.append(_unanswered(name, request, error))
                continue
            except Exception as error:
                findings.append(_broken_validator(name, request, f"raised {error!r}"))
                continue
            for finding in results:
                if isinstance(finding, Finding):
                    findings.append(attrs.evolve(finding, transport=request.transport))
                else:
                    findings.append(_broken_validator(name, request, f"returned {finding!r}, not a Finding"))
        return findings

    def register(self, region: MemoryRegion, transport: Transport) -> RegisteredMemory:
        """Register one region with one transport.

        Raises:
            CacheError: The transport's own, or a `PluginError` when the result is none.
        """
        name = transport.info.name
        try:
            made = self._manager.hook.cachefw_register_memory(region=region, transport=transport)
        except CacheError:
            raise
        except Exception as error:
            raise PluginError(
                f"transport {name!r} raised {error!r} while registering {region}", operation="register", transport=name
            ) from error
        if not isinstance(made, RegisteredMemory) or made.region != region or made.transport != name:
            raise PluginError(
                f"transport {name!r} returned {made!r} while registering {region}; it must return a RegisteredMemory "
                "for that region and transport",
                operation="register",
                transport=name,
            )
        return made

    def unregister(self, registered: RegisteredMemory, transport: Transport) -> None:
        """Give one registration back.

        Raises:
            CacheError: The transport's own, or a `PluginError`.
        """
        name = transport.info.name
        try:
            self._manager.hook.cachefw_unregister_memory(registered=registered, transport=transport)
        except CacheError:
            raise
        except Exception as error:
            raise PluginError(
                f"transport {name!r} raised {error!r} while giving back {registered.region}",
                operation="unregister",
                transport=name,
            ) from error

    def observe(self, hook: str, **arguments: Any) -> None:
        """Tell the observers. One that raises is reported once, and the call goes on."""
        for impl in reversed(getattr(self._manager.hook, hook).get_hookimpls()):
            try:
                impl.function(*(arguments[name] for name in impl.argnames))
            except Exception as error:
                culprit = f"{impl.plugin_name}: {hook}"
                if culprit not in self._reported:
                    self._reported.add(culprit)
                    warnings.warn(
                        f"plugin {culprit} raised {error!r}; not reported again", RuntimeWarning, stacklevel=3
                    )


def _unanswered(name: str, request: Request, error: CacheError) -> Finding:
    return Finding(
        "core.plugin",
        Outcome.REFUSED,
        f"the rules of plugin {name!r} could not be checked: {error}",
        transport=request.transport,
        facts={"status": error.status, "detail": error.detail},
        fix="mend what the text names; without an answer nothing is registered",
    )


def _broken_validator(name: str, request: Request, what: str) -> Finding:
    return Finding(
        "core.plugin",
        Outcome.REFUSED,
        f"the rules of plugin {name!r} could not be run: it {what}",
        transport=request.transport,
        fix="report it to the plugin's authors, or leave the plugin out",
    )
