"""Servers of which one writes to the other, and a proxy that gives both a prompt at once."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import serving
from asking import PROMPTS, held, question, tokens, until

SETTINGS = {"mode": "push", "lease": 3.0, "model": "tiny"}
#: Longer than a test may take.
DECODE = {**SETTINGS, "timeout": 300.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("push-servers")


@pytest.fixture(scope="module")
def parts(model, folder):
    with serving.deployment(model, folder, {**SETTINGS, "timeout": 300.0}, DECODE, early=True) as made:
        yield made


@pytest.fixture(scope="module")
def wanted(parts):
    """What the decode server says when it computes everything itself, with nothing cached of it afterwards."""
    _, decode, _ = parts
    # Of the same prompts with another beginning the cache would hold nothing, and of these it must not.
    salted = {prompt: tokens(decode, prompt, cache_salt="computed here") for prompt in PROMPTS}
    assert len({tuple(one) for one in salted.values()}) == len(PROMPTS)
    return salted


def test_tokens_are_those_of_one_server(parts, wanted):
    prefill, decode, proxy = parts
    # The first answer tells the proxy where the prefill server is.
    assert tokens(proxy, PROMPTS[0]) == wanted[PROMPTS[0]]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda prompt: tokens(proxy, prompt), PROMPTS)) == [wanted[prompt] for prompt in PROMPTS]
    assert decode.metric("vllm:cachefw_loads_total") >= len(PROMPTS)
    assert decode.metric("vllm:cachefw_failed_total") == 0
    until(lambda: held(prefill) == 0 and held(decode) == 0)


def test_a_client_that_goes_away_leaves_nothing_behind(parts):
    prefill, decode, _ = parts
    asked = question("where are you", max_tokens=1, kv_transfer_params=serving.PREFILL)
    where = prefill.post("/v1/completions", asked)["kv_transfer_params"]
    body = question("never computed " * 30, kv_transfer_params={**where, "transfer_id": "never"}, stream=True)
    text = json.dumps(body).encode()
    host, port = decode.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 20) as client:
        head = ["POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json"]
        head += [f"Content-Length: {len(text)}", "", ""]
        client.sendall("\r\n".join(head).encode() + text)
        until(lambda: held(decode) > 0)
    until(lambda: held(decode) == 0)
    until(lambda: held(prefill) == 0)
    assert any("its request was cancelled" in line for line in decode.lines())


def test_a_killed_prefill_server_costs_a_recomputation(parts, wanted):
    prefill, decode, proxy = parts
    prefill.kill()
    prompt = PROMPTS[1] + "?"
    got = tokens(proxy, prompt)
    assert got == tokens(decode, prompt, cache_salt="computed here")
    assert decode.metric("vllm:cachefw_failed_total") >= 1
