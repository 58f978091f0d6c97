"""Settings come from the environment, and a text that makes no sense is refused with its variable's name."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from cachefw import CacheManager, RequestError
from cachefw.cli import main
from cachefw.config import DEFAULT_TRANSPORT, SETTINGS, Value, setting, value
from cachefw.plugins import catalogue


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
        ("CACHEFW_PEERS", "a=x:1, b = y:2,", ("a=x:1", "b=y:2")),
        ("CACHEFW_STRICT", "1", True),
        ("CACHEFW_STRICT", "0", False),
    ],
)
def test_settings_are_read_when_they_are_asked_for(monkeypatch, variable, text, value):
    name = variable.removeprefix("CACHEFW_").lower()
    monkeypatch.setenv(variable, text)
    assert setting(name) == value
    shown = CliRunner().invoke(main, ["config"])
    assert shown.exit_code == 0
    assert f"{variable} = " in shown.output
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


# ---------------------------------------------------------------------- cachefw config


def run_config(*arguments, **environ):
    from click.testing import CliRunner

    from cachefw.cli import main

    return CliRunner(env={"COLUMNS": "80", **environ}).invoke(main, ["config", *arguments])


def test_values_say_where_they_come_from(monkeypatch):
    assert value("strict") == Value(SETTINGS["strict"], False, "default")
    monkeypatch.setenv("CACHEFW_STRICT", "1")
    assert value("strict") == Value(SETTINGS["strict"], True, "CACHEFW_STRICT", "1")
    monkeypatch.setenv("CACHEFW_STRICT", "maybe")
    told = value("strict")
    assert (told.value, told.text) == (None, "maybe")
    assert "must be 0 or 1" in told.fault


def test_config_shows_every_setting():
    result = run_config(CACHEFW_TIMEOUT="2.5")
    assert result.exit_code == 0
    assert "CACHEFW_TIMEOUT = 2.5  (from the environment)" in result.output
    assert "CACHEFW_LINK_TIMEOUT = 5  (default)" in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    settings = json.loads(run_config("--json", CACHEFW_TIMEOUT="2.5").output)["settings"]
    by_name = {row["variable"]: row for row in settings}
    assert by_name.keys() >= {known.variable for known in SETTINGS.values()}
    row = by_name["CACHEFW_TIMEOUT"]
    assert (row["value"], row["source"], row["default"]) == (2.5, "CACHEFW_TIMEOUT", 30.0)
    assert by_name["CACHEFW_STRICT"]["source"] == "default"


def test_config_points_out_what_nobody_reads():
    result = run_config(CACHEFW_TIMEOT="3", CACHEFW_STRICT="2")
    assert result.exit_code == 1
    assert "CACHEFW_TIMEOT is set, and nobody reads it; did you mean CACHEFW_TIMEOUT?" in result.output
    assert "CACHEFW_STRICT='2': must be 0 or 1" in " ".join(result.output.split())
    told = json.loads(run_config("--json", CACHEFW_TIMEOT="3").output)
    assert told["unknown"] == {"CACHEFW_TIMEOT": "CACHEFW_TIMEOUT"}


def test_config_knows_the_variables_of_plugins():
    if "hccs" not in catalogue.plugins():
        pytest.skip("cachefw-hccs is not installed")
    result = run_config(CACHEFW_ASCENDCL="simulator")
    assert result.exit_code == 0
    assert "CACHEFW_ASCENDCL = simulator  (from the environment)" in result.output
