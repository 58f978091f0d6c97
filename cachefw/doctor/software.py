"""Checks of what is installed and set: distributions, plugins, settings, and libraries loaded twice."""

from __future__ import annotations

import collections
import re
import signal
from collections.abc import Iterable
from importlib import metadata

from cachefw.catalog import Diagnosis
from cachefw.config import SETTINGS
from cachefw.doctor.host import Host, broken, headline, note, ok, unchecked, warning
from cachefw.doctor.variables import wrong_values, wrong_variables
from cachefw.errors import CacheError
from cachefw.plugins import PluginState, catalogue

__all__ = ["libraries", "packages", "plugins", "settings"]


def packages(host: Host) -> Iterable[Diagnosis]:
    """The distributions of cachefw: of one version, and no file in two of them."""
    found: dict[str, metadata.Distribution] = {}
    for dist in metadata.distributions():
        name = (dist.metadata["Name"] or "").lower().replace("_", "-")
        if name == "cachefw" or name.startswith("cachefw-"):
            found.setdefault(name, dist)
    versions = {name: dist.version for name, dist in sorted(found.items())}
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    if len({version for name, version in versions.items() if name in _RELEASED}) > 1:
        meaning = "the distributions of cachefw are released together, and only tried together"
        yield warning(text, meaning, "pip install -U " + " ".join(versions), **versions)
    else:
        yield ok(text, **versions)
    owners = collections.defaultdict(set)
    for name, dist in found.items():
        for file in dist.files or ():
            if file.suffix == ".py" and ".." not in file.parts:
                owners[str(file)].add(name)
    twice = {path: sorted(names) for path, names in owners.items() if len(names) > 1}
    if twice:
        first, names = next(iter(twice.items()))
        text = f"{len(twice)} files belong to several distributions, e.g. {first} to {' and '.join(names)}"
        yield broken(
            text, "one has overwritten the other", f"pip uninstall {' '.join(names)}, then install one", **twice
        )


_RELEASED = {"cachefw", "cachefw-host", "cachefw-ascendcl", "cachefw-hccs", "cachefw-rdma"}


def plugins(host: Host) -> Iterable[Diagnosis]:
    """Every plugin: loaded, asked whether its runtime is there, and what it changed by that."""
    wanted: tuple[str, ...] = SETTINGS["transports"].default
    text = host.environ.get(SETTINGS["transports"].variable, "")
    wanted = tuple(name.strip() for name in text.split(",") if name.strip()) or wanted
    try:
        installed = catalogue.plugins()
    except CacheError as error:
        yield broken(str(error), "no transport can be opened", "correct or unset that variable")
        return
    for hidden in catalogue.hidden():
        yield warning(str(hidden), "the copy that is found first is used", "remove one of the two", plugin=hidden.name)
    caught = _caught(host)
    for name in sorted(installed):
        plugin = catalogue.probe(name)
        facts = {"plugin": name, "distribution": plugin.distribution, "version": plugin.version}
        facts |= {"state": plugin.state.value, "remark": plugin.remark}
        what = f"{name} of {plugin.distribution} {plugin.version}"
        reason = headline(plugin.reason)
        if plugin.state is PluginState.BROKEN:
            yield broken(
                f"{what} is broken: {plugin.reason}",
                "it cannot be used; the others can",
                f"install {plugin.distribution} again, or remove it",
                **facts,
            )
        elif plugin.state is PluginState.DISABLED and name not in wanted:
            yield note(f"{what} is left out: {plugin.reason}", **facts)
        elif plugin.state in (PluginState.UNAVAILABLE, PluginState.DISABLED) and name in wanted:
            meaning = "it is named in CACHEFW_TRANSPORTS, so that a node that names no transport cannot be made"
            yield broken(f"{what} cannot be used here: {plugin.reason}", meaning, "mend that, or name another", **facts)
        elif plugin.state is PluginState.UNAVAILABLE:
            yield note(f"{what} cannot be used here: {reason}", fix="cachefw transports has the whole reason", **facts)
        else:
            remark = f", {plugin.remark}" if plugin.remark else ""
            yield ok(f"{what} is {plugin.state.value}{remark}", **facts)
        if plugin.changes:
            text = f"loading {what} changed this process: {'; '.join(plugin.changes)}"
            yield note(text, "what else runs in a process that uses it may notice", **facts)
        now = _caught(host)
        if now & ~caught:
            names = ", ".join(_signal(number + 1) for number in range(64) if (now & ~caught) >> number & 1)
            meaning = "the signal no longer does what it did to this process"
            fix = "set the program's own handlers after its transports are open"
            yield note(f"loading {what} installed a handler of {names}", meaning, fix, **facts)
        caught = now
    for name in wanted:
        if name not in installed:
            text = f"the transport {name!r} of CACHEFW_TRANSPORTS is not installed"
            yield broken(
                text, "a node that names no transport cannot be made", f"pip install cachefw-{name}", plugin=name
            )


def _caught(host: Host) -> int:
    return int(host.fields("/proc/self/status").get("SigCgt", "0") or "0", 16)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def settings(host: Host) -> Iterable[Diagnosis]:
    """Variables that make no sense, or that nobody reads."""
    wrong = wrong_values()
    for value in wrong:
        yield broken(value.fault, "whatever needs the setting is refused", f"correct or unset {value.setting.variable}")
    unknown = wrong_variables(host.environ)
    for name, near in unknown.items():
        hint = f"did you mean {near}? " if near else ""
        yield warning(f"{name} is set, and nothing reads it", "it has no effect", f"{hint}cachefw config lists them")
    if not wrong and not unknown:
        given = [setting.variable for setting in SETTINGS.values() if host.environ.get(setting.variable)]
        yield ok("settings from the environment: " + (", ".join(given) or "none"), given=given)


_TWICE = ("libucp", "libuct", "libucs", "libibverbs", "librdmacm", "libhccl", "libascendcl", "libacl_rt", "libcudart")


def libraries(host: Host) -> Iterable[Diagnosis]:
    """Two copies of one library in this process, which mix their globals, and hang or crash."""
    table = host.read("/proc/self/maps")
    if table is None:
        yield unchecked("/proc/self/maps cannot be read", "mount /proc")
        return
    files = {line.split(None, 5)[5] for line in table.splitlines() if line.count("/") and len(line.split(None, 5)) == 6}
    copies = collections.defaultdict(set)
    for file in files:
        stem = re.match(r"(lib[a-z_]+)[-.\d]", file.rsplit("/", 1)[-1])
        if stem and stem[1] in _TWICE:
            copies[stem[1]].add(file)
    twice = {stem: sorted(paths) for stem, paths in copies.items() if len(paths) > 1}
    for name, paths in twice.items():
        text = f"{name} is loaded from {' and '.join(paths)}"
        yield warning(text, "two copies in one process can hang or crash", "load one: see LD_LIBRARY_PATH", paths=paths)
    if not twice:
        yield ok("no library of a transport is loaded twice", loaded=sorted(copies))
