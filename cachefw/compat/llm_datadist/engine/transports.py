"""Which transports an instance opens, and their settings."""

from __future__ import annotations

from typing import Any

from cachefw.compat.llm_datadist.engine.options import EngineOptions
from cachefw.compat.llm_datadist.status import translated
from cachefw.compat.protocols import available, chosen, device_settings
from cachefw.errors import CacheError

__all__ = ["choose", "settings_for"]


def choose(options: EngineOptions) -> tuple[str, ...]:
    """The transports to open, best first.

    Raises:
        LLMException: With `LLM_FEATURE_NOT_ENABLED`: no transport serves a protocol that was asked for.
    """
    if options.transports is not None:
        return options.transports
    try:
        return chosen(options.protocols) or available()
    except CacheError as error:
        raise translated(error, "init") from error


def settings_for(names: tuple[str, ...], options: EngineOptions) -> dict[str, dict[str, Any]]:
    """The settings of the transports; the device is that of the options unless they say otherwise."""
    defaults = device_settings(names, options.device_id)
    return {name: {**defaults.get(name, {}), **options.settings.get(name, {})} for name in names}
