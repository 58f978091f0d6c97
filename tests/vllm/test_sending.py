"""The writing side without an engine: what seldom happens there, and at a chosen moment here."""

from __future__ import annotations

import time
import warnings

import numpy as np
import pytest

import cachefw

with warnings.catch_warnings():
    # What torch and vLLM say of each other when they are imported.
    warnings.simplefilter("ignore")
    from cachefw.integrations.vllm import words
    from cachefw.integrations.vllm.outcome import Outcomes
    from cachefw.integrations.vllm.sending import Sends
    from cachefw.integrations.vllm.steps import Computing

LAYERS, BLOCKS, SIZE, TOKENS = 3, 16, 64, 4
DESC = cachefw.CacheDesc(LAYERS, (BLOCKS, SIZE), cachefw.DataType.DT_UINT8, cachefw.Placement.HOST)


class Side:
    """A node with one blocks cache, whose block b is filled with `value` + b in each layer."""

    def __init__(self, cluster_id, value):
        self.node = cachefw.Node(cluster_id, "127.0.0.1:0")
        self.layers = np.zeros((LAYERS, BLOCKS, SIZE), np.uint8)
        if value:
            self.layers[:] = value + np.arange(BLOCKS, dtype=np.uint8)[None, :, None]
        manager = self.node.cache_manager
        manager.register_memory(self.layers, remote_accessible=True)
        addrs = [layer.ctypes.data for layer in self.layers]
        self.cache = manager.register_blocks_cache(DESC, addrs, cachefw.BlocksCacheKey(cluster_id, 0), True)


class Parts:
    """A writer, and who it writes to."""

    def __init__(self, patience=30.0):
        self.writer, self.reader = Side(1, 100), Side(2, 0)
        self.over = []
        self.trouble = False
        self.ended = set()
        tables = {f"layer {i}": (0, i) for i in range(LAYERS)}
        self.sends = Sends(
            self.writer.node,
            [self.writer.cache],
            tables,
            TOKENS,
            Outcomes(),
            self.over.append,
            lambda slot, use: (slot, use) in self.ended,
            patience,
            self._listen,
        )
        self.link = self.reader.node.link(self.writer.node.address)
        self.heard = []

    def _listen(self):
        if self.trouble:
            self.trouble = False
            raise RuntimeError("trouble")
        for note in self.writer.node.notifications():
            word = words.decode(note.payload)
            if isinstance(word, words.Want):
                self.sends.wanted(note.cluster_id, word)
            else:
                self.sends.stop(note.cluster_id, word.token)

    def want(self, request, pairs, token=1, slot=-1, prompt=""):
        for word in words.wants(token, request, slot, 1, prompt, pairs):
            self.link.notify(words.encode(word))

    def answers(self, count=1, seconds=20.0):
        end = time.monotonic() + seconds
        while len(self.heard) < count:
            assert time.monotonic() < end, f"only {self.heard}"
            self.heard += [words.decode(note.payload) for note in self.reader.node.notifications()]
            time.sleep(0.005)
        got, self.heard = self.heard[:count], self.heard[count:]
        return got

    def attached(self, name, seconds=20.0):
        end = time.monotonic() + seconds
        while not self.sends.busy(name):
            assert time.monotonic() < end
            time.sleep(0.005)

    def step(self, name, after, blocks, total=12, transfer="t"):
        self.sends.step({name: Computing(transfer, "", (blocks,), after, total)}, [], {})

    def compute(self):
        for i in range(LAYERS):
            self.sends.layer(f"layer {i}", None)
        self.sends.end_step(None)

    def landed(self):
        """By block here, the block there that each layer holds; None where layers differ."""
        found = {}
        for block in range(BLOCKS):
            values = set(self.reader.layers[:, block].reshape(-1).tolist())
            if values != {0}:
                found[block] = values.pop() - 100 if len(values) == 1 else None
        return found

    def close(self):
        self.sends.close()
        self.writer.node.close()
        self.reader.node.close()


@pytest.fixture
def parts():
    made = Parts()
    yield made
    made.close()


PAIRS = [(0, 0, 7), (0, 1, 8), (0, 2, 9)]


def test_a_layer_is_there_before_the_next_is_computed(parts):
    parts.want("@t", PAIRS)
    parts.step("r", 12, [3, 1, 2])
    parts.attached("r")
    parts.sends.layer("layer 0", None)
    end = time.monotonic() + 20
    while not (parts.reader.layers[0, 9] == 102).all():
        assert time.monotonic() < end
    assert (parts.reader.layers[1:] == 0).all()
    parts.sends.layer("layer 1", None)
    parts.sends.layer("layer 2", None)
    parts.sends.end_step(None)
    assert isinstance(parts.answers()[0], words.Done)
    assert parts.landed() == {7: 3, 8: 1, 9: 2}
    assert parts.over == ["r"]


def test_only_full_blocks_are_written_before_the_prompt_is_whole(parts):
    parts.want("@t", PAIRS)
    parts.step("r", 7, [3, 1, 2], total=10)
    parts.attached("r")
    parts.compute()
    end = time.monotonic() + 20
    while parts.landed() != {7: 3}:
        assert time.monotonic() < end
    parts.step("r", 10, [3, 1, 2], total=10)
    parts.compute()
    assert isinstance(parts.answers()[0], words.Done)
    assert parts.landed() == {7: 3, 8: 1, 9: 2}


def test_what_another_request_computes_in_the_same_step_is_not_written_before(parts):
    # The first block was found in the prefix cache, where the engine enters blocks before they are computed.
    parts.want("@t", PAIRS)
    parts.writer.layers[:, 3] = 1
    parts.step("r", 12, [3, 1, 2])
    parts.attached("r")
    parts.writer.layers[:, 3] = 103
    parts.compute()
    assert isinstance(parts.answers()[0], words.Done)
    assert parts.landed() == {7: 3, 8: 1, 9: 2}


def test_one_that_comes_between_two_layers_gets_all(parts):
    parts.step("r", 12, [3, 1, 2])
    parts.sends.layer("layer 0", None)
    parts.want("@t", PAIRS)
    parts.attached("r")
    parts.sends.layer("layer 1", None)
    parts.sends.layer("layer 2", None)
    parts.sends.end_step(None)
    assert isinstance(parts.answers()[0], words.Done)
    assert parts.landed() == {7: 3, 8: 1, 9: 2}


def test_a_preempted_request_is_written_anew_from_its_new_blocks(parts):
    parts.want("@t", PAIRS)
    parts.step("r", 8, [3, 1], total=12)
    parts.attached("r")
    parts.compute()
    parts.sends.step({}, ["r"], {})
    # Somebody else has the blocks now.
    parts.writer.layers[:, [3, 1]] = 1
    parts.step("r", 12, [10, 11, 12])
    parts.compute()
    assert isinstance(parts.answers()[0], words.Done)
    assert parts.landed() == {7: 10, 8: 11, 9: 12}


def test_a_request_that_ends_before_it_is_whole_is_refused(parts):
    parts.want("@t", PAIRS)
    parts.step("r", 8, [3, 1, 2])
    parts.attached("r")
    parts.compute()
    parts.sends.step({}, [], {"r": "t"})
    (answer,) = parts.answers()
    assert "cancelled" in answer.reason
    assert parts.over == []
    # So it is to whoever asks again.
    parts.want("@t", PAIRS, token=2)
    assert isinstance(parts.answers()[0], words.Failed)


def test_a_request_that_ends_before_anything_of_it_is_computed_is_refused(parts):
    parts.want("@t", PAIRS)
    end = time.monotonic() + 20
    while not parts.sends._waiting:
        assert time.monotonic() < end
        time.sleep(0.005)
    parts.sends.step({}, [], {"r": "t"})
    assert "cancelled" in parts.answers()[0].reason
    parts.want("@t", PAIRS, token=2)
    assert isinstance(parts.answers()[0], words.Failed)


def test_two_who_want_the_same_request_both_get_it(parts):
    parts.want("@t", PAIRS, token=1)
    parts.want("r", [(0, 2, 4)], token=2)
    parts.step("r", 12, [3, 1, 2])
    parts.attached("r")
    parts.compute()
    parts.sends.keep("r", Computing("t", "", ([3, 1, 2],), 12, 12))
    assert {type(answer) for answer in parts.answers(2)} == {words.Done}
    assert parts.landed() == {4: 2, 7: 3, 8: 1, 9: 2}
    assert parts.over == ["r"]


def test_stopping_is_answered_whatever_the_state(parts):
    parts.want("@never", PAIRS, token=5)
    parts.link.notify(words.encode(words.Stop(5)))
    assert parts.answers()[0].reason == "it was cancelled"
    parts.want("@t", PAIRS, token=6)
    parts.step("r", 8, [3, 1, 2])
    parts.attached("r")
    parts.link.notify(words.encode(words.Stop(6)))
    assert parts.answers()[0] == words.Failed(6, "it was cancelled")
    # Nothing comes of it any more.
    before = parts.landed()
    parts.step("r", 12, [3, 1, 2])
    parts.compute()
    assert parts.landed() == before


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([(0, 3, 7)], "4 blocks of group 0 are wanted, and there are 3"),
        ([(1, 0, 7)], "1 blocks of group 1 are wanted, and there are 0"),
        ([(-1, 0, 7)], "1 blocks of group -1 are wanted, and there are 0"),
        ([(0, -1, 7)], "there are 3"),
        ([(0, 0, 16)], "has blocks 0 to 15"),
        ([(0, 0, 7), (0, 1, 7)], "7"),
    ],
)
def test_what_cannot_be_written_is_refused_with_the_reason(parts, pairs, reason):
    parts.sends.keep("r", Computing("", "", ([3, 1, 2],), 12, 12))
    parts.want("r", pairs, slot=1)
    (answer,) = parts.answers()
    assert reason in answer.reason
    assert parts.landed() == {}
    assert not parts.sends.busy("r")


def test_a_list_that_is_no_list_is_refused(parts):
    parts.sends.keep("r", Computing("", "", ([3, 1, 2],), 12, 12))
    parts.link.notify(words.encode(words.Want(1, "r", 1, 1, "", b"12345", False)))
    assert "cannot be read" in parts.answers()[0].reason


def test_a_want_of_many_blocks_comes_in_parts(parts):
    pairs = [(0, place, place) for place in range(20_000)]
    parts_of_it = list(words.wants(1, "r", 1, 1, "", pairs))
    assert len(parts_of_it) > 2
    assert [part.more for part in parts_of_it] == [True] * (len(parts_of_it) - 1) + [False]
    assert all(len(words.encode(part)) <= 64 * 2**10 for part in parts_of_it)
    assert words.pairs_of(parts_of_it).tolist() == [list(pair) for pair in pairs]
    for part in words.wants(1, "r", 1, 1, "", PAIRS[:2]):
        parts.link.notify(words.encode(words.Want(1, "r", 1, 1, "", part.pairs, True)))
    for part in words.wants(1, "r", 1, 1, "", PAIRS[2:]):
        parts.link.notify(words.encode(part))
    parts.sends.keep("r", Computing("", "", ([3, 1, 2],), 12, 12))
    assert isinstance(parts.answers()[0], words.Done)
    assert parts.landed() == {7: 3, 8: 1, 9: 2}


def test_what_a_window_has_left_behind_is_not_written(parts):
    parts.sends.keep("r", Computing("", "", ([0, 1, 2],), 12, 12))
    parts.want("r", PAIRS, slot=1)
    assert isinstance(parts.answers()[0], words.Done)
    assert parts.landed() == {8: 1, 9: 2}


def test_one_job_that_goes_wrong_does_not_end_the_thread(parts):
    parts.sends.keep("r", Computing("", "", ([3, 1, 2],), 12, 12))
    parts.trouble = True
    parts.want("r", PAIRS, slot=1, token=1)
    end = time.monotonic() + 20
    while parts.trouble:
        assert time.monotonic() < end
        time.sleep(0.005)
    parts.want("r", PAIRS, slot=1, token=2)
    # The first was left lying, and is found with the second.
    assert {(type(answer), answer.token) for answer in parts.answers(2)} == {(words.Done, 1), (words.Done, 2)}

    def broken(*_rest, **_more):
        raise RuntimeError("broken")

    parts.sends.keep("s", Computing("", "", ([4, 5, 6],), 12, 12))
    parts.writer.node.cache_manager.push_blocks = broken
    parts.want("s", PAIRS, slot=1, token=3)
    assert parts.answers() == [words.Failed(3, "broken")]


def test_nobody_waits_for_ever_for_a_request_that_does_not_come():
    made = Parts(patience=0.3)
    try:
        made.want("@t", PAIRS)
        assert "within 0.3 s" in made.answers()[0].reason
        made.ended.add((4, 1))
        made.want("r", PAIRS, token=2, slot=4)
        assert "given away" in made.answers()[0].reason
    finally:
        made.close()


def test_one_that_is_let_go_while_it_is_written_is_refused_and_not_done(parts):
    parts.want("@t", PAIRS)
    parts.step("r", 8, [3, 1, 2])
    parts.attached("r")
    parts.sends.forget("r")
    (answer,) = parts.answers()
    assert isinstance(answer, words.Failed)
    assert not parts.sends.busy("r")
