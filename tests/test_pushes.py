"""Pushing to a linked peer: what is refused before anything is sent, and what rides on a push."""

from __future__ import annotations

import pytest

from cachefw import BlocksCacheKey, CacheKey, CacheKeyByIdAndIndex, ClosedError, NotFoundError, RequestError

COUNT, ROWS, STRIDE = 4, 3, 64


@pytest.fixture
def scene(nodes, tensors):
    """A contiguous and a blocks cache on each side, by side and layout; cluster 2 holds zeros."""
    held = {}
    for side, node in enumerate(nodes):
        for blocks in (False, True):
            made = tensors(COUNT, ROWS, STRIDE, seed=side)
            if side:
                for array in made.arrays:
                    array[:] = 0
            manager = node.cache_manager
            register = manager.register_blocks_cache if blocks else manager.register_cache
            names = BlocksCacheKey(2) if blocks else [CacheKey(2, 7)]
            made.cache = register(made.desc, made.arrays, names, remote_accessible=True)
            held[side, blocks] = made
    return held


@pytest.fixture
def push(nodes):
    return nodes[0].cache_manager


def untouched(scene):
    return not any(array.any() for blocks in (False, True) for array in scene[1, blocks].arrays)


ROW = CacheKey(2, 7)
BLOCKS = BlocksCacheKey(2)


@pytest.mark.parametrize(
    ("key", "blocks", "args", "builtin", "words"),
    [
        (BLOCKS, False, (), TypeError, "push_cache takes a CacheKey or CacheKeyByIdAndIndex"),
        (None, False, (), AttributeError, "push_cache takes a CacheKey"),
        (CacheKey(2, 7, 0, 8), False, (), ValueError, "has both req_id and prefix_id"),
        (CacheKeyByIdAndIndex(2, 0), False, (), ValueError, "cache ids start at 1"),
        (CacheKeyByIdAndIndex(2, 1, 3), False, (), LookupError, "has rows 0 to 2"),
        (CacheKey(2, 8), False, (), LookupError, "has published no cache with req_id 8"),
        (CacheKey(1, 7), False, (), LookupError, "this node's own id"),
        (CacheKeyByIdAndIndex(2, 2), False, (), ValueError, "is a blocks cache; use push_blocks"),
        (ROW, True, (), ValueError, "is a blocks cache; use push_blocks"),
        (ROW, False, (3,), LookupError, r"src_batch_index 3: cache 1.* has rows 0 to 2"),
        (ROW, False, (-1,), ValueError, "src_batch_index must be at least 0"),
        (ROW, False, (True,), TypeError, "src_batch_index must be an int"),
        (ROW, False, (0, None, None, 0), ValueError, "size must be at least 1, not 0"),
        (ROW, False, (0, None, None, STRIDE + 1), ValueError, "65 bytes do not fit a row"),
        (ROW, False, (0, None, None, -1, 0), ValueError, "tensor_num_per_layer must be at least 1"),
        (ROW, False, (0, None, None, -1, 3), ValueError, "do not make layers of 3 tensors each; give tensor_num"),
        (ROW, False, (0, None, None, -1, 8), ValueError, "do not make layers of 8 tensors each; give tensor_num"),
        (ROW, False, (0, range(1), None), ValueError, "do not pair with 4 tensors"),
        (ROW, False, (0, range(1), range(2)), ValueError, "do not pair with 4 tensors"),
        (ROW, False, (0, range(0), range(0)), ValueError, "name a layer"),
        (ROW, False, (0, range(0, 2, 2), None), ValueError, "must have step 1"),
        (ROW, False, (0, [0], None), TypeError, "src_layer_range must be a range or None"),
        (ROW, False, (0, range(2, 3), range(1)), LookupError, "names layer 2"),
    ],
)
def test_rows_that_cannot_be_pushed_are_refused(scene, push, key, blocks, args, builtin, words):
    with pytest.raises(builtin, match=words) as caught:
        push.push_cache(key, scene[0, blocks].cache, *args)
    assert isinstance(caught.value, RequestError)
    assert caught.value.operation == "push_cache"
    assert untouched(scene)


@pytest.mark.parametrize(
    ("key", "blocks", "args", "builtin", "words"),
    [
        (ROW, True, ([0], [0]), TypeError, "push_blocks takes a BlocksCacheKey or CacheKeyByIdAndIndex"),
        (CacheKeyByIdAndIndex(2, 1), True, ([0], [0]), ValueError, "is a contiguous cache; use push_cache"),
        (CacheKeyByIdAndIndex(2, 2, 1), True, ([0], [0]), ValueError, "has no rows; leave batch_index at 0"),
        (BlocksCacheKey(2, 1), True, ([0], [0]), LookupError, "no cache with a blocks key of model 1"),
        (BLOCKS, True, ([], []), ValueError, "dst_blocks is empty"),
        (BLOCKS, True, ([], [0]), ValueError, "src_blocks has 0 blocks and dst_blocks has 1"),
        (BLOCKS, True, ([0, 1], [0]), ValueError, "src_blocks has 2 blocks and dst_blocks has 1"),
        (BLOCKS, True, ([0, 1], [2, 2]), ValueError, "block 2 more than once"),
        (BLOCKS, True, ([3], [0]), LookupError, r"src_blocks\[0\] = 3: blocks cache 2.* has blocks 0 to 2"),
        (BLOCKS, True, ([0], [3]), LookupError, r"dst_blocks\[0\] = 3: the peer's cache 2.* has blocks 0 to 2"),
        (BLOCKS, True, (None, [0]), AttributeError, "src_blocks is None"),
        (BLOCKS, True, ([0], None), AttributeError, "dst_blocks is None"),
        (BLOCKS, True, ([0], ["0"]), TypeError, r"dst_blocks\[0\] must be an int"),
        (BLOCKS, False, ([0], [0]), ValueError, "is contiguous and has no blocks; leave src_blocks empty"),
        (BLOCKS, False, ([], [0, 1]), ValueError, "2 blocks of 64 bytes are more than a row"),
    ],
)
def test_blocks_that_cannot_be_pushed_are_refused(scene, push, key, blocks, args, builtin, words):
    with pytest.raises(builtin, match=words) as caught:
        push.push_blocks(key, scene[0, blocks].cache, *args)
    assert isinstance(caught.value, RequestError)
    assert caught.value.operation == "push_blocks"
    assert untouched(scene)


def test_a_larger_row_or_block_does_not_overrun_a_smaller(nodes, tensors, scene, push):
    made = tensors(COUNT, ROWS, STRIDE + 1)
    rows = push.register_cache(made.desc, made.arrays)
    with pytest.raises(ValueError, match="65 bytes do not fit a row of the peer's"):
        push.push_cache(ROW, rows)
    other = tensors(COUNT, ROWS, STRIDE + 1)
    blocks = push.register_blocks_cache(other.desc, other.arrays)
    with pytest.raises(ValueError, match=r"a block of .* has 65 bytes, one of the peer's .* has 64"):
        push.push_blocks(BLOCKS, blocks, [0], [0])
    assert untouched(scene)


def test_a_wider_cache_there_takes_the_first_layers(nodes, tensors, scene, push):
    made = tensors(2, ROWS, STRIDE, seed=5)
    push.push_cache(ROW, push.register_cache(made.desc, made.arrays), 1)
    there = scene[1, False].arrays
    assert [(array[0] == mine[1]).all() for array, mine in zip(there, made.arrays, strict=False)] == [True, True]
    assert not any(array.any() for array in there[2:])


def test_notifications_ride_on_pushes(nodes, scene, push):
    for i, wait in enumerate((True, False)):
        push.push_cache(ROW, scene[0, False].cache, notify=b"row %d" % i, wait=wait).wait(30)
        push.push_blocks(BLOCKS, scene[0, True].cache, [0], [1], notify=b"block %d" % i, wait=wait).wait(30)
    nodes[0].links[0].sync()
    assert [n.payload for n in nodes[1].notifications()] == [b"row 0", b"block 0", b"row 1", b"block 1"]
    assert len(nodes[0].completed()) == 2


def test_a_cache_that_is_not_registered_is_not_pushed(scene, push):
    for wrong, builtin in ((1, TypeError), (None, AttributeError)):
        with pytest.raises(builtin, match="give the Cache that a register call returned"):
            push.push_cache(ROW, wrong)
    cache = scene[0, False].cache
    push.unregister_cache(cache.cache_id)
    with pytest.raises(ClosedError, match="is not registered here, or no longer"):
        push.push_cache(ROW, cache)
    with pytest.raises(ClosedError):
        push.push_blocks(BLOCKS, scene[1, True].cache, [0], [0])


def test_a_manager_alone_cannot_push(manager, tensors):
    made = tensors(2, 1, 8)
    cache = manager.register_cache(made.desc, made.arrays)
    with pytest.raises(NotFoundError, match="this manager stands alone"):
        manager.push_cache(ROW, cache)
