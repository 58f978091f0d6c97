"""The calls of a CacheManager that read from linked peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachefw import pulls
from cachefw.cache import BlocksCacheKey, Cache, CacheKey, CacheKeyByIdAndIndex
from cachefw.sealing import Sealing, Units, Verified
from cachefw.transport import Transfer

__all__ = ["Moving"]


class Moving(Sealing):
    """The part of `cachefw.CacheManager` that reads from linked peers."""

    def pull_cache(
        self,
        cache_key: CacheKey | CacheKeyByIdAndIndex,
        cache: Cache,
        batch_index: int = 0,
        size: int = -1,
        *,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        tensor_num_per_layer: int = 2,
        timeout: float | None = None,
        wait: bool = True,
        notify: bytes | None = None,
        verify: Any = None,
    ) -> Transfer:
        """Copy one batch row of a peer's contiguous cache into a row of a local one.

        Args:
            cache_key: The peer's row. By id, ``batch_index`` of the key is the row; a `CacheKey` names its row.
            cache: A local contiguous cache.
            batch_index: The local row.
            size: Bytes from the start of the row; -1 is one whole local row.
            src_layer_range: Layers of the peer's cache; None is all.
            dst_layer_range: Layers of the local cache; None is all.
            tensor_num_per_layer: Tensors of one layer (2: keys and values).
            timeout: Seconds; None takes the setting ``timeout``.
            wait: False returns at once; see `Node.completed`.
            notify: At most 64 KiB that the peer gets after the last byte has moved.
            verify: ``"crc"`` makes sure that what arrived is what the peer has sealed (`seal`), and was so until the
                last byte was here; the generations that `seal` returned there, one for each row or block, make sure of
                just these. None trusts the peer.

        Returns:
            The transfer; settled if `wait`.

        Raises:
            RequestError: Also a `TypeError`, `ValueError` or `AttributeError`; nothing was sent.
            NotFoundError: No such link, cache, key, row or layer; the text lists what exists.
            BrokenError: The peer or the system failed; with `verify`, what arrived is not what was sealed
                (``content.mismatch``, ``content.changed``), and ``facts["rows"]`` names the rows, or blocks.
            TransferTimeout: The deadline passed; ``settled`` tells whether bytes may still land.
        """
        self._check_open("pull_cache")
        layers = pulls.Layers(src_layer_range, dst_layer_range, tensor_num_per_layer)
        peer, source = pulls.find(self._registrar.peers.peer, cache_key, "pull_cache", (CacheKey, CacheKeyByIdAndIndex))
        own = self._own(cache, "pull_cache")
        pieces = pulls.row_pieces(own, batch_index, size, source, cache_key, layers)
        if verify is None:
            return peer.read_pieces(pieces, wait=wait, timeout=timeout, notify=notify)
        row, stride = pulls.row_of(source, cache_key), own.cache_desc.stride
        units = Units.row(row, int(batch_index) * stride, stride if pulls.is_whole(size) else int(size))
        check = Verified(source, own, layers, units, verify, wait)
        return self._pull_verified(peer, pieces, check, timeout, notify)

    def pull_blocks(
        self,
        src_cache_key: BlocksCacheKey | CacheKey | CacheKeyByIdAndIndex,
        dst_cache: Cache,
        src_blocks: Sequence[int] = (),
        dst_blocks: Sequence[int] = (),
        *,
        src_layer_range: range | None = None,
        dst_layer_range: range | None = None,
        tensor_num_per_layer: int = 2,
        timeout: float | None = None,
        wait: bool = True,
        notify: bytes | None = None,
        verify: Any = None,
    ) -> Transfer:
        """Copy blocks, or a row, of a peer's cache into blocks of a local blocks cache.

        Args:
            src_cache_key: The peer's blocks cache, or a row of a contiguous one, which fills `dst_blocks` in order; its
                last block may be filled in part.
            dst_cache: A local blocks cache.
            src_blocks: Block numbers there; none for a row.
            dst_blocks: Block numbers here, each once.
            src_layer_range: As for `pull_cache`.
            dst_layer_range: As for `pull_cache`.
            tensor_num_per_layer: As for `pull_cache`.
            timeout: As for `pull_cache`.
            wait: As for `pull_cache`.
            notify: As for `pull_cache`.
            verify: As for `pull_cache`.

        Returns:
            The transfer; settled if `wait`.

        Raises:
            RequestError: As for `pull_cache`.
            NotFoundError: As for `pull_cache`; blocks out of range are named before anything is posted.
            BrokenError: As for `pull_cache`.
            TransferTimeout: The deadline passed; ``settled`` tells whether bytes may still land.
        """
        self._check_open("pull_blocks")
        layers = pulls.Layers(src_layer_range, dst_layer_range, tensor_num_per_layer)
        kinds = (BlocksCacheKey, CacheKey, CacheKeyByIdAndIndex)
        peer, source = pulls.find(self._registrar.peers.peer, src_cache_key, "pull_blocks", kinds)
        own = self._own(dst_cache, "pull_blocks")
        pieces = pulls.block_pieces(own, dst_blocks, source, src_cache_key, src_blocks, layers)
        if verify is None:
            return peer.read_pieces(pieces, wait=wait, timeout=timeout, notify=notify)
        stride = own.cache_desc.stride
        if source.blocks or isinstance(src_cache_key, BlocksCacheKey):
            units = Units.blocks(src_blocks, dst_blocks, stride)
        else:
            units = Units.row_in_blocks(pulls.row_of(source, src_cache_key), source.stride, dst_blocks, stride)
        check = Verified(source, own, layers, units, verify, wait)
        return self._pull_verified(peer, pieces, check, timeout, notify)
