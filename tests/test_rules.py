"""The core's rules, one wrong argument at a time and several at once: refused in words, all of it in one error."""

from __future__ import annotations

import numpy as np
import pytest

from cachefw import (
    BlocksCacheKey,
    CacheDesc,
    CacheError,
    CacheKey,
    DataType,
    Finding,
    MemoryRegion,
    Outcome,
    Placement,
    RegistrationError,
    RequestError,
    hookimpl,
)

A = 0x7F00_0000_0000
BOTH_CALLS = pytest.mark.parametrize("blocks", [False, True], ids=["register_cache", "register_blocks_cache"])


def desc(num_tensors=1, shape=(2, 64), data_type=DataType.DT_UINT8, placement=Placement.DEVICE):
    return CacheDesc(num_tensors, shape, data_type, placement)


def names(*keys):
    return [CacheKey(1, req_id=key) for key in keys]


def spaced(count, start=A, step=0x1000):
    return [start + i * step for i in range(count)]


# ---------------------------------------------------------------------- counts


@BOTH_CALLS
@pytest.mark.parametrize("given", [3, 5, 0])
def test_t08_counts_for_both_calls(manager, refused, blocks, given):
    refusal = refused(manager, desc(4), spaced(given), blocks=blocks)
    found = refusal.one("core.count")
    assert refusal.rules == ["core.count"]
    assert isinstance(refusal.error, ValueError)
    assert refusal.error.code == "core.count"
    assert found.facts == {"num_tensors": 4, "addresses": given}
    assert found.message == f"cache_desc.num_tensors is 4 and addrs has {given}"


@BOTH_CALLS
@pytest.mark.parametrize("tensors", [0, -1])
def test_t08_counts_below_one_are_refused(manager, refused, blocks, tensors):
    assert str(tensors) in refused(manager, desc(tensors), [], blocks=blocks).one("core.count").message


def test_t08_count_true_is_no_number():
    with pytest.raises(TypeError, match="num_tensors must be an int, not True") as caught:
        desc(True)
    assert isinstance(caught.value, RequestError)


# ---------------------------------------------------------------------- addresses


@BOTH_CALLS
@pytest.mark.parametrize(
    ("address", "builtin", "words"),
    [
        (0, ValueError, "addrs[1] is 0, which no tensor has"),
        (-4096, ValueError, "addrs[1] is -0x1000, not within"),
        (True, TypeError, "addrs[1] is True (bool)"),
        (1.5, TypeError, "addrs[1] is 1.5 (float)"),
        ("0x1000", TypeError, "addrs[1] is '0x1000' (str)"),
        (None, AttributeError, "addrs[1] is None"),
        (2**64, ValueError, "addrs[1] is 0x10000000000000000, not within"),
        (2**64 - 64, ValueError, "addrs[1] 0xffffffffffffffc0 plus 128 bytes wraps past 2^64"),
    ],
)
def test_t09_addresses_are_refused_with_their_index(manager, refused, blocks, address, builtin, words):
    refusal = refused(manager, desc(2), [A, address], blocks=blocks)
    found = refusal.one("core.address")
    assert refusal.rules == ["core.address"]
    assert found.index == 1
    assert isinstance(refusal.error, builtin)
    assert words in found.message


def test_t09_addresses_wrap_is_said_with_the_excess(manager, refused):
    found = refused(manager, desc(1, (1, 8192)), [2**64 - 4096]).one("core.address")
    assert "8,192 bytes wraps past 2^64" in found.message
    assert found.facts["excess"] == 4096


def test_t09_addresses_that_nothing_maps_are_refused_by_the_host_transport(make_manager, refused):
    manager = make_manager(["host"])
    refusal = refused(manager, desc(placement=Placement.HOST), [2**63])
    assert refusal.rules == ["host.mapped"]
    assert refusal.error.transport == "host"


@pytest.mark.parametrize("give", [lambda a: [np.uint64(a)], lambda a: np.array([a], np.uint64), lambda a: (a,)])
def test_t09_addresses_of_numpy_are_integers(manager, give):
    cache = manager.register_cache(desc(), give(A))
    assert cache.tensor_addrs == (A,)
    assert type(cache.tensor_addrs[0]) is int
    assert type(manager.memories[0].region.address) is int


def test_the_last_byte_of_the_address_space_can_be_registered(manager):
    cache = manager.register_cache(desc(1, (1, 4096)), [2**64 - 4096])
    assert manager.memories[0].region.end == 2**64
    manager.unregister_cache(cache.cache_id)


@pytest.mark.parametrize(
    ("region", "rule", "words"),
    [
        ((0, 4096), "core.address", "the region is 0"),
        ((-4096, 4096), "core.address", "the region is -0x1000"),
        ((2**64, 1), "core.address", "not within"),
        ((2**64 - 4096, 8192), "core.address", "wraps past 2^64"),
        ((A, 0), "core.size", "length is 0"),
        ((A, -1), "core.size", "length is -1"),
    ],
)
def test_t09_t10_regions_with_impossible_numbers_are_refused(manager, snapshot, region, rule, words):
    before = snapshot(manager)
    with pytest.raises(RegistrationError) as caught:
        manager.register_memory(MemoryRegion(*region))
    assert isinstance(caught.value, ValueError)
    assert caught.value.code == rule
    assert words in caught.value.message
    assert snapshot(manager) == before


@pytest.mark.parametrize("wrong", [True, 1.5, "0x1000", None])
@pytest.mark.parametrize("field", ["address", "length", "device"])
def test_t09_regions_are_made_of_integers(field, wrong):
    with pytest.raises(AttributeError if wrong is None else TypeError) as caught:
        MemoryRegion(**{"address": A, "length": 4096, field: wrong})
    assert isinstance(caught.value, RequestError)
    assert f"MemoryRegion: {field}" in str(caught.value)


@pytest.mark.parametrize("field", ["kind", "access"])
def test_regions_have_a_kind_and_rights(field):
    with pytest.raises(TypeError, match=f"MemoryRegion: {field} must be"):
        MemoryRegion(**{"address": A, "length": 4096, field: "host memory"})


def test_regions_keep_numpy_integers_as_int():
    region = MemoryRegion(np.uint64(A), np.int32(8))
    assert (type(region.address), type(region.length)) == (int, int)
    assert region == MemoryRegion(A, 8)


# ---------------------------------------------------------------------- sizes


@BOTH_CALLS
@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((), ["shape has no dimension"]),
        ((0, 16), ["shape[0] of [0, 16] is 0"]),
        ((16, -1), ["shape[1] of [16, -1] is -1 (a size that is only known later cannot be registered)"]),
        ((16, -2), ["shape[1] of [16, -2] is -2"]),
        ((-3, 0), ["shape[0] of [-3, 0] is -3", "shape[1] of [-3, 0] is 0"]),
    ],
)
def test_t10_shapes_without_bytes_are_refused(manager, refused, blocks, shape, words):
    refusal = refused(manager, desc(1, shape), [A], blocks=blocks)
    assert [found.message for found in refusal.findings] == words
    assert set(refusal.rules) == {"core.size"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shape": [True, 2]}, r"shape\[0\] must be an int, not True \(bool\)"),
        ({"shape": "16"}, "shape must be a list or tuple of ints"),
        ({"data_type": 5}, r"data_type must be a DataType, not 5 \(int\)"),
        ({"data_type": "float16"}, "data_type must be a DataType"),
        ({"placement": 1}, "placement must be a Placement"),
        ({"shape": [1.5], "data_type": 5}, r"shape\[0\] must be an int.*; data_type must be"),
    ],
)
def test_t10_types_are_refused_when_a_description_is_made(arguments, words):
    with pytest.raises(TypeError, match=words) as caught:
        CacheDesc(**{"num_tensors": 1, "shape": [2, 2], "data_type": DataType.DT_INT8, **arguments})
    assert isinstance(caught.value, RequestError)


@pytest.mark.parametrize(
    ("shape", "data_type", "size"),
    [
        ((2**32, 2**31, 2), DataType.DT_FLOAT16, 2**65),
        ((3037000500, 3037000500), DataType.DT_INT8, 3037000500**2),
        ((2**31, 2**31), DataType.DT_INT64, 2**65),
        ((2**63,), DataType.DT_INT8, 2**63),
    ],
)
def test_t11_sizes_are_exact_and_never_wrap(manager, refused, shape, data_type, size):
    refusal = refused(manager, desc(1, shape, data_type), [A])
    assert refusal.rules == ["core.size"]
    assert refusal.one("core.size").facts == {"bytes": size}
    assert f"{size:,} bytes, more than 2^63 - 1" in refusal.error.message


def test_t11_a_tensor_larger_than_its_storage_is_refused(manager, refused):
    manager.register_memory(MemoryRegion(A, 100), label="storage")
    found = refused(manager, desc(1, (2, 64), placement=Placement.HOST), [A]).one("core.unique")
    assert "memory 1 'storage'" in found.message
    assert "does and is 28 bytes longer" in found.message
    assert found.facts["difference"] == 28


# ---------------------------------------------------------------------- all at once, and plans


def test_all_violations_are_in_one_error(manager, refused):
    manager.register_cache(desc(), [A], names(1))
    refusal = refused(manager, desc(4), [A, A + 1, None, 1.5, 0], names(1, 2, 2))
    assert refusal.rules == ["core.count", *["core.address"] * 3, *["core.unique"] * 3, *["core.keys"] * 3]
    assert isinstance(refusal.error, (ValueError, TypeError, AttributeError))
    assert all(isinstance(refusal.error, kind) for kind in (CacheError, ValueError, TypeError, AttributeError))
    assert refusal.error.code == "registration.refused"
    assert refusal.error.message.startswith("register_cache: 10 rules broken, nothing was registered\n  1. core.count")
    assert "\n  10. core.keys: " in refusal.error.message


@BOTH_CALLS
@pytest.mark.parametrize("wrong", [None, 5, "x", object(), {1}, np.zeros((2, 2)), b"", [[]], float("nan")])
@pytest.mark.parametrize("position", range(4))
def test_plan_never_raises(manager, refused, blocks, wrong, position):
    arguments = [desc(), [A], BlocksCacheKey(1) if blocks else names(1), False]
    arguments[position] = wrong
    plan = manager.plan(*arguments, blocks=blocks)
    assert plan.table(80)
    if not plan.ok:
        call = manager.register_blocks_cache if blocks else manager.register_cache
        with pytest.raises(RegistrationError) as caught:
            call(*arguments)
        assert caught.value.findings == plan.findings
        assert manager.memories == []
    else:
        assert wrong is None
        assert position in (2, 3)


def test_long_values_are_not_shown_whole(manager, refused):
    found = refused(manager, desc(), "x" * 5000).one("core.arguments")
    assert found.message.endswith("xxx... (str)")
    assert len(found.message) < 150


def test_plan_tells_what_would_be_registered_and_touches_nothing(manager, snapshot):
    before = snapshot(manager)
    plan = manager.plan(desc(2), spaced(2))
    assert plan.ok
    assert [finding.outcome for finding in plan.findings] == [Outcome.OK] * len(plan.findings)
    assert [region.address for region in plan.regions] == spaced(2)
    assert "register_cache: would register 2 native regions, 256 bytes" in str(plan)
    assert max(map(len, plan.table(100).splitlines())) <= 100
    assert snapshot(manager) == before


class Unsure:
    """A policy that cannot tell."""

    @hookimpl
    def cachefw_validate_memory(self, request):
        return [Finding("site.unsure", Outcome.NOT_CHECKED, "nobody knows", fix="ask")]


def test_not_checked_is_shown_and_never_ok(make_manager):
    plan = make_manager(plugins=[Unsure()]).plan(desc(), [A])
    assert plan.ok
    assert [finding.rule for finding in plan.not_checked] == ["site.unsure"]
    assert "1 not checked" in str(plan)


def test_not_checked_is_refused_when_strict(make_manager):
    manager = make_manager(plugins=[Unsure()], strict=True)
    with pytest.raises(RegistrationError, match=r"site\.unsure: nobody knows \[not checked, and strict=True\]"):
        manager.register_cache(desc(), [A])
    assert manager.memories == []


def test_a_kind_that_no_transport_takes_is_refused(make_manager, refused):
    refusal = refused(make_manager(["host"]), desc(), [A])
    assert refusal.rules == ["host.kind"]
    assert "is device memory; this transport moves host memory" in refusal.error.message


def test_a_kind_that_no_transport_takes_is_refused_where_none_says_so(site, make_manager, refused):
    site.install_memory("narrow", "[MemoryKind.HOST]")
    refusal = refused(make_manager(["narrow"]), desc(), [A])
    assert "no open transport takes device memory: narrow takes host memory" in refusal.error.message
    assert refusal.rules == ["core.transport"]
