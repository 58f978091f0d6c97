"""Tests: what a `Transfer` promises, whatever it moves."""

from __future__ import annotations

import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cachefw.errors import BusyError, TransferCancelled
from cachefw.testing._bench import TIMEOUT, Bench, Piece, check_error, need, same, settle
from cachefw.testing._fixtures import Fixtures
from cachefw.transport import Capability, Operation, Transfer

__all__ = ["ContractTests"]

#: Bytes that take long enough in most transports for a transfer to be seen in flight.
LARGE = 16 * 2**20


def _post(bench: Bench, operation: Operation, size: int) -> Transfer:
    return bench.post(operation, [Piece(bench.local(size), 0, bench.remote(size), 0, size)])


class ContractTests(Fixtures):
    """States, waiting, callbacks and cancelling."""

    @pytest.fixture
    def large(self, bench: Bench, any_operation: Operation) -> Transfer:
        """A large transfer, just posted."""
        return _post(bench, any_operation, LARGE)

    def test_settled_never_goes_back(self, large: Transfer) -> None:
        """Once settled, it stays settled, and its error stays what it is."""
        settle(large)
        assert all(large.settled for _ in range(100))
        assert large.error is None
        assert large.error is None
        assert large.wait(0) is True

    def test_wait_without_time(self, large: Transfer) -> None:
        """`wait(0)` says whether it has settled; True is final."""
        if large.wait(0):
            assert large.settled
        settle(large)
        assert large.wait(0) is True

    def test_wait_with_a_timeout(self, large: Transfer) -> None:
        """`wait` with seconds to spare is True, also the second time."""
        assert large.wait(TIMEOUT) is True
        assert large.wait(TIMEOUT) is True

    def test_wait_without_end(self, large: Transfer) -> None:
        """`wait()` returns when it has settled."""
        assert large.wait() is True
        assert large.settled

    def test_error_before_it_has_settled(self, bench: Bench, large: Transfer) -> None:
        """Asking for the error of what still runs is a `BusyError`."""
        if not large.settled:
            try:
                error = large.error
            except BusyError as busy:
                check_error(busy, bench.info, BusyError)
            else:
                # It may have settled between the two questions.
                assert large.settled, f"it still runs, and its error is {error!r} already"
        assert settle(large).error is None

    def test_waiting_holds_up_nobody_else(self, bench: Bench, any_operation: Operation) -> None:
        """While one thread waits for a large transfer, another posts and waits for small ones."""
        local, remote = bench.local(64), bench.remote(64)
        large = _post(bench, any_operation, LARGE)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(large.wait, TIMEOUT)
            for _ in range(20):
                bench.move(any_operation, [Piece(local, 0, remote, 0, 64)])
            assert waiting.result(TIMEOUT) is True

    def test_what_a_signal_handler_raises_passes_through_a_wait(self, large: Transfer) -> None:
        """A handler that raises ends a wait, not the transfer, which settles all the same."""
        if threading.current_thread() is not threading.main_thread():
            pytest.skip("Python handles signals in the main thread alone")

        class Interrupted(Exception):
            pass

        def handle(number: int, frame: object) -> None:
            raise Interrupted

        before = signal.signal(signal.SIGUSR1, handle)
        main = threading.get_ident()
        # A moment later, so that it comes during the wait and not while the thread is started.
        sender = threading.Timer(0.02, signal.pthread_kill, [main, signal.SIGUSR1])

        def wait() -> None:
            sender.start()
            large.wait(TIMEOUT)
            # It may have settled before the signal came, which then comes here.
            sender.join(TIMEOUT)

        try:
            with pytest.raises(Interrupted):
                wait()
        finally:
            sender.join(TIMEOUT)
            signal.signal(signal.SIGUSR1, before)
        assert settle(large).error is None

    def test_several_threads_wait(self, large: Transfer) -> None:
        """Any number of threads may wait for one transfer."""
        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(large.wait, TIMEOUT) for _ in range(4)]:
                assert future.result(TIMEOUT) is True
        assert large.settled

    @pytest.mark.parametrize("size", [64, LARGE])
    def test_callbacks_are_called_once(self, bench: Bench, any_operation: Operation, size: int) -> None:
        """Each callback is called exactly once with the transfer, which has settled by then, early or late added."""
        transfer = _post(bench, any_operation, size)
        calls: list[tuple[str, Transfer, bool]] = []
        called = threading.Event()

        def early(it: Transfer) -> None:
            calls.append(("early", it, it.settled and it.wait(0) and it.error is None))
            called.set()

        transfer.add_done_callback(early)
        settle(transfer)
        assert called.wait(TIMEOUT), "the callback was not called"
        # Nothing of a channel runs any more once it is closed: a second call would have come by then.
        bench.close_channel()
        transfer.add_done_callback(lambda it: calls.append(("late", it, it.settled)))
        assert calls == [("early", transfer, True), ("late", transfer, True)]

    def test_late_callback_is_called_in_this_thread(self, large: Transfer) -> None:
        """A callback that is added to what has settled has been called on return, by the same thread."""
        settle(large)
        threads: list[threading.Thread] = []
        large.add_done_callback(lambda _: threads.append(threading.current_thread()))
        assert threads == [threading.current_thread()]

    @pytest.mark.parametrize("size", [64, LARGE])
    def test_callback_that_raises_breaks_nothing(
        self, bench: Bench, any_operation: Operation, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a callback raises goes to `sys.unraisablehook`; other callbacks and transfers are not concerned."""
        piece = Piece(bench.local(size), 0, bench.remote(size), 0, size)
        unraisable: list[object] = []
        called, noted = threading.Event(), threading.Event()

        def note(arguments: sys.UnraisableHookArgs) -> None:
            unraisable.append(arguments.exc_type)
            noted.set()

        def fail(_: Transfer) -> None:
            raise ZeroDivisionError("on purpose")

        monkeypatch.setattr(sys, "unraisablehook", note)
        transfer = bench.post(any_operation, [piece])
        transfer.add_done_callback(fail)
        transfer.add_done_callback(lambda _: called.set())
        settle(transfer)
        # In whatever order: nobody promised one.
        assert called.wait(TIMEOUT), "the callback beside the one that raised was not called"
        assert noted.wait(TIMEOUT), "what a callback raised was not handed over"
        transfer.add_done_callback(fail)
        assert transfer.error is None
        bench.move(any_operation, [piece])
        bench.close_channel()
        assert unraisable == [ZeroDivisionError, ZeroDivisionError]

    def test_cancelled_transfer_settles(self, bench: Bench, any_operation: Operation) -> None:
        """A cancelled transfer settles, with everything moved or with `TransferCancelled`; the channel goes on."""
        need(bench.info, Capability.CANCEL)
        local, remote = bench.local(LARGE), bench.remote(LARGE)
        pieces = [Piece(local, at, remote, at, 4096) for at in range(0, LARGE, 4096)]
        transfer = bench.post(any_operation, pieces)
        transfer.cancel()
        transfer.cancel()
        error = settle(transfer).error
        if error is not None:
            check_error(error, bench.info, TransferCancelled)
        local.fill(1)
        remote.fill(2)
        bench.move(any_operation, pieces)
        same(local.read(), remote.read())
        transfer.cancel()
        assert transfer.error is error
