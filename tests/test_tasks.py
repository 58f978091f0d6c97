"""Pushing a cache layer by layer: when layers are asked for and sent, and what each peer's outcome is."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from cachefw import (
    BlocksCacheKey,
    BrokenError,
    BusyError,
    CacheKey,
    CacheKeyByIdAndIndex,
    ClosedError,
    LayerSynchronizer,
    Node,
    NotFoundError,
    RequestError,
    TransferCancelled,
    TransferConfig,
    TransferTimeout,
    TransferWithCacheKeyConfig,
)

COUNT, ROWS, STRIDE = 8, 3, 64
LAYERS = COUNT // 2
SECONDS = 30


class Steps(LayerSynchronizer):
    """Lets one layer go at a time, or does at a layer what it is told."""

    def __init__(self, *, free=True, at=None, then=None):
        self.asked = []
        self.given = []
        self.gate = threading.Semaphore(LAYERS if free else 0)
        self.reached = threading.Semaphore(0)
        self.at, self.then = at, then

    def synchronize_layer(self, layer_index, timeout_in_millis):
        self.asked.append(layer_index)
        self.given.append(timeout_in_millis)
        self.reached.release()
        if not self.gate.acquire(timeout=SECONDS):
            raise AssertionError("nobody let the layer go")
        if layer_index == self.at:
            if isinstance(self.then, Exception):
                raise self.then
            return self.then
        return True


@pytest.fixture
def cache(nodes, tensors):
    """The cache of cluster 1 that is sent."""
    made = tensors(COUNT, ROWS, STRIDE, seed=1)
    made.cache = nodes[0].cache_manager.register_cache(made.desc, made.arrays)
    return made


@pytest.fixture
def target(nodes, tensors):
    """Makes caches of cluster 2, filled with zeros."""

    def make(*, blocks=False, count=COUNT, stride=STRIDE):
        made = tensors(count, ROWS, stride)
        for array in made.arrays:
            array[:] = 0
        manager = nodes[1].cache_manager
        if blocks:
            made.cache = manager.register_blocks_cache(made.desc, made.arrays, BlocksCacheKey(2), True)
        else:
            made.cache = manager.register_cache(made.desc, made.arrays, [CacheKey(2, 7)], True)
        return made

    return make


@pytest.fixture
def send(nodes, cache):
    return lambda *args, **more: nodes[0].cache_manager.transfer_cache_async(cache.cache, *args, **more)


def by_id(made, row=0, **more):
    return TransferWithCacheKeyConfig(CacheKeyByIdAndIndex(2, made.cache.cache_id, row), **more)


# ---------------------------------------------------------------------- layers


def test_a_layer_is_sent_when_it_is_ready_and_not_before(send, cache, target):
    there, steps = target(), Steps(free=False)
    task = send(steps, [by_id(there, 1)])
    for layer in range(LAYERS):
        assert steps.reached.acquire(timeout=SECONDS)
        assert not any(array.any() for array in there.arrays[2 * layer :])
        assert not task.done
        steps.gate.release()
    task.synchronize(SECONDS)
    assert task.done
    assert task.get_results() == [None]
    assert steps.asked == list(range(LAYERS))
    assert steps.given == [None] * LAYERS
    for mine, theirs in zip(cache.arrays, there.arrays, strict=True):
        assert (theirs[1] == mine[0]).all()
        assert not theirs[[0, 2]].any()


def test_layers_that_nobody_wants_are_not_asked_for_and_each_wanted_one_once(send, cache, target):
    there, steps = target(), Steps()
    configs = [
        by_id(there, 0, src_layer_range=range(2, 4), dst_layer_range=range(2)),
        by_id(there, 1, src_layer_range=range(2, 3), dst_layer_range=range(3, 4), src_batch_index=2),
    ]
    assert send(steps, configs).get_results(SECONDS) == [None, None]
    assert steps.asked == [2, 3]
    for i in range(4):
        assert (there.arrays[i][0] == cache.arrays[4 + i][0]).all()
    for i in range(2):
        assert (there.arrays[6 + i][1] == cache.arrays[4 + i][2]).all()
    assert not any(array[2].any() for array in there.arrays)


def test_no_configs_are_nothing_to_do(send):
    steps = Steps()
    task = send(steps, [])
    task.synchronize(SECONDS)
    assert task.get_results(SECONDS) == steps.asked == []


def test_layer_transfers_are_the_tasks_own(nodes, send, target):
    send(Steps(), [by_id(target())]).synchronize(SECONDS)
    assert nodes[0].completed() == []


# ---------------------------------------------------------------------- outcomes


def test_each_peer_has_an_outcome_of_its_own(send, cache, target):
    there = target()
    missing = TransferWithCacheKeyConfig(CacheKeyByIdAndIndex(2, 99))
    narrow = target(blocks=True)
    task = send(
        Steps(),
        [
            TransferWithCacheKeyConfig(CacheKeyByIdAndIndex(9, 1)),
            by_id(there),
            missing,
            TransferWithCacheKeyConfig(BlocksCacheKey(2)),
            TransferConfig(2, [0x1000] * COUNT),
        ],
    )
    unlinked, fine, unknown, layout, astray = task.get_results(SECONDS)
    assert fine is None
    assert isinstance(unlinked, NotFoundError)
    assert unlinked.code == "not_found.link"
    assert isinstance(unknown, NotFoundError)
    assert unknown.code == "not_found.cache"
    assert "is a blocks cache; name its blocks in dst_block_indices" in str(layout)
    assert isinstance(astray, RequestError)
    assert astray.facts["layer"] == 0
    assert (there.arrays[5][0] == cache.arrays[5][0]).all()
    assert not narrow.arrays[0].any()
    with pytest.raises(NotFoundError):
        task.synchronize()


@pytest.mark.parametrize(
    ("then", "code", "words"),
    [
        (False, "task.layer", "the synchronizer said that layer 2 failed"),
        (ValueError("odd"), "task.synchronizer", r"the synchronizer raised ValueError\('odd'\) at layer 2"),
    ],
)
def test_a_layer_that_fails_ends_what_is_not_sent_whole(send, cache, target, then, code, words):
    there = target()
    task = send(Steps(at=2, then=then), [by_id(there), by_id(there, 1, src_layer_range=range(2))])
    with pytest.raises(TransferCancelled, match=words) as caught:
        task.synchronize(SECONDS)
    assert caught.value.code == code
    if isinstance(then, Exception):
        assert caught.value.__cause__ is then
    ended, whole = task.get_results(SECONDS)
    assert ended is caught.value
    assert whole is None
    assert task.done
    for i, array in enumerate(there.arrays):
        assert (array[0] == cache.arrays[i][0]).all() if i < 4 else not array.any()


def test_a_timeout_of_looking_cancels_nothing(send, cache, target):
    there, steps = target(), Steps(free=False)
    task = send(steps, [by_id(there)])
    with pytest.raises(TransferTimeout):
        task.synchronize(0.01)
    (late,) = task.get_results(0)
    assert isinstance(late, TransferTimeout)
    assert not late.settled
    steps.gate.release(LAYERS)
    task.synchronize(SECONDS)
    assert (there.arrays[-1][0] == cache.arrays[-1][0]).all()


def test_a_deadline_ends_the_task(send, target):
    steps = Steps(free=False)
    task = send(steps, [by_id(target())], timeout=0.05)
    assert steps.reached.acquire(timeout=SECONDS)
    assert 1 <= steps.given[0] <= 51
    while not isinstance(task.get_results(0.01)[0], TransferTimeout):
        pass
    threading.Event().wait(0.1)
    steps.gate.release(LAYERS)
    (late,) = task.get_results()
    assert isinstance(late, TransferTimeout)
    while not task.done:
        threading.Event().wait(0.001)
    assert "layer 0 was not ready" in str(task.get_results()[0])
    assert steps.asked == [0]


def test_a_peer_that_goes_away_fails_alone(site, nodes, tensors, cache, target, transport, send):
    there = target()
    with Node(3, "127.0.0.1:0", transports=[transport]) as third:
        nodes[0].link(third.address)
        made = tensors(COUNT, ROWS, STRIDE)
        other = third.cache_manager.register_cache(made.desc, made.arrays, remote_accessible=True)
        steps = Steps(free=False)
        gone = TransferWithCacheKeyConfig(CacheKeyByIdAndIndex(3, other.cache_id))
        task = send(steps, [gone, by_id(there)])
        steps.gate.release()
        for _ in range(2):
            assert steps.reached.acquire(timeout=SECONDS)
    steps.gate.release(LAYERS)
    lost, fine = task.get_results(SECONDS)
    assert isinstance(lost, (BrokenError, ClosedError))
    assert lost.peer
    assert fine is None
    assert (there.arrays[-1][0] == cache.arrays[-1][0]).all()


def test_closing_settles_what_runs_and_what_waits(nodes, send, target):
    steps = [Steps(free=False) for _ in range(6)]
    there = target()
    tasks = [send(each, [by_id(there)]) for each in steps]
    for each in steps[:4]:
        assert each.reached.acquire(timeout=SECONDS)
    # The threads are inside the synchronizers, and come out when these return.
    closing = threading.Thread(target=nodes[0].close)
    closing.start()
    for task in tasks:
        (error,) = task.get_results(SECONDS)
        assert isinstance(error, TransferCancelled)
        assert error.code == "task.closed"
        assert task.done
    for each in steps:
        each.gate.release(LAYERS)
    closing.join(SECONDS)
    assert not any(array.any() for array in there.arrays)
    with pytest.raises(ClosedError):
        send(Steps(), [])


def test_more_tasks_than_can_wait_are_refused(nodes, send, target):
    workers = nodes[0].cache_manager._workers
    workers._most = 2
    steps, there = Steps(free=False), target()
    tasks = [send(steps, [by_id(there)]) for _ in range(4)]
    for _ in range(4):
        assert steps.reached.acquire(timeout=SECONDS)
    tasks += [send(steps, [by_id(there)]) for _ in range(2)]
    with pytest.raises(BusyError, match="2 tasks wait for 4 threads already"):
        send(steps, [by_id(there)])
    steps.gate.release(LAYERS * 6)
    for task in tasks:
        task.synchronize(SECONDS)


# ---------------------------------------------------------------------- what cannot be


@pytest.mark.parametrize(
    ("args", "builtin", "words"),
    [
        ((None, []), AttributeError, "layer_synchronizer must be a LayerSynchronizer, not None"),
        ((5, []), TypeError, "layer_synchronizer must be"),
        ((Steps(), None), AttributeError, "transfer_configs must be a list or tuple"),
        ((Steps(), [5]), TypeError, r"transfer_configs\[0\] must be a TransferConfig or TransferWithCacheKeyConfig"),
        ((Steps(), [TransferConfig(2, [1] * 7)]), ValueError, "has 7 dst_addrs for 4 layers; give 2 for each"),
        ((Steps(), [TransferConfig(2, [1, None])]), AttributeError, r"dst_addrs\[1\] must be an int"),
        ((Steps(), [TransferConfig(2, [-1] * 8)]), ValueError, r"dst_addrs\[0\] is -1"),
        ((Steps(), [TransferConfig(2, [1] * 2, range(4, 5))]), LookupError, "names layer 4"),
        ((Steps(), [TransferConfig(2, [], range(2, 2))]), ValueError, "name a layer"),
        ((Steps(), [TransferConfig(2, [1] * 8, None, 3)]), LookupError, "src_batch_index 3: .* has rows 0 to 2"),
        (
            (Steps(), [TransferWithCacheKeyConfig(CacheKey(2, 7))]),
            TypeError,
            "must be a BlocksCacheKey or CacheKeyById",
        ),
        (
            (Steps(), [TransferWithCacheKeyConfig(BlocksCacheKey(2), range(2), range(3))]),
            ValueError,
            "have unequal lengths",
        ),
        ((Steps(), [], [0]), ValueError, "blocks are not sent into rows"),
        ((Steps(), [], [0], [0]), ValueError, "is a contiguous cache; leave src_block_indices out"),
        ((Steps(), [], None, [0]), ValueError, "give dst_block_memory_size"),
        ((Steps(), [], None, [0], 0), ValueError, "give dst_block_memory_size"),
        ((Steps(), [], None, [], 32), ValueError, "dst_block_indices is empty"),
        ((Steps(), [], None, [0, 0], 32), ValueError, "block 0 more than once"),
        ((Steps(), [], None, [0, 1, 2], 32), ValueError, "3 blocks of 32 bytes are more than a row"),
        ((Steps(), [], None, None, 32), ValueError, "dst_block_memory_size without dst_block_indices"),
    ],
)
def test_what_cannot_be_is_refused_at_once(send, args, builtin, words):
    with pytest.raises(builtin, match=words) as caught:
        send(*args)
    assert isinstance(caught.value, RequestError)
    assert caught.value.operation == "transfer_cache_async"


def test_a_blocks_cache_names_its_blocks(nodes, tensors, target):
    made = tensors(COUNT, ROWS, STRIDE)
    manager = nodes[0].cache_manager
    cache = manager.register_blocks_cache(made.desc, made.arrays)
    there = target(blocks=True)
    config = TransferWithCacheKeyConfig(BlocksCacheKey(2))
    with pytest.raises(ValueError, match="name its blocks in src_block_indices"):
        manager.transfer_cache_async(cache, Steps(), [config])
    with pytest.raises(ValueError, match=r"a block of .* has 64 bytes"):
        manager.transfer_cache_async(cache, Steps(), [config], [0], [1], 63)
    with pytest.raises(ValueError, match="has no rows"):
        manager.transfer_cache_async(cache, Steps(), [TransferConfig(2, [1] * 8, None, 1)], [0], [1])
    (error,) = manager.transfer_cache_async(cache, Steps(), [config], [0], [3]).get_results(SECONDS)
    assert "has blocks 0 to 2" in str(error)
    manager.transfer_cache_async(cache, Steps(), [config], [2, 0], [0, 1], STRIDE).synchronize(SECONDS)
    for mine, theirs in zip(made.arrays, there.arrays, strict=True):
        assert (theirs[:2] == mine[[2, 0]]).all()
        assert not theirs[2].any()


def test_an_odd_number_of_tensors_has_no_layers(nodes, tensors):
    made = tensors(3, ROWS, STRIDE)
    cache = nodes[0].cache_manager.register_cache(made.desc, made.arrays)
    with pytest.raises(ValueError, match="odd number of tensors"):
        nodes[0].cache_manager.transfer_cache_async(cache, Steps(), [])


def test_an_abstract_synchronizer_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        LayerSynchronizer()


def test_a_larger_row_is_not_written_past_the_end_of_a_smaller(send, target):
    there = target(stride=STRIDE - 1)
    (error,) = send(Steps(), [by_id(there)]).get_results(SECONDS)
    assert "a row of cache 1" in str(error)
    assert not np.concatenate(there.arrays).any()
