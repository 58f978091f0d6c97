"""Every call that moves a cache against a model that knows only what bytes are where.

The model is numpy slices over what each cache holds. For arguments of any sense it says which bytes change, or that the
call is refused; then nothing at all may have changed, on either side.
"""

from __future__ import annotations

import contextlib

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachefw import (
    ABSENT_ID,
    BlocksCacheKey,
    CacheDesc,
    CacheKey,
    CacheKeyByIdAndIndex,
    DataType,
    LayerSynchronizer,
    Node,
    Placement,
    RequestError,
    TransferConfig,
    TransferWithCacheKeyConfig,
)
from cachefw.plugins import catalogue

EXAMPLES = 100


class Refused(Exception):
    """The model's word for arguments that make no sense."""


def demand(sensible):
    if not sensible:
        raise Refused


@attrs.define(eq=False)
class Held:
    """A cache of one node, and what the model says that it holds."""

    manager: object
    cluster: int
    blocks: bool
    arrays: list
    model: list
    cache: object = None

    @classmethod
    def make(cls, node, shape, blocks, names):
        tensors, rows, stride = shape
        seed = np.random.default_rng(abs(hash((shape, blocks, node.cluster_id))))
        arrays = [seed.integers(0, 256, (rows, stride), np.uint8) for _ in range(tensors)]
        held = cls(node.cache_manager, node.cluster_id, blocks, arrays, [array.copy() for array in arrays])
        desc = CacheDesc(tensors, (rows, stride), DataType.DT_UINT8, Placement.HOST)
        register = held.manager.register_blocks_cache if blocks else held.manager.register_cache
        held.cache = register(desc, arrays, names, remote_accessible=True)
        return held

    @property
    def count(self):
        return len(self.arrays)

    @property
    def rows(self):
        return self.arrays[0].shape[0]

    @property
    def stride(self):
        return self.arrays[0].shape[1]

    def same(self):
        return all((one == other).all() for one, other in zip(self.arrays, self.model, strict=True))


# ---------------------------------------------------------------------- the model


def layers_of(layers, per_layer, held):
    """The tensors of a range of layers."""
    demand(held.count % per_layer == 0)
    demand(len(layers) and layers.start >= 0 and layers.stop * per_layer <= held.count)
    return [layer * per_layer + i for layer in layers for i in range(per_layer)]


def pairs(source, target, src, dst, per_layer, *, push):
    """Tensors of source and target that belong together."""
    if push:
        demand(source.count % per_layer == 0)
        every = range(source.count // per_layer)
        src, dst = (every if layers is None else layers for layers in (src, dst))
    out_of = list(range(source.count)) if src is None else layers_of(src, per_layer, source)
    into = list(range(target.count)) if dst is None else layers_of(dst, per_layer, target)
    demand(len(out_of) == len(into))
    return list(zip(out_of, into, strict=True))


def move_rows(source, target, tensors, src_row, dst_row, size, whole):
    demand(not source.blocks and not target.blocks)
    demand(0 <= src_row < source.rows and 0 <= dst_row < target.rows)
    size = whole if size == -1 else size
    demand(1 <= size <= min(source.stride, target.stride))
    for i, j in tensors:
        target.model[j][dst_row, :size] = source.model[i][src_row, :size]


def move_blocks(source, target, tensors, src_blocks, dst_blocks):
    demand(source.blocks and target.blocks and source.stride == target.stride)
    demand(len(src_blocks) == len(dst_blocks) > 0 and len(set(dst_blocks)) == len(dst_blocks))
    demand(all(0 <= b < source.rows for b in src_blocks) and all(0 <= b < target.rows for b in dst_blocks))
    before = [array.copy() for array in source.model]
    for i, j in tensors:
        for s, d in zip(src_blocks, dst_blocks, strict=True):
            target.model[j][d] = before[i][s]


def row_to_blocks(source, target, tensors, row, dst_blocks):
    demand(not source.blocks and target.blocks and 0 <= row < source.rows)
    demand(dst_blocks and len(set(dst_blocks)) == len(dst_blocks) and all(0 <= b < target.rows for b in dst_blocks))
    demand((len(dst_blocks) - 1) * target.stride < source.stride)
    for i, j in tensors:
        for number, block in enumerate(dst_blocks):
            part = source.model[i][row, number * target.stride : (number + 1) * target.stride]
            target.model[j][block, : len(part)] = part


# ---------------------------------------------------------------------- what is drawn


any_range = st.none() | st.builds(lambda start, more: range(start, start + more), st.integers(0, 2), st.integers(0, 3))
any_numbers = st.lists(st.integers(-1, 4), max_size=4)


@st.composite
def shapes(draw):
    """Tensors, rows and bytes of a row for the contiguous and the blocks cache of both sides; mostly they fit."""
    count = draw(st.sampled_from([4, 4, 4, 6, 3]))
    rows, stride, block = draw(st.sampled_from([3, 4])), draw(st.sampled_from([6, 7])), draw(st.sampled_from([3, 4, 6]))
    made = [(count, rows, stride), (count, rows, block)] * 2
    if draw(st.integers(0, 3)) == 0:
        odd = st.tuples(st.sampled_from([2, 4, 6, 3]), st.sampled_from([1, 3]), st.sampled_from([3, 6, 7]))
        made[draw(st.integers(0, 3))] = draw(odd)
    return made


def draw_layers(draw, source, target, per_layer=None):
    """Layer ranges of both sides, and tensors of a layer; mostly they fit."""
    per_layer = per_layer or draw(st.sampled_from([2, 2, 2, 1, 3]))
    if draw(st.integers(0, 3)) == 0:
        return draw(any_range), draw(any_range), per_layer
    count = min(source.count, target.count) // per_layer
    if draw(st.booleans()) or not count:
        return None, None, per_layer
    length = draw(st.integers(1, count))
    starts = [draw(st.integers(0, held.count // per_layer - length)) for held in (source, target)]
    return *(range(start, start + length) for start in starts), per_layer


def draw_blocks(draw, source, target):
    """Blocks of both sides; mostly as many, and each once."""
    if draw(st.integers(0, 3)) == 0:
        return draw(any_numbers), draw(any_numbers)
    count = draw(st.integers(1, min(source.rows, target.rows)))
    return [draw(st.permutations(range(held.rows)))[:count] for held in (source, target)]


def draw_row(draw, held):
    """A row; mostly there is one."""
    return draw(st.integers(0, held.rows - 1 if draw(st.integers(0, 5)) else 4))


def draw_filled(draw, source, target):
    """Blocks to fill from a row; mostly not more than it has."""
    if draw(st.integers(0, 3)) == 0:
        return draw(any_numbers)
    most = min(target.rows, -(-source.stride // target.stride))
    return draw(st.permutations(range(target.rows)))[: draw(st.integers(1, most))]


class Ready(LayerSynchronizer):
    """Every layer is ready at once."""

    def __init__(self):
        self.asked = []

    def synchronize_layer(self, layer_index, timeout_in_millis):
        self.asked.append(layer_index)
        return True


@attrs.define
class Scene:
    """Two linked nodes, each with a contiguous and a blocks cache."""

    here: dict
    there: dict

    def caches(self):
        return [*self.here.values(), *self.there.values()]

    @classmethod
    @contextlib.contextmanager
    def on(cls, nodes, shapes_):
        sides = []
        for node, (rows, blocks) in zip(nodes, (shapes_[:2], shapes_[2:]), strict=True):
            free = CacheKey(node.cluster_id, ABSENT_ID)
            names = [CacheKey(node.cluster_id, 7), free, CacheKey(node.cluster_id, prefix_id=8)][: rows[1]]
            sides.append(
                {
                    False: Held.make(node, rows, False, names),
                    True: Held.make(node, blocks, True, BlocksCacheKey(node.cluster_id, 5)),
                }
            )
        scene = cls(*sides)
        try:
            yield scene
        finally:
            for held in scene.caches():
                held.manager.unregister_cache(held.cache.cache_id)


def key_of(draw, held, kinds):
    """A key of some kind for a cache, and the row it means."""
    kind = draw(st.sampled_from(kinds))
    if kind == "request":
        return CacheKey(held.cluster, 7), 0
    if kind == "prefix":
        return CacheKey(held.cluster, prefix_id=8), 2
    if kind == "blocks":
        return BlocksCacheKey(held.cluster, 5), 0
    row = 0 if held.blocks else draw_row(draw, held)
    return CacheKeyByIdAndIndex(held.cluster, held.cache.cache_id, row), row


def expect(scene, predict, call):
    """Have the model and the code do the same, and compare everything."""
    saved = [[array.copy() for array in held.model] for held in scene.caches()]
    try:
        predict()
    except Refused:
        for held, model in zip(scene.caches(), saved, strict=True):
            held.model = model
        with pytest.raises(RequestError):
            call()
    else:
        call()
    assert all(held.same() for held in scene.caches())


def pull_cache(draw, scene):
    blocks = draw(st.sampled_from([False, False, False, True]))
    source, target = scene.there[blocks], scene.here[False]
    key, row = key_of(draw, source, ["id"] if blocks else ["request", "prefix", "id"])
    into, size = draw_row(draw, target), draw(st.sampled_from([-1, -1, 1, 3, 6, 7]))
    src, dst, per_layer = draw_layers(draw, source, target)

    def predict():
        demand(not isinstance(key, CacheKey) or row < source.rows)
        tensors = pairs(source, target, src, dst, per_layer, push=False)
        move_rows(source, target, tensors, row, into, size, target.stride)

    expect(
        scene,
        predict,
        lambda: target.manager.pull_cache(
            key,
            target.cache,
            into,
            size,
            src_layer_range=src,
            dst_layer_range=dst,
            tensor_num_per_layer=per_layer,
        ),
    )


def pull_blocks(draw, scene):
    blocks = draw(st.booleans())
    source, target = scene.there[blocks], scene.here[True]
    key, row = key_of(draw, source, ["blocks", "id"] if blocks else ["request", "prefix", "id"])
    src_blocks, dst_blocks = draw_blocks(draw, source, target) if blocks else ([], draw_filled(draw, source, target))
    src, dst, per_layer = draw_layers(draw, source, target)

    def predict():
        tensors = pairs(source, target, src, dst, per_layer, push=False)
        if blocks:
            move_blocks(source, target, tensors, src_blocks, dst_blocks)
        else:
            row_to_blocks(source, target, tensors, row, dst_blocks)

    layers = {"src_layer_range": src, "dst_layer_range": dst, "tensor_num_per_layer": per_layer}
    expect(scene, predict, lambda: target.manager.pull_blocks(key, target.cache, src_blocks, dst_blocks, **layers))


def push_cache(draw, scene):
    source, target = scene.here[False], scene.there[False]
    key, row = key_of(draw, target, ["request", "prefix", "id"])
    out_of, size = draw_row(draw, source), draw(st.sampled_from([-1, -1, 1, 3, 6, 7]))
    src, dst, per_layer = draw_layers(draw, source, target)

    def predict():
        tensors = pairs(source, target, src, dst, per_layer, push=True)
        move_rows(source, target, tensors, out_of, row, size, source.stride)

    expect(scene, predict, lambda: source.manager.push_cache(key, source.cache, out_of, src, dst, size, per_layer))


def push_blocks(draw, scene):
    blocks = draw(st.booleans())
    source, target = scene.here[blocks], scene.there[True]
    key, _ = key_of(draw, target, ["blocks", "id"])
    src_blocks, dst_blocks = draw_blocks(draw, source, target) if blocks else ([], draw_filled(draw, source, target))
    row = draw(st.sampled_from([0, 0, 0, 1])) if blocks else draw_row(draw, source)
    src, dst, per_layer = draw_layers(draw, source, target)

    def predict():
        tensors = pairs(source, target, src, dst, per_layer, push=True)
        if blocks:
            demand(row == 0)
            move_blocks(source, target, tensors, src_blocks, dst_blocks)
        else:
            row_to_blocks(source, target, tensors, row, dst_blocks)

    layers = (src, dst, per_layer)
    expect(
        scene,
        predict,
        lambda: source.manager.push_blocks(key, source.cache, src_blocks, dst_blocks, *layers, src_batch_index=row),
    )


def layer_by_layer(draw, scene):
    """`transfer_cache_async` to one peer: by key or to plain addresses, rows, blocks, and a row to blocks."""
    blocks, to_blocks = draw(st.sampled_from([(True, True), (False, True), (False, False), (True, False)]))
    plain = draw(st.booleans())
    source, target = scene.here[blocks], scene.there[to_blocks]
    key, row = key_of(draw, target, ["blocks", "id"] if to_blocks else ["id"])
    src, dst, _ = draw_layers(draw, source, target, 2)
    out_of = draw(st.sampled_from([0, 0, 0, 1])) if blocks else draw_row(draw, source)
    src_blocks, dst_blocks = draw_blocks(draw, source, target) if blocks else (None, draw_filled(draw, source, target))
    if not to_blocks:
        dst_blocks = None
    size = target.stride if to_blocks and not blocks else None
    if draw(st.integers(0, 4)) == 0:
        size = draw(st.sampled_from([None, 0, target.stride, source.stride]))
    wanted = range(source.count // 2) if src is None else src
    onto = range(len(wanted)) if dst is None else dst
    asked = []

    def predict():
        demand(source.count % 2 == 0)
        asked[:] = wanted
        out_tensors = layers_of(wanted, 2, source)
        demand(not source.blocks or out_of == 0)
        demand(len(onto) == len(wanted))
        tensors = list(zip(out_tensors, layers_of(onto, 2, target), strict=True))
        demand(size in (None, 0, target.stride) or (dst_blocks is not None and src_blocks is None and plain))
        if dst_blocks is None:
            demand(src_blocks is None and not size)
            move_rows(source, target, tensors, out_of, row, -1, source.stride)
        elif src_blocks is not None:
            demand(size in (None, 0, source.stride))
            move_blocks(source, target, tensors, src_blocks, dst_blocks)
        else:
            demand(size == target.stride)
            row_to_blocks(source, target, tensors, out_of, dst_blocks)

    def call():
        if plain:
            demand_layers = [layer for layer in onto if (layer + 1) * 2 <= target.count and layer >= 0]
            addrs = [target.arrays[2 * layer + i].ctypes.data for layer in demand_layers for i in range(2)]
            if not to_blocks and 0 <= row < target.rows:
                addrs = [address + row * target.stride for address in addrs]
            config = TransferConfig(target.cluster, addrs, src, out_of)
        else:
            config = TransferWithCacheKeyConfig(key, src, dst, out_of)
        ready = Ready()
        task = source.manager.transfer_cache_async(
            source.cache, ready, [config], src_blocks, dst_blocks, size, timeout=30
        )
        task.synchronize()
        assert ready.asked == asked
        assert task.done

    if plain:
        # Plain addresses know nothing of the peer's cache; only what is within it is drawn.
        sound = target.stride == source.stride and 0 <= row < target.rows and target.count >= 2
        sound = sound and all(0 <= block < target.rows for block in dst_blocks or ())
        sound = sound and all(0 <= layer < target.count // 2 for layer in onto) and target.count % 2 == 0
        sound = sound and size in (None, 0, target.stride)
        if not sound:
            return
    expect(scene, predict, call)


def copy_cache(draw, scene):
    source, target = scene.here[False], scene.here[draw(st.sampled_from([False, False, True]))]
    into, out_of = draw_row(draw, target), draw_row(draw, source)
    offset, size = draw(st.sampled_from([0, 0, 1, 2, 5, 7])), draw(st.sampled_from([-1, 1, 3, 6]))

    def predict():
        demand(not target.blocks and out_of < source.rows and into < target.rows)
        length = source.stride - offset if size == -1 else size
        demand(offset < min(source.stride, target.stride) and length >= 1)
        demand(offset + length <= min(source.stride, target.stride))
        for i in range(source.count):
            part = source.model[i][out_of, offset : offset + length].copy()
            target.model[i][into, offset : offset + length] = part

    expect(scene, predict, lambda: source.manager.copy_cache(target.cache, source.cache, into, out_of, offset, size))


def copy_blocks(draw, scene):
    held = scene.here[draw(st.sampled_from([True, True, False]))]
    block = st.integers(0, held.rows - 1)
    mapping = draw(st.dictionaries(block, st.lists(block, max_size=2), max_size=2))
    if draw(st.integers(0, 3)) == 0:
        mapping[draw(st.integers(-1, 4))] = [draw(st.integers(-1, 4))]

    def predict():
        demand(held.blocks)
        moves = {(s, d) for s, several in mapping.items() for d in several}
        demand(all(0 <= s < held.rows for s, _ in moves) and all(0 <= d < held.rows for _, d in moves))
        targets = [d for _, d in moves]
        demand(len(set(targets)) == len(targets))
        # A block that changes is not read by another.
        changing = {d for s, d in moves if s != d}
        demand(not any(s in changing for s, d in moves if s != d))
        for s, d in moves:
            for array in held.model:
                array[d] = array[s]

    expect(scene, predict, lambda: held.manager.copy_blocks(held.cache, mapping))


CALLS = [pull_cache, pull_blocks, push_cache, push_blocks, layer_by_layer, copy_cache, copy_blocks]


@pytest.fixture(scope="module", params=["memory", "host"])
def pair(request, tmp_path_factory):
    """Two linked nodes that live as long as the module."""
    monkeypatch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("site")
    monkeypatch.syspath_prepend(folder)
    folder.joinpath("plugin_movement.py").write_text(
        "from cachefw.hookspecs import hookimpl\nfrom cachefw.testing import MemoryTransport\n\n"
        "@hookimpl\ndef cachefw_transports():\n    yield MemoryTransport.info_named('memory')\n"
    )
    info = folder / "movement-1.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: movement\nVersion: 1\n")
    info.joinpath("entry_points.txt").write_text("[cachefw.plugins]\nmemory = plugin_movement\n")
    catalogue.forget()
    with Node(1, transports=[request.param]) as one, Node(2, "127.0.0.1:0", transports=[request.param]) as two:
        one.link(two.address)
        yield one, two
    monkeypatch.undo()
    catalogue.forget()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_land_where_the_model_says_or_nowhere(pair, call, data):
    with Scene.on(pair, data.draw(shapes())) as scene:
        for _ in range(data.draw(st.integers(1, 3))):
            call(data.draw, scene)
