"""Opening and closing a manager: all transports or none, and everything given back whatever fails."""

from __future__ import annotations

import gc
import warnings

import numpy as np
import pytest

from cachefw import (
    CacheDesc,
    CacheManager,
    DataType,
    MemoryKind,
    MemoryRegion,
    OutOfMemoryError,
    Placement,
    RequestError,
    TransportUnavailable,
    UnsupportedOperation,
)


@pytest.fixture
def two(site, make_manager):
    """A manager on two transports, the second of which can be made to fail too."""
    site.install_memory("second")
    return make_manager(["memory", "second"])


def test_transports_are_opened_in_order_all_or_none(site, leaves_nothing):
    site.install_memory()
    site.install_memory("second")
    with CacheManager(["second", "memory"]) as manager:
        assert manager.transports == ("second", "memory")
    with pytest.raises(TransportUnavailable, match="'third' is not installed"):
        CacheManager(["memory", "host", "third"])


def test_a_name_is_no_list_of_names():
    with pytest.raises(TypeError, match="transports must be a list of names, not 'host'") as caught:
        CacheManager("host")
    assert isinstance(caught.value, RequestError)


@pytest.mark.usefixtures("leaves_nothing")
def test_what_cannot_be_set_up_leaves_nothing_open(monkeypatch):
    monkeypatch.setenv("CACHEFW_STRICT", "maybe")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RequestError, match="CACHEFW_STRICT='maybe'"):
            CacheManager(["host"])
        gc.collect()


def test_wrong_arguments_are_python_s_own_error_and_nothing_else():
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        CacheManager(transport=["host"])
    gc.collect()


def test_a_transport_that_fails_to_close_stops_no_other(two, monkeypatch, caplog):
    memory, second = two.transport("memory"), two.transport("second")
    two.register_memory(MemoryRegion(0x1000, 64))
    real = second.close

    def close():
        real()
        raise RuntimeError("stuck")

    monkeypatch.setattr(second, "close", close)
    two.close()
    assert "stuck" in caplog.text
    assert memory._token is None


def test_transports_without_names_are_allowed_and_only_plan_and_count():
    with CacheManager(()) as manager:
        array = np.zeros((2, 64), np.uint8)
        desc = CacheDesc(1, (2, 64), DataType.DT_UINT8, Placement.HOST)
        cache = manager.register_cache(desc, [array.ctypes.data])
        assert manager.memories[0].registered == {}
        manager.unregister_cache(cache.cache_id)


def test_caches_are_a_copy(manager):
    manager.caches[5] = None
    assert manager.caches == {}


def test_allocate_takes_the_first_transport_that_can(two):
    with two.allocate(64) as first, two.allocate(64, transport="second") as second:
        assert len(two.transport("memory")._allocated) == len(two.transport("second")._allocated) == 1
        for allocation in (first, second):
            np.asarray(allocation)[:] = 5
    with pytest.raises(
        UnsupportedOperation, match="no open transport named 'host' allocates host memory; open are mem"
    ):
        two.allocate(64, transport="host")
    with pytest.raises(ValueError, match="has no allocation option 'colour'"):
        two.allocate(64, colour="red")


def test_allocate_says_what_there_is_not_enough_of(make_manager):
    manager = make_manager(settings={"memory": {"limit": 100}})
    with pytest.raises(OutOfMemoryError, match="101 bytes asked for, 100 left of the limit of 100 bytes") as caught:
        manager.allocate(101)
    assert isinstance(caught.value, MemoryError)


def test_allocate_of_a_kind_that_nobody_has(make_manager):
    with pytest.raises(UnsupportedOperation, match="no open transport allocates device memory; open are host"):
        make_manager(["host"]).allocate(64, MemoryKind.DEVICE)


def test_settings_are_the_transport_s_own(make_manager):
    with pytest.raises(ValueError, match="has no setting 'speed'"):
        make_manager(settings={"memory": {"speed": 1}})
