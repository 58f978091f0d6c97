"""The contract between cachefw and its plugins, version 1.

A plugin is a module (or object) named by an entry point: in the group ``cachefw.plugins`` when it offers a transport,
in ``cachefw.policies`` when it is to be in force without being named. It implements some of these hooks with
`hookimpl`. A transport needs the first two and usually the next two; a policy needs only `cachefw_validate_memory`; an
auditor wraps the registration hooks or observes. A plugin is imported in a thread of its own, which is given up after a
time; importing it should change nothing else in the process.

Hooks are for cold paths. Transfers never go through them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from cachefw.cache import Cache
    from cachefw.catalog import Diagnostics
    from cachefw.memory import MemoryRegion
    from cachefw.reports import TransferReport
    from cachefw.rules import Finding, Request
    from cachefw.transport import RegisteredMemory, Transport, TransportInfo

__all__ = ["hookimpl", "hookspec"]

hookspec = pluggy.HookspecMarker("cachefw")
hookimpl = pluggy.HookimplMarker("cachefw")


@hookspec
def cachefw_transports() -> Iterable[TransportInfo]:  # type: ignore[empty-body]
    """Offer transports.

    When: once for each plugin, right after it is loaded. Thread: the one that first asked for a transport.

    Returns:
        `TransportInfo` values. Nothing native is imported or opened here.

    Raising, or returning anything else, quarantines this plugin alone.

    Examples:
        >>> from cachefw.hookspecs import hookimpl
        >>> from cachefw.testing import MemoryTransport
        >>> @hookimpl
        ... def cachefw_transports():
        ...     yield MemoryTransport.info_named("example")
    """


@hookspec
def cachefw_validate_memory(request: Request, transport: Transport | None) -> Iterable[Finding]:  # type: ignore[empty-body]
    """Say what is wrong with memory before it is registered.

    When: in every `plan` and registration, once for each open transport of the plugin (``request.transport`` is its
    name), or once with ``request.transport`` None for a plugin that offers no transport. Thread: the caller's.

    Args:
        request: The new regions.
        transport: The open transport, for rules that ask its runtime; None for a policy and for a dry run without it.

    Returns:
        One or more findings for each rule the plugin has: OK, REFUSED or NOT_CHECKED. The core sets ``transport``.

    Must not register, pin or touch the memory. Raising is a refusal that names the plugin.

    Examples:
        >>> from cachefw.hookspecs import hookimpl
        >>> from cachefw.rules import Finding, Outcome
        >>> @hookimpl
        ... def cachefw_validate_memory(request):
        ...     total = request.registered_bytes + sum(region.length for region in request.regions)
        ...     outcome = Outcome.OK if total <= 8 * 2**30 else Outcome.REFUSED
        ...     return [Finding("site.memory", outcome, f"{total:,} bytes of the 8 GiB allowed here")]
    """


@hookspec(firstresult=True)
def cachefw_register_memory(region: MemoryRegion, transport: Transport) -> RegisteredMemory | None:
    """Make a region usable by an open transport.

    When: once for each new region and each open transport that takes its kind, after every rule has passed. Thread:
    the caller's, several at once.

    Args:
        region: The region, whole.
        transport: The open transport.

    Returns:
        What `Transport.register` gave, or None to leave it to the next plugin. The core itself answers last, by
        calling ``transport.register(region)``; implement or wrap this hook to do more.

    Raising undoes the whole registration. May be wrapped (``@hookimpl(wrapper=True)``).

    Examples:
        >>> from cachefw.hookspecs import hookimpl
        >>> @hookimpl(wrapper=True)
        ... def cachefw_register_memory(region, transport):
        ...     registered = yield
        ...     print(f"{transport.info.name} holds {region}")
        ...     return registered
    """


@hookspec(firstresult=True)
def cachefw_unregister_memory(registered: RegisteredMemory, transport: Transport) -> bool | None:
    """Give one registration back.

    When: once for each `cachefw_register_memory`, when the last user of the region is gone or a registration is
    undone. Thread: the caller's, several at once.

    Args:
        registered: What was returned then.
        transport: The transport that holds it.

    Returns:
        True when it was given back, None to leave it to the next plugin. The core answers last, by calling
        ``transport.unregister(registered)``.

    Raising keeps the region counted as registered and reaches the caller. May be wrapped.

    Examples:
        >>> from cachefw.hookspecs import hookimpl
        >>> @hookimpl(wrapper=True)
        ... def cachefw_unregister_memory(registered, transport):
        ...     done = yield
        ...     print(f"{transport.info.name} let go of {registered.region}")
        ...     return done
    """


@hookspec
def cachefw_memory_registered(cache: Cache) -> None:
    """Observe that a cache was registered.

    When: after each successful `register_cache` and `register_blocks_cache`. Thread: the caller's.

    Args:
        cache: The new cache.

    What it raises is reported once as a warning and never breaks the call.

    Examples:
        >>> from cachefw.hookspecs import hookimpl
        >>> @hookimpl
        ... def cachefw_memory_registered(cache):
        ...     print(f"cache {cache.cache_id} is ready")
    """


@hookspec
def cachefw_memory_unregistered(cache: Cache) -> None:
    """Observe that a cache was given back.

    When: after each successful `unregister_cache`, and for what is still registered when a manager closes. Thread: the
    caller's.

    Args:
        cache: The cache that is gone.

    What it raises is reported once as a warning and never breaks the call.

    Examples:
        >>> from cachefw.hookspecs import hookimpl
        >>> @hookimpl
        ... def cachefw_memory_unregistered(cache):
        ...     print(f"cache {cache.cache_id} is gone")
    """


@hookspec
def cachefw_link_changed(link: Any) -> None:
    """Observe a link: it came up, was closed, or broke (``link.state``).

    When: at each change of state. Thread: the node's own; return soon.

    Args:
        link: The `cachefw.links.Link`.

    What it raises is reported once as a warning and never breaks the link.

    Examples:
        >>> from cachefw.hookspecs import hookimpl
        >>> @hookimpl
        ... def cachefw_link_changed(link):
        ...     print(f"cluster {link.cluster_id}: {link.state}")
    """


@hookspec
def cachefw_transfer_finished(report: TransferReport) -> None:
    """Observe that a transfer over a link has settled, well or not, or could not be started.

    When: after each read, write and pull, in the order in which they settled, a moment later: reports wait in a queue,
    and where no plugin has this hook none is made. The queue holds 4096; what does not fit is dropped, and
    ``report.lost`` counts it. Local copies are not reported. Thread: one of the node's for this alone, so that a slow
    observer delays only other observers.

    Args:
        report: Peer, transport, path, operation, bytes, pieces, seconds, outcome and error code.

    What it raises is reported once as a warning and never breaks anything.

    Examples:
        >>> from cachefw.hookspecs import hookimpl
        >>> @hookimpl
        ... def cachefw_transfer_finished(report):
        ...     print(f"{report.operation} of {report.nbytes} bytes from {report.peer}: {report.outcome}")
    """


@hookspec
def cachefw_diagnostics() -> Diagnostics:  # type: ignore[empty-body]
    """Offer what the plugin knows about its errors and its machine, for ``cachefw explain`` and ``cachefw doctor``.

    When: whenever somebody asks what a code means or what is wrong with a machine; never on the way of a registration
    or transfer. Thread: the one that asks.

    Returns:
        A `cachefw.catalog.Diagnostics`: entries for the catalogue, checks of this machine, the machines whose rules the
        plugin knows, files that its processes leave behind. Nothing is looked at before a check is run.

    What it raises is shown by the doctor as the plugin's fault, and harms nothing else.

    Examples:
        >>> from cachefw.catalog import Check, Diagnosis, Diagnostics, Entry, Health
        >>> from cachefw.hookspecs import hookimpl
        >>> def card():
        ...     yield Diagnosis("", Health.OK, "the card answers")
        >>> @hookimpl
        ... def cachefw_diagnostics():
        ...     return Diagnostics(
        ...         entries=(Entry("example.reset", "code", "the card was reset", owner="example"),),
        ...         checks=(Check("example.card", "the card", card),),
        ...     )
    """
