"""The kit on transports that keep their word, and the transport within one process, which does what it is told."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import cachefw
from cachefw.errors import BrokenError, BusyError, ClosedError, OutOfMemoryError, RequestError
from cachefw.memory import MemoryKind, region_of
from cachefw.testing import Bench, KitMemory, MemoryTransport, TransportTests
from cachefw.testing.memory import STEPS, MemoryChannel
from cachefw.testing.sessions import sessions
from cachefw.transport import Batch, Capability, Operation

ALL = MemoryTransport.info_named().capabilities


class TestReader(TransportTests):
    """Few capabilities are as good as many, if no more are offered."""

    @pytest.fixture
    def transport_info(self):
        return MemoryTransport.info_named("reader", Capability.READ)


class TestRegistersOnly(TransportTests):
    @pytest.fixture
    def transport_info(self):
        return MemoryTransport.info_named("registers-only", Capability.NONE)


class Fencing(MemoryTransport):
    """Where nothing moves in the background, closing one end stops the other."""

    class Channel(MemoryChannel):
        fences = True

    channel_type = Channel


class TestFencing(TransportTests):
    @pytest.fixture
    def transport_info(self):
        return Fencing.info_named("fencing")


class TestThreeKinds(TransportTests):
    @pytest.fixture
    def transport_info(self):
        return MemoryTransport.info_named("three-kinds", ALL & ~Capability.CANCEL, MemoryKind)

    @pytest.fixture
    def make_memory(self):
        return lambda transport, size, kind: KitMemory.ordinary(size)


@pytest.fixture
def pair():
    bench = Bench(MemoryTransport.info_named(), {}, lambda transport, size, kind: KitMemory.ordinary(size))
    bench.open()
    local, remote = bench.local(4096), bench.remote(4096)
    piece = SimpleNamespace(local=local, at=0, remote=remote, there=0, length=4096)
    yield SimpleNamespace(bench=bench, local=local, remote=remote, piece=piece, transport=bench.initiator)
    bench.close()


def test_transfers_are_held_until_resume(pair):
    data = pair.remote.fill(1)
    before = pair.local.fill(2)
    pair.transport.pause()
    transfers = [pair.bench.post(Operation.READ, [pair.piece]) for _ in range(3)]
    assert [transfer.wait(0) for transfer in transfers] == [False] * 3
    with pytest.raises(BusyError):
        _ = transfers[0].error
    assert pair.local.read() == before
    pair.transport.resume()
    assert [transfer.wait(10) for transfer in transfers] == [True] * 3
    assert transfers[0].path == "thread"
    assert pair.local.read() == data
    pair.bench.move(Operation.READ, [pair.piece])


def test_held_transfer_is_cancelled(pair):
    before = pair.local.fill(2)
    pair.transport.pause()
    transfer = pair.bench.post(Operation.READ, [pair.piece])
    transfer.cancel()
    assert transfer.wait(10)
    assert transfer.error.code == "cancelled"
    assert transfer.error.facts["failed"] == (0,)
    assert pair.local.read() == before


def test_closing_settles_what_is_held(pair):
    pair.transport.pause()
    transfer = pair.bench.post(Operation.READ, [pair.piece])
    pair.bench.close_transport(pair.transport)
    assert transfer.settled
    assert transfer.error.code == "cancelled"


def test_done_callback_may_close_the_channel(pair):
    channel, called = pair.bench.channel, threading.Event()
    pair.transport.pause()
    transfer = pair.bench.post(Operation.READ, [pair.piece])
    transfer.add_done_callback(lambda _: (channel.close(), called.set()))
    pair.transport.resume()
    assert called.wait(10)
    with pytest.raises(ClosedError):
        channel.post(channel.prepare(Operation.WRITE, Batch(*[np.empty(0, np.uint64)] * 4)))


def test_fault_in_the_middle_of_a_transfer(pair):
    data, before = pair.remote.fill(1), pair.local.fill(2)
    pieces = [SimpleNamespace(**{**vars(pair.piece), "at": at, "there": at, "length": 1024}) for at in (0, 1024, 2048)]
    pair.transport.fail_next("move", after=1)
    error = pair.bench.post(Operation.READ, pieces).error
    assert isinstance(error, BrokenError)
    assert (error.failed, error.status, error.transport) == ((1,), 5, "memory")
    assert pair.local.read() == data[:1024] + before[1024:]
    pair.bench.move(Operation.READ, pieces)


def test_interrupted_transfer_has_settled(pair, monkeypatch):
    def interrupt(*piece):
        raise KeyboardInterrupt

    monkeypatch.setattr(pair.transport, "_move_piece", interrupt)
    with pytest.raises(KeyboardInterrupt):
        pair.bench.post(Operation.READ, [pair.piece])
    pair.bench.close_channel()


def test_faults_are_carried_out_in_order(pair):
    array = np.empty(64, np.uint8)
    pair.transport.fail_next("register", after=1)
    pair.transport.fail_next("register", error=BusyError("not now"))
    outcomes = []
    for _ in range(4):
        try:
            outcomes.append(pair.transport.unregister(pair.transport.register(region_of(array))))
        except (BrokenError, BusyError) as error:
            outcomes.append(type(error))
    assert outcomes == [None, BrokenError, BusyError, None]


def test_failed_unregister_keeps_the_region(pair):
    pair.transport.fail_next("unregister")
    with pytest.raises(BrokenError):
        pair.transport.unregister(pair.local.registered)
    pair.bench.move(Operation.READ, [pair.piece])


@pytest.mark.parametrize("step", sorted(set(STEPS) - {"open", "unregister", "move"}))
def test_every_step_can_fail(pair, step):
    calls = {
        "register": lambda: pair.transport.register(pair.local.memory.region),
        "allocate": lambda: pair.transport.allocate(64, MemoryKind.HOST, 1),
        "connect": lambda: pair.transport.connect(pair.bench.target.card(), 1.0, sessions()[0]),
        "attach": lambda: pair.bench.attach(pair.remote),
        "prepare": lambda: pair.bench.prepare(Operation.READ, [pair.piece]),
        "post": lambda: pair.bench.post(Operation.READ, [pair.piece]),
    }
    _ = pair.bench.channel
    pair.transport.fail_next(step)
    with pytest.raises(OutOfMemoryError if step == "allocate" else BrokenError, match=f"{step} fails on request"):
        calls[step]()
    calls[step]()


def test_unknown_step_is_refused():
    with pytest.raises(ValueError, match="the steps are open, register"):
        MemoryTransport().fail_next("moving")


@pytest.mark.parametrize(("settings", "builtin"), [({"speed": 1}, ValueError), ({"limit": "4G"}, TypeError)])
def test_wrong_setting_is_refused(settings, builtin):
    with pytest.raises(RequestError) as caught:
        MemoryTransport().open(settings)
    assert isinstance(caught.value, builtin)


def test_limit_counts_what_is_held():
    transport = MemoryTransport()
    transport.open({"limit": 1000})
    with transport.allocate(900, MemoryKind.HOST, 1), pytest.raises(OutOfMemoryError, match="100 left of the limit"):
        transport.allocate(101, MemoryKind.HOST, 1)
    transport.allocate(1000, MemoryKind.HOST, 1).close()
    transport.close()


def test_peer_that_is_gone_is_broken(pair):
    prepared = pair.bench.prepare(Operation.READ, [pair.piece])
    card = pair.bench.target.card()
    pair.bench.close_transport(pair.bench.target)
    with pytest.raises(BrokenError, match="the peer is gone"):
        pair.bench.channel.post(prepared)
    with pytest.raises(BrokenError, match="the peer is gone"):
        pair.transport.connect(card, 1.0, sessions()[0])


def test_memory_that_the_peer_gave_back_is_broken(pair):
    prepared = pair.bench.prepare(Operation.READ, [pair.piece])
    pair.bench.unregister(pair.remote)
    with pytest.raises(BrokenError, match="no longer holds memory 7001") as caught:
        pair.bench.channel.post(prepared)
    assert caught.value.failed == (0,)


def test_memory_transport_needs_no_pytest():
    code = (
        "import sys; sys.modules.update(pytest=None, hypothesis=None)\n"
        "from cachefw.testing import MemoryTransport\n"
        "import cachefw.testing.plugin\n"
        "assert MemoryTransport.info_named('other').name == 'other'\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(cachefw.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Transports'"):
        _ = cachefw.testing.Transports


def test_plugin_makes_the_marker_known(pytestconfig):
    assert any(line.startswith("hardware:") for line in pytestconfig.getini("markers"))
