"""Prefill and decode workers as Ray actors: Ray places and restarts them, cachefw moves the bytes.

    pip install cachefw ray
    python examples/ray/prefill_decode.py                   # a cluster of its own on this machine
    python examples/ray/prefill_decode.py --address auto    # the cluster that this machine belongs to

What goes through Ray is small: a ticket for each finished prompt. The blocks go from actor to actor, one-sided, and
never through Ray's object store. In place of a model each prompt's blocks are filled with numbers that the
decode worker can check.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import cachefw

LAYERS, BLOCKS, BLOCK_BYTES = 8, 64, 64 * 1024
#: Blocks of one prompt.
BLOCKS_EACH = 8
#: Other hosts are let in only with a secret that all workers share.
SECRET_FILE = "CACHEFW_SECRET_FILE"  # noqa: S105 - the name of a variable


def contents(prompt: int, layer: int) -> NDArray[np.uint64]:
    """What the blocks of a prompt hold in one layer, [block, number]."""
    words = BLOCKS_EACH * BLOCK_BYTES // 8
    start = np.uint64((prompt * LAYERS + layer) * words)
    return (np.arange(words, dtype=np.uint64) + start).reshape(BLOCKS_EACH, -1)


class Worker:
    """A node and one blocks cache in memory that the transport moves best."""

    def __init__(self, other_hosts: bool) -> None:
        # The address that the other actors see this one at; the loopback is enough where all share one machine.
        host = ray.util.get_node_ip_address() if other_hosts else "127.0.0.1"
        cluster = int.from_bytes(os.urandom(7), "little")
        self.node = cachefw.Node(cluster, listen=f"{host}:0")
        self.memory = self.node.cache_manager.allocate(LAYERS * BLOCKS * BLOCK_BYTES)
        self.blocks = np.asarray(self.memory).view(np.uint64).reshape(LAYERS, BLOCKS, -1)
        desc = cachefw.CacheDesc(LAYERS, (BLOCKS, BLOCK_BYTES), cachefw.DataType.DT_UINT8, cachefw.Placement.HOST)
        starts = [self.memory.address + layer * BLOCKS * BLOCK_BYTES for layer in range(LAYERS)]
        key = cachefw.BlocksCacheKey(cluster)
        self.cache = self.node.cache_manager.register_blocks_cache(desc, starts, key, remote_accessible=True)
        self.free = list(range(BLOCKS))

    def take(self) -> list[int]:
        """Blocks for one prompt."""
        taken, self.free = self.free[:BLOCKS_EACH], self.free[BLOCKS_EACH:]
        return taken

    def pid(self) -> int:
        """The actor's process."""
        return os.getpid()


@ray.remote(num_cpus=0.5, max_restarts=3)
class Prefill(Worker):
    """Computes prompts and keeps their blocks until they were fetched."""

    def __init__(self, other_hosts: bool) -> None:
        super().__init__(other_hosts)
        self.kept: dict[bytes, list[int]] = {}

    def prefill(self, prompt: int) -> dict[str, Any]:
        """Compute a prompt. The ticket says how this actor is reached and where the blocks are."""
        self.let_go()
        blocks = self.take()
        for layer in range(LAYERS):
            self.blocks[layer, blocks] = contents(prompt, layer)
        name = f"prompt {prompt}".encode()
        self.kept[name] = blocks
        return {
            "card": self.node.card(),
            "cluster_id": self.node.cluster_id,
            "prompt": prompt,
            "blocks": blocks,
            "name": name,
        }

    def let_go(self) -> int:
        """Free what was fetched meanwhile; how many prompts are kept still."""
        for notification in self.node.notifications():
            self.free += self.kept.pop(notification.payload, [])
        return len(self.kept)


@ray.remote(num_cpus=0.5, max_restarts=3)
class Decode(Worker):
    """Fetches the blocks of prompts and goes on with them."""

    def decode(self, ticket: dict[str, Any]) -> dict[str, Any]:
        """Fetch and check. Linking again to a peer that is linked costs nothing."""
        link = self.node.link(ticket["card"])
        blocks = self.take()
        begin = time.perf_counter()
        # The notification follows the last byte: when it is heard, the prefill worker may use its blocks again.
        transfer = self.node.cache_manager.pull_blocks(
            cachefw.BlocksCacheKey(ticket["cluster_id"]), self.cache, ticket["blocks"], blocks, notify=ticket["name"]
        )
        seconds = time.perf_counter() - begin
        good = all(
            np.array_equal(self.blocks[layer, blocks], contents(ticket["prompt"], layer)) for layer in range(LAYERS)
        )
        self.free += blocks
        return {
            "prompt": ticket["prompt"],
            "verified": good,
            "bytes": transfer.nbytes,
            "seconds": seconds,
            "transport": link.transport,
            "path": transfer.path,
        }


def start(pairs: int = 1) -> tuple[list[Any], list[Any], Any]:
    """Prefill and decode actors, spread over the cluster's machines as far as it has any.

    Raises:
        RuntimeError: Several machines, and no secret for the links between them.
    """
    other_hosts = len([node for node in ray.nodes() if node["Alive"]]) > 1
    if other_hosts and SECRET_FILE not in os.environ:
        raise RuntimeError(f"the cluster has several machines: set {SECRET_FILE} to a file that each of them has")
    group = placement_group([{"CPU": 0.5}] * (2 * pairs), strategy="SPREAD")
    ray.get(group.ready(), timeout=60)
    strategies = [PlacementGroupSchedulingStrategy(group, index) for index in range(2 * pairs)]
    prefills = [Prefill.options(scheduling_strategy=one).remote(other_hosts) for one in strategies[:pairs]]
    decodes = [Decode.options(scheduling_strategy=one).remote(other_hosts) for one in strategies[pairs:]]
    return prefills, decodes, group


def serve(prefill: Any, decode: Any, prompt: int, tries: int = 5) -> dict[str, Any]:
    """One prompt: computed by one actor, fetched by the other.

    Whoever dies is restarted by Ray, and the prompt begins anew.
    """
    for left in reversed(range(tries)):
        try:
            return ray.get(decode.decode.remote(ray.get(prefill.prefill.remote(prompt), timeout=60)), timeout=60)
        except (ray.exceptions.RayActorError, cachefw.BrokenError) as error:
            if not left:
                raise
            print(f"prompt {prompt} begins anew: {type(error).__name__}", flush=True)
            time.sleep(0.5)
    raise AssertionError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="a Ray cluster; default: one of its own on this machine")
    parser.add_argument("--prompts", type=int, default=20)
    options = parser.parse_args()
    own = {} if options.address else {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    ray.init(address=options.address, log_to_driver=False, **own)
    try:
        (prefill,), (decode,), group = start()
        done = [serve(prefill, decode, prompt) for prompt in range(options.prompts)]
        kept = ray.get(prefill.let_go.remote(), timeout=60)
        size, seconds = sum(one["bytes"] for one in done), sum(one["seconds"] for one in done)
        good = all(one["verified"] for one in done)
        way = f"{done[0]['transport']} ({done[0]['path']})"
        print(
            f"{len(done)} prompts, {size / 1e6:.0f} MB over {way} at {size / seconds / 1e9:.1f} GB/s, {kept} still kept"
        )
        print("every byte is right" if good else "BYTES DIFFER")
        remove_placement_group(group)
        return 0 if good else 1
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
