"""The process that pulls: ours and the raw limits in turn, on the same buffers, every pull's bytes checked.

Prints a line of JSON for each step and one with the outcome.
"""

from __future__ import annotations

import contextlib
import gc
import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

import cachefw
from benchmarks import raw, rdma
from benchmarks.paths import RDMA, SHARED
from benchmarks.paths import node as make_node
from benchmarks.shapes import SHAPES, U64, Buffers, Shape, WrongDataError

Call = Callable[[], Any]
now = time.perf_counter_ns


class Puller:
    """Our end of one workload on one path."""

    def __init__(self, node: cachefw.Node, about: dict[str, Any], shape: Shape, path: str, steps: int) -> None:
        self.node, self.shape, self.path = node, shape, path
        self.pid = about["pid"]
        self.port = about.get("port", 0)
        self.link = node.link(about["address"])
        self.there, self.here = shape.blocks()
        self.remote: list[int] = about["buffers"]
        self._mappings: list[Any] = []
        self._raw_remote = self.remote
        if path in SHARED:
            mapped = [raw.mapped(file, shape.slots * shape.block) for file in about["files"]]
            self._raw_remote = [address for address, _ in mapped]
            self._mappings = [mapping for _, mapping in mapped]
        self._steps, self._step = steps, 0

    def step(self) -> None:
        """Tell how far it is."""
        self._step += 1
        print(json.dumps({"step": self._step, "of": max(self._steps, self._step)}), flush=True)

    def _pieces(self, bases: list[int], blocks: list[int]) -> U64:
        offsets = np.array(blocks, np.uint64) * np.uint64(self.shape.block)
        return np.add.outer(np.array(bases, np.uint64), offsets).ravel()

    def called(self, into: Buffers) -> Call:
        """The public call, from lists."""
        if self.shape.take == 1:
            local, remote, size = into.addresses[0], self.remote[0], self.shape.block
            return lambda: self.link.read(local, remote, size)
        key = cachefw.BlocksCacheKey(1)
        pull = self.node.cache_manager.pull_blocks
        return lambda: pull(key, into.cache, self.there, self.here)

    def prepared(self, into: Buffers) -> Call:
        """The same, prepared beforehand."""
        local = self._pieces(into.addresses, self.here)
        remote = self._pieces(self.remote, self.there)
        length = np.full(len(local), self.shape.block, np.uint64)
        return self.link.prepare(cachefw.Operation.READ, local, remote, length).post

    def raw(self, into: Buffers, way: tuple[int, int]) -> Call:
        """The same without cachefw."""
        local = self._pieces(into.addresses, self.here)
        remote = self._pieces(self._raw_remote, self.there)
        return raw.mover(way, local, remote, np.full(len(local), self.shape.block, np.uint64), self.pid, self.port)

    def timed(self, call: Call, into: Buffers) -> int:
        """Nanoseconds of one pull, which is checked."""
        start = now()
        call()
        taken = now() - start
        into.check(self.there, self.here)
        return taken


def large(puller: Puller, rounds: int, cold_rounds: int) -> dict[str, Any]:
    """W1 to W3."""
    node, shape, path = puller.node, puller.shape, puller.path
    raw_ways = raw.ways(path)
    # Two threads fault pages in faster than one on every path; one raw contender is enough here.
    coldest = next(name for name in reversed(raw_ways) if name.endswith("2 thr."))
    cold: dict[str, list[int]] = {"as called": [], coldest: []}
    # Under a hypervisor memory that the guest never used is far slower still, for whoever comes first.
    used = Buffers(node, shape, path)
    used.wipe()
    used.close()
    turns = list(cold.items())
    for _ in range(cold_rounds):
        turns.reverse()
        for name, taken in turns:
            into = Buffers(node, shape, path)
            call = puller.called(into) if name == "as called" else puller.raw(into, raw_ways[name])
            taken.append(puller.timed(call, into))
            del call
            into.close()
            gc.collect()
            puller.step()
    with contextlib.closing(Buffers(node, shape, path)) as into:
        contenders = {"as called": puller.called(into), "prepared": puller.prepared(into)}
        contenders.update({name: puller.raw(into, way) for name, way in raw_ways.items()})
        times: dict[str, list[int]] = {name: [] for name in contenders}
        order = list(contenders)
        for _ in range(rounds):
            for name in order:
                into.wipe()
                times[name].append(puller.timed(contenders[name], into))
                puller.step()
            # Nobody always comes after the same one.
            order = order[1:] + order[:1]
        tracemalloc.start()
        contenders["as called"]()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return {"ns": times, "cold_ns": cold, "peak_bytes": peak, "pieces": shape.buffers * shape.take}


def over_ucx(puller: Puller, rounds: int) -> dict[str, Any]:
    """W1 to W3 over RDMA: ours and UCX's own benchmark in turn, then NIXL's pulls."""
    shape, path = puller.shape, puller.path
    limits = rdma.limits(path, shape)
    with contextlib.closing(Buffers(puller.node, shape, path)) as into:
        ours = {"as called": puller.called(into), "prepared": puller.prepared(into)}
        times: dict[str, list[int]] = {name: [] for name in (*ours, *limits)}
        into.wipe()
        puller.timed(ours["as called"], into)  # connects what UCX connects late
        for _ in range(rounds):
            for name, call in ours.items():
                into.wipe()
                times[name].append(puller.timed(call, into))
                puller.step()
            for name, variables in limits.items():
                times[name].append(rdma.perftest(path, shape, variables))
                puller.step()
    return {"ns": times, "pieces": shape.buffers * shape.take, "nixl": rdma.nixl(path, shape, rounds)}


def small(puller: Puller, rounds: int) -> dict[str, Any]:
    """W4: one block again and again, and many blocks in turn; nanoseconds without those that timing itself takes."""
    shape, link = puller.shape, puller.link
    with contextlib.closing(Buffers(puller.node, shape, puller.path)) as into:
        raw_ways = raw.ways(puller.path, (1,))
        local, remote = puller._pieces(into.addresses, puller.here), puller._pieces(puller.remote, puller.there)
        raw_remote = puller._pieces(puller._raw_remote, puller.there)
        length = np.full(1, shape.block, np.uint64)
        calls: dict[str, list[Call]] = {"nothing": [lambda: None] * len(local), "prepared": [], "read": []}
        calls.update({name: [] for name in raw_ways})
        for i in range(len(local)):
            ends = local[i : i + 1], remote[i : i + 1]
            calls["prepared"].append(link.prepare(cachefw.Operation.READ, *ends, length).post)
            calls["read"].append(_reader(link, int(local[i]), int(remote[i]), shape.block))
            for name, way in raw_ways.items():
                calls[name].append(
                    raw.mover(way, local[i : i + 1], raw_remote[i : i + 1], length, puller.pid, puller.port)
                )
        found: dict[str, dict[str, list[int]]] = {}
        for kind in ("again", "in turn"):
            times: dict[str, list[int]] = {name: [] for name in calls}
            for _ in range(rounds):
                for name, each in calls.items():
                    into.wipe()
                    run = each if kind == "in turn" else each[:1] * len(each)
                    times[name] += _samples(run)
                    if name != "nothing":
                        moved = len(each) if kind == "in turn" else 1
                        into.check(puller.there[:moved], puller.here[:moved])
                puller.step()
            nothing = statistics.median(times.pop("nothing"))
            found[kind] = {
                name: [int(np.percentile(taken, q) - nothing) for q in (50, 99)] for name, taken in times.items()
            }
    return {"p50_p99_ns": found}


def _reader(link: cachefw.Link, local: int, remote: int, size: int) -> Call:
    return lambda: link.read(local, remote, size)


def _samples(calls: list[Call]) -> list[int]:
    taken = [0] * len(calls)
    for index, call in enumerate(calls):
        start = now()
        call()
        taken[index] = now() - start
    return taken


def registering(node: cachefw.Node, about: dict[str, Any], path: str, rounds: int, step: Call) -> dict[str, Any]:
    """W5: the time to plan, to register with a peer that is told, and to give back; nanoseconds."""
    manager = node.cache_manager
    node.link(about["address"])
    found: dict[str, dict[str, list[int]]] = {}
    for size, counts in ((2 * 2**20, (240,)), (64 * 2**10, (1250, 2500, 5000, 10_000))):
        owner = manager.allocate(size * counts[-1]) if path == "shm" else np.empty(size * counts[-1], np.uint8)
        start = int(np.asarray(owner).ctypes.data)
        taken: dict[int, dict[str, list[int]]] = {n: {"plan": [], "register": [], "unregister": []} for n in counts}
        for _ in range(rounds):
            for count in counts:
                addresses = [start + size * i for i in range(count)]
                desc = cachefw.CacheDesc(count, (1, size), cachefw.DataType.DT_INT8, cachefw.Placement.HOST)
                begin = now()
                plan = manager.plan(desc, addresses, None, True, blocks=True)
                planned = now()
                assert plan.ok, plan
                again = now()
                cache = manager.register_blocks_cache(desc, addresses, None, True)
                registered = now()
                manager.unregister_cache(cache.cache_id)
                taken[count]["plan"].append(planned - begin)
                taken[count]["register"].append(registered - again)
                taken[count]["unregister"].append(now() - registered)
                step()
        found.update({f"{count} x {size // 2**10} KiB": times for count, times in taken.items()})
    return {"ns": found}


def main() -> None:
    order = json.loads(sys.argv[1])
    about = json.loads(sys.stdin.readline())
    path, rounds, workload = order["path"], order["rounds"], order["workload"]
    # The limits on addresses are those of one vendor's devices.
    limits = cachefw.Limits(addresses=20_000)
    with make_node(2, path, limits=limits) as node:
        if workload == "w5":
            done = iter(range(1, 1000))
            total = rounds * 5
            outcome = registering(
                node, about, path, rounds, lambda: print(json.dumps({"step": next(done), "of": total}), flush=True)
            )
        else:
            count = (len(rdma.limits(path, SHAPES[workload])) if path in RDMA else len(raw.ways(path))) + 2
            steps = 2 * rounds if workload == "w4" else rounds * count + 2 * order["cold_rounds"]
            puller = Puller(node, about, SHAPES[workload], path, steps)
            try:
                if path in RDMA:
                    outcome = over_ucx(puller, rounds)
                elif workload == "w4":
                    outcome = small(puller, rounds)
                else:
                    outcome = large(puller, rounds, order["cold_rounds"])
            except WrongDataError as error:
                outcome = {"wrong": str(error)}
        print(json.dumps({"outcome": outcome}), flush=True)


if __name__ == "__main__":
    main()
