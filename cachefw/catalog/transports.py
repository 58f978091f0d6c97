"""What the codes of transports and plugins mean: those of the core, and those that transports share."""

from __future__ import annotations

from cachefw.catalog import Cause, Entry

__all__ = ["ENTRIES"]


def _code(name: str, title: str, *causes: Cause) -> Entry:
    return Entry(name, "code", title, causes=causes)


ENTRIES: tuple[Entry, ...] = (
    _code(
        "transport.unavailable",
        "the transport cannot be used here",
        Cause(
            "its runtime is missing; the message lists every place that was looked at",
            "install it, or name it by the transport's own variable",
            probe="plugins",
        ),
    ),
    _code(
        "transport.not_installed",
        "no plugin of that name is installed",
        Cause("the name is misspelt", "`cachefw transports` lists what is installed", "plugins"),
        Cause("its distribution is not installed in this environment", "pip install it", "packages"),
    ),
    _code(
        "transport.none_shared",
        "the two nodes have no transport in common",
        Cause("one end opened other transports", "open the same one on both: transports=[...]", "settings"),
        Cause("the plugin is missing on one end", "install it there", "plugins"),
    ),
    _code(
        "plugin",
        "a plugin broke the contract",
        Cause("a fault in the plugin; the message names its distribution", "report it to its authors", "plugins"),
    ),
    _code(
        "plugin.broken",
        "a plugin could not be loaded or opened; the others work",
        Cause(
            "its import or its `probe()` raised; `detail` has the traceback",
            "install its distribution again, or remove it",
            probe="plugins",
        ),
        Cause("it is of another version than the core", "install all of one version", "packages"),
    ),
    _code(
        "plugin.contract",
        "an object given as a plugin does not keep to the contract",
        Cause("a hook is misspelt, or takes other arguments", "`cachefw explain HOOK` has each hook's arguments"),
        Cause("the same object was given twice", "give it once"),
    ),
    # ---- what transports share
    _code(
        "transfer.failed",
        "the transfer stopped; nothing moves after that",
        Cause(
            "memory at one end is no longer mapped as it was when it was registered",
            "keep memory alive until it is unregistered",
        ),
        Cause("`status` has the kernel's or vendor's number", "`cachefw explain NUMBER`"),
    ),
    _code(
        "transfer.withdrawn",
        "the peer withdrew memory that a prepared transfer uses",
        Cause("it was unregistered there after `prepare`", "prepare again"),
    ),
    _code(
        "memory.unknown",
        "the peer has no such memory, or no longer",
        Cause("it was unregistered there", "prepare again from the peer's present table"),
    ),
    _code(
        "memory.unreachable",
        "memory of the peer is published and cannot be reached",
        Cause("the peer's process is gone", "link again"),
        Cause("the kernel forbids it", "see what the check says", "security.ptrace"),
        Cause("a container's limits keep the two apart", "share the pid and ipc namespaces", "container"),
    ),
    _code(
        "memory.outside",
        "a piece reaches beyond the peer's memory; nothing was posted",
        Cause("the peer registered less than this end believes", "compare both caches' shapes"),
    ),
    _code(
        "description.malformed",
        "what the peer says of its memory makes no sense to this transport",
        Cause("the two ends have different versions of the transport", "install the same on both", "packages"),
    ),
    _code(
        "card.malformed",
        "what the peer says of its transport makes no sense to this one",
        Cause("the two ends have different versions of the transport", "install the same on both", "packages"),
    ),
    _code(
        "peer.gone",
        "the peer's process, or the way to it, is gone",
        Cause("the process ended or was killed, e.g. for want of memory", "look at its log, start it, link again"),
        Cause("the network failed", "`cachefw doctor HOST:PORT` looks at the way", "network"),
    ),
    _code(
        "peer.unreachable",
        "the transport does not lead to this peer",
        Cause(
            "the peer is on another host, and the transport stays within one",
            "open a transport that reaches other hosts (`cachefw transports`)",
            probe="plugins",
        ),
        Cause("the two ends are set up for different networks", "compare the transport's settings of both ends"),
    ),
    _code(
        "connect.failed",
        "the transport could not connect to the peer",
        Cause("`status` has the vendor's number", "`cachefw explain NUMBER`"),
        Cause("the network between the two cards fails", "`cachefw doctor HOST:PORT`", "network"),
    ),
)
