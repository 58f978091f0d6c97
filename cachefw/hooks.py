"""The hooks of one manager: what its plugins say and do when memory is registered, and who is told."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pluggy

from cachefw import hookspecs
from cachefw.config import SETTINGS
from cachefw.discovery import Plugin
from cachefw.errors import CacheError, PluginError
from cachefw.loading import adopt
from cachefw.memory import MemoryRegion
from cachefw.rules import Finding, Outcome, Request
from cachefw.transport import RegisteredMemory, Transport

__all__ = ["Hooks"]


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
    """The hooks of one manager: its transports' plugins, policies, the plugins given to it, and the core's own answers.

    Args:
        transports: The plugin of each open transport, by name.
        extra: Further plugins, e.g. policies and observers.
        policies: What is installed and in force without being named. One that is broken cannot check anything, and
            every plan says so.

    Raises:
        PluginError: One of `extra` breaks the contract.
    """

    def __init__(
        self, transports: Mapping[str, Any], extra: Iterable[Any] = (), policies: Iterable[Plugin] = ()
    ) -> None:
        self._manager = pluggy.PluginManager("cachefw")
        self._manager.add_hookspecs(hookspecs)
        # With a space, which no transport's name has.
        self._manager.register(_Core(), "the core")
        self._reported: set[str] = set()
        self._validators: dict[str | None, list[tuple[str, Any]]] = {}
        self._silent: list[Plugin] = []
        for name, module in transports.items():
            self._manager.register(module, name)
        for policy in policies:
            if policy.module is None:
                self._silent.append(policy)
            else:
                self._admit(policy.name, policy.module)
        for plugin in extra:
            name = getattr(plugin, "__name__", type(plugin).__name__)
            fault = adopt(plugin, name) if not isinstance(plugin, str) else "give the plugin itself, not a name"
            if isinstance(fault, str):
                raise PluginError(f"plugin {name!r}: {fault}", code="plugin.contract")
            if self._manager.is_registered(plugin):
                raise PluginError(f"plugin {name!r} is given twice, or is installed too", code="plugin.contract")
            self._admit(name, plugin)
        everyone = self._manager.list_name_plugin()
        for name, plugin in everyone:
            if plugin is None or not hasattr(plugin, "cachefw_validate_memory"):
                continue
            others = [other for _, other in everyone if other is not plugin]
            caller = self._manager.subset_hook_caller("cachefw_validate_memory", others)
            self._validators.setdefault(name if name in transports else None, []).append((name, caller))

    def _admit(self, name: str, plugin: Any) -> None:
        taken = sum(other.partition("#")[0] == name for other, _ in self._manager.list_name_plugin())
        self._manager.register(plugin, f"{name}#{taken + 1}" if taken else name)

    def validate(self, request: Request, transport: Transport | None = None) -> list[Finding]:
        """What the plugins say to a request: the transport's own plugin, or every policy when it names none."""
        findings = [_silent_policy(plugin) for plugin in self._silent] if request.transport is None else []
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

    def observed(self, hook: str) -> bool:
        """Whether anybody implements an observer's hook; it stays so."""
        return bool(getattr(self._manager.hook, hook).get_hookimpls())

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


def _silent_policy(plugin: Plugin) -> Finding:
    return Finding(
        "core.plugin",
        Outcome.NOT_CHECKED,
        f"the rules of {plugin} could not be checked: {plugin.reason}",
        facts={"detail": plugin.trace or None},
        fix=f"mend it, or leave it out: {SETTINGS['disable_plugins'].variable}={plugin.name}",
        source="cachefw",
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
