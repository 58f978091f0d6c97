"""The calls of a CacheManager that make memory, and caches in it, and that take names away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from cachefw.cache import BlocksCacheKey, Cache, CacheDesc, CacheKey, Placement, as_int
from cachefw.errors import (
    CacheError,
    NotFoundError,
    RegistrationError,
    RequestError,
    UnsupportedOperation,
    refusal,
)
from cachefw.managed import Managed
from cachefw.memory import Allocation, MemoryKind
from cachefw.planning import refuse
from cachefw.pools import Pool
from cachefw.transport import Capability

__all__ = ["Allocating"]

#: Where each tensor of an allocated cache begins.
_ALIGNMENT = 512
_CALLS = ("allocate_cache", "allocate_blocks_cache")


class Allocating(Managed):
    """The part of `cachefw.CacheManager` that makes memory, and caches in it."""

    #: What `reserve` took, and which part of it each cache has, by its id.
    _pools: list[Pool]
    _parts: dict[int, tuple[Pool, int, int]]

    def allocate(
        self,
        size: int,
        kind: MemoryKind = MemoryKind.HOST,
        alignment: int = 4096,
        *,
        transport: str | None = None,
        **options: Any,
    ) -> Allocation:
        """Make memory that a transport moves best; register it like any other.

        Args:
            size: Bytes, at least 1.
            kind: What memory.
            alignment: A power of two.
            transport: Whose; None takes the first open one that allocates this kind.
            **options: The transport's own wishes.

        Returns:
            The allocation; ``np.asarray(allocation)`` is its bytes, for host memory.

        Raises:
            RequestError: Also a `TypeError` or `ValueError`: a size or alignment that makes no sense.
            UnsupportedOperation: No open transport allocates this kind.
            OutOfMemoryError: There is not enough.
        """
        self._check_open("allocate")
        if not isinstance(kind, MemoryKind):
            builtin: type[Exception] = TypeError if kind is not None else AttributeError
            raise refusal(RequestError, {builtin}, f"kind must be a MemoryKind, not {kind!r}", operation="allocate")
        for name, value in (("size", size), ("alignment", alignment)):
            number = as_int(value)
            if number is None or number < 1:
                builtin = (TypeError if value is not None else AttributeError) if number is None else ValueError
                raise refusal(
                    RequestError, {builtin}, f"{name} must be an int of at least 1, not {value!r}", operation="allocate"
                )
        if alignment & (alignment - 1):
            raise refusal(
                RequestError, {ValueError}, f"alignment must be a power of two, not {alignment}", operation="allocate"
            )
        for name, candidate in self._transports.items():
            able = Capability.ALLOCATE in candidate.info.capabilities and kind in candidate.info.kinds
            if able and transport in (None, name):
                made = candidate.allocate(int(size), kind, int(alignment), options)
                # Caches are registered by address, so it is asked on closing what lies in it.
                made.guard(self._registrar.owner_closing)
                return made
        raise UnsupportedOperation(
            f"no open transport {'named ' + repr(transport) + ' ' if transport else ''}allocates {kind}; open are "
            + (", ".join(self._transports) or "none"),
            operation="allocate",
            transport=transport,
        )

    def allocate_cache(self, cache_desc: CacheDesc, cache_keys: Sequence[CacheKey] = ()) -> Cache:
        """Make a contiguous cache in memory that the best open transport for its placement moves best.

        The memory is one native region however many tensors it holds, so its addresses do not count against the limit
        of addresses; its bytes do. Peers may reach it. What it holds at first is not defined.

        Args:
            cache_desc: What the tensors are; ``cache.tensor_addrs`` says where they lie.
            cache_keys: As for `register_cache`.

        Returns:
            The cache; `deallocate_cache` gives it back, with its memory.

        Raises:
            RegistrationError: As for `register_cache`. Device memory cannot be made once a link exists, unless it was
                set aside by `reserve`.
            UnsupportedOperation: No open transport allocates memory for this placement.
            OutOfMemoryError: There is not enough.
            ClosedError: The manager is closed.
        """
        return self._allocate_cache("allocate_cache", cache_desc, cache_keys, blocks=False)

    def allocate_blocks_cache(self, cache_desc: CacheDesc, blocks_cache_key: BlocksCacheKey | None = None) -> Cache:
        """Make a blocks cache; as for `allocate_cache`.

        Args:
            cache_desc: What the tensors are.
            blocks_cache_key: As for `register_blocks_cache`.
        """
        return self._allocate_cache("allocate_blocks_cache", cache_desc, blocks_cache_key, blocks=True)

    def reserve(self, size: int, placement: Placement = Placement.DEVICE, page_size: int = 2**16) -> None:
        """Set memory aside for `allocate_cache`, which from then on takes caches of this placement from there alone.

        It is one native region, registered now: device memory that peers reach has to be so before linking. It is
        given back when the manager closes. Calling again adds another region.

        Args:
            size: Bytes.
            placement: Which memory.
            page_size: A cache takes whole pages of this many bytes, a power of two from 1 KiB.

        Raises:
            RegistrationError: As for `register_memory`.
            UnsupportedOperation: No open transport allocates this kind of memory.
            OutOfMemoryError: There is not enough.
        """
        name = "reserve"
        self._check_open(name)
        number, page = as_int(size), as_int(page_size)
        if not isinstance(placement, Placement):
            raise _bad(f"placement must be a Placement, not {placement!r}", _kind_of(placement), name)
        if page is None or number is None:
            raise _bad(f"size and page_size must be ints, not {size!r} and {page_size!r}", TypeError, name)
        if page < 1024 or page & (page - 1):
            raise _bad(f"page_size must be a power of two from 1024, not {page}", ValueError, name)
        if number < page:
            raise _bad(f"size must be at least one page of {page:,} bytes, not {number}", ValueError, name)
        memory = self._registrar.register_memory(
            self.allocate(number // page * page, _memory_kind(placement)), None, True, "reserved", adopt=False
        )
        self._pools.append(Pool(memory, page))

    def deallocate_cache(self, cache: Cache | int, *, keep_named: bool = False) -> None:
        """Give back a cache that `allocate_cache` or `allocate_blocks_cache` made, and its memory.

        Args:
            cache: The cache, or its id.
            keep_named: Put it off while keys still name the cache: it goes when `remove_cache_key` takes the last one.

        Raises:
            NotFoundError: No such cache, or no longer.
            RequestError: It was registered, not allocated.
            BusyError: A transfer uses its memory now.
            TransferTimeout: A peer did not confirm that it let go; the cache stays.
        """
        name = "deallocate_cache"
        self._check_open(name)
        number = as_int(cache.cache_id if isinstance(cache, Cache) else cache)
        if number is None:
            raise _bad(f"give a Cache or its id, not {cache!r} ({type(cache).__name__})", _kind_of(cache), name)
        with self._registry.lock:
            own = self._registry.caches.get(number)
            if own is None or (isinstance(cache, Cache) and own is not cache):
                raise NotFoundError(
                    f"no cache {number} is allocated, or no longer", code="not_found.cache", operation=name
                )
            call = self._registry.cache_calls[number]
            if call not in _CALLS:
                raise _bad(f"{own} was made by {call}; give it back by unregister_cache", ValueError, name)
            if keep_named and self._registry.names_of(own):
                self._registry.parting.add(number)
                return
        self._give_back(own)

    def remove_cache_key(self, cache_key: CacheKey | BlocksCacheKey) -> bool:
        """Take a name from the cache that has it; linked peers have forgotten it on return. Bytes do not move.

        Args:
            cache_key: The name; its cluster id is not looked at.

        Returns:
            Whether a cache had that name.

        Raises:
            RequestError: Also a `TypeError` or `AttributeError`: no such key can be.
            TransferTimeout: A peer did not confirm it; the name is gone here.
        """
        name = "remove_cache_key"
        self._check_open(name)
        if not isinstance(cache_key, (CacheKey, BlocksCacheKey)):
            text = f"give a CacheKey or a BlocksCacheKey, not {cache_key!r} ({type(cache_key).__name__})"
            raise _bad(text, _kind_of(cache_key), name)
        with self._registry.lock:
            cache = self._registry.remove_name(cache_key.local_name)
            if cache is None:
                return False
            leaving = cache.cache_id in self._registry.parting and not self._registry.names_of(cache)
        if leaving:
            self._give_back(cache)
        elif cache.remote_accessible:
            self._registrar.peers.republish([], [cache])
        return True

    def _allocate_cache(self, operation: str, desc: Any, keys: Any, *, blocks: bool) -> Cache:
        self._check_open(operation)
        self._refuse_before(operation, desc, keys, blocks=blocks)
        stride = -(-desc.size // _ALIGNMENT) * _ALIGNMENT
        size = stride * desc.num_tensors
        kind = _memory_kind(desc.placement)
        pools = [pool for pool in self._pools if pool.kind is kind]
        if pools:
            pool, address = _take(pools, size)
            try:
                cache = self._view(operation, desc, address, stride, keys, blocks=blocks)
            except BaseException:
                pool.give_back(address, size)
                raise
            self._parts[cache.cache_id] = pool, address, size
            return cache
        if kind is MemoryKind.DEVICE and self._registrar.peers.linked():
            text = (
                f"{operation}: device memory that peers reach has to be registered before linking, and a link exists; "
                "set it aside before by reserve(size)"
            )
            raise refusal(RegistrationError, {ValueError}, text, code="core.order", operation=operation)
        made = self.allocate(size, kind)
        memory = self._registrar.register_memory(made, None, True, operation, adopt=False)
        try:
            cache = self._view(operation, desc, made.address, stride, keys, blocks=blocks)
        except BaseException:
            self._registrar.unregister_memory(memory)
            raise
        with self._registry.lock:
            # From now on the cache is all that holds it: both are given back in one step.
            memory.users -= 1
        return cache

    def _view(self, operation: str, desc: CacheDesc, start: int, stride: int, keys: Any, *, blocks: bool) -> Cache:
        addrs = [start + i * stride for i in range(desc.num_tensors)]
        return self._registrar.register(operation, desc, addrs, keys, True, blocks=blocks)

    def _refuse_before(self, operation: str, desc: Any, keys: Any, *, blocks: bool) -> None:
        """Refuse what can be told to be wrong without addresses, so that nothing is allocated for it."""
        plan = self._registrar.plan(operation, desc, [], keys, True, blocks=blocks, profile=None)
        empty = isinstance(desc, CacheDesc) and desc.num_tensors < 1
        findings = tuple(finding for finding in plan.findings if finding.rule != "core.count" or empty)
        error = refuse(attrs.evolve(plan, findings=findings), strict=False)
        if error is not None:
            raise error

    def _give_back(self, cache: Cache) -> None:
        self._registrar.unregister_cache(cache.cache_id)
        self._drop_seals(cache.cache_id)
        pool, address, size = self._parts.pop(cache.cache_id, (None, 0, 0))
        if pool is not None:
            pool.give_back(address, size)


def _take(pools: Sequence[Pool], size: int) -> tuple[Pool, int]:
    refused: CacheError | None = None
    for pool in pools:
        try:
            return pool, pool.take(size)
        except CacheError as error:
            refused = error
    assert refused is not None  # noqa: S101 - there is at least one
    raise refused


def _memory_kind(placement: Placement) -> MemoryKind:
    return MemoryKind.DEVICE if placement is Placement.DEVICE else MemoryKind.HOST


def _kind_of(value: object) -> type[Exception]:
    return AttributeError if value is None else TypeError


def _bad(text: str, builtin: type[Exception], operation: str) -> CacheError:
    return refusal(RequestError, {builtin}, f"{operation}: {text}", operation=operation)
