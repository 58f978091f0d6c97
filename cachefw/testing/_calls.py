"""Tests: what a post costs, counted in calls and not in time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FrameType, MethodType
from typing import Any

import pytest

from cachefw.testing._bench import Bench, Piece, settle
from cachefw.testing._fixtures import Fixtures
from cachefw.transport import Operation, Prepared, Transfer

__all__ = ["CallTests"]

PIECES = 1000


def _is_native(function: Any) -> bool:
    """Whether a built-in function belongs to a binding made with cffi, whose functions are methods of a library."""
    owner = getattr(function, "__self__", None)
    return isinstance(function, (BuiltinFunctionType, MethodType)) and type(owner).__name__ == "Lib"


def _counted(post: Callable[[Prepared], Transfer], prepared: Prepared) -> tuple[Transfer, list[str], int]:
    """Post, and tell which native functions this thread called, and how many functions of any kind."""
    native: list[str] = []
    calls = 0

    def note(frame: FrameType, event: str, function: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")
        if event == "c_call" and _is_native(function):
            native.append(function.__name__)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        transfer = post(prepared)
    finally:
        sys.setprofile(before)
    return transfer, native, calls


class CallTests(Fixtures):
    """Prepare once, post many times, one native call each."""

    def test_post_is_one_native_call_however_many_pieces(self, bench: Bench, operation: Operation) -> None:
        """`post` calls the native library once, for 1 piece and for 1000.

        Counted for bindings made with cffi. A transport in Python alone has no native calls; one that is bound in
        another way keeps the promise unseen.
        """
        size = 64 * 2 * PIECES
        local, remote = bench.local(size), bench.remote(size)
        counts = {}
        for pieces in (1, PIECES):
            prepared = bench.prepare(operation, [Piece(local, 128 * i, remote, 128 * i, 64) for i in range(pieces)])
            settle(bench.channel.post(prepared))
            transfer, native, _ = _counted(bench.channel.post, prepared)
            assert settle(transfer).error is None
            counts[pieces] = native
        if not any(counts.values()):
            pytest.skip(f"transport {bench.info.name!r} makes no native call that the kit can count")
        assert {pieces: len(native) for pieces, native in counts.items()} == {1: 1, PIECES: 1}, counts
