"""Batches of copies: one call, the first failure by index, contexts given back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import cachefw_ascendcl as acl
import numpy as np
import pytest
from cachefw_ascendcl import CopyKind, simulator

from cachefw.errors import BrokenError, CacheError, ClosedError, OutOfMemoryError, RequestError

ITEMS, SIZE = 16, 64


class Plan:
    """Blocks copied in reverse order, between two arrays."""

    def __init__(self, items: int = ITEMS) -> None:
        self.source = np.random.default_rng(1).integers(0, 256, (items, SIZE), dtype=np.uint8)
        self.target = np.zeros((items, SIZE), dtype=np.uint8)
        order = np.arange(items, dtype=np.uint64)
        self.src = np.uint64(self.source.ctypes.data) + order[::-1] * np.uint64(SIZE)
        self.dst = np.uint64(self.target.ctypes.data) + order * np.uint64(SIZE)
        self.length = np.full(items, SIZE, dtype=np.uint64)

    def copies(self, stream: acl.Stream, kind: CopyKind, **options: object) -> acl.Copies:
        return acl.Copies(stream, self.dst, self.src, self.length, kind, **options)  # type: ignore[arg-type]

    def posted(self, stream: acl.Stream, kind: CopyKind, **options: object) -> acl.Issued:
        copies = self.copies(stream, kind, **options)
        copies.post()
        return copies.issued

    def check(self, done: int = ITEMS) -> None:
        np.testing.assert_array_equal(self.target[:done], self.source[::-1][:done])
        assert not self.target[done:].any()


@pytest.fixture
def plan() -> Plan:
    return Plan()


@pytest.mark.parametrize("kind", [CopyKind.DEVICE_TO_DEVICE, CopyKind.DEFAULT])
def test_one_by_one(fake_device: acl.Device, plan: Plan, kind: CopyKind) -> None:
    count = simulator.calls("aclrtMemcpyAsync")
    with fake_device.stream() as stream:
        copies = plan.copies(stream, kind)
        assert len(copies) == ITEMS
        copies.post()
        assert copies.issued == acl.Issued(items=ITEMS, batches=0)
    plan.check()
    assert simulator.calls("aclrtMemcpyAsync") == count + ITEMS


@pytest.mark.parametrize("kind", [CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST])
def test_together(fake_device: acl.Device, plan: Plan, kind: CopyKind) -> None:
    counts = simulator.calls("aclrtMemcpyBatchAsync"), simulator.calls("aclrtMemcpyAsync")
    with fake_device.stream() as stream:
        assert plan.posted(stream, kind) == acl.Issued(items=ITEMS, batches=1)
    plan.check()
    assert (simulator.calls("aclrtMemcpyBatchAsync"), simulator.calls("aclrtMemcpyAsync")) == (counts[0] + 1, counts[1])


def test_asked_not_to_batch(fake_device: acl.Device, plan: Plan) -> None:
    with fake_device.stream() as stream:
        issued = plan.posted(stream, CopyKind.HOST_TO_DEVICE, batched=False)
    assert issued == acl.Issued(items=ITEMS, batches=0)
    plan.check()


def test_library_without_batches(build: Callable[..., Path], plan: Plan) -> None:
    path = build("libascendcl.so", "-DaclrtMemcpyBatchAsync=hidden")
    with acl.Runtime({acl.VARIABLE: str(path)}) as runtime, runtime.device() as device, device.stream() as stream:
        assert plan.posted(stream, CopyKind.HOST_TO_DEVICE).batches == 0
    plan.check()


def test_device_without_batches(fake_device: acl.Device, plan: Plan) -> None:
    simulator.fail("aclrtMemcpyBatchAsync", 207000)
    with fake_device.stream() as stream:
        assert plan.posted(stream, CopyKind.HOST_TO_DEVICE) == acl.Issued(items=ITEMS, batches=0)
    plan.check()


def test_nothing_to_copy(fake_device: acl.Device) -> None:
    with fake_device.stream() as stream:
        assert Plan(0).posted(stream, CopyKind.DEVICE_TO_DEVICE) == acl.Issued(items=0, batches=0)


@pytest.mark.parametrize("at", [0, 5, ITEMS - 1])
def test_first_failure_by_index(fake_device: acl.Device, plan: Plan, at: int) -> None:
    simulator.fail("aclrtMemcpyAsync", 207001, at + 1)
    records = simulator.calls("aclrtRecordEvent")
    with fake_device.stream() as stream, fake_device.event() as event:
        copies = plan.copies(stream, CopyKind.DEVICE_TO_DEVICE, event=event)
        with pytest.raises(OutOfMemoryError, match=f"aclrtMemcpyAsync at item {at} of {ITEMS}: ") as caught:
            copies.post()
        assert caught.value.status == 207001
        assert caught.value.detail
        assert caught.value.facts["failed"] == (at,)
        assert (caught.value.facts["issued"], caught.value.facts["event"]) == (at, 0)
        assert simulator.calls("aclrtRecordEvent") == records + 1, "what was issued can be waited for"
        plan.check(at)
        copies.post()
        plan.check()


def test_failure_of_a_batch_by_index(fake_device: acl.Device, plan: Plan) -> None:
    plan.src[3] = 0
    with (
        fake_device.stream() as stream,
        pytest.raises(RequestError, match="aclrtMemcpyBatchAsync at item 3 of 16") as caught,
    ):
        plan.copies(stream, CopyKind.HOST_TO_DEVICE).post()
    assert caught.value.facts["failed"] == (3,)
    assert caught.value.facts["issued"] == ITEMS, "nobody says how many of the others move"


def test_failure_of_a_batch_that_is_nobodys(fake_device: acl.Device, plan: Plan) -> None:
    simulator.fail("aclrtMemcpyBatchAsync", 507899)
    with fake_device.stream() as stream, pytest.raises(BrokenError) as caught:
        plan.copies(stream, CopyKind.HOST_TO_DEVICE).post()
    assert caught.value.facts["failed"] == ()


def test_failure_of_the_event(fake_device: acl.Device, plan: Plan) -> None:
    simulator.fail("aclrtRecordEvent", 507000)
    with fake_device.stream() as stream, fake_device.event() as event, pytest.raises(BrokenError) as caught:
        plan.copies(stream, CopyKind.DEVICE_TO_DEVICE, event=event).post()
    assert (caught.value.facts["event"], caught.value.facts["issued"]) == (507000, ITEMS)
    plan.check()


def test_any_thread_may_post(fake_device: acl.Device, plan: Plan) -> None:
    with fake_device.stream() as stream:
        copies = plan.copies(stream, CopyKind.DEVICE_TO_DEVICE)
        thread = threading.Thread(target=copies.post)
        thread.start()
        thread.join()
    plan.check()


def test_context_is_given_back(fake: acl.Runtime, fake_device: acl.Device, plan: Plan) -> None:
    index_p = acl.ffi.new("int32_t *")
    with fake.device(3) as other, fake_device.stream() as stream:
        acl.check(acl.lib.cfw_aclrtSetCurrentContext(other.context), "aclrtSetCurrentContext")
        plan.copies(stream, CopyKind.DEVICE_TO_DEVICE).post()
        acl.check(acl.lib.cfw_aclrtGetDevice(index_p), "aclrtGetDevice")
        assert index_p[0] == 3
        simulator.fail("aclrtMemcpyAsync", 507899, 2)
        with pytest.raises(CacheError):
            plan.copies(stream, CopyKind.DEVICE_TO_DEVICE).post()
        acl.check(acl.lib.cfw_aclrtGetDevice(index_p), "aclrtGetDevice")
        assert index_p[0] == 3


def test_closed_stream(fake_device: acl.Device, plan: Plan) -> None:
    with fake_device.stream() as stream:
        copies = plan.copies(stream, CopyKind.DEVICE_TO_DEVICE)
    with pytest.raises(ClosedError, match="this stream is closed"):
        copies.post()


def test_lists_are_kept_alive(fake_device: acl.Device, plan: Plan) -> None:
    with fake_device.stream() as stream:
        copies = acl.Copies(stream, plan.dst.copy(), plan.src.copy(), plan.length.copy(), CopyKind.DEVICE_TO_DEVICE)
        copies.post()
    plan.check()


@pytest.mark.parametrize("bad", [np.zeros(16, np.int64), np.zeros(16, np.uint32), np.zeros((4, 4), np.uint64), b"x"])
def test_wrong_lists(fake_device: acl.Device, plan: Plan, bad: object) -> None:
    with fake_device.stream() as stream, pytest.raises(TypeError, match="dst is a list of"):
        acl.Copies(stream, bad, plan.src, plan.length, CopyKind.DEVICE_TO_DEVICE)


def test_lists_of_different_lengths(fake_device: acl.Device, plan: Plan) -> None:
    with fake_device.stream() as stream, pytest.raises(ValueError, match="have 16, 15, 16 items"):
        acl.Copies(stream, plan.dst, plan.src[:-1].copy(), plan.length, CopyKind.DEVICE_TO_DEVICE)
