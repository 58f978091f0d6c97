"""Finding UCX: what is tried, in which order, and what is said of each; settings and cards that do not fit."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cachefw_rdma import envelope, status
from cachefw_rdma.library import DEFAULTS, VARIABLE, candidates, open_library

import cachefw
from cachefw.testing._bench import make_transport
from cachefw.testing.sessions import sessions

OLD = "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) { *a = 1; *b = 9; *c = 0; }\n"
NEW = OLD.replace("*b = 9", "*b = 14")


@pytest.fixture
def build(tmp_path: Path) -> Any:
    """Makes a library from C."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")

    def make(source: str) -> str:
        file = tmp_path / "fake.c"
        file.write_text(source)
        library = tmp_path / "libucp.so.0"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, file], check=True)
        return str(library)

    return make


def refusal(path: str) -> cachefw.TransportUnavailable:
    with pytest.raises(cachefw.TransportUnavailable) as caught:
        open_library({VARIABLE: path})
    assert caught.value.transport == "rdma"
    assert [attempt.path for attempt in caught.value.facts["attempts"]] == [path]
    return caught.value


def test_too_old_a_library_says_so(build: Any) -> None:
    assert "it is UCX 1.9.0, which is too old: 1.13 or newer is needed" in str(refusal(build(OLD)))


def test_a_library_without_all_functions_names_one(build: Any) -> None:
    text = str(refusal(build(NEW)))
    assert "it says that it is UCX 1.14.0, but" in text
    assert "functions are missing, ucp_lib_query among them" in text


def test_another_library_is_no_ucx(build: Any) -> None:
    assert re.search(
        r"it is no UCX: \d\d functions are missing, ucp_get_version", str(refusal(build("int nothing;\n")))
    )


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    file = tmp_path / "libucp.so.0"
    file.write_bytes(b"no library\n" * 100)
    assert "the loader refused it" in str(refusal(str(file)))


def test_a_path_that_is_none(tmp_path: Path) -> None:
    error = refusal(str(tmp_path / "nowhere"))
    assert "No such file" in str(error)
    assert "apt-get install libucx0" in str(error)
    assert VARIABLE in str(error)


def test_the_order() -> None:
    assert [place.source for place in candidates({})] == [VARIABLE, "the loader", "the wheel libucx"]
    assert [(place.source, place.path) for place in candidates({VARIABLE: "/x"})] == [(VARIABLE, "/x")]


def test_a_users_own_settings_are_kept(tmp_path: Path) -> None:
    environ = {VARIABLE: str(tmp_path / "nowhere"), "UCX_LOG_LEVEL": "info"}
    with pytest.raises(cachefw.TransportUnavailable):
        open_library(environ)
    assert environ["UCX_LOG_LEVEL"] == "info"
    assert {name: environ[name] for name in DEFAULTS} == {**DEFAULTS, "UCX_LOG_LEVEL": "info"}


def test_without_ucx_a_node_says_what_was_tried() -> None:
    script = """
import cachefw
try:
    cachefw.Node(1, transports=["rdma"])
except cachefw.TransportUnavailable as error:
    print(error)
"""
    environ = {**os.environ, VARIABLE: "/nowhere/libucp.so.0"}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert "no usable UCX library was found" in run.stdout
    assert "/nowhere/libucp.so.0" in run.stdout


def test_importing_the_plugin_opens_nothing() -> None:
    script = """
import sys, cachefw_rdma
print(any("_native" in name for name in sys.modules))
print(open("/proc/self/maps").read())
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.startswith("False")
    assert "libucp" not in run.stdout


# ---------------------------------------------------------------- settings


def info() -> Any:
    from cachefw.plugins import catalogue

    return catalogue.get("rdma").info


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"provider": "verbs"}, "provider must be one of ucx, hixl, not 'verbs'"),
        ({"tls": 5}, "tls must be names"),
        ({"net_devices": ""}, "net_devices must be names"),
        ({"inflight": 0}, "inflight must be 1 to 4096, not 0"),
        ({"inflight": True}, "inflight must be 1 to 4096, not True"),
        ({"error_mode": "maybe"}, "error_mode must be one of auto, peer, none, not 'maybe'"),
        ({"profile": 3}, "profile must be"),
    ],
)
def test_wrong_settings(ucx: Any, settings: dict[str, object], said: str) -> None:
    transport = make_transport(info())
    with pytest.raises(cachefw.RequestError, match=said):
        transport.open(settings)
    transport.close()


@pytest.mark.parametrize("settings", [{"tls": "no_such_transport"}, {"tls": "tcp", "net_devices": "no_such_device0"}])
def test_unknown_names_are_refused_with_ucx_own_words(ucx: Any, settings: dict[str, object]) -> None:
    transport = make_transport(info())
    with pytest.raises(cachefw.TransportUnavailable, match="ucx_info -d") as caught:
        transport.open(settings)
    for value in settings.values():
        assert value in str(caught.value)
    assert (caught.value.status or 0) < 0
    # Another opening, with sense, works.
    transport.open({"tls": "tcp,self"})
    transport.close()


# ---------------------------------------------------------------- cards


def card(**changes: object) -> envelope.Card:
    values = {"provider": "ucx", "version": (1, 13), "nonce": b"n" * 16, "address": b"a", "beacon": 1, "key": b"k"}
    return envelope.Card(**{**values, **changes})


@pytest.mark.parametrize(
    ("bad", "family", "code"),
    [
        (card(version=(1, 1)), cachefw.BrokenError, "peer.version"),
        (card(provider="hixl"), cachefw.UnsupportedOperation, "peer.unreachable"),
    ],
)
def test_cards_of_others(ucx: Any, bad: envelope.Card, family: Any, code: str) -> None:
    transport = make_transport(info())
    transport.open({"tls": "tcp,self"})
    with pytest.raises(family) as caught:
        transport.connect(envelope.seal(bad), 5.0, sessions()[0])
    assert (caught.value.code, caught.value.transport) == (code, "rdma")
    transport.close()


def test_a_card_of_a_newer_format_says_which() -> None:
    newer = bytearray(envelope.seal(card()))
    newer[8] = 9
    with pytest.raises(cachefw.BrokenError, match="of format 9, and this cachefw-rdma speaks format 1") as caught:
        envelope.open_card(bytes(newer))
    assert caught.value.code == "card.version"


def test_one_flipped_bit_is_noticed() -> None:
    whole = envelope.seal(card())
    assert envelope.open_card(whole) == card()
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            with pytest.raises(cachefw.BrokenError):
                envelope.open_card(bytes(damaged))


def test_every_status_becomes_an_error_with_number_and_name() -> None:
    for number in [*range(-1, -101, -1), -1012]:
        made = [
            status.transfer_error(number, "words", 3, count=9),
            status.connect_error(number, "words", 1.0),
            status.register_error(number, "words", 4096, 10),
            status.open_error(number, "words", {"TLS": "tcp"}),
        ]
        for error in made:
            assert (error.status, error.transport) == (number, "rdma")
            assert status.name_of(number) in (error.detail or "")
            assert pickle.loads(pickle.dumps(error)).detail == error.detail
