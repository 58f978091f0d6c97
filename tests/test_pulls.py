"""Pulling caches between two nodes: which bytes land where, for each kind of key, and what is refused before."""

from __future__ import annotations

import numpy as np
import pytest

from cachefw import (
    ABSENT_ID,
    BlocksCacheKey,
    CacheDesc,
    CacheKey,
    CacheKeyByIdAndIndex,
    ClosedError,
    DataType,
    NotFoundError,
    Placement,
    RequestError,
)

COUNT, ROWS, STRIDE = 8, 6, 4096
REQUEST, PREFIX, UNNAMED = 3, 1, 4


@pytest.fixture
def source(nodes, tensors):
    """A contiguous cache of cluster 2: row 3 is request 70, row 1 is prefix 5, row 4 has no name."""
    made = tensors(COUNT, ROWS, STRIDE, seed=2)
    free = CacheKey(2, ABSENT_ID)
    keys = [free, CacheKey(2, prefix_id=5), free, CacheKey(2, 70)]
    made.cache = nodes[1].cache_manager.register_cache(made.desc, made.addrs, keys, remote_accessible=True)
    return made


@pytest.fixture
def blocks(nodes, tensors):
    """The blocks cache of cluster 2."""
    made = tensors(COUNT, ROWS, STRIDE, seed=3)
    manager = nodes[1].cache_manager
    made.cache = manager.register_blocks_cache(made.desc, made.addrs, BlocksCacheKey(2), remote_accessible=True)
    return made


@pytest.fixture
def local(nodes, tensors):
    """Makes a local cache, and remembers what it must hold."""

    def make(count=COUNT, rows=ROWS, stride=STRIDE, *, blocks=False):
        made = tensors(count, rows, stride, seed=1)
        manager = nodes[0].cache_manager
        register = manager.register_blocks_cache if blocks else manager.register_cache
        made.cache = register(made.desc, made.addrs)
        made.expected = [array.copy() for array in made.arrays]
        made.ok = lambda: made.bytes() == [array.tobytes() for array in made.expected]
        return made

    return make


@pytest.fixture
def pull(nodes):
    return nodes[0].cache_manager


# ---------------------------------------------------------------------- rows


@pytest.mark.parametrize(
    ("key", "row"),
    [
        (CacheKey(2, 70), REQUEST),
        (CacheKey(2, prefix_id=5), PREFIX),
        (CacheKeyByIdAndIndex(2, 1, UNNAMED), UNNAMED),
        (CacheKeyByIdAndIndex(2, 1), 0),
    ],
    ids=["request", "prefix", "id and row", "id"],
)
@pytest.mark.parametrize("size", [-1, 1, 1000, STRIDE])
def test_a_row_is_pulled_by_each_kind_of_key(source, local, pull, key, row, size):
    target = local()
    transfer = pull.pull_cache(key, target.cache, 2, size)
    length = STRIDE if size == -1 else size
    for array, peer in zip(target.expected, source.arrays, strict=True):
        array[2, :length] = peer[row, :length]
    assert target.ok()
    assert transfer.settled
    assert transfer.error is None
    assert transfer.nbytes == COUNT * length


def test_rows_of_another_length_need_a_size(source, local, pull):
    target = local(stride=STRIDE // 2)
    with pytest.raises(ValueError, match=r"4,096 bytes do not fit a row of cache 1.*which has 2,048; give size"):
        pull.pull_cache(CacheKey(2, 70), target.cache, 0, STRIDE)
    pull.pull_cache(CacheKey(2, 70), target.cache)
    wider = local(stride=2 * STRIDE)
    with pytest.raises(ValueError, match=r"8,192 bytes do not fit a row of the peer's cache 1.*which has 4,096; give"):
        pull.pull_cache(CacheKey(2, 70), wider.cache)
    pull.pull_cache(CacheKey(2, 70), wider.cache, 5, STRIDE)
    for array, peer in zip(wider.expected, source.arrays, strict=True):
        array[5, :STRIDE] = peer[REQUEST]
    assert wider.ok()


@pytest.mark.parametrize(
    ("src", "dst", "per_layer"),
    [(None, None, 2), (range(1, 3), range(2, 4), 2), (range(3, 4), range(1), 2), (range(5, 8), range(3), 1)],
)
def test_layers_are_paired_in_order(source, local, pull, src, dst, per_layer):
    target = local()
    pull.pull_cache(
        CacheKey(2, 70),
        target.cache,
        src_layer_range=src,
        dst_layer_range=dst,
        tensor_num_per_layer=per_layer,
    )
    layers = COUNT // per_layer
    for there, here in zip(src or range(layers), dst or range(layers), strict=True):
        for i in range(per_layer):
            target.expected[here * per_layer + i][0] = source.arrays[there * per_layer + i][REQUEST]
    assert target.ok()


@pytest.mark.parametrize(
    ("options", "builtin", "words"),
    [
        ({"batch_index": ROWS}, LookupError, "batch_index 6: cache 1.* has rows 0 to 5"),
        ({"batch_index": -1}, ValueError, "batch_index must be at least 0, not -1"),
        ({"batch_index": 1.0}, TypeError, "batch_index must be an int"),
        ({"batch_index": None}, AttributeError, "batch_index must be an int, not None"),
        ({"size": 0}, ValueError, "size must be at least 1, not 0"),
        ({"size": -2}, ValueError, "size must be at least 1, not -2"),
        ({"size": True}, TypeError, "size must be an int, not True"),
        ({"size": STRIDE + 1}, ValueError, "4,097 bytes do not fit a row"),
        ({"tensor_num_per_layer": 0}, ValueError, "tensor_num_per_layer must be at least 1"),
        ({"src_layer_range": range(2), "tensor_num_per_layer": 3}, ValueError, "do not make layers of 3 tensors each"),
        ({"src_layer_range": range(5)}, LookupError, "src_layer_range range.0, 5. names layer 4"),
        ({"src_layer_range": range(2)}, ValueError, "4 tensors of the peer's cache 1.* do not pair with 8"),
        ({"dst_layer_range": [0]}, TypeError, "dst_layer_range must be a range or None"),
    ],
)
def test_rows_that_cannot_be_are_refused_before_anything_moves(source, local, pull, options, builtin, words):
    target = local()
    with pytest.raises(builtin, match=words) as caught:
        pull.pull_cache(CacheKey(2, 70), target.cache, **options)
    assert isinstance(caught.value, RequestError)
    assert target.ok()


@pytest.mark.parametrize(
    ("key", "builtin", "words"),
    [
        (CacheKey(2, 71), LookupError, r"has published no cache with req_id 71 of model 0; it has published cache 1"),
        (CacheKey(2, 5), LookupError, "no cache with req_id 5"),
        (CacheKey(2, 70, 1), LookupError, "no cache with req_id 70 of model 1"),
        (CacheKey(2), ValueError, "has neither req_id nor prefix_id"),
        (CacheKey(2, 70, 0, 5), ValueError, "has both req_id and prefix_id"),
        (CacheKey(2, ABSENT_ID), ValueError, "has neither req_id nor prefix_id"),
        (CacheKey(3, 70), LookupError, "no link to cluster 3; linked are: cluster 2"),
        (CacheKey(1, 70), LookupError, "no link to cluster 1 .this node's own id."),
        (CacheKeyByIdAndIndex(2, 0), ValueError, "cache ids start at 1"),
        (CacheKeyByIdAndIndex(2, 9), LookupError, "has published no cache 9; it has published cache 1"),
        (CacheKeyByIdAndIndex(2, 1, ROWS), LookupError, "has rows 0 to 5"),
        (BlocksCacheKey(2), TypeError, "pull_cache takes a CacheKey or CacheKeyByIdAndIndex"),
        (5, TypeError, "pull_cache takes a CacheKey"),
        (None, AttributeError, "pull_cache takes a CacheKey"),
    ],
)
def test_t12_keys_that_name_nothing_are_refused_at_a_pull(source, local, pull, key, builtin, words):
    target = local()
    with pytest.raises(builtin, match=words) as caught:
        pull.pull_cache(key, target.cache)
    assert isinstance(caught.value, RequestError)
    assert target.ok()


# ---------------------------------------------------------------------- blocks to blocks


@pytest.mark.parametrize("key", [BlocksCacheKey(2), CacheKeyByIdAndIndex(2, 1)], ids=["blocks", "id"])
@pytest.mark.parametrize(("src", "dst"), [([0], [5]), ([5, 0, 3], [1, 4, 2]), ([2, 2], [0, 1]), (range(6), range(6))])
def test_blocks_land_where_they_are_told(blocks, local, pull, key, src, dst):
    target = local(blocks=True)
    pull.pull_blocks(key, target.cache, src, dst)
    for array, peer in zip(target.expected, blocks.arrays, strict=True):
        for there, here in zip(src, dst, strict=True):
            array[here] = peer[there]
    assert target.ok()


def test_blocks_of_some_layers(blocks, local, pull):
    target = local(count=2, rows=3, blocks=True)
    pull.pull_blocks(BlocksCacheKey(2), target.cache, [4, 1], [0, 2], src_layer_range=range(2, 3))
    for i, array in enumerate(target.expected):
        array[0], array[2] = blocks.arrays[4 + i][4], blocks.arrays[4 + i][1]
    assert target.ok()


def test_blocks_that_follow_each_other_are_one_piece(blocks, local, pull):
    target = local(blocks=True)
    assert pull.pull_blocks(BlocksCacheKey(2), target.cache, [1, 2, 3], [0, 1, 2]).pieces == COUNT
    assert pull.pull_blocks(BlocksCacheKey(2), target.cache, [1, 2, 4], [0, 1, 2]).pieces == 2 * COUNT


@pytest.mark.parametrize(
    ("src", "dst", "builtin", "words"),
    [
        ([0, 6], [0, 1], LookupError, r"src_blocks\[1\] = 6: the peer's cache 1.* has blocks 0 to 5"),
        ([0, 1], [7, 9], LookupError, r"dst_blocks\[0\] = 7, dst_blocks\[1\] = 9: blocks cache 1.* has blocks 0 to 5"),
        ([-1], [0], LookupError, r"src_blocks\[0\] = -1"),
        ([0, 1], [0], ValueError, "src_blocks has 2 blocks and dst_blocks has 1; give one for each"),
        ([0, 1], [3, 3], ValueError, "dst_blocks has block 3 more than once"),
        ([], [], ValueError, "dst_blocks is empty"),
        ([0], [True], TypeError, r"dst_blocks\[0\] must be an int"),
        (None, [0], AttributeError, "src_blocks is None"),
        ([0], None, AttributeError, "dst_blocks is None"),
    ],
)
def test_blocks_that_cannot_be_are_refused_before_anything_moves(blocks, local, pull, src, dst, builtin, words):
    target = local(blocks=True)
    with pytest.raises(builtin, match=words) as caught:
        pull.pull_blocks(BlocksCacheKey(2), target.cache, src, dst)
    assert isinstance(caught.value, RequestError)
    assert target.ok()


def test_blocks_of_unequal_size_are_refused(blocks, local, pull):
    target = local(stride=STRIDE // 2, blocks=True)
    with pytest.raises(ValueError, match=r"a block of the peer's .* has 4,096 bytes, one of .* has 2,048"):
        pull.pull_blocks(BlocksCacheKey(2), target.cache, [0], [0])
    assert target.ok()


def test_blocks_have_no_rows(blocks, local, pull):
    target = local(blocks=True)
    with pytest.raises(ValueError, match="has no rows; leave batch_index at 0"):
        pull.pull_blocks(CacheKeyByIdAndIndex(2, 1, 1), target.cache, [0], [0])
    with pytest.raises(LookupError, match="no cache with a blocks key of model 1"):
        pull.pull_blocks(BlocksCacheKey(2, 1), target.cache, [0], [0])


# ---------------------------------------------------------------------- a row to blocks


@pytest.mark.parametrize(
    ("key", "row"), [(CacheKey(2, 70), REQUEST), (CacheKeyByIdAndIndex(2, 1, UNNAMED), UNNAMED)], ids=["request", "id"]
)
@pytest.mark.parametrize(
    ("stride", "dst"),
    [(1024, [5, 0, 3, 2]), (1024, [4]), (1000, [0, 5, 1, 3, 2]), (4096, [1]), (5000, [1])],
    ids=["whole", "the start", "last in part", "one", "one in part"],
)
def test_a_row_fills_blocks_in_order(source, local, pull, key, row, stride, dst):
    target = local(stride=stride, blocks=True)
    pull.pull_blocks(key, target.cache, [], dst)
    for array, peer in zip(target.expected, source.arrays, strict=True):
        for i, block in enumerate(dst):
            part = peer[row, i * stride : (i + 1) * stride]
            array[block, : len(part)] = part
    assert target.ok()


def test_a_row_does_not_fill_more_blocks_than_it_has(source, local, pull):
    target = local(stride=1024, blocks=True)
    with pytest.raises(ValueError, match=r"5 blocks of 1,024 bytes are more than a row of .*; 4 blocks hold it"):
        pull.pull_blocks(CacheKey(2, 70), target.cache, dst_blocks=[0, 1, 2, 3, 4])
    assert target.ok()


@pytest.mark.parametrize("src_blocks", [[0], (0, 1), np.array([1]), 5, None])
def test_a_row_has_no_blocks_to_name(source, local, pull, src_blocks):
    target = local(blocks=True)
    with pytest.raises(ValueError, match="is contiguous and has no blocks; leave src_blocks empty"):
        pull.pull_blocks(CacheKey(2, 70), target.cache, src_blocks, [0])


def test_the_layout_of_either_side_is_held_against_the_call(source, blocks, local, pull):
    rows, pages = local(), local(blocks=True)
    with pytest.raises(ValueError, match=r"cache 1.* is a contiguous cache; use pull_cache"):
        pull.pull_blocks(BlocksCacheKey(2), rows.cache, [0], [0])
    with pytest.raises(ValueError, match=r"blocks cache 2.* is a blocks cache; use pull_blocks"):
        pull.pull_cache(CacheKey(2, 70), pages.cache)
    with pytest.raises(ValueError, match=r"the peer's cache 2.* is a blocks cache; use pull_blocks"):
        pull.pull_cache(CacheKeyByIdAndIndex(2, 2), rows.cache)


# ---------------------------------------------------------------------- completion, handles


def test_a_pull_that_nobody_waits_for_is_handed_over_once(nodes, source, local, pull):
    target = local()
    transfers = [pull.pull_cache(CacheKey(2, 70), target.cache, row, wait=False) for row in (0, 5)]
    assert all(transfer.wait(30) for transfer in transfers)
    done = nodes[0].completed()
    assert sorted(map(id, done)) == sorted(map(id, transfers))
    assert [transfer.error for transfer in done] == [None, None]
    assert nodes[0].completed() == []
    pull.pull_cache(CacheKey(2, 70), target.cache)
    assert nodes[0].completed() == []
    for array, peer in zip(target.expected, source.arrays, strict=True):
        array[[0, 5]] = peer[REQUEST]
    assert target.ok()


def test_notifications_ride_on_pulls(nodes, source, local, pull):
    target = local()
    for i, wait in enumerate((True, False)):
        pull.pull_cache(CacheKey(2, 70), target.cache, notify=b"done %d" % i, wait=wait).wait(30)
    # The answer to a question comes after what was sent before it.
    nodes[0].links[0].sync()
    assert [(n.cluster_id, n.payload) for n in nodes[1].notifications()] == [(1, b"done 0"), (1, b"done 1")]
    assert nodes[1].notifications() == []


def test_a_pull_into_a_cache_that_was_given_back_is_refused(nodes, source, local, pull):
    target = local()
    pull.unregister_cache(target.cache.cache_id)
    with pytest.raises(ClosedError, match="is not registered here, or no longer"):
        pull.pull_cache(CacheKey(2, 70), target.cache)
    with pytest.raises(ClosedError, match="is not registered here"):
        pull.pull_cache(CacheKey(2, 70), source.cache)
    for wrong, builtin in ((1, TypeError), (None, AttributeError)):
        with pytest.raises(builtin, match="give the Cache that a register call returned"):
            pull.pull_cache(CacheKey(2, 70), wrong)


def test_a_cache_that_the_peer_gave_back_cannot_be_pulled(nodes, source, local, pull):
    target = local()
    pull.pull_cache(CacheKey(2, 70), target.cache)
    nodes[1].cache_manager.unregister_cache(source.cache.cache_id)
    with pytest.raises(NotFoundError, match="it has published nothing"):
        pull.pull_cache(CacheKey(2, 70), target.cache)


def test_a_cache_that_peers_may_not_reach_cannot_be_pulled(nodes, tensors, local, pull):
    made = tensors(2, 1, 64)
    nodes[1].cache_manager.register_cache(made.desc, made.addrs, [CacheKey(2, 1)])
    with pytest.raises(NotFoundError, match="it has published nothing"):
        pull.pull_cache(CacheKey(2, 1), local(count=2).cache)


def test_a_manager_alone_cannot_pull(manager):
    cache = manager.register_cache(CacheDesc(1, (1, 8), DataType.DT_INT8, Placement.HOST), [0x1000])
    with pytest.raises(NotFoundError, match="this manager stands alone; links belong to a Node"):
        manager.pull_cache(CacheKey(2, 70), cache)
