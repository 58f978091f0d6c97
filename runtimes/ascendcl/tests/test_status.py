"""Numbers, names, texts and classes of failures."""

from __future__ import annotations

import pickle
import threading

import cachefw_ascendcl as acl
import pytest
from cachefw_ascendcl import simulator

from cachefw.errors import (
    BrokenError,
    CacheError,
    ClosedError,
    OutOfMemoryError,
    RequestError,
    TransferTimeout,
    TransportUnavailable,
    UnsupportedOperation,
)

CLASSES = {
    100000: RequestError,
    100001: BrokenError,
    100039: TransportUnavailable,
    107000: RequestError,
    107001: RequestError,
    107002: BrokenError,
    107019: TransferTimeout,
    200000: OutOfMemoryError,
    200001: UnsupportedOperation,
    200006: UnsupportedOperation,
    207000: UnsupportedOperation,
    207001: OutOfMemoryError,
    207004: TransportUnavailable,
    207005: BrokenError,
    207006: BrokenError,
    207018: OutOfMemoryError,
    500000: BrokenError,
    507022: BrokenError,
    507046: TransferTimeout,
    507047: TransferTimeout,
    507053: BrokenError,
    507056: BrokenError,
    507057: BrokenError,
    507899: BrokenError,
    507910: RequestError,
    507911: RequestError,
    acl.lib.CFW_ACL_MISSING: UnsupportedOperation,
    acl.lib.CFW_ACL_CLOSED: ClosedError,
}


def test_zero_is_no_error() -> None:
    acl.check(0, "aclInit")


@pytest.mark.parametrize(("status", "family"), CLASSES.items())
def test_class_of_a_code(status: int, family: type[CacheError]) -> None:
    with pytest.raises(family) as caught:
        acl.check(status, "aclrtSomething", size=7)
    error = caught.value
    assert (error.status, error.operation, error.detail) == (status, "aclrtSomething", None)
    assert error.facts["name"] == acl.name_of(status)
    assert error.facts["size"] == 7
    assert str(error).startswith("aclrtSomething: ")
    assert f"({status}, {acl.name_of(status)})" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.status, again.facts) == (type(error), error.status, error.facts)


def test_every_declared_code_is_explained() -> None:
    declared = {name: getattr(acl.lib, name) for name in dir(acl.lib) if name.startswith("ACL_ERROR_")}
    assert len(declared) > 35
    for name, number in declared.items():
        assert acl.name_of(number) == name


def test_unknown_codes_keep_number_and_text() -> None:
    error = acl.status_error(777777, "aclrtMalloc", detail="E12345: odd")
    assert type(error) is BrokenError
    assert (error.status, error.detail) == (777777, "E12345: odd")
    assert str(error) == "aclrtMalloc: AscendCL failed (777777, an unknown code): E12345: odd"


def test_wrong_arguments_are_value_errors_too() -> None:
    with pytest.raises(ValueError, match="507910"):
        acl.check(507910, "aclrtHostRegister")


def test_timeouts_are_not_settled() -> None:
    error = acl.status_error(507046, "aclrtSynchronizeStreamWithTimeout")
    assert isinstance(error, TransferTimeout)
    assert not error.settled


def test_long_texts_are_cut_only_in_the_message() -> None:
    error = acl.status_error(507899, "aclrtMalloc", detail="x" * 5000)
    assert error.detail is not None
    assert len(error.detail) == 5000
    assert len(str(error)) < 500


def test_vendor_text_is_told_and_taken(fake_device: acl.Device) -> None:
    simulator.fail("aclrtMallocAlign32", 207001)
    with pytest.raises(OutOfMemoryError) as caught:
        fake_device.allocate(2 << 20)
    assert caught.value.detail == "EE9999: injected\n  by the test"
    assert str(caught.value).endswith("(207001, ACL_ERROR_RT_MEMORY_ALLOCATION): EE9999: injected by the test")
    assert caught.value.facts["size"] == 2 << 20
    assert acl.recent_message() is None


def test_threads_without_context_leave_no_text_behind(fake_device: acl.Device) -> None:
    texts = []

    def work() -> None:
        with acl.bound(fake_device):
            texts.append(acl.recent_message())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert texts == [None]
