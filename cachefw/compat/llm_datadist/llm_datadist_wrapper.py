"""What LLM-DataDist's native module of this name offers: status numbers, and calls with tuples that return them.

There is one engine for each process: that of `initialize_v2`, else that of the live `LLMDataDist`. A wrong type raises
`TypeError`; everything else is a status.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cachefw import cache as core
from cachefw.cache import ABSENT_ID, Placement
from cachefw.compat.llm_datadist.configs import LLMClusterInfo
from cachefw.compat.llm_datadist.data_type import DataType, itemsize
from cachefw.compat.llm_datadist.engine.engine import Engine
from cachefw.compat.llm_datadist.engine.moves import Layers, Moves
from cachefw.compat.llm_datadist.engine.options import parse
from cachefw.compat.llm_datadist.status import LLMStatusCode, failed, invalid, status_of, wrong_type
from cachefw.compat.llm_datadist.v2._caches import Cache, CacheDesc, RegisterMemStatus
from cachefw.compat.llm_datadist.v2._keys import BlocksCacheKey, CacheKey, CacheKeyByIdAndIndex
from cachefw.compat.llm_datadist.v2._transfers import PushType
from cachefw.compat.llm_datadist.v2.config import LISTEN
from cachefw.compat.llm_datadist.v2.llm_datadist import LLMDataDist
from cachefw.errors import CacheError

#: The names of the statuses here.
STATUSES = {
    "kSuccess": LLMStatusCode.LLM_SUCCESS,
    "kFailed": LLMStatusCode.LLM_FAILED,
    "kParamInvalid": LLMStatusCode.LLM_PARAM_INVALID,
    "kLLMWaitProcessTimeOut": LLMStatusCode.LLM_WAIT_PROCESS_TIMEOUT,
    "kLLMKVCacheNotExist": LLMStatusCode.LLM_KV_CACHE_NOT_EXIST,
    "kLLMRepeatRequest": LLMStatusCode.LLM_REPEAT_REQUEST,
    "kLLMRequestAlreadyCompleted": LLMStatusCode.LLM_REQUEST_ALREADY_COMPLETED,
    "kLLMEngineFinalized": LLMStatusCode.LLM_ENGINE_FINALIZED,
    "kLLMNotYetLink": LLMStatusCode.LLM_NOT_YET_LINK,
    "kAlreadyLink": LLMStatusCode.LLM_ALREADY_LINK,
    "kLinKFailed": LLMStatusCode.LLM_LINK_FAILED,
    "kUnlinkFailed": LLMStatusCode.LLM_UNLINK_FAILED,
    "kNotifyPromptUnlinkFailed": LLMStatusCode.LLM_NOTIFY_PROMPT_UNLINK_FAILED,
    "kLLMClusterNumExceedLimit": LLMStatusCode.LLM_CLUSTER_NUM_EXCEED_LIMIT,
    "kProcessingLink": LLMStatusCode.LLM_PROCESSING_LINK,
    "kDeviceOutOfMemory": LLMStatusCode.LLM_DEVICE_OUT_OF_MEMORY,
    "kPrefixAlreadyExist": LLMStatusCode.LLM_PREFIX_ALREADY_EXIST,
    "kPrefixNotExist": LLMStatusCode.LLM_PREFIX_NOT_EXIST,
    "kLLMSeqLenOverLimit": LLMStatusCode.LLM_SEQ_LENOVERLIMIT,
    "kLLMNoFreeBlock": LLMStatusCode.LLM_NO_FREE_BLOCK,
    "kLLMBlocksOutOfMemory": LLMStatusCode.LLM_BLOCKS_OUT_OF_MEMORY,
    "kLLMExistLink": LLMStatusCode.LLM_EXIST_LINK,
    "kLLMFeatureNotEnabled": LLMStatusCode.LLM_FEATURE_NOT_ENABLED,
    "kLLMTimeout": LLMStatusCode.LLM_TIMEOUT,
    "kLLMLinkBusy": LLMStatusCode.LLM_LINK_BUSY,
    "kLLMOutOfMemory": LLMStatusCode.LLM_OUT_OF_MEMORY,
    "kLLMDeviceMemError": LLMStatusCode.LLM_DEVICE_MEM_ERROR,
    "kLLMSuspectRemoteError": LLMStatusCode.LLM_SUSPECT_REMOTE_ERROR,
}
globals().update({name: int(status) for name, status in STATUSES.items()})

_own: Engine | None = None


def _engine() -> Engine:
    live = LLMDataDist.llm_engine_instance
    engine = _own if _own is not None else live._engine if live is not None else None
    if engine is None:
        raise failed(LLMStatusCode.LLM_FAILED, "there is no engine; call initialize_v2 first")
    return engine


def _status(
    operation: str, work: Callable[[Engine], Any], closed: LLMStatusCode = LLMStatusCode.LLM_PARAM_INVALID
) -> int:
    try:
        engine = _engine()
        with engine.entered(operation, closed):
            work(engine)
    except CacheError as error:
        if isinstance(error, TypeError):
            raise
        return int(status_of(error))
    return int(LLMStatusCode.LLM_SUCCESS)


# ---------------------------------------------------------------------- tuples


def _desc(values: tuple[Any, ...]) -> tuple[CacheDesc, bool]:
    """(num_tensors, dtype, seq_len_dim, shape, placement, is_blocks)."""
    number, dtype, seq_len, shape, placement, blocks = values
    return CacheDesc(number, list(shape), DataType(dtype), Placement(placement), 0, seq_len), bool(blocks)


def _key(values: tuple[Any, ...]) -> BlocksCacheKey | CacheKey | CacheKeyByIdAndIndex:
    """(cluster_id, cache_id or -1, batch_index, req_id, prefix_id, model_id, is_blocks_key)."""
    cluster, cache_id, row, request, prefix, model, blocks = values
    if blocks:
        return BlocksCacheKey(cluster, model)
    if cache_id >= 0:
        return CacheKeyByIdAndIndex(cluster, cache_id, row)
    return CacheKey(cluster, request, model, prefix)


def _handle(cache_id: int, addrs: Sequence[int] = ()) -> Cache:
    desc = CacheDesc(len(addrs), [1], DataType.DT_INT8)
    return Cache(cache_id, desc, list(addrs))


def _layers(indices: Sequence[int], per_layer: int) -> range | None:
    """Tensors as a range of layers; none is all."""
    if not len(indices):
        return None
    first, last = indices[0], indices[-1] + 1
    if list(indices) != list(range(first, last)) or first % per_layer or last % per_layer:
        raise invalid(f"tensors {list(indices)} make no layers of {per_layer}")
    return range(first // per_layer, last // per_layer)


def _cluster(values: tuple[Any, ...]) -> LLMClusterInfo:
    """(remote_cluster_id, 0, [(ip, port)], [(ip, port)])."""
    number, _, local, remote = values
    info = LLMClusterInfo()
    info.remote_cluster_id = number
    for ip, port in local:
        info.append_local_ip_info(ip, port)
    for ip, port in remote:
        info.append_remote_ip_info(ip, port)
    return info


# ---------------------------------------------------------------------- life


def calc_tensor_size(shape: Sequence[int], dtype: int) -> int:
    """Bytes of a tensor; -1 for a type or shape that is none."""
    try:
        size = math.prod(shape) * itemsize(DataType(dtype))
    except ValueError:
        return -1
    return size if 0 <= size < 2**63 else -1


def dict_to_vector(options: Mapping[str, str]) -> list[tuple[str, str]]:
    """The items of a dict."""
    return list(options.items())


def initialize_v2(cluster_id: int, options: dict[str, str]) -> int:
    """Start the engine."""
    global _own  # noqa: PLW0603 - one for each process
    try:
        if _own is not None or LLMDataDist.llm_engine_instance is not None:
            raise failed(LLMStatusCode.LLM_FAILED, "there is an engine already")
        if not isinstance(cluster_id, int) or not 0 <= cluster_id < 2**64:
            raise wrong_type(f"cluster_id must lie in 0 ... 2^64 - 1, not {cluster_id!r}")
        _own = Engine(cluster_id, parse(options))
    except CacheError as error:
        if isinstance(error, TypeError):
            raise
        return int(status_of(error))
    return int(LLMStatusCode.LLM_SUCCESS)


def finalize_v2() -> int:
    """End the engine that `initialize_v2` started."""
    global _own
    engine, _own = _own, None
    if engine is not None:
        engine.close()
    return int(LLMStatusCode.LLM_SUCCESS)


# ---------------------------------------------------------------------- links


def link(comm_name: str, cluster_rank_info: dict[int, int], rank_table: str) -> tuple[int, int]:
    """Begin a rank-table link: (status, its id)."""
    made: list[int] = []
    status = _status(
        "link", lambda engine: made.append(engine.communicators.link(comm_name, cluster_rank_info, rank_table))
    )
    return status, made[0] if made else 0


def unlink(comm_id: int) -> int:
    """End a rank-table link."""
    return _status("unlink", lambda engine: engine.communicators.unlink(comm_id))


def query_register_mem_status(comm_id: int) -> tuple[int, int]:
    """How far a rank-table link has come: (status, 0 OK, 1 preparing, 2 failed)."""
    found: list[RegisterMemStatus] = []
    status = _status("query_register_mem_status", lambda engine: found.append(engine.communicators.status(comm_id)))
    return status, found[0].value if found else RegisterMemStatus.FAILED.value


def link_clusters_v2(clusters: Sequence[tuple[Any, ...]], timeout: int) -> tuple[int, list[int]]:
    """Link by address: (status, one for each)."""
    return _clusters(clusters, lambda engine, infos: engine.link_clusters(infos, timeout / 1000))


def unlink_clusters_v2(clusters: Sequence[tuple[Any, ...]], timeout: int, force: bool) -> tuple[int, list[int]]:
    """Unlink: (status, one for each). It takes no longer than unlinking does; `timeout` is for the caller's peace."""
    return _clusters(clusters, lambda engine, infos: engine.unlink_clusters(infos, force))


def _clusters(
    clusters: Sequence[tuple[Any, ...]],
    work: Callable[[Engine, list[LLMClusterInfo]], tuple[LLMStatusCode, list[LLMStatusCode]]],
) -> tuple[int, list[int]]:
    try:
        overall, each = work(_engine(), [_cluster(values) for values in clusters])
    except CacheError as error:
        if isinstance(error, TypeError):
            raise
        return int(status_of(error)), []
    return int(overall), [int(status) for status in each]


def switch_role_v2(role: str, options: Mapping[str, str]) -> int:
    """Listen where the options say, or nowhere."""
    return _status("switch_role", lambda engine: engine.switch_role(options.get(LISTEN) or None))


# ---------------------------------------------------------------------- caches


def register_cache(
    desc: tuple[Any, ...], addrs: list[int], keys: Sequence[tuple[Any, ...]], remote_accessible: bool
) -> tuple[int, tuple[int, list[list[int]]]]:
    """Register a cache: (status, (id, [addresses]))."""

    def work(engine: Engine) -> core.Cache:
        described, blocks = _desc(desc)
        named: list[Any] = [_key(key) for key in keys]
        if blocks:
            return engine.register_blocks(described, addrs, named[0] if named else None, remote_accessible)
        return engine.register(described, addrs, named, remote_accessible)

    return _made("register_cache", work)


def allocate_cache_v2(
    desc: tuple[Any, ...], keys: Sequence[tuple[Any, ...]]
) -> tuple[int, tuple[int, list[list[int]]]]:
    """Allocate a cache: (status, (id, [addresses]))."""

    def work(engine: Engine) -> core.Cache:
        described, blocks = _desc(desc)
        named: list[Any] = [_key(key) for key in keys]
        return engine.allocate(described, (named[0] if named else None) if blocks else named, blocks=blocks)

    return _made("allocate_cache", work)


def _made(operation: str, work: Callable[[Engine], core.Cache]) -> tuple[int, tuple[int, list[list[int]]]]:
    made: list[core.Cache] = []
    status = _status(operation, lambda engine: made.append(work(engine)), LLMStatusCode.LLM_FAILED)
    return status, (made[0].cache_id, [list(made[0].tensor_addrs)]) if made else (0, [[]])


def unregister_cache(cache_id: int) -> int:
    """Give a cache back."""
    return _status("unregister_cache", lambda engine: engine.unregister(cache_id), LLMStatusCode.LLM_FAILED)


def deallocate_cache_v2(cache_id: int) -> int:
    """Give an allocated cache back."""

    def work(engine: Engine) -> None:
        engine.require_pool("deallocate_cache")
        engine.keys.deallocate(cache_id)

    return _status("deallocate_cache", work)


def remove_cache_key_v2(key: tuple[Any, ...]) -> int:
    """Forget the key of an allocated cache."""

    def work(engine: Engine) -> None:
        engine.require_pool("remove_cache_key")
        named = _key(key)
        if not isinstance(named, CacheKey):
            raise invalid(f"{named} is no key of a row")
        engine.keys.remove(named)

    return _status("remove_cache_key", work)


def remap_registered_memory(ranges: Sequence[tuple[int, int, int]]) -> int:
    """Have device memory mapped anew: (type, address, size) each."""
    return _status(
        "remap_registered_memory", lambda engine: engine.remap([(address, size) for _, address, size in ranges])
    )


def check_capacity_v2(size: int) -> int:
    """Whether the pool of device memory has room for so many bytes."""

    def work(engine: Engine) -> None:
        engine.require_pool("check_capacity")
        if not engine.has_room(size):
            raise failed(LLMStatusCode.LLM_OUT_OF_MEMORY, f"no room for {size:,} bytes")

    return _status("check_capacity", work)


# ---------------------------------------------------------------------- moving


def pull_cache_v2(cache_id: int, key: tuple[Any, ...], param: tuple[Any, ...]) -> int:
    """Pull a row or blocks.

    `param` is (size, batch_index, src_blocks, dst_blocks, src_tensors, dst_tensors, -1, -1, tensor_num_per_layer).
    """

    def work(engine: Engine) -> None:
        size, row, src_blocks, dst_blocks, src_tensors, dst_tensors, _, _, per_layer = param
        layers = Layers(_layers(src_tensors, per_layer), _layers(dst_tensors, per_layer), per_layer)
        moves, named = Moves(engine), _key(key)
        if dst_blocks:
            moves.pull_blocks(named, _handle(cache_id), src_blocks, dst_blocks, layers)
        else:
            moves.pull_cache(named, _handle(cache_id), row, size, layers)

    return _status("pull_cache", work)


def transfer_cache_v2(task_id: int, config: tuple[Any, ...], blocks: tuple[Any, ...]) -> int:
    """Push one layer.

    `config` is (src_cache_id, src_batch, src_layer, dst_addrs, dst_cluster, model or cache id, dst_batch, push type,
    dst_layer, tensor_num_per_layer), `blocks` (bytes of a block, src_blocks, dst_blocks). Only by key.
    """

    def work(engine: Engine) -> None:
        cache_id, row, src, _, cluster, number, dst_row, kind, dst, per_layer = config
        layers = Layers(range(src, src + 1), range(dst, dst + 1), per_layer)
        push = PushType(kind)
        if push is PushType.BLOCKS_CACHE_KEY:
            key = BlocksCacheKey(cluster, number)
            Moves(engine).push_blocks(key, _handle(cache_id), blocks[1], blocks[2], layers)
        elif push is PushType.CACHE_KEY_BY_ID:
            Moves(engine).push_cache(CacheKeyByIdAndIndex(cluster, number, dst_row), _handle(cache_id), row, layers)
        else:
            raise failed(LLMStatusCode.LLM_FEATURE_NOT_ENABLED, "push to addresses with transfer_cache_async")

    return _status("transfer_cache", work)


def copy_cache_v2(param: tuple[Any, ...]) -> int:
    """Copy within the process: (dst_id, src_id, dst_batch, src_batch, offset, size, req_id, [(src, dst) blocks])."""

    def work(engine: Engine) -> None:
        dst, src, dst_row, src_row, offset, size, _, pairs = param
        moves = Moves(engine)
        if pairs:
            info: dict[int, list[int]] = {}
            for source, target in pairs:
                info.setdefault(source, []).append(target)
            moves.copy_blocks(_handle(dst), info)
        else:
            moves.copy_cache(_handle(dst), _handle(src), dst_row, src_row, offset, size)

    return _status("copy_cache", work)


def swap_blocks_v2(
    src: tuple[int, list[int]],
    dst: tuple[int, list[int]],
    block_size: int,
    kind: int,
    pairs: Sequence[tuple[int, int]],
) -> int:
    """Copy blocks from host to device memory (kind 0) or back (1), at the addresses of (-1, addresses)."""

    def work(engine: Engine) -> None:
        if not pairs:
            return
        caches = []
        for (_, addrs), blocks, host in ((src, [p[0] for p in pairs], kind == 0), (dst, [p[1] for p in pairs], kind)):
            place = Placement.HOST if host else Placement.DEVICE
            desc = CacheDesc(len(addrs), [max(blocks) + 1, block_size], DataType.DT_INT8, place)
            caches.append(Cache(-1, desc, list(addrs), is_blocks_cache=True))
        Moves(engine).swap_blocks(caches[0], caches[1], dict(pairs))

    return _status("swap_blocks", work)


#: The id that names nothing.
INVALID_ID = ABSENT_ID
