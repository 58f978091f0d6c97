"""Transports that each tell one lie, and the tests of the kit that must find it. Loaded by path, like a stranger's."""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
from typing import ClassVar

import attrs

from cachefw.errors import BrokenError
from cachefw.memory import Allocation, MemoryKind
from cachefw.testing import MemoryTransport
from cachefw.testing.memory import MemoryChannel, MemoryTransfer
from cachefw.transport import Batch, Capability, Reach

ALL = MemoryTransport.info_named().capabilities


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


class FailsWithTheSystem(Liar):
    caught_by = ("test_system_refuses_at_each_call",)

    def register(self, region):
        os.close(os.open(os.devnull, os.O_RDONLY))
        return super().register(region)


class KeepsADescriptorWhenItFails(Liar):
    caught_by = ("test_system_refuses_at_each_call",)

    def register(self, region):
        opened = []
        try:
            opened = [os.open(os.devnull, os.O_RDONLY)]
            opened.append(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            raise self._broken(str(error), "register") from None
        for number in opened:
            os.close(number)
        return super().register(region)


class CallsForEachPiece(Liar):
    caught_by = ("test_post_is_one_native_call_however_many_pieces",)

    class Lib(dict):
        """As a binding made with cffi looks to a profiler."""

    lib = Lib()

    def _move_piece(self, to, start, length):
        self.lib.get(to)
        super()._move_piece(to, start, length)


class ReachesNobody(Liar):
    caught_by = ("test_peer_is_killed",)

    @classmethod
    def info_named(cls, name="memory", capabilities=ALL, kinds=(MemoryKind.HOST,)):
        return attrs.evolve(super().info_named(name, capabilities, kinds), reach=Reach.HOST)


class HasNothingToRemark(Liar):
    caught_by = ("test_remark_is_text",)

    @property
    def remark(self):
        return None


class RegistersWhenItIsNotOpen(Liar):
    caught_by = ("test_transport_that_is_not_open_registers_nothing", "test_closed_transport_registers_nothing")

    def _check_open(self, operation):
        pass


class SwallowsWhatASignalHandlerRaises(Liar):
    caught_by = ("test_what_a_signal_handler_raises_passes_through_a_wait",)

    class Lying(MemoryTransfer):
        __slots__ = ()

        def wait(self, timeout=None):
            while not self._done.is_set():
                with contextlib.suppress(Exception):
                    self._done.wait()
            with contextlib.suppress(Exception):
                time.sleep(0.1)
            return True

    transfer_type = Lying

    def open(self, settings):
        super().open({"background": True})

    def _move_piece(self, to, start, length):
        time.sleep(0.1)
        super()._move_piece(to, start, length)


class WaitsWithALockThatTransfersNeed(Liar):
    caught_by = ("test_waiting_holds_up_nobody_else",)
    needed = threading.Lock()

    class Lying(MemoryTransfer):
        __slots__ = ()

        def wait(self, timeout=None):
            # Without a timeout it is its channel that waits, which must come to an end.
            with self._transport.needed if timeout is not None else contextlib.nullcontext():
                return super().wait(timeout)

    transfer_type = Lying

    def open(self, settings):
        super().open({"background": True})

    def _move_piece(self, to, start, length):
        time.sleep(0.1)
        with self.needed:
            super()._move_piece(to, start, length)


class KeepsToOneThread(Liar):
    caught_by = ("test_four_threads_use_the_cold_calls", "test_eight_threads_register_and_unregister")

    def open(self, settings):
        self.thread = threading.current_thread()
        super().open(settings)

    def describe(self, registered):
        assert threading.current_thread() is self.thread
        return super().describe(registered)


class SaysThatClosingStopsThePeer(Liar):
    caught_by = ("test_closing_stops_the_peer_where_it_says_so",)

    class Lying(MemoryChannel):
        fences = True

        def close(self):
            super().close()
            # Still there for the peer's end.
            self._transport._channels.add(self)

    channel_type = Lying


LIARS = Liar.__subclasses__()
