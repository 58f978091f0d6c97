"""Tests: what is refused, and that a refusal harms nothing else."""

from __future__ import annotations

import pytest

from cachefw.errors import BrokenError, CacheError
from cachefw.testing._bench import (
    Bench,
    KitMemory,
    Piece,
    Place,
    check_error,
    need,
    noise,
    refused,
    same,
    settle,
)
from cachefw.testing._fixtures import Fixtures
from cachefw.testing._transfers import check_moves
from cachefw.testing.sessions import sessions
from cachefw.transport import Capability, Operation

__all__ = ["BatchErrorTests", "MalformedTests"]

#: An id that the kit never attaches.
NOBODY = 4_242_424


class BatchErrorTests(Fixtures):
    """Batches that name memory which is not there."""

    def test_unknown_memory_is_an_error(self, bench: Bench, operation: Operation) -> None:
        """A batch with memory that was never attached moves nothing, and the error names the memory."""
        local, remote = bench.local(4096), bench.remote(4096)
        _ = bench.channel
        stranger = Place(remote.memory, remote.transport, remote.registered, NOBODY)
        self._check_refused(bench, operation, local, stranger)
        check_moves(bench, operation, local, remote)

    def test_detached_memory_is_an_error(self, bench: Bench, operation: Operation) -> None:
        """A batch with memory that was detached moves nothing, and the error names the memory."""
        need(bench.info, Capability.LATE_REGISTRATION)
        local, remote, other = bench.local(4096), bench.remote(4096), bench.remote(4096)
        check_moves(bench, operation, local, remote)
        bench.detach(remote)
        self._check_refused(bench, operation, local, remote)
        check_moves(bench, operation, local, other)

    def test_detach_of_unknown_memory_does_nothing(self, bench: Bench, any_operation: Operation) -> None:
        """`detach` takes an id that it does not know, again and again."""
        local, remote = bench.local(4096), bench.remote(4096)
        bench.channel.detach(NOBODY)
        bench.channel.detach(NOBODY)
        check_moves(bench, any_operation, local, remote)

    @staticmethod
    def _check_refused(bench: Bench, operation: Operation, local: Place, missing: Place) -> None:
        was = local.fill(1) + missing.fill(2)
        error: CacheError | None
        # Early is better, but a runtime may find out only when it moves.
        try:
            error = settle(bench.post(operation, [Piece(local, 64, missing, 64, 64)])).error
        except CacheError as refusal:
            error = refusal
        check_error(error, bench.info, CacheError, naming=str(missing.memory_id))
        same(local.read() + missing.read(), was, "a refused batch has moved bytes")


def _malformed(real: bytes) -> dict[str, list[bytes]]:
    sizes = [1, 8, 64, len(real), 300, 4096]
    return {
        "empty": [b""],
        "random": [noise(size, seed) for seed in range(5) for size in sizes],
        "zeros": [bytes(len(real)), bytes(4096)],
        "truncated": [real[:length] for length in sorted({1, len(real) // 4, len(real) // 2, len(real) - 1})],
        "oversize": [real + bytes(2**20), noise(2**20)],
    }


HOW = list(_malformed(b"any"))


class MalformedTests(Fixtures):
    """What comes from a peer may be anything."""

    @pytest.mark.parametrize("how", HOW)
    def test_malformed_card_is_an_error(self, bench: Bench, how: str) -> None:
        """A card that is none is a `BrokenError`, and the transport goes on working."""
        for card in _malformed(bench.target.card())[how]:
            with refused(bench.info, BrokenError):
                bench.initiator.connect(card, 5.0, sessions()[0])
        bench.connect().close()

    @pytest.mark.parametrize("how", HOW)
    def test_malformed_description_is_an_error(self, bench: Bench, how: str, any_operation: Operation) -> None:
        """A description that is none is a `BrokenError`, and other memory is not affected."""
        local, remote, bad = bench.local(4096), bench.remote(4096), KitMemory.ordinary(4096)
        channel = bench.channel
        for number, description in enumerate(_malformed(bench.target.describe(remote.registered))[how]):
            with refused(bench.info, BrokenError):
                channel.attach(NOBODY + number, bad.region, description)
        check_moves(bench, any_operation, local, remote)
