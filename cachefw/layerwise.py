"""The call of a CacheManager that pushes a cache layer by layer: checks, and the pieces of each layer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from cachefw import layout, pulls, pushes
from cachefw.cache import BlocksCacheKey, Cache, CacheKeyByIdAndIndex
from cachefw.errors import CacheError, RequestError, refusal
from cachefw.managed import Managed, during
from cachefw.published import PublishedCache
from cachefw.ranges import Pieces, addresses
from cachefw.tasks import CacheTask, LayerSynchronizer, Leg, TransferConfig, TransferWithCacheKeyConfig, Workers
from cachefw.transport import Transfer

__all__ = ["Layerwise"]

_NAME = "transfer_cache_async"
_TENSORS = 2


class Layerwise(Managed):
    """The part of `cachefw.CacheManager` that pushes a cache layer by layer."""

    _workers: Workers

    def transfer_cache_async(
        self,
        src_cache: Cache,
        layer_synchronizer: LayerSynchronizer,
        transfer_configs: Sequence[TransferConfig | TransferWithCacheKeyConfig],
        src_block_indices: Sequence[int] | None = None,
        dst_block_indices: Sequence[int] | None = None,
        dst_block_memory_size: int | None = None,
        *,
        timeout: float | None = None,
    ) -> CacheTask:
        """Send a cache to peers while it is being computed: each layer as soon as it is ready.

        A layer is two tensors, keys and values. For each layer that somebody wants, in order, the synchronizer is asked
        once; then it goes to every peer that wants it, without waiting for the layer before. Layers that nobody wants
        are not asked for.

        Args:
            src_cache: A local cache with an even number of tensors.
            layer_synchronizer: Tells when a layer is ready. Called in a thread of this manager's.
            transfer_configs: Which layers go where. Empty makes a task that has nothing to do.
            src_block_indices: Blocks of a blocks cache to send; None sends a row of a contiguous one.
            dst_block_indices: Blocks there to fill, in order, each once; None fills a row.
            dst_block_memory_size: Bytes of a block there. Needed to fill blocks from a row, whose last block may be
                filled in part; else None, 0, or the bytes of a block here.
            timeout: Seconds that all of it may take, the synchronizer's waiting included. None leaves that to the
                synchronizer, and gives what was sent last the setting ``timeout``.

        Returns:
            The task. What goes wrong at a peer, a missing link or cache included, is that peer's outcome.

        Raises:
            RequestError: Also a `TypeError`, `ValueError` or `AttributeError`: the arguments cannot be right whatever
                the peers have; nothing is sent.
            NotFoundError: No such row, block or layer of `src_cache`.
            BusyError: Too many tasks wait already.
            ClosedError: The manager is closed.
        """
        self._check_open(_NAME)
        with during(_NAME):
            source = self._own(src_cache, _NAME)
            if not isinstance(layer_synchronizer, LayerSynchronizer):
                raise _wrong("layer_synchronizer", "a LayerSynchronizer", layer_synchronizer)
            if not isinstance(transfer_configs, (list, tuple)):
                raise _wrong("transfer_configs", "a list or tuple of configs", transfer_configs)
            tensors = len(source.tensor_addrs)
            if tensors % _TENSORS:
                raise _bad(f"{source} has an odd number of tensors; a layer is {_TENSORS} of them, keys and values")
            parts = _Parts.of(source, src_block_indices, dst_block_indices, dst_block_memory_size)
            legs = [self._leg(source, parts, index, config) for index, config in enumerate(transfer_configs)]
        task = CacheTask(layer_synchronizer, legs, tensors // _TENSORS, timeout)
        self._workers.submit(task)
        return task

    def _leg(self, source: Cache, parts: _Parts, index: int, config: Any) -> Leg:
        """What one config asks for. What is wrong here is raised; what is wrong at the peer is the leg's outcome."""
        place = f"transfer_configs[{index}]"
        if not isinstance(config, (TransferConfig, TransferWithCacheKeyConfig)):
            raise _wrong(place, "a TransferConfig or TransferWithCacheKeyConfig", config)
        tensors = len(source.tensor_addrs)
        layers = range(tensors // _TENSORS) if config.src_layer_range is None else config.src_layer_range
        layout.layer_tensors(layers, _TENSORS, tensors, "src")
        row = _source_row(source, config.src_batch_index, place)
        if isinstance(config, TransferConfig):
            told = addresses("dst_addrs", config.dst_addrs).tolist()
            if len(told) != _TENSORS * len(layers):
                raise _bad(f"{place} has {len(told)} dst_addrs for {len(layers)} layers; give {_TENSORS} for each")
            leg = Leg(f"cluster {pulls.integer('dst_cluster_id', config.dst_cluster_id, 0)}")
        else:
            _check_target(place, config, layers)
            leg = Leg(f"cluster {config.cache_key.cluster_id}")
        try:
            if isinstance(config, TransferConfig):
                peer, there, start = self._registrar.peers.peer(config.dst_cluster_id), told, 0
            else:
                kinds = (BlocksCacheKey, CacheKeyByIdAndIndex)
                peer, target = pulls.find(self._registrar.peers.peer, config.cache_key, _NAME, kinds)
                start = parts.check(source, target, config.cache_key)
                onto = range(len(layers)) if config.dst_layer_range is None else config.dst_layer_range
                chosen = layout.layer_tensors(onto, _TENSORS, len(target.tensors), "dst")
                there = [target.tensors[i] for i in chosen]
        except CacheError as error:
            error.operation = _NAME
            leg.error = error
            return leg
        leg.peer = peer.peer_name
        for position, layer in enumerate(layers):
            here = source.tensor_addrs[_TENSORS * layer : _TENSORS * (layer + 1)]
            onto_addrs = there[_TENSORS * position : _TENSORS * (position + 1)]
            leg.steps[layer] = functools.partial(_launch, peer, parts, source, row, here, onto_addrs, start)
        return leg


def _launch(
    peer: pulls.Peer, parts: _Parts, source: Cache, row: int, here: Sequence[int], there: Sequence[int], start: int
) -> Transfer:
    return peer.launch_pieces(parts.pieces(source, row, here, there, start))


def _source_row(source: Cache, batch_index: Any, place: str) -> int:
    if not source.is_blocks_cache:
        return pushes.source_row(source, batch_index, "")
    if pulls.integer("src_batch_index", batch_index, 0):
        raise _bad(f"{place}: {source} is a blocks cache and has no rows; leave src_batch_index at 0")
    return 0


def _check_target(place: str, config: TransferWithCacheKeyConfig, layers: range) -> None:
    if not isinstance(config.cache_key, (BlocksCacheKey, CacheKeyByIdAndIndex)):
        raise _wrong(f"{place}.cache_key", "a BlocksCacheKey or CacheKeyByIdAndIndex", config.cache_key)
    onto = config.dst_layer_range
    if onto is not None:
        # How many layers the peer has is not looked at yet.
        layout.layer_tensors(onto, 1, max(onto.stop, 1) if isinstance(onto, range) else 1, "dst")
        if len(onto) != len(layers):
            raise _bad(f"{place}: src_layer_range {layers} and dst_layer_range {onto} have unequal lengths")


@attrs.frozen(eq=False)
class _Parts:
    """Which parts of a tensor go to which parts of its counterpart.

    Attributes:
        source: Numbers of blocks here; None when a row is sent.
        target: Numbers of blocks there; None when a row is filled.
        size: Bytes of a block there, or of the row.
    """

    source: layout.U64 | None
    target: layout.U64 | None
    size: int

    @staticmethod
    def of(source: Cache, src_blocks: Any, dst_blocks: Any, size: Any) -> _Parts:
        """Check what can be told without the peers."""
        stride = source.cache_desc.stride
        told = 0 if size is None else pulls.integer("dst_block_memory_size", size, 0)
        if dst_blocks is None:
            if src_blocks is not None:
                raise _bad("src_block_indices without dst_block_indices: blocks are not sent into rows")
            pulls.layout_is(source.is_blocks_cache, False, str(source), "name its blocks in src_block_indices")
            if told:
                raise _bad("dst_block_memory_size without dst_block_indices; leave it out")
            return _Parts(None, None, stride)
        to = layout.block_indices(dst_blocks, 2**62, "dst", "the peer")
        if not len(to):
            raise _bad("dst_block_indices is empty; name at least one block")
        layout.once(to)
        if src_blocks is None:
            pulls.layout_is(source.is_blocks_cache, False, str(source), "name its blocks in src_block_indices")
            if not told:
                raise _bad("give dst_block_memory_size, the bytes of a block there, to fill blocks from a row")
            # Whether a row has enough for so many blocks is the same for each row.
            pushes.row_to_blocks(source, 0, len(to), told)
            return _Parts(None, to.astype(np.uint64), told)
        pulls.layout_is(source.is_blocks_cache, True, str(source), "leave src_block_indices out to send a row")
        if told not in (0, stride):
            raise _bad(f"dst_block_memory_size is {told:,}, and a block of {source} has {stride:,} bytes")
        pushes.blocks_between(source, src_blocks, len(to), stride, "the peer")
        blocks = layout.block_indices(src_blocks, source.cache_desc.batch_size, "src", source)
        return _Parts(blocks.astype(np.uint64), to.astype(np.uint64), stride)

    def check(self, source: Cache, target: PublishedCache, key: BlocksCacheKey | CacheKeyByIdAndIndex) -> int:
        """Hold them against the peer's cache; where its part begins in each of its tensors, in bytes."""
        there = f"the peer's {target}"
        if self.target is None:
            pulls.layout_is(target.blocks, False, there, "name its blocks in dst_block_indices")
            if target.stride < self.size:
                raise _bad(f"a row of {source} has {self.size:,} bytes, and one of {there} has {target.stride:,}")
            # A blocks key names a blocks cache, which the line above has refused.
            return pulls.row_of(target, key) * target.stride if isinstance(key, CacheKeyByIdAndIndex) else 0
        pulls.layout_is(target.blocks, True, there, "leave dst_block_indices out to fill a row")
        if isinstance(key, CacheKeyByIdAndIndex) and key.batch_index:
            raise _bad(f"{key}: {there} is a blocks cache and has no rows; leave batch_index at 0")
        layout.block_indices(self.target, target.rows, "dst", there)
        if target.stride != self.size:
            raise _bad(f"a block of {there} has {target.stride:,} bytes, not {self.size:,}")
        return 0

    def pieces(self, source: Cache, row: int, here: Sequence[int], there: Sequence[int], start: int) -> Pieces:
        """The pieces of one layer."""
        if self.target is None:
            return layout.spread(here, there, row * self.size, start, self.size)
        size = np.uint64(self.size)
        if self.source is None:
            begin, lengths = pushes.row_to_blocks(source, row, len(self.target), self.size)
        else:
            begin, lengths = self.source * size, np.full(len(self.target), size, np.uint64)
        return layout.scatter(here, there, begin, self.target * size, lengths)


def _bad(text: str, builtin: type[Exception] = ValueError) -> CacheError:
    return refusal(RequestError, {builtin}, text, operation=_NAME)


def _wrong(name: str, wanted: str, value: object) -> CacheError:
    builtin = AttributeError if value is None else TypeError
    return _bad(f"{name} must be {wanted}, not {value!r} ({type(value).__name__})", builtin)
