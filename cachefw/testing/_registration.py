"""Tests: registering, describing and giving back; allocated memory; what kind memory is; local copies."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cachefw.errors import CacheError, OutOfMemoryError
from cachefw.memory import MemoryKind
from cachefw.testing._bench import GUARD, TIMEOUT, Bench, KitMemory, Piece, Place, chance, need, noise, refused, same
from cachefw.testing._fixtures import Fixtures
from cachefw.transport import Capability, RegisteredMemory, TransportInfo

#: The most that a card or a description may have, in bytes.
MOST = 4096


class RegistrationTests(Fixtures):
    """`Transport.register` and what is near it."""

    def test_register_gives_the_region_back(self, bench: Bench) -> None:
        """What is registered says which region and which transport it belongs to."""
        place = bench.local(4096)
        assert isinstance(place.registered, RegisteredMemory)
        assert place.registered.region == place.memory.region
        assert place.registered.transport == bench.info.name

    def test_register_leaves_the_bytes_alone(self, bench: Bench) -> None:
        """Registering, describing and unregistering change no byte."""
        memory = bench.memory(10_007)
        memory.write(noise(10_007))
        place = bench.register(memory, bench.initiator)
        bench.initiator.describe(place.registered)
        same(memory.read(), noise(10_007))
        bench.unregister(place)
        same(memory.read(), noise(10_007))

    def test_description_is_small(self, bench: Bench) -> None:
        """A description is bytes, and at most 4096 of them."""
        description = bench.target.describe(bench.remote(4096).registered)
        assert isinstance(description, bytes)
        assert len(description) <= MOST

    def test_two_regions_have_two_descriptions(self, bench: Bench) -> None:
        """Two regions are told apart by their descriptions."""
        first, second = bench.remote(4096), bench.remote(4096)
        assert bench.target.describe(first.registered) != bench.target.describe(second.registered)

    def test_hundred_regions(self, bench: Bench) -> None:
        """A hundred regions are held at once and given back in any order; the card stays small."""
        places = [bench.remote(4096) for _ in range(100)]
        assert isinstance(bench.target.card(), bytes)
        assert len(bench.target.card()) <= MOST
        assert max(len(bench.target.describe(place.registered)) for place in places) <= MOST
        chance(1).shuffle(places)
        for place in places:
            bench.unregister(place)

    def test_register_again_after_unregister(self, bench: Bench) -> None:
        """Memory that was given back can be registered again."""
        memory = bench.memory(8192)
        for _ in range(5):
            bench.unregister(bench.register(memory, bench.initiator))

    def test_memory_is_used_after_it_was_registered_again(self, bench: Bench) -> None:
        """A second registration of the same memory is as good as the first."""
        memory = bench.memory(4096, bench.target)
        bench.unregister(bench.register(memory, bench.target))
        local, remote = bench.local(4096), bench.register(memory, bench.target)
        for operation in bench.operations:
            local.fill(1)
            remote.fill(2)
            bench.move(operation, [Piece(local, 0, remote, 0, 4096)])
            same(local.read(), remote.read())

    def test_eight_threads_register_and_unregister(self, bench: Bench) -> None:
        """Registering works from several threads at once."""
        memories = [bench.memory(4096) for _ in range(8)]

        def work(memory: KitMemory) -> None:
            for _ in range(20):
                registered = bench.initiator.register(memory.region)
                assert registered.region == memory.region
                assert bench.initiator.describe(registered)
                bench.initiator.unregister(registered)

        with ThreadPoolExecutor(8) as pool:
            for future in [pool.submit(work, memory) for memory in memories]:
                future.result(TIMEOUT)

    def test_four_threads_use_the_cold_calls(self, bench: Bench) -> None:
        """What is not on the way of a transfer works from several threads at once as well, each ability if offered."""
        places, remote = [bench.local(4096) for _ in range(4)], bench.remote(4096)
        offered = bench.info.capabilities

        def work(place: Place) -> None:
            transport, region = bench.initiator, place.memory.region
            for _ in range(20):
                assert transport.card() == bench.initiator.card()
                assert transport.describe(place.registered) == transport.describe(place.registered)
                assert isinstance(transport.remark, str)
                if Capability.IDENTIFY in offered:
                    assert transport.identify(region.address, region.length) is region.kind
                if Capability.ALLOCATE in offered:
                    transport.allocate(4096, bench.kind, 64).close()
                if Capability.COPY in offered:
                    transport.copy(bench.batch([Piece(place, 0, place, 2048, 2048)]))

        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(work, place) for place in places]:
                future.result(TIMEOUT)
        assert bench.target.describe(remote.registered)


class AllocationTests(Fixtures):
    """`Transport.allocate`."""

    @pytest.mark.parametrize("alignment", [1, 64, 4096, 2 * 2**20])
    def test_allocation_is_aligned(self, bench: Bench, alignment: int) -> None:
        """An allocation has the kind, the size and the alignment that were asked for."""
        need(bench.info, Capability.ALLOCATE)
        for size in (1, 4096, 10_007):
            with bench.initiator.allocate(size, bench.kind, alignment) as allocation:
                assert allocation.address % alignment == 0
                assert allocation.length >= size
                assert allocation.kind is bench.kind

    def test_allocations_do_not_overlap(self, bench: Bench) -> None:
        """No two allocations share a byte."""
        need(bench.info, Capability.ALLOCATE)
        allocations = [bench.initiator.allocate(5000, bench.kind, 64) for _ in range(10)]
        regions = sorted((allocation.region for allocation in allocations), key=lambda region: region.address)
        for before, after in itertools.pairwise(regions):
            assert before.end <= after.address
        for allocation in allocations:
            allocation.close()

    def test_allocation_closes_twice(self, bench: Bench) -> None:
        """An allocation may be closed again."""
        need(bench.info, Capability.ALLOCATE)
        allocation = bench.initiator.allocate(4096, bench.kind, 1)
        allocation.close()
        allocation.close()
        assert allocation.closed

    def test_array_keeps_an_allocation_alive(self, bench: Bench) -> None:
        """An array made from an allocation that nobody else holds can be used."""
        need(bench.info, Capability.ALLOCATE)
        if bench.kind is MemoryKind.DEVICE:
            pytest.skip("device memory has no array")
        array = np.asarray(bench.initiator.allocate(100_000, bench.kind, 1))
        array[:] = 7
        others = [np.asarray(bench.initiator.allocate(100_000, bench.kind, 1)) for _ in range(5)]
        for other in others:
            other[:] = 8
        assert (array == 7).all()

    def test_allocation_outlives_its_transport(self, bench: Bench) -> None:
        """Closing the transport leaves allocations usable until they are closed themselves."""
        need(bench.info, Capability.ALLOCATE)
        memory = bench.memory(4096, owner := bench.open_transport())
        bench.close_transport(owner)
        memory.write(noise(4096))
        same(memory.read(), noise(4096))

    def test_allocation_that_cannot_be(self, bench: Bench) -> None:
        """Too much is refused with the size in the text."""
        need(bench.info, Capability.ALLOCATE)
        with pytest.raises(OutOfMemoryError) as caught:
            bench.initiator.allocate(2**60, bench.kind, 1)
        assert caught.value.transport == bench.info.name
        assert str(2**60) in str(caught.value).replace(",", "")

    def test_unknown_allocation_option_is_refused(self, bench: Bench) -> None:
        """An option that is not known is refused by name."""
        need(bench.info, Capability.ALLOCATE)
        with refused(bench.info, CacheError, naming="no_such_option"):
            bench.initiator.allocate(4096, bench.kind, 1, {"no_such_option": 1})

    def test_allocation_of_another_kind_is_refused(self, bench: Bench) -> None:
        """Memory of a kind that is not the transport's is not made."""
        need(bench.info, Capability.ALLOCATE)
        for kind in set(MemoryKind) - bench.info.kinds:
            with refused(bench.info, CacheError):
                bench.initiator.allocate(4096, kind, 1)


class IdentifyTests(Fixtures):
    """`Transport.identify`."""

    def test_registered_memory_is_identified(self, bench: Bench) -> None:
        """Memory that is registered, and each part of it, is of the kind that it was registered as."""
        need(bench.info, Capability.IDENTIFY)
        region = bench.local(8192).memory.region
        for offset, length in ((0, 8192), (0, 1), (8191, 1), (100, 1000)):
            assert bench.initiator.identify(region.address + offset, length) is region.kind

    def test_nobodys_memory_has_no_kind(self, bench: Bench) -> None:
        """An address at which nothing lies has no kind, and asking is harmless."""
        need(bench.info, Capability.IDENTIFY)
        assert bench.initiator.identify(16, 16) is None


class CopyTests(Fixtures):
    """`Transport.copy`."""

    @pytest.mark.parametrize("size", [1, 7, 4096, 2**20 + 3])
    def test_copy_moves_every_byte_and_no_other(self, bench: Bench, size: int) -> None:
        """A copy goes from ``remote`` to ``local``, is done on return, and touches nothing around."""
        need(bench.info, Capability.COPY)
        to, start = bench.local(size + 2 * GUARD), bench.local(size + 2 * GUARD)
        was, data = to.fill(1), start.fill(2)
        bench.initiator.copy(bench.batch([Piece(to, GUARD, start, GUARD, size)]))
        same(to.read(), was[:GUARD] + data[GUARD : GUARD + size] + was[GUARD + size :])
        same(start.read(), data)

    def test_copy_of_many_pieces(self, bench: Bench) -> None:
        """The pieces of a copy may lie anywhere, also within one region."""
        need(bench.info, Capability.COPY)
        place = bench.local(64 * 1000)
        data = place.fill(3)
        order = list(range(500))
        chance(2).shuffle(order)
        pieces = [Piece(place, 64 * i, place, 64 * (500 + j), 64) for i, j in enumerate(order)]
        bench.initiator.copy(bench.batch(pieces))
        expected = b"".join(data[64 * (500 + j) :][:64] for j in order)
        same(place.read(), expected + data[64 * 500 :])

    def test_copy_and_transfers_do_not_disturb_each_other(self, bench: Bench, transport_info: TransportInfo) -> None:
        """A copy works while a channel is open."""
        need(transport_info, Capability.COPY)
        to, start, remote = bench.local(4096), bench.local(4096), bench.remote(4096)
        for operation in bench.operations:
            bench.move(operation, [Piece(to, 0, remote, 0, 4096)])
            data = start.fill(4)
            bench.initiator.copy(bench.batch([Piece(to, 0, start, 0, 4096)]))
            same(to.read(), data)
