"""The KV caches of real models: how many tensors, and how large a block is."""

from __future__ import annotations

import difflib

import attrs

from cachefw.cache import CacheDesc, DataType, Placement

__all__ = ["MODELS", "Model", "near_models"]


@attrs.frozen
class Model:
    """The shape of one model's KV cache.

    Attributes:
        name: What ``--model`` takes.
        layers: Attention layers.
        parts: Names of the tensors of one layer, in order.
        heads: Key/value heads of one part.
        head_size: Elements of one head of one token.
        block_tokens: Tokens in one block.
        data_type: Element type.
    """

    name: str
    layers: int
    parts: tuple[str, ...]
    heads: int
    head_size: int
    block_tokens: int
    data_type: DataType = DataType.DT_BF16

    @property
    def tensors(self) -> int:
        """Tensors of the whole cache."""
        return self.layers * len(self.parts)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold so many tokens; the last may be filled in part."""
        return -(-tokens // self.block_tokens)

    def nbytes(self, tokens: int) -> int:
        """Bytes of the blocks that hold so many tokens, over all tensors."""
        return self.desc(self.blocks_for(tokens)).size * self.tensors

    def desc(self, blocks: int) -> CacheDesc:
        """The description of a blocks cache with room for so many blocks."""
        shape = (blocks, self.block_tokens, self.heads, self.head_size)
        return CacheDesc(self.tensors, shape, self.data_type, Placement.HOST)

    def tensor_name(self, index: int) -> str:
        """One tensor in words."""
        layer, part = divmod(index, len(self.parts))
        return f"tensor {index} ({self.parts[part]} of layer {layer})"


_KV = ("keys", "values")

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        # meta-llama/Llama-3.1-8B, config.json: num_hidden_layers 32, num_key_value_heads 8, hidden_size 4096 over
        # num_attention_heads 32, torch_dtype bfloat16. 16 tokens is vLLM's default block.
        Model("llama-3.1-8b", layers=32, parts=_KV, heads=8, head_size=128, block_tokens=16),
        # Qwen/Qwen2.5-7B, config.json: num_hidden_layers 28, num_key_value_heads 4, hidden_size 3584 over
        # num_attention_heads 28, torch_dtype bfloat16.
        Model("qwen2.5-7b", layers=28, parts=_KV, heads=4, head_size=128, block_tokens=16),
        # deepseek-ai/DeepSeek-V3, config.json: num_hidden_layers 61, kv_lora_rank 512, qk_rope_head_dim 64. Multi-head
        # latent attention keeps one latent vector for each token and layer. FlashMLA works on blocks of 64 tokens.
        Model("deepseek-v3", layers=61, parts=("latent",), heads=1, head_size=512 + 64, block_tokens=64),
    )
}


def near_models(name: str) -> str:
    """For a name that is none: which was perhaps meant, and which there are."""
    near = difflib.get_close_matches(name.lower(), MODELS, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{hint}there are {', '.join(MODELS)}"
