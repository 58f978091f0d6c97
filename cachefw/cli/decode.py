"""The demo's decode process: pulls the blocks twice, and checks every one against the pattern it makes itself."""

from __future__ import annotations

import sys
import time
import zlib

import attrs
import numpy as np
from numpy.typing import NDArray

from cachefw.cache import BlocksCacheKey, Cache
from cachefw.cli import reports
from cachefw.cli.child import Bench, run
from cachefw.cli.pool import Pool
from cachefw.errors import UnsupportedOperation
from cachefw.node import Node

__all__: list[str] = []

#: A pull goes in at most so many batches, of at least so many bytes each.
_BATCHES = 8
_BATCH_BYTES = 32 * 2**20
_EXAMPLES = 5
#: What the memory holds before the second pull.
_CLEAR = 0xA5


@attrs.define
class _Check:
    """What was found in the blocks, over both pulls."""

    checked: int = 0
    spared: int = 0
    wrong: int = 0
    examples: list[str] = attrs.field(factory=list)

    def fault(self, text: str) -> None:
        self.wrong += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(text)


def _work(bench: Bench) -> None:
    task, places = bench.task, bench.places
    bench.step("open the node")
    node, settings = bench.open_node(2, None, task.decode_settings, device=1)
    with node:
        bench.step("allocate and register")
        pool = Pool.make(places.decode_desc, node.cache_manager, task)
        cache = node.cache_manager.register_blocks_cache(pool.desc, pool.addrs)
        pool.zero()
        bench.step("make the expected checksums")
        expected = _expected(bench)
        bench.step("wait for the prefill side's card")
        card = sys.stdin.buffer.readline()
        if not card:
            return
        bench.step("link")
        node.link(bytes.fromhex(card.decode()))
        check = _Check()
        cold, path = _pull(bench, node, cache, "cold")
        _verify(bench, pool, expected, 0, "cold", check)
        bench.step("clear")
        pool.fill(_CLEAR)
        warm, path = _pull(bench, node, cache, "warm")
        _verify(bench, pool, expected, _CLEAR, "warm", check)
        remark = node.cache_manager.transport(task.transport).remark
    pool.close()
    bench.step("measure memcpy")
    memcpy = _memcpy(places.nbytes)
    bench.report(
        reports.Result(
            path=path,
            remark=remark,
            settings=settings,
            cold_seconds=cold,
            warm_seconds=warm,
            memcpy_seconds=memcpy,
            checked=check.checked,
            spared=check.spared,
            wrong=check.wrong,
            examples=check.examples,
        )
    )


def _expected(bench: Bench) -> NDArray[np.uint32]:
    """The checksum of each block asked for, [tensor, position], from the seed alone."""
    numbers = bench.places.prefill.tolist()
    rows = [
        [zlib.crc32(bench.pattern.block(tensor, number).data) for number in numbers]
        for tensor in range(bench.model.tensors)
    ]
    return np.array(rows, np.uint32)


def _pull(bench: Bench, node: Node, cache: Cache, which: str) -> tuple[float, str]:
    """Pull every block, in batches; the seconds inside of the pulls, and the path they took.

    Raises:
        UnsupportedOperation: The path is not the one asked for.
    """
    bench.step(f"{which} pull")
    places, task = bench.places, bench.task
    seconds, done, path = 0.0, 0, ""
    batches = max(1, min(_BATCHES, places.blocks, places.nbytes // _BATCH_BYTES))
    for part in np.array_split(np.arange(places.blocks), batches):
        begin = time.perf_counter()
        transfer = node.cache_manager.pull_blocks(
            BlocksCacheKey(1),
            cache,
            places.prefill[part].tolist(),
            places.decode[part].tolist(),
            tensor_num_per_layer=len(bench.model.parts),
            timeout=task.timeout,
        )
        seconds += time.perf_counter() - begin
        path = transfer.path
        if task.path not in (None, path):
            went = f"went by {path!r}" if path else "has no paths to choose from"
            raise UnsupportedOperation(
                f"path {task.path!r} was asked for, and the transport {went}",
                operation="demo",
                transport=task.transport,
            )
        done += len(part) * cache.cache_desc.stride * cache.cache_desc.num_tensors
        bench.report(reports.Progress(which, done))
    return seconds, path


def _verify(bench: Bench, pool: Pool, expected: NDArray[np.uint32], before: int, pull: str, check: _Check) -> None:
    """Compare every block of every tensor: those asked for by checksum, the others with what was there before."""
    bench.step(f"check the {pull} pull")
    here, there = bench.places.decode.tolist(), bench.places.prefill.tolist()
    others = sorted(set(range(bench.places.decode_desc.batch_size)) - set(here))
    for tensor in range(bench.model.tensors):
        blocks = pool.read(tensor)
        for position, number in enumerate(here):
            found, wanted = zlib.crc32(blocks[number].data), int(expected[tensor, position])
            if found != wanted:
                check.fault(
                    f"{pull} pull, {bench.model.tensor_name(tensor)}, block {number} (block {there[position]} of the "
                    f"prefill side): crc32 {found:#010x} instead of {wanted:#010x}"
                )
        for number in others:
            if not (blocks[number] == before).all():
                check.fault(
                    f"{pull} pull, {bench.model.tensor_name(tensor)}, block {number}: it was not asked for and was "
                    "written all the same"
                )
    check.checked += len(here) * bench.model.tensors
    check.spared += len(others) * bench.model.tensors


def _memcpy(nbytes: int) -> float:
    """Seconds that numpy takes to copy so many bytes between two buffers in use, best of three."""
    source, target = np.full(nbytes, 1, np.uint8), np.full(nbytes, 2, np.uint8)
    best = float("inf")
    for _ in range(3):
        begin = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - begin)
    return best


if __name__ == "__main__":
    run(_work)
