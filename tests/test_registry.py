"""The table of registered memory against plain models: ranges, counts, what transfers may touch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cachefw import CacheDesc, CacheManager, DataType, Limits, MemoryRegion, Placement, RegistrationError
from cachefw.registry import MemoryState, RangeTable, Registry

TOP = 2**64
RANGES = st.tuples(st.integers(1, 60), st.integers(1, 12))


def reserve(registry, ranges, *, shared=True):
    return registry.reserve(
        [MemoryRegion(start, length) for start, length in ranges],
        label="",
        origin="here",
        shared=shared,
        remote_accessible=False,
    )


def meets(one, other):
    return one[0] < other[0] + other[1] and other[0] < one[0] + one[1]


# ---------------------------------------------------------------------- finding pieces


@st.composite
def tables(draw):
    """Ranges that do not overlap, in any order, anywhere in the address space, often next to each other."""
    base = draw(st.sampled_from([1, 2**32 - 20, 2**63 - 30, TOP - 200]))
    cuts = sorted(draw(st.sets(st.integers(base, base + 200 if base + 200 < TOP else TOP), max_size=12)))
    pairs = [(start, end - start) for start, end in itertools.pairwise(cuts) if draw(st.booleans())]
    return base, draw(st.permutations(pairs))


@given(tables(), st.data())
def test_find_agrees_with_a_loop(table, data):
    base, ranges = table
    rows = [(start, length, number) for number, (start, length) in enumerate(ranges, 5)]
    places = st.integers(max(base - 5, 0), min(base + 205, TOP - 1))
    pieces = data.draw(st.lists(st.tuples(places, st.integers(1, 30)), max_size=8))
    # Anywhere at all as well: arithmetic that wraps would show there.
    pieces += data.draw(st.lists(st.tuples(st.integers(0, TOP - 1), st.integers(1, TOP - 1)), max_size=4))
    addresses, lengths = (np.array([piece[i] for piece in pieces], np.uint64) for i in (0, 1))
    ids, first = RangeTable(rows).find(addresses, lengths)
    expected = [
        next((number for start, size, number in rows if start <= at and at + length <= start + size), None)
        for at, length in pieces
    ]
    assert first == next((i for i, number in enumerate(expected) if number is None), -1)
    assert all(ids[i] == number for i, number in enumerate(expected) if number is not None)
    assert len(ids) == len(pieces)


@pytest.mark.parametrize(
    ("address", "length", "found"),
    [(TOP - 4096, 4096, True), (TOP - 1, 1, True), (TOP - 1, 2, False), (0, 1, False), (TOP - 4097, 1, False)],
)
def test_find_at_the_end_of_the_address_space(address, length, found):
    table = RangeTable([(TOP - 4096, 4096, 1)])
    assert table.find(np.array([address], np.uint64), np.array([length], np.uint64))[1] == (-1 if found else 0)


def test_find_in_an_empty_table():
    none = np.array([], np.uint64)
    assert RangeTable([]).find(none, none)[1] == -1
    assert RangeTable([]).find(np.array([5], np.uint64), np.array([1], np.uint64))[1] == 0


# ---------------------------------------------------------------------- overlaps


@given(st.lists(RANGES, max_size=12), RANGES)
def test_overlapping_agrees_with_a_plain_model(ranges, asked):
    registry, model = Registry(), []
    for item in ranges:
        expected = [other for other in model if meets(item, other)]
        assert [(m.region.address, m.region.length) for m in registry.overlapping(item[0], sum(item))] == expected
        if not expected:
            reserve(registry, [item])
            model = sorted([*model, item])
    found = [(m.region.address, m.region.length) for m in registry.overlapping(asked[0], sum(asked))]
    assert found == [other for other in model if meets(asked, other)]
    assert [(m.region.address, m.region.length) for m in registry.memories()] == model


def test_overlapping_does_not_walk_the_table():
    class Counting(list):
        looked = 0

        def __getitem__(self, index):
            self.looked += 1
            return super().__getitem__(index)

        def __iter__(self):
            for item in super().__iter__():
                self.looked += 1
                yield item

    registry = Registry()
    reserve(registry, [(10 * i + 1, 5) for i in range(10_000)])
    registry._starts = starts = Counting(registry._starts)
    assert len(list(registry.overlapping(99_981, 99_982))) == 1
    assert starts.looked < 40


class AgainstAModel(RuleBasedStateMachine):
    """Registers and gives back through the manager, and keeps a plain list of intervals beside it."""

    @initialize()
    def start(self):
        self.manager = CacheManager((), limits=Limits(addresses=12))
        self.model = {}

    def taken(self, item):
        return [key for key in self.model if meets(key, item)]

    @rule(item=RANGES)
    def register_memory(self, item):
        region = MemoryRegion(*item)
        users = self.model.get(item)
        if users is not None and users[0] == "memory":
            self.model[item] = ("memory", users[1] + 1, users[2])
            assert self.manager.register_memory(region) is users[2]
        elif self.taken(item):
            with pytest.raises(RegistrationError, match=r"core\.unique"):
                self.manager.register_memory(region)
        else:
            self.model[item] = ("memory", 1, self.manager.register_memory(region))

    @rule(item=RANGES)
    def adopt_memory(self, item):
        around = [
            key
            for key, value in self.model.items()
            if value[0] == "memory" and key[0] <= item[0] and sum(item) <= sum(key)
        ]
        if around:
            kind, users, memory = self.model[around[0]]
            self.model[around[0]] = (kind, users + 1, memory)
            assert self.manager.register_memory(MemoryRegion(*item), adopt=True) is memory

    @rule(items=st.lists(RANGES, min_size=1, max_size=3), size=st.integers(1, 12))
    def register_cache(self, items, size):
        addrs = [start for start, _ in items]
        desc = CacheDesc(len(addrs), (1, size), DataType.DT_UINT8, Placement.HOST)
        wanted = [(start, size) for start in addrs]
        views = {
            item: key
            for item in wanted
            for key, value in self.model.items()
            if value[0] == "memory" and key[0] <= item[0] and sum(item) <= sum(key)
        }
        fresh = [item for item in wanted if item not in views]
        clash = any(meets(a, b) for a, b in itertools.combinations(fresh, 2)) or any(map(self.taken, fresh))
        full = sum(len(c.tensor_addrs) for c in self.manager.caches.values()) + len(addrs) > 12
        plan = self.manager.plan(desc, addrs)
        assert plan.ok is not (clash or full)
        assert plan.views == sum(item in views for item in wanted)
        if clash or full:
            with pytest.raises(RegistrationError):
                self.manager.register_cache(desc, addrs)
            return
        cache = self.manager.register_cache(desc, addrs)
        for item in fresh:
            self.model[item] = ("cache", cache, None)

    @precondition(lambda self: self.manager.caches)
    @rule(data=st.data())
    def unregister_cache(self, data):
        number = data.draw(st.sampled_from(sorted(self.manager.caches)))
        cache = self.manager.caches[number]
        self.manager.unregister_cache(number)
        self.model = {key: value for key, value in self.model.items() if value[1] is not cache}

    def free(self):
        """Memory that no cache is a view of."""
        held = set(itertools.chain.from_iterable(self.manager.registry.cache_memory.values()))
        return [key for key, value in self.model.items() if value[0] == "memory" and value[2] not in held]

    @precondition(lambda self: self.free())
    @rule(data=st.data())
    def unregister_memory(self, data):
        key = data.draw(st.sampled_from(sorted(self.free())))
        kind, users, memory = self.model.pop(key)
        self.manager.unregister_memory(memory)
        if users > 1:
            self.model[key] = (kind, users - 1, memory)

    @invariant()
    def same(self):
        manager = self.manager
        assert [(m.region.address, m.region.length) for m in manager.memories] == sorted(self.model)
        for memory in manager.memories:
            kind, users, _ = self.model[memory.region.address, memory.region.length]
            views = sum(memory in held for held in manager.registry.cache_memory.values())
            assert memory.users == (users + views if kind == "memory" else 1)
        assert manager.registry.bytes(device=False) == sum(length for _, length in self.model)
        table = manager.registry.table()
        assert table.starts.tolist() == [start for start, _ in sorted(self.model)]

    def teardown(self):
        if hasattr(self, "manager"):
            self.manager.close()


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


# ---------------------------------------------------------------------- states


def test_only_live_memory_is_open_to_transfers():
    registry = Registry()
    memory, other = reserve(registry, [(100, 10), (200, 10)])
    assert registry.table().starts.tolist() == []
    registry.go_live([memory, other])
    assert registry.table().starts.tolist() == [100, 200]
    registry.leave([memory])
    assert registry.table().starts.tolist() == [200]
    registry.restore({memory: MemoryState.LIVE})
    assert registry.table().starts.tolist() == [100, 200]


def test_every_change_has_a_version():
    registry = Registry()
    seen = [registry.version]
    (memory,) = reserve(registry, [(100, 10)])
    seen.append(registry.version)
    for change in (registry.go_live, registry.leave):
        change([memory])
        seen.append(registry.version)
    registry.release(memory)
    seen.append(registry.version)
    assert seen == sorted(set(seen))


def test_quarantined_memory_stays_taken_and_counted():
    registry = Registry()
    memory, other = reserve(registry, [(100, 10), (200, 10)])
    registry.release(memory, quarantined=True)
    registry.release(other)
    assert (memory.state, other.state) == (MemoryState.QUARANTINED, MemoryState.CLOSED)
    assert list(registry.overlapping(105, 106)) == registry.memories() == [memory]
    assert list(registry.overlapping(205, 206)) == []
    assert registry.bytes(device=False) == 10
    assert (registry.holds(memory), registry.holds(other)) == (True, False)
    assert registry.table().starts.tolist() == []


def test_memory_ids_are_never_used_twice():
    registry = Registry()
    numbers = []
    for _ in range(3):
        (memory,) = reserve(registry, [(100, 10)])
        numbers.append(memory.memory_id)
        registry.release(memory)
    assert numbers == [1, 2, 3]
