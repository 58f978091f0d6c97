"""Seals: what an owner says its rows and blocks hold, so that whoever pulls them knows what has arrived.

Beside a cache lies a table with a line for each row, or block: a generation, and for each tensor the CRC-32 of its
bytes. Peers read it one-sidedly before and after the bytes. A generation is 0 where nothing was sealed, even while the
row holds what was sealed, and odd from `unseal` until it is sealed anew; it never returns to a former value.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from cachefw import layout
from cachefw.cache import BlocksCacheKey, Cache, CacheDesc, DataType, Placement, as_int
from cachefw.config import setting
from cachefw.copying import Copier, LocalCopy
from cachefw.errors import BrokenError, BusyError, CacheError, NotFoundError, RequestError, refusal
from cachefw.logs import event
from cachefw.managed import Managed
from cachefw.memory import aligned_empty
from cachefw.published import PublishedCache
from cachefw.pulls import Layers, Peer
from cachefw.ranges import Pieces
from cachefw.registry import Memory
from cachefw.transport import Batch, Transfer

__all__ = ["SEALS", "Sealing", "Units", "Verified"]

#: The table of cache N has the key of a blocks cache with the model id SEALS + N.
SEALS = 2**63
_WORD, _PAGE = 8, 4096

U64 = NDArray[np.uint64]


def _words(tensors: int) -> int:
    """Words of a table's line: the generation, then two sums each."""
    return 1 + -(-tensors // 2)


@attrs.frozen
class Units:
    """What one pull brings that is sealed on its own: rows of the peer's cache, and where each one's bytes land.

    Attributes:
        rows: Rows, or blocks, of the peer's cache.
        parts: For each the (offset, length) in a local tensor at which its bytes lie, in order.
    """

    rows: list[int]
    parts: list[list[tuple[int, int]]]

    @classmethod
    def blocks(cls, src: Sequence[int], dst: Sequence[int], stride: int) -> Units:
        """Blocks to blocks."""
        return cls([int(block) for block in src], [[(int(block) * stride, stride)] for block in dst])

    @classmethod
    def row(cls, row: int, start: int, length: int) -> Units:
        """A row to a row."""
        return cls([row], [[(start, length)]])

    @classmethod
    def row_in_blocks(cls, row: int, length: int, dst: Sequence[int], stride: int) -> Units:
        """A row to blocks, of which the last may be filled in part."""
        parts = [(int(block) * stride, min(stride, length - place * stride)) for place, block in enumerate(dst)]
        return cls([row], [parts])


@attrs.frozen
class Verified:
    """A pull that is held against the peer's seals, as it was asked for."""

    source: PublishedCache
    target: Cache
    layers: Layers
    units: Units
    verify: Any
    wait: bool


@attrs.define(eq=False)
class _Table:
    cache: Cache
    words: U64
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    @property
    def generations(self) -> U64:
        return self.words[:, 0]

    @property
    def sums(self) -> NDArray[np.uint32]:
        return self.words[:, 1:].view(np.uint32)


class _Bytes:
    """Gives the bytes of one cache to the sum: where they lie, or by way of a buffer where that is a device."""

    def __init__(self, cache: Cache, copier: Copier) -> None:
        self._copier = copier
        self._device = cache.cache_desc.placement is Placement.DEVICE
        if self._device:
            copier.pick(into_device=False, from_device=True)
            self._buffer = np.empty(cache.cache_desc.stride, np.uint8)

    def crc(self, address: int, length: int, before: int = 0) -> int:
        if self._device:
            place, source, size = (
                np.array([value], np.uint64) for value in (self._buffer.ctypes.data, address, length)
            )
            self._copier.run(LocalCopy(Batch(place, source, size, np.zeros(0, np.uint64)), False, True))
            return zlib.crc32(self._buffer[:length].data, before)
        return zlib.crc32((ctypes.c_char * length).from_address(address), before)


class Sealing(Managed):
    """The part of `cachefw.CacheManager` that seals rows and blocks, and holds what was pulled against the seals."""

    _tables: dict[int, _Table]
    _tables_lock: threading.Lock
    _rooms: list[tuple[Memory, U64]]

    def seal(self, cache: Cache, rows: Sequence[int] | None = None) -> U64:
        """Say that rows, or blocks, of a cache hold what they shall hold, so that peers can pull them with `verify`.

        Takes the CRC-32 of each of their tensors' bytes. Whoever changes them afterwards calls `unseal` first, and
        `seal` again; what is changed without that is found out as well.

        Args:
            cache: A remote-accessible cache of this manager.
            rows: Batch rows, or blocks; None is all.

        Returns:
            The generation of each, uint64. Told to a peer, it can ask for just that one.

        Raises:
            RequestError: Also a `TypeError`, `ValueError` or `AttributeError`: peers cannot reach the cache, or a row
                is named twice.
            NotFoundError: No such row, or block.
            UnsupportedOperation: The memory is a device's, and no open transport copies from it.
            RegistrationError: The table cannot be registered.
        """
        self._check_open("seal")
        own = self._own(cache, "seal")
        which = self._sealed_rows(own, rows)
        table = self._table(own)
        stride = own.cache_desc.stride
        memories = list(self._registry.cache_memory.get(own.cache_id, ()))
        with table.lock, self._registry.using(memories, "seal"):
            read = _Bytes(own, self._copier)
            table.generations[which] |= np.uint64(1)
            for row in which.tolist():
                table.sums[row, : len(own.tensor_addrs)] = [
                    read.crc(address + row * stride, stride) for address in own.tensor_addrs
                ]
            table.generations[which] += np.uint64(1)
            sealed: U64 = table.generations[which]
            return sealed

    def unseal(self, cache: Cache, rows: Sequence[int] | None = None) -> None:
        """Say that rows, or blocks, are about to change or to be given away: whoever pulls them now will notice.

        Args:
            cache: A cache of this manager. Where nothing was sealed, nothing happens.
            rows: Batch rows, or blocks; None is all.

        Raises:
            RequestError: As for `seal`.
            NotFoundError: As for `seal`.
        """
        self._check_open("unseal")
        own = self._own(cache, "unseal")
        which = self._sealed_rows(own, rows)
        table = self._tables.get(own.cache_id)
        if table is not None:
            with table.lock:
                held = which[table.generations[which] > 0]
                table.generations[held] |= np.uint64(1)

    def _sealed_rows(self, cache: Cache, rows: Any) -> NDArray[np.int64]:
        count = cache.cache_desc.batch_size
        if rows is None:
            return np.arange(count)
        which = layout.block_indices(rows, count, "sealed", cache)
        layout.once(which, "rows")
        return which

    def _table(self, cache: Cache) -> _Table:
        if not cache.remote_accessible:
            text = (
                f"{cache} is not remote-accessible, so no peer could pull it; register it with remote_accessible=True"
            )
            raise refusal(RequestError, {ValueError}, text, operation="seal")
        with self._tables_lock:
            table = self._tables.get(cache.cache_id)
            if table is None:
                rows, words = cache.cache_desc.batch_size, _words(len(cache.tensor_addrs))
                held = aligned_empty(rows * words * _WORD, _PAGE).view(np.uint64).reshape(rows, words)
                held[:] = 0
                desc = CacheDesc(1, (rows, words), DataType.DT_UINT64, Placement.HOST)
                key = BlocksCacheKey(0, SEALS + cache.cache_id)
                made = self._registrar.register("seal", desc, [held], key, True, blocks=True)
                table = self._tables[cache.cache_id] = _Table(made, held)
            return table

    def _drop_seals(self, cache_id: int) -> None:
        """Give the table of a cache back that is gone."""
        with self._tables_lock:
            table = self._tables.pop(cache_id, None)
        if table is not None:
            try:
                self._registrar.unregister_cache(table.cache.cache_id)
            except CacheError as error:
                text = "the seals of cache %d could not be given back, and go when the manager is closed: %s"
                event(logging.WARNING, "memory.kept", text, cache_id, error, error=error)

    # ------------------------------------------------------------------ pulling

    def _pull_verified(
        self, peer: Peer, pieces: Pieces, check: Verified, timeout: float | None, notify: bytes | None
    ) -> Transfer:
        """Move what a pull asks for, and hold it against the peer's seals."""
        source, target, layers, units = check.source, check.target, check.layers, check.units
        wanted = _wanted(check.verify, units)
        if not check.wait:
            raise _bad("verify needs wait=True: what was pulled is looked at once it is here")
        for row, parts in zip(units.rows, units.parts, strict=True):
            length = sum(size for _, size in parts)
            if length != source.stride:
                text = f"verify needs whole rows: {length:,} bytes of row {row} are pulled, and the peer's {source}"
                raise _bad(f"{text} is sealed {source.stride:,} bytes at a time")
        if notify is not None:
            peer.check_notification(notify)
        end = time.monotonic() + (float(setting("timeout")) if timeout is None else timeout)
        seals = _seals_of(peer, source)
        reader = _Bytes(target, self._copier)
        room, held = self._room(len(units.rows) * seals.stride)
        try:
            lines = held[: len(units.rows) * seals.stride // _WORD].reshape(len(units.rows), -1)
            asked = Pieces(
                np.arange(len(units.rows), dtype=np.uint64) * np.uint64(seals.stride) + np.uint64(held.ctypes.data),
                np.array(units.rows, np.uint64) * np.uint64(seals.stride) + np.uint64(seals.tensors[0]),
                np.full(len(units.rows), seals.stride, np.uint64),
            )

            def look() -> U64:
                peer.read_pieces(asked, wait=True, timeout=max(end - time.monotonic(), 0), notify=None)
                seen: U64 = lines.copy()
                return seen

            before = look()
            _check_generations(peer, source, units, before[:, 0], wanted)
            left = max(end - time.monotonic(), 0)
            transfer = peer.read_pieces(pieces, wait=True, timeout=left, notify=None)
            after = look()
        finally:
            with self._tables_lock:
                self._rooms.append((room, held))
        moved = np.flatnonzero(after[:, 0] != before[:, 0])
        if len(moved):
            raise _changed(peer, source, [units.rows[index] for index in moved], "while they were pulled", moved)
        there = layout.layer_tensors(layers.source, as_int(layers.per_layer) or 1, len(source.tensors), "src")
        here = layout.layer_tensors(layers.target, as_int(layers.per_layer) or 1, len(target.tensor_addrs), "dst")
        sums = before[:, 1:].copy().view(np.uint32)
        wrong = []
        with self._registry.using(list(self._registry.cache_memory.get(target.cache_id, ())), "pull"):
            for index, parts in enumerate(units.parts):
                for tensor, own in zip(there.tolist(), here.tolist(), strict=True):
                    crc = 0
                    for offset, length in parts:
                        crc = reader.crc(target.tensor_addrs[own] + offset, length, crc)
                    if crc != sums[index, tensor]:
                        wrong.append((index, tensor))
        if wrong:
            raise _mismatch(peer, source, units, wrong)
        if notify is not None:
            peer.notify(notify)
        return transfer

    def _room(self, size: int) -> tuple[Memory, U64]:
        """Registered memory to read lines to; given back by the caller, or kept until the manager is closed."""
        with self._tables_lock:
            for index, (memory, held) in enumerate(self._rooms):
                if held.nbytes >= size and not self._late(held):
                    del self._rooms[index]
                    return memory, held
        held = aligned_empty(max(size, _PAGE), _PAGE).view(np.uint64)
        memory = self._registrar.register_memory(held, None, False, "seals that were read", adopt=False)
        return memory, held

    def _late(self, held: U64) -> bool:
        """Whether a read whose deadline has passed may still write there."""
        place, size = (np.array([value], np.uint64) for value in (held.ctypes.data, held.nbytes))
        try:
            self._registry.quarantine.refuse(place, size, "pull", "local", writes=True)
        except BusyError:
            return True
        return False


def _bad(text: str, builtin: type[Exception] = ValueError) -> CacheError:
    return refusal(RequestError, {builtin}, text, operation="pull")


def _wanted(verify: Any, units: Units) -> U64 | None:
    """The generations that a caller wants; None takes any."""
    if isinstance(verify, str):
        if verify == "crc":
            return None
        raise _bad(f"verify must be None, 'crc' or the generations that seal() returned, not {verify!r}")
    given = verify.tolist() if isinstance(verify, np.ndarray) else verify
    if not isinstance(given, (list, tuple)) or any(as_int(number) is None for number in given):
        raise _bad(f"verify must be None, 'crc' or the generations that seal() returned, not {verify!r}", TypeError)
    if len(given) != len(units.rows):
        raise _bad(f"verify has {len(given)} generations for {len(units.rows)} rows; give one for each")
    if any(not 0 <= number < 2**64 for number in given):
        raise _bad("verify has a number that is no generation: they lie in 0 ... 2^64 - 1")
    return np.array(given, np.uint64)


def _seals_of(peer: Peer, source: PublishedCache) -> PublishedCache:
    """The table of a peer's cache."""
    try:
        seals = peer.lookup(("blocks", 0, SEALS + source.cache_id))
    except NotFoundError:
        seals = None
    if seals is None or (seals.rows, seals.stride) != (source.rows, _words(len(source.tensors)) * _WORD):
        raise NotFoundError(
            f"{peer.peer_name} has sealed nothing of its {source}; seal() it there, or pull without verify",
            code="content.unsealed",
            operation="pull",
            peer=peer.peer_name,
        )
    return seals


def _what(source: PublishedCache, rows: Sequence[int]) -> str:
    return f"{'blocks' if source.blocks else 'rows'} {_named(rows)}"


def _named(rows: Sequence[int]) -> str:
    listed = ", ".join(map(str, rows[:10]))
    return f"{listed} and {len(rows) - 10} more" if len(rows) > 10 else listed


def _check_generations(peer: Peer, source: PublishedCache, units: Units, found: U64, wanted: U64 | None) -> None:
    never = [row for row, generation in zip(units.rows, found.tolist(), strict=True) if not generation]
    if never:
        raise NotFoundError(
            f"{peer.peer_name} has not sealed {_what(source, never)} of its {source}; nothing was pulled",
            code="content.unsealed",
            operation="pull",
            peer=peer.peer_name,
            facts={"rows": never},
        )
    other = found % 2 == 1 if wanted is None else found != wanted
    if other.any():
        which = np.flatnonzero(other)
        raise _changed(peer, source, [units.rows[index] for index in which], "before they were pulled", which)


def _changed(peer: Peer, source: PublishedCache, rows: list[int], when: str, which: Any) -> BrokenError:
    return BrokenError(
        f"{_what(source, rows)} of the {source} of {peer.peer_name} changed {when}; what is here is not to be used",
        code="content.changed",
        operation="pull",
        peer=peer.peer_name,
        facts={"rows": rows, "failed": tuple(int(index) for index in which)},
    )


def _mismatch(peer: Peer, source: PublishedCache, units: Units, wrong: list[tuple[int, int]]) -> BrokenError:
    failed = sorted({index for index, _ in wrong})
    rows = [units.rows[index] for index in failed]
    return BrokenError(
        f"what arrived of {_what(source, rows)} of the {source} of {peer.peer_name} is not what was sealed (tensors "
        f"{_named(sorted({tensor for _, tensor in wrong}))}); it is not to be used",
        code="content.mismatch",
        operation="pull",
        peer=peer.peer_name,
        facts={
            "rows": rows,
            "failed": tuple(failed),
            "tensors": sorted({tensor for _, tensor in wrong}),
        },
    )
