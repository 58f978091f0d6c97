"""Settings come from the environment, and a text that makes no sense is refused with its variable's name."""

from __future__ import annotations

import re

import pytest

from cachefw import CacheManager, RequestError
from cachefw.config import DEFAULT_TRANSPORT, SETTINGS, setting


@pytest.fixture(autouse=True)
def _unset(monkeypatch):
    for known in SETTINGS.values():
        monkeypatch.delenv(known.variable, raising=False)


@pytest.mark.parametrize("known", SETTINGS.values(), ids=lambda known: known.name)
def test_settings_have_defaults_that_parse_and_a_summary(monkeypatch, known):
    assert setting(known.name) == known.default
    monkeypatch.setenv(known.variable, "")
    assert setting(known.name) == known.default
    text = {tuple: ",".join, bool: lambda value: str(int(value))}.get(type(known.default), str)(known.default)
    assert known.parse(text) == known.default
    assert known.summary
    assert known.variable == f"CACHEFW_{known.name.upper()}"


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("CACHEFW_TRANSPORTS", "rdma, host", ("rdma", "host")),
        ("CACHEFW_TRANSPORTS", "host,", ("host",)),
        ("CACHEFW_TIMEOUT", "0.5", 0.5),
        ("CACHEFW_LINK_TIMEOUT", "1e3", 1000.0),
        ("CACHEFW_STRICT", "1", True),
        ("CACHEFW_STRICT", "0", False),
    ],
)
def test_settings_are_read_when_they_are_asked_for(monkeypatch, variable, text, value):
    name = variable.removeprefix("CACHEFW_").lower()
    monkeypatch.setenv(variable, text)
    assert setting(name) == value
    monkeypatch.delenv(variable)
    assert setting(name) == SETTINGS[name].default


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("CACHEFW_TIMEOUT", "soon"),
        ("CACHEFW_TIMEOUT", "0"),
        ("CACHEFW_TIMEOUT", "-1"),
        ("CACHEFW_TIMEOUT", "nan"),
        ("CACHEFW_TIMEOUT", "inf"),
        ("CACHEFW_LINK_TIMEOUT", "1s"),
        ("CACHEFW_STRICT", "yes"),
        ("CACHEFW_TRANSPORTS", " , "),
    ],
)
def test_settings_without_sense_are_refused(monkeypatch, variable, text):
    monkeypatch.setenv(variable, text)
    known = SETTINGS[variable.removeprefix("CACHEFW_").lower()]
    with pytest.raises(ValueError, match=re.escape(f"{variable}={text!r}: ")) as caught:
        setting(known.name)
    assert isinstance(caught.value, RequestError)
    assert known.summary in str(caught.value)


def test_the_default_transport_is_opened_where_none_is_named():
    with CacheManager() as manager:
        assert manager.transports == (DEFAULT_TRANSPORT,)


def test_arguments_go_before_settings(monkeypatch):
    monkeypatch.setenv("CACHEFW_TRANSPORTS", "nowhere")
    monkeypatch.setenv("CACHEFW_STRICT", "maybe")
    with CacheManager(["host"], strict=False) as manager:
        assert manager.transports == ("host",)
