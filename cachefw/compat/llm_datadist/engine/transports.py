"""Which transports an instance opens, and what is device memory where there is no device.

In order, the first that says something decides: the option ``cachefw.transports``, the variable
``CACHEFW_TRANSPORTS``, the protocols of ``protocol_desc`` and ``local_comm_res``, and last what is there: the one for
device memory where its runtime is found, then the default.
"""

from __future__ import annotations

import os
from typing import Any

from cachefw.compat.llm_datadist.engine.options import EngineOptions
from cachefw.compat.llm_datadist.status import LLMStatusCode, failed
from cachefw.config import DEFAULT_TRANSPORT, SETTINGS, setting
from cachefw.plugins import PluginState, catalogue

__all__ = ["choose", "settings_for"]

#: What serves each protocol.
_SERVES = {"roce": "rdma", "hccs": "hccs"}
#: The transport for memory of the vendor's devices, and its setting for the number of the device.
_DEVICE = "hccs"
_DEVICE_SETTING = "device"


def choose(options: EngineOptions) -> tuple[str, ...]:
    """The transports to open, best first.

    Raises:
        LLMException: With `LLM_FEATURE_NOT_ENABLED`: no transport serves a protocol that was asked for.
    """
    if options.transports is not None:
        return options.transports
    if os.environ.get(SETTINGS["transports"].variable):
        return tuple(setting("transports"))
    if options.protocols:
        return _serving(options.protocols)
    if _DEVICE in catalogue.plugins() and catalogue.probe(_DEVICE).state is PluginState.AVAILABLE:
        return (_DEVICE, DEFAULT_TRANSPORT)
    return (DEFAULT_TRANSPORT,)


def _serving(protocols: tuple[str, ...]) -> tuple[str, ...]:
    names: list[str] = []
    for description in protocols:
        protocol = description.partition(":")[0]
        if protocol not in _SERVES:
            raise failed(
                LLMStatusCode.LLM_FEATURE_NOT_ENABLED,
                f"no transport serves protocol {description!r}; served are {', '.join(sorted(_SERVES))}. "
                f"{SETTINGS['transports'].variable} names transports to use instead",
                "init",
            )
        if _SERVES[protocol] not in names:
            names.append(_SERVES[protocol])
    return tuple(names)


def settings_for(names: tuple[str, ...], options: EngineOptions) -> dict[str, dict[str, Any]]:
    """The settings of the transports; the device is that of the options unless they say otherwise."""
    settings = {name: dict(options.settings.get(name, {})) for name in names}
    if _DEVICE in settings:
        settings[_DEVICE].setdefault(_DEVICE_SETTING, options.device_id)
    return settings
