"""Registering and giving back: plan, reserve, register natively, publish; all of it or nothing.

The registry is only locked while ranges are taken or freed. Native calls, plugins and peers are called without the
lock; a range is reserved before and opened to transfers after.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

from cachefw.cache import Cache, as_int
from cachefw.config import setting
from cachefw.core_rules import published
from cachefw.errors import (
    BusyError,
    CacheError,
    ClosedError,
    NotFoundError,
    RegistrationError,
    RequestError,
    refusal,
)
from cachefw.hooks import Hooks
from cachefw.logs import event
from cachefw.memory import Allocation, MemoryKind, MemoryRegion, owner_of, region_of
from cachefw.peers import NoPeers, Peers
from cachefw.planning import Planner, refuse
from cachefw.registry import Memory, MemoryState, Registry
from cachefw.rules import Limits, Plan
from cachefw.transport import Transport

__all__ = ["Registrar"]


class Registrar:
    """Moves memory between its states; `CacheManager` is its public face.

    Args:
        transports: The open transports by name, best first.
        hooks: The plugins' hooks.
        limits: How much may be registered.
        strict: Whether what was not checked is refused.

    Thread safety: every method may be called from any thread.
    """

    def __init__(self, transports: Mapping[str, Transport], hooks: Hooks, limits: Limits, *, strict: bool) -> None:
        self.registry = Registry()
        self.peers: Peers = NoPeers()
        self._transports = transports
        self._hooks = hooks
        self._strict = strict
        self._planner = Planner(self.registry, limits, tuple(transports.values()), hooks.validate, self._linked)

    def _linked(self) -> bool:
        return self.peers.linked()

    def plan(
        self,
        operation: str,
        desc: Any,
        addrs: Any,
        keys: Any,
        remote_accessible: Any,
        *,
        blocks: bool,
        profile: str | None,
    ) -> Plan:
        """Run every rule; see `CacheManager.plan`."""
        with self.registry.lock:
            draft = self._planner.cache_draft(operation, desc, addrs, keys, remote_accessible, blocks=blocks)
        return self._planner.plan(draft, profile)

    def register(
        self, operation: str, desc: Any, addrs: Any, keys: Any, remote_accessible: Any, *, blocks: bool
    ) -> Cache:
        """Register a cache; see `CacheManager.register_cache`."""
        registry = self.registry
        while True:
            with registry.lock:
                version = registry.version
                draft = self._planner.cache_draft(operation, desc, addrs, keys, remote_accessible, blocks=blocks)
            self._refuse(self._planner.plan(draft))
            with registry.lock:
                if registry.version != version:
                    continue
                regions = [region for _, region in draft.regions]
                remote = published(remote_accessible, regions, [holder for _, holder in draft.views])
                owners = {index: owner_of(source) for index, (source, _) in draft.sources.items()}
                fresh = registry.reserve(
                    regions,
                    label=operation,
                    origin=_origin(),
                    shared=False,
                    remote_accessible=remote,
                    owners=[owners.get(index) for index, _ in draft.regions],
                )
                cache = Cache(
                    registry.next_cache_id(),
                    desc,
                    tuple(address for _, address in draft.usable),
                    blocks,
                    remote,
                    tuple(draft.key_list),
                )
                held = {memory.memory_id: memory for memory in fresh}
                for index, _ in draft.views:
                    memory = next(registry.overlapping(cache.tensor_addrs[index], cache.tensor_addrs[index] + 1))
                    if memory.memory_id not in held:
                        held[memory.memory_id] = memory
                        memory.users += 1
                registry.add_cache(cache, tuple(held.values()), operation, tuple(owners.values()))
                break
        self._guard(owners.values())
        try:
            self._register_natively(operation, fresh)
        except BaseException:
            with registry.lock:
                registry.remove_cache(cache.cache_id)
                self._drop_users(set(held.values()) - set(fresh))
            raise
        if remote:
            self.peers.publish(fresh, [cache])
        self._hooks.observe("cachefw_memory_registered", cache=cache)
        return cache

    def register_memory(
        self,
        source: object,
        kind: MemoryKind | None,
        remote_accessible: bool | None,
        label: str | None,
        *,
        adopt: bool,
    ) -> Memory:
        """Register memory; see `CacheManager.register_memory`."""
        region = region_of(source, kind)
        owner = owner_of(source)
        registry = self.registry
        end = time.monotonic() + float(setting("link_timeout"))
        while True:
            remote = published(remote_accessible, [region], ())
            with registry.lock:
                # Another thread is registering, or giving back, exactly this: what comes of it decides.
                registry.await_settled(region, end)
                version = registry.version
                draft = self._planner.memory_draft(region, remote_accessible)
                known = self._known(region, remote_accessible, adopt) if draft.regions else None
                if known is not None:
                    known.users += 1
                    known.owner = owner if known.owner is None else known.owner
                    return known
            self._refuse(self._planner.plan(draft))
            with registry.lock:
                if registry.version != version:
                    continue
                (memory,) = registry.reserve(
                    [region],
                    label=label or "",
                    origin=_origin(),
                    shared=True,
                    remote_accessible=remote,
                    owners=[owner],
                )
                break
        self._guard([owner])
        self._register_natively("register_memory", [memory])
        if remote:
            self.peers.publish([memory], [])
        return memory

    def _known(self, region: MemoryRegion, remote_accessible: bool | None, adopt: bool) -> Memory | None:
        """The shared memory that a registration of `region` would be another user of."""
        for memory in self.registry.overlapping(region.address, region.end):
            held = memory.region
            wide = (
                adopt
                and held.address <= region.address
                and region.end <= held.end
                and (held.kind, held.device) == (region.kind, region.device)
                and region.access in held.access
            )
            if memory.shared and memory.state is MemoryState.LIVE and (held == region or wide):
                # Other rights are another registration, and a byte has one.
                if remote_accessible not in (None, memory.remote_accessible):
                    return None
                return memory
        return None

    def _refuse(self, plan: Plan) -> None:
        error = refuse(plan, strict=self._strict)
        if error is not None:
            raise error

    def _register_natively(self, operation: str, memories: Sequence[Memory]) -> None:
        """Register reserved memory with every transport that takes it and open it to transfers, or undo it all."""
        for memory in memories:
            for name, transport in self._transports.items():
                if memory.region.kind not in transport.info.kinds:
                    continue
                try:
                    memory.registered[name] = self._hooks.register(memory.region, transport)
                except BaseException as error:
                    undo = self._undo(memories)
                    if not isinstance(error, CacheError):
                        raise
                    raise self._failed(operation, memory.region, name, error, undo) from error
        self.registry.go_live(memories)

    def _undo(self, memories: Sequence[Memory]) -> list[CacheError]:
        errors: list[CacheError] = []
        for memory in reversed(memories):
            errors += self._give_back(memory)
            self.registry.release(memory, quarantined=bool(memory.registered))
        return errors

    @staticmethod
    def _failed(
        operation: str, region: MemoryRegion, transport: str, error: CacheError, undo: list[CacheError]
    ) -> RegistrationError:
        text = f"{operation}: transport {transport!r} could not register {region}: {error}"
        if undo:
            text += "; giving back what was registered before failed too, and that memory is quarantined: "
            text += "; ".join(str(failure) for failure in undo)
        else:
            text += "; what was registered before it was given back"
        return RegistrationError(
            text,
            code="registration.native",
            operation=operation,
            transport=transport,
            status=error.status,
            detail=error.detail,
            facts={"undo_errors": undo, "address": region.address, "length": region.length},
        )

    def _give_back(self, memory: Memory) -> list[CacheError]:
        """Unregister natively what is still registered; what fails stays in ``memory.registered``."""
        errors: list[CacheError] = []
        for name in reversed(list(memory.registered)):
            try:
                self._hooks.unregister(memory.registered[name], self._transports[name])
                del memory.registered[name]
            except CacheError as error:
                errors.append(error)
        return errors

    def unregister_cache(self, cache_id: Any) -> None:
        """Give a cache back; see `CacheManager.unregister_cache`."""
        number = as_int(cache_id)
        if number is None:
            builtin: type[Exception] = AttributeError if cache_id is None else TypeError
            raise refusal(
                RequestError, {builtin}, f"cache_id must be an int, not {cache_id!r}", operation="unregister_cache"
            )
        with self.registry.lock:
            cache = self.registry.caches.get(number)
            if cache is None:
                have = ", ".join(map(str, sorted(self.registry.caches))) or "none"
                raise NotFoundError(
                    f"no cache {number} is registered; registered are: {have}",
                    code="not_found.cache",
                    operation="unregister_cache",
                )
            memories = self.registry.cache_memory[number]
            # What an earlier call gave back before it failed is closed already.
            going = [m for m in memories if m.users == 1 and m.state is not MemoryState.CLOSED]
            before = self._claim("unregister_cache", going)
        self._let_go("unregister_cache", before, [cache])
        with self.registry.lock:
            self.registry.remove_cache(number)
            self._drop_users(set(memories) - set(going))
        self._hooks.observe("cachefw_memory_unregistered", cache=cache)

    def unregister_memory(self, memory: Any) -> None:
        """Give memory back; see `CacheManager.unregister_memory`."""
        if not isinstance(memory, Memory):
            builtin: type[Exception] = AttributeError if memory is None else TypeError
            text = f"give the Memory that register_memory returned, not {memory!r} ({type(memory).__name__})"
            raise refusal(RequestError, {builtin}, text, operation="unregister_memory")
        with self.registry.lock:
            if not memory.shared or not self.registry.holds(memory):
                raise ClosedError(
                    f"{memory} is not registered by register_memory here, or no longer", operation="unregister_memory"
                )
            views = sum(memory in held for held in self.registry.cache_memory.values())
            if memory.users - views > 1:
                memory.users -= 1
                return
            if views:
                ids = [number for number, held in self.registry.cache_memory.items() if memory in held]
                raise BusyError(
                    f"{memory} still holds caches {', '.join(map(str, ids))}; unregister them first",
                    operation="unregister_memory",
                )
            before = self._claim("unregister_memory", [memory])
        self._let_go("unregister_memory", before, [])

    def _claim(self, operation: str, memories: Sequence[Memory]) -> dict[Memory, MemoryState]:
        leaving = [m for m in memories if m.state in (MemoryState.RESERVED, MemoryState.LEAVING, MemoryState.CLOSED)]
        if leaving:
            raise BusyError(f"{leaving[0]} is being {leaving[0].state.value} by another thread", operation=operation)
        before = {memory: memory.state for memory in memories}
        self.registry.leave(memories)
        return before

    def _let_go(self, operation: str, before: Mapping[Memory, MemoryState], caches: Sequence[Cache]) -> None:
        """Take claimed memory away from transfers, peers and transports, or leave all as it was.

        What a transport does not give back is quarantined: other transports may have let go of it, so no transfer may
        use it any more, and only giving back is left.
        """
        errors = self._take_away(operation, before, caches)
        for memory in before:
            self.registry.release(memory, quarantined=bool(memory.registered))
        self._raise_stuck(operation, errors)

    def _take_away(
        self, operation: str, before: Mapping[Memory, MemoryState], caches: Sequence[Cache]
    ) -> list[CacheError]:
        """Take claimed memory away from transfers and peers, or raise and leave all as it was; then from transports."""
        memories = list(before)
        try:
            busy = "a copy within this process" if self.registry.copied(memories) else self.peers.busy(memories)
            if busy:
                raise BusyError(f"{operation}: {busy} uses this memory now; wait for it", operation=operation)
        except BaseException:
            self.registry.restore(before)
            raise
        try:
            self.peers.withdraw(memories, caches)
        except BaseException:
            self.registry.restore(before)
            # Peers that did let go may have it back.
            self.peers.publish(memories, caches)
            raise
        return [error for memory in memories for error in self._give_back(memory)]

    @staticmethod
    def _raise_stuck(operation: str, errors: Sequence[CacheError]) -> None:
        if errors:
            raise RegistrationError(
                f"{operation}: {len(errors)} native registrations could not be given back and stay; call again: "
                + "; ".join(map(str, errors)),
                code="registration.native",
                operation=operation,
                status=errors[0].status,
                detail=errors[0].detail,
            )

    def remap(self, operation: str, memories: Sequence[Memory]) -> None:
        """Give memory back natively and register it again; see `CacheManager.remap_registered_memory`."""
        self.suspend(operation, memories, MemoryState.SUSPENDED)
        self.resume(operation, memories)

    def suspend(self, operation: str, memories: Sequence[Memory], state: MemoryState) -> None:
        """Take memory away from transfers, peers and transports, and keep its range; all of it or nothing."""
        with self.registry.lock:
            before = self._claim(operation, memories)
        errors = self._take_away(operation, before, [])
        if errors:
            for memory in memories:
                self.registry.release(memory, quarantined=True)
            self._raise_stuck(operation, errors)
        self.registry.put(memories, state)

    def resume(self, operation: str, memories: Sequence[Memory]) -> None:
        """Register suspended memory again."""
        for memory in memories:
            # What was prepared with the old registration is not to be posted any more, here or at a peer.
            self.registry.renew(memory)
        self._register_natively(operation, memories)
        self.peers.republish(memories, [])

    def _guard(self, owners: Iterable[object]) -> None:
        for owner in owners:
            if isinstance(owner, Allocation):
                owner.guard(self.owner_closing)

    def owner_closing(self, allocation: Allocation) -> None:
        """An allocation is about to be closed: let go of what is registered of it, or raise and keep it open."""
        with self.registry.lock:
            held = list(self.registry.overlapping(allocation.address, allocation.address + allocation.length))
        if not held:
            return
        self.suspend("close", [m for m in held if m.state is not MemoryState.DANGLING], MemoryState.DANGLING)
        for memory in held:
            text = "%s is dangling: its allocation was closed before it was unregistered"
            event(logging.WARNING, "memory.dangling", text, memory, memory_id=memory.memory_id)

    @staticmethod
    def _drop_users(memories: Iterable[Memory]) -> None:
        for memory in memories:
            memory.users -= 1

    def give_back_all(self) -> list[tuple[Memory, CacheError]]:
        """Give everything back, whoever still uses it; what failed."""
        for cache in list(self.registry.caches.values()):
            self.registry.remove_cache(cache.cache_id)
            self._hooks.observe("cachefw_memory_unregistered", cache=cache)
        failed = []
        for memory in self.registry.memories():
            failed += [(memory, error) for error in self._give_back(memory)]
            self.registry.release(memory)
        return failed


def _origin() -> str:
    """File and line of the caller's code, outside this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "cachefw":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "an unknown place"
