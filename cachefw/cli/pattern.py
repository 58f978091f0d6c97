"""What the demo moves: a pattern that either side can make on its own, and the places of its blocks on both sides."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from cachefw.cache import CacheDesc
from cachefw.cli.models import Model

__all__ = ["Pattern", "Places"]

_GOLDEN = 0x9E3779B97F4A7C15


class Pattern:
    """Bytes that depend on nothing but seed, tensor, block and place: splitmix64 of a counter.

    Args:
        seed: Any int.
        block_bytes: Bytes of one block, a multiple of 8.
    """

    def __init__(self, seed: int, block_bytes: int) -> None:
        self._seed = seed
        self._words = block_bytes // 8
        self._steps = np.arange(1, self._words + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        self._block = np.empty(self._words, np.uint64)
        self._spare = np.empty(self._words, np.uint64)

    def block(self, tensor: int, block: int) -> NDArray[np.uint8]:
        """The bytes of one block. The array is overwritten by the next call."""
        start = self._seed + ((tensor << 40) + block * self._words) * _GOLDEN
        state, spare = self._block, self._spare
        np.add(self._steps, np.uint64(start % 2**64), out=state)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None)):
            np.right_shift(state, np.uint64(shift), out=spare)
            np.bitwise_xor(state, spare, out=state)
            if factor is not None:
                np.multiply(state, np.uint64(factor), out=state)
        return state.view(np.uint8)


@attrs.frozen(eq=False)
class Places:
    """Where the blocks lie: block ``prefill[i]`` there is to arrive in block ``decode[i]`` here.

    Attributes:
        prefill: Block numbers of the prefill side, scattered.
        decode: Block numbers of the decode side, scattered otherwise.
        prefill_desc: The cache of the prefill side.
        decode_desc: The cache of the decode side.
    """

    prefill: NDArray[np.int64]
    decode: NDArray[np.int64]
    prefill_desc: CacheDesc
    decode_desc: CacheDesc

    @classmethod
    def of(cls, model: Model, tokens: int, seed: int) -> Places:
        """The places for a model and so many tokens, the same in every process."""
        blocks = model.blocks_for(tokens)
        descs = cls.descs(model, tokens)
        random = np.random.default_rng([seed & 0xFFFFFFFF, blocks])
        prefill, decode = (random.permutation(desc.batch_size)[:blocks] for desc in descs)
        return cls(prefill, decode, *descs)

    @staticmethod
    def descs(model: Model, tokens: int) -> tuple[CacheDesc, CacheDesc]:
        """The caches of the prefill and of the decode side; both have more blocks than are asked for."""
        blocks = model.blocks_for(tokens)
        return model.desc(blocks + max(1, blocks // 4)), model.desc(blocks + max(1, blocks // 8))

    @property
    def blocks(self) -> int:
        """Blocks asked for, in each tensor."""
        return len(self.prefill)

    @property
    def nbytes(self) -> int:
        """Bytes of one pull."""
        return self.blocks * self.decode_desc.stride * self.decode_desc.num_tensors
