"""Which bytes move: the arrays of pieces against loops that say the same plainly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefw import NotFoundError, RequestError
from cachefw.layout import block_indices, join, layer_tensors, once, scatter, spread
from cachefw.ranges import Pieces

TOP = 2**64


def u64(values):
    return np.array(values, np.uint64)


def rows(pieces):
    return list(zip(pieces.local.tolist(), pieces.remote.tolist(), pieces.length.tolist(), strict=True))


# ---------------------------------------------------------------------- layers


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 4), st.integers(1, 6))
def test_layers_are_their_tensors(start, count, per_layer, total):
    layers = range(start, start + count)
    names = [(layer, i) for layer in range(total) for i in range(per_layer)]
    if count and layers.stop <= total:
        found = layer_tensors(layers, per_layer, total * per_layer, "src")
        assert [names[i] for i in found] == [(layer, i) for layer in layers for i in range(per_layer)]
    else:
        with pytest.raises(RequestError, match="src_layer_range"):
            layer_tensors(layers, per_layer, total * per_layer, "src")


@pytest.mark.parametrize("per_layer", [1, 2, 5])
def test_no_layers_given_is_every_tensor(per_layer):
    assert layer_tensors(None, per_layer, 7, "src").tolist() == list(range(7))


@pytest.mark.parametrize(
    ("layers", "builtin", "words"),
    [
        (range(0, 4, 2), ValueError, "step 1"),
        (range(3, 0, -1), ValueError, "step 1"),
        (range(-1, 2), ValueError, "start at 0"),
        (range(2, 2), ValueError, "name a layer"),
        (slice(0, 2), TypeError, "must be a range or None, not slice"),
        ([0, 1], TypeError, "must be a range or None"),
        (2, TypeError, "must be a range or None"),
        (range(2, 5), LookupError, "names layer 4; the dst cache has layers 0 to 3 of 2 tensors each"),
    ],
)
def test_layers_that_cannot_be_are_refused(layers, builtin, words):
    with pytest.raises(builtin, match=words) as caught:
        layer_tensors(layers, 2, 8, "dst")
    assert isinstance(caught.value, RequestError)
    assert "dst" in str(caught.value)


def test_tensors_that_make_no_whole_layers_are_refused():
    with pytest.raises(ValueError, match="7 tensors of the src cache do not make layers of 2 tensors each"):
        layer_tensors(range(1), 2, 7, "src")


# ---------------------------------------------------------------------- blocks


@pytest.mark.parametrize(
    "blocks",
    [[3, 0, 2], (3, 0, 2), np.array([3, 0, 2]), np.array([3, 0, 2], np.uint8), [np.int32(3), 0, np.uint64(2)]],
)
def test_block_numbers_come_in_many_forms(blocks):
    found = block_indices(blocks, 4, "src", "cache 1")
    assert (found.tolist(), found.dtype) == ([3, 0, 2], np.int64)


def test_block_numbers_of_a_range():
    assert block_indices(range(1, 4), 4, "src", "cache 1").tolist() == [1, 2, 3]
    assert block_indices([], 4, "src", "cache 1").tolist() == []


@pytest.mark.parametrize("form", [list, tuple, np.array])
@given(blocks=st.lists(st.integers(-5, 15), max_size=12))
def test_blocks_out_of_range_are_all_named(form, blocks):
    outside = [i for i, block in enumerate(blocks) if not 0 <= block < 10]
    given_form = np.array(blocks, np.int64) if form is np.array else form(blocks)
    if not outside:
        assert block_indices(given_form, 10, "dst", "cache 7").tolist() == blocks
        return
    with pytest.raises(NotFoundError) as caught:
        block_indices(given_form, 10, "dst", "cache 7")
    text = str(caught.value)
    assert ", ".join(f"dst_blocks[{i}] = {blocks[i]}" for i in outside[:5]) in text
    assert (f" and {len(outside) - 5} more" in text) is (len(outside) > 5)
    assert "cache 7 has blocks 0 to 9" in text
    assert caught.value.facts == {"indices": outside, "blocks": 10}


@pytest.mark.parametrize(
    ("blocks", "builtin", "words"),
    [
        (None, AttributeError, "src_blocks is None"),
        (5, TypeError, "src_blocks must be a list"),
        ("0", TypeError, "src_blocks must be a list"),
        ({0, 1}, TypeError, "src_blocks must be a list"),
        (np.array([0.0]), TypeError, "src_blocks must be a list"),
        (np.array([[0]]), TypeError, "src_blocks must be a list"),
        (np.array([True]), TypeError, "src_blocks must be a list"),
        ([0, True], TypeError, r"src_blocks\[1\] must be an int, not True \(bool\)"),
        ([0, 1.0], TypeError, r"src_blocks\[1\] must be an int, not 1.0"),
        ([0, None], TypeError, r"src_blocks\[1\] must be an int, not None"),
        ([0, 2**63], ValueError, "src_blocks has a number"),
        ([0, -(2**70)], ValueError, "src_blocks has a number"),
        (np.array([2**63], np.uint64), LookupError, r"src_blocks\[0\] = 9223372036854775808"),
    ],
)
def test_blocks_that_are_no_numbers_are_refused(blocks, builtin, words):
    with pytest.raises(builtin, match=words) as caught:
        block_indices(blocks, 4, "src", "cache 1")
    assert isinstance(caught.value, RequestError)


@given(st.lists(st.integers(0, 9), max_size=12))
def test_destinations_are_written_once(blocks):
    twice = sorted({block for block in blocks if blocks.count(block) > 1})
    array = np.array(blocks, np.int64)
    if not twice:
        once(array)
        return
    with pytest.raises(ValueError, match=f"dst_blocks has block {twice[0]} more than once") as caught:
        once(array)
    assert caught.value.facts == {"blocks": twice}


# ---------------------------------------------------------------------- pieces


def test_spread_is_one_piece_for_each_pair():
    assert rows(spread([100, 200], [1000, 2000], 5, 7, 3)) == [(105, 1007, 3), (205, 2007, 3)]


@given(
    st.lists(st.tuples(st.integers(0, 2**48), st.integers(0, 2**48)), max_size=4),
    st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(1, 2**30)), max_size=6),
)
def test_scatter_agrees_with_a_loop(tensors, pieces):
    local, remote = [pair[0] for pair in tensors], [pair[1] for pair in tensors]
    there = [u64([piece[i] for piece in pieces]) for i in range(3)]
    expected = [(a + x, b + y, size) for a, b in tensors for x, y, size in pieces]
    assert rows(scatter(local, remote, *there)) == expected


def test_addresses_up_to_the_end_of_the_address_space():
    assert rows(spread([TOP - 64], [TOP - 128], 32, 96, 32)) == [(TOP - 32, TOP - 32, 32)]
    assert rows(scatter([TOP - 64], [TOP - 64], u64([0, 48]), u64([0, 48]), u64([16, 16])))[1] == (
        TOP - 16,
        TOP - 16,
        16,
    )


def plain_join(pieces, regions):
    joined = []
    for (a, b, size), region in zip(pieces, regions, strict=True):
        if joined:
            (x, y, length), last = joined[-1]
            if (a, b, region) == (x + length, y + length, last):
                joined[-1] = ((x, y, length + size), last)
                continue
        joined.append(((a, b, size), region))
    return joined


@given(
    st.sampled_from([0, 2**63 - 20, TOP - 5000]),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 40), st.integers(1, 2)), max_size=12),
)
def test_join_agrees_with_a_loop(base, steps):
    local, remote, pieces, regions = base, base + 1000, [], []
    for skip, jump, size, region in steps:
        local, remote = local + skip // 2, remote + jump // 2
        pieces.append((local, remote, size))
        regions.append(region)
        local, remote = local + size, remote + size
    columns = [u64([piece[i] for piece in pieces]) for i in range(3)]
    joined, (ids, same) = join(Pieces(*columns), u64(regions), u64(regions))
    expected = plain_join(pieces, regions)
    assert rows(joined) == [piece for piece, _ in expected]
    assert ids.tolist() == same.tolist() == [region for _, region in expected]


@given(st.permutations(range(6)), st.permutations(range(6)), st.booleans())
def test_joined_pieces_move_the_same_bytes(here, there, in_order):
    stride = 5
    if in_order:
        there = here
    source = np.arange(60, 90, dtype=np.uint8)
    pieces = scatter([0], [0], u64(here) * u64(stride), u64(there) * u64(stride), u64([stride] * 6))
    joined, _ = join(pieces)
    one, two = np.zeros(30, np.uint8), np.zeros(30, np.uint8)
    for target, moves in ((one, pieces), (two, joined)):
        for local, remote, length in rows(moves):
            target[local : local + length] = source[remote : remote + length]
    assert one.tobytes() == two.tobytes()
    assert len(joined.length) <= len(pieces.length)
