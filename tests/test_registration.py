"""Registering caches: unique memory, all or nothing, and giving back, also when a transport fails half way."""

from __future__ import annotations

import pytest

from cachefw import (
    BusyError,
    CacheDesc,
    CacheError,
    CacheKey,
    ClosedError,
    DataType,
    MemoryRegion,
    NotFoundError,
    Placement,
    PluginError,
    RegistrationError,
    RequestError,
    hookimpl,
)
from cachefw.registry import MemoryState
from cachefw.transport import RegisteredMemory

A = 0x7F00_0000_0000
STEP = 2**20


def desc(num_tensors=1, size=4096, placement=Placement.DEVICE):
    return CacheDesc(num_tensors, (1, size), DataType.DT_UINT8, placement)


# ---------------------------------------------------------------------- unique


def test_t01_duplicate_over_two_calls_names_its_place_and_the_first_owner(manager, refused):
    b, c = A + STEP, A + 2 * STEP
    manager.register_blocks_cache(desc(2), [A, b])
    refusal = refused(manager, desc(2), [c, b])
    found = refusal.one("core.unique")
    assert refusal.rules == ["core.unique"]
    assert (found.index, found.address, found.facts["other_index"]) == (1, b, None)
    assert f"addrs[1] {b:#x} is given already by" in found.message
    assert "register_blocks_cache" in found.facts["owner"]
    assert "test_registration.py:" in found.facts["owner"]
    assert manager.register_cache(desc(), [c]).cache_id == 2


def test_t01_duplicate_within_one_call_names_both_indices(manager, refused):
    refusal = refused(manager, desc(3), [A, A + STEP, A])
    found = refusal.one("core.unique")
    assert (found.index, found.facts["other_index"]) == (2, 0)
    assert f"addrs[2] {A:#x} is given already by addrs[0]" in found.message


def test_t01_duplicate_given_three_times_is_found_twice(manager, refused):
    assert refused(manager, desc(3), [A, A, A]).rules == ["core.unique", "core.unique"]


@pytest.mark.parametrize(
    ("offset", "length", "shared", "words"),
    [
        (4095, 4096, 1, "by 1 byte; it ends 4,095 bytes past that end"),
        (-4095, 4096, 1, "by 1 byte"),
        (1024, 16, 16, "by 16 bytes"),
        (-16, 8192, 4096, "by 4,096 bytes"),
    ],
    ids=["end", "start", "inside", "around"],
)
def test_t04_overlaps_are_refused(manager, refused, offset, length, shared, words):
    manager.register_cache(desc(), [A])
    found = refused(manager, desc(1, length), [A + offset]).one("core.unique")
    assert "overlaps" in found.message
    assert words in found.message
    assert (found.facts["other_address"], found.facts["other_length"]) == (A, 4096)
    assert shared == min(A + 4096, found.address + found.length) - max(A, found.address)


def test_t04_overlaps_do_not_include_touching(manager):
    for address in (A, A + 4096, A - 4096):
        manager.register_cache(desc(), [address])
    assert len(manager.memories) == 3


# ---------------------------------------------------------------------- giving back


@pytest.mark.parametrize("number", [999, 0, -1, A, A + 10])
def test_t17_unregister_of_an_unknown_id_lists_the_known(manager, number):
    cache = manager.register_cache(desc(), [A])
    with pytest.raises(NotFoundError, match=f"no cache {number} is registered; registered are: {cache.cache_id}"):
        manager.unregister_cache(number)
    assert manager.caches == {1: cache}


def test_t17_unregister_twice_is_a_clean_error(manager):
    cache = manager.register_cache(desc(), [A])
    manager.unregister_cache(cache.cache_id)
    with pytest.raises(LookupError, match="registered are: none"):
        manager.unregister_cache(cache.cache_id)


def test_t17_unregister_takes_an_id(manager):
    cache = manager.register_cache(desc(), [A])
    for wrong, builtin in [([1, 1], TypeError), (cache, TypeError), (True, TypeError), (None, AttributeError)]:
        with pytest.raises(builtin, match="cache_id must be an int") as caught:
            manager.unregister_cache(wrong)
        assert isinstance(caught.value, RequestError)
    assert manager.caches == {1: cache}


def test_ids_are_never_used_twice(manager):
    for expected in (1, 2, 3):
        cache = manager.register_cache(desc(), [A])
        assert cache.cache_id == expected
        manager.unregister_cache(cache.cache_id)
    assert manager.memories == []
    assert manager.transport("memory")._registered == {}


def test_t17_close_twice_and_calls_after_it(manager):
    manager.register_cache(desc(), [A])
    manager.close()
    manager.close()
    assert manager.closed
    for call in (
        lambda: manager.register_cache(desc(), [A]),
        lambda: manager.register_blocks_cache(desc(), [A]),
        lambda: manager.register_memory(MemoryRegion(A, 1)),
        lambda: manager.unregister_cache(1),
        lambda: manager.unregister_memory(None),
        lambda: manager.allocate(1),
        lambda: manager.pull_cache(CacheKey(1, 1), None),
    ):
        with pytest.raises(ClosedError, match="this CacheManager is closed"):
            call()


@pytest.mark.parametrize(
    "make", ["CacheManager(['memory', 'host'])", "Node(1, '127.0.0.1:0', transports=['memory', 'host']).cache_manager"]
)
def test_t17_exit_with_open_regions_reports_their_place(site, make):
    site.install_memory()
    code = f"""
        import numpy as np
        from cachefw import CacheDesc, CacheManager, DataType, Node, Placement

        manager = {make}
        array = np.zeros((2, 4096), np.uint8)
        manager.register_memory(array, label='weights')
        other = np.zeros((2, 4096), np.uint8)
        manager.register_cache(CacheDesc(1, (2, 4096), DataType.DT_UINT8, Placement.HOST), [other.ctypes.data])
        """
    done = site.run(code)
    assert done.returncode == 0, done.stderr
    assert "still registered at exit; close the CacheManager or Node" in done.stderr
    assert "memory 1 'weights' registered at <string>:7" in done.stderr
    assert "memory 2 'register_cache' registered at <string>:9" in done.stderr
    assert "Traceback" not in done.stderr


def test_t17_exit_after_close_says_nothing(site):
    done = site.run("import cachefw; m = cachefw.CacheManager(['host']); m.close()")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---------------------------------------------------------------------- transports that fail


@pytest.fixture
def fake(manager):
    return manager.transport("memory")


def test_t18_failure_of_the_second_of_three_undoes_the_first(manager, fake, snapshot):
    before = snapshot(manager)
    fake.fail_next("register", after=1)
    with pytest.raises(RegistrationError, match="what was registered before it was given back") as caught:
        manager.register_cache(desc(3), [A, A + STEP, A + 2 * STEP], [CacheKey(1, 1)])
    error = caught.value
    assert not isinstance(error, (ValueError, TypeError))
    assert (error.code, error.transport, error.status) == ("registration.native", "memory", 5)
    assert error.facts["address"] == A + STEP
    assert error.__cause__.operation == "register"
    assert str(error.__cause__) in error.message
    assert snapshot(manager) == before
    manager.register_cache(desc(3), [A, A + STEP, A + 2 * STEP], [CacheKey(1, 1)])


def test_t18_failure_of_the_undo_quarantines_what_it_left(manager, fake, refused):
    fake.fail_next("register", after=2)
    fake.fail_next("unregister")
    with pytest.raises(RegistrationError, match="that memory is quarantined: unregister fails on request") as caught:
        manager.register_cache(desc(3), [A, A + STEP, A + 2 * STEP])
    (undo,) = caught.value.facts["undo_errors"]
    assert isinstance(undo, CacheError)
    assert caught.value.__cause__ is not undo
    # Undone in reverse order, so that it is the second whose undo failed.
    assert [(memory.region.address, memory.state) for memory in manager.memories] == [
        (A + STEP, MemoryState.QUARANTINED)
    ]
    assert manager.caches == {}
    assert refused(manager, desc(), [A + STEP]).rules == ["core.unique"]
    manager.register_cache(desc(2), [A, A + 2 * STEP])
    assert "quarantined" in manager.report()


class Answers:
    """A plugin that answers for the transport, and answers wrongly."""

    def __init__(self, answer):
        self.answer = answer

    @hookimpl
    def cachefw_register_memory(self, region, transport):
        return self.answer(region)


@pytest.mark.parametrize(
    "answer",
    [
        lambda region: 0,
        lambda region: -1,
        lambda region: [],
        lambda region: region,
        lambda region: RegisteredMemory(MemoryRegion(region.address, 1), "memory"),
        lambda region: RegisteredMemory(region, "another"),
    ],
    ids=["0", "-1", "list", "region", "another region", "another transport"],
)
def test_t18_failure_is_what_no_registration_came_of(make_manager, answer):
    manager = make_manager(plugins=[Answers(answer)])
    with pytest.raises(RegistrationError, match=r"transport 'memory' returned .* it must return a Reg") as caught:
        manager.register_cache(desc(), [A])
    assert isinstance(caught.value.__cause__, PluginError)
    assert manager.memories == []


def test_t18_failure_is_a_transport_that_returns_none_or_raises_anything(manager, fake, monkeypatch, snapshot):
    before = snapshot(manager)
    monkeypatch.setattr(fake, "register", lambda region: None)
    with pytest.raises(RegistrationError, match="transport 'memory' returned None while registering"):
        manager.register_cache(desc(), [A])
    monkeypatch.setattr(fake, "register", lambda region: 1 // 0)
    with pytest.raises(RegistrationError, match="transport 'memory' raised ZeroDivisionError") as caught:
        manager.register_memory(MemoryRegion(A, 1))
    assert isinstance(caught.value.__cause__.__cause__, ZeroDivisionError)
    assert snapshot(manager) == before


def test_t18_failure_by_interrupt_undoes_and_passes_through(manager, fake, monkeypatch, snapshot):
    before = snapshot(manager)
    real = fake.register

    def register(region):
        if region.address != A:
            raise KeyboardInterrupt
        return real(region)

    monkeypatch.setattr(fake, "register", register)
    with pytest.raises(KeyboardInterrupt):
        manager.register_cache(desc(2), [A, A + STEP])
    assert snapshot(manager) == before


def test_all_transports_register_or_none_does(site, make_manager, snapshot):
    site.install_memory("second")
    manager = make_manager(["memory", "second"])
    before = snapshot(manager)
    manager.transport("second").fail_next("register", after=1)
    with pytest.raises(RegistrationError, match="transport 'second' could not register"):
        manager.register_cache(desc(2), [A, A + STEP])
    assert snapshot(manager) == before
    cache = manager.register_cache(desc(2), [A, A + STEP])
    assert [set(memory.registered) for memory in manager.memories] == [{"memory", "second"}] * 2
    manager.unregister_cache(cache.cache_id)
    assert snapshot(manager) == before


@pytest.mark.parametrize("failing", range(3))
def test_giving_back_can_be_called_again_until_it_is_done(manager, fake, failing):
    cache = manager.register_cache(desc(3), [A, A + STEP, A + 2 * STEP], [CacheKey(1, 1)])
    fake.fail_next("unregister", after=failing)
    with pytest.raises(RegistrationError, match="1 native registrations could not be given back") as caught:
        manager.unregister_cache(cache.cache_id)
    assert (caught.value.code, caught.value.status) == ("registration.native", 5)
    # Half of it may be gone already: nothing may use the rest, and it stays taken.
    (left,) = manager.memories
    assert (left.region.address, left.state) == (A + failing * STEP, MemoryState.QUARANTINED)
    assert manager.caches == {cache.cache_id: cache}
    manager.unregister_cache(cache.cache_id)
    assert (manager.memories, manager.caches) == ([], {})
    manager.register_cache(desc(3), [A, A + STEP, A + 2 * STEP], [CacheKey(1, 1)])


def test_quarantined_memory_never_becomes_usable_again(manager, fake):
    fake.fail_next("unregister")
    memory = manager.register_memory(MemoryRegion(A, 4096))
    with pytest.raises(RegistrationError):
        manager.unregister_memory(memory)
    fake.fail_next("unregister")
    with pytest.raises(RegistrationError):
        manager.unregister_memory(memory)
    assert memory.state is MemoryState.QUARANTINED
    assert len(manager.registry.table().ids) == 0
    manager.unregister_memory(memory)
    assert memory.state is MemoryState.CLOSED


def test_closing_goes_on_after_a_failure(make_manager, caplog):
    manager = make_manager()
    manager.register_cache(desc(3), [A, A + STEP, A + 2 * STEP])
    manager.transport("memory").fail_next("unregister")
    transport = manager.transport("memory")
    manager.close()
    assert "could not be given back: unregister fails on request" in caplog.text
    assert transport._registered == {}
    assert manager.memories == []


def test_memory_on_its_way_cannot_be_given_back(manager, fake, monkeypatch):
    real, seen = fake.register, []

    def register(region):
        with pytest.raises(BusyError, match="being reserved by another thread"):
            manager.unregister_cache(1)
        with pytest.raises(RegistrationError, match=r"core\.unique"):
            manager.register_cache(desc(), [A])
        seen.append(region)
        return real(region)

    monkeypatch.setattr(fake, "register", register)
    manager.register_cache(desc(), [A])
    assert len(seen) == 1
