"""The demo's prefill process: fills a blocks cache, and lets peers read it until its stdin ends."""

from __future__ import annotations

import sys

from cachefw.cache import BlocksCacheKey
from cachefw.cli import reports
from cachefw.cli.child import Bench, Pool, run
from cachefw.node import Node

__all__: list[str] = []


def _work(bench: Bench) -> None:
    task, places = bench.task, bench.places
    bench.step("open the node")
    with Node(1, "127.0.0.1:0", transports=[task.transport]) as node:
        bench.step("allocate and register")
        pool = Pool.make(places.prefill_desc, node.cache_manager, task)
        node.cache_manager.register_blocks_cache(
            places.prefill_desc, pool.addrs, BlocksCacheKey(1), remote_accessible=True
        )
        bench.step("fill the blocks")
        for tensor, blocks in enumerate(pool.blocks):
            for number, block in enumerate(blocks):
                block[:] = bench.pattern.block(tensor, number)
        if task.corrupt:
            _corrupt(bench, pool)
        bench.report(reports.Card(node.card().hex()))
        bench.step("serve")
        sys.stdin.buffer.read()
        bench.step("close")
    pool.close()


def _corrupt(bench: Bench, pool: Pool) -> None:
    """Flip one bit of a block in the middle of what will be asked for."""
    tensor = bench.model.tensors // 2
    number = bench.places.prefill[bench.places.blocks // 2]
    pool.blocks[tensor, number, bench.places.prefill_desc.stride // 2] ^= 1


if __name__ == "__main__":
    run(_work)
