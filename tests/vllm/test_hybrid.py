"""A model whose layers make several groups, of which some forget: their blocks share bytes, and places become empty."""

from __future__ import annotations

import pytest

WORDS = "the quick brown fox jumps over the lazy dog. a cache moves blocks of keys and values between processes. "
PROMPTS = ["short one", WORDS * 2, "another " + WORDS * 6, WORDS * 9]
TOKENS = 24
WINDOW = 64


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """A Gemma 3 of random weights: five layers with a sliding window, one without."""
    import tiny_model
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    folder = tmp_path_factory.mktemp("gemma")
    tiny_model.make(folder)
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
        sliding_window=WINDOW,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        # Gemma scales what it embeds, which would drown the rest; tied, it would repeat the last token.
        initializer_range=0.05,
        tie_word_embeddings=False,
    )
    Gemma3ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("mode", ["pull", "push"])
def test_tokens_are_those_of_one_instance(start, gemma, mode):
    settings = {"mode": mode, "model": "tiny"}
    prefill = start(f"hybrid-prefill-{mode}", "kv_producer", settings, folder=gemma, max_num_batched_tokens=256)
    decode = start(f"hybrid-decode-{mode}", "kv_consumer", settings, folder=gemma)
    prefill.ready()
    decode.ready()
    wanted, _ = decode.generate(PROMPTS, TOKENS)
    assert len({tuple(one) for one in wanted}) == len(PROMPTS)
    decode.forget()
    params = prefill.prefill(PROMPTS)
    groups = params[-1]["remote_block_ids"]
    assert len(groups) > 1
    # What the window has left behind is not there any more.
    assert any(0 in group for group in groups)
    decode.time_loads()
    assert decode.generate(PROMPTS, TOKENS, params)[0] == wanted
    assert len(decode.loads()) == len(PROMPTS)
    if mode == "push":
        # Both at once: it is written when the prompt is whole.
        decode.forget()
        names = [f"hybrid-{i}" for i in range(len(PROMPTS))]
        decode.ask(PROMPTS, TOKENS, [{**params[0], "transfer_id": name} for name in names])
        there = [{"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": name} for name in names]
        prefill.generate(PROMPTS, 1, there)
        assert decode.answer()[0] == wanted
        assert len(decode.loads()) == len(PROMPTS)
    assert not [line for line in decode.lines() if "could not be loaded" in line or "computed here" in line]
