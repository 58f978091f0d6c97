"""The calls of a CacheManager for memory whose owner releases it for a while, or for good."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from cachefw.errors import ClosedError, RequestError, refusal
from cachefw.logs import event
from cachefw.managed import Managed
from cachefw.registry import Memory, MemoryState

__all__ = ["Suspending"]


class Suspending(Managed):
    """The part of `cachefw.CacheManager` that follows what becomes of memory after it was registered."""

    def suspend(self, memories: Memory | Sequence[Memory] | None = None) -> list[Memory]:
        """Let go of memory that a framework is about to release, and will have again at the same addresses.

        Peers and transports let go of it; caches and keys stay. No transfer may touch it until `resume`.

        Args:
            memories: Which; None is all that is usable now.

        Returns:
            What is suspended by this call.

        Raises:
            RequestError: Also a `TypeError` or `AttributeError`: not a `Memory`.
            ClosedError: Memory was given back.
            BusyError: A transfer uses it now; nothing is suspended.
            TransferTimeout: A peer did not confirm that it let go; nothing is suspended.
            RegistrationError: A transport did not give it back; it is quarantined.
        """
        self._check_open("suspend")
        chosen = [m for m in self._chosen("suspend", memories) if m.state is MemoryState.LIVE]
        self._registrar.suspend("suspend", chosen, MemoryState.SUSPENDED)
        return chosen

    def resume(self, memories: Memory | Sequence[Memory] | None = None) -> list[Memory]:
        """Register suspended memory again, at the same addresses, and publish it to peers.

        What was prepared before `suspend` has to be prepared again.

        Args:
            memories: Which; None is all that is suspended.

        Returns:
            What is usable again by this call.

        Raises:
            RequestError: As for `suspend`.
            ClosedError: As for `suspend`.
            RegistrationError: A transport refused; what is not usable is then no longer registered.
            TransferTimeout: A peer did not confirm that it knows of it.
        """
        self._check_open("resume")
        chosen = [m for m in self._chosen("resume", memories) if m.state is MemoryState.SUSPENDED]
        self._registrar.resume("resume", chosen)
        return chosen

    def check_owners(self) -> list[Memory]:
        """Look at every owner that tells (tensors), and let go of memory whose owner has released or moved it.

        Transfers look at the local memory that they touch by themselves; this also keeps peers from it.

        Returns:
            All memory that is dangling: transfers are refused, and only unregistering is left.

        Raises:
            BusyError: A transfer uses such memory now.
            TransferTimeout: A peer did not confirm that it let go.
        """
        self._check_open("check_owners")
        gone = [m for m in self._registry.memories() if m.state is MemoryState.LIVE and m.gone()]
        gone += [m for m in self._registry.memories() if m.state is MemoryState.DANGLING and m.registered]
        self._registrar.suspend("check_owners", gone, MemoryState.DANGLING)
        for memory in gone:
            text = "%s is dangling: its owner has released or moved it"
            event(logging.WARNING, "memory.dangling", text, memory, memory_id=memory.memory_id)
        return [m for m in self._registry.memories() if m.state is MemoryState.DANGLING]

    def _chosen(self, operation: str, memories: Any) -> list[Memory]:
        if memories is None:
            return self._registry.memories()
        chosen = list(memories) if isinstance(memories, (list, tuple)) else [memories]
        for memory in chosen:
            if not isinstance(memory, Memory):
                builtin: type[Exception] = AttributeError if memory is None else TypeError
                text = f"{operation}: give the Memory that register_memory returned, not {memory!r}"
                raise refusal(RequestError, {builtin}, text, operation=operation)
            if not self._registry.holds(memory):
                raise ClosedError(f"{operation}: {memory} is not registered here, or no longer", operation=operation)
        return chosen
