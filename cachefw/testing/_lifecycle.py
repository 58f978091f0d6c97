"""Tests: probing, opening, closing, again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachefw.errors import ClosedError, RequestError
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.testing._bench import Bench, MakeMemory, make_transport, refused, same
from cachefw.testing._fixtures import Fixtures
from cachefw.testing._usage import Usage
from cachefw.transport import CONTRACT_VERSION, Transport, TransportInfo


class LifecycleTests(Fixtures):
    """From the factory to the last close."""

    def test_info_is_of_this_contract(self, transport_info: TransportInfo) -> None:
        """The plugin was written against the contract that is tested here."""
        assert transport_info.contract == CONTRACT_VERSION

    def test_factory_makes_a_new_transport_each_time(self, transport_info: TransportInfo) -> None:
        """The factory takes nothing and gives a `Transport` of its own to each caller."""
        first, second = transport_info.factory(), transport_info.factory()
        assert isinstance(first, Transport)
        assert first is not second

    def test_probe_answers_the_same_twice(self, transport: Transport) -> None:
        """`probe` may be asked any number of times."""
        assert transport.probe() is None
        assert transport.probe() is None

    def test_probe_takes_nothing(self, transport: Transport) -> None:
        """`probe` takes no descriptor, thread or mapping."""
        before = Usage.now()
        transport.probe()
        leaked = before.leaked()
        assert not leaked, f"probe() took {leaked}"

    def test_remark_is_text(self, transport: Transport) -> None:
        """What reports say beside the name is text, and "" when there is nothing to say."""
        assert transport.probe() is None
        assert isinstance(transport.remark, str)

    def test_transport_that_is_not_open_registers_nothing(self, transport: Transport) -> None:
        """Before `open`, registering is a `ClosedError`."""
        kind = next(iter(transport.info.kinds))
        with refused(transport.info, ClosedError):
            transport.register(MemoryRegion(2**21, 4096, kind, device=0 if kind is MemoryKind.DEVICE else -1))

    def test_unknown_setting_is_refused(
        self, transport: Transport, transport_settings: Mapping[str, Any], transport_info: TransportInfo
    ) -> None:
        """`open` refuses a setting that it does not know, by name."""
        with refused(transport_info, RequestError, naming="no_such_setting"):
            transport.open({**transport_settings, "no_such_setting": 1})

    def test_close_without_open(self, transport: Transport) -> None:
        """A transport that was never opened can be closed."""
        transport.close()

    def test_close_twice(self, transport: Transport, transport_settings: Mapping[str, Any]) -> None:
        """`close` may be called again and does nothing then."""
        transport.open(transport_settings)
        transport.close()
        transport.close()

    def test_another_opens_after_close(self, transport_info: TransportInfo, bench: Bench) -> None:
        """A closed transport does not stand in the way of a new one."""
        for _ in range(3):
            bench.close_transport(bench.open_transport())

    def test_several_are_open_at_once(self, bench: Bench) -> None:
        """Transports of one process do not disturb each other, and each has a card of its own."""
        cards = {bench.initiator.card(), bench.target.card(), bench.open_transport().card()}
        assert len(cards) == 3

    def test_closing_one_leaves_the_others_open(self, bench: Bench) -> None:
        """What a transport gives back is its own."""
        third = bench.open_transport()
        place = bench.remote(4096)
        bench.close_transport(third)
        assert bench.target.describe(place.registered)
        assert bench.connect() is not None

    def test_twenty_rounds_leak_nothing(
        self, transport_info: TransportInfo, transport_settings: Mapping[str, Any], make_memory: MakeMemory
    ) -> None:
        """Opened, used and closed twenty times, nothing is left."""
        self._use_once(Bench(transport_info, transport_settings, make_memory))
        before = Usage.now()
        for _ in range(20):
            self._use_once(Bench(transport_info, transport_settings, make_memory))
        leaked = before.leaked()
        assert not leaked, f"20 rounds left {leaked}"

    def test_close_gives_back_what_is_registered(self, bench: Bench) -> None:
        """Closing with registered memory leaves the memory as it was, and takes no error."""
        memory = bench.memory(4096, make := bench.open_transport())
        memory.write(b"x" * 4096)
        make.register(memory.region)
        bench.close_transport(make)
        same(memory.read(), b"x" * 4096)

    def test_settings_are_not_kept(self, transport_info: TransportInfo, transport_settings: Mapping[str, Any]) -> None:
        """`open` does not change the mapping that it is given."""
        settings = dict(transport_settings)
        transport = make_transport(transport_info)
        transport.open(settings)
        transport.close()
        assert settings == dict(transport_settings)
