"""`cachefw.compat.mooncake`: signatures and codes as Mooncake 0.3.13 gives them, and transfers between processes."""

from __future__ import annotations

import gc
import inspect
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from compat_kit import SECONDS, free_port, pattern, running

from cachefw.compat.mooncake import values
from cachefw.compat.mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

SIZE = 2**20
NOBODY = "127.0.0.1:1"
ONE = "(self, target_hostname, buffer, peer_buffer_address, length, transport_hint='')"
MANY = "(self, target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint='')"
SIGNATURES = {
    "initialize": "(self, local_hostname, metadata_server, protocol, device_name, /)",
    "initialize_ext": "(self, local_hostname, metadata_server, protocol, device_name, metadata_type, /)",
    "get_rpc_port": "(self)",
    "allocate_managed_buffer": "(self, length, /)",
    "free_managed_buffer": "(self, buffer_addr, length, /)",
    "transfer_sync_write": ONE,
    "transfer_sync_read": ONE,
    "transfer_submit_write": ONE,
    "batch_transfer_sync_write": MANY,
    "batch_transfer_sync_read": MANY,
    "batch_transfer_async_write": MANY,
    "batch_transfer_async_read": MANY,
    "transfer_sync": ONE.replace("transport_hint=''", "opcode, notify=None, transport_hint=''"),
    "batch_transfer_sync": MANY.replace("transport_hint=''", "opcode, notify=None, transport_hint=''"),
    "batch_transfer_async": MANY.replace("transport_hint=''", "opcode, transport_hint=''"),
    "get_batch_transfer_status": "(self, batch_ids, /)",
    "transfer_check_status": "(self, batch_id, /)",
    "write_bytes_to_buffer": "(self, dest_address, src_ptr, length, /)",
    "read_bytes_from_buffer": "(self, source_address, length, /)",
    "register_memory": "(self, buffer_addr, capacity, location='*')",
    "unregister_memory": "(self, buffer_addr, /)",
    "batch_register_memory": "(self, buffer_addresses, capacities, location='*')",
    "batch_unregister_memory": "(self, buffer_addresses, /)",
    "get_local_topology": "(self, device_name=None)",
    "get_first_buffer_address": "(self, segment_name, /)",
    "get_notifies": "(self)",
    "send_probe": "(self, peer_server_name, /)",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    signature = inspect.signature(getattr(TransferEngine, name))
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    assert text == SIGNATURES[name]


def test_enum_and_notification():
    assert [(each.name, int(each), str(each)) for each in TransferOpcode] == [
        ("Read", 0, "TransferOpcode.Read"),
        ("Write", 1, "TransferOpcode.Write"),
    ]
    assert TransferOpcode.Read != 0
    assert TransferEngine.TransferOpcode is TransferOpcode
    note = TransferNotify()
    assert (note.name, note.msg) == ("", "")
    note.name = "n"
    assert (TransferNotify("n", "m").name, note.name) == ("n", "n")
    with pytest.raises(TypeError):
        TransferNotify(b"n", "m")


@pytest.fixture(autouse=True)
def _as_mooncake_says(monkeypatch):
    for name in ("CACHEFW_TRANSPORTS", "MC_LEGACY_RPC_PORT_BINDING", "MC_TRANSFER_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def make_engine(leaves_nothing):
    made = []

    def make(host="127.0.0.1", protocol="tcp"):
        engine = TransferEngine()
        assert engine.initialize(host, "P2PHANDSHAKE", protocol, "") == 0
        made.append(engine)
        return engine, f"127.0.0.1:{engine.get_rpc_port()}"

    yield make
    # Mooncake has no call that ends an engine, and pytest keeps the last reference, which would.
    for engine in made:
        engine._engine.close()
        engine._buffers.clear()


@pytest.fixture
def pair(make_engine):
    """Two engines of this process with a buffer each: (engine, session, array)."""
    ends = []
    for seed in (1, 2):
        engine, session = make_engine()
        array = pattern(seed, 0, SIZE)
        assert engine.register_memory(array.ctypes.data, SIZE) == 0
        ends.append((engine, session, array))
    return ends


@pytest.mark.parametrize(
    "arguments",
    [
        ("", "P2PHANDSHAKE", "tcp", ""),
        ("127.0.0.1:x", "P2PHANDSHAKE", "tcp", ""),
        ("nowhere.invalid", "P2PHANDSHAKE", "tcp", ""),
        ("127.0.0.1", "etcd://127.0.0.1:2379", "tcp", ""),
        ("127.0.0.1", "p2phandshake", "tcp", ""),
        ("127.0.0.1", "P2PHANDSHAKE", "tpc", ""),
        ("127.0.0.1", "P2PHANDSHAKE", "nvlink", ""),
    ],
)
def test_what_initialize_refuses(arguments, caplog):
    engine = TransferEngine()
    assert engine.initialize(*arguments) == -1
    assert "initialize returns -1: " in caplog.text
    assert engine.get_rpc_port() == -1


def test_protocols_name_transports_and_are_never_replaced_in_silence(caplog, monkeypatch):
    engine = TransferEngine()
    engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tpc", "")
    assert "'tpc' (did you mean tcp?)" in caplog.text
    monkeypatch.setenv("CACHEFW_TRANSPORTS", "carrier-pigeon")
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
    assert "carrier-pigeon" in caplog.text


def test_where_it_listens(make_engine, monkeypatch):
    for host in ("localhost", "127.0.0.1:12345", "[::1]:12345", "::1"):
        engine, _ = make_engine(host)
        assert engine.get_rpc_port() not in (0, 12345)
    port = free_port()
    monkeypatch.setenv("MC_LEGACY_RPC_PORT_BINDING", "1")
    engine, _ = make_engine(f"127.0.0.1:{port}")
    assert engine.get_rpc_port() == port


def test_the_last_reference_ends_an_engine(leaves_nothing):
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert engine.allocate_managed_buffer(4096)
    del engine
    gc.collect()


def test_initialising_again_gives_everything_back(pair, caplog):
    engine, before, array = pair[0]
    assert engine.initialize_ext("127.0.0.1", "P2PHANDSHAKE", "tcp", "", "p2p") == 0
    assert "initialised again" in caplog.text
    assert f"127.0.0.1:{engine.get_rpc_port()}" != before
    assert engine.register_memory(array.ctypes.data, SIZE) == 0


def test_before_initialize_every_call_fails():
    engine = TransferEngine()
    assert engine.register_memory(4096, 1) == -1
    assert engine.unregister_memory(4096) == -1
    assert engine.allocate_managed_buffer(1) == 0
    assert engine.free_managed_buffer(4096, 1) == -1
    assert engine.transfer_sync_read(NOBODY, 1, 1, 1) == -1
    assert engine.batch_transfer_async_read(NOBODY, [1], [1], [1]) == 0
    assert engine.get_batch_transfer_status([1]) == -1
    assert engine.transfer_check_status(1) == -1
    assert engine.send_probe(NOBODY) == -102
    assert engine.get_first_buffer_address(NOBODY) == 0
    assert engine.get_notifies() == []


@pytest.mark.parametrize(
    "call",
    [
        lambda engine: engine.register_memory(None, 1),
        lambda engine: engine.register_memory(-1, 1),
        lambda engine: engine.register_memory("1", 1),
        lambda engine: engine.register_memory(4096, 1, None),
        lambda engine: engine.batch_register_memory([1.5], [1]),
        lambda engine: engine.transfer_sync_read("x", 1, 1.5, 1),
        lambda engine: engine.transfer_sync_read(b"x", 1, 1, 1),
        lambda engine: engine.batch_transfer_sync_read("x", None, [1], [1]),
        lambda engine: engine.transfer_sync("x", 1, 1, 1, 0),
        lambda engine: engine.transfer_sync("x", 1, 1, 1, TransferOpcode.Read, "note"),
        lambda engine: engine.initialize("127.0.0.1", None, "tcp", ""),
        lambda engine: engine.register_memory(4096, 1, locaton="*"),
    ],
)
def test_wrong_types_are_type_errors(make_engine, call):
    engine, _ = make_engine()
    with pytest.raises(TypeError):
        call(engine)


def test_registration_codes(make_engine):
    engine, _ = make_engine()
    array = np.zeros(8192, np.uint8)
    at = array.ctypes.data
    assert engine.register_memory(at, 4096, "cpu:0") == 0
    assert engine.register_memory(at, 4096) == -7
    assert engine.register_memory(at + 100, 4096) == -7
    assert engine.register_memory(at + 4096, 0) == -1
    assert engine.register_memory(16, 4096) == -1
    assert engine.unregister_memory(at) == 0
    assert engine.unregister_memory(at) == -3
    assert engine.batch_register_memory([at, at + 4096], [4096, 4096]) == 0
    assert engine.batch_unregister_memory([at, at + 4096]) == 0
    assert engine.batch_unregister_memory([at, at + 4096]) == -3
    assert engine.batch_register_memory([at, at + 4096], [4096]) == -1
    assert engine.batch_register_memory([], []) == 0
    # All or nothing: the first is given back when the second is refused.
    assert engine.batch_register_memory([at, at + 100], [4096, 4096]) == -7
    assert engine.unregister_memory(at) == -3
    # On a machine without a device, what is called so is ordinary memory.
    assert engine.register_memory(at, 4096, "npu:0") == 0


def test_managed_buffers(pair):
    engine, _, _ = pair[0]
    address = engine.allocate_managed_buffer(5000)
    assert address
    assert engine.write_bytes_to_buffer(address, "héllo", 6) == 0
    assert engine.write_bytes_to_buffer(address + 4995, b"12345", 5) == 0
    assert engine.read_bytes_from_buffer(address, 6) == "héllo".encode()
    assert engine.write_bytes_to_buffer(address + 4996, b"12345", 5) == -1
    assert engine.write_bytes_to_buffer(address, b"12345", 6) == -1
    assert engine.write_bytes_to_buffer(16, b"12345", 5) == -1
    with pytest.raises(ValueError, match="not in registered host memory"):
        engine.read_bytes_from_buffer(address, 5001)
    other, _, _ = pair[1]
    mine = other.allocate_managed_buffer(5000)
    assert other.transfer_sync_read(f"127.0.0.1:{engine.get_rpc_port()}", mine, address, 5000) == 0
    assert other.read_bytes_from_buffer(mine, 6) == "héllo".encode()
    assert engine.free_managed_buffer(address, 4999) == -1
    assert engine.free_managed_buffer(address + 1, 5000) == -1
    assert engine.free_managed_buffer(address, 5000) == 0
    assert engine.free_managed_buffer(address, 5000) == -1
    assert other.transfer_sync_read(f"127.0.0.1:{engine.get_rpc_port()}", mine, address, 5000) == -1
    assert engine.allocate_managed_buffer(2**62) == 0
    assert engine.allocate_managed_buffer(0)


def test_transfers(pair):
    (engine, own, one), (_, session, two) = pair
    here, there = one.ctypes.data, two.ctypes.data
    assert engine.transfer_sync_read(session, here, there, 4096) == 0
    assert (one[:4096] == pattern(2, 0, 4096)).all()
    assert engine.transfer_sync_write(session, here + 8192, there, 4096) == 0
    assert (two[:4096] == pattern(1, 8192, 4096)).all()
    assert engine.transfer_sync(session, here, there + 8192, 100, TransferOpcode.Read) == 0
    assert (one[:100] == two[8192:8292]).all()
    assert engine.batch_transfer_sync(session, [here], [there + 64], [32], TransferOpcode.Write) == 0
    assert (two[64:96] == one[:32]).all()
    # Itself: any session may turn out to be one's own.
    assert engine.transfer_sync_read(own, here, here + 65536, 4096) == 0
    assert (one[:4096] == pattern(1, 65536, 4096)).all()
    assert engine.batch_transfer_sync_write(own, [here, here + 64], [here + 4096, here + 8192], [64, 0]) == 0
    assert (one[4096:4160] == one[:64]).all()
    assert engine.transfer_sync_read(own, here, here + SIZE, 1) == -1


def test_pieces_of_no_bytes_are_passed_over(pair):
    (engine, _, one), (_, session, two) = pair
    here, there = one.ctypes.data, two.ctypes.data
    assert engine.transfer_sync_read(session, here, there, 0) == 0
    assert engine.batch_transfer_sync_read(session, [], [], []) == 0
    assert engine.batch_transfer_sync_read(session, [here, 0, here + 64], [there, 0, there + 64], [64, 0, 64]) == 0
    assert (one[:128] == pattern(2, 0, 128)).all()
    assert engine.batch_transfer_sync_read(session, [here, 0], [there, 0], [0, 64]) == -1


def test_wrong_transfers_move_nothing(pair, caplog):
    (engine, _, one), (_, session, two) = pair
    here, there = one.ctypes.data, two.ctypes.data
    for local, remote, length in (
        (here + SIZE, there, 1),
        (here, there + SIZE, 1),
        (here, 0, 1),
        (0, there, 1),
        (here, there, SIZE + 1),
        (here, there, 2**63),
    ):
        assert engine.transfer_sync_write(session, local, remote, length) == -1
        assert engine.batch_transfer_sync_read(session, [here, local], [there, remote], [16, length]) == -1
        assert engine.batch_transfer_async_write(session, [local], [remote], [length]) == 0
        assert engine.transfer_submit_write(session, local, remote, length) == 0
    assert engine.batch_transfer_sync_read(session, [here], [there, there], [1]) == -1
    assert engine.batch_transfer_sync_read(session, [here, here + 8], [there, there + 64], [16, 16]) == -1
    assert engine.transfer_sync_read(session, here, there, 16, "rdma") == -1
    assert "piece 0: remote" in caplog.text
    assert (one == pattern(1, 0, SIZE)).all()
    assert (two == pattern(2, 0, SIZE)).all()


def test_asynchronous_batches(pair):
    (engine, _, one), (_, session, two) = pair
    here, there = one.ctypes.data, two.ctypes.data
    ids = [engine.batch_transfer_async_read(session, [here + 64 * i], [there + 64 * i], [64]) for i in range(8)]
    assert all(ids)
    assert len(set(ids)) == 8
    assert engine.get_batch_transfer_status(ids) == 0
    assert (one[:512] == two[:512]).all()
    assert engine.get_batch_transfer_status(ids) == -1
    assert engine.get_batch_transfer_status([]) == 0
    number = engine.batch_transfer_async(session, [here + 4096], [there], [512], TransferOpcode.Write)
    assert engine.get_batch_transfer_status([number]) == 0
    assert (two[:512] == pattern(1, 4096, 512)).all()
    number = engine.batch_transfer_async_write(session, [here + 8192], [there], [512])
    assert engine.get_batch_transfer_status([number]) == 0
    number = engine.transfer_submit_write(session, here + 16384, there, 512)
    end = time.monotonic() + SECONDS
    while (code := engine.transfer_check_status(number)) == 0:
        assert time.monotonic() < end
    assert code == 1
    assert (two[:512] == pattern(1, 16384, 512)).all()
    assert engine.transfer_check_status(number) == -1


def test_notifications_come_after_the_bytes(pair):
    (engine, _, one), (other, session, two) = pair
    here, there = one.ctypes.data, two.ctypes.data
    note = TransferNotify("layer", "7")
    assert engine.transfer_sync(session, here, there, 64, TransferOpcode.Write, note) == 0
    assert (
        engine.batch_transfer_sync(session, [here], [there], [0], TransferOpcode.Write, TransferNotify("a", "b")) == 0
    )
    assert engine.send_probe(session) == 0
    assert [(note.name, note.msg) for note in other.get_notifies()] == [("layer", "7"), ("a", "b")]
    assert other.get_notifies() == []


def test_looking_at_peers(pair):
    (engine, _, _), (other, session, two) = pair
    assert engine.get_first_buffer_address(session) == two.ctypes.data
    assert other.unregister_memory(two.ctypes.data) == 0
    assert engine.get_first_buffer_address(session) == 0
    assert engine.get_first_buffer_address(NOBODY) == 0
    assert engine.send_probe(session) == 0
    assert engine.send_probe(NOBODY) == -102
    assert engine.get_local_topology() == '{"transports":["host"]}'


@pytest.mark.parametrize("name", values.ABSENT)
def test_calls_without_a_meaning_here_say_so(name):
    engine = TransferEngine()
    assert not hasattr(engine, name)
    with pytest.raises(AttributeError, match=f"TransferEngine.{name}: "):
        getattr(engine, name)


def test_a_silent_peer_costs_the_timeout_of_linking(make_engine, monkeypatch):
    monkeypatch.setenv("CACHEFW_LINK_TIMEOUT", "0.3")
    engine, _ = make_engine()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert engine.transfer_sync_read(f"127.0.0.1:{silent.getsockname()[1]}", 4096, 4096, 1) == -1


def test_the_variable_for_timeouts(monkeypatch):
    for value, seconds in (("60", 60.0), ("1", 5.0), ("soon", 30.0)):
        monkeypatch.setenv("MC_TRANSFER_TIMEOUT", value)
        assert TransferEngine()._timeout == seconds


def test_a_program_that_just_ends_is_quiet():
    code = """
        import ctypes
        from cachefw.compat.mooncake.engine import TransferEngine
        engine = TransferEngine()
        engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "")
        buffer = ctypes.create_string_buffer(4096)
        assert engine.register_memory(ctypes.addressof(buffer), 4096) == 0
        """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", inspect.cleandoc(code)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---------------------------------------------------------------------- two processes


@pytest.fixture
def peer():
    with running("mooncake", "127.0.0.1") as peer:
        yield peer


@pytest.fixture
def local(peer, make_engine):
    engine, session = make_engine()
    array = np.zeros(SIZE, np.uint8)
    assert engine.register_memory(array.ctypes.data, SIZE) == 0
    return engine, session, array


def test_a_batch_beyond_what_mooncake_takes(peer, local):
    """Mooncake refuses more than 2048 pieces in a call."""
    engine, _, array = local
    count, length = 8192, 64
    here = [array.ctypes.data + 2 * length * index for index in range(count)]
    there = [peer.buffer + 2 * length * index for index in reversed(range(count))]
    assert engine.batch_transfer_sync_read(peer.address, here, there, [length] * count) == 0
    rows = array.reshape(count, 2, length)
    assert (rows[:, 0] == pattern(1, 0, SIZE).reshape(count, 2, length)[::-1, 0]).all()
    assert not rows[:, 1].any()
    array[:] = pattern(9, 0, SIZE)
    assert engine.batch_transfer_sync_write(peer.address, here, there[::-1], [length] * count) == 0
    assert peer.holds(9, 0, length)
    assert peer.holds(1, length, length)
    assert peer.holds(9, 2 * length * (count - 1), length)


def test_both_directions_over_one_link(peer, local):
    engine, session, array = local
    assert engine.transfer_sync_read(peer.address, array.ctypes.data, peer.buffer, 4096) == 0
    assert peer.call("transfer_sync_write", session, peer.buffer + 8192, array.ctypes.data, 4096) == 0
    assert (array[:4096] == pattern(1, 8192, 4096)).all()
    assert (
        engine.transfer_sync(
            peer.address, array.ctypes.data, peer.buffer, 64, TransferOpcode.Write, TransferNotify("done", "1")
        )
        == 0
    )
    assert engine.send_probe(peer.address) == 0
    assert peer.tell("notifies") == {"notes": [["done", "1"]]}


def test_first_use_by_many_threads_makes_one_link(peer, local):
    """Serving engines write from a pool of threads, and both sides begin at once."""
    engine, session, array = local
    array[:] = pattern(9, 0, SIZE)
    part = SIZE // 16
    with ThreadPoolExecutor(8) as pool:
        answers = [
            pool.submit(
                engine.batch_transfer_sync_write,
                peer.address,
                [array.ctypes.data + part * index],
                [peer.buffer + part * index],
                [part],
            )
            for index in range(16)
        ]
        assert peer.call("send_probe", session) == 0
        assert [answer.result(SECONDS) for answer in answers] == [0] * 16
    assert peer.holds(9, 0, SIZE)
    assert len(engine._engine.node.links) == 1


def test_a_frozen_peer_costs_a_deadline_and_no_more(peer, local, monkeypatch):
    monkeypatch.setenv("CACHEFW_LINK_TIMEOUT", "0.5")
    engine, _, array = local
    assert engine.transfer_sync_read(peer.address, array.ctypes.data, peer.buffer, 4096) == 0
    peer.freeze()
    try:
        assert engine.send_probe(peer.address) == -102
        # One-sided reads of this transport do not need the peer's processor.
        assert engine.transfer_sync_read(peer.address, array.ctypes.data, peer.buffer, 4096) == 0
        assert engine.unregister_memory(array.ctypes.data) == -1
    finally:
        peer.thaw()
    assert engine.send_probe(peer.address) == 0
    assert engine.unregister_memory(array.ctypes.data) == 0


def test_memory_that_the_peer_gave_back_is_refused(peer, local):
    engine, _, array = local
    assert engine.transfer_sync_read(peer.address, array.ctypes.data, peer.buffer, 16) == 0
    assert peer.call("unregister_memory", peer.buffer) == 0
    assert engine.transfer_sync_read(peer.address, array.ctypes.data, peer.buffer, 16) == -1


def test_a_dead_peer_fails_and_one_on_its_address_is_linked_anew(make_engine, monkeypatch):
    monkeypatch.setenv("MC_LEGACY_RPC_PORT_BINDING", "1")
    port = free_port()
    engine, _ = make_engine("127.0.0.1")
    array = np.zeros(SIZE, np.uint8)
    assert engine.register_memory(array.ctypes.data, SIZE) == 0
    with running("mooncake", f"127.0.0.1:{port}") as peer:
        assert engine.transfer_sync_read(peer.address, array.ctypes.data, peer.buffer, 4096) == 0
        running_batch = engine.batch_transfer_async_read(peer.address, [array.ctypes.data], [peer.buffer], [SIZE])
        peer.kill()
        assert engine.get_batch_transfer_status([running_batch]) in (0, -1)
        assert engine.transfer_sync_read(peer.address, array.ctypes.data, peer.buffer, 4096) == -1
        assert engine.send_probe(peer.address) == -102
    with running("mooncake", f"127.0.0.1:{port}", seed=5) as anew:
        assert anew.address == f"127.0.0.1:{port}"
        assert engine.transfer_sync_read(anew.address, array.ctypes.data, anew.buffer, 4096) == 0
        assert (array[:4096] == pattern(5, 0, 4096)).all()
