"""Prefill in one vLLM server, decode in another, the cache moved by cachefw.

python examples/vllm/disaggregated.py            # asks one question, compares with a single server, and ends
python examples/vllm/disaggregated.py --serve    # goes on serving at http://127.0.0.1:8000 until Ctrl-C
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import serving
import tiny_model

PROMPT = "the quick brown fox jumps over the lazy dog. a cache moves blocks of keys and values. " * 6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, help="a model's folder; default: a tiny one with random weights, made here"
    )
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--transport", default="host", help="the transport between the two servers")
    parser.add_argument(
        "--push", action="store_true", help="the prefill server writes, and gets prompts at the same time"
    )
    parser.add_argument("--serve", action="store_true", help="go on serving")
    parser.add_argument("--port", type=int, default=8000, help="of the proxy, with --serve")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = options.model
        if model is None:
            model = Path(folder) / "model"
            tiny_model.make(model)
        settings = {"transports": [options.transport], "model": model.name, "mode": "push" if options.push else "pull"}
        print("starting two servers ...", flush=True)
        port = options.port if options.serve else 0
        early = options.push
        with serving.deployment(model, Path(folder), settings, settings, port, early=early) as (prefill, decode, proxy):
            if options.serve:
                print(f"serving at {proxy.url}; prefill {prefill.url}, decode {decode.url}. Ctrl-C ends it", flush=True)
                try:
                    while True:
                        time.sleep(3600)
                except KeyboardInterrupt:
                    return 0
            return compare(options, model, Path(folder), decode, proxy)


def compare(
    options: argparse.Namespace, model: Path, folder: Path, decode: serving.Server, proxy: serving.Proxy
) -> int:
    body = {
        "model": "model",
        "prompt": options.prompt,
        "max_tokens": options.tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    with serving.send(proxy.url + "/v1/completions", body, 120.0) as answer:
        got = json.load(answer)
    loaded = decode.metric("vllm:external_prefix_cache_hits_total")
    single = serving.Server("single", model, folder)
    try:
        wanted = single.ready().post("/v1/completions", body)
    finally:
        single.stop()
    mine, theirs = (one["choices"][0]["token_ids"] for one in (got, wanted))
    print(f"{got['usage']['prompt_tokens']} tokens of prompt, of which the decode server loaded {loaded:.0f}")
    print(f"{len(mine)} tokens from two servers: {mine[:8]} ...")
    print(f"{len(theirs)} tokens from one server:  {theirs[:8]} ...")
    print("equal" if mine == theirs else "DIFFERENT")
    return 0 if mine == theirs and loaded > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
