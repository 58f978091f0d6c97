"""The provider's settings: their names, their defaults, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachefw.errors import CacheError, RequestError, refusal

from .status import TRANSPORT

__all__ = ["ENDPOINT", "SETTINGS", "checked"]

#: The provider's settings, with their defaults; None has to be given.
SETTINGS: Mapping[str, Any] = {
    "ip": None,
    "port": 16666,
    "address": None,
    "protocol": "roce",
    "placement": "device",
    "device": 0,
    "tc": 132,
    "sl": 4,
    "backlog": 128,
}
#: Those that describe the NIC.
ENDPOINT = ("address", "protocol", "placement", "device")
_RANGES = {"port": (1, 65535), "device": (0, 2**32 - 1), "tc": (0, 255), "sl": (0, 7), "backlog": (1, 65535)}


def _refused(text: str) -> CacheError:
    return refusal(RequestError, {ValueError}, text, operation="open", transport=TRANSPORT)


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings, the defaults filled in.

    Raises:
        RequestError: Some are unknown, missing or wrong; the text has all of them.
    """
    unknown = sorted(set(settings) - set(SETTINGS))
    if unknown:
        raise _refused(f"the HIXL provider has no setting {', '.join(unknown)}; it has {', '.join(SETTINGS)}")
    chosen = {**SETTINGS, **settings}
    wrong = [f"{name} has to be given" for name in ("ip", "address") if chosen[name] is None]
    for name, (least, most) in _RANGES.items():
        value = chosen[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            wrong.append(f"{name} must be a number from {least} to {most}, not {value!r}")
    if isinstance(chosen["tc"], int) and chosen["tc"] % 4:
        wrong.append(f"tc must be a multiple of 4, not {chosen['tc']}")
    for name in ("ip", "address", "protocol", "placement"):
        if chosen[name] is not None and not isinstance(chosen[name], str):
            wrong.append(f"{name} must be text, not {chosen[name]!r}")
    if wrong:
        raise _refused("; ".join(wrong))
    return chosen
