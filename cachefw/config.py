"""Settings that come from the environment, each with its default, and the name of the default transport."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs

from cachefw.errors import RequestError, refusal

__all__ = ["DEFAULT_TRANSPORT", "SETTINGS", "Setting", "Value", "setting", "value"]

#: The transport of a node that names none. The only place where the core knows a transport's name.
DEFAULT_TRANSPORT = "host"


@attrs.frozen
class Setting:
    """One setting.

    Attributes:
        name: What code calls it.
        variable: The environment variable that sets it.
        default: Used when the variable is unset or empty.
        parse: Makes the value of the variable's text; raises `ValueError`.
        summary: What it does, in one sentence.
    """

    name: str
    variable: str
    default: Any
    parse: Callable[[str], Any]
    summary: str


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 1e6:
        raise ValueError("must be more than 0 and less than 1000000")
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 0 < value < 10**6:
        raise ValueError("must be more than 0 and less than 1000000")
    return value


def _bytes(text: str) -> int:
    value = int(text)
    if not 2**16 <= value <= 2**40 or value % 2**16:
        raise ValueError("must be a multiple of 65536, and at most 2^40")
    return value


def _flag(text: str) -> bool:
    try:
        return {"0": False, "1": True}[text]
    except KeyError:
        raise ValueError("must be 0 or 1") from None


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("must have at least one name")
    return names


def _any_names(text: str) -> tuple[str, ...]:
    return _names(text) if text.strip(", ") else ()


def _peers(text: str) -> tuple[str, ...]:
    peers: dict[str, str] = {}
    for item in _any_names(text):
        name, equals, address = item.partition("=")
        if not equals or not name.strip() or not address.strip():
            raise ValueError(f"must have name=host:port, not {item!r}")
        if peers.setdefault(name.strip(), address.strip()) != address.strip():
            raise ValueError(f"must have each name once, not {name.strip()!r} for two addresses")
    return tuple(f"{name}={address}" for name, address in peers.items())


SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            "transports",
            "CACHEFW_TRANSPORTS",
            (DEFAULT_TRANSPORT,),
            _names,
            "transports a node opens when it names none, best first, separated by commas",
        ),
        Setting("timeout", "CACHEFW_TIMEOUT", 30.0, _seconds, "seconds a transfer may take when the call says nothing"),
        Setting("link_timeout", "CACHEFW_LINK_TIMEOUT", 5.0, _seconds, "seconds that linking and unlinking may take"),
        Setting(
            "lease",
            "CACHEFW_LEASE",
            10.0,
            _seconds,
            "seconds of silence after which a linked peer counts as gone; it says something four times in that time",
        ),
        Setting("secret_file", "CACHEFW_SECRET_FILE", "", str, "file of the secret that links are authenticated with"),
        Setting("tls_cert", "CACHEFW_TLS_CERT", "", str, "file of this node's certificate, for links over TLS"),
        Setting("tls_key", "CACHEFW_TLS_KEY", "", str, "file of the key that belongs to the certificate"),
        Setting("tls_ca", "CACHEFW_TLS_CA", "", str, "file of the certificates that a peer's must be signed by"),
        Setting("handshakes", "CACHEFW_HANDSHAKES", 256, _count, "links that may be in the making at once"),
        Setting(
            "handshake_failures",
            "CACHEFW_HANDSHAKE_FAILURES",
            120,
            _count,
            "failed handshakes of one address in a minute, after which it has to wait",
        ),
        Setting(
            "staging",
            "CACHEFW_STAGING",
            16 * 2**20,
            _bytes,
            "bytes of a link's buffer for memory that its transport does not take, made when it is first needed",
        ),
        Setting(
            "peers",
            "CACHEFW_PEERS",
            (),
            _peers,
            "nodes that are known by name where no directory is given: name=host:port, separated by commas",
        ),
        Setting("metrics", "CACHEFW_METRICS", False, _flag, "1 counts transfers and remembers the last ones"),
        Setting("debug", "CACHEFW_DEBUG", False, _flag, "1 shows the traceback behind an error of the command line"),
        Setting(
            "plugins",
            "CACHEFW_PLUGINS",
            (),
            _any_names,
            "the only plugins to use, by name or distribution, separated by commas; unset for all that are installed",
        ),
        Setting(
            "disable_plugins",
            "CACHEFW_DISABLE_PLUGINS",
            (),
            _any_names,
            "plugins to leave out, by name or distribution, separated by commas",
        ),
        Setting("plugin_timeout", "CACHEFW_PLUGIN_TIMEOUT", 30.0, _seconds, "seconds that importing a plugin may take"),
        Setting("strict", "CACHEFW_STRICT", False, _flag, "1 refuses what a rule could not check"),
        Setting("npu", "CACHEFW_NPU", False, _flag, '1 gives torch a device "npu" that is ordinary memory'),
    )
}


def setting(name: str) -> Any:
    """The value of a setting: from its variable if that is set, else the default.

    Raises:
        RequestError: Also a `ValueError`: the variable's text makes no sense.
    """
    known = SETTINGS[name]
    text = os.environ.get(known.variable, "")
    if not text:
        return known.default
    try:
        return known.parse(text)
    except ValueError as error:
        raise refusal(
            RequestError, {ValueError}, f"{known.variable}={text!r}: {error} ({known.summary})", operation="settings"
        ) from None


@attrs.frozen
class Value:
    """A setting as it stands.

    Attributes:
        setting: Which.
        value: What it is; None when the variable's text makes no sense.
        source: Where it comes from: ``"default"``, or the variable that is set.
        text: The variable's text; "" where it is unset.
        fault: Why the text makes no sense, with what it is for; "" when it does.
    """

    setting: Setting
    value: Any
    source: str
    text: str = ""
    fault: str = ""


def value(name: str) -> Value:
    """A setting with where it comes from; never raises for a text that makes no sense."""
    known = SETTINGS[name]
    text = os.environ.get(known.variable, "")
    try:
        return Value(known, setting(name), known.variable if text else "default", text)
    except RequestError as error:
        return Value(known, None, known.variable, text, str(error))
