"""The core's rules about keys, and about how much may be registered."""

from __future__ import annotations

import pytest

from cachefw import (
    ABSENT_ID,
    BlocksCacheKey,
    CacheDesc,
    CacheKey,
    DataType,
    Limits,
    MemoryRegion,
    Placement,
    RequestError,
)

A = 0x7F00_0000_0000


def desc(num_tensors=1, shape=(2, 64), placement=Placement.DEVICE):
    return CacheDesc(num_tensors, shape, DataType.DT_UINT8, placement)


def names(*keys):
    return [CacheKey(1, req_id=key) for key in keys]


def spaced(count, start=A, step=0x1000):
    return [start + i * step for i in range(count)]


# ---------------------------------------------------------------------- keys


def test_t12_keys_more_than_rows_are_refused(manager, refused):
    found = refused(manager, desc(), [A], names(1, 2, 3)).one("core.keys")
    assert found.message == "3 cache_keys for 2 batch rows"
    assert found.facts == {"keys": 3, "rows": 2}


@pytest.mark.parametrize(
    "keys", [names(1), names(1, 2), names(ABSENT_ID, 7), names(ABSENT_ID, ABSENT_ID), [CacheKey(1, prefix_id=3)]]
)
def test_t12_keys_fewer_than_rows_and_placeholders_are_accepted(manager, keys):
    assert manager.plan(desc(), [A], keys).ok
    assert manager.register_cache(desc(), [A], keys).keys == tuple(keys)


def test_t12_keys_may_leave_the_other_id_absent(manager):
    key = CacheKey(1, req_id=5, prefix_id=ABSENT_ID)
    assert manager.register_cache(desc(), [A], [key]).keys == (key,)


@pytest.mark.parametrize(
    ("key", "words"), [(CacheKey(1, req_id=1, prefix_id=2), "both"), (CacheKey(1), "neither")], ids=["both", "neither"]
)
def test_t12_keys_name_exactly_one_thing(manager, refused, key, words):
    found = refused(manager, desc(), [A], [CacheKey(1, req_id=9), key]).one("core.keys")
    assert f"cache_keys[1] has {words}" in found.message
    assert found.facts == {"key": 1}


def test_t12_keys_are_unique_within_a_call_and_over_calls(manager, refused):
    found = refused(manager, desc(), [A], names(4, 4)).one("core.keys")
    assert "cache_keys[1] and cache_keys[0] are the same key" in found.message
    first = manager.register_cache(desc(), [A], names(4))
    found = refused(manager, desc(), [A + 0x1000], names(3, 4)).one("core.keys")
    assert found.facts == {"key": 1, "cache_id": first.cache_id}
    manager.unregister_cache(first.cache_id)
    manager.register_cache(desc(), [A + 0x1000], names(3, 4))


def test_t12_keys_of_blocks_caches_are_unique_for_each_model(manager, refused):
    manager.register_blocks_cache(desc(), [A], BlocksCacheKey(1, 0))
    manager.register_blocks_cache(desc(), [A + 0x1000], BlocksCacheKey(1, 1))
    assert refused(manager, desc(), [A + 0x2000], BlocksCacheKey(1, 0), blocks=True).rules == ["core.keys"]


@pytest.mark.parametrize("fields", [{"req_id": -1}, {"req_id": 2**64}, {"cluster_id": -1}, {"model_id": 2**64}])
def test_key_numbers_out_of_range_are_refused_when_a_key_is_made(fields):
    with pytest.raises(ValueError, match=r"must lie in 0 \.\.\. 2\^64 - 1") as caught:
        CacheKey(**{"cluster_id": 1, **fields})
    assert isinstance(caught.value, RequestError)


# ---------------------------------------------------------------------- limits


def test_t14_limit_counts_both_calls(manager, refused):
    ones = [manager.register_cache(desc(), [address]) for address in spaced(40)]
    manager.register_blocks_cache(desc(200), spaced(200, A + 2**30))
    refusal = refused(manager, desc(), [A + 2**40])
    found = refusal.one("core.limit.addresses")
    assert refusal.rules == ["core.limit.addresses"]
    assert "241 addresses exceed the limit of 240: 1 new, 240 held (200 by register_blocks_cache, 40" in found.message
    assert found.source == Limits().source
    manager.unregister_cache(ones[7].cache_id)
    manager.register_cache(desc(), [A + 2**40])
    assert sum(manager.registry.counts().values()) == 240


def test_t14_limit_says_what_joining_would_make_of_it(manager, refused):
    manager.register_cache(desc(), [A])
    found = refused(manager, desc(240), spaced(240, A + 2**30, 128)).one("core.limit.addresses")
    assert found.facts == {"registered": 1, "new": 240, "limit": 240, "joined": 1}
    assert "the 240 new ranges touch and make 1" in found.fix


@pytest.mark.parametrize(("placement", "gib"), [(Placement.DEVICE, 50), (Placement.HOST, 20)])
def test_byte_limits_hold_over_all_calls(manager, refused, placement, gib):
    gibibyte = desc(1, (2**30,), placement=placement)
    manager.register_cache(desc(gib - 1, (2**30,), placement=placement), spaced(gib - 1, 2**40, 2**30))
    refusal = refused(manager, desc(2, (2**30,), placement=placement), spaced(2, 2**44, 2**30))
    rule = "core.limit.device_bytes" if placement is Placement.DEVICE else "core.limit.host_bytes"
    assert refusal.rules == [rule]
    assert refusal.one(rule).facts["total"] == (gib + 1) * 2**30
    assert f"{gib + 1}.00 GiB, more than {gib} GiB" in refusal.error.message
    manager.register_cache(gibibyte, [2**45])


def test_views_take_no_bytes_of_the_limit(make_manager):
    manager = make_manager(limits=Limits(host_bytes=4096))
    manager.register_memory(MemoryRegion(A, 4096))
    manager.register_cache(desc(2, (2, 1024), placement=Placement.HOST), [A, A + 2048])
