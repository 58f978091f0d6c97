"""The fixtures of the kit: three that an author may override, and those that the tests use."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest

from cachefw.memory import MemoryKind
from cachefw.testing._bench import Bench, KitMemory, MakeMemory, Piece, make_transport, need
from cachefw.testing._usage import Usage
from cachefw.testing.plugin import PROPERTY
from cachefw.transport import Capability, Operation, Transport, TransportInfo

__all__ = ["Fixtures"]

#: Seconds after which a test is stopped.
LIMIT = 100.0


class Fixtures:
    """Base of every group of tests."""

    _warm: ClassVar[set[str]] = set()

    @pytest.fixture
    def transport_info(self) -> TransportInfo:
        """What the plugin yields. To be overridden."""
        raise NotImplementedError("override the fixture `transport_info` so that it returns the plugin's TransportInfo")

    @pytest.fixture
    def transport_settings(self) -> Mapping[str, Any]:
        """The settings to open it with. May be overridden."""
        return {}

    @pytest.fixture
    def make_memory(self) -> MakeMemory:
        """How to get memory of one of the transport's kinds. May be overridden.

        The default is the transport's own `Transport.allocate`, or ordinary memory where that is not offered. Memory
        that is no host memory needs a `KitMemory` of its own.
        """

        def make(transport: Transport, size: int, kind: MemoryKind) -> KitMemory:
            if Capability.ALLOCATE in transport.info.capabilities and kind is not MemoryKind.DEVICE:
                return KitMemory.allocated(transport.allocate(size, kind, 1))
            if kind is not MemoryKind.HOST:
                pytest.skip(f"the kit cannot make or see {kind}: override the fixture `make_memory`")
            return KitMemory.ordinary(size)

        return make

    @pytest.fixture(autouse=True)
    def _stopped_when_it_hangs(self) -> Iterator[None]:
        """A test that hangs where Python can be interrupted fails; elsewhere ``faulthandler_timeout`` ends the run."""
        # Somebody else's timer, such as that of a timeout plugin, does the same.
        if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
            yield
            return

        def stop(signum: int, frame: object) -> None:
            raise TimeoutError(f"the test hangs: not done after {LIMIT:.0f} s")

        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, LIMIT)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @pytest.fixture(autouse=True)
    def _reported(self, request: pytest.FixtureRequest, transport_info: TransportInfo) -> None:
        """Tells the pytest plugin whose test this is, for the summary."""
        kit = sum(name.startswith("test_") for name in dir(type(self)))
        request.node.user_properties.append((PROPERTY, f"{transport_info.name} {kit}"))

    @pytest.fixture(autouse=True)
    def _leaves_nothing_behind(
        self,
        _reported: None,
        _stopped_when_it_hangs: None,
        transport_info: TransportInfo,
        transport_settings: Mapping[str, Any],
        make_memory: MakeMemory,
    ) -> Iterator[None]:
        """After each test the process holds as many descriptors, threads and mappings as before."""
        if transport_info.name not in self._warm:
            # What a runtime takes once, at its first use, and keeps for the process is no leak.
            self._warm.add(transport_info.name)
            with contextlib.suppress(Exception):  # the tests will report it
                self._use_once(Bench(transport_info, transport_settings, make_memory))
        before = Usage.now()
        yield
        leaked = before.leaked()
        assert not leaked, f"left behind: {'; '.join(leaked)}"

    @staticmethod
    def _use_once(bench: Bench) -> None:
        try:
            bench.open()
            piece = Piece(bench.local(64), 0, bench.remote(64), 0, 64)
            for operation in bench.operations:
                bench.move(operation, [piece])
        finally:
            bench.close()

    @pytest.fixture
    def bench(
        self, transport_info: TransportInfo, transport_settings: Mapping[str, Any], make_memory: MakeMemory
    ) -> Iterator[Bench]:
        """Two open transports."""
        bench = Bench(transport_info, transport_settings, make_memory)
        try:
            bench.open()
            yield bench
        finally:
            bench.close()

    @pytest.fixture
    def transport(self, transport_info: TransportInfo) -> Iterator[Transport]:
        """A transport that is not open."""
        transport = make_transport(transport_info)
        yield transport
        transport.close()

    @pytest.fixture(params=list(Operation), ids=lambda operation: operation.value)
    def operation(self, request: pytest.FixtureRequest, transport_info: TransportInfo) -> Operation:
        """Each operation that is offered."""
        operation: Operation = request.param
        need(transport_info, Capability[operation.name])
        return operation

    @pytest.fixture
    def any_operation(self, transport_info: TransportInfo) -> Operation:
        """One operation that is offered, for what does not depend on the direction."""
        for operation in Operation:
            if Capability[operation.name] in transport_info.capabilities:
                return operation
        pytest.skip(f"transport {transport_info.name!r} does not offer Capability.READ or Capability.WRITE")
