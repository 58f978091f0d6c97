"""Nodes and links over real sockets: the handshake, one link for each peer, tables that follow, and every end of it."""

from __future__ import annotations

import gc
import os
import pickle
import queue
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest

import cachefw
from cachefw.links import messages
from cachefw.published import PublishedMemory

DESC = cachefw.CacheDesc(2, [8, 64], cachefw.DataType.DT_FLOAT16, cachefw.Placement.HOST)


@pytest.fixture
def pair() -> Iterator[tuple[cachefw.Node, cachefw.Node]]:
    with cachefw.Node(1, "127.0.0.1:0") as one, cachefw.Node(2, "127.0.0.1:0") as two:
        yield one, two


def _registered(node: cachefw.Node, size: int = 4096, value: int = 0) -> tuple[np.ndarray, cachefw.Memory]:
    array = np.full(size, value, np.uint8)
    return array, node.cache_manager.register_memory(array, remote_accessible=True)


def _wait_for(condition: threading.Event) -> None:
    assert condition.wait(20), "it did not happen"


class Watcher:
    """An observer plugin that counts what links do."""

    def __init__(self) -> None:
        self.states: list[tuple[int, str]] = []
        self.came = threading.Condition()

    @cachefw.hookimpl
    def cachefw_link_changed(self, link: cachefw.Link) -> None:
        with self.came:
            self.states.append((link.cluster_id, link.state.value))
            self.came.notify_all()

    def wait_for(self, state: tuple[int, str]) -> None:
        with self.came:
            assert self.came.wait_for(lambda: state in self.states, 20), f"{state} did not happen: {self.states}"


# ---------------------------------------------------------------------- making links


def test_a_link_serves_both_directions(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    ours, _ = _registered(one, value=1)
    theirs, _ = _registered(two, value=2)
    link = two.link(one.address)
    (back,) = one.links
    assert (link.cluster_id, back.cluster_id) == (1, 2)
    assert link.transport == back.transport == "host"
    link.read(theirs.ctypes.data, ours.ctypes.data, 100)
    back.read(ours.ctypes.data + 200, theirs.ctypes.data + 200, 100)
    assert theirs[:100].tolist() == [1] * 100
    assert ours[200:300].tolist() == [2] * 100


def test_linking_again_gives_the_same_link(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    link = two.link(one.address)
    assert two.link(one.address) is link
    assert one.link(two.address) is one.links[0]
    assert len(one.links) == len(two.links) == 1


def test_concurrent_and_crossed_links_end_in_one(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            dials = [pool.submit(a.link, b.address) for a, b in [(one, two), (two, one)] * 4]
            links = [dial.result(30) for dial in dials]
            assert set(links[0::2]) == set(one.links)
            assert set(links[1::2]) == set(two.links)
            assert len(one.links) == len(two.links) == 1
            one.unlink(one.links[0])
            with pytest.raises(cachefw.BrokenError):
                links[1].sync()


def test_a_card_is_an_address_that_knows_restarts(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    card = one.card()
    assert two.link(card).cluster_id == 1
    address = one.address
    one.close()
    with cachefw.Node(1, address), pytest.raises(cachefw.BrokenError, match="was restarted since its card was made"):
        two.link(card)


def test_two_nodes_of_one_cluster_id_are_refused() -> None:
    with (
        cachefw.Node(7, "127.0.0.1:0") as one,
        cachefw.Node(7) as two,
        pytest.raises(cachefw.BrokenError, match="both nodes have cluster id 7") as caught,
    ):
        two.link(one.address)
    assert caught.value.code == "link.same_cluster"


def test_a_node_does_not_link_to_itself() -> None:
    with cachefw.Node(7, "127.0.0.1:0") as node, pytest.raises(cachefw.BrokenError, match="cannot link to itself"):
        node.link(node.address)


def test_many_nodes_live_in_one_process() -> None:
    nodes = [cachefw.Node(number, "127.0.0.1:0") for number in range(6)]
    for node in nodes[1:]:
        node.link(nodes[0].address)
    assert sorted(link.cluster_id for link in nodes[0].links) == [1, 2, 3, 4, 5]
    for node in nodes:
        node.close()


def test_without_a_shared_transport_both_sets_are_named(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, _ = pair
    with cachefw.Node(3, transports=[]) as bare, pytest.raises(cachefw.TransportUnavailable) as caught:
        bare.link(one.address)
    assert "here none" in str(caught.value)
    assert "host" in str(caught.value)
    assert caught.value.code == "transport.none_shared"


# ---------------------------------------------------------------------- what cannot be linked


def test_nobody_listening_is_named_with_host_and_port(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(cachefw.BrokenError, match=f"cannot reach 127.0.0.1:{port}: Connection refused") as caught:
        pair[0].link(f"127.0.0.1:{port}")
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.status is not None


def test_a_silent_server_meets_the_deadline(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(cachefw.TransferTimeout, match=f"no link to {address} within 0.3 s") as caught:
            pair[0].link(address, timeout=0.3)
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak cachefw's protocol"),
        (struct.pack("<8sII", b"cachefw\n", 99, 0), "speaks version 99 of the link protocol, this is version 1"),
        (b"", "closed the connection without a word"),
        (struct.pack("<8sII", b"cachefw\n", messages.PROTOCOL, 0) + struct.pack("<I", 2**32 - 1), "at most 65,536"),
        (struct.pack("<8sII", b"cachefw\n", messages.PROTOCOL, 0) + b"\x05\0\0\0hello", "malformed frame"),
        (struct.pack("<8sII", b"cachefw\n", messages.PROTOCOL, 0) + b"\x05\0\0\0he", "in the middle of a frame"),
        (
            struct.pack("<8sII", b"cachefw\n", messages.PROTOCOL, 0) + messages.encode(messages.Sync(1)),
            "sent Sync instead of Challenge",
        ),
    ],
)
def test_nonsense_from_a_server_is_said(pair: tuple[cachefw.Node, cachefw.Node], answer: bytes, text: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(cachefw.BrokenError, match=text) as caught:
            pair[0].link(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join(20)
    assert caught.value.code == ("link.protocol" if answer else "link.hangup")


@pytest.mark.parametrize(
    "bytes_",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        pickle.dumps(os.getcwd),
        struct.pack("<8sII", b"cachefw\n", 99, 0),
        struct.pack("<8sII", b"cachefw\n", messages.PROTOCOL, 0) + struct.pack("<I", 2**32 - 1),
        struct.pack("<8sII", b"cachefw\n", messages.PROTOCOL, 0) + struct.pack("<I", 20) + pickle.dumps(1),
        struct.pack("<8sII", b"cachefw\n", messages.PROTOCOL, 0) + messages.encode(messages.Ready()),
    ],
)
def test_nonsense_from_a_client_closes_that_connection_alone(
    pair: tuple[cachefw.Node, cachefw.Node], bytes_: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    # The one that sends half a frame and then nothing is let go at the end of the handshake's time.
    monkeypatch.setenv("CACHEFW_LINK_TIMEOUT", "0.5")
    host, port = one.address.split(":")
    with socket.create_connection((host, int(port)), 20) as stranger:
        stranger.sendall(bytes_)
        stranger.settimeout(20)
        while stranger.recv(4096):
            pass
    monkeypatch.delenv("CACHEFW_LINK_TIMEOUT")
    assert one.links == []
    assert two.link(one.address).state is cachefw.LinkState.UP


def test_half_a_handshake_and_silence_is_let_go(
    pair: tuple[cachefw.Node, cachefw.Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEFW_LINK_TIMEOUT", "0.3")
    host, port = pair[0].address.split(":")
    with socket.create_connection((host, int(port)), 20) as stranger:
        stranger.sendall(b"cache")
        stranger.settimeout(20)
        received = b""
        while chunk := stranger.recv(4096):
            received += chunk
    assert b"handshake took too long" in received or b"link.timeout" in received


def test_a_taken_port_and_a_wrong_address_are_said(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    before = threading.active_count()
    with pytest.raises(
        cachefw.BrokenError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use.*; port 0"
    ):
        cachefw.Node(9, pair[0].address)
    for wrong in ("127.0.0.1", ":80", "127.0.0.1:99999", "127.0.0.1:x"):
        with pytest.raises(ValueError, match="is no address"):
            cachefw.Node(9, wrong)
    with pytest.raises(ValueError, match="would let other hosts in"):
        cachefw.Node(9, "0.0.0.0:0")
    with pytest.raises(TypeError):
        pair[0].link(80)
    with pytest.raises(AttributeError):
        pair[0].link(None)
    with pytest.raises(ValueError, match="no card of a node"):
        pair[0].link(b"garbage")
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("cluster_id", "error"),
    [(None, AttributeError), ("1", TypeError), (True, TypeError), (-1, ValueError), (2**64, ValueError)],
)
def test_wrong_cluster_ids_are_refused(cluster_id: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="cluster_id") as caught:
        cachefw.Node(cluster_id)
    assert isinstance(caught.value, cachefw.RequestError)


# ---------------------------------------------------------------------- tables that follow


def test_what_is_registered_after_linking_can_be_pulled_at_once(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    two.link(one.address)
    source, memory = one.cache_manager.allocate(DESC.size * 2), two.cache_manager.allocate(DESC.size * 2)
    np.asarray(source)[:] = 7
    addrs = [source.address, source.address + DESC.size]
    one.cache_manager.register_blocks_cache(DESC, addrs, cachefw.BlocksCacheKey(1), remote_accessible=True)
    own = two.cache_manager.register_blocks_cache(DESC, [memory.address, memory.address + DESC.size])
    two.cache_manager.pull_blocks(cachefw.BlocksCacheKey(1), own, range(8), range(8))
    assert (np.asarray(memory) == 7).all()


def test_what_is_unregistered_is_gone_at_the_peer(
    pair: tuple[cachefw.Node, cachefw.Node],
) -> None:
    one, two = pair
    array, memory = _registered(one)
    link = two.link(one.address)
    assert [m.memory_id for m in link.memories] == [memory.memory_id]
    one.cache_manager.unregister_memory(memory)
    assert link.memories == []
    target, _ = _registered(two)
    with pytest.raises(cachefw.RequestError, match="nothing published is there"):
        link.read(target.ctypes.data, array.ctypes.data, 10)


def test_memory_that_peers_may_not_reach_is_not_published(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    hidden = np.zeros(4096, np.uint8)
    one.cache_manager.register_memory(hidden)
    target, _ = _registered(two)
    link = two.link(one.address)
    with pytest.raises(cachefw.RequestError, match="published are none"):
        link.read(target.ctypes.data, hidden.ctypes.data, 10)


def test_a_large_table_crosses_in_many_frames() -> None:
    limits = cachefw.Limits(addresses=10_000)
    with cachefw.Node(1, "127.0.0.1:0", limits=limits) as one, cachefw.Node(2) as two:
        block = one.cache_manager.allocate(3000 * 4096)
        desc = cachefw.CacheDesc(3000, [2, 2048], cachefw.DataType.DT_INT8, cachefw.Placement.HOST)
        addrs = [block.address + i * 4096 for i in range(3000)]
        one.cache_manager.register_cache(desc, addrs, [cachefw.CacheKey(1, 5)], remote_accessible=True)
        link = two.link(one.address)
        assert len(link.memories) == 3000
        assert len(link.caches[0].tensors) == 3000


def test_a_frozen_peer_does_not_confirm_and_the_memory_stays(
    pair: tuple[cachefw.Node, cachefw.Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    _, memory = _registered(one)
    link = two.link(one.address)
    frozen, thaw = threading.Event(), threading.Event()

    def freeze() -> None:
        frozen.set()
        thaw.wait(30)

    two._loop.call_soon_threadsafe(freeze)
    _wait_for(frozen)
    monkeypatch.setenv("CACHEFW_LINK_TIMEOUT", "0.3")
    with pytest.raises(cachefw.TransferTimeout, match=r"did not answer \(withdraw\) within 0.3 s"):
        one.cache_manager.unregister_memory(memory)
    monkeypatch.delenv("CACHEFW_LINK_TIMEOUT")
    assert one.cache_manager.memories == [memory]
    thaw.set()
    link.sync()
    one.cache_manager.unregister_memory(memory)
    assert one.cache_manager.memories == []


# ---------------------------------------------------------------------- transfers without waiting, notifications


def test_completed_hands_over_what_finished_and_notifications_come_after_the_bytes(
    pair: tuple[cachefw.Node, cachefw.Node],
) -> None:
    one, two = pair
    size = 4 * 2**20
    source, _ = _registered(one, size, 3)
    target, _ = _registered(two, size)
    link = two.link(one.address)
    assert two.completed() == []
    at, there = target.ctypes.data, source.ctypes.data
    posted = [link.read(at + i * 2**20, there + i * 2**20, 2**20, wait=False, notify=b"part %d" % i) for i in range(4)]
    finished: list[object] = []
    for transfer in posted:
        assert transfer.wait(20)
        assert transfer.result() is transfer
    while len(finished) < 4:
        finished += two.completed()
    assert set(finished) == set(posted)
    assert all(transfer.error is None for transfer in posted)
    assert (target == 3).all()
    link.sync()
    notes = one.notifications()
    assert {note.payload for note in notes} == {b"part 0", b"part 1", b"part 2", b"part 3"}
    assert {note.cluster_id for note in notes} == {2}
    assert one.notifications() == []


def test_whoever_waits_for_notifications_is_woken(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    link = two.link(one.address)
    woken: queue.SimpleQueue[int] = queue.SimpleQueue()
    one.when_notified(lambda: woken.put(1))
    for payload in (b"first", b"second"):
        link.notify(payload)
        assert woken.get(timeout=20) == 1
        assert [note.payload for note in one.notifications()] == [payload]
    one.when_notified(None)
    link.notify(b"third")
    link.sync()
    assert woken.empty()
    assert [note.payload for note in one.notifications()] == [b"third"]


def test_notifications_keep_their_order_and_are_bounded(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    link = two.link(one.address)
    for number in range(500):
        link.notify(b"%d" % number)
    link.notify(bytes(64 * 2**10))
    link.sync()
    notes = one.notifications()
    assert [note.payload for note in notes[:-1]] == [b"%d" % number for number in range(500)]
    assert len(notes[-1].payload) == 64 * 2**10
    with pytest.raises(ValueError, match="at most 65,536 bytes, not 65,537"):
        link.notify(bytes(64 * 2**10 + 1))
    with pytest.raises(TypeError):
        link.notify("text")
    with pytest.raises(AttributeError):
        link.notify(None)
    target, _ = _registered(two)
    source, _ = _registered(one, value=9)
    with pytest.raises(TypeError, match="a notification is bytes"):
        link.read(target.ctypes.data, source.ctypes.data, 10, notify=5)
    assert not target.any()


# ---------------------------------------------------------------------- ends


def test_unlinking_ends_both_sides_with_the_reason(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    target, _ = _registered(two)
    source, _ = _registered(one)
    link = two.link(one.address)
    (back,) = one.links
    prepared = link.prepare(cachefw.Operation.READ, target.ctypes.data, source.ctypes.data, 10)
    two.unlink(link)
    two.unlink(link)
    with pytest.raises(cachefw.ClosedError, match="closed on this side"):
        prepared.post()
    with pytest.raises(cachefw.ClosedError):
        link.read(target.ctypes.data, source.ctypes.data, 10)
    assert one.links == []
    with pytest.raises(cachefw.BrokenError, match="the peer closed it: it was unlinked"):
        back.sync()
    with pytest.raises(cachefw.NotFoundError, match="no link to cluster 1; linked are: none"):
        two.cache_manager.pull_blocks(cachefw.BlocksCacheKey(1), _own_cache(two), [0], [0])
    again = two.link(one.address)
    assert again is not link
    again.read(target.ctypes.data, source.ctypes.data, 10)


def _own_cache(node: cachefw.Node) -> cachefw.Cache:
    memory = node.cache_manager.allocate(DESC.size * 2)
    return node.cache_manager.register_blocks_cache(DESC, [memory.address, memory.address + DESC.size])


def test_unlinking_from_a_frozen_peer_ends_in_time(
    pair: tuple[cachefw.Node, cachefw.Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    link = two.link(one.address)
    frozen, thaw = threading.Event(), threading.Event()

    def freeze() -> None:
        frozen.set()
        thaw.wait(30)

    one._loop.call_soon_threadsafe(freeze)
    _wait_for(frozen)
    monkeypatch.setenv("CACHEFW_LINK_TIMEOUT", "0.3")
    two.unlink(link)
    assert link.state is cachefw.LinkState.CLOSED
    assert two.links == []
    thaw.set()
    monkeypatch.delenv("CACHEFW_LINK_TIMEOUT")
    assert two.link(one.address).state is cachefw.LinkState.UP


def test_closing_a_node_tells_its_peers_and_observers() -> None:
    watcher = Watcher()
    with cachefw.Node(2, "127.0.0.1:0", plugins=[watcher]) as two:
        with cachefw.Node(1) as one:
            one.link(two.address)
            watcher.wait_for((1, "up"))
        watcher.wait_for((1, "broken"))
        assert two.links == []
    with pytest.raises(cachefw.ClosedError, match="this Node is closed"):
        two.link("127.0.0.1:1")
    two.close()
    with pytest.raises(cachefw.ClosedError):
        two.cache_manager.allocate(10)


def test_a_restarted_peer_on_the_same_address_is_linked_anew() -> None:
    with cachefw.Node(2) as two:
        target, _ = _registered(two)
        address, seen = "127.0.0.1:0", set()
        for round_ in range(5):
            with cachefw.Node(1, address) as one:
                address = one.address
                source, _ = _registered(one, value=round_ + 1)
                link = two.link(address)
                seen.add(link.incarnation)
                link.read(target.ctypes.data, source.ctypes.data, 4096)
                assert (target == round_ + 1).all()
        assert len(seen) == 5


def test_nodes_leave_nothing_behind() -> None:
    def round_() -> None:
        with cachefw.Node(1, "127.0.0.1:0") as one, cachefw.Node(2) as two:
            source = one.cache_manager.allocate(2**20)
            one.cache_manager.register_memory(source, remote_accessible=True)
            target, _ = _registered(two, 2**20)
            link = two.link(one.address)
            link.read(target.ctypes.data, source.address, 2**20)
            link.read(target.ctypes.data, source.address, 2**20, wait=False).wait(20)

    def held() -> tuple[int, int, int]:
        gc.collect()
        with open("/proc/self/maps") as maps:
            shared = maps.read().count("memfd:")
        return len(os.listdir("/proc/self/fd")), threading.active_count(), shared

    round_()
    before = held()
    for _ in range(10):
        round_()
    assert held() == before


def test_frames_of_any_size_are_published_whole() -> None:
    memories = [PublishedMemory(i, i * 10, 10, "host memory", 3, {"x": bytes(4096)}) for i in range(1, 2000)]
    frames = list(messages.publications(memories, []))
    assert [m for frame in frames for m in frame.memories] == memories
    assert len(frames) > 1
    assert all(len(messages.encode(frame)) <= messages.LIMIT for frame in frames)
    decoded = msgspec.msgpack.decode(messages.encode(frames[0])[4:], type=messages.Message)
    assert decoded.memories == frames[0].memories


def test_a_transfer_that_the_end_of_a_link_cancelled_says_that_the_link_ended(site: Any) -> None:
    site.install_memory()
    with (
        cachefw.Node(1, "127.0.0.1:0", transports=["memory"]) as one,
        cachefw.Node(2, transports=["memory"]) as two,
    ):
        source, _ = _registered(one)
        target, _ = _registered(two)
        link = two.link(one.address)
        two.cache_manager.transport("memory").pause()
        transfer = link.read(target.ctypes.data, source.ctypes.data, 4096, wait=False)
        assert not transfer.settled
        one.close()
        with pytest.raises(cachefw.BrokenError, match="the peer closed it") as caught:
            transfer.result(20)
        assert isinstance(caught.value.__cause__, cachefw.TransferCancelled)
        assert two.completed() == [transfer]


# ---------------------------------------------------------------------- listening elsewhere


def test_a_node_listens_where_it_is_told_to(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    before = one.address
    link = two.link(before)
    one.listen("127.0.0.1:0")
    assert one.address not in (None, before)
    assert link.state is cachefw.LinkState.UP
    two.unlink(link)
    with pytest.raises(cachefw.BrokenError):
        two.link(before)
    assert two.link(one.address).cluster_id == 1
    one.listen(None)
    assert one.address is None
    one.listen(None)
    with pytest.raises(cachefw.RequestError):
        one.card()


def test_a_node_that_cannot_listen_elsewhere_listens_where_it_did(pair: tuple[cachefw.Node, cachefw.Node]) -> None:
    one, two = pair
    before = one.address
    with pytest.raises(cachefw.BrokenError):
        one.listen(two.address)
    with pytest.raises(cachefw.RequestError):
        one.listen("nowhere")
    assert one.address == before
    two.link(before)


def test_memory_is_given_back_while_its_link_is_being_closed(
    pair: tuple[cachefw.Node, cachefw.Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    link = two.link(one.address)
    two.unlink(link)
    _, memory = _registered(two)
    # As it is between the end of a link and its leaving the list.
    monkeypatch.setattr(two._hub, "linked", lambda: True)
    monkeypatch.setattr(two._hub, "_everyone", lambda: [link])
    two.cache_manager.unregister_memory(memory)
