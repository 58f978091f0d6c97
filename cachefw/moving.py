"""The calls of a CacheManager that move bytes: copies within the process, and pulls from linked peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachefw import pulls
from cachefw.cache import BlocksCacheKey, Cache, CacheKey, CacheKeyByIdAndIndex
from cachefw.copying import copy_batch
from cachefw.errors import ClosedError, RequestError, UnsupportedOperation, refusal
from cachefw.registrar import Registrar
from cachefw.registry import Registry
from cachefw.transport import Capability, Transfer, Transport

__all__ = ["Moving"]


class Moving:
    """The moving half of `cachefw.CacheManager`, which derives from it and brings what it works on."""

    _registrar: Registrar
    _registry: Registry
    _transports: dict[str, Transport]

    def _check_open(self, operation: str) -> None:
        raise NotImplementedError

    def copy(self, dst: Any, src: Any, *, transport: str | None = None) -> None:
        """Copy within this process, between host and device memory too; done on return.

        Args:
            dst: Where to: an allocation, a tensor, an array, a buffer, or a `MemoryRegion` of registered memory; or a
                list of them.
            src: Where from: as many, each as long as its counterpart.
            transport: Whose copies; None takes the first open one that copies.

        Raises:
            RequestError: Also a `TypeError`, `ValueError` or `AttributeError`; nothing was copied.
            UnsupportedOperation: No open transport copies, or not between these kinds of memory.
            BrokenError: The runtime failed; ``failed`` names the piece.
        """
        self._check_open("copy")
        batch = copy_batch(self._registry, dst, src)
        for name, candidate in self._transports.items():
            if Capability.COPY in candidate.info.capabilities and transport in (None, name):
                return candidate.copy(batch)
        raise UnsupportedOperation(
            f"no open transport {'named ' + repr(transport) + ' ' if transport else ''}copies; open are "
            + (", ".join(self._transports) or "none"),
            operation="copy",
            transport=transport,
        )

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

        Returns:
            The transfer; settled if `wait`.

        Raises:
            RequestError: Also a `TypeError`, `ValueError` or `AttributeError`; nothing was sent.
            NotFoundError: No such link, cache, key, row or layer; the text lists what exists.
            BrokenError: The peer or the system failed.
            TransferTimeout: The deadline passed; ``settled`` tells whether bytes may still land.
        """
        self._check_open("pull_cache")
        layers = pulls.Layers(src_layer_range, dst_layer_range, tensor_num_per_layer)
        peer, source = pulls.find(self._registrar.peers.peer, cache_key, "pull_cache", (CacheKey, CacheKeyByIdAndIndex))
        pieces = pulls.row_pieces(self._own(cache, "pull_cache"), batch_index, size, source, cache_key, layers)
        return peer.read_pieces(pieces, wait=wait, timeout=timeout, notify=notify)

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

        Returns:
            The transfer; settled if `wait`.

        Raises:
            RequestError: As for `pull_cache`.
            NotFoundError: As for `pull_cache`; blocks out of range are named before anything is posted.
            BrokenError: The peer or the system failed.
            TransferTimeout: The deadline passed; ``settled`` tells whether bytes may still land.
        """
        self._check_open("pull_blocks")
        layers = pulls.Layers(src_layer_range, dst_layer_range, tensor_num_per_layer)
        kinds = (BlocksCacheKey, CacheKey, CacheKeyByIdAndIndex)
        peer, source = pulls.find(self._registrar.peers.peer, src_cache_key, "pull_blocks", kinds)
        own = self._own(dst_cache, "pull_blocks")
        pieces = pulls.block_pieces(own, dst_blocks, source, src_cache_key, src_blocks, layers)
        return peer.read_pieces(pieces, wait=wait, timeout=timeout, notify=notify)

    def _own(self, cache: Any, operation: str) -> Cache:
        if not isinstance(cache, Cache):
            builtin: type[Exception] = AttributeError if cache is None else TypeError
            text = f"give the Cache that a register call returned, not {cache!r} ({type(cache).__name__})"
            raise refusal(RequestError, {builtin}, text, operation=operation)
        if self._registry.caches.get(cache.cache_id) is not cache:
            raise ClosedError(f"{cache} is not registered here, or no longer", operation=operation)
        return cache
