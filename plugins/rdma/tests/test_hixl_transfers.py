"""Transfers over HIXL's provider: whole, in parts, failing, stopped."""

from __future__ import annotations

import ctypes
import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cachefw_rdma import envelope
from cachefw_rdma.hixl import status
from cachefw_rdma.hixl._hixl import ffi, lib

from cachefw.errors import BrokenError, BusyError, CacheError, ClosedError, TransferCancelled, TransferTimeout
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.transport import Batch, Operation

_spec = importlib.util.spec_from_file_location("rdma_hixl_kit", Path(__file__).with_name("hixl_kit.py"))
assert _spec is not None
assert _spec.loader is not None
kit = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kit)
shim_path, shim, pair = kit.shim_path, kit.shim, kit.pair
Pair, fail, region_of, address_of = kit.Pair, kit.fail, kit.region_of, kit.address_of
READ, WRITE, LONG, until = kit.READ, kit.WRITE, kit.LONG, kit.until
CODES = [code for code in status.STATUSES if code > 0]


# ---- transfers ----------------------------------------------------------------------------------------------------


def test_reading_and_writing(pair: Pair) -> None:
    read = pair.post(READ, (0, 100, 50), (200, 0, 7))
    assert read.wait(LONG)
    assert read.error is None
    assert read.path == "hixl"
    np.testing.assert_array_equal(pair.local[:50], pair.remote[100:150])
    np.testing.assert_array_equal(pair.local[200:207], pair.remote[:7])
    pair.local[1000:1010] = 9
    write = pair.post(WRITE, (1000, 5000, 10))
    assert write.wait(LONG)
    assert write.error is None
    np.testing.assert_array_equal(pair.remote[5000:5010], np.full(10, 9, np.uint8))


def test_a_large_batch_goes_in_bounded_calls(pair: Pair, shim: ctypes.CDLL) -> None:
    shim.shim_polls(3)
    count = 10_001
    transfer = pair.post(READ, *((4 * index, 4 * index, 4) for index in range(count)))
    assert transfer.wait(LONG)
    assert transfer.error is None
    assert shim.shim_issued() == 11
    assert shim.shim_most_seen() <= 4
    np.testing.assert_array_equal(pair.local[: 4 * count], pair.remote[: 4 * count])


def test_hixl_being_full_is_waited_for(pair: Pair, shim: ctypes.CDLL) -> None:
    shim.shim_most_calls(1)
    transfer = pair.post(READ, *((index, index, 1) for index in range(3500)))
    assert transfer.wait(LONG)
    assert transfer.error is None
    assert shim.shim_most_seen() == 1
    np.testing.assert_array_equal(pair.local[:3500], pair.remote[:3500])


def test_a_batch_is_posted_again_but_not_twice_at_once(pair: Pair, shim: ctypes.CDLL) -> None:
    prepared = pair.channel.prepare(READ, pair.batch([(0, 0, 10)]))
    assert prepared.nbytes == 10
    shim.shim_hold(1)
    first = pair.channel.post(prepared)
    with pytest.raises(BusyError, match="one post at a time"):
        pair.channel.post(prepared)
    with pytest.raises(BusyError, match="not settled"):
        _ = first.error
    assert not first.wait(0.01)
    shim.shim_hold(0)
    assert first.wait(LONG)
    second = pair.channel.post(prepared)
    assert second.wait(LONG)
    assert first.error is second.error is None


def test_callbacks_come_once_before_and_after(pair: Pair, shim: ctypes.CDLL) -> None:
    shim.shim_hold(1)
    transfer = pair.post(READ, (0, 0, 10))
    called: list[tuple[str, object]] = []
    done = threading.Event()
    transfer.add_done_callback(lambda settled: called.append(("early", settled)))
    transfer.add_done_callback(lambda settled: done.set())
    assert not called
    shim.shim_hold(0)
    assert done.wait(LONG)
    transfer.add_done_callback(lambda settled: called.append(("late", settled)))
    assert called == [("early", transfer), ("late", transfer)]


def test_a_callback_may_close_the_channel(pair: Pair) -> None:
    closed = threading.Event()

    def close(settled: object) -> None:
        pair.channel.close()
        closed.set()

    transfer = pair.post(READ, (0, 0, 10))
    transfer.add_done_callback(close)
    assert closed.wait(LONG)
    with pytest.raises(ClosedError):
        pair.post(READ, (0, 0, 10))
    pair.channel.close()


def out_of_range(pair: Pair) -> Batch:
    return pair.batch([(0, 0, 8), (16, pair.remote.nbytes - 4, 8)])


def unregistered(pair: Pair) -> Batch:
    batch = pair.batch([(0, 0, 8)])
    return Batch(np.array([4096], np.uint64), batch.remote, batch.length, batch.regions)


@pytest.mark.parametrize("wrong", [out_of_range, unregistered], ids=["out of range", "unregistered"])
def test_memory_that_hixl_does_not_know_fails_and_the_channel_stays(pair: Pair, wrong: Callable[[Pair], Batch]) -> None:
    transfer = pair.channel.post(pair.channel.prepare(READ, wrong(pair)))
    assert transfer.wait(LONG)
    assert isinstance(transfer.error, BrokenError)
    assert transfer.error.status == lib.HIXL_PARAM_INVALID
    assert transfer.error.facts["unsettled"] == 0
    assert not pair.local.any()
    assert pair.channel.broken is None
    after = pair.post(READ, (0, 0, 8))
    assert after.wait(LONG)
    assert after.error is None


@pytest.mark.parametrize("code", [*(code for code in CODES if code != 103900), 12345])
@pytest.mark.parametrize("operation", Operation, ids=lambda operation: operation.value)
def test_each_failure_of_issuing(pair: Pair, shim: ctypes.CDLL, operation: Operation, code: int) -> None:
    fail(shim, f"HixlCSClientBatch{'Get' if operation is READ else 'Put'}Async", code)
    transfer = pair.post(operation, (0, 0, 8))
    queued = pair.channel.prepare(operation, pair.batch([(8, 8, 8)]))
    assert transfer.wait(LONG)
    error = transfer.error
    assert isinstance(error, BrokenError)
    assert error.status == code
    assert error.facts["first"] == 0
    assert "pieces 0 to 0 of 1" in str(error)
    # Part of the call may be under way, so the client is destroyed before the transfer settles.
    assert shim.shim_handles() == 2
    with pytest.raises(BrokenError, match="broke before") as caught:
        pair.channel.post(queued)
    assert caught.value.status == code


@pytest.mark.parametrize("code", [*CODES, 12345])
def test_each_failure_of_asking(pair: Pair, shim: ctypes.CDLL, code: int) -> None:
    fail(shim, "HixlCSClientQueryCompleteStatus", code, after=2)
    transfer = pair.post(READ, *((index, index, 1) for index in range(3000)))
    assert transfer.wait(LONG)
    assert isinstance(transfer.error, BrokenError)
    assert transfer.error.status == code
    assert transfer.error.facts["done"] == 2000
    assert (shim.shim_handles(), shim.shim_calls()) == (2, 0)
    assert pair.channel.broken is transfer.error


@pytest.mark.parametrize("state", [2, 3, 9])
def test_each_state_that_is_not_completed_is_a_failure(pair: Pair, shim: ctypes.CDLL, state: int) -> None:
    shim.shim_end_state(state)
    transfer = pair.post(READ, (0, 0, 8))
    assert transfer.wait(LONG)
    assert isinstance(transfer.error, BrokenError)
    assert transfer.error.facts["state"] == state
    assert status.STATES.get(state, "an unknown state") in str(transfer.error)
    assert shim.shim_handles() == 2
    assert not pair.local.any()


def test_a_failure_in_the_middle_names_the_call(pair: Pair, shim: ctypes.CDLL) -> None:
    fail(shim, "HixlCSClientBatchGetAsync", lib.HIXL_FAILED, after=2)
    transfer = pair.post(READ, *((index, index, 1) for index in range(3500)))
    assert transfer.wait(LONG)
    assert transfer.error is not None
    assert transfer.error.facts["first"] == 2000
    assert "pieces 2000 to 2999 of 3500" in str(transfer.error)


def test_closing_during_a_transfer_settles_it_after_the_client_is_gone(pair: Pair, shim: ctypes.CDLL) -> None:
    shim.shim_hold(1)
    running = pair.post(READ, (0, 0, 8))
    waiting = pair.post(READ, (8, 8, 8))
    until(lambda: shim.shim_issued() == 1)
    alive: list[int] = []
    running.add_done_callback(lambda settled: alive.append(shim.shim_handles()))
    pair.channel.close()
    assert running.settled
    assert waiting.settled
    assert isinstance(running.error, TransferCancelled)
    assert isinstance(waiting.error, TransferCancelled)
    assert "before the transfer began" in str(waiting.error)
    assert alive == [2]
    assert not pair.local.any()


def test_closing_the_provider_closes_its_channels(pair: Pair, shim: ctypes.CDLL) -> None:
    shim.shim_hold(1)
    transfer = pair.post(WRITE, (0, 0, 8))
    pair.near.close()
    assert transfer.settled
    assert isinstance(transfer.error, TransferCancelled)
    assert shim.shim_handles() == 1


def test_what_hixl_refuses_at_closing_does_not_stop_it(pair: Pair, shim: ctypes.CDLL) -> None:
    assert pair.channel.broken is None
    fail(shim, "HixlCSClientDestroy", lib.HIXL_FAILED)
    pair.channel.close()
    assert pair.channel.broken is not None
    fail(shim, "HixlCSServerDestroy", lib.HIXL_FAILED)
    pair.near.close()
    assert shim.shim_handles() == 1


def test_a_context_that_cannot_be_entered_moves_nothing(pair: Pair) -> None:
    channel = pair.channel

    def refuses() -> Any:
        raise RuntimeError("107002")

    good, channel._bound = channel._bound, refuses
    transfer = pair.post(READ, (0, 0, 8))
    assert transfer.wait(LONG)
    assert isinstance(transfer.error, BrokenError)
    assert "107002" in str(transfer.error)
    channel._bound = good
    assert pair.post(READ, (0, 0, 8)).wait(LONG)


def test_attaching_needs_memory_that_hixl_told_of(pair: Pair) -> None:
    channel, region = pair.channel, pair.theirs.region
    told = envelope.open_description(pair.far.describe(pair.theirs), 8)

    def describe(**other: object) -> bytes:
        fields = {"nonce": told.nonce, "address": told.address, "length": told.length, "key": told.key, **other}
        return envelope.seal(envelope.Description(**fields))

    with pytest.raises(BrokenError, match="makes no sense"):
        channel.attach(8, region, b"garbage")
    beyond = MemoryRegion(region.address, region.length + 1)
    device = MemoryRegion(region.address, region.length, MemoryKind.DEVICE)
    wrong = [
        (beyond, describe()),
        (device, describe()),
        (beyond, describe(length=told.length + 1)),
        (region, describe(key=b"cachefw-99")),
        (region, describe(nonce=b"a peer that was")),
    ]
    for where, description in wrong:
        with pytest.raises(BrokenError, match="did not tell of"):
            channel.attach(8, where, description)
    channel.attach(8, MemoryRegion(region.address + 8, 8), describe())
    channel.detach(7)
    channel.detach(7)
    with pytest.raises(BrokenError, match="memory 7 of the peer is not attached"):
        pair.post(READ, (0, 0, 8))


def test_cancelling_lets_what_is_under_way_settle(pair: Pair, shim: ctypes.CDLL) -> None:
    shim.shim_hold(1)
    transfer = pair.post(READ, *((index, index, 1) for index in range(10_000)))
    waiting = pair.post(READ, (20_000, 20_000, 8))
    until(lambda: shim.shim_issued() == 4)
    transfer.cancel()
    waiting.cancel()
    assert not transfer.wait(0.01)
    shim.shim_hold(0)
    assert transfer.wait(LONG)
    assert waiting.wait(LONG)
    assert isinstance(transfer.error, TransferCancelled)
    assert isinstance(waiting.error, TransferCancelled)
    assert "4,000 of 10,000" in str(transfer.error)
    assert shim.shim_issued() == 4
    np.testing.assert_array_equal(pair.local[:4000], pair.remote[:4000])
    assert not pair.local[4000:].any()
    assert pair.channel.broken is None
    after = pair.post(READ, (0, 0, 8))
    assert after.wait(LONG)
    assert after.error is None


def test_cancelling_what_has_all_been_issued_changes_nothing(pair: Pair, shim: ctypes.CDLL) -> None:
    shim.shim_hold(1)
    transfer = pair.post(READ, (0, 0, 8))
    until(lambda: shim.shim_issued() == 1)
    transfer.cancel()
    shim.shim_hold(0)
    assert transfer.wait(LONG)
    assert transfer.error is None
    transfer.cancel()


def test_the_synchronous_calls(pair: Pair, shim: ctypes.CDLL) -> None:
    client = pair.channel._client
    prepared = pair.channel.prepare(READ, pair.batch([(0, 0, 8)]))
    pieces = ffi.cast("HixlOneSideOpDesc *", address_of(prepared.pieces))
    client.transfer_within(False, pieces, 1, 2.5)
    assert shim.shim_timeout() == 2500
    np.testing.assert_array_equal(pair.local[:8], pair.remote[:8])
    fail(shim, "HixlCSClientBatchPutSync", lib.HIXL_TIMEOUT)
    with pytest.raises(TransferTimeout) as caught:
        client.transfer_within(True, pieces, 1, 1.0)
    assert not caught.value.settled


@pytest.mark.parametrize(("chunk", "in_flight"), [(0, 1), (1, 0), (1, 17)])
def test_a_job_that_makes_no_sense_is_refused(chunk: int, in_flight: int) -> None:
    job, result = ffi.new("cfw_hixl_job *"), ffi.new("cfw_hixl_result *")
    job.count, job.chunk, job.in_flight = 1, chunk, in_flight
    lib.cfw_hixl_run(job, result)
    assert result.status == lib.HIXL_PARAM_INVALID
    assert result.unsettled == 0


def test_many_threads_post_on_one_channel(pair: Pair) -> None:
    channel = pair.channel
    failures: list[CacheError | None] = []

    def work(number: int) -> None:
        for index in range(20):
            place = (number * 20 + index) * 64
            transfer = channel.post(channel.prepare(READ, pair.batch([(place, place, 64)])))
            assert transfer.wait(LONG)
            failures.append(transfer.error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [None] * 80
    np.testing.assert_array_equal(pair.local[: 80 * 64], pair.remote[: 80 * 64])


def test_opening_and_closing_leaves_no_thread_or_handle(shim: ctypes.CDLL) -> None:
    before = threading.active_count()
    for _ in range(50):
        pair = Pair(64)
        assert pair.post(READ, (0, 0, 64)).wait(LONG)
        pair.close()
    assert threading.active_count() == before
    assert shim.shim_handles() == 0
