"""The demo's prefill process: fills a blocks cache, and lets peers read it until its stdin ends."""

from __future__ import annotations

import sys

from cachefw.cache import BlocksCacheKey
from cachefw.cli import reports
from cachefw.cli.child import Bench, run
from cachefw.cli.pool import Pool

__all__: list[str] = []


def _work(bench: Bench) -> None:
    task, places = bench.task, bench.places
    bench.step("open the node")
    node, settings = bench.open_node(1, "127.0.0.1:0", task.prefill_settings, device=0)
    with node:
        bench.step("allocate and register")
        pool = Pool.make(places.prefill_desc, node.cache_manager, task)
        node.cache_manager.register_blocks_cache(
            pool.desc, pool.addrs, BlocksCacheKey(1), remote_accessible=pool.remote_accessible
        )
        bench.step("fill the blocks")
        for tensor in range(bench.model.tensors):
            blocks = pool.room(tensor)
            for number, block in enumerate(blocks):
                block[:] = bench.pattern.block(tensor, number)
            pool.write(tensor, blocks)
        if task.corrupt:
            _corrupt(bench, pool)
        bench.report(reports.Card(node.card().hex(), settings))
        bench.step("serve")
        sys.stdin.buffer.read()
        bench.step("close")
    pool.close()


def _corrupt(bench: Bench, pool: Pool) -> None:
    """Flip one bit of a block in the middle of what will be asked for."""
    tensor = bench.model.tensors // 2
    number = bench.places.prefill[bench.places.blocks // 2]
    blocks = pool.read(tensor)
    blocks[number, pool.desc.stride // 2] ^= 1
    pool.write(tensor, blocks)


if __name__ == "__main__":
    run(_work)
