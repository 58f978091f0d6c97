"""The whole: OpenAI-compatible servers and a proxy between them, as in `examples/vllm`."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import serving
from asking import BASE, PROMPTS, held, question, tokens, until

BURST = [f"request {i}: " + BASE[i:] * (1 + i % 5) for i in range(12)]
LEASE = 3.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="module")
def wanted(model, folder):
    """What a single server says."""
    single = serving.Server("single", model, folder)
    try:
        single.ready()
        found = {prompt: tokens(single, prompt) for prompt in PROMPTS + BURST}
        assert [tokens(single, prompt) for prompt in PROMPTS[:3]] == [found[prompt] for prompt in PROMPTS[:3]]
    finally:
        single.stop()
    assert len({tuple(one) for one in found.values()}) == len(found)
    return found


@pytest.fixture(scope="module")
def parts(wanted, model, folder):
    settings = {"lease": LEASE, "model": "tiny"}
    with serving.deployment(model, folder, settings, settings) as made:
        yield made


def test_each_prompt_has_the_tokens_of_one_server(parts, wanted):
    _, decode, proxy = parts
    for prompt in PROMPTS:
        assert tokens(proxy, prompt) == wanted[prompt]
    assert decode.metric("vllm:external_prefix_cache_hits_total") > 0
    assert decode.metric("vllm:cachefw_loads_total") == len(PROMPTS)
    assert decode.metric("vllm:cachefw_failed_total") == 0
    assert decode.metric("vllm:cachefw_bytes_total") > len(PROMPTS) * 4 * 32768


def test_many_at_once_have_them_too_and_nothing_stays_kept(parts, wanted):
    prefill, _, proxy = parts
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda prompt: tokens(proxy, prompt), BURST)) == [wanted[prompt] for prompt in BURST]
    until(lambda: held(prefill) == 0)


def test_a_streamed_answer_passes_the_proxy(parts, wanted):
    _, _, proxy = parts
    got = []
    with serving.send(proxy.url + "/v1/completions", question(PROMPTS[0], stream=True), 120.0) as answer:
        for line in answer:
            if line.startswith(b"data: ") and b"[DONE]" not in line:
                for choice in json.loads(line[6:])["choices"]:
                    got += choice["token_ids"]
    assert got == wanted[PROMPTS[0]]


def test_what_nobody_fetches_is_kept_and_then_free(parts):
    prefill, _, _ = parts
    prefill.post("/v1/completions", question("held " * 100, max_tokens=1, kv_transfer_params=serving.PREFILL))
    until(lambda: held(prefill) > 0)
    until(lambda: held(prefill) == 0, LEASE + 20)
    assert any("nobody came for its cache in time" in line for line in prefill.lines())
    assert prefill.metric("vllm:cachefw_expired_total") == 1


def test_a_prefill_server_that_cannot_be_reached_costs_a_recomputation(parts, wanted):
    prefill, decode, _ = parts
    prompt = "somewhere else " * 40
    asked = question(prompt, max_tokens=1, kv_transfer_params=serving.PREFILL)
    params = prefill.post("/v1/completions", asked)["kv_transfer_params"]
    # The card of a node that is gone, at a port where nobody listens.
    card = {"host": "127.0.0.1", "port": serving.free_port(), "cluster_id": 1, "incarnation": bytes(16)}
    params["cachefw"]["cards"] = [base64.b64encode(msgspec.msgpack.encode(card)).decode()]
    got = tokens(decode, prompt, kv_transfer_params=params)
    assert any("could not be loaded" in line for line in decode.lines())
    # The prefix cache has it now, and computed it here.
    assert got == tokens(decode, prompt)
    until(lambda: held(prefill) == 0, LEASE + 20)


def test_a_killed_prefill_server_leaves_the_others_serving(parts, wanted, model, folder):
    prefill, decode, proxy = parts
    prefill.kill()
    assert tokens(proxy, PROMPTS[1]) == wanted[PROMPTS[1]]
    again = serving.Server("prefill-again", model, folder, serving.connector("kv_producer", lease=LEASE, model="tiny"))
    try:
        proxy.prefill = again.ready().url
        for prompt in BURST[:4]:
            assert tokens(proxy, prompt + "?") == tokens(decode, prompt + "?")
        until(lambda: held(again) == 0)
    finally:
        again.stop()
