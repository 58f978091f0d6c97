"""Descriptions and keys: types are checked when they are made, sizes are exact, keys mean one thing."""

from __future__ import annotations

import pickle

import attrs
import numpy as np
import pytest

from cachefw import (
    ABSENT_ID,
    BlocksCacheKey,
    Cache,
    CacheDesc,
    CacheKey,
    CacheKeyByIdAndIndex,
    DataType,
    Placement,
    RequestError,
)
from cachefw.cache import as_int


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (5, 5),
        (-1, -1),
        (2**70, 2**70),
        (np.uint64(2**63), 2**63),
        (np.int8(-3), -3),
        (np.array(7), 7),
        (Placement.DEVICE, 1),
        (True, None),
        (np.True_, None),
        (1.0, None),
        (np.float64(1), None),
        ("1", None),
        (None, None),
        ([1], None),
        (np.array([1, 2]), None),
    ],
)
def test_integers_are_python_s_and_numpy_s_and_no_bools(value, number):
    assert as_int(value) == number


@pytest.mark.parametrize("data_type", DataType)
def test_item_sizes_are_those_of_the_name(data_type):
    words = {"FLOAT": 4, "DOUBLE": 8, "BOOL": 1, "BF16": 2}
    name = data_type.name.removeprefix("DT_")
    digits = "".join(c for c in name if c.isdigit())
    assert data_type.itemsize == words.get(name, int(digits or 0) // 8)


def test_numbers_are_those_of_the_graph_engine():
    assert {t.name: t.value for t in DataType} == {
        "DT_FLOAT": 0,
        "DT_FLOAT16": 1,
        "DT_INT8": 2,
        "DT_INT32": 3,
        "DT_UINT8": 4,
        "DT_INT16": 6,
        "DT_UINT16": 7,
        "DT_UINT32": 8,
        "DT_INT64": 9,
        "DT_UINT64": 10,
        "DT_DOUBLE": 11,
        "DT_BOOL": 12,
        "DT_BF16": 27,
    }
    assert (Placement.HOST, Placement.DEVICE) == (0, 1)
    assert str(Placement.HOST) == "Placement.HOST"


def test_descriptions_have_exact_sizes():
    desc = CacheDesc(4, [10, 128, 8, 64], DataType.DT_BF16)
    assert desc.shape == (10, 128, 8, 64)
    assert (desc.size, desc.stride, desc.batch_size) == (10 * 128 * 8 * 64 * 2, 128 * 8 * 64 * 2, 10)
    assert desc.placement is Placement.DEVICE
    assert CacheDesc(1, (2**40, 2**40), DataType.DT_INT64).size == 2**83
    assert CacheDesc(1, (7,), DataType.DT_INT16).stride == 2


def test_descriptions_are_values():
    one, two = (CacheDesc(np.int64(2), [np.int32(3)], DataType.DT_INT8) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert (type(one.num_tensors), type(one.shape[0])) == (int, int)
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        one.num_tensors = 3


def test_descriptions_report_all_wrong_types_at_once():
    with pytest.raises(RequestError) as caught:
        CacheDesc(None, [1, None, "x"], 5, 1, True, 1.5, 7)
    error = caught.value
    assert isinstance(error, TypeError)
    assert isinstance(error, AttributeError)
    assert not isinstance(error, ValueError)
    for words in (
        "num_tensors is None; it must be an int",
        "shape[1] is None",
        "shape[2] must be an int, not 'x' (str)",
        "data_type must be a DataType, not 5 (int)",
        "placement must be a Placement, not 1 (int)",
        "batch_dim_index must be an int, not True (bool)",
        "seq_len_dim_index must be an int, not 1.5 (float)",
        "kv_tensor_format must be a str, not 7 (int)",
    ):
        assert words in str(error)


@pytest.mark.parametrize(
    ("key", "name", "placeholder"),
    [
        (CacheKey(1, 5), ("req", 5, 0), False),
        (CacheKey(1, 0, 3), ("req", 0, 3), False),
        (CacheKey(1, prefix_id=5), ("prefix", 5, 0), False),
        (CacheKey(1, ABSENT_ID, 2, 5), ("prefix", 5, 2), False),
        (CacheKey(1, 5, 2, ABSENT_ID), ("req", 5, 2), False),
        (CacheKey(1, ABSENT_ID), ("prefix", 0, 0), True),
        (CacheKey(1, prefix_id=ABSENT_ID), ("prefix", ABSENT_ID, 0), True),
        (CacheKey(1, ABSENT_ID, 0, ABSENT_ID), ("prefix", ABSENT_ID, 0), True),
    ],
)
def test_keys_name_a_request_or_a_prefix(key, name, placeholder):
    assert key.is_placeholder is placeholder
    if not placeholder:
        assert key.local_name == name
        assert key.has_request is (name[0] == "req")
        assert key.has_prefix is (name[0] == "prefix")


def test_a_key_of_nothing_is_no_placeholder():
    assert not CacheKey(1).is_placeholder


def test_blocks_keys_name_a_model():
    assert BlocksCacheKey(9, 4).local_name == ("blocks", 0, 4)


@pytest.mark.parametrize("cls", [CacheKey, BlocksCacheKey, CacheKeyByIdAndIndex])
@pytest.mark.parametrize(("wrong", "builtin"), [(None, AttributeError), (True, TypeError), (1.5, TypeError)])
def test_key_fields_are_integers(cls, wrong, builtin):
    with pytest.raises(builtin, match=f"{cls.__name__}: cluster_id") as caught:
        cls(wrong, 1)
    assert isinstance(caught.value, RequestError)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((1, 2**63), "cache_id"), ((1, -1), "cache_id"), ((1, 1, 2**32), "batch_index"), ((2**64, 1), "cluster_id")],
)
def test_keys_by_id_have_a_range(arguments, words):
    with pytest.raises(ValueError, match=f"{words} must lie in 0"):
        CacheKeyByIdAndIndex(*arguments)


def test_key_numbers_of_numpy_become_ints():
    key = CacheKey(np.uint64(1), np.uint64(2**64 - 2))
    assert (type(key.cluster_id), key.req_id) == (int, 2**64 - 2)
    assert key == CacheKey(1, 2**64 - 2)


def test_caches_are_compared_by_identity_and_say_what_they_are():
    desc = CacheDesc(2, (10, 64), DataType.DT_FLOAT16)
    one, two = (Cache(3, desc, (1, 2), True, True) for _ in range(2))
    assert one != two
    assert str(one) == "blocks cache 3: 2 tensors of [10, 64] DT_FLOAT16 (1,280 bytes each) in device memory"
