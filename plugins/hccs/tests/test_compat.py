"""The modules `hixl` and `mooncake.engine` on device memory, over the simulator."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from device_memory import DeviceMemory

from cachefw import CacheManager, MemoryKind
from cachefw.compat import hixl
from cachefw.compat.mooncake.engine import TransferEngine

SAMPLE = Path(__file__).parents[3] / "tests" / "samples" / "hixl_d2rd.py"
PAGE = 2 * 2**20
SECONDS = 60


@pytest.fixture
def memories():
    """Two pieces of device memory, with different bytes."""
    with CacheManager(["hccs"]) as manager:
        made = [DeviceMemory(manager.allocate(PAGE, MemoryKind.DEVICE)) for _ in range(2)]
        for number, memory in enumerate(made):
            memory.write(bytes([number + 1]) * PAGE)
        yield made
        for memory in made:
            memory.close()


def test_hixl_moves_device_memory(memories):
    one, two = memories
    options = {"GlobalResourceConfig": '{"comm_resource_config.protocol_desc": ["hccs:device"]}', "AutoConnect": "1"}
    client, server = hixl.Hixl(), hixl.Hixl()
    address = f"127.0.0.1:{free_port()}"
    try:
        assert client.initialize("127.0.0.1:0", options) == hixl.SUCCESS
        assert server.initialize(address, options) == hixl.SUCCESS
        for engine, memory in ((client, one), (server, two)):
            status, _ = engine.register_mem(hixl.MemDesc(memory.region.address, PAGE), hixl.MEM_DEVICE)
            assert status == hixl.SUCCESS
        pieces = [
            hixl.TransferOpDesc(one.region.address + at, two.region.address + at, 512) for at in range(0, 65536, 1024)
        ]
        assert client.transfer_sync(address, hixl.READ, pieces) == hixl.SUCCESS
        assert one.read(0, 65536) == (bytes([2]) * 512 + bytes([1]) * 512) * 64
        host = ctypes.create_string_buffer(4096)
        desc = hixl.MemDesc(ctypes.addressof(host), 4096)
        assert client.register_mem(desc, hixl.MEM_HOST) == (hixl.PARAM_INVALID, 0)
        # Where nobody chooses, an engine uses what moves device memory.
        assert hixl_default() == ("hccs", "host")
    finally:
        client.finalize()
        server.finalize()


def hixl_default():
    engine = hixl.Hixl()
    assert engine.initialize("127.0.0.1:0") == hixl.SUCCESS
    try:
        return engine._state.engine.manager.transports
    finally:
        engine.finalize()


def test_mooncake_moves_device_memory(memories):
    one, two = memories
    engines = [TransferEngine(), TransferEngine()]
    try:
        for engine, memory in zip(engines, memories, strict=True):
            assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "ascend", "0") == 0
            # Where nothing is said of the location, the runtime knows.
            assert engine.register_memory(memory.region.address, PAGE) == 0
        managed = engines[0].allocate_managed_buffer(5000)
        assert managed
        assert managed % PAGE == 0
        session = f"127.0.0.1:{engines[1].get_rpc_port()}"
        assert engines[0].transfer_sync_write(session, one.region.address + 4096, two.region.address, 8192) == 0
        assert two.read(0, 16384) == bytes([1]) * 8192 + bytes([2]) * 8192
        # Device memory that peers reach is registered before linking.
        assert engines[0].allocate_managed_buffer(5000) == 0
        assert engines[0].free_managed_buffer(managed, 5000) == 0
    finally:
        for engine in engines:
            engine._engine.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_sample_of_hixl_runs_unchanged():
    port = free_port()
    command = [sys.executable, "-m", "cachefw.compat", "run", "--npu", SAMPLE, "--protocol", "hccs:device"]
    remote = ["--local-engine=127.0.0.1:0", f"--remote-engine=127.0.0.1:{port}"]
    environment = {**os.environ, "ACLSIM_MODE": "open", "ACLSIM_MACHINE": f"sample-{os.getpid()}"}
    server = subprocess.Popen(
        [*command, "--role=server", f"--local-engine=127.0.0.1:{port}"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        try:
            end = time.monotonic() + SECONDS
            # Seen without connecting: the sample takes one guest.
            while f":{port + 1000:04X} 00000000:0000 0A" not in Path("/proc/net/tcp").read_text():
                assert time.monotonic() < end
                time.sleep(0.02)
            client = subprocess.run(
                [*command, "--role=client", "--device=1", *remote],
                env=environment,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            assert (client.stdout, client.stderr, client.returncode) == ("client done on npu:1\n", "", 0)
            assert server.communicate(timeout=SECONDS)[0] == "server done on npu:0\n"
        except BaseException:
            server.kill()
            raise
    assert server.returncode == 0
