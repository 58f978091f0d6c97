"""Tests: channels and transports that close while others use them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cachefw.errors import CacheError, ClosedError
from cachefw.testing._bench import TIMEOUT, Bench, Piece, check_error, refused, same, settle
from cachefw.testing._fixtures import Fixtures
from cachefw.testing.sessions import sessions
from cachefw.transport import Batch, Operation

__all__ = ["ClosingTests"]

LARGE = 4 * 2**20


class ClosingTests(Fixtures):
    """The end of channels and transports, in any order."""

    def test_post_on_a_closed_channel(self, bench: Bench, any_operation: Operation) -> None:
        """A closed channel posts nothing: `ClosedError`, and no byte moves."""
        local, remote = bench.local(4096), bench.remote(4096)
        channel, prepared = bench.channel, bench.prepare(any_operation, [Piece(local, 0, remote, 0, 4096)])
        was = local.fill(1) + remote.fill(2)
        bench.close_channel()
        with refused(bench.info, ClosedError):
            channel.post(prepared)
        same(local.read() + remote.read(), was)

    def test_channel_closes_twice(self, bench: Bench) -> None:
        """A channel may be closed again."""
        channel = bench.channel
        bench.close_channel()
        channel.close()

    def test_channel_opens_again(self, bench: Bench, any_operation: Operation) -> None:
        """After a channel is closed, another to the same peer works."""
        piece = Piece(bench.local(4096), 0, bench.remote(4096), 0, 4096)
        for _ in range(5):
            bench.move(any_operation, [piece])
            bench.close_channel()

    def test_channel_close_settles_what_runs(self, bench: Bench, operation: Operation) -> None:
        """When a channel has closed, its transfers have settled, whole or failed, and nothing moves later."""
        local, remote = bench.local(8 * LARGE), bench.remote(8 * LARGE)
        source, destination = (remote, local) if operation is Operation.READ else (local, remote)
        data = source.fill(1)
        pieces = [Piece(local, LARGE * i, remote, LARGE * i, LARGE) for i in range(8)]
        transfers = [bench.post(operation, [piece]) for piece in pieces]
        bench.close_channel()
        assert [transfer.settled for transfer in transfers] == [True] * 8
        for i, transfer in enumerate(transfers):
            if transfer.error is None:
                same(destination.read(LARGE * i, LARGE), data[LARGE * i :][:LARGE])
            else:
                check_error(transfer.error, bench.info)
        after = destination.fill(2)
        for place in (local, remote):
            bench.unregister(place)
        same(destination.read(), after, "bytes moved after the channel was closed")

    def test_closing_stops_the_peer_where_it_says_so(self, bench: Bench, operation: Operation) -> None:
        """A channel that `fences` has stopped its peer when it is closed: what that posts moves nothing here."""
        mine, its = bench.local(4096), bench.remote(4096)
        channel, back = bench.channel, bench.back
        if not channel.fences:
            pytest.skip(f"transport {bench.info.name!r} does not say that closing stops the peer (Channel.fences)")
        back.attach(1, mine.memory.region, bench.initiator.describe(mine.registered))
        rows = [its.address, mine.address, 4096, 1]
        prepared = back.prepare(operation, Batch(*(np.array([number], np.uint64) for number in rows)))
        assert settle(back.post(prepared)).error is None
        bench.close_own_channel()
        was = mine.fill(1) + its.fill(2)
        error: CacheError | None
        try:
            error = settle(back.post(prepared)).error
        except CacheError as failure:
            error = failure
        check_error(error, bench.info)
        same(mine.read() + its.read(), was, "the peer reached memory after this end was closed")

    def test_transport_close_settles_and_closes_channels(self, bench: Bench, any_operation: Operation) -> None:
        """Closing a transport closes its channels, and what ran on them has settled."""
        local, remote = bench.local(LARGE), bench.remote(LARGE)
        channel, prepared = bench.channel, bench.prepare(any_operation, [Piece(local, 0, remote, 0, LARGE)])
        transfer = channel.post(prepared)
        bench.close_transport(bench.initiator)
        assert transfer.settled
        with refused(bench.info, ClosedError):
            channel.post(prepared)
        channel.close()

    def test_channel_closes_before_its_transport(self, bench: Bench, any_operation: Operation) -> None:
        """First the channel, then both transports."""
        bench.move(any_operation, [Piece(bench.local(4096), 0, bench.remote(4096), 0, 4096)])
        bench.close_channel()
        bench.close_transport(bench.initiator)
        bench.close_transport(bench.target)

    def test_target_closes_first(self, bench: Bench, any_operation: Operation) -> None:
        """A peer that is gone ends in an error or in a transfer that settles, never in a hang; closing is quiet."""
        local, remote = bench.local(4096), bench.remote(4096)
        channel, prepared = bench.channel, bench.prepare(any_operation, [Piece(local, 0, remote, 0, 4096)])
        bench.close_transport(bench.target)
        error: CacheError | None
        try:
            error = settle(channel.post(prepared)).error
        except CacheError as failure:
            error = failure
        # A transport that needs nobody at the other end still reaches the memory, which is there.
        if error is not None:
            check_error(error, bench.info)
        bench.close_channel()

    def test_closed_transport_registers_nothing(self, bench: Bench) -> None:
        """A closed transport refuses to register and to connect."""
        card, memory, closed = bench.target.card(), bench.memory(4096), bench.open_transport()
        bench.close_transport(closed)
        with refused(bench.info, ClosedError):
            closed.register(memory.region)
        with refused(bench.info, ClosedError):
            closed.connect(card, 5.0, sessions()[0])

    def test_several_threads_connect_and_close(self, bench: Bench, any_operation: Operation) -> None:
        """`connect` works from several threads at once, each with a channel of its own."""
        locals_, remote = [bench.local(4096) for _ in range(4)], bench.remote(4096)
        data = remote.fill(1)
        for place in locals_:
            place.memory.write(data)
        description = bench.target.describe(remote.registered)
        memory_id = remote.memory_id
        assert memory_id is not None

        def work(number: int) -> None:
            for _ in range(5):
                channel = bench.connect()
                channel.attach(memory_id, remote.memory.region, description)
                at = 1024 * number
                batch = bench.batch([Piece(locals_[number], at, remote, at, 1024)])
                assert settle(channel.post(channel.prepare(any_operation, batch))).error is None
                channel.close()

        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(work, number) for number in range(4)]:
                future.result(TIMEOUT)
        same(remote.read(), data)
        for place in locals_:
            same(place.read(), data)
