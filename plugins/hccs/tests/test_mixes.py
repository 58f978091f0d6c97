"""Caches in host and in device memory, over a link for device memory: every call against a model, on the simulator."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import attrs
import numpy as np
import pytest
from cachefw_ascendcl import CopyKind, Runtime
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_processes import pattern, running_peer

import cachefw
from cachefw import BlocksCacheKey, CacheDesc, CacheKey, CacheKeyByIdAndIndex, DataType, MemoryKind, Placement

COUNT, ROWS, STRIDE = 4, 5, 700
HOST, DEVICE = Placement.HOST, Placement.DEVICE
EXAMPLES = 25


class Ready(cachefw.LayerSynchronizer):
    def synchronize_layer(self, layer_index, timeout_in_millis):
        return True


@attrs.define(eq=False)
class Held:
    """A cache, and what the model says that it holds."""

    device: object
    manager: object
    cache: cachefw.Cache
    model: list

    @classmethod
    def make(cls, node, device, placement, *, blocks, seed):
        manager = node.cache_manager
        desc = CacheDesc(COUNT, (ROWS, STRIDE), DataType.DT_UINT8, placement)
        if blocks:
            cache = manager.allocate_blocks_cache(desc, BlocksCacheKey(1) if placement is DEVICE else None)
        else:
            cache = manager.allocate_cache(desc, [CacheKey(1, 7)] if placement is DEVICE else ())
        random = np.random.default_rng(seed)
        held = cls(device, manager, cache, [random.integers(0, 256, desc.shape, np.uint8) for _ in range(COUNT)])
        for address, array in zip(cache.tensor_addrs, held.model, strict=True):
            if placement is DEVICE:
                # Through the runtime and not through the transport.
                device.copy(address, array.ctypes.data, array.nbytes, CopyKind.HOST_TO_DEVICE)
            else:
                ctypes.memmove(address, array.ctypes.data, array.nbytes)
        return held

    def same(self) -> bool:
        found = np.zeros((ROWS, STRIDE), np.uint8)
        for address, array in zip(self.cache.tensor_addrs, self.model, strict=True):
            if self.cache.cache_desc.placement is DEVICE:
                self.device.copy(found.ctypes.data, address, found.nbytes, CopyKind.DEVICE_TO_HOST)
            else:
                ctypes.memmove(found.ctypes.data, address, found.nbytes)
            if not (found == array).all():
                return False
        return True


@pytest.fixture(scope="module")
def scene() -> Iterator[tuple[dict, dict, cachefw.Link]]:
    """Caches of both layouts in both kinds of memory here, in device memory there; and the link."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("CACHEFW_STAGING", str(2 * 2**20))
    transports = ["hccs", "host"]
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(Runtime())
        device = stack.enter_context(runtime.device(0))
        there = stack.enter_context(cachefw.Node(1, "127.0.0.1:0", transports=transports))
        here = stack.enter_context(cachefw.Node(2, transports=transports))
        mine = {
            (placement, blocks): Held.make(here, device, placement, blocks=blocks, seed=placement * 2 + blocks)
            for placement in (HOST, DEVICE)
            for blocks in (False, True)
        }
        theirs = {blocks: Held.make(there, device, DEVICE, blocks=blocks, seed=7 + blocks) for blocks in (False, True)}
        link = here.link(there.address)
        assert link.transport == "hccs"
        yield mine, theirs, link
    monkeypatch.undo()


rows = st.integers(0, ROWS - 1)
several = st.permutations(range(ROWS)).flatmap(
    lambda order: st.integers(1, ROWS).map(lambda count: list(order)[:count])
)
places = st.sampled_from([HOST, DEVICE])


def pull_cache(draw, mine, theirs):
    target, source, here, there = mine[draw(places), False], theirs[False], draw(rows), draw(rows)
    size = draw(st.sampled_from([-1, 1, 699]))
    key = CacheKeyByIdAndIndex(1, source.cache.cache_id, there) if draw(st.booleans()) or there else CacheKey(1, 7)
    done = target.manager.pull_cache(key, target.cache, here, size)
    for array, other in zip(target.model, source.model, strict=True):
        array[here, : size % (STRIDE + 1)] = other[there, : size % (STRIDE + 1)]
    return done, target


def pull_blocks(draw, mine, theirs):
    target, blocks = mine[draw(places), True], draw(st.booleans())
    if blocks:
        source, into, out_of = theirs[True], draw(several), draw(several)
        count = min(len(into), len(out_of))
        done = target.manager.pull_blocks(BlocksCacheKey(1), target.cache, out_of[:count], into[:count])
        for array, other in zip(target.model, source.model, strict=True):
            array[into[:count]] = other[out_of[:count]]
    else:
        source, into, row = theirs[False], draw(rows), draw(rows)
        key = CacheKeyByIdAndIndex(1, source.cache.cache_id, row)
        done = target.manager.pull_blocks(key, target.cache, (), [into])
        for array, other in zip(target.model, source.model, strict=True):
            array[into] = other[row]
    return done, target


def push_cache(draw, mine, theirs):
    source, target, here, there = mine[draw(places), False], theirs[False], draw(rows), draw(rows)
    key, layers = CacheKeyByIdAndIndex(1, target.cache.cache_id, there), draw(st.sampled_from([range(1), range(1, 2)]))
    done = source.manager.push_cache(key, source.cache, here, layers, layers)
    for i in (2 * layers.start, 2 * layers.start + 1):
        target.model[i][there] = source.model[i][here]
    return done, source


def push_blocks(draw, mine, theirs):
    source, target, into, out_of = mine[draw(places), True], theirs[True], draw(several), draw(several)
    count = min(len(into), len(out_of))
    done = source.manager.push_blocks(BlocksCacheKey(1), source.cache, out_of[:count], into[:count])
    for array, other in zip(target.model, source.model, strict=True):
        array[into[:count]] = other[out_of[:count]]
    return done, source


def layer_by_layer(draw, mine, theirs):
    source, row, into = mine[draw(places), False], draw(rows), draw(rows)
    config = cachefw.TransferWithCacheKeyConfig(BlocksCacheKey(1), src_batch_index=row)
    task = source.manager.transfer_cache_async(source.cache, Ready(), [config], None, [into], STRIDE)
    task.synchronize(30)
    for array, other in zip(theirs[True].model, source.model, strict=True):
        array[into] = other[row]
    return None, source


def copy_cache(draw, mine, theirs):
    target, source, into, out_of = mine[draw(places), False], mine[draw(places), False], draw(rows), draw(rows)
    offset, size = draw(st.sampled_from([0, 5])), draw(st.sampled_from([-1, 600]))
    target.manager.copy_cache(target.cache, source.cache, into, out_of, offset, size)
    end = STRIDE if size == -1 else offset + size
    for array, other in zip(target.model, source.model, strict=True):
        array[into, offset:end] = other[out_of, offset:end].copy()
    return None, target


def copy_blocks(draw, mine, theirs):
    held, (first, *others) = mine[draw(places), True], draw(several)
    held.manager.copy_blocks(held.cache, {first: others})
    for array in held.model:
        array[others] = array[first]
    return None, held


def swap_blocks(draw, mine, theirs):
    placement = draw(places)
    source, target = mine[placement, True], mine[HOST if placement is DEVICE else DEVICE, True]
    into, out_of = draw(several), draw(several)
    mapping = dict(zip(out_of, into, strict=False))
    source.manager.swap_blocks(source.cache, target.cache, mapping)
    for array, other in zip(target.model, source.model, strict=True):
        for s, d in mapping.items():
            array[d] = other[s]
    return None, source


CALLS = [pull_cache, pull_blocks, push_cache, push_blocks, layer_by_layer, copy_cache, copy_blocks, swap_blocks]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_land_where_the_model_says(scene, call, data):
    mine, theirs, _ = scene
    for _ in range(data.draw(st.integers(1, 3))):
        done, local = call(data.draw, mine, theirs)
        if done is not None:
            assert done.path == ("ipc" if local.cache.cache_desc.placement is DEVICE else "staged+ipc")
    assert all(held.same() for held in [*mine.values(), *theirs.values()])


def test_host_memory_is_moved_by_chunks_to_and_from_another_process(monkeypatch) -> None:
    monkeypatch.setenv("CACHEFW_STAGING", str(2 * 2**20))
    size = 7 * 2**20 + 4096
    with running_peer(size) as peer, cachefw.Node(2, transports=["hccs", "host"]) as node:
        host = np.zeros(size, np.uint8)
        node.cache_manager.register_memory(host)
        link = node.link(peer.about["address"])
        assert link.read(host, peer.about["memory"][0]).path == "staged+ipc"
        assert host.tobytes() == pattern(0, size)
        changed = np.frombuffer(pattern(3, size), np.uint8).copy()
        host[:] = changed
        link.write(host[4096:], peer.about["memory"][0] + 4096)
        assert peer.tell("check", number=0, seed=3, start=4096, length=size - 4096)["same"]
        assert peer.tell("check", number=0, seed=0, start=0, length=4096)["same"]


def test_device_memory_goes_over_a_link_for_host_memory() -> None:
    transports = ["host", "hccs"]
    with (
        cachefw.Node(1, "127.0.0.1:0", transports=transports) as there,
        cachefw.Node(2, transports=transports) as here,
    ):
        theirs = np.random.default_rng(0).integers(0, 256, 10_000, np.uint8)
        there.cache_manager.register_memory(theirs, remote_accessible=True)
        mine = here.cache_manager.allocate(20_000, MemoryKind.DEVICE)
        here.cache_manager.register_memory(mine)
        link = here.link(there.address)
        assert link.transport == "host"
        assert link.read(mine, theirs.ctypes.data, 10_000).path == "staged+cma"
        back = np.zeros(20_000, np.uint8)
        here.cache_manager.copy(back, mine)
        assert (back[:10_000] == theirs).all()
        link.write([mine.address + 1], [theirs.ctypes.data], [9_000])
        assert (theirs[:9_000] == back[1:9_001]).all()


def test_device_memory_of_the_peer_is_refused_with_words_on_a_link_for_host_memory() -> None:
    transports = ["host", "hccs"]
    with (
        cachefw.Node(1, "127.0.0.1:0", transports=transports) as there,
        cachefw.Node(2, transports=transports) as here,
    ):
        theirs = there.cache_manager.allocate(4096, MemoryKind.DEVICE)
        there.cache_manager.register_memory(theirs)
        mine = np.zeros(4096, np.uint8)
        here.cache_manager.register_memory(mine)
        with pytest.raises(ValueError, match=r"is device memory, which the transport .* reached by hccs"):
            here.link(there.address).read(mine, theirs.address)


def test_device_memory_is_mapped_anew() -> None:
    with cachefw.Node(1, "127.0.0.1:0", transports=["hccs"]) as there, cachefw.Node(2, transports=["hccs"]) as here:
        desc = CacheDesc(2, (4, 4096), DataType.DT_FLOAT16)
        theirs, mine = there.cache_manager.allocate_cache(desc), here.cache_manager.allocate_cache(desc)
        here.link(there.address)
        key = CacheKeyByIdAndIndex(1, theirs.cache_id)
        here.cache_manager.pull_cache(key, mine)
        there.cache_manager.remap_registered_memory(there.cache_manager.memories)
        here.cache_manager.pull_cache(key, mine)
        there.cache_manager.deallocate_cache(theirs)
        assert there.cache_manager.report() == ""
