"""A deadline that passes stops nothing: until a transfer has settled, nobody gets its memory, at either end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pytest

import cachefw
from cachefw.links import transfers

SIZE = 4096


@attrs.frozen
class Ends:
    """Two linked nodes on a transport that can be held, and memory at either."""

    one: cachefw.Node
    two: cachefw.Node
    link: cachefw.Link
    source: np.ndarray[Any, Any]
    target: np.ndarray[Any, Any]
    theirs: cachefw.Memory
    ours: cachefw.Memory

    @property
    def transport(self) -> Any:
        """What the second node's transfers run on."""
        return self.two.cache_manager.transport("memory")

    def read(self, at: int = 0, size: int = SIZE, **options: Any) -> cachefw.Transfer:
        return self.link.read(self.target.ctypes.data + at, self.source.ctypes.data + at, size, **options)

    def write(self, at: int = 0, size: int = SIZE, **options: Any) -> cachefw.Transfer:
        return self.link.write(self.target.ctypes.data + at, self.source.ctypes.data + at, size, **options)


@pytest.fixture
def ends(site: Any, leaves_nothing: None) -> Iterator[Ends]:
    site.install_memory()
    with (
        cachefw.Node(1, "127.0.0.1:0", transports=["memory"]) as one,
        cachefw.Node(2, "127.0.0.1:0", transports=["memory"]) as two,
    ):
        source, target = np.full(4 * SIZE, 1, np.uint8), np.full(4 * SIZE, 2, np.uint8)
        theirs = one.cache_manager.register_memory(source, remote_accessible=True, label="theirs")
        ours = two.cache_manager.register_memory(target, remote_accessible=True, label="ours")
        yield Ends(one, two, two.link(one.address), source, target, theirs, ours)
        two.cache_manager.transport("memory").resume()


@pytest.mark.parametrize("operation", ["read", "write"])
def test_t21_what_is_late_keeps_its_memory_at_both_ends(
    ends: Ends, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEFW_LINK_TIMEOUT", "0.3")
    move = getattr(ends, operation)
    ends.transport.pause()
    with pytest.raises(cachefw.TransferTimeout) as caught:
        move(timeout=0.05)
    assert not caught.value.settled
    (late,) = ends.link.unsettled
    assert not late.settled
    here, there = ends.two.cache_manager, ends.one.cache_manager
    # This end: neither given back nor used by another transfer, whichever way it goes.
    with pytest.raises(cachefw.BusyError, match=f"the {operation} of 4,096 bytes .* uses this memory now"):
        here.unregister_memory(ends.ours)
    for again in (ends.read, ends.write):
        with pytest.raises(cachefw.BusyError, match=r"may still be touched by the .*, whose deadline") as refused:
            again(at=SIZE - 1, size=1)
        assert refused.value.code == "busy.unsettled"
    with pytest.raises(cachefw.BusyError, match="dst"):
        here.copy(ends.target[:SIZE], ends.target[SIZE : 2 * SIZE])
    # The other end: it does not get its memory back while a byte may land in it, or be taken from it.
    with pytest.raises(cachefw.TransferTimeout, match=r"did not answer \(withdraw\)"):
        there.unregister_memory(ends.theirs)
    assert ends.theirs.state.value == "live"
    # Nobody else is held up, and nothing has moved meanwhile.
    ends.transport.resume()
    monkeypatch.delenv("CACHEFW_LINK_TIMEOUT")
    assert late.wait(20)
    late.result()
    _settles(ends)
    assert (ends.source[0], ends.target[0]) == ((1, 1) if operation == "read" else (2, 2))
    # Free again, at once, at both ends.
    ends.read(at=0)
    here.unregister_memory(ends.ours)
    there.unregister_memory(ends.theirs)
    for array in (ends.source, ends.target):
        array[:] = 9
    time.sleep(0.1)
    assert (ends.source == 9).all()
    assert (ends.target == 9).all()


def test_a_wait_ends_soon_after_its_link_although_nobody_can_say_that_it_has_settled(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEFW_LINK_TIMEOUT", "0.3")
    monkeypatch.setattr(transfers, "_SLICE", 0.02)
    monkeypatch.setattr(transfers, "_GRACE", 0.05)
    # As a library that cannot take back what it was asked for.
    monkeypatch.setattr(ends.link.channel, "close", lambda: None)
    ends.transport.pause()
    later = ends.read(at=SIZE, wait=False)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ends.read, timeout=60)
        while len(ends.link.inflight) < 2:
            assert not waiting.done()
            time.sleep(0.005)
        ends.one.unlink(ends.one.links[0])
        for outcome in (waiting.result, later.result):
            with pytest.raises(cachefw.BrokenError, match="the peer closed it") as caught:
                outcome(30)
            assert caught.value.facts["settled"] is False
    assert len(ends.link.unsettled) == 2
    ends.transport.resume()
    _settles(ends)


def _settles(ends: Ends) -> None:
    """Callbacks come a moment after the transfer has settled."""
    end = time.monotonic() + 20
    while ends.link.unsettled:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_late_byte_never_lands_in_memory_that_was_given_back(ends: Ends) -> None:
    """The writer is delayed at random; the owner takes its buffer back as soon as it may, and reuses it."""
    rng, stop, spoilt = np.random.default_rng(5), threading.Event(), []
    here = ends.two.cache_manager

    def delay() -> None:
        while not stop.is_set():
            ends.transport.pause()
            time.sleep(rng.uniform(0, 0.01))
            ends.transport.resume()
            time.sleep(rng.uniform(0, 0.002))

    thread = threading.Thread(target=delay)
    thread.start()
    memory, late, refused, given_back = ends.ours, 0, 0, 0
    try:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            try:
                ends.read(timeout=rng.uniform(0.0001, 0.01))
            except cachefw.TransferTimeout:
                late += 1
            except cachefw.BusyError:
                refused += 1
            try:
                here.unregister_memory(memory)
            except cachefw.BusyError:
                refused += 1
                continue
            given_back += 1
            ends.target[:] = 7
            time.sleep(rng.uniform(0, 0.003))
            if not (ends.target == 7).all():
                spoilt.append(ends.target.copy())
            memory = here.register_memory(ends.target)
    finally:
        stop.set()
        thread.join(20)
    assert not spoilt
    assert late > 10
    assert given_back > 10
    assert refused > 10


def test_what_was_prepared_before_is_refused_too_and_others_are_not(ends: Ends) -> None:
    address = ends.target.ctypes.data
    prepared = [
        ends.link.prepare(cachefw.Operation.READ, address + at, ends.source.ctypes.data + at, 100)
        for at in (0, SIZE - 50, SIZE, 2 * SIZE)
    ]
    ends.transport.pause()
    with pytest.raises(cachefw.TransferTimeout):
        ends.read(timeout=0.02)
    posted = []
    for index, each in enumerate(prepared):
        if index < 2:
            with pytest.raises(cachefw.BusyError):
                each.post(wait=False)
        else:
            posted.append(each.post(wait=False))
    ends.transport.resume()
    for transfer in posted:
        transfer.result(20)
    _settles(ends)
    for each in prepared:
        each.post()


def test_only_the_ranges_of_a_late_transfer_are_held(ends: Ends) -> None:
    ends.transport.pause()
    lists = (
        [ends.target.ctypes.data + at for at in (100, 900, 300)],
        [ends.source.ctypes.data + at for at in (5, 25, 45)],
    )
    with pytest.raises(cachefw.TransferTimeout):
        ends.link.read(*lists, [10, 10, 10], timeout=0.02)
    held = {at for start in (100, 900, 300) for at in range(start, start + 10)}
    for at in (90, 99, 100, 109, 110, 299, 305, 310, 899, 909, 910, 2000):
        start = ends.target.ctypes.data + at
        if held & {at, at + 1}:
            with pytest.raises(cachefw.BusyError, match="local"):
                ends.link.read(start, ends.source.ctypes.data + 3000, 2)
        else:
            ends.link.read(start, ends.source.ctypes.data + 3000, 2, wait=False)
    with pytest.raises(cachefw.BusyError, match="on cluster 1"):
        ends.link.write(ends.target.ctypes.data + 3000, ends.source.ctypes.data + 30, 2)
    ends.transport.resume()


def test_a_result_that_is_late_holds_too_and_cancelling_frees(ends: Ends) -> None:
    ends.transport.pause()
    transfer = ends.read(wait=False)
    assert ends.link.unsettled == []
    for _ in range(3):
        with pytest.raises(cachefw.TransferTimeout) as caught:
            transfer.result(0.01)
        assert not caught.value.settled
    assert ends.link.unsettled == [transfer]
    with pytest.raises(cachefw.BusyError):
        ends.read()
    transfer.cancel()
    with pytest.raises(cachefw.TransferCancelled):
        transfer.result(20)
    _settles(ends)
    ends.transport.resume()
    ends.read()
    assert ends.two.completed() == [transfer]


def test_ending_the_link_settles_what_is_late(ends: Ends) -> None:
    ends.transport.pause()
    with pytest.raises(cachefw.TransferTimeout):
        ends.read(timeout=0.02)
    ends.two.unlink(ends.link)
    _settles(ends)
    ends.two.cache_manager.unregister_memory(ends.ours)
    ends.one.cache_manager.unregister_memory(ends.theirs)


def test_ctrl_c_breaks_a_wait_off_and_the_memory_stays_held(ends: Ends) -> None:
    ends.transport.pause()
    timer = threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ends.read(timeout=30)
    timer.join()
    with pytest.raises(cachefw.BusyError):
        ends.read()
    ends.transport.resume()
    _settles(ends)
    ends.read()


def test_a_signal_handler_runs_during_a_wait(ends: Ends) -> None:
    ran = threading.Event()
    was = signal.signal(signal.SIGUSR1, lambda *_: ran.set())
    try:
        ends.transport.pause()
        timer = threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(cachefw.TransferTimeout):
            ends.read(timeout=0.5)
        timer.join()
        assert ran.is_set()
    finally:
        signal.signal(signal.SIGUSR1, was)
        ends.transport.resume()


# ---------------------------------------------------------------------- asyncio


def test_transfers_and_links_are_awaited_without_holding_the_loop(ends: Ends) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        address, there = ends.target.ctypes.data, ends.source.ctypes.data
        ends.transport.pause()
        asyncio.get_running_loop().call_later(0.1, ends.transport.resume)
        done = await ends.link.transfer(cachefw.Operation.READ, address, there, SIZE)
        assert done.settled
        assert (ends.target[:SIZE] == 1).all()
        assert ticks > 5
        # One that was posted as always can be awaited, too.
        assert await ends.read(wait=False) is not None
        with pytest.raises(ValueError, match="out of reach"):
            await ends.link.transfer(cachefw.Operation.READ, address, 4096, SIZE)
        # A deadline of the loop's cancels the wait and not the transfer, whose memory is held.
        ends.transport.pause()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ends.link.transfer(cachefw.Operation.READ, address, there, SIZE), 0.05)
        with pytest.raises(cachefw.BusyError):
            ends.read()
        with pytest.raises(cachefw.TransferTimeout):
            await ends.link.transfer(cachefw.Operation.READ, address + SIZE, there, SIZE, timeout=0.05)
        ends.transport.resume()
        ends.two.unlink(ends.link)
        link = await ends.two.link(ends.one.address, wait=False)
        assert link.state is cachefw.LinkState.UP
        ticking.cancel()

    asyncio.run(main())
    # What was awaited is not handed over a second time.
    assert len(ends.two.completed()) == 1


# ---------------------------------------------------------------------- links in the background


def test_work_queues_behind_a_link_in_the_making(ends: Ends) -> None:
    ends.two.unlink(ends.link)
    pending = ends.two.link(ends.one.address, wait=False)
    address, there = ends.target.ctypes.data, ends.source.ctypes.data
    posted = [pending.read(address + at, there + at, 16) for at in range(0, 160, 16)]
    refused = pending.read(address, 4096, 16)
    told = pending.queue(lambda name: f"{name} {len(ends.two.links)}", "links:")
    for each in posted:
        each.result(20).result(20)
    assert (ends.target[:160] == 1).all()
    assert told.result(20) == "links: 1"
    with pytest.raises(ValueError, match="out of reach"):
        refused.result(20)
    assert pending.result(20).state is cachefw.LinkState.UP
    assert pending.done
    assert pending.write(address, there, 16).result(20).result(20)


def test_a_link_that_is_never_made_fails_what_waits_for_it(ends: Ends) -> None:
    pending = ends.two.link("127.0.0.1:1", wait=False)
    posted = pending.read(1, 2, 3)
    for future in (posted, pending):
        with pytest.raises(cachefw.BrokenError, match=r"cannot reach 127\.0\.0\.1:1"):
            future.result(20)
