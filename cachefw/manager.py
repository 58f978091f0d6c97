"""CacheManager: registers memory and caches, and pulls caches from linked peers."""

from __future__ import annotations

import atexit
import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cachefw.allocating import Allocating
from cachefw.cache import BlocksCacheKey, Cache, CacheDesc, CacheKey
from cachefw.config import setting
from cachefw.copying import Copier
from cachefw.errors import (
    ClosedError,
    RequestError,
    refusal,
)
from cachefw.forking import forked_error, watch
from cachefw.hooks import Hooks
from cachefw.layerwise import Layerwise
from cachefw.local import LocalCopies
from cachefw.logs import event, log
from cachefw.memory import MemoryKind
from cachefw.moving import Moving
from cachefw.peers import Peers
from cachefw.plugins import Plugin, catalogue, open_transports
from cachefw.pools import Pool
from cachefw.pushing import Pushing
from cachefw.registrar import Registrar
from cachefw.registry import Memory, Registry
from cachefw.remapping import Remapping
from cachefw.rules import Limits, Plan
from cachefw.staging import Staging
from cachefw.suspending import Suspending
from cachefw.tasks import Workers
from cachefw.transport import Channel, Transport
from cachefw.version import VERSION

__all__ = ["CacheManager"]


class CacheManager(Moving, Pushing, Layerwise, LocalCopies, Allocating, Remapping, Suspending):
    """Registers caches and memory with every open transport, all or nothing.

    A `Node` makes one of its own (`Node.cache_manager`); alone it registers and plans, and cannot pull.

    Args:
        transports: Names of the transports to open, best first. None takes the setting ``transports``.
        limits: How much may be registered.
        strict: True refuses what a rule could not check. None takes the setting ``strict``.
        plugins: Further plugin objects: policies, observers, hook wrappers.
        settings: For a transport's name, its own settings.

    Raises:
        TransportUnavailable: A transport cannot be opened; nothing stays open.
        PluginError: A plugin is broken.

    Thread safety: every method may be called from any thread.
    """

    # Until everything is set up there is nothing to close.
    _closed = True
    _inherited = False

    def __init__(
        self,
        transports: Sequence[str] | None = None,
        *,
        limits: Limits | None = None,
        strict: bool | None = None,
        plugins: Iterable[Any] = (),
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if isinstance(transports, str):
            text = f"transports must be a list of names, not {transports!r}"
            raise refusal(RequestError, {TypeError}, text, operation="CacheManager")
        names = tuple(setting("transports") if transports is None else transports)
        strict = setting("strict") if strict is None else strict
        self._setup(open_transports(names, settings), limits or Limits(), strict, plugins)

    def _setup(
        self, opened: Sequence[tuple[Plugin, Transport]], limits: Limits, strict: bool, plugins: Iterable[Any]
    ) -> None:
        self._transports = {transport.info.name: transport for _, transport in opened}
        try:
            modules = {plugin.name: plugin.module for plugin, _ in opened}
            self._hooks = Hooks(modules, plugins, catalogue.policies())
        except BaseException:
            for transport in self._transports.values():
                transport.close()
            raise
        self._registrar = Registrar(self._transports, self._hooks, limits, strict=strict)
        self._registry = self._registrar.registry
        self._copier = Copier(self._transports, self._registrar.registry.quarantine)
        self._workers = Workers()
        self._tables, self._tables_lock, self._rooms = {}, threading.Lock(), []
        self._pools: list[Pool] = []
        self._parts: dict[int, tuple[Pool, int, int]] = {}
        self._close_first: Callable[[], None] = self.close
        self._closed = False
        _open_managers.add(self)
        watch(self)

    # ------------------------------------------------------------------ registration

    def register_cache(
        self,
        cache_desc: CacheDesc,
        addrs: Sequence[Any],
        cache_keys: Sequence[CacheKey] = (),
        remote_accessible: bool | None = None,
    ) -> Cache:
        """Register a contiguous cache: tensors whose dimension 0 counts batch rows.

        Args:
            cache_desc: What the tensors are.
            addrs: Start address of each tensor, ``cache_desc.size`` bytes each; or the tensor itself (torch, numpy,
                anything with DLPack or the buffer protocol, an allocation), which is kept alive. Memory inside what
                `register_memory` registered becomes a view of it; any other range is registered natively.
            cache_keys: Key i names row i. At most one for each row.
            remote_accessible: Whether linked peers may reach it; None means yes for device memory, no for host memory,
                and for a view what holds for its memory.

        Returns:
            The cache, with an id that counts from 1.

        Raises:
            RegistrationError: Holds every broken rule (``findings``); also a `TypeError`, `ValueError` or
                `AttributeError` (for None), all that apply. Nothing is registered then.
            ClosedError: The manager is closed.
        """
        self._check_open("register_cache")
        return self._registrar.register(
            "register_cache", cache_desc, addrs, cache_keys, remote_accessible, blocks=False
        )

    def register_blocks_cache(
        self,
        cache_desc: CacheDesc,
        addrs: Sequence[Any],
        blocks_cache_key: BlocksCacheKey | None = None,
        remote_accessible: bool | None = None,
    ) -> Cache:
        """Register a blocks cache: tensors whose dimension 0 counts blocks (pages).

        Args:
            cache_desc: What the tensors are.
            addrs: As for `register_cache`.
            blocks_cache_key: Its name on this node; one blocks cache for each ``model_id``.
            remote_accessible: As for `register_cache`.

        Returns:
            The cache, with an id that counts from 1.

        Raises:
            RegistrationError: As for `register_cache`.
            ClosedError: The manager is closed.
        """
        self._check_open("register_blocks_cache")
        return self._registrar.register(
            "register_blocks_cache", cache_desc, addrs, blocks_cache_key, remote_accessible, blocks=True
        )

    def plan(
        self,
        cache_desc: Any,
        addrs: Any,
        keys: Any = (),
        remote_accessible: Any = None,
        *,
        blocks: bool | None = None,
        profile: str | None = None,
    ) -> Plan:
        """Run every rule over a registration without touching anything; never raises for a broken rule.

        Args:
            cache_desc: As for the register calls.
            addrs: As for the register calls.
            keys: ``cache_keys`` or ``blocks_cache_key``.
            remote_accessible: As for the register calls.
            blocks: Plan `register_blocks_cache`; None does so when `keys` is a `BlocksCacheKey`.
            profile: Judge as on that machine, where a transport knows profiles.

        Returns:
            The plan; print it.
        """
        blocks = isinstance(keys, BlocksCacheKey) if blocks is None else blocks
        operation = "register_blocks_cache" if blocks else "register_cache"
        if blocks and isinstance(keys, tuple) and not keys:
            keys = None
        return self._registrar.plan(
            operation, cache_desc, addrs, keys, remote_accessible, blocks=blocks, profile=profile
        )

    def register_memory(
        self,
        source: object,
        kind: MemoryKind | None = None,
        remote_accessible: bool | None = None,
        label: str | None = None,
        *,
        adopt: bool = False,
    ) -> Memory:
        """Register memory once, for `Link.read` and `Link.write` and for caches that are views of it.

        Registering exactly the same region again returns the same `Memory` and counts: it is given back by the last
        `unregister_memory`. A region that overlaps in part is refused.

        Args:
            source: A `MemoryRegion`, an allocation, a torch tensor, a numpy array, or anything with DLPack or the
                buffer protocol. It is kept alive.
            kind: What the memory is; contradicted where that is known better. None asks the source.
            remote_accessible: As for `register_cache`.
            label: A name for messages.
            adopt: Where registered memory holds the region whole already, return and count that.

        Returns:
            The memory.

        Raises:
            RegistrationError: Holds every broken rule; nothing is registered.
            RequestError: The source is no usable memory, e.g. not contiguous.
            ClosedError: The manager is closed.
        """
        self._check_open("register_memory")
        return self._registrar.register_memory(source, kind, remote_accessible, label, adopt=adopt)

    # ------------------------------------------------------------------ giving back

    def unregister_cache(self, cache_id: int) -> None:
        """Give a cache back. Linked peers let go of it first.

        Args:
            cache_id: Its id.

        Raises:
            NotFoundError: No such cache; the text lists those that exist.
            BusyError: A transfer uses its memory now.
            TransferTimeout: A peer did not confirm that it let go; the cache stays registered.
            RegistrationError: A transport refused; calling again finishes what is missing.
        """
        self._check_open("unregister_cache")
        self._registrar.unregister_cache(cache_id)
        self._drop_seals(int(cache_id))

    def unregister_memory(self, memory: Memory) -> None:
        """Give back one registration of memory; the last one, when no cache is a view of it, gives the region back.

        Raises:
            ClosedError: It is given back already.
            BusyError: A cache is still a view of it, or a transfer uses it now.
            TransferTimeout: A peer did not confirm that it let go; the memory stays registered.
            RegistrationError: A transport refused; calling again finishes what is missing.
        """
        self._check_open("unregister_memory")
        self._registrar.unregister_memory(memory)

    # ------------------------------------------------------------------ looking, closing

    @property
    def caches(self) -> dict[int, Cache]:
        """The registered caches, by id."""
        return dict(self._registry.caches)

    @property
    def memories(self) -> list[Memory]:
        """All registered memory, by address; quarantined memory too."""
        return self._registry.memories()

    @property
    def hooks(self) -> Hooks:
        """The plugins' hooks, for the node's links."""
        return self._hooks

    @property
    def registry(self) -> Registry:
        """The table of registered memory, for the node's links."""
        return self._registry

    @property
    def link_timeout(self) -> float:
        """Seconds that linking and unlinking may take."""
        return float(setting("link_timeout"))

    @property
    def software(self) -> str:
        """What links tell the other side about this one."""
        return f"cachefw {VERSION}"

    def transport(self, name: str) -> Transport:
        """The open transport of that name."""
        return self._transports[name]

    def staging(self, name: str, channel: Channel) -> Staging:
        """What moves memory over a link's channel that its transport does not take."""
        return Staging(self._transports[name], channel, self._registrar, self._copier, self.allocate)

    def bind(self, peers: Peers, close: Callable[[], None]) -> None:
        """Have a node's links serve this manager; `close` closes the node when the interpreter exits."""
        self._registrar.peers = peers
        self._close_first = close

    @property
    def transports(self) -> tuple[str, ...]:
        """The open transports, best first."""
        return tuple(self._transports)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def report(self) -> str:
        """What is registered, a line each, with the place of its registration; "" when nothing is."""
        lines = [f"{cache}" for cache in self.caches.values()]
        lines += [f"{memory}: {memory.region}, {memory.state.value}, {memory.users} users" for memory in self.memories]
        return "\n".join(lines)

    def close(self) -> None:
        """Give everything back and close the transports. Idempotent; failures are logged, and do not stop the rest."""
        if self._closed:
            return
        self._closed = True
        report = self.report() if log.isEnabledFor(logging.INFO) else ""
        if report:
            event(logging.INFO, "manager.registered", "closing, and still registered:\n%s", report)
        _open_managers.discard(self)
        self._workers.close()
        for memory, error in self._registrar.give_back_all():
            text = "closing: %s could not be given back: %s"
            event(logging.WARNING, "memory.kept", text, memory, error, error=error, memory_id=memory.memory_id)
        for name, transport in reversed(list(self._transports.items())):
            try:
                transport.close()
            except Exception:
                event(
                    logging.ERROR,
                    "transport.broken",
                    "closing: transport %r raised, which it must not",
                    name,
                    transport=name,
                    trace=True,
                )

    def close_all(self) -> None:
        """Close the node it belongs to, if it does, and with it this manager."""
        self._close_first()

    def _check_open(self, operation: str) -> None:
        if self._inherited:
            raise forked_error(operation, "CacheManager")
        if self._closed:
            raise ClosedError(f"{operation}: this CacheManager is closed", operation=operation)

    def forked(self) -> None:
        """Be no more than a name, in a process that was forked: its parent goes on using what is registered."""
        self._closed = self._inherited = True
        _open_managers.discard(self)
        self._registry.forked()

    def __del__(self) -> None:
        if not self._closed:
            self.close()
            warnings.warn("a CacheManager was never closed", ResourceWarning, source=self, stacklevel=1)

    def __enter__(self) -> CacheManager:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


#: Managers to close when the interpreter exits: a transport's threads must end before the modules they use do.
_open_managers: weakref.WeakSet[CacheManager] = weakref.WeakSet()


@atexit.register
def _close_at_exit() -> None:
    for manager in list(_open_managers):
        report = manager.report()
        if report:
            text = "still registered at exit; close the CacheManager or Node:\n%s"
            event(logging.WARNING, "manager.registered", text, report)
        manager.close_all()
