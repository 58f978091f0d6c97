"""What the calls of `cachefw.compat` add to cachefw's own: ``python -m benchmarks.compat``.

Both run in turns, in one process with two nodes, on 4 KiB pieces of host memory; the smallest median of several rounds
counts, since whatever else the machine does only adds. What a call adds for each piece is given apart.
"""

from __future__ import annotations

import atexit
import json
import statistics
import sys
import time
from collections.abc import Callable

import attrs
import numpy as np

from cachefw import BlocksCacheKey, CacheDesc, DataType, Node, Placement
from cachefw.compat import hixl, llm_datadist
from cachefw.compat.mooncake.engine import TransferEngine

ROUNDS = 7
PIECE = 4096
MANY = 8192
KEPT: list[object] = []


@attrs.frozen
class Pair:
    """A call, and what cachefw itself does for it."""

    name: str
    theirs: Callable[[], object]
    ours: Callable[[], object]
    pieces: int = 1


def median_us(call: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        begin = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - begin)
    return statistics.median(taken) / 1000


def measure(pair: Pair) -> dict[str, object]:
    times = 400 if pair.pieces == 1 else 15
    rounds = [(median_us(pair.theirs, times), median_us(pair.ours, times)) for _ in range(ROUNDS)]
    theirs, ours = (min(column) for column in zip(*rounds, strict=True))
    return {
        "call": pair.name,
        "pieces": pair.pieces,
        "compat us": round(theirs, 1),
        "cachefw us": round(ours, 1),
        "adds us": round(theirs - ours, 1),
        "adds us/piece": round((theirs - ours) / pair.pieces, 3),
    }


def pairs() -> list[Pair]:
    size = PIECE * MANY
    here, there = np.zeros(size, np.uint8), np.ones(size, np.uint8)
    local, remote = [[array.ctypes.data + PIECE * i for i in range(MANY)] for array in (here, there)]
    lengths = [PIECE] * MANY

    # The last reference to an engine ends it.
    kept = hixl_server, hixl_client, server, client = hixl.Hixl(), hixl.Hixl(), TransferEngine(), TransferEngine()
    port = Node(1, "127.0.0.1:0")
    address = port.address
    port.close()
    assert hixl_server.initialize(address) == hixl_client.initialize("127.0.0.1:0") == hixl.SUCCESS
    for engine, array in ((hixl_client, here), (hixl_server, there)):
        assert engine.register_mem(hixl.MemDesc(array.ctypes.data, size), hixl.MEM_HOST)[0] == hixl.SUCCESS
    assert hixl_client.connect(address) == hixl.SUCCESS
    (hixl_link,) = hixl_client._state.engine.node.links
    descs = [hixl.TransferOpDesc(*piece) for piece in zip(local, remote, lengths, strict=True)]

    for engine, array in ((server, there), (client, here)):
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        assert engine.register_memory(array.ctypes.data, size) == 0
    session = f"127.0.0.1:{server.get_rpc_port()}"
    assert client.send_probe(session) == 0
    node = client._engine.node
    (link,) = node.links
    spare = np.zeros(PIECE, np.uint8)
    KEPT.extend((*kept, here, there))

    def read_async(link: object, node: object) -> None:
        link.read(local[:1], remote[:1], lengths[:1], None, False).result()
        node.completed()

    def hixl_async() -> None:
        _, request = hixl_client.transfer_async(address, hixl.READ, descs[:1])
        while hixl_client.get_transfer_status(request)[1] is hixl.TransferStatus.WAITING:
            pass

    def register(engine: TransferEngine) -> None:
        engine.register_memory(spare.ctypes.data, PIECE)
        engine.unregister_memory(spare.ctypes.data)

    def register_memory() -> None:
        manager = node.cache_manager
        manager.unregister_memory(manager.register_memory(spare, remote_accessible=True))

    return [
        Pair(
            "hixl transfer_sync",
            lambda: hixl_client.transfer_sync(address, hixl.READ, descs[:1]),
            lambda: hixl_link.read(local[:1], remote[:1], lengths[:1]),
        ),
        Pair(
            "hixl transfer_sync",
            lambda: hixl_client.transfer_sync(address, hixl.READ, descs),
            lambda: hixl_link.read(local, remote, lengths),
            MANY,
        ),
        Pair("hixl transfer_async + status", hixl_async, lambda: read_async(hixl_link, hixl_client._state.engine.node)),
        Pair(
            "mooncake transfer_sync_read",
            lambda: client.transfer_sync_read(session, local[0], remote[0], PIECE),
            lambda: link.read(local[0], remote[0], PIECE),
        ),
        Pair(
            "mooncake batch_transfer_sync_write",
            lambda: client.batch_transfer_sync_write(session, local, remote, lengths),
            lambda: link.write(local, remote, lengths),
            MANY,
        ),
        Pair(
            "mooncake batch_transfer_async_read + status",
            lambda: client.get_batch_transfer_status(
                [client.batch_transfer_async_read(session, local[:1], remote[:1], lengths[:1])]
            ),
            lambda: read_async(link, node),
        ),
        Pair("mooncake register + unregister", lambda: register(client), register_memory),
    ]


def llm_datadist_pairs() -> list[Pair]:
    """Blocks pulled from a node that is not of this interface, one and many."""
    shape = [MANY, PIECE]
    here, there = np.zeros(shape, np.uint8), np.ones(shape, np.uint8)
    node = Node(2, "127.0.0.1:0")
    node.cache_manager.register_blocks_cache(
        CacheDesc(1, shape, DataType.DT_UINT8, Placement.HOST), [there.ctypes.data], BlocksCacheKey(2), True
    )
    dist = llm_datadist.LLMDataDist(llm_datadist.LLMRole.DECODER, 1)
    dist.init({"llm.LocalCommRes": "", "llm.SyncKvCacheWaitTime": "30000", "cachefw.transports": "host"})
    info = llm_datadist.LLMClusterInfo()
    info.remote_cluster_id = 2
    info.append_local_ip_info("127.0.0.1", 0)
    info.append_remote_ip_info("127.0.0.1", int(node.address.rpartition(":")[2]))
    assert dist.link_clusters([info], 5000)[0] is llm_datadist.LLMStatusCode.LLM_SUCCESS
    manager = dist.cache_manager
    cache = manager.register_blocks_cache(
        llm_datadist.CacheDesc(1, shape, llm_datadist.DataType.DT_UINT8), [here.ctypes.data]
    )
    KEPT.extend((here, there))
    atexit.register(node.close)
    native = dist._engine.manager
    own, key, theirs = native.caches[cache.cache_id], BlocksCacheKey(2), llm_datadist.BlocksCacheKey(2)
    # Every second block, so that none are joined.
    few, many = ([0], [1]), (list(range(0, MANY, 2)), list(range(1, MANY, 2)))
    return [
        Pair(
            "llm_datadist pull_blocks",
            lambda blocks=blocks: manager.pull_blocks(theirs, cache, *blocks),
            lambda blocks=blocks: native.pull_blocks(key, own, *blocks, timeout=30),
            len(blocks[0]),
        )
        for blocks in (few, many)
    ]


def main() -> None:
    rows = [measure(pair) for pair in [*pairs(), *llm_datadist_pairs()]]
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(
            f"{row['call']:44} {row['pieces']:5} pieces  {row['compat us']:9} us, cachefw {row['cachefw us']:9} us, "
            f"adds {row['adds us']:6} us"
        )


if __name__ == "__main__":
    main()
