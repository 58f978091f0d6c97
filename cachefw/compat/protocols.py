"""Which transports the protocol names of other libraries mean. The one place of cachefw that knows them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from cachefw.config import DEFAULT_TRANSPORT, SETTINGS, setting
from cachefw.errors import RequestError, UnsupportedOperation, refusal
from cachefw.plugins import PluginState, catalogue

__all__ = ["OPTION", "available", "chosen", "device_settings", "near"]

#: Our own option key, where an API takes options: transports by name, best first, separated by commas.
OPTION = "cachefw.transports"

_TRANSPORTS = {"tcp": "host", "rdma": "rdma", "roce": "rdma", "ascend": "hccs", "hccs": "hccs"}
#: The transport whose device is chosen by number, and its setting.
_NUMBERED = {"hccs": "device"}


def chosen(protocols: Iterable[str], option: str | None = None) -> tuple[str, ...]:
    """The transports to open, best first; () when nobody chose: see `available`.

    What the caller's own option says comes first, then the variable of the setting ``transports``, which whoever runs
    a foreign program uses to say otherwise than the program, then the program's protocols.

    Args:
        protocols: Names as Mooncake writes them (``rdma``) or as HIXL does (``roce:device``).
        option: The value of `OPTION`.

    Raises:
        UnsupportedOperation: A protocol that no transport serves; the text lists those that are served.
        RequestError: Also a `ValueError`: an option without a name in it.
    """
    if option is not None:
        names = tuple(name.strip() for name in option.split(",") if name.strip())
        if not names:
            raise refusal(RequestError, {ValueError}, f"{OPTION}={option!r} names no transport", operation="initialize")
        return names
    if os.environ.get(SETTINGS["transports"].variable):
        return tuple(setting("transports"))
    mapped = []
    for protocol in protocols:
        transport = _TRANSPORTS.get(protocol.partition(":")[0])
        if transport is None:
            served = ", ".join(sorted(_TRANSPORTS))
            raise UnsupportedOperation(
                f"no transport of cachefw serves the protocol {protocol!r}{near(protocol, _TRANSPORTS)}; served are "
                f"{served}. {SETTINGS['transports'].variable} names transports whatever a program asks",
                operation="initialize",
            )
        mapped.append(transport)
    return tuple(dict.fromkeys(mapped))


def available() -> tuple[str, ...]:
    """What an API for devices means when nobody chose: the transport for device memory where its runtime is found."""
    found = [name for name in _NUMBERED if name in catalogue.plugins()]
    there = [name for name in found if catalogue.probe(name).state is PluginState.AVAILABLE]
    return (*there, DEFAULT_TRANSPORT)


def device_settings(transports: Iterable[str], device: int) -> Mapping[str, Mapping[str, Any]]:
    """Settings that have the transports among them which want a device take this one."""
    return {name: {_NUMBERED[name]: device} for name in transports if name in _NUMBERED}


def near(word: object, known: Iterable[str]) -> str:
    """A question after the known names that are like a word, to be put behind it; "" when none is."""
    close = difflib.get_close_matches(str(word), list(known), n=3)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
