"""What a plugin says about a transport before anything native is loaded."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from cachefw.memory import MemoryKind

__all__ = ["CONTRACT_VERSION", "Capability", "Option", "Reach", "TransportInfo"]

#: The version of `cachefw.transport` and `cachefw.hookspecs` that a plugin is written against.
CONTRACT_VERSION = 1


class Capability(enum.Flag):
    """What a transport can do beyond registering memory. Advertised exactly when it works."""

    NONE = 0
    #: `Channel` reads a peer's memory without the peer's CPU.
    READ = enum.auto()
    #: `Channel` writes a peer's memory without the peer's CPU.
    WRITE = enum.auto()
    #: `Transport.copy` moves bytes within this process.
    COPY = enum.auto()
    #: `Transport.allocate` makes memory that this transport moves best.
    ALLOCATE = enum.auto()
    #: `Transport.identify` knows what kind of memory an address is.
    IDENTIFY = enum.auto()
    #: `Transfer.cancel` stops what has not begun.
    CANCEL = enum.auto()
    #: Memory may be registered and withdrawn while a channel is open.
    LATE_REGISTRATION = enum.auto()


class Reach(enum.IntEnum):
    """How far away a peer may be."""

    PROCESS = 0
    HOST = 1
    NETWORK = 2


def _check_name(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not isinstance(value, str) or not re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", value):
        raise ValueError(f"{attribute.name} must match [a-z][a-z0-9_-]* and have at most 32 characters, not {value!r}")


def _kinds(kinds: Iterable[MemoryKind]) -> frozenset[MemoryKind]:
    # A function, because type checkers cannot bind the type variable of `frozenset` itself as a converter.
    return frozenset(kinds)


def _check_flag(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    if not isinstance(value, str) or not re.fullmatch(r"--[a-z][a-z0-9]*(-[a-z0-9]+)*", value):
        raise ValueError(f"{attribute.name} must look like --some-name, not {value!r}")


@attrs.frozen
class Option:
    """An option of the command line for one of a transport's settings, at both ends.

    Attributes:
        flag: As it is typed, e.g. ``--net-device``.
        setting: The setting that it sets; its value is the text that was typed.
        metavar: What the value is, in one word.
        summary: One sentence for people.
    """

    flag: str = attrs.field(validator=_check_flag)
    setting: str = attrs.field(validator=attrs.validators.instance_of(str))
    metavar: str = "TEXT"
    summary: str = ""


@attrs.frozen
class TransportInfo:
    """What a plugin says about a transport without loading anything native.

    Attributes:
        name: The entry point's name; lower case letters, digits, ``-`` and ``_``.
        factory: Makes the `Transport`, unopened; takes nothing.
        kinds: Memory it can register.
        reach: How far away a peer may be.
        capabilities: What it can do.
        summary: One line for people.
        contract: `CONTRACT_VERSION` at the time of writing the plugin.
        options: Settings that deserve an option of their own where a command opens the transport at both ends.
    """

    name: str = attrs.field(validator=_check_name)
    factory: Callable[[], Any] = attrs.field(validator=attrs.validators.is_callable())
    kinds: frozenset[MemoryKind] = attrs.field(converter=_kinds)
    reach: Reach = attrs.field(validator=attrs.validators.instance_of(Reach))
    capabilities: Capability = attrs.field(validator=attrs.validators.instance_of(Capability))
    summary: str = ""
    contract: int = CONTRACT_VERSION
    options: tuple[Option, ...] = attrs.field(
        default=(), validator=attrs.validators.deep_iterable(attrs.validators.instance_of(Option))
    )

    @kinds.validator
    def _check_kinds(self, _: object, value: frozenset[object]) -> None:
        if not value or not all(isinstance(kind, MemoryKind) for kind in value):
            raise ValueError(f"kinds must be a set of MemoryKind with at least one member, not {set(value)!r}")
