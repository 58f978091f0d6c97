"""What the plugin knows of its errors, and the check that reads another process's memory."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import pytest

from cachefw.catalog import Health
from cachefw.plugins import catalogue
from cachefw.testing.codes import lacking_codes


@pytest.fixture
def plugin():
    return catalogue.get("host").module


def test_every_code_has_its_entry(plugin) -> None:
    assert lacking_codes(Path(plugin.__file__).parent, plugin.cachefw_diagnostics().entries) == {}


@pytest.mark.parametrize(
    ("printed", "code", "health", "said"),
    [
        (f"{errno.EPERM} ", 0, Health.WARNING, "Operation not permitted"),
        ("0 00ff", 0, Health.WARNING, "it read other bytes"),
        ("", 1, Health.NOT_CHECKED, "no reason given"),
    ],
)
def test_reading_that_fails_is_said(plugin, monkeypatch: pytest.MonkeyPatch, printed, code, health, said) -> None:
    done = subprocess.CompletedProcess([], code, printed, "")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: done)
    (check,) = plugin.cachefw_diagnostics().checks
    (told,) = check.diagnose()
    assert told.health is health
    assert said in told.found
