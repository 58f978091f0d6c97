"""Reading and writing a peer's memory: what lies outside is refused here, with nothing sent, on every transport."""

from __future__ import annotations

import numpy as np
import pytest

from cachefw import (
    Access,
    BusyError,
    CacheDesc,
    DataType,
    MemoryKind,
    MemoryRegion,
    Placement,
    RegistrationError,
    RequestError,
)

SIZE = 64 * 1024


@pytest.fixture
def sides(nodes):
    """Registered arrays of either node, and the link from the first to the second."""
    random = np.random.default_rng(1)
    here, there = (random.integers(0, 256, SIZE, np.uint8) for _ in range(2))
    nodes[0].cache_manager.register_memory(here, label="here")
    nodes[1].cache_manager.register_memory(there, remote_accessible=True, label="there")
    (link,) = nodes[0].links
    return here, there, link


def address(array, offset=0):
    return array.ctypes.data + offset


@pytest.fixture(params=["read", "write"])
def move(request, sides):
    return getattr(sides[2], request.param)


@pytest.fixture
def unchanged(sides):
    before = [array.copy() for array in sides[:2]]
    yield
    for array, copy in zip(sides[:2], before, strict=True):
        assert array.tobytes() == copy.tobytes()


@pytest.mark.parametrize("form", [list, tuple, lambda v: np.array(v, np.uint64), lambda v: np.array(v, np.int64)])
def test_pieces_land_where_they_are_told(sides, form):
    here, there, link = sides
    expected = here.copy()
    moves = [(0, 100, 50), (1000, 0, 1), (SIZE - 7, SIZE - 7, 7)]
    for local, remote, length in moves:
        expected[local : local + length] = there[remote : remote + length]
    local, remote, lengths = zip(*moves, strict=True)
    transfer = link.read(
        form([address(here, offset) for offset in local]),
        form([address(there, offset) for offset in remote]),
        form(lengths),
    )
    assert here.tobytes() == expected.tobytes()
    assert (transfer.nbytes, transfer.pieces) == (58, 3)


def test_a_write_lands_at_the_peer(sides):
    here, there, link = sides
    expected = there.copy()
    expected[5:105] = here[:100]
    link.write(address(here), address(there, 5), 100)
    assert there.tobytes() == expected.tobytes()


@pytest.mark.usefixtures("unchanged")
def test_t20_transfer_from_unregistered_local_memory_is_refused(sides, move):
    stranger = np.zeros(64, np.uint8)
    with pytest.raises(ValueError, match="no registered memory is there; register it first") as caught:
        move(address(stranger), address(sides[1]), 64)
    assert isinstance(caught.value, RequestError)
    assert caught.value.facts == {"index": 0, "address": address(stranger), "length": 64}


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(("offset", "over"), [(SIZE - 63, "1"), (-1, "1"), (SIZE - 1, "63")])
def test_t20_transfer_across_a_region_end_is_refused(sides, move, offset, over):
    here, there, _ = sides
    with pytest.raises(RequestError, match=rf"piece 1: local .*: it goes {over} bytes past memory 1 'here'"):
        move([address(here), address(here, offset)], [address(there)] * 2, [8, 64])
    with pytest.raises(RequestError, match=rf"piece 1: remote .* is out of reach of a (read|write): it goes {over} b"):
        move([address(here), address(here, 100)], [address(there), address(there, offset)], [8, 64])


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("local", "remote", "lengths", "builtin", "words"),
    [
        ([0], [0], [0], ValueError, r"lengths\[0\] is 0; every piece has at least 1 byte"),
        ([0, 8], [0], [8], ValueError, "2 local addresses, 1 remote addresses and 1 lengths; give one of each"),
        ([0], [0], [8, 8], ValueError, "1 local addresses, 1 remote addresses and 2 lengths"),
        ([], [], [], ValueError, "there is nothing to move"),
        ([0], [0], [-1], ValueError, r"lengths\[0\] is -1"),
        ([0], [0], [2**64], ValueError, r"lengths\[0\] is 18446744073709551616"),
        ([0], [0], [2**64 - 1], ValueError, "piece 0: local"),
        ([0], [0], [True], TypeError, r"lengths\[0\] must be an int, not True"),
        ([0], [0], [1.0], TypeError, r"lengths\[0\] must be an int"),
        ([0], [0], [None], AttributeError, r"lengths\[0\] must be an int, not None"),
        ([0], [0], None, AttributeError, "lengths is None"),
        ([0], [0], "8", TypeError, "lengths must be an int, a list of ints"),
    ],
)
def test_t20_transfer_lists_that_do_not_fit_are_refused(sides, move, local, remote, lengths, builtin, words):
    here, there, _ = sides
    with pytest.raises(builtin, match=words) as caught:
        move([address(here, offset) for offset in local], [address(there, offset) for offset in remote], lengths)
    assert isinstance(caught.value, RequestError)


@pytest.mark.usefixtures("unchanged")
def test_t20_transfer_that_writes_a_byte_twice_is_refused(sides):
    here, there, link = sides
    with pytest.raises(ValueError, match="two pieces of this read write the same bytes"):
        link.read([address(here, 100), address(here, 93)], [address(there), address(there, 1000)], [8, 8])
    with pytest.raises(ValueError, match="two pieces of this write write the same bytes"):
        link.write([address(here), address(here, 500)], [address(there, 93), address(there, 100)], [8, 8])


def test_t20_transfer_reads_the_same_bytes_twice(sides):
    here, there, link = sides
    link.read([address(here), address(here, 8)], [address(there, 3)] * 2, [8, 8])
    assert here[:8].tobytes() == here[8:16].tobytes() == there[3:11].tobytes()


@pytest.mark.usefixtures("unchanged")
def test_memory_that_is_not_published_is_out_of_reach(nodes, sides, move):
    private = np.zeros(64, np.uint8)
    nodes[1].cache_manager.register_memory(private)
    with pytest.raises(RequestError, match="nothing published is there; published are") as caught:
        move(address(sides[0]), address(private), 64)
    assert caught.value.peer.startswith("cluster 2 at 127.0.0.1:")


@pytest.mark.parametrize(("access", "allowed"), [(Access.READ, "read"), (Access.WRITE, "write")])
def test_rights_of_a_region_are_kept(nodes, sides, access, allowed):
    limited = np.zeros(64, np.uint8)
    region = MemoryRegion(address(limited), 64, access=access)
    nodes[1].cache_manager.register_memory(region, remote_accessible=True)
    here, _, link = sides
    getattr(link, allowed)(address(here), address(limited), 64)
    other = {"read": "write", "write": "read"}[allowed]
    with pytest.raises(RequestError, match=f"does not allow a {other} of its memory 2") as caught:
        getattr(link, other)(address(here), address(limited), 64)
    assert caught.value.code == "request.rights"


# ---------------------------------------------------------------------- registering beside a link


def test_t10_after_a_refusal_other_regions_are_still_published(nodes, sides):
    here, _, link = sides
    manager = nodes[1].cache_manager
    for wrong in (MemoryRegion(0x1000, 0), MemoryRegion(2**64 - 8, 16), MemoryRegion(0, 8)):
        with pytest.raises(RegistrationError):
            manager.register_memory(wrong, remote_accessible=True)
    with pytest.raises(RegistrationError):
        manager.register_cache(CacheDesc(1, (0, 16), DataType.DT_INT8, Placement.HOST), [0x1000], (), True)
    later = np.arange(64, dtype=np.uint8)
    memory = manager.register_memory(later, remote_accessible=True)
    link.read(address(here), address(later), 64)
    assert here[:64].tobytes() == later.tobytes()
    assert sorted(m.memory_id for m in link.memories) == [1, memory.memory_id]


@pytest.mark.parametrize("transport", ["memory"])
def test_memory_in_use_is_not_given_back(nodes, sides):
    here, there, link = sides
    manager = nodes[0].cache_manager
    manager.transport("memory").pause()
    transfer = link.read(address(here), address(there), SIZE, wait=False)
    (memory,) = manager.memories
    with pytest.raises(BusyError, match="unregister_memory: the read of 65,536 bytes in 1 pieces from cluster 2"):
        manager.unregister_memory(memory)
    manager.transport("memory").resume()
    transfer.result(30)
    link.sync()
    assert here.tobytes() == there.tobytes()


@pytest.mark.parametrize("transport", ["memory"])
def test_device_memory_for_peers_is_registered_before_linking(nodes):
    manager = nodes[0].cache_manager
    desc = CacheDesc(2, (1, 64), DataType.DT_INT8)
    with pytest.raises(RegistrationError) as caught:
        manager.register_cache(desc, [0x10000, 0x20000])
    assert [f.index for f in caught.value.findings if f.rule == "core.order"] == [0, 1]
    assert "unlink first" in str(caught.value)
    with pytest.raises(RegistrationError, match=r"core\.order"):
        manager.register_memory(MemoryRegion(0x10000, 64, MemoryKind.DEVICE))
    manager.register_cache(desc, [0x10000, 0x20000], remote_accessible=False)
    manager.register_memory(MemoryRegion(0x30000, 64, MemoryKind.DEVICE), remote_accessible=False)
