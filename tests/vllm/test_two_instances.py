"""Prefill in one vLLM, decode in another: the tokens are those of one instance that does both."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest

BASE = "the quick brown fox jumps over the lazy dog. a cache moves blocks of keys and values between processes. "
PROMPTS = [f"{i} " + BASE[i:] * (1 + 3 * i) for i in range(6)] + ["zebra " * 150, "q" * 31, BASE * 8]
TOKENS = 32


@pytest.fixture(scope="module")
def wanted(pair) -> list[list[int]]:
    """What the decode instance says when it computes everything itself."""
    _, decode = pair
    tokens, _ = decode.generate(PROMPTS, TOKENS)
    assert len({tuple(one) for one in tokens}) == len(PROMPTS)
    return tokens


@pytest.fixture
def fresh(pair, wanted) -> Any:
    """The pair, with nothing cached."""
    until(lambda: released(pair[0]))
    for instance in pair:
        instance.forget()
    return pair


def said(instance, text, since=0):
    return [line for line in instance.lines()[since:] if text in line]


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


def released(prefill):
    """Whether the prefill instance keeps nothing; it only looks while it works."""
    prefill.generate(["x"], 1)
    return prefill.usage() == 0


def test_tokens_are_those_of_one_instance(fresh, wanted):
    prefill, decode = fresh
    begin = len(decode.lines())
    got, _ = decode.generate(PROMPTS, TOKENS, prefill.prefill(PROMPTS))
    assert got == wanted
    assert not said(decode, "computed here", begin)
    assert not said(decode, "could not be loaded", begin)
    until(lambda: released(prefill))


def test_a_shared_prefix_is_loaded_once_and_the_rest_is_added(fresh):
    prefill, decode = fresh
    start = BASE * 4
    longer = [start + f"and then number {i} " * 10 for i in range(4)]
    plain, _ = decode.generate([start, *longer], TOKENS)
    decode.forget()
    assert decode.generate([start], TOKENS, prefill.prefill([start]))[0] == plain[:1]
    assert decode.generate(longer, TOKENS, prefill.prefill(longer))[0] == plain[1:]
    until(lambda: released(prefill))


def test_what_is_cached_here_already_is_not_loaded_and_released_there(fresh, wanted):
    prefill, decode = fresh
    decode.generate(PROMPTS[:3], TOKENS)
    assert decode.generate(PROMPTS[:3], TOKENS, prefill.prefill(PROMPTS[:3]))[0] == wanted[:3]
    until(lambda: released(prefill))


def test_blocks_in_the_wrong_order_change_the_tokens(fresh, wanted):
    # What makes sure that the comparison can fail.
    prefill, decode = fresh
    params = copy.deepcopy(prefill.prefill(PROMPTS[3:6]))
    for one in params:
        (blocks,) = one["remote_block_ids"]
        one["remote_block_ids"] = [blocks[1:] + blocks[:1]]
    got, _ = decode.generate(PROMPTS[3:6], TOKENS, params)
    assert all(mine != theirs for mine, theirs in zip(got, wanted[3:6], strict=True))


DIFFERENCES = {
    "block_size": (lambda p: p["cachefw"]["shape"].update(block_size=64), "block_size: 32 here, 64 there"),
    "dtype": (lambda p: p["cachefw"]["shape"].update(dtype="bfloat16"), "dtype: 'float32' here, 'bfloat16' there"),
    "layers": (lambda p: p["cachefw"]["shape"].update(layers=5), "layers: 4 here, 5 there"),
    "ranks": (lambda p: p["cachefw"]["cards"].append(p["cachefw"]["cards"][0]), "ranks: 1 here, 2 there"),
    "prompt": (lambda p: p["cachefw"].update(prompt="0" * 32), "another prompt"),
    "protocol": (lambda p: p["cachefw"].update(protocol=99), "speaks version 99"),
    "malformed": (lambda p: p.update(remote_block_ids="all"), "not those of a cachefw prefill"),
    "foreign": (lambda p: p.pop("cachefw"), "not those of a cachefw prefill"),
    "few blocks": (lambda p: p.update(remote_block_ids=[p["remote_block_ids"][0][:1]]), "1 were offered"),
    "no such block": (lambda p: p.update(remote_block_ids=[[10**6 + i for i in range(99)]]), "has blocks 0 to"),
    "no such slot": (lambda p: p["cachefw"].update(slot=10**6), "has blocks 0 to"),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_what_does_not_fit_is_computed_here_and_the_log_says_why(fresh, wanted, what):
    prefill, decode = fresh
    spoil, reason = DIFFERENCES[what]
    params = copy.deepcopy(prefill.prefill(PROMPTS[4:6]))
    for one in params:
        spoil(one)
        # A name of its own, because a reason is told once for each instance.
        one["remote_engine_id"] = f"instance-{what}"
    begin = len(decode.lines())
    assert decode.generate(PROMPTS[4:6], TOKENS, params)[0] == wanted[4:6]
    assert said(decode, reason, begin)


def test_a_difference_is_logged_once(fresh):
    prefill, decode = fresh
    params = copy.deepcopy(prefill.prefill(PROMPTS[:3]))
    for one in params:
        one["cachefw"]["shape"]["kv_heads"] = 8
    begin = len(decode.lines())
    decode.generate(PROMPTS[:3], 2, params)
    assert len(said(decode, "kv_heads: 4 here, 8 there", begin)) == 1


def test_blocks_that_were_given_away_are_not_taken_for_those_of_the_prompt(fresh, wanted):
    prefill, decode = fresh
    params = prefill.prefill(PROMPTS[3:6])
    # An engine without a server only steps, and only then counts a lease, while it works.
    until(lambda: released(prefill))
    # The lease ran out; the blocks go to others.
    prefill.generate([f"{i} other " * 100 for i in range(16)], 2)
    begin = len(decode.lines())
    assert decode.generate(PROMPTS[3:6], TOKENS, params)[0] == wanted[3:6]
    assert len(said(decode, "given away before they were all read", begin)) == 3
    assert said(prefill, "nobody came for its cache in time")


def test_the_same_parameters_twice_are_noticed(fresh, wanted):
    prefill, decode = fresh
    params = prefill.prefill(PROMPTS[4:5])
    assert decode.generate(PROMPTS[4:5], TOKENS, copy.deepcopy(params))[0] == wanted[4:5]
    until(lambda: released(prefill))
    decode.forget()
    begin = len(decode.lines())
    assert decode.generate(PROMPTS[4:5], TOKENS, params)[0] == wanted[4:5]
    assert said(decode, "given away before", begin)


def test_a_killed_prefill_instance_costs_a_recomputation_and_a_restarted_one_is_found(fresh, wanted, start):
    _, decode = fresh
    first = start("prefill-killed", "kv_producer", {"model": "tiny"}).ready()
    params = first.prefill(PROMPTS[:4])
    assert decode.generate(PROMPTS[:2], TOKENS, params[:2])[0] == wanted[:2]
    decode.forget()
    first.kill()
    begin = len(decode.lines())
    assert decode.generate(PROMPTS[2:4], TOKENS, params[2:])[0] == wanted[2:4]
    assert said(decode, "could not be loaded", begin)
    second = start("prefill-restarted", "kv_producer", {"model": "tiny"}).ready()
    decode.forget()
    begin = len(decode.lines())
    assert decode.generate(PROMPTS, TOKENS, second.prefill(PROMPTS))[0] == wanted
    assert not said(decode, "could not be loaded", begin)


def test_a_restarted_decode_instance_goes_on_with_the_same_prefill(fresh, wanted, start):
    prefill, _ = fresh
    first = start("decode-killed", "kv_consumer", {"model": "tiny"}).ready()
    assert first.generate(PROMPTS[:2], TOKENS, prefill.prefill(PROMPTS[:2]))[0] == wanted[:2]
    first.kill()
    second = start("decode-restarted", "kv_consumer", {"model": "tiny", "memory": "engine"}).ready()
    assert second.generate(PROMPTS, TOKENS, prefill.prefill(PROMPTS))[0] == wanted
    until(lambda: released(prefill))


def test_a_wrong_setting_keeps_the_engine_from_starting_and_says_what_was_meant(start):
    wrong = start("wrong", "kv_consumer", {"leese": 3})
    with pytest.raises(AssertionError):
        wrong.ready()
    assert said(wrong, "there is no setting 'leese'; did you mean 'lease'?")
