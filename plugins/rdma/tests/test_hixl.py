"""HIXL's provider against a library of our own with the same functions: life, memory, connecting, every status."""

from __future__ import annotations

import ctypes
import importlib.util
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from cachefw_rdma import envelope
from cachefw_rdma.hixl import VERIFIED, HixlProvider, handles, library
from cachefw_rdma.hixl import provider as provider_module
from cachefw_rdma.hixl._hixl import ffi, lib
from cachefw_rdma.provider import make_provider

from cachefw.errors import (
    BrokenError,
    BusyError,
    ClosedError,
    RequestError,
    TransportUnavailable,
    UnsupportedOperation,
)
from cachefw.memory import MemoryRegion
from cachefw.transport import Batch

_spec = importlib.util.spec_from_file_location("rdma_hixl_kit", Path(__file__).with_name("hixl_kit.py"))
assert _spec is not None
assert _spec.loader is not None
kit = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kit)
shim_path, shim, pair = kit.shim_path, kit.shim, kit.pair
Pair, fail, region_of, address_of = kit.Pair, kit.fail, kit.region_of, kit.address_of
build, opened, settings = kit.build, kit.opened, kit.settings
PORTS, NATIVE, READ, LONG = kit.PORTS, kit.NATIVE, kit.READ, kit.LONG


# ---- the binding --------------------------------------------------------------------------------------------------


def test_it_says_that_it_is_unverified() -> None:
    assert VERIFIED is HixlProvider.verified is False
    import cachefw_rdma.hixl

    readme = (NATIVE.parent / "README.md").read_text()
    assert "nverified on hardware" in (cachefw_rdma.hixl.__doc__ or "")
    assert "nverified on hardware" in readme


def test_the_transport_finds_it_and_its_settings() -> None:
    made = make_provider("hixl")
    assert isinstance(made, HixlProvider)
    assert made.name == "hixl"
    assert made.settings == tuple(provider_module.SETTINGS)
    with pytest.raises(UnsupportedOperation, match="copies nothing"):
        made.copy(Batch(*(np.zeros(0, np.uint64),) * 4))


def test_all_sixteen_functions_are_bound() -> None:
    assert len(library.symbols()) == 16
    assert all(callable(getattr(lib, f"cfw_{name}")) for name in library.symbols())
    assert len(library.REQUIRED) == 14


def test_without_a_library_every_function_says_closed() -> None:
    assert lib.cfw_HixlCSServerListen(ffi.NULL, 1) == lib.CFW_HIXL_CLOSED
    assert lib.cfw_HixlCSClientConnect(ffi.NULL, 1) == lib.CFW_HIXL_CLOSED


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("EndpointDesc", 160),
        ("CommMem", 24),
        ("HixlServerDesc", 128),
        ("HixlClientDesc", 128),
        ("HixlOneSideOpDesc", 24),
    ],
)
def test_layouts(name: str, size: int) -> None:
    assert ffi.sizeof(name) == size


def test_importing_the_package_loads_nothing_native() -> None:
    code = "import sys, cachefw_rdma.hixl; sys.exit('cachefw_rdma.hixl._hixl' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- finding the library ------------------------------------------------------------------------------------------


def test_the_variable_is_all_that_is_tried_when_it_is_set() -> None:
    assert list(library.candidates({"CACHEFW_HIXL": "/a/b.so"})) == [("CACHEFW_HIXL", "/a/b.so")]
    assert list(library.candidates({})) == [("the loader", "libcann_hixl.so")]
    assert list(library.candidates({"CACHEFW_HIXL": ""})) == [("the loader", "libcann_hixl.so")]


def test_a_missing_library_is_unavailable_with_the_loaders_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEFW_HIXL", str(tmp_path / "libcann_hixl.so"))
    reason = HixlProvider().probe()
    assert reason is not None
    assert "cannot open shared object file" in reason
    with pytest.raises(TransportUnavailable, match="CACHEFW_HIXL") as caught:
        HixlProvider().open(settings())
    assert caught.value.code == "hixl.unavailable"
    assert len(caught.value.facts["attempts"]) == 1


def test_a_file_that_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libcann_hixl.so").write_text("not an ELF file")
    monkeypatch.setenv("CACHEFW_HIXL", str(tmp_path / "libcann_hixl.so"))
    assert "CFW_HIXL_NOT_LOADED" in str(HixlProvider().probe())


def test_a_library_of_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "other.c"
    source.write_text("int other(void);\nint other(void) { return 1; }\n")
    monkeypatch.setenv("CACHEFW_HIXL", str(build(tmp_path / "other.so", source=source)))
    assert "not one function of HIXL" in str(HixlProvider().probe())


def test_a_library_that_lacks_a_needed_function_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEFW_HIXL", str(build(tmp_path / "old.so", "-DWITHOUT_LISTEN")))
    with pytest.raises(TransportUnavailable, match="it lacks HixlCSServerListen") as caught:
        HixlProvider().open(settings())
    assert "newer HIXL" in str(caught.value)
    assert lib.cfw_HixlCSServerListen(ffi.NULL, 1) == lib.CFW_HIXL_CLOSED


def test_a_library_without_the_synchronous_calls_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build(tmp_path / "lean.so", "-DWITHOUT_SYNC")
    monkeypatch.setenv("CACHEFW_HIXL", str(path))
    pair = Pair()
    try:
        assert pair.near.library is not None
        assert pair.near.library.missing == ("HixlCSClientBatchPutSync", "HixlCSClientBatchGetSync")
        transfer = pair.post(READ, (0, 0, 100))
        assert transfer.wait(LONG)
        assert transfer.error is None
        with pytest.raises(UnsupportedOperation) as caught:
            pair.channel._client.transfer_within(True, ffi.NULL, 1, 1.0)
        assert caught.value.status == lib.CFW_HIXL_MISSING
    finally:
        pair.close()


def test_probe_takes_nothing(shim: ctypes.CDLL) -> None:
    assert HixlProvider().probe() is None
    assert library._open is None


def test_two_providers_share_a_library_but_not_two_files(shim: ctypes.CDLL, tmp_path: Path, shim_path: Path) -> None:
    other = shutil.copy(shim_path, tmp_path / "other.so")
    with opened() as first, opened() as second:
        assert first.library is second.library
        with pytest.raises(BusyError, match="is open from"):
            library.hold({"CACHEFW_HIXL": str(other)})


# ---- settings and endpoints ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ip": None}, "ip has to be given"),
        ({"address": None}, "address has to be given"),
        ({"prot": 1}, "no setting prot; it has ip, port"),
        ({"port": 0}, "port must be a number from 1 to 65535, not 0"),
        ({"port": True}, "not True"),
        ({"port": "1"}, "port must be"),
        ({"tc": 5}, "multiple of 4"),
        ({"tc": 256}, "from 0 to 255"),
        ({"sl": 8}, "from 0 to 7"),
        ({"device": -1}, "device must be"),
        ({"address": "10.0.0"}, "address must be an IPv4"),
        ({"address": 5}, "address must be text"),
        ({"protocol": "ib"}, "protocol must be one of roce"),
        ({"placement": "moon"}, "placement must be one of device, host"),
    ],
)
def test_settings(shim: ctypes.CDLL, wrong: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        HixlProvider().open(settings(**wrong))
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("address", "kind", "data"),
    [
        ("192.168.1.2", 0, bytes([192, 168, 1, 2])),
        ("::1", 1, bytes(15) + b"\x01"),
        ("00112233445566778899aabbccddeeff", 3, bytes.fromhex("00112233445566778899aabbccddeeff")),
    ],
)
def test_endpoints(address: str, kind: int, data: bytes) -> None:
    made = handles.Endpoint(address, "ub_ctp", "host", 5).native()
    raw = bytes(ffi.buffer(made))
    assert int.from_bytes(raw[:4], sys.byteorder) == lib.COMM_PROTOCOL_UBC_CTP == 4
    assert int.from_bytes(raw[4:8], sys.byteorder) == kind
    assert raw[8 : 8 + len(data)] == data
    assert int.from_bytes(raw[44:48], sys.byteorder) == lib.ENDPOINT_LOC_TYPE_HOST == 1
    assert int.from_bytes(raw[48:52], sys.byteorder) == 5


@pytest.mark.parametrize(("seconds", "expected"), [(0, 1), (0.0001, 1), (1.5, 1500), (1e9, 2**32 - 1)])
def test_timeouts_are_milliseconds(seconds: float, expected: int) -> None:
    assert handles.milliseconds(seconds) == expected


# ---- life ---------------------------------------------------------------------------------------------------------


def test_open_and_close(shim: ctypes.CDLL) -> None:
    provider = HixlProvider()
    provider.close()
    provider.open(settings())
    with pytest.raises(BusyError, match="open already"):
        provider.open(settings())
    assert shim.shim_handles() == 1
    provider.close()
    provider.close()
    for use in (provider.card, lambda: provider.connect(b"", 1.0), lambda: provider.register(MemoryRegion(4096, 1))):
        with pytest.raises((ClosedError, BrokenError)):
            use()
    provider.open(settings())
    provider.close()


@pytest.mark.parametrize("function", ["HixlCSServerCreate", "HixlCSServerListen"])
def test_a_server_that_cannot_be_made_leaves_nothing(shim: ctypes.CDLL, function: str) -> None:
    fail(shim, function, lib.HIXL_FAILED)
    provider = HixlProvider()
    with pytest.raises(BrokenError, match=function) as caught:
        provider.open(settings())
    assert caught.value.status == 503900
    assert shim.shim_handles() == 0
    shim.shim_reset()
    provider.open(settings())
    provider.close()


def test_a_forgotten_handle_is_reported_and_not_destroyed(shim: ctypes.CDLL) -> None:
    library.hold()
    server = handles.Server(handles.Endpoint("10.0.0.1"), "127.0.0.1", next(PORTS))
    raw = server.raw
    forgotten = [server]
    del server
    with pytest.warns(ResourceWarning, match="HIXL server was never closed"):
        forgotten.clear()
    assert shim.shim_handles() == 1
    assert lib.cfw_HixlCSServerDestroy(raw) == 0
    library.unhold()


def test_handles_close_once_and_are_closed_after(shim: ctypes.CDLL) -> None:
    library.hold()
    with handles.Server(handles.Endpoint("10.0.0.1"), "127.0.0.1", next(PORTS)) as server:
        server.register("a", MemoryRegion(4096, 10))
        with pytest.raises(RequestError, match="called 'a' already"):
            server.register("a", MemoryRegion(8192, 10))
        server.unregister("never")
    server.close()
    with pytest.raises(ClosedError, match="HIXL server is closed"):
        server.listen()
    library.unhold()


class FakeMachine:
    """AscendCL with one device, which is the fifth of its host; or none, and why."""

    closed = 0

    def __init__(self, device: int = 0, obstacle: str = "") -> None:
        self.obstacle, self.entered = obstacle, 0
        self.device = None if obstacle else self

    @contextmanager
    def bound(self) -> Iterator[None]:
        self.entered += 1
        yield

    def physical_index(self) -> int:
        return 5

    def close(self) -> None:
        FakeMachine.closed += 1


def test_the_devices_runtime_is_used_and_given_back(shim: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "Machine", FakeMachine)
    FakeMachine.closed = 0
    with opened() as provider:
        address = msgspec.msgpack.decode(envelope.open_card(provider.card()).address)
        assert address[2] == ["192.168.10.1", "roce", "device", 5]
        assert provider._machine.entered == 1
    assert FakeMachine.closed == 1
    with opened(placement="host") as provider:
        assert provider._machine is None


def test_a_runtime_that_cannot_be_used_is_unavailable(shim: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_module, "Machine", lambda device: FakeMachine(device, "it has no driver"))
    FakeMachine.closed = 0
    with pytest.raises(TransportUnavailable, match="it has no driver"):
        HixlProvider().open(settings())
    assert FakeMachine.closed == 1


def test_every_call_is_made_in_the_devices_context(shim: ctypes.CDLL) -> None:
    depth, entered = [0], []

    @contextmanager
    def bound() -> Iterator[None]:
        depth[0] += 1
        entered.append(threading.current_thread().name)
        yield
        depth[0] -= 1

    provider = HixlProvider(bound)
    provider.open(settings())
    array = np.zeros(64, np.uint8)
    provider.unregister(provider.register(region_of(array)))
    provider.close()
    assert len(entered) == 4
    assert depth == [0]
