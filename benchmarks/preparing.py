"""What a pull spends in Python before anything is posted: ``python -m benchmarks.preparing``.

Two nodes of one process; `pull_blocks` of 8192 descriptors, as one tensor of 8192 blocks and as 64 tensors of 128. The
clock stops when the transport's channel is asked to post. Medians, in milliseconds, beside numpy's own time for the
addresses alone.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time

import numpy as np

from cachefw import BlocksCacheKey, CacheDesc, DataType, Node, Placement

DESCRIPTORS = 8192
BLOCK = 4096


class Clock:
    """Stands before a channel's `post` and notes when it is called."""

    def __init__(self, post):
        self.post = post
        self.called = 0.0

    def __call__(self, prepared):
        self.called = time.perf_counter()
        return self.post(prepared)


def addresses(tensors, blocks):
    """The least that numpy takes for one side."""
    return np.add.outer(np.array(tensors, np.uint64), np.array(blocks, np.uint64) * np.uint64(BLOCK)).ravel()


def measure(pull, link, tensors, blocks, rounds):
    """Milliseconds before posting, and for the addresses of both sides alone."""
    own, alone = [], []
    clock = link.start = Clock(link.start)
    for _ in range(rounds):
        began = time.perf_counter()
        pull()
        own.append(clock.called - began)
        began = time.perf_counter()
        addresses(tensors, blocks)
        addresses(tensors, blocks)
        alone.append(time.perf_counter() - began)
    link.start = clock.post
    return [statistics.median(times[rounds // 10 :]) * 1e3 for times in (own, alone)]


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help="pulls of each kind (default 200)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows = []
    with Node(1, "127.0.0.1:0", transports=["host"]) as one, Node(2, transports=["host"]) as two:
        link = two.link(one.address)
        for tensors in (1, 64):
            count = DESCRIPTORS // tensors
            desc = CacheDesc(tensors, (2 * count, BLOCK), DataType.DT_UINT8, Placement.HOST)
            one.cache_manager.allocate_blocks_cache(desc, BlocksCacheKey(1, tensors))
            cache = two.cache_manager.allocate_blocks_cache(desc)
            random = np.random.default_rng(0)
            src, dst = (random.permutation(2 * count)[:count] for _ in range(2))
            for form, lists in (("lists", (src.tolist(), dst.tolist())), ("arrays", (src, dst))):
                key = BlocksCacheKey(1, tensors)
                pull = functools.partial(two.cache_manager.pull_blocks, key, cache, *lists)
                own, alone = measure(pull, link, cache.tensor_addrs, lists[0], options.rounds)
                row = {"tensors": tensors, "blocks": count, "form": form, "ms": own, "numpy_ms": alone}
                rows.append({**row, "ratio": own / alone})
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'tensors':>8}{'blocks':>8}{'given as':>10}{'ms':>8}{'numpy ms':>10}{'ratio':>7}")
    for row in rows:
        print(
            f"{row['tensors']:8}{row['blocks']:8}{row['form']:>10}{row['ms']:8.3f}{row['numpy_ms']:10.3f}"
            f"{row['ratio']:7.1f}"
        )


if __name__ == "__main__":
    main()
