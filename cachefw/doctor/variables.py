"""The environment variables of cachefw: those that are read, and those that are set and read by nobody."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from cachefw.catalog import Entry
from cachefw.config import SETTINGS, Value, value
from cachefw.diagnostics import everything

__all__ = ["plugin_settings", "wrong_values", "wrong_variables"]

_PREFIX = "CACHEFW_"


def plugin_settings() -> list[Entry]:
    """The variables that plugins and runtimes read, beside the core's own."""
    own = {setting.variable for setting in SETTINGS.values()}
    return [entry for entry in everything().entries if entry.sort == "setting" and entry.name not in own]


def wrong_values() -> list[Value]:
    """The settings whose variable's text makes no sense."""
    return [told for told in map(value, SETTINGS) if told.fault]


def wrong_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables with our prefix that nobody reads, each with the name that was perhaps meant, or ""."""
    known = {setting.variable for setting in SETTINGS.values()} | {entry.name for entry in plugin_settings()}
    unknown = sorted(name for name in environ if name.startswith(_PREFIX) and name not in known)
    return {name: next(iter(difflib.get_close_matches(name, known, 1)), "") for name in unknown}
