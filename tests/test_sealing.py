"""Pulls that are held against what the owner sealed: wrong bytes never pass for right ones."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from cachefw import (
    BlocksCacheKey,
    BrokenError,
    CacheKey,
    CacheKeyByIdAndIndex,
    ClosedError,
    NotFoundError,
    Placement,
    RequestError,
    TransferTimeout,
)

COUNT, ROWS, STRIDE = 6, 8, 4096


class Ends:
    """Blocks caches of clusters 2 and 1, and a contiguous one of cluster 2 whose row 3 is request 70."""

    def __init__(self, nodes, tensors):
        self.here, self.there = (node.cache_manager for node in nodes)
        self.link = nodes[0].links[0]
        self.two = nodes[1]
        self.source, self.target = tensors(COUNT, ROWS, STRIDE, seed=2), tensors(COUNT, ROWS, STRIDE, seed=1)
        self.rows = tensors(COUNT, ROWS, 2 * STRIDE + 100, seed=3)
        source, target, rows = self.source, self.target, self.rows
        self.blocks = self.there.register_blocks_cache(source.desc, source.addrs, BlocksCacheKey(2), True)
        free = CacheKey(2, 2**64 - 1)
        self.contiguous = self.there.register_cache(rows.desc, rows.addrs, [free, free, free, CacheKey(2, 70)], True)
        self.local = self.here.register_blocks_cache(target.desc, target.addrs)

    def pull(self, src=(1, 5), dst=(4, 0), **options):
        options.setdefault("verify", "crc")
        return self.here.pull_blocks(BlocksCacheKey(2), self.local, list(src), list(dst), **options)

    def arrived(self, src=(1, 5), dst=(4, 0)):
        pairs = zip(self.source.arrays, self.target.arrays, strict=True)
        return all((there[list(src)] == here[list(dst)]).all() for there, here in pairs)


@pytest.fixture
def ends(nodes, tensors):
    return Ends(nodes, tensors)


def at_read(ends, monkeypatch, number, work):
    """Have something happen at the owner just after the n-th read of a pull: the seals, the bytes, the seals."""
    read, count = ends.link.read_pieces, iter(range(1, 100))

    def reads(*arguments, **options):
        done = read(*arguments, **options)
        if next(count) == number:
            work()
        return done

    monkeypatch.setattr(ends.link, "read_pieces", reads)


def test_what_was_sealed_arrives(ends):
    generations = ends.there.seal(ends.blocks, [1, 5])
    assert generations.tolist() == [2, 2]
    ends.pull()
    assert ends.arrived()
    ends.pull(verify=generations, notify=b"done")
    ends.link.sync()
    assert [told.payload for told in ends.two.notifications()] == [b"done"]


@pytest.mark.parametrize("tensor", [0, COUNT - 1])
def test_a_byte_changed_behind_its_back_is_found(ends, tensor):
    ends.there.seal(ends.blocks)
    ends.source.arrays[tensor][5, STRIDE - 1] ^= 1
    with pytest.raises(BrokenError, match=r"arrived of blocks 5 .* is not what was sealed \(tensors") as caught:
        ends.pull()
    assert caught.value.code == "content.mismatch"
    assert caught.value.facts == {"rows": [5], "failed": (1,), "tensors": [tensor]}
    assert caught.value.failed == (1,)
    assert caught.value.peer == ends.link.peer_name
    ends.there.seal(ends.blocks, [5])
    ends.pull()
    assert ends.arrived()


def test_bytes_that_change_on_the_way_are_found(ends, monkeypatch):
    """What the transport brought is looked at, not what it was asked to bring."""
    ends.there.seal(ends.blocks)

    def spoil():
        ends.target.arrays[2][4, 17] ^= 0x80

    at_read(ends, monkeypatch, 2, spoil)
    with pytest.raises(BrokenError, match="blocks 1 ") as caught:
        ends.pull()
    assert caught.value.code == "content.mismatch"


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("again", [False, True])
def test_a_block_given_away_during_the_pull_is_found(ends, monkeypatch, number, again):
    ends.there.seal(ends.blocks)

    def give_away():
        ends.there.unseal(ends.blocks, [5])
        for array in ends.source.arrays:
            array[5] = 7
        if again:
            ends.there.seal(ends.blocks, [5])

    at_read(ends, monkeypatch, number, give_away)
    with pytest.raises(BrokenError, match=r"blocks 5 .* changed while they were pulled") as caught:
        ends.pull(notify=b"done")
    assert (caught.value.code, caught.value.facts["rows"]) == ("content.changed", [5])
    ends.link.sync()
    assert not ends.two.notifications()


def test_another_generation_than_the_one_meant_is_refused_before_anything_moves(ends):
    meant = ends.there.seal(ends.blocks, [1, 5])
    ends.there.seal(ends.blocks, [5])
    before = ends.target.bytes()
    with pytest.raises(BrokenError, match=r"blocks 5 .* changed before they were pulled"):
        ends.pull(verify=meant)
    assert ends.target.bytes() == before
    ends.pull(verify=[2, 4])
    assert ends.arrived()


def test_blocks_that_are_open_or_never_were_sealed_are_refused(ends):
    with pytest.raises(NotFoundError, match="has sealed nothing") as caught:
        ends.pull()
    assert caught.value.code == "content.unsealed"
    ends.there.unseal(ends.blocks)
    ends.there.seal(ends.blocks, [1, 2])
    with pytest.raises(NotFoundError, match="not sealed blocks 5 ") as caught:
        ends.pull()
    assert (caught.value.code, caught.value.facts) == ("content.unsealed", {"rows": [5]})
    ends.there.unseal(ends.blocks, [1])
    with pytest.raises(BrokenError, match=r"blocks 1 .* changed before") as caught:
        ends.pull([1, 2])
    assert caught.value.code == "content.changed"


def test_layers_are_held_against_their_own_sums(ends):
    ends.there.seal(ends.blocks)
    layers = {"src_layer_range": range(1, 2), "dst_layer_range": range(2, 3)}
    ends.pull(**layers)
    assert (ends.target.arrays[4][4] == ends.source.arrays[2][1]).all()
    ends.source.arrays[0][1] ^= 1
    ends.pull(**layers)
    ends.source.arrays[3][1] ^= 1
    with pytest.raises(BrokenError) as caught:
        ends.pull(**layers)
    assert caught.value.facts["tensors"] == [3]


@pytest.mark.parametrize("key", [CacheKey(2, 70), None])
def test_rows_are_pulled_to_rows_and_to_blocks(ends, tensors, key):
    key = key or CacheKeyByIdAndIndex(2, ends.contiguous.cache_id, 3)
    made = tensors(COUNT, 2, 2 * STRIDE + 100, seed=9)
    row = ends.here.register_cache(made.desc, made.addrs)
    ends.there.seal(ends.contiguous, [3])
    ends.here.pull_cache(key, row, 1, verify="crc")
    assert all((there[3] == here[1]).all() for there, here in zip(ends.rows.arrays, made.arrays, strict=True))
    ends.here.pull_blocks(key, ends.local, dst_blocks=[6, 2, 0], verify="crc")
    first = ends.target.arrays[0]
    assert (np.concatenate([first[6], first[2], first[0][:100]]) == ends.rows.arrays[0][3]).all()
    ends.rows.arrays[1][3, -1] ^= 1
    for pull in (
        lambda: ends.here.pull_cache(key, row, 1, verify="crc"),
        lambda: ends.here.pull_blocks(key, ends.local, dst_blocks=[6, 2, 0], verify="crc"),
    ):
        with pytest.raises(BrokenError, match="rows 3 ") as caught:
            pull()
        assert (caught.value.code, caught.value.facts["tensors"]) == ("content.mismatch", [1])


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"verify": "md5"}, ValueError, "'crc' or the generations"),
        ({"verify": 3}, TypeError, "'crc' or the generations"),
        ({"verify": [2, None]}, TypeError, "'crc' or the generations"),
        ({"verify": [2]}, ValueError, "1 generations for 2 rows"),
        ({"verify": [2, -1]}, ValueError, "no generation"),
        ({"wait": False}, ValueError, "wait=True"),
        ({"notify": bytes(2**17)}, ValueError, "at most"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_moves(ends, options, kind, said):
    ends.there.seal(ends.blocks)
    before = ends.target.bytes()
    with pytest.raises(RequestError, match=said) as caught:
        ends.pull(**options)
    assert isinstance(caught.value, kind)
    assert ends.target.bytes() == before


def test_parts_of_rows_cannot_be_verified(ends, tensors):
    made = tensors(COUNT, 1, STRIDE, seed=9)
    row = ends.here.register_cache(made.desc, made.addrs)
    ends.there.seal(ends.contiguous)
    with pytest.raises(RequestError, match="verify needs whole rows"):
        ends.here.pull_cache(CacheKey(2, 70), row, size=100, verify="crc")
    with pytest.raises(RequestError, match="verify needs whole rows"):
        ends.here.pull_blocks(CacheKey(2, 70), ends.local, dst_blocks=[6, 2], verify="crc")


def test_sealing_refuses_what_makes_no_sense(ends):
    with pytest.raises(NotFoundError, match="blocks 0 to 7"):
        ends.there.seal(ends.blocks, [8])
    with pytest.raises(RequestError, match="more than once"):
        ends.there.seal(ends.blocks, [1, 1])
    with pytest.raises(RequestError, match="not remote-accessible"):
        ends.here.seal(ends.local)
    with pytest.raises(RequestError, match="give the Cache"):
        ends.there.seal(None)


def test_seals_go_with_their_cache(ends):
    before = len(ends.there.memories)
    ends.there.seal(ends.blocks)
    assert len(ends.there.memories) == before + 1
    ends.there.unregister_cache(ends.blocks.cache_id)
    assert len(ends.there.memories) == before - COUNT
    with pytest.raises(ClosedError):
        ends.there.seal(ends.blocks)


def test_memory_for_seals_is_used_again(ends):
    ends.there.seal(ends.blocks)
    ends.pull()
    before = len(ends.here.memories)
    for _ in range(20):
        ends.pull()
    assert len(ends.here.memories) == before


@pytest.mark.parametrize("transport", ["memory"], indirect=True)
def test_memory_for_seals_is_not_used_while_a_late_read_may_write_it(ends):
    ends.there.seal(ends.blocks)
    ends.pull()
    memory = ends.here.transport("memory")
    memory.pause()
    with pytest.raises(TransferTimeout):
        ends.pull(timeout=0.01)
    memory.resume()
    (late,) = ends.link.unsettled or [None]
    if late is not None:
        assert late.wait(10)
    ends.pull()
    assert ends.arrived()


@pytest.mark.parametrize("transport", ["memory"], indirect=True)
def test_device_memory_is_sealed_and_looked_at_by_copies(nodes, tensors):
    import attrs

    one, two = nodes
    # Device memory is registered before linking.
    one.unlink(one.links[0])
    here, there = one.cache_manager, two.cache_manager
    source, target = tensors(COUNT, ROWS, STRIDE, seed=2), tensors(COUNT, ROWS, STRIDE, seed=1)
    desc = attrs.evolve(source.desc, placement=Placement.DEVICE)
    blocks = there.register_blocks_cache(desc, source.addrs, BlocksCacheKey(2), True)
    local = here.register_blocks_cache(desc, target.addrs)
    one.link(two.address)
    there.seal(blocks)
    here.pull_blocks(BlocksCacheKey(2), local, [1], [2], verify="crc")
    assert (source.arrays[3][1] == target.arrays[3][2]).all()
    source.arrays[3][1, 0] ^= 1
    with pytest.raises(BrokenError, match="tensors 3"):
        here.pull_blocks(BlocksCacheKey(2), local, [1], [2], verify="crc")


def test_wrong_bytes_never_pass_while_an_owner_reuses_its_blocks(ends):
    """Each block is filled with one byte over and over while it is pulled; every other time without a word before."""
    stop, random = threading.Event(), np.random.default_rng(5)
    first = [array.copy() for array in ends.source.arrays]
    ends.there.seal(ends.blocks)

    def reuse():
        while not stop.is_set():
            block, value = int(random.integers(ROWS)), int(random.integers(256))
            if value % 2:
                ends.there.unseal(ends.blocks, [block])
            for array in ends.source.arrays:
                array[block] = value
            ends.there.seal(ends.blocks, [block])
            stop.wait(0.001)

    owner = threading.Thread(target=reuse)
    owner.start()
    outcomes = []
    try:
        for _ in range(300):
            try:
                ends.pull(range(ROWS), range(ROWS))
            except BrokenError as error:
                outcomes.append(error.code)
                continue
            outcomes.append("good")
            for row in range(ROWS):
                got = [array[row] for array in ends.target.arrays]
                untouched = all((one == other[row]).all() for one, other in zip(got, first, strict=True))
                assert untouched or all((one == got[0][0]).all() for one in got)
    finally:
        stop.set()
        owner.join()
    assert set(outcomes) <= {"good", "content.changed", "content.mismatch"}
    ends.there.seal(ends.blocks)
    ends.pull(range(ROWS), range(ROWS))
    assert ends.arrived(range(ROWS), range(ROWS))
