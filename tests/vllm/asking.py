"""What tests with servers ask them."""

from __future__ import annotations

import json
import time

import serving

BASE = "the quick brown fox jumps over the lazy dog. a cache moves blocks of keys and values between processes. "
PROMPTS = [BASE * 3, "number 7 " * 40, BASE[::-1] * 2, "x" * 300, BASE * 8, BASE * 24, "q" * 31, "zebra " * 150]
TOKENS = 32


def question(prompt, **more):
    return {
        "model": "model",
        "prompt": prompt,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }


def tokens(server, prompt, **more):
    """Token ids: comparing texts would miss those that have none."""
    with serving.send(server.url + "/v1/completions", question(prompt, **more), 120.0) as answer:
        return json.load(answer)["choices"][0]["token_ids"]


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.1)


def held(server):
    return server.metric("vllm:kv_cache_usage_perc")
