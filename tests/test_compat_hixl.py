"""`cachefw.compat.hixl`: names, values and defaults, statuses, and transfers between two processes."""

from __future__ import annotations

import contextlib
import inspect
import socket
import time

import numpy as np
import pytest
from compat_kit import free_port, pattern, running

from cachefw import Node
from cachefw.compat import hixl

SIZE = 2**20
NOBODY = "127.0.0.1:1"

CONSTANTS = {
    "SUCCESS": 0,
    "PARAM_INVALID": 103900,
    "TIMEOUT": 103901,
    "NOT_CONNECTED": 103902,
    "ALREADY_CONNECTED": 103903,
    "NOTIFY_FAILED": 103904,
    "UNSUPPORTED": 103905,
    "RESOURCE_EXHAUSTED": 203900,
    "FAILED": 503900,
    "FEATURE_SUPPORTED": 1,
    "FEATURE_NOT_SUPPORTED": 0,
    "OPTION_ENABLE_USE_FABRIC_MEM": "EnableUseFabricMem",
    "OPTION_RDMA_TRAFFIC_CLASS": "RdmaTrafficClass",
    "OPTION_RDMA_SERVICE_LEVEL": "RdmaServiceLevel",
    "OPTION_BUFFER_POOL": "BufferPool",
    "OPTION_GLOBAL_RESOURCE_CONFIG": "GlobalResourceConfig",
    "OPTION_AUTO_CONNECT": "AutoConnect",
    "OPTION_LOCAL_COMM_RES": "LocalCommRes",
}
ENUMS = {
    "MemType": ["MEM_DEVICE", "MEM_HOST"],
    "TransferOp": ["READ", "WRITE"],
    "TransferStatus": ["WAITING", "COMPLETED", "TIMEOUT", "FAILED"],
    "AsyncConnectStatus": [
        "NOT_CONNECT",
        "CONNECT_PENDING",
        "CONNECTING",
        "CONNECTED",
        "CONNECT_FAILED",
        "DISCONNECT_PENDING",
        "DISCONNECTING",
    ],
    "FeatureType": ["AUTO_CONNECT", "CLIENT_SERVER_COMM"],
}
SIGNATURES = {
    "initialize": "(self, local_engine, options={})",
    "finalize": "(self)",
    "register_mem": "(self, mem_desc, mem_type, /)",
    "deregister_mem": "(self, handle, /)",
    "connect": "(self, remote_engine, timeout_in_millis=1000)",
    "disconnect": "(self, remote_engine, timeout_in_millis=1000)",
    "connect_async": "(self, remote_engine, timeout_in_millis=1000)",
    "disconnect_async": "(self, remote_engine, timeout_in_millis=1000)",
    "get_async_connect_status": "(self, remote, /)",
    "get_all_async_connect_status": "(self)",
    "transfer_sync": "(self, remote_engine, op, op_descs, timeout_in_millis=1000)",
    "transfer_async": "(self, remote_engine, op, op_descs, args=TransferArgs(user_data=0))",
    "get_transfer_status": "(self, req, /)",
    "get_all_transfer_status": "(self, args=GetTransferStatusArgs(max_query_count=4294967295, skip_waiting=False))",
    "send_notify": "(self, remote_engine, notify, timeout_in_millis=1000)",
    "get_notifies": "(self)",
}
#: What each call answers on an engine that was never initialised, or is finalized.
LIFELESS = {
    "register_mem": (lambda: (hixl.MemDesc(4096, 1), hixl.MEM_HOST), (hixl.FAILED, 0)),
    "deregister_mem": (lambda: (1,), hixl.FAILED),
    "connect": (lambda: (NOBODY,), hixl.FAILED),
    "disconnect": (lambda: (NOBODY,), hixl.FAILED),
    "connect_async": (lambda: (NOBODY,), hixl.FAILED),
    "disconnect_async": (lambda: (NOBODY,), hixl.FAILED),
    "get_async_connect_status": (lambda: (NOBODY,), (hixl.FAILED, hixl.NOT_CONNECT)),
    "get_all_async_connect_status": (lambda: (), (hixl.FAILED, {})),
    "transfer_sync": (lambda: (NOBODY, hixl.READ, [hixl.TransferOpDesc(1, 1, 1)]), hixl.FAILED),
    "transfer_async": (lambda: (NOBODY, hixl.READ, [hixl.TransferOpDesc(1, 1, 1)]), (hixl.FAILED, 0)),
    "get_transfer_status": (lambda: (1,), (hixl.FAILED, hixl.TransferStatus.FAILED)),
    "get_all_transfer_status": (lambda: (), (hixl.FAILED, [])),
    "send_notify": (lambda: (NOBODY, hixl.NotifyDesc("a", "b")), hixl.FAILED),
    "get_notifies": (lambda: (), (hixl.FAILED, [])),
}


@pytest.fixture(autouse=True)
def _on_host_memory(monkeypatch):
    """Whatever devices there are, or simulators that other tests asked for."""
    monkeypatch.setenv("CACHEFW_TRANSPORTS", "host")


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name):
    assert getattr(hixl, name) == CONSTANTS[name]


@pytest.mark.parametrize("name", ENUMS)
def test_enums(name):
    kind = getattr(hixl, name)
    assert [member.name for member in kind] == ENUMS[name]
    assert [int(member) for member in kind] == list(range(len(ENUMS[name])))
    for member in kind:
        assert member == int(member)
        assert str(member) == f"{name}.{member.name}"
        # Those of TransferStatus would clash with the statuses.
        assert (getattr(hixl, member.name, None) is member) == (name != "TransferStatus")


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    signature = inspect.signature(getattr(hixl.Hixl, name))
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    assert text == SIGNATURES[name]


def test_structs():
    desc = hixl.TransferOpDesc(local_addr=1, remote_addr=2, len=3)
    desc.len = np.int64(4)
    assert (desc.local_addr, desc.remote_addr, desc.len) == (1, 2, 4)
    assert hixl.MemDesc(addr=5, len=6).addr == 5
    assert hixl.TransferArgs().user_data == 0
    args = hixl.GetTransferStatusArgs()
    assert (args.max_query_count, args.skip_waiting) == (2**32 - 1, False)
    result = hixl.TransferResult()
    result.req, result.user_data = 7, 8
    assert result.status is hixl.TransferStatus.WAITING
    with pytest.raises(AttributeError):
        result.status = hixl.TransferStatus.FAILED
    assert hixl.NotifyDesc(name="a", notify_msg="b").notify_msg == "b"


@pytest.mark.parametrize(
    "make",
    [
        lambda: hixl.MemDesc(-1, 1),
        lambda: hixl.MemDesc(None, 1),
        lambda: hixl.MemDesc(1, 2**64),
        lambda: hixl.TransferOpDesc("1", 1, 1),
        lambda: hixl.TransferOpDesc(1, 1.5, 1),
        lambda: setattr(hixl.TransferOpDesc(1, 1, 1), "len", -1),
        lambda: setattr(hixl.TransferArgs(), "user_data", "x"),
        lambda: hixl.GetTransferStatusArgs(skip_waiting=1),
        lambda: hixl.NotifyDesc(b"a", "b"),
        lambda: hixl.get_capability(0),
        lambda: hixl.Hixl().initialize(1),
        lambda: hixl.Hixl().initialize("127.0.0.1:0", {"AutoConnect": 1}),
        lambda: hixl.Hixl().initialize("127.0.0.1:0", None),
        lambda: hixl.Hixl().register_mem((1, 2), hixl.MEM_HOST),
        lambda: hixl.Hixl().register_mem(hixl.MemDesc(1, 2), 1),
        lambda: hixl.Hixl().transfer_sync(NOBODY, 0, []),
        lambda: hixl.Hixl().transfer_sync(NOBODY, hixl.READ, [(1, 2, 3)]),
        lambda: hixl.Hixl().transfer_sync(NOBODY, hixl.READ, None),
        lambda: hixl.Hixl().connect(NOBODY, "1"),
        lambda: hixl.Hixl().connect(NOBODY, timeout=1),
    ],
)
def test_wrong_types_are_type_errors(make):
    with pytest.raises(TypeError):
        make()


def test_an_unknown_keyword_is_told_what_is_like_it():
    with pytest.raises(TypeError, match=r"'timeout_in_milis' \(did you mean timeout_in_millis"):
        hixl.Hixl().connect(NOBODY, timeout_in_milis=3)


@pytest.mark.parametrize("name", LIFELESS)
def test_without_life_every_call_fails(name):
    engine, (args, answer) = hixl.Hixl(), LIFELESS[name]
    assert getattr(engine, name)(*args()) == answer
    assert engine.initialize("127.0.0.1:0") == hixl.SUCCESS
    engine.finalize()
    engine.finalize()
    assert getattr(engine, name)(*args()) == answer


def test_features():
    assert [hixl.get_capability(feature) for feature in hixl.FeatureType] == [(0, hixl.FEATURE_SUPPORTED)] * 2


@pytest.mark.parametrize(
    ("local", "options"),
    [
        ("127.0.0.1", {}),
        ("127.0.0.1:x", {}),
        ("127.0.0.1:70000", {}),
        ("nowhere.invalid:16000", {}),
        ("127.0.0.1:0", {"AutoConect": "1"}),
        ("127.0.0.1:0", {"AutoConnect": "yes"}),
        ("127.0.0.1:0", {"EnableUseFabricMem": "2"}),
        ("127.0.0.1:0", {"RdmaTrafficClass": "131"}),
        ("127.0.0.1:0", {"RdmaTrafficClass": "256"}),
        ("127.0.0.1:0", {"RdmaServiceLevel": "8"}),
        ("127.0.0.1:0", {"BufferPool": "4"}),
        ("127.0.0.1:0", {"GlobalResourceConfig": "{"}),
        ("127.0.0.1:0", {"GlobalResourceConfig": "[]"}),
        ("127.0.0.1:0", {"GlobalResourceConfig": '{"comm_resource_config.protocol_desc": 1}'}),
        ("127.0.0.1:0", {"GlobalResourceConfig": '{"comm_resource_config.protocol_desc": ["roce:devise"]}'}),
        ("127.0.0.1:0", {"GlobalResourceConfig": '{"connect_pool.thread_num": 0}'}),
        ("127.0.0.1:0", {"LocalCommRes": '{"version": "9"}'}),
        ("127.0.0.1:0", {"LocalCommRes": '{"version": "1.3", "endpoint_list": [{"protocol": "tin cans"}]}'}),
        ("127.0.0.1:0", {"LocalCommRes": " " * (64 * 1024 + 1)}),
        ("127.0.0.1:0", {"cachefw.transports": ","}),
    ],
)
def test_what_initialize_refuses(local, options, caplog):
    engine = hixl.Hixl()
    assert engine.initialize(local, options) == hixl.PARAM_INVALID
    assert "returns 103900" in caplog.text
    assert engine.get_notifies() == (hixl.FAILED, [])


def test_all_wrong_options_are_named_at_once_with_what_is_like_them(caplog):
    hixl.Hixl().initialize("127.0.0.1:0", {"AutoConect": "1", "RdmaServiceLevel": "9"})
    assert "'AutoConect' (did you mean AutoConnect?)" in caplog.text
    assert "RdmaServiceLevel='9' is not a number from 0 to 7" in caplog.text


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"GlobalResourceConfig": '{"comm_resource_config.protocol_desc": "uboe:device"}'}, hixl.UNSUPPORTED),
        ({"LocalCommRes": '{"version":"1.3","endpoint_list":[{"protocol":"ub_ctp"}]}'}, hixl.UNSUPPORTED),
        ({"cachefw.transports": "carrier-pigeon"}, hixl.UNSUPPORTED),
        ({"cachefw.transports": "host", "GlobalResourceConfig": "{}", "LocalCommRes": ""}, hixl.SUCCESS),
        ({"LocalCommRes": '{"version":"1.2"}', "BufferPool": "0:0", "AutoConnect": "0"}, hixl.SUCCESS),
        ({}, hixl.SUCCESS),
    ],
)
def test_what_options_choose(options, status, monkeypatch):
    monkeypatch.delenv("CACHEFW_TRANSPORTS")
    engine = hixl.Hixl()
    assert engine.initialize("127.0.0.1:0", options) == status
    engine.finalize()


def test_what_is_passed_over_is_told(caplog):
    engine = hixl.Hixl()
    resources = '{"comm_resource_config.qos": 3, "comm_resource_config.protocol_des": []}'
    assert engine.initialize("127.0.0.1:0", {"BufferPool": "4:8", "GlobalResourceConfig": resources}) == hixl.SUCCESS
    engine.finalize()
    assert "without effect here: BufferPool, comm_resource_config.qos" in caplog.text
    assert (
        "no field 'comm_resource_config.protocol_des' (did you mean comm_resource_config.protocol_desc" in caplog.text
    )


def test_the_environment_has_the_say_over_protocols(monkeypatch):
    monkeypatch.setenv("CACHEFW_TRANSPORTS", "host")
    engine = hixl.Hixl()
    options = {"GlobalResourceConfig": '{"comm_resource_config.protocol_desc": "roce:device"}'}
    assert engine.initialize("127.0.0.1:0", options) == hixl.SUCCESS
    engine.finalize()


@contextlib.contextmanager
def engine(address="127.0.0.1:0", options=None):
    made = hixl.Hixl()
    assert made.initialize(address, options or {}) == hixl.SUCCESS
    try:
        yield made
    finally:
        made.finalize()


def register(one, array, kind=hixl.MemType.MEM_HOST):
    status, handle = one.register_mem(hixl.MemDesc(array.ctypes.data, array.nbytes), kind)
    assert status == hixl.SUCCESS
    assert handle
    return handle


@pytest.fixture
def ends(leaves_nothing):
    """A client, a server in this process, and the server's address."""
    address = f"127.0.0.1:{free_port()}"
    with engine() as client, engine(address) as server:
        yield client, server, address


def test_initialising_again_changes_nothing_and_after_finalize_it_starts_anew(leaves_nothing):
    one = hixl.Hixl()
    assert one.initialize("127.0.0.1:0") == hixl.SUCCESS
    array = np.zeros(64, np.uint8)
    handle = register(one, array)
    assert one.initialize("127.0.0.1:1", {"nonsense": "1"}) == hixl.SUCCESS
    assert one.register_mem(hixl.MemDesc(array.ctypes.data, 64), hixl.MEM_HOST) == (hixl.SUCCESS, handle)
    one.finalize()
    assert one.initialize("127.0.0.1:0") == hixl.SUCCESS
    one.finalize()


def test_a_taken_port_fails(ends):
    _, _, address = ends
    assert hixl.Hixl().initialize(address) == hixl.FAILED


def test_registration(ends):
    one, _, _ = ends
    array = np.zeros(4096, np.uint8)
    at = array.ctypes.data
    handle = register(one, array)
    assert register(one, array) == handle
    for addr, length in ((0, 16), (at + 1, 16), (at, 0), (16, 16), (2**64 - 1, 16)):
        assert one.register_mem(hixl.MemDesc(addr, length), hixl.MEM_HOST) == (hixl.PARAM_INVALID, 0)
    assert one.deregister_mem(0) == hixl.PARAM_INVALID
    assert one.deregister_mem(handle + 100) == hixl.SUCCESS
    assert one.deregister_mem(handle) == hixl.SUCCESS
    assert one.deregister_mem(handle) == hixl.SUCCESS
    # On a machine without a device, what a program calls so is ordinary memory.
    assert one.deregister_mem(register(one, array, hixl.MEM_DEVICE)) == hixl.SUCCESS


def test_connecting(ends):
    client, server, address = ends
    assert client.disconnect(address) == hixl.NOT_CONNECTED
    for remote in ("127.0.0.1", "x:y", "127.0.0.1:0", ""):
        assert client.connect(remote) == hixl.PARAM_INVALID
    assert client.connect(address, 0) == hixl.PARAM_INVALID
    assert client.connect(address, -1) == hixl.PARAM_INVALID
    assert server.connect(address) == hixl.PARAM_INVALID
    assert client.connect(NOBODY) == hixl.FAILED
    assert client.connect(address) == hixl.SUCCESS
    assert client.connect(address) == hixl.ALREADY_CONNECTED
    assert client.disconnect(address) == hixl.SUCCESS
    assert client.disconnect(address) == hixl.NOT_CONNECTED
    assert client.connect(address) == hixl.SUCCESS


def test_a_connection_that_nobody_answers_ends_in_time(ends):
    client, _, _ = ends
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        assert client.connect(f"127.0.0.1:{port}", timeout_in_millis=200) == hixl.TIMEOUT


def test_one_direction_at_a_time(leaves_nothing):
    first, second = (f"127.0.0.1:{free_port()}" for _ in range(2))
    one, two = np.zeros(64, np.uint8), np.arange(64, dtype=np.uint8)
    with engine(first) as left, engine(second) as right:
        register(left, one)
        register(right, two)
        there = [hixl.TransferOpDesc(one.ctypes.data, two.ctypes.data, 64)]
        back = [hixl.TransferOpDesc(two.ctypes.data, one.ctypes.data, 64)]
        assert left.connect(second) == hixl.SUCCESS
        assert right.transfer_sync(first, hixl.WRITE, back) == hixl.NOT_CONNECTED
        assert right.connect(first) == hixl.SUCCESS
        assert left.disconnect(second) == hixl.SUCCESS
        assert left.transfer_sync(second, hixl.READ, there) == hixl.NOT_CONNECTED
        # What one side undoes is not undone for the other.
        assert right.transfer_sync(first, hixl.WRITE, back) == hixl.SUCCESS
        assert (one == two).all()
        assert right.connect(first) == hixl.ALREADY_CONNECTED


def wait_for(question, answer):
    end = time.monotonic() + 30
    while (got := question()) != answer:
        assert time.monotonic() < end, got
        time.sleep(0.005)


def test_connecting_without_waiting(ends):
    client, _, address = ends
    assert client.get_async_connect_status(address) == (hixl.SUCCESS, hixl.NOT_CONNECT)
    assert client.get_all_async_connect_status() == (hixl.SUCCESS, {})
    assert client.connect_async(address) == hixl.SUCCESS
    wait_for(lambda: client.get_async_connect_status(address), (hixl.SUCCESS, hixl.CONNECTED))
    assert client.connect_async(NOBODY) == hixl.SUCCESS
    wait_for(lambda: client.get_async_connect_status(NOBODY), (hixl.SUCCESS, hixl.CONNECT_FAILED))
    # In order: connected again when both are done.
    assert [client.disconnect_async(address), client.connect_async(address)] == [hixl.SUCCESS] * 2
    wait_for(lambda: client.get_async_connect_status(address), (hixl.SUCCESS, hixl.CONNECTED))
    assert client.disconnect_async(address) == hixl.SUCCESS
    wait_for(
        client.get_all_async_connect_status,
        (hixl.SUCCESS, {address: hixl.NOT_CONNECT, NOBODY: hixl.CONNECT_FAILED}),
    )
    assert client.connect_async("127.0.0.1") == hixl.PARAM_INVALID


def test_the_queue_of_connects_is_bounded(leaves_nothing):
    options = {"GlobalResourceConfig": '{"connect_pool.thread_num": 1, "connect_pool.task_queue_capacity": 2}'}
    silent = socket.create_server(("127.0.0.1", 0))
    with contextlib.closing(silent), engine(options=options) as client:
        remote = f"127.0.0.1:{silent.getsockname()[1]}"
        assert client.connect_async(remote, 2000) == hixl.SUCCESS
        wait_for(lambda: client.get_async_connect_status(remote), (hixl.SUCCESS, hixl.CONNECTING))
        statuses = [client.connect_async(remote, 10) for _ in range(3)]
        assert statuses == [hixl.SUCCESS, hixl.SUCCESS, hixl.RESOURCE_EXHAUSTED]
        assert client.get_async_connect_status(remote) == (hixl.SUCCESS, hixl.CONNECT_PENDING)


def test_wrong_transfers_move_nothing(ends):
    client, server, address = ends
    one, two = np.zeros(4096, np.uint8), np.ones(4096, np.uint8)
    register(client, one)
    register(server, two)
    here, there = one.ctypes.data, two.ctypes.data
    good = [hixl.TransferOpDesc(here, there, 16)]
    assert client.transfer_sync(address, hixl.READ, good) == hixl.NOT_CONNECTED
    assert client.transfer_async(address, hixl.READ, good) == (hixl.NOT_CONNECTED, 0)
    assert client.send_notify(address, hixl.NotifyDesc("a", "b")) == hixl.NOT_CONNECTED
    assert client.connect(address) == hixl.SUCCESS
    for piece in (
        (0, there, 16),
        (here, 0, 16),
        (here + 4090, there, 16),
        (here, there + 4090, 16),
        (here, there, 2**63),
    ):
        descs = [*good, hixl.TransferOpDesc(*piece)]
        assert client.transfer_sync(address, hixl.READ, descs) == hixl.PARAM_INVALID
        assert client.transfer_async(address, hixl.WRITE, descs) == (hixl.PARAM_INVALID, 0)
    twice = [hixl.TransferOpDesc(here, there, 16), hixl.TransferOpDesc(here + 8, there + 64, 16)]
    assert client.transfer_sync(address, hixl.READ, twice) == hixl.PARAM_INVALID
    assert client.transfer_sync(address, hixl.READ, []) == hixl.PARAM_INVALID
    assert client.transfer_sync(address, hixl.READ, good, timeout_in_millis=0) == hixl.PARAM_INVALID
    assert not one.any()
    assert two.all()


def test_asynchronous_transfers_are_reported_once(ends):
    client, server, address = ends
    one, two = np.zeros(4096, np.uint8), np.arange(4096, dtype=np.uint8)
    register(client, one)
    register(server, two)
    assert client.connect(address) == hixl.SUCCESS
    args = hixl.TransferArgs()
    args.user_data = 77
    pieces = [hixl.TransferOpDesc(one.ctypes.data, two.ctypes.data, 4096)]
    status, first = client.transfer_async(address, hixl.READ, pieces, args)
    assert status == hixl.SUCCESS
    assert first
    wait_for(lambda: client.get_transfer_status(first)[1], hixl.TransferStatus.COMPLETED)
    assert (one == two).all()
    assert client.get_transfer_status(first)[1] is hixl.TransferStatus.FAILED
    assert client.get_transfer_status(0) == (hixl.FAILED, hixl.TransferStatus.FAILED)
    requests = [client.transfer_async(address, hixl.READ, pieces, args)[1] for _ in range(3)]
    seen = []
    while len(seen) < 3:
        status, results = client.get_all_transfer_status(hixl.GetTransferStatusArgs(1, True))
        assert status == hixl.SUCCESS
        assert len(results) <= 1
        seen += [(each.req, each.user_data, each.status) for each in results]
    assert seen == [(request, 77, hixl.TransferStatus.COMPLETED) for request in requests]
    assert client.get_all_transfer_status() == (hixl.SUCCESS, [])


def test_notifications(ends):
    client, server, address = ends
    assert client.connect(address) == hixl.SUCCESS
    for number in range(3):
        assert client.send_notify(address, hixl.NotifyDesc(f"n{number}", "ü" * 1024)) == hixl.SUCCESS
    assert client.send_notify(address, hixl.NotifyDesc("n", "m" * 1025)) == hixl.PARAM_INVALID
    assert client.send_notify(address, hixl.NotifyDesc("n" * 1025, "m")) == hixl.PARAM_INVALID
    status, notes = server.get_notifies()
    assert status == hixl.SUCCESS
    assert [(note.name, note.notify_msg) for note in notes] == [(f"n{number}", "ü" * 1024) for number in range(3)]
    assert server.get_notifies() == (hixl.SUCCESS, [])


def test_a_peer_that_uses_cachefw_itself(leaves_nothing):
    """Both ends need not be of one API."""
    address = f"127.0.0.1:{free_port()}"
    array = np.zeros(64, np.uint8)
    with engine(address) as server, Node(1, transports=["host"]) as node:
        register(server, array)
        mine = np.arange(64, dtype=np.uint8)
        node.cache_manager.register_memory(mine)
        link = node.link(address)
        link.write(mine.ctypes.data, array.ctypes.data, 64, notify=b"plain \xff")
        wait_for(lambda: [note.notify_msg for note in server.get_notifies()[1]], ["plain \ufffd"])
        assert (array == mine).all()


# ---------------------------------------------------------------------- two processes


@pytest.fixture
def peer():
    with running("hixl", f"127.0.0.1:{free_port()}") as peer:
        yield peer


@pytest.fixture
def local(peer):
    """A connected engine and its buffer."""
    with engine() as client:
        array = np.zeros(SIZE, np.uint8)
        register(client, array)
        assert client.connect(peer.address) == hixl.SUCCESS
        yield client, array


def pieces(array, peer, count, length):
    """Scattered: the last piece here is the first there."""
    return [
        hixl.TransferOpDesc(
            array.ctypes.data + index * 2 * length, peer.buffer + (count - 1 - index) * 2 * length, length
        )
        for index in range(count)
    ]


def test_many_pieces_are_read_from_another_process(peer, local):
    client, array = local
    count, length = 4096, 64
    assert client.transfer_sync(peer.address, hixl.READ, pieces(array, peer, count, length)) == hixl.SUCCESS
    rows = array[: count * 2 * length].reshape(count, 2, length)
    theirs = pattern(1, 0, SIZE)[: count * 2 * length].reshape(count, 2, length)
    assert (rows[:, 0] == theirs[::-1, 0]).all()
    assert not rows[:, 1].any()


def test_what_is_written_arrives_in_another_process(peer, local):
    client, array = local
    array[:] = pattern(9, 0, SIZE)
    assert (
        client.transfer_sync(
            peer.address, hixl.WRITE, [hixl.TransferOpDesc(array.ctypes.data + 4096, peer.buffer + 4096, 100_000)]
        )
        == hixl.SUCCESS
    )
    assert client.send_notify(peer.address, hixl.NotifyDesc("step", "1")) == hixl.SUCCESS
    assert peer.tell("notifies") == {"notes": [["step", "1"]]}
    assert peer.holds(9, 4096, 100_000)
    assert peer.holds(1, 0, 4096)
    assert peer.holds(1, 104_096, SIZE - 104_096)


def test_memory_that_the_peer_gave_back_is_refused(peer, local):
    client, array = local
    piece = [hixl.TransferOpDesc(array.ctypes.data, peer.buffer, 16)]
    assert client.transfer_sync(peer.address, hixl.READ, piece) == hixl.SUCCESS
    assert peer.call("deregister_mem", 1) == hixl.SUCCESS
    assert client.transfer_sync(peer.address, hixl.READ, piece) == hixl.PARAM_INVALID


def test_a_dead_peer_fails_and_one_started_anew_needs_a_new_connection(peer, local):
    client, array = local
    piece = [hixl.TransferOpDesc(array.ctypes.data, peer.buffer, 16)]
    assert client.transfer_sync(peer.address, hixl.READ, piece) == hixl.SUCCESS
    peer.kill()
    assert client.transfer_sync(peer.address, hixl.READ, piece) in (hixl.NOT_CONNECTED, hixl.FAILED)
    # Until the end of the connection is noticed, the transport says what it meets.
    wait_for(lambda: client.transfer_sync(peer.address, hixl.READ, piece), hixl.NOT_CONNECTED)
    assert client.send_notify(peer.address, hixl.NotifyDesc("a", "b")) == hixl.NOT_CONNECTED
    with running("hixl", peer.address, seed=5) as anew:
        piece = [hixl.TransferOpDesc(array.ctypes.data, anew.buffer, 4096)]
        # The old connection never reads the new process's memory.
        assert client.transfer_sync(peer.address, hixl.READ, piece) == hixl.NOT_CONNECTED
        assert client.connect(peer.address) == hixl.SUCCESS
        assert client.transfer_sync(peer.address, hixl.READ, piece) == hixl.SUCCESS
        assert (array[:4096] == pattern(5, 0, 4096)).all()


def test_auto_connect_needs_no_connect(peer):
    with engine(options={"AutoConnect": "1"}) as client:
        array = np.zeros(4096, np.uint8)
        register(client, array)
        piece = [hixl.TransferOpDesc(array.ctypes.data, peer.buffer, 4096)]
        assert client.transfer_sync(peer.address, hixl.READ, piece) == hixl.SUCCESS
        assert (array == pattern(1, 0, 4096)).all()
        assert client.connect(peer.address) == hixl.ALREADY_CONNECTED
        assert client.transfer_sync(NOBODY, hixl.READ, piece) == hixl.FAILED
