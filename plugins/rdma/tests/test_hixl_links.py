"""HIXL's provider against the stand-in: memory, connecting, and what every status becomes."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import msgspec
import pytest
from cachefw_rdma import envelope
from cachefw_rdma.hixl import status
from cachefw_rdma.hixl._hixl import lib
from cachefw_rdma.hixl.rules import check
from cachefw_rdma.rules import Setup

from cachefw.errors import (
    BrokenError,
    BusyError,
    RequestError,
    TransferTimeout,
    UnsupportedOperation,
)
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.rules import Outcome, Request
from cachefw.transport import RegisteredMemory

_spec = importlib.util.spec_from_file_location("rdma_hixl_kit", Path(__file__).with_name("hixl_kit.py"))
assert _spec is not None
assert _spec.loader is not None
kit = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kit)
shim_path, shim, pair = kit.shim_path, kit.shim, kit.pair
Pair, fail, region_of, address_of = kit.Pair, kit.fail, kit.region_of, kit.address_of
build, opened, settings = kit.build, kit.opened, kit.settings
PORTS, NATIVE, READ, LONG = kit.PORTS, kit.NATIVE, kit.READ, kit.LONG


# ---- memory -------------------------------------------------------------------------------------------------------


def test_register_and_unregister(pair: Pair, shim: ctypes.CDLL) -> None:
    assert shim.shim_memories() == 2
    pair.near.unregister(pair.own)
    assert shim.shim_memories() == 1
    again = pair.near.register(pair.own.region)
    assert again.tag != pair.own.tag


def test_what_rules_are_told(pair: Pair) -> None:
    device = MemoryRegion(1 << 44, 4096, MemoryKind.DEVICE)
    more = pair.near.register(device)
    assert pair.near.held() == {"regions": 2, "device_bytes": 4096, "placement": "device", "protocol": "roce"}
    request = Request("register_memory", "rdma", (device,), (0,), True, False, "950")
    findings = check(request, Setup(nics=0, loaded=lambda: False), **pair.near.held())
    assert {finding.outcome for finding in findings} == {Outcome.OK}
    pair.near.unregister(more)


def test_what_hixl_refuses_is_not_registered(pair: Pair, shim: ctypes.CDLL) -> None:
    inside = MemoryRegion(pair.own.region.address + 8, 16)
    with pytest.raises(RequestError, match="HIXL_PARAM_INVALID") as caught:
        pair.near.register(inside)
    assert caught.value.status == 103900
    assert caught.value.facts["length"] == 16
    assert shim.shim_memories() == 2


def test_memory_that_hixl_keeps_stays_registered(pair: Pair, shim: ctypes.CDLL) -> None:
    fail(shim, "HixlCSServerUnregMem", lib.HIXL_FAILED)
    with pytest.raises(BrokenError):
        pair.near.unregister(pair.own)
    shim.shim_reset()
    assert shim.shim_memories() == 2
    pair.near.unregister(pair.own)
    assert shim.shim_memories() == 1


def test_memory_of_others_is_refused(pair: Pair) -> None:
    with pytest.raises(TypeError, match="was not registered by this provider"):
        pair.near.unregister(RegisteredMemory(pair.own.region, "other"))


def test_nothing_is_registered_or_given_back_while_a_channel_is_open(pair: Pair) -> None:
    channel = pair.channel
    with pytest.raises(UnsupportedOperation, match="register before linking"):
        pair.near.register(MemoryRegion(4096, 4096))
    with pytest.raises(BusyError, match="unlink first"):
        pair.near.unregister(pair.own)
    channel.close()
    pair.near.unregister(pair.own)


# ---- connecting ---------------------------------------------------------------------------------------------------


def test_connecting_passes_the_settings_on(shim: ctypes.CDLL) -> None:
    pair = Pair(tc=96, sl=3)
    assert pair.channel.broken is None
    assert divmod(shim.shim_tc_sl(), 256) == (96, 3)
    assert shim.shim_timeout() == 3000
    pair.close()


@pytest.mark.parametrize("card", [b"", b"garbage", b"cfw-rdma\x01" + bytes(40)])
def test_a_card_that_makes_no_sense(pair: Pair, card: bytes) -> None:
    with pytest.raises(BrokenError, match="makes no sense") as caught:
        pair.near.connect(card, 1.0)
    assert caught.value.code == "card.malformed"


def test_a_card_of_another_provider_or_version(pair: Pair) -> None:
    card = envelope.open_card(pair.far.card())
    assert (card.provider, card.nonce) == ("hixl", pair.far._nonce)
    for other in ({"provider": "ucx"}, {"version": (2, 0)}):
        with pytest.raises(UnsupportedOperation, match="give both the same setting provider"):
            pair.near.connect(envelope.seal(msgspec.structs.replace(card, **other)), 1.0)


@pytest.mark.parametrize("endpoint", [("10.0.0.1", "smoke", "device", 0), ("nowhere", "roce", "device", 0), 5])
def test_a_card_with_a_wrong_endpoint(pair: Pair, endpoint: object) -> None:
    card = envelope.open_card(pair.far.card())
    address = msgspec.msgpack.encode(["127.0.0.1", 5, endpoint])
    with pytest.raises(BrokenError, match="makes no sense"):
        pair.near.connect(envelope.seal(msgspec.structs.replace(card, address=address)), 1.0)


def test_a_peer_that_does_not_listen_is_a_timeout(pair: Pair, shim: ctypes.CDLL) -> None:
    card = pair.far.card()
    pair.far.close()
    with pytest.raises(TransferTimeout, match="HIXL_TIMEOUT") as caught:
        pair.near.connect(card, 1.0)
    assert caught.value.status == 103901
    assert shim.shim_handles() == 1
    pair.near.unregister(pair.own)


STEPS = ["HixlCSClientCreate", "HixlCSClientRegMem", "HixlCSClientConnect", "HixlCSClientGetRemoteMem"]
CODES = [code for code in status.STATUSES if code > 0]


@pytest.mark.parametrize("code", [*CODES, 1, 4294967295])
@pytest.mark.parametrize("function", STEPS)
def test_each_failure_of_each_step_of_connecting(pair: Pair, shim: ctypes.CDLL, function: str, code: int) -> None:
    fail(shim, function, code)
    known = status.STATUSES.get(code)
    with pytest.raises(known.family if known else BrokenError) as caught:
        pair.near.connect(pair.far.card(), 1.0)
    assert caught.value.status == code
    assert caught.value.operation == function
    assert caught.value.facts["name"] in str(caught.value)
    assert shim.shim_handles() == 2
    assert shim.shim_memories() == 2
    shim.shim_reset()
    assert pair.post(READ, (0, 0, 8)).wait(LONG)


# ---- the table of statuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", list(status.STATUSES))
def test_every_status_has_a_name_of_the_library_and_words(code: int) -> None:
    known = status.STATUSES[code]
    assert getattr(lib, known.name) == code
    error = status.status_error(code, "call")
    assert type(error) is known.family or issubclass(type(error), known.family)
    assert str(code) in str(error)
    assert known.name in str(error)
    assert known.fix in str(error)
    assert error.transport == "rdma"


def test_every_status_and_state_of_the_binding_is_in_the_table() -> None:
    names = [name for name in dir(lib) if name.startswith(("HIXL_", "CFW_HIXL_"))]
    states = {name for name in names if name.startswith("HIXL_COMPLETE_STATUS_")}
    assert states == set(status.STATES.values())
    assert {getattr(lib, name): name for name in states} == dict(status.STATES)
    assert {"HIXL_SUCCESS"} | {known.name for known in status.STATUSES.values()} == set(names) - states


def test_only_zero_is_success() -> None:
    status.check(0, "call")
    assert status.name_of(0) == "HIXL_SUCCESS"
    assert status.name_of(77) == "an unknown status"
    with pytest.raises(BrokenError, match="77, an unknown status"):
        status.check(77, "call")
