"""The kit finds what is wrong: each transport here tells one lie, and the test meant for that lie must fail."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from xml.etree import ElementTree

import numpy as np
import pytest

import cachefw
from cachefw.errors import BrokenError, BusyError, ClosedError, OutOfMemoryError, RequestError
from cachefw.memory import Allocation, MemoryKind, region_of
from cachefw.testing import Bench, KitMemory, MemoryTransport, TransportTests
from cachefw.testing.memory import STEPS, MemoryChannel, MemoryTransfer
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


class TestThreeKinds(TransportTests):
    @pytest.fixture
    def transport_info(self):
        return MemoryTransport.info_named("three-kinds", ALL & ~Capability.CANCEL, MemoryKind)

    @pytest.fixture
    def make_memory(self):
        return lambda transport, size, kind: KitMemory.ordinary(size)


class Liar(MemoryTransport):
    offers = ALL
    #: The tests that must fail, by name.
    caught_by: ClassVar[tuple[str, ...]]


class DropsTheLastByte(Liar):
    caught_by = ("test_every_byte_moves_and_no_other", "test_copy_moves_every_byte_and_no_other")

    def _move_piece(self, to, start, length):
        if length > 1:
            super()._move_piece(to, start, length - 1)


class MovesOneByteTooMany(Liar):
    caught_by = ("test_every_byte_moves_and_no_other", "test_copy_moves_every_byte_and_no_other")

    def _move_piece(self, to, start, length):
        super()._move_piece(to, start, length + 1)


class MovesNothing(Liar):
    caught_by = ("test_offered_capability_works", "test_many_are_in_flight", "test_prepared_once_and_posted_often")

    def _move_piece(self, to, start, length):
        pass


class SwapsTwoPieces(Liar):
    caught_by = ("test_scattered_pieces", "test_regions_are_not_mixed_up", "test_against_model")

    class Lying(MemoryChannel):
        def prepare(self, operation, batch):
            if len(batch) > 1:
                order = [1, 0, *range(2, len(batch))]
                batch = Batch(batch.local, batch.remote[order], batch.length, batch.regions)
            return super().prepare(operation, batch)

    channel_type = Lying


class ForgetsEverySeventhPost(Liar):
    caught_by = ("test_against_model",)
    moved = 0

    def _move_piece(self, to, start, length):
        self.moved += 1
        if self.moved % 7:
            super()._move_piece(to, start, length)


class MovesAfterItHasSettled(Liar):
    caught_by = ("test_bytes_are_there_when_it_has_settled", "test_channel_close_settles_what_runs")

    class Lying(MemoryTransfer):
        __slots__ = ()

        def run(self):
            self._transport.late.append(self)
            self._settle(None)

    transfer_type = Lying

    def open(self, settings):
        self.late = []
        super().open(settings)

    def unregister(self, registered):
        for transfer in self.late:
            transfer._move()
        self.late.clear()
        super().unregister(registered)


class NeverSettles(Liar):
    caught_by = ("test_wait_with_a_timeout", "test_offered_capability_works")

    class Lying(MemoryTransfer):
        __slots__ = ()

        def wait(self, timeout=None):
            return False

    transfer_type = Lying


class RefusesWhatItOffers(Liar):
    caught_by = ("test_offered_capability_works", "test_every_byte_moves_and_no_other")

    def _require(self, operation, ability):
        if operation == "write":
            raise self._unsupported(operation, ability)


class DoesWhatItDoesNotOffer(Liar):
    caught_by = ("test_capability_not_offered_is_refused",)
    offers = ALL & ~Capability.WRITE

    def _require(self, operation, ability):
        pass


class LosesADescriptor(Liar):
    caught_by = ("test_twenty_rounds_leak_nothing", "test_close_without_open")

    def probe(self):
        os.open(os.devnull, os.O_RDONLY)


class LosesAThread(Liar):
    caught_by = ("test_twenty_rounds_leak_nothing", "test_close_twice")

    def open(self, settings):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        super().open(settings)


class LosesAMapping(Liar):
    caught_by = ("test_hundred_regions", "test_register_again_after_unregister")
    lost: ClassVar[list[mmap.mmap]] = []

    def register(self, region):
        self.lost.append(mmap.mmap(-1, 4096))
        return super().register(region)


class ClosesOnce(Liar):
    caught_by = ("test_close_twice",)

    def close(self):
        if self._token is None:
            raise RuntimeError("closed already")
        super().close()


class CallsBackTwice(Liar):
    caught_by = ("test_callbacks_are_called_once",)

    class Lying(MemoryTransfer):
        __slots__ = ()

        def _call(self, callback):
            super()._call(callback)
            super()._call(callback)

    transfer_type = Lying


class NeverCallsBack(Liar):
    caught_by = ("test_callbacks_are_called_once", "test_late_callback_is_called_in_this_thread")

    class Lying(MemoryTransfer):
        __slots__ = ()

        def _call(self, callback):
            pass

    transfer_type = Lying


class CallbackBreaksIt(Liar):
    caught_by = ("test_callback_that_raises_breaks_nothing",)

    class Lying(MemoryTransfer):
        __slots__ = ()

        def _call(self, callback):
            callback(self)

    transfer_type = Lying


class ForgetsToDetach(Liar):
    caught_by = ("test_detached_memory_is_an_error", "test_against_model")

    class Lying(MemoryChannel):
        def detach(self, memory_id):
            pass

    channel_type = Lying


class PostsWhenClosed(Liar):
    caught_by = ("test_post_on_a_closed_channel", "test_transport_close_settles_and_closes_channels")

    class Lying(MemoryChannel):
        def close(self):
            pass

    channel_type = Lying


class RaisesAnyException(Liar):
    caught_by = ("test_malformed_card_is_an_error",)

    def connect(self, card, timeout, session):
        struct.unpack("<24s", card)
        return super().connect(card, timeout, session)


class BelievesAnyDescription(Liar):
    caught_by = ("test_malformed_description_is_an_error",)

    class Lying(MemoryChannel):
        def attach(self, memory_id, region, description):
            try:
                super().attach(memory_id, region, description)
            except BrokenError:
                self._attached[memory_id] = b""

    channel_type = Lying


class DoesNotSayWhoseErrorItIs(Liar):
    caught_by = ("test_unknown_memory_is_an_error", "test_malformed_card_is_an_error")

    def _broken(self, message, operation, index=None):
        return BrokenError(message, operation=operation)


class CardGrows(Liar):
    caught_by = ("test_hundred_regions",)

    def card(self):
        return super().card() + bytes(64 * len(self._registered))


class AlignsNothing(Liar):
    caught_by = ("test_allocation_is_aligned",)

    def allocate(self, size, kind, alignment, options=None):
        whole = super().allocate(size + 1, kind, alignment, options)
        return Allocation(whole.address + 1, size, kind, whole.close)


class TakesAnySetting(Liar):
    caught_by = ("test_unknown_setting_is_refused",)

    def open(self, settings):
        super().open({})


LIARS = Liar.__subclasses__()

GENERATED = """\
import importlib.util
import pytest
from cachefw.testing import TransportTests

spec = importlib.util.spec_from_file_location("liars", {path!r})
liars = importlib.util.module_from_spec(spec)
spec.loader.exec_module(liars)

def kit(liar):
    class Kit(TransportTests):
        @pytest.fixture
        def transport_info(self):
            return liar.info_named(liar.__name__.lower(), liar.offers)
    return Kit

for liar in liars.LIARS:
    globals()["Test" + liar.__name__] = kit(liar)
"""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """What the kit says of every liar: the tests that failed, by the liar's name and without parameters."""
    folder = tmp_path_factory.mktemp("liars")
    (folder / "test_liars.py").write_text(GENERATED.format(path=__file__))
    (folder / "pytest.ini").write_text("[pytest]\n")
    tests = [f"test_liars.py::Test{liar.__name__}::{name}" for liar in LIARS for name in liar.caught_by]
    search = [str(Path(cachefw.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=line", "--junitxml=report.xml", *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search), "CACHEFW_TESTING_TIMEOUT": "0.5", "CI": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    failed: dict[str, set[str]] = {}
    for case in ElementTree.parse(folder / "report.xml").iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            name = case.get("classname", "").rpartition(".Test")[2]
            failed.setdefault(name, set()).add(case.get("name", "").partition("[")[0])
    return failed


@pytest.mark.parametrize("liar", LIARS, ids=lambda liar: liar.__name__)
def test_lie_is_found(verdicts, liar):
    assert verdicts.get(liar.__name__, set()) == set(liar.caught_by)


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
