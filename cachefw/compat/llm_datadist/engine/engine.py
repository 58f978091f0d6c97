"""One engine: a node with its transports, its links, and what is registered and allocated."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cachefw import cache as core
from cachefw import memory
from cachefw.compat.engine import device_runtime
from cachefw.compat.llm_datadist.configs import LLMClusterInfo
from cachefw.compat.llm_datadist.engine.gate import Gate
from cachefw.compat.llm_datadist.engine.keys import Keys, native_key
from cachefw.compat.llm_datadist.engine.linking import Links
from cachefw.compat.llm_datadist.engine.messages import Hello
from cachefw.compat.llm_datadist.engine.options import EngineOptions
from cachefw.compat.llm_datadist.engine.peers import EngineNode, Peers
from cachefw.compat.llm_datadist.engine.rendezvous import Communicators
from cachefw.compat.llm_datadist.engine.transports import choose, settings_for
from cachefw.compat.llm_datadist.status import LLMStatusCode, failed, invalid, of_none, translated
from cachefw.compat.llm_datadist.utils.log import log
from cachefw.compat.llm_datadist.v2._caches import CacheDesc, RegisterMemStatus
from cachefw.compat.llm_datadist.v2._keys import BlocksCacheKey, CacheKey
from cachefw.errors import CacheError, OutOfMemoryError, TransportUnavailable, UnsupportedOperation
from cachefw.links.link import Link
from cachefw.transport import Capability

__all__ = ["Engine"]

_DIMS = 31
# What only cachefw has to say; without any set-up, warnings go to stderr.
_log = logging.getLogger("cachefw.compat")


class Engine:
    """What an initialised `LLMDataDist` runs on.

    Args:
        cluster_id: This instance's.
        options: What to run by.

    Attributes:
        emulated: Whether device memory is host memory here, because no open transport moves memory of a device.

    Raises:
        LLMException: A transport cannot be opened, a pool cannot be had, or the address cannot be listened on.

    Thread safety: every method may be called from any thread; `close` waits for the others.
    """

    def __init__(self, cluster_id: int, options: EngineOptions) -> None:
        self.cluster_id = cluster_id
        self.options = options
        self.gate = Gate()
        self._peers = Peers(Hello(options.get_mode, options.hixl), self.consume)
        try:
            self._open(options)
        except BaseException:
            self._peers.close()
            raise

    def _open(self, options: EngineOptions) -> None:
        names = choose(options)
        try:
            self.node = EngineNode(
                self.cluster_id,
                self._peers.changed,
                self._peers.notified,
                transports=names,
                settings=settings_for(names, options),
            )
        except CacheError as error:
            raise _init_failed(error) from error
        self.manager = self.node.cache_manager
        try:
            self._runtime = device_runtime()
            self.emulated = not self._moves_device_memory()
            if self.emulated:
                _log.warning("no device memory here: Placement.DEVICE is host memory, moved by %s", ", ".join(names))
            _log.info("cluster %d uses %s", self.cluster_id, ", ".join(names))
            for pool, placement in ((options.device_pool, 1), (options.host_pool, 0)):
                if pool is not None:
                    self.manager.reserve(
                        pool.pages << pool.page_shift,
                        self.placement(core.Placement(placement)),
                        1 << pool.page_shift,
                    )
            self.links = Links(self.node, self._peers, options)
            self.communicators = Communicators(self.node, self.links, options.link_total_time)
            self.keys = Keys(self.manager, self.links)
            if options.listen is not None:
                self.node.listen(options.listen)
        except CacheError as error:
            self.node.close()
            raise _init_failed(error) from error
        except BaseException:
            self.node.close()
            raise

    def _moves_device_memory(self) -> bool:
        """Whether a transport takes device memory, and there is a device: its own runtime's, or one loaded already."""
        takers = [self.manager.transport(name).info for name in self.manager.transports]
        takers = [info for info in takers if memory.MemoryKind.DEVICE in info.kinds]
        return any(self._runtime is not None or Capability.IDENTIFY in info.capabilities for info in takers)

    def close(self) -> None:
        """Unlink everything, give everything back, free the pools. Waits for calls that are under way; idempotent."""
        if self.gate.shut():
            self.communicators.close()
            self._peers.close()
            self.node.close()

    @contextlib.contextmanager
    def entered(self, operation: str, closed: LLMStatusCode = LLMStatusCode.LLM_PARAM_INVALID) -> Iterator[None]:
        """A call's time in the engine: errors of cachefw's become those of this interface.

        Args:
            operation: The public call.
            closed: The status when the engine is closed.
        """
        if not self.gate.enter():
            raise failed(closed, f"{operation}: the engine was finalized", operation)
        try:
            yield
        except CacheError as error:
            known = translated(error, operation)
            if known is error:
                raise
            raise known from error
        finally:
            self.gate.leave()

    # ------------------------------------------------------------------ links

    def link_clusters(
        self, clusters: Sequence[LLMClusterInfo], timeout: float
    ) -> tuple[LLMStatusCode, list[LLMStatusCode]]:
        """Link to each cluster; never raises for one."""
        with self.entered("link_clusters"):
            return self.links.link_clusters(clusters, timeout)

    def unlink_clusters(
        self, clusters: Sequence[LLMClusterInfo], force: bool
    ) -> tuple[LLMStatusCode, list[LLMStatusCode]]:
        """Unlink each cluster; never raises for one."""
        with self.entered("unlink_clusters"):
            return self.links.unlink_clusters(clusters, force)

    def link(self, name: str, members: Mapping[int, int], table: str) -> int:
        """Begin a rank-table link; its id."""
        with self.entered("link"):
            self._refuse_on_hixl("link")
            return self.communicators.link(name, members, table)

    def unlink(self, number: int) -> None:
        """End a rank-table link."""
        with self.entered("unlink"):
            self._refuse_on_hixl("unlink")
            self.communicators.unlink(number)

    def link_status(self, number: int) -> RegisterMemStatus:
        """How far a rank-table link has come."""
        with self.entered("query_register_mem_status"):
            self._refuse_on_hixl("query_register_mem_status")
            return self.communicators.status(number)

    def _refuse_on_hixl(self, operation: str) -> None:
        if self.options.hixl:
            raise failed(
                LLMStatusCode.LLM_FEATURE_NOT_ENABLED,
                f"{operation}: the hixl engine links by address; use link_clusters",
                operation,
            )

    def switch_role(self, listen: str | None) -> None:
        """Take links on another address from now on, or on none.

        Raises:
            LLMException: With `LLM_EXIST_LINK`: there is a link. Hixl engine: with `LLM_FEATURE_NOT_ENABLED`, for
                another address than that of init. With `LLM_FAILED`: it cannot be listened on.
        """
        with self.entered("switch_role"):
            if self.options.hixl:
                if listen is not None and listen != self.options.listen:
                    raise failed(
                        LLMStatusCode.LLM_FEATURE_NOT_ENABLED,
                        f"the hixl engine listens on {self.options.listen} from init on, and cannot move to {listen}",
                        "switch_role",
                    )
                return
            if self.links.exist():
                peers = ", ".join(link.peer_name for link in self.node.links)
                raise failed(LLMStatusCode.LLM_EXIST_LINK, f"unlink first: there are links to {peers}", "switch_role")
            here = self.node.address
            if listen is None:
                self.node.listen(None)
            elif here is None or here.rpartition(":")[2] != listen.rpartition(":")[2]:
                try:
                    self.node.listen(listen)
                except CacheError as error:
                    raise failed(LLMStatusCode.LLM_FAILED, f"cannot listen on {listen}: {error}") from error

    # ------------------------------------------------------------------ caches

    def placement(self, placement: core.Placement) -> core.Placement:
        """Where memory lies, for cachefw.

        Raises:
            LLMException: There is a device, and no open transport moves its memory.
        """
        if self.emulated and placement is core.Placement.DEVICE and self._runtime is not None:
            opened = ", ".join(self.manager.transports)
            raise invalid(
                f"{self._runtime} is loaded, and none of the open transports ({opened}) moves device memory; choose "
                "one that does with cachefw.transports, or say Placement.HOST"
            )
        return core.Placement.HOST if self.emulated else placement

    def native_desc(self, desc: CacheDesc) -> core.CacheDesc:
        """A description for cachefw.

        Raises:
            AttributeError: A part of it is None.
            LLMException: Too few or too many dimensions.
        """
        if desc.data_type is None or desc.placement is None:
            raise of_none(f"{desc}: data_type and placement must not be None")
        if not 1 <= len(desc.shape) <= _DIMS:
            raise invalid(f"{desc}: a shape has 1 to {_DIMS} dimensions, not {len(desc.shape)}")
        shape, name = tuple(desc.shape), desc.data_type.name
        if name == "DT_STRING":
            # Two 64-bit words that nobody here looks into.
            shape, name = (*shape, 2), "DT_UINT64"
        return core.CacheDesc(desc.num_tensors, shape, core.DataType[name], self.placement(desc.placement))

    def accessible(self, desc: CacheDesc, told: bool | None, *, linked: bool) -> bool:
        """Whether peers may reach a cache.

        Args:
            desc: Its description.
            told: What the caller said.
            linked: Whether `link` was ever called.
        """
        if told is not None:
            return told
        if desc.placement is core.Placement.DEVICE:
            return not linked
        # Without get mode the owner itself sends what is asked for, from host memory too.
        return not self.options.get_mode

    def register(self, desc: CacheDesc, addrs: list[int], keys: Sequence[CacheKey], accessible: bool) -> core.Cache:
        """Register a contiguous cache."""
        return self.manager.register_cache(
            self.native_desc(desc), addrs, [native_key(key, self.cluster_id) for key in keys], accessible
        )

    def register_blocks(
        self, desc: CacheDesc, addrs: list[int], key: BlocksCacheKey | None, accessible: bool
    ) -> core.Cache:
        """Register a blocks cache; of two under one model id the later one has the name."""
        name = None if key is None else native_key(key, self.cluster_id)
        native = self.native_desc(desc)
        if name is not None and name.local_name in self.manager.registry.names:
            self._make_room(native, addrs, name, accessible)
        return self.manager.register_blocks_cache(native, addrs, name, accessible)

    def _make_room(self, desc: core.CacheDesc, addrs: list[int], name: core.BlocksCacheKey, accessible: bool) -> None:
        """Take a name from the cache that has it, if nothing else stands in the way of the new one."""
        plan = self.manager.plan(desc, addrs, name, accessible, blocks=True)
        if [finding.rule for finding in plan.refused] == ["core.keys"] and self.manager.remove_cache_key(name):
            log.warning("model %d names another blocks cache from now on", name.model_id)

    def unregister(self, cache_id: int) -> None:
        """Give a cache back, allocated ones too; unknown ids are none."""
        call = self.manager.registry.cache_calls.get(cache_id)
        if call is None:
            return
        if call.startswith("allocate"):
            self.manager.deallocate_cache(cache_id)
        else:
            self.manager.unregister_cache(cache_id)

    def remap(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Tell peers that the mapping below device memory has changed."""
        if not self.links.exist():
            raise failed(LLMStatusCode.LLM_NOT_YET_LINK, "there is no link, so nobody to tell")
        if self.emulated:
            raise failed(LLMStatusCode.LLM_FEATURE_NOT_ENABLED, "device memory is host memory here; nothing maps it")
        kind = memory.MemoryKind.DEVICE
        self.manager.remap_registered_memory([memory.MemoryRegion(*each, kind) for each in ranges])

    def allocate(self, desc: CacheDesc, keys: Any, *, blocks: bool) -> core.Cache:
        """Allocate a cache from the pool of its placement.

        Raises:
            LLMException: With `LLM_FEATURE_NOT_ENABLED`: there is no such pool. With `LLM_OUT_OF_MEMORY`: it is full.
        """
        if desc.placement is None:
            raise of_none("placement is None; it must be a Placement")
        device = desc.placement is core.Placement.DEVICE
        if (self.options.device_pool if device else self.options.host_pool) is None:
            option = "mem_pool_cfg" if device else "host_mem_pool_cfg"
            raise failed(LLMStatusCode.LLM_FEATURE_NOT_ENABLED, f"there is no pool of this memory; set {option}")
        native = self.native_desc(desc)
        if blocks:
            return self.manager.allocate_blocks_cache(native, native_key(keys, self.cluster_id) if keys else None)
        return self.keys.allocate(native, [native_key(key, self.cluster_id) for key in keys])

    def has_room(self, size: int) -> bool:
        """Whether the pool of device memory has so many bytes left."""
        kind = memory.MemoryKind.HOST if self.emulated else memory.MemoryKind.DEVICE
        return any(pool.kind is kind and pool.free >= size for pool in self.manager._pools)

    def require_pool(self, operation: str) -> None:
        """Refuse what only makes sense with a pool."""
        if self.options.device_pool is None and self.options.host_pool is None:
            raise failed(
                LLMStatusCode.LLM_FEATURE_NOT_ENABLED, f"{operation}: there is no pool; set mem_pool_cfg", operation
            )

    def consume(self, name: tuple[str, int, int], tensors: range) -> None:
        """A peer has pulled tensors of what a key names; in the peers' thread."""
        if self.gate.enter():
            try:
                self.keys.consume(name, tensors)
            finally:
                self.gate.leave()

    def tell_consumed(self, link: Link, name: tuple[str, int, int], tensors: range) -> None:
        """Tell the owner of a key that it was pulled.

        Raises:
            LLMException: With `LLM_TIMEOUT`: it did not answer.
        """
        if not self._peers.tell_consumed(link, name, tensors, self.options.timeout):
            text = f"the bytes are here, and {link.peer_name} did not confirm that the key is used up"
            raise failed(LLMStatusCode.LLM_TIMEOUT, text)


def _init_failed(error: CacheError) -> CacheError:
    if isinstance(error, OutOfMemoryError):
        return translated(error, "init")
    status = LLMStatusCode.LLM_FAILED
    unable = isinstance(error, (TransportUnavailable, UnsupportedOperation))
    hint = "; the option cachefw.transports names others, or more" if unable else ""
    return failed(status, f"init failed, {status}: {error}{hint}", "init", code=error.code, facts=error.facts)
