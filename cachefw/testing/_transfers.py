"""Tests: which bytes move, and that no others do."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cachefw.errors import BrokenError
from cachefw.memory import MemoryKind
from cachefw.testing._bench import (
    GUARD,
    TIMEOUT,
    Bench,
    KitMemory,
    Piece,
    Place,
    chance,
    check_error,
    need,
    same,
    settle,
)
from cachefw.testing._fixtures import Fixtures
from cachefw.transport import Capability, Operation, Transfer, Transport

__all__ = ["LateTests", "TransferTests", "check_moves"]


def _ends(operation: Operation, local: Place, remote: Place) -> tuple[Place, Place]:
    """Where the bytes of an operation come from, and where they go."""
    return (remote, local) if operation is Operation.READ else (local, remote)


def check_moves(bench: Bench, operation: Operation, local: Place, remote: Place) -> None:
    """Move all of one region; the other end must hold it then."""
    source, destination = _ends(operation, local, remote)
    data = source.fill(1)
    destination.fill(2)
    bench.move(operation, [Piece(local, 0, remote, 0, local.memory.region.length)])
    same(destination.read(), data)


class TransferTests(Fixtures):
    """`Channel.prepare` and `Channel.post` as seen in memory."""

    @pytest.mark.parametrize("size", [1, 7, 4095, 4096, 2**20 + 3])
    def test_every_byte_moves_and_no_other(self, bench: Bench, operation: Operation, size: int) -> None:
        """All bytes of a piece arrive, the bytes around it stay, and so does all of the source."""
        local, remote = bench.local(size + 2 * GUARD), bench.remote(size + 2 * GUARD)
        was = {place: place.fill(seed) for seed, place in enumerate((local, remote))}
        bench.move(operation, [Piece(local, GUARD, remote, GUARD, size)])
        source, destination = _ends(operation, local, remote)
        moved = was[source][GUARD : GUARD + size]
        same(destination.read(), was[destination][:GUARD] + moved + was[destination][GUARD + size :])
        same(source.read(), was[source], "the source has changed")

    def test_unaligned_addresses(self, bench: Bench, operation: Operation) -> None:
        """Neither end of a piece needs to be aligned, nor to be aligned like the other."""
        local, remote = bench.local(8192), bench.remote(8192)
        source, destination = _ends(operation, local, remote)
        for at, there in ((0, 1), (1, 0), (3, 5), (63, 64), (64, 63), (4095, 1)):
            was, data = destination.fill(at), source.fill(there + 100)
            bench.move(operation, [Piece(local, at, remote, there, 4001)])
            start, to = (there, at) if source is remote else (at, there)
            same(destination.read(), was[:to] + data[start : start + 4001] + was[to + 4001 :])

    def test_scattered_pieces(self, bench: Bench, operation: Operation) -> None:
        """3000 pieces of many sizes, in any order at both ends, each go where they belong."""
        size, lengths = 3000 * 100, [chance(i).randrange(1, 100) for i in range(3000)]
        local, remote = bench.local(size), bench.remote(size)
        slots = [list(range(3000)), list(range(3000))]
        for seed, order in enumerate(slots):
            chance(seed).shuffle(order)
        pieces = [
            Piece(local, 100 * at, remote, 100 * there, length)
            for at, there, length in zip(*slots, lengths, strict=True)
        ]
        source, destination = _ends(operation, local, remote)
        data, expected = source.fill(1), bytearray(destination.fill(2))
        for piece in pieces:
            start, to = (piece.there, piece.at) if source is remote else (piece.at, piece.there)
            expected[to : to + piece.length] = data[start : start + piece.length]
        bench.move(operation, pieces)
        same(destination.read(), expected)

    def test_regions_are_not_mixed_up(self, bench: Bench, operation: Operation) -> None:
        """One batch reaches into several regions of the same size, at both ends, and each piece finds its own."""
        locals_, remotes = [bench.local(4096) for _ in range(3)], [bench.remote(4096) for _ in range(3)]
        before = {place: place.fill(seed) for seed, place in enumerate(locals_ + remotes)}
        pairs = list(zip(locals_, reversed(remotes), strict=True))
        bench.move(operation, [Piece(a, half, b, half, 2048) for half in (2048, 0) for a, b in pairs])
        for a, b in pairs:
            source, destination = _ends(operation, a, b)
            same(source.read(), before[source])
            same(destination.read(), before[source])

    def test_memory_ids_are_any_64_bit_numbers(self, bench: Bench, operation: Operation) -> None:
        """The core chooses the ids of attached memory: 0, large ones, in no order."""
        local, remotes = bench.local(4096), [bench.remote(4096) for _ in range(3)]
        for remote, memory_id in zip(remotes, (2**64 - 2, 0, 2**40), strict=True):
            remote.memory_id = memory_id
        for remote in remotes:
            check_moves(bench, operation, local, remote)

    def test_bytes_are_there_when_it_has_settled(self, bench: Bench, operation: Operation) -> None:
        """Whoever sees that it has settled, by a callback or by waiting, sees the bytes."""
        local, remote = bench.local(2**20), bench.remote(2**20)
        source, destination = _ends(operation, local, remote)
        prepared = bench.prepare(operation, [Piece(local, 0, remote, 0, 2**20)])
        seen: list[bytes] = []
        called = threading.Event()

        def look(_: Transfer) -> None:
            seen.append(destination.read())
            called.set()

        for seed in range(5):
            data = source.fill(seed)
            seen.clear()
            called.clear()
            transfer = bench.channel.post(prepared)
            transfer.add_done_callback(look)
            settle(transfer)
            after = destination.read()
            assert called.wait(TIMEOUT), "the callback was not called"
            same(after, data)
            assert len(seen) == 1
            same(seen[0], data, "seen by the callback")

    def test_prepared_once_and_posted_often(self, bench: Bench, operation: Operation) -> None:
        """A prepared batch moves what the memory holds at each post, also when its arrays are gone."""
        local, remote = bench.local(4096), bench.remote(4096)
        source, destination = _ends(operation, local, remote)
        channel = bench.channel
        batch = bench.batch([Piece(local, 96 * i, remote, 96 * i, 96) for i in range(40)])
        prepared = channel.prepare(operation, batch)
        assert prepared.nbytes == 96 * 40
        assert isinstance(prepared.path, str)
        del batch
        gc.collect()
        for seed in range(50):
            data = source.fill(seed)
            transfer = settle(channel.post(prepared))
            assert transfer.error is None
            assert isinstance(transfer.path, str)
            same(destination.read()[: 96 * 40], data[: 96 * 40])

    def test_many_are_in_flight(self, bench: Bench, operation: Operation) -> None:
        """Transfers that are posted before the first is waited for all arrive, whichever is waited for first."""
        local, remote = bench.local(16 * 65536), bench.remote(16 * 65536)
        source, destination = _ends(operation, local, remote)
        data = source.fill(1)
        destination.fill(2)
        pieces = [Piece(local, 65536 * i, remote, 65536 * i, 65536) for i in range(16)]
        transfers = [bench.post(operation, [piece]) for piece in pieces]
        for transfer in reversed(transfers):
            assert settle(transfer).error is None
        same(destination.read(), data)

    def test_four_threads_post(self, bench: Bench, operation: Operation) -> None:
        """Several threads prepare and post on one channel."""
        local, remote = bench.local(4 * 4096), bench.remote(4 * 4096)
        source, destination = _ends(operation, local, remote)
        data = source.fill(1)
        destination.fill(2)
        channel = bench.channel

        def work(number: int) -> None:
            order = list(range(32))
            chance(number).shuffle(order)
            for i in order:
                at = 4096 * number + 128 * i
                batch = bench.batch([Piece(local, at, remote, at, 128)])
                assert settle(channel.post(channel.prepare(operation, batch))).error is None

        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(work, number) for number in range(4)]:
                future.result(TIMEOUT)
        same(destination.read(), data)

    def test_two_channels_at_once(self, bench: Bench, operation: Operation) -> None:
        """A second channel to the same peer is as good as the first, and closing it leaves the first alone."""
        local, remote = bench.local(4096), bench.remote(4096)
        source, destination = _ends(operation, local, remote)
        first, second = bench.channel, bench.connect()
        assert remote.memory_id is not None
        second.attach(remote.memory_id, remote.memory.region, bench.target.describe(remote.registered))
        batch = bench.batch([Piece(local, 0, remote, 0, 4096)])
        for seed, channel in enumerate((first, second, first)):
            data = source.fill(seed)
            assert settle(channel.post(channel.prepare(operation, batch))).error is None
            same(destination.read(), data)
        second.close()
        data = source.fill(9)
        assert settle(first.post(first.prepare(operation, batch))).error is None
        same(destination.read(), data)

    def test_memory_of_others_here_moves(self, bench: Bench, operation: Operation) -> None:
        """A transport that takes host memory takes memory that it did not make at the initiator's end."""
        local = self._of_others(bench, bench.initiator)
        check_moves(bench, operation, local, bench.remote(local.memory.region.length))

    def test_memory_of_others_there_moves(self, bench: Bench, operation: Operation) -> None:
        """It takes it at the target's end too, or refuses it in words when it is attached.

        The latter only where it makes such memory itself, so that there is something to tell users.
        """
        remote = self._of_others(bench, bench.target)
        local = bench.local(remote.memory.region.length)
        try:
            _ = bench.channel
        except BrokenError as error:
            check_error(error, bench.info, BrokenError)
            need(bench.info, Capability.ALLOCATE)
            pytest.skip(f"transport {bench.info.name!r} reaches only memory that it made: {error}")
        check_moves(bench, operation, local, remote)

    @staticmethod
    def _of_others(bench: Bench, transport: Transport) -> Place:
        if MemoryKind.HOST not in bench.info.kinds:
            pytest.skip(f"transport {bench.info.name!r} does not take {MemoryKind.HOST}")
        return bench.register(KitMemory.ordinary(2 * 2**20, 2 * 2**20), transport)

    def test_every_kind_of_memory_moves(self, bench: Bench, operation: Operation) -> None:
        """Each kind of memory that the transport takes can be at either end."""
        kinds = [kind for kind in MemoryKind if kind in bench.info.kinds]
        sides = (bench.initiator, bench.target)
        places = [[bench.register(bench.memory(4096, side, kind), side) for kind in kinds] for side in sides]
        for local in places[0]:
            for remote in places[1]:
                check_moves(bench, operation, local, remote)


class LateTests(Fixtures):
    """Memory that comes and goes while a channel is open."""

    def test_memory_attached_after_a_transfer(self, bench: Bench, operation: Operation) -> None:
        """Memory that is registered after the first transfer, at either end, can be moved."""
        need(bench.info, Capability.LATE_REGISTRATION)
        first = bench.local(4096), bench.remote(4096)
        check_moves(bench, operation, *first)
        for _ in range(5):
            check_moves(bench, operation, bench.local(4096), bench.remote(4096))
        check_moves(bench, operation, *first)

    def test_memory_withdrawn_while_the_channel_is_open(self, bench: Bench, operation: Operation) -> None:
        """Memory can be withdrawn and given back; the rest goes on, and the same memory can come again."""
        need(bench.info, Capability.LATE_REGISTRATION)
        local, stays, goes = bench.local(4096), bench.remote(4096), bench.remote(4096)
        for _ in range(5):
            check_moves(bench, operation, local, goes)
            bench.detach(goes)
            bench.unregister(goes)
            check_moves(bench, operation, local, stays)
            goes = bench.register(goes.memory, bench.target)
            bench.attach(goes)

    def test_transfers_during_attach(self, bench: Bench, any_operation: Operation) -> None:
        """One thread posts while another attaches and detaches other memory."""
        need(bench.info, Capability.LATE_REGISTRATION)
        local, remote, other = bench.local(4096), bench.remote(4096), bench.remote(4096)
        check_moves(bench, any_operation, local, remote)

        def come_and_go() -> None:
            for _ in range(50):
                bench.detach(other)
                bench.attach(other)

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(come_and_go)
            for _ in range(50):
                check_moves(bench, any_operation, local, remote)
            future.result(TIMEOUT)
