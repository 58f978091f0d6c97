"""Tests: a state machine that compares the transport with a model in plain Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import hypothesis
import pytest
from hypothesis import stateful
from hypothesis import strategies as st

from cachefw.errors import CacheError
from cachefw.testing._bench import Bench, MakeMemory, Piece, Place, make_transport, same, settle
from cachefw.testing._fixtures import Fixtures
from cachefw.transport import Capability, Operation, TransportInfo

__all__ = ["MachineTests", "TransportMachine"]

SIZE = 1024
#: Regions at each end that are registered at once.
MOST = 4

_SETTINGS = hypothesis.settings(
    max_examples=30,
    stateful_step_count=20,
    deadline=None,
    derandomize="CI" in os.environ,
    database=None,
    # Not `explain`, which takes long and points at the kit's own lines.
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink],
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
)


class TransportMachine(stateful.RuleBasedStateMachine):
    """Registers, attaches and moves at random; after each move the memory must hold what the model holds.

    Where `Capability.LATE_REGISTRATION` is not offered, the memory is that of the start.
    """

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        self.late = Capability.LATE_REGISTRATION in bench.info.capabilities
        self.local: list[Place] = []
        self.remote: list[Place] = []
        self.attached: set[Place] = set()
        self.model: dict[Place, bytearray] = {}
        bench.open()

    def _add(self, place: Place, places: list[Place]) -> None:
        self.model[place] = bytearray(place.fill(len(self.model) + 10 * (place.memory_id or 0)))
        places.append(place)

    @stateful.initialize()
    def start(self) -> None:
        """Two regions at each end, and a channel."""
        for _ in range(2):
            self._add(self.bench.local(SIZE), self.local)
            self._add(self.bench.remote(SIZE), self.remote)
        self.attached.update(self.remote)
        _ = self.bench.channel

    @stateful.precondition(lambda self: self.late and len(self.local) < MOST)
    @stateful.rule()
    def register_local(self) -> None:
        """Register more memory in the initiator."""
        self._add(self.bench.local(SIZE), self.local)

    @stateful.precondition(lambda self: self.late and len(self.remote) < MOST)
    @stateful.rule()
    def register_remote(self) -> None:
        """Register more memory in the target, and attach it."""
        self._add(self.bench.remote(SIZE), self.remote)
        self.attached.add(self.remote[-1])

    @stateful.precondition(lambda self: self.late)
    @stateful.rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        """Give a region back, detached first; each end keeps one."""
        places = data.draw(st.sampled_from([self.local, self.remote]))
        if len(places) > 1:
            place = places.pop(data.draw(st.integers(0, len(places) - 1)))
            if place in self.attached:
                self.bench.detach(place)
                self.attached.remove(place)
            self.bench.unregister(place)
            same(place.read(), self.model.pop(place))

    @stateful.precondition(lambda self: self.late)
    @stateful.rule(data=st.data())
    def detach_or_attach(self, data: st.DataObject) -> None:
        """Withdraw a region that is attached, or attach it again."""
        place = data.draw(st.sampled_from(self.remote))
        if place in self.attached:
            self.bench.detach(place)
            self.attached.remove(place)
        else:
            self.bench.attach(place)
            self.attached.add(place)

    @stateful.precondition(lambda self: bool(self.bench.operations))
    @stateful.rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        """Read or write pieces of one local and one remote region; memory that is not attached is refused."""
        operation = data.draw(st.sampled_from(self.bench.operations))
        local, remote = data.draw(st.sampled_from(self.local)), data.draw(st.sampled_from(self.remote))
        pieces = self._pieces(data, local, remote)
        if remote in self.attached:
            self.bench.move(operation, pieces)
            self._note(pieces, operation)
        else:
            error: CacheError | None
            try:
                error = settle(self.bench.post(operation, pieces)).error
            except CacheError as refusal:
                error = refusal
            assert error is not None, "memory that is not attached was moved"
        self._compare()

    @stateful.precondition(lambda self: Capability.COPY in self.bench.info.capabilities and len(self.local) > 1)
    @stateful.rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        """Copy pieces from one local region to another."""
        to, start = data.draw(st.permutations(self.local))[:2]
        pieces = self._pieces(data, to, start)
        self.bench.initiator.copy(self.bench.batch(pieces))
        self._note(pieces, Operation.READ)
        self._compare()

    @staticmethod
    def _pieces(data: st.DataObject, local: Place, remote: Place) -> list[Piece]:
        """Pieces that lie side by side, at each end in an order of its own."""
        lengths = data.draw(st.lists(st.integers(1, SIZE // 8), min_size=1, max_size=8))
        order = data.draw(st.permutations(range(len(lengths))))
        at, there = (data.draw(st.integers(0, SIZE - sum(lengths))) for _ in range(2))
        pieces = []
        for index in order:
            before = sum(lengths[:index])
            pieces.append(Piece(local, at, remote, there + before, lengths[index]))
            at += lengths[index]
        return pieces

    def _note(self, pieces: list[Piece], operation: Operation) -> None:
        for piece in pieces:
            local, remote = self.model[piece.local], self.model[piece.remote]
            here, far = slice(piece.at, piece.at + piece.length), slice(piece.there, piece.there + piece.length)
            if operation is Operation.READ:
                local[here] = remote[far]
            else:
                remote[far] = local[here]

    def _compare(self) -> None:
        for place, expected in self.model.items():
            same(place.read(), expected)

    def teardown(self) -> None:
        """Close everything."""
        self.bench.close()


class MachineTests(Fixtures):
    """Chance finds what nobody thought of."""

    def test_against_model(
        self, transport_info: TransportInfo, transport_settings: Mapping[str, Any], make_memory: MakeMemory
    ) -> None:
        """Whatever the order of calls, memory holds what a dict of bytearrays holds."""
        make_transport(transport_info)
        if not transport_info.capabilities & (Capability.READ | Capability.WRITE | Capability.COPY):
            pytest.skip(f"transport {transport_info.name!r} does not offer Capability.READ, WRITE or COPY")

        class Machine(TransportMachine):
            def __init__(self) -> None:
                super().__init__(Bench(transport_info, transport_settings, make_memory))

        stateful.run_state_machine_as_test(Machine, settings=_SETTINGS)
