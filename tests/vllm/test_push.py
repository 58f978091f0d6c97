"""The prefill instance writes: when it has ended, or layer by layer while it computes."""

from __future__ import annotations

import time
from typing import Any

import pytest

BASE = "the quick brown fox jumps over the lazy dog. a cache moves blocks of keys and values between processes. "
PROMPTS = [f"{i} " + BASE[i:] * (1 + 3 * i) for i in range(4)] + ["zebra " * 150, "q" * 31]
TOKENS = 24
LAYERS = 4
PUSH = {"mode": "push", "model": "tiny"}


@pytest.fixture(scope="module")
def pair(start) -> tuple[Any, Any]:
    """Two instances. The prefill computes a prompt in several steps, and waits two seconds for what is announced."""
    prefill = start("push-prefill", "kv_producer", {**PUSH, "lease": 2.0, "timeout": 2.0}, max_num_batched_tokens=128)
    decode = start("push-decode", "kv_consumer", PUSH)
    return prefill.ready(), decode.ready()


@pytest.fixture(scope="module")
def wanted(pair) -> list[list[int]]:
    """What the decode instance says when it computes everything itself."""
    tokens, _ = pair[1].generate(PROMPTS, TOKENS)
    return tokens


@pytest.fixture
def fresh(pair, wanted) -> Any:
    """The pair, with nothing cached and nothing kept."""
    until(lambda: released(pair[0]))
    for instance in pair:
        instance.forget()
    pair[0].watch()
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


@pytest.fixture(scope="module")
def where(pair) -> dict[str, Any]:
    """What a proxy has learnt from an earlier answer of the prefill instance."""
    return pair[0].prefill(["where are you"])[0]


def early(where, names):
    """Parameters for both instances at once."""
    there = [{"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": name} for name in names]
    return there, [{**where, "transfer_id": name} for name in names]


def test_tokens_are_those_of_one_instance(fresh, wanted):
    prefill, decode = fresh
    begin = len(decode.lines())
    assert decode.generate(PROMPTS, TOKENS, prefill.prefill(PROMPTS))[0] == wanted
    assert not said(decode, "computed here", begin)
    assert not said(decode, "could not be loaded", begin)
    # Each request at once, in all layers.
    assert [(tensors, computing) for tensors, _, computing in prefill.pushes()] == [(range(LAYERS), False)] * 6
    until(lambda: released(prefill), 1.5)


def test_blocks_in_each_others_places_change_the_tokens(fresh, wanted):
    # What makes sure that the comparison can fail.
    prefill, decode = fresh
    prefill.watch(damage=True)
    got, _ = decode.generate(PROMPTS[2:4], TOKENS, prefill.prefill(PROMPTS[2:4]))
    assert all(mine != theirs for mine, theirs in zip(got, wanted[2:4], strict=True))


def test_what_is_cached_here_already_is_not_written_and_released_there(fresh, wanted):
    prefill, decode = fresh
    decode.generate(PROMPTS[3:4], TOKENS)
    longer = [PROMPTS[3] + " and more of it " * 5]
    plain, _ = decode.generate(longer, TOKENS)
    decode.forget()
    decode.generate(PROMPTS[3:4], TOKENS)
    assert decode.generate(longer, TOKENS, prefill.prefill(longer))[0] == plain
    ((_, some, _),) = prefill.pushes()
    decode.forget()
    assert decode.generate(longer, TOKENS, prefill.prefill(longer))[0] == plain
    ((_, every, _),) = prefill.pushes()
    assert 0 < some < every
    until(lambda: released(prefill))


def test_layers_are_written_while_others_are_computed(fresh, wanted, where):
    prefill, decode = fresh
    there, here = early(where, [f"early-{i}" for i in range(len(PROMPTS))])
    begin = len(decode.lines())
    decode.ask(PROMPTS, TOKENS, here)
    until(lambda: prefill.waiting() == len(PROMPTS))
    prefill.generate(PROMPTS, 1, there)
    assert decode.answer()[0] == wanted
    assert not said(decode, "could not be loaded", begin)
    pushes = prefill.pushes()
    # Nothing was left to be written once a prompt was whole.
    assert {len(tensors) for tensors, _, _ in pushes} == {1}
    assert any(computing for _, _, computing in pushes)
    by_layer = [sum(blocks for tensors, blocks, _ in pushes if tensors[0] == layer) for layer in range(LAYERS)]
    assert len(set(by_layer)) == 1
    # The longest prompt takes several steps.
    assert len(pushes) > LAYERS * len(PROMPTS)
    until(lambda: released(prefill), 1.5)


def test_prompts_that_share_a_beginning_are_written_whole(fresh, where):
    prefill, decode = fresh
    # Scheduled in one step: the second finds the first one's blocks in the prefix cache before they are computed.
    prompts = [BASE, BASE + "and more", BASE * 8, BASE * 8 + "and more", BASE * 8 + "or less"]
    plain, _ = decode.generate(prompts, TOKENS)
    decode.forget()
    there, here = early(where, [f"shared-{i}" for i in range(len(prompts))])
    decode.ask(prompts, TOKENS, here)
    until(lambda: prefill.waiting() == len(prompts))
    prefill.generate(prompts, 1, there)
    assert decode.answer()[0] == plain
    until(lambda: released(prefill), 1.5)


def test_a_request_that_came_first_is_caught_up_with(fresh, wanted, where):
    prefill, decode = fresh
    there, here = early(where, ["late-a", "late-b"])
    prefill.generate(PROMPTS[2:4], 1, there)
    assert decode.generate(PROMPTS[2:4], TOKENS, here)[0] == wanted[2:4]
    assert len(prefill.pushes()) == 2
    until(lambda: released(prefill), 1.5)


def test_another_prompt_under_the_same_name_is_noticed(fresh, wanted, where):
    prefill, decode = fresh
    there, here = early(where, ["other"])
    prefill.generate([PROMPTS[2]], 1, there)
    begin = len(decode.lines())
    assert decode.generate([PROMPTS[3]], TOKENS, here)[0] == wanted[3:4]
    assert said(decode, "computed another prompt under this name", begin)


def test_a_request_that_never_comes_is_computed_here(fresh, wanted, where):
    _, decode = fresh
    _, here = early(where, ["never"])
    begin = len(decode.lines())
    assert decode.generate(PROMPTS[:1], TOKENS, here)[0] == wanted[:1]
    assert said(decode, "no such request came to the prefill instance within 2 s", begin)


def test_what_is_not_kept_any_more_is_refused_at_once(fresh, wanted):
    prefill, decode = fresh
    params = prefill.prefill(PROMPTS[2:4])
    until(lambda: released(prefill))
    begin = len(decode.lines())
    assert decode.generate(PROMPTS[2:4], TOKENS, params)[0] == wanted[2:4]
    assert len(said(decode, "given away before it came for them", begin)) == 2
    assert prefill.pushes() == []


def test_modes_that_differ_are_named(fresh, wanted, start):
    prefill, _ = fresh
    pulling = start("pull-decode", "kv_consumer", {"model": "tiny"}).ready()
    params = prefill.prefill(PROMPTS[1:3])
    assert pulling.generate(PROMPTS[1:3], TOKENS, params)[0] == wanted[1:3]
    assert said(pulling, "mode: 'pull' here, 'push' there")


def test_a_prefill_instance_that_is_killed_while_it_is_waited_for(fresh, wanted, start):
    _, decode = fresh
    doomed = start("push-killed", "kv_producer", PUSH).ready()
    _, here = early(doomed.prefill(["where"])[0], ["doomed"])
    begin = len(decode.lines())
    decode.ask(PROMPTS[1:2], TOKENS, here)
    until(lambda: doomed.waiting() == 1)
    doomed.kill()
    assert decode.answer()[0] == wanted[1:2]
    assert said(decode, "could not be loaded", begin)
    # Its card is of a start that is over.
    decode.forget()
    assert decode.generate(PROMPTS[1:2], TOKENS, here)[0] == wanted[1:2]


def test_a_decode_instance_that_is_killed_while_it_waits_leaves_the_prefill_serving(fresh, wanted, where, start):
    prefill, decode = fresh
    doomed = start("push-decode-killed", "kv_consumer", PUSH).ready()
    there, here = early(where, ["orphan"])
    doomed.ask(PROMPTS[3:4], TOKENS, here)
    until(lambda: prefill.waiting() == 1)
    doomed.kill()
    prefill.generate(PROMPTS[3:4], 1, there)
    until(lambda: released(prefill))
    assert decode.generate(PROMPTS[:2], TOKENS, prefill.prefill(PROMPTS[:2]))[0] == wanted[:2]
