"""The calls of a CacheManager that write to linked peers."""

from __future__ import annotations

from collections.abc import Sequence

from cachefw import pulls, pushes
from cachefw.cache import BlocksCacheKey, Cache, CacheKey, CacheKeyByIdAndIndex
from cachefw.managed import Managed, during
from cachefw.transport import Transfer

__all__ = ["Pushing"]


class Pushing(Managed):
    """The part of `cachefw.CacheManager` that writes to linked peers."""

    def push_cache(
        self,
        dst_cache_key: CacheKey | CacheKeyByIdAndIndex,
        src_cache: Cache,
        src_batch_index: int = 0,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        size: int = -1,
        tensor_num_per_layer: int = 2,
        *,
        timeout: float | None = None,
        wait: bool = True,
        notify: bytes | None = None,
    ) -> Transfer:
        """Copy one batch row of a local contiguous cache into a row of a peer's.

        The mirror of `pull_cache`. The peer's row has to have room for the bytes. Tensors have to make whole layers.

        Args:
            dst_cache_key: The peer's row. By id, ``batch_index`` of the key is the row; a `CacheKey` names its row.
            src_cache: A local contiguous cache.
            src_batch_index: The local row.
            src_layer_range: Layers of the local cache; None is all.
            dst_layer_range: Layers of the peer's cache; None is as many as the local cache has, from the first.
            size: Bytes from the start of the row; -1 is one whole local row.
            tensor_num_per_layer: Tensors of one layer (2: keys and values).
            timeout: Seconds; None takes the setting ``timeout``.
            wait: False returns at once; see `Node.completed`.
            notify: At most 64 KiB that the peer gets after the last byte has moved.

        Returns:
            The transfer; settled if `wait`.

        Raises:
            RequestError: Also a `TypeError`, `ValueError` or `AttributeError`; nothing was sent.
            NotFoundError: No such link, cache, key, row or layer; the text lists what exists.
            BrokenError: The peer or the system failed; the peer's row is then undefined.
            TransferTimeout: The deadline passed; ``settled`` tells whether bytes may still land.
        """
        name = "push_cache"
        self._check_open(name)
        with during(name):
            layers = pushes.Layers(src_layer_range, dst_layer_range, tensor_num_per_layer)
            own = self._own(src_cache, name)
            peer, target = pulls.find(self._registrar.peers.peer, dst_cache_key, name, (CacheKey, CacheKeyByIdAndIndex))
            pieces = pushes.row_pieces(own, src_batch_index, size, target, dst_cache_key, layers)
        return peer.write_pieces(pieces, wait=wait, timeout=timeout, notify=notify)

    def push_blocks(
        self,
        dst_cache_key: BlocksCacheKey | CacheKeyByIdAndIndex,
        src_cache: Cache,
        src_blocks: Sequence[int] = (),
        dst_blocks: Sequence[int] = (),
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        tensor_num_per_layer: int = 2,
        *,
        src_batch_index: int = 0,
        timeout: float | None = None,
        wait: bool = True,
        notify: bytes | None = None,
    ) -> Transfer:
        """Copy blocks, or a row, of a local cache into blocks of a peer's blocks cache.

        Args:
            dst_cache_key: The peer's blocks cache.
            src_cache: A local blocks cache, or a contiguous one, a row of which fills `dst_blocks` in order; the last
                block may be filled in part.
            src_blocks: Block numbers here; none for a row.
            dst_blocks: Block numbers there, each once.
            src_layer_range: As for `push_cache`.
            dst_layer_range: As for `push_cache`.
            tensor_num_per_layer: As for `push_cache`.
            src_batch_index: The row of a contiguous `src_cache`.
            timeout: As for `push_cache`.
            wait: As for `push_cache`.
            notify: As for `push_cache`.

        Returns:
            The transfer; settled if `wait`.

        Raises:
            RequestError: As for `push_cache`.
            NotFoundError: As for `push_cache`; blocks out of range are named before anything is posted.
            BrokenError: The peer or the system failed; the peer's blocks are then undefined.
            TransferTimeout: The deadline passed; ``settled`` tells whether bytes may still land.
        """
        name = "push_blocks"
        self._check_open(name)
        with during(name):
            layers = pushes.Layers(src_layer_range, dst_layer_range, tensor_num_per_layer)
            own = self._own(src_cache, name)
            kinds = (BlocksCacheKey, CacheKeyByIdAndIndex)
            peer, target = pulls.find(self._registrar.peers.peer, dst_cache_key, name, kinds)
            pieces = pushes.block_pieces(own, src_blocks, src_batch_index, target, dst_cache_key, dst_blocks, layers)
        return peer.write_pieces(pieces, wait=wait, timeout=timeout, notify=notify)
