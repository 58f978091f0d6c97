"""What the prefill instance knows of requests that others may want, and of what they want."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from cachefw.integrations.vllm import words
from cachefw.links.link import Link
from cachefw.transport import Transfer

__all__ = ["Blocks", "Post", "Sending", "Source", "Table", "Waiting"]

#: Block numbers.
Blocks = NDArray[np.int64]
#: Where the blocks of a layer are: the cache, and its tensor.
Table = tuple[int, int]


@attrs.define(eq=False)
class Source:
    """A request whose blocks may be wanted.

    Attributes:
        names: What a `Want` may call it.
        prompt: Digest of its prompt.
        blocks: By group of layers, in order of the tokens.
        ready: Tokens that every layer has computed.
        coming: Tokens that those layers have computed which this step has passed.
        passed: These layers' tables.
        total: Tokens of the prompt.
    """

    names: tuple[str, ...]
    prompt: str
    blocks: list[Blocks]
    ready: int
    coming: int
    total: int
    passed: set[Table] = attrs.field(factory=set)
    sendings: list[Sending] = attrs.field(factory=list)

    def blocks_of(self, pairs: NDArray[np.int32]) -> tuple[Blocks, Blocks]:
        """Blocks here and there.

        Raises:
            IndexError: The request has fewer blocks.
        """
        here = np.empty(len(pairs), np.int64)
        for group in np.unique(pairs[:, 0]):
            own = self.blocks[group] if 0 <= group < len(self.blocks) else np.empty(0, np.int64)
            rows = pairs[:, 0] == group
            places = pairs[rows, 1]
            if places.min() < 0 or places.max() >= len(own):
                raise IndexError(f"{places.max() + 1} blocks of group {group} are wanted, and there are {len(own)}")
            here[rows] = own[places]
        # 0 stands for a block that a sliding window has left behind.
        real = here != 0
        return here[real], pairs[real, 2].astype(np.int64)


@attrs.define(eq=False)
class Sending:
    """What one instance wants of one request.

    Attributes:
        pairs: Rows of group, place, block there; in order of the places.
        posted: For each table, how many of the pairs have been posted.
        pending: How many transfers are to be posted, or have not settled.
        pieces: Ranges that were written.
        again: What was posted may have been overwritten first: all of it has to be posted once more.
    """

    source: Source
    link: Link
    token: int
    pairs: NDArray[np.int32]
    posted: dict[Table, int]
    pending: int = 0
    pieces: int = 0
    again: bool = False
    error: str | None = None
    transfers: set[Transfer] = attrs.field(factory=set)


@attrs.frozen(eq=False)
class Post:
    """One transfer to post, once `event` says that what it reads is there."""

    event: Any
    sending: Sending
    cache: int
    tensors: range
    here: Blocks
    there: Blocks


@attrs.define(eq=False)
class Waiting:
    """A `Want`, in parts, for a request that is not known yet; refused after `until`."""

    link: Link
    parts: list[words.Want]
    until: float
