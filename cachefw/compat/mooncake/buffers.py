"""The half of `TransferEngine` that registers memory, and makes it."""

from __future__ import annotations

import ctypes
import logging
import threading

from cachefw.compat.engine import Engine, address_of, text
from cachefw.compat.mooncake.values import NOT_REGISTERED, OK, OVERLAPPED, answers, bad, is_device
from cachefw.memory import Allocation, MemoryKind
from cachefw.registry import Memory

__all__ = ["Buffers"]

_log = logging.getLogger("cachefw.compat")


class Buffers:
    """Memory by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._memory: dict[int, Memory] = {}
        self._buffers: dict[int, tuple[Allocation, int]] = {}

    def _running(self) -> Engine:
        engine = self._engine
        if engine is None:
            raise bad("this engine is not initialised")
        return engine

    @answers()
    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Register memory that peers may read and write.

        Args:
            buffer_addr: First byte.
            capacity: Bytes, at least 1.
            location: ``"cpu:0"``, ``"npu:0"``, or ``"*"``, which lets the transports tell.

        Returns:
            0; -7 when it overlaps registered memory; -1 for what the transport's rules refuse.
        """
        address, length = address_of("buffer_addr", buffer_addr), address_of("capacity", capacity)
        engine, device = self._running(), is_device(text("location", location))
        with self._lock:
            known = self._memory.get(address)
            if known is not None:
                # cachefw would count a second registration of the same range; Mooncake refuses it.
                _log.error("mooncake: register_memory returns %d: %s is registered already", OVERLAPPED, known)
                return OVERLAPPED
            self._memory[address] = engine.register(address, length, device)
        return OK

    @answers()
    def batch_register_memory(self, buffer_addresses: list[int], capacities: list[int], location: str = "*") -> int:
        """Register several ranges: all of them, or none.

        Returns:
            0; -7 or -1 as for `register_memory`.
        """
        if len(buffer_addresses) != len(capacities):
            raise bad(f"{len(buffer_addresses)} addresses and {len(capacities)} capacities; give one of each")
        done: list[int] = []
        for address, length in zip(buffer_addresses, capacities, strict=True):
            code = self.register_memory(address, length, location)
            if code != OK:
                for each in done:
                    self.unregister_memory(each)
                return code
            done.append(address)
        return OK

    @answers()
    def unregister_memory(self, buffer_addr: int, /) -> int:
        """Give memory back; peers let go of it first.

        Returns:
            0; -3 when nothing is registered at that address; -1 while a transfer uses it.
        """
        address = address_of("buffer_addr", buffer_addr)
        engine = self._running()
        with self._lock:
            memory = self._memory.get(address)
            if memory is None:
                _log.error(
                    "mooncake: unregister_memory returns %d: nothing is registered at %#x", NOT_REGISTERED, address
                )
                return NOT_REGISTERED
            engine.manager.unregister_memory(memory)
            del self._memory[address]
        return OK

    @answers()
    def batch_unregister_memory(self, buffer_addresses: list[int], /) -> int:
        """Give several ranges back, as many as can be; the first failure's code, else 0."""
        codes = [self.unregister_memory(address) for address in buffer_addresses]
        return next((code for code in codes if code != OK), OK)

    @answers(0)
    def allocate_managed_buffer(self, length: int, /) -> int:
        """Memory that the transport moves best, registered; its address, or 0."""
        size = max(address_of("length", length), 1)
        engine = self._running()
        kind = MemoryKind.HOST if MemoryKind.HOST in engine.kinds else MemoryKind.DEVICE
        allocation = engine.manager.allocate(size, kind)
        try:
            memory = engine.register(allocation.address, size, kind is MemoryKind.DEVICE)
        except BaseException:
            allocation.close()
            raise
        with self._lock:
            self._memory[allocation.address] = memory
            self._buffers[allocation.address] = allocation, size
        return allocation.address

    @answers()
    def free_managed_buffer(self, buffer_addr: int, length: int, /) -> int:
        """Give a managed buffer back.

        Returns:
            0; -1 for an address or a length that `allocate_managed_buffer` did not have, or while a transfer uses it.
        """
        address, size = address_of("buffer_addr", buffer_addr), max(address_of("length", length), 1)
        held = self._buffers.get(address)
        if held is None or held[1] != size:
            have = f"{held[1]:,} bytes are there" if held else "no managed buffer begins there"
            raise bad(f"cannot free {size:,} bytes at {address:#x}: {have}")
        code = self.unregister_memory(address)
        if code == OK:
            with self._lock:
                del self._buffers[address]
            held[0].close()
        return code

    @answers()
    def write_bytes_to_buffer(self, dest_address: int, src_ptr: str | bytes, length: int, /) -> int:
        """Copy `length` bytes of a string into registered host memory; 0, or -1 when they are not in it."""
        data = src_ptr if isinstance(src_ptr, bytes) else text("src_ptr", src_ptr).encode()
        address, size = address_of("dest_address", dest_address), address_of("length", length)
        if size > len(data):
            raise bad(f"{size:,} bytes are asked for, and the string has {len(data):,}")
        self._check_held(address, size)
        ctypes.memmove(address, data, size)
        return OK

    def read_bytes_from_buffer(self, source_address: int, length: int, /) -> bytes:
        """A copy of registered host memory.

        Raises:
            RequestError: Also a `ValueError`: the bytes are not all in it.
        """
        address, size = address_of("source_address", source_address), address_of("length", length)
        self._check_held(address, size)
        return ctypes.string_at(address, size)

    def _check_held(self, address: int, length: int) -> None:
        """What is not registered may not be there, and touching it would end the process."""
        for memory in self._running().manager.registry.overlapping(address, address + max(length, 1)):
            region = memory.region
            if region.address <= address and address + length <= region.end and region.kind is not MemoryKind.DEVICE:
                return
        raise bad(f"[{address:#x}, {address + length:#x}) is not in registered host memory")
