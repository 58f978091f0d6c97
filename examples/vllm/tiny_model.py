"""A Llama of 2.6 million random weights and a tokenizer for it, made here: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEXTS = (
    "the quick brown fox jumps over the lazy dog. " * 50,
    "a cache moves blocks of keys and values between processes. " * 50,
)


def make(folder: Path, **other: Any) -> None:
    """Write model and tokenizer to a folder; `other` are fields of its configuration that are to differ.

    The weights are spread ten times wider than usual: logits then lie far apart, and the greedy choice among them does
    not depend on the order in which they were summed.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXTS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=2048
    )
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    fields = {
        "vocab_size": 512,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
    }
    config = LlamaConfig(**{**fields, **other})
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
