"""Tests: a capability is offered exactly when it works."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cachefw.errors import UnsupportedOperation
from cachefw.testing._bench import Bench, Piece, check_error, need, same, settle
from cachefw.testing._fixtures import Fixtures
from cachefw.testing._transfers import check_moves
from cachefw.transport import Capability, Operation

__all__ = ["CapabilityTests"]

SIZE = 4096


def _operation(bench: Bench) -> Operation:
    if not bench.operations:
        pytest.skip(f"transport {bench.info.name!r} does not offer Capability.READ or Capability.WRITE")
    return bench.operations[0]


def _read(bench: Bench) -> None:
    check_moves(bench, Operation.READ, bench.local(SIZE), bench.remote(SIZE))


def _write(bench: Bench) -> None:
    check_moves(bench, Operation.WRITE, bench.local(SIZE), bench.remote(SIZE))


def _copy(bench: Bench) -> None:
    to, start = bench.local(SIZE), bench.local(SIZE)
    to.fill(1)
    data = start.fill(2)
    bench.initiator.copy(bench.batch([Piece(to, 0, start, 0, SIZE)]))
    same(to.read(), data)


def _allocate(bench: Bench) -> None:
    bench.initiator.allocate(SIZE, bench.kind, 64).close()


def _identify(bench: Bench) -> None:
    region = bench.local(SIZE).memory.region
    assert bench.initiator.identify(region.address, region.length) is region.kind


def _cancel(bench: Bench) -> None:
    operation = _operation(bench)
    transfer = bench.post(operation, [Piece(bench.local(SIZE), 0, bench.remote(SIZE), 0, SIZE)])
    try:
        transfer.cancel()
    finally:
        settle(transfer)


def _late_registration(bench: Bench) -> None:
    operation = _operation(bench)
    for _ in range(2):
        check_moves(bench, operation, bench.local(SIZE), bench.remote(SIZE))


_USES: dict[Capability, Callable[[Bench], None]] = {
    Capability.READ: _read,
    Capability.WRITE: _write,
    Capability.COPY: _copy,
    Capability.ALLOCATE: _allocate,
    Capability.IDENTIFY: _identify,
    Capability.CANCEL: _cancel,
    Capability.LATE_REGISTRATION: _late_registration,
}


class CapabilityTests(Fixtures):
    """Honesty, both ways."""

    @pytest.fixture(params=list(_USES), ids=lambda capability: capability.name)
    def capability(self, request: pytest.FixtureRequest) -> Capability:
        """Each capability of the contract."""
        capability: Capability = request.param
        return capability

    def test_offered_capability_works(self, bench: Bench, capability: Capability) -> None:
        """What is offered works."""
        need(bench.info, capability)
        _USES[capability](bench)

    def test_capability_not_offered_is_refused(self, bench: Bench, capability: Capability) -> None:
        """What is not offered raises `UnsupportedOperation`, which names the transport and the capability."""
        if capability in bench.info.capabilities:
            pytest.skip(f"transport {bench.info.name!r} offers Capability.{capability.name}")
        with pytest.raises(UnsupportedOperation) as caught:
            _USES[capability](bench)
        assert f"Capability.{capability.name}" in str(caught.value)
        # `Transfer.cancel` as the contract has it does not know the name.
        if capability is not Capability.CANCEL:
            check_error(caught.value, bench.info, naming=repr(bench.info.name))
