"""What pytest loads by itself where cachefw is installed: the markers, and at the end what the kit has to say."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

__all__ = ["pytest_configure", "pytest_runtest_logreport", "pytest_terminal_summary"]

#: The property by which a test of the kit says which transport it tests, and how many tests the kit has.
PROPERTY = "cachefw-conformance"

_results: dict[tuple[str, str], dict[str, str]] = {}
_reasons: dict[tuple[str, str], Counter[str]] = {}
_kit: dict[tuple[str, str], int] = {}


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    config.addinivalue_line("markers", "hardware: needs a device or a network card that most machines do not have")
    for kept in (_results, _reasons, _kit):
        kept.clear()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what came of a test of the kit."""
    said = dict(report.user_properties).get(PROPERTY)
    if not isinstance(said, str) or (report.passed and report.when != "call"):
        return
    transport, _, count = said.partition(" ")
    whole, _, test = report.nodeid.rpartition("::")
    key = (transport, whole)
    _kit[key] = int(count)
    worst = _results.setdefault(key, {})
    name = test.partition("[")[0]
    order = ("skipped", "passed", "failed")
    worst[name] = max(worst.get(name, "skipped"), report.outcome, key=order.index)
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        _reasons.setdefault(key, Counter())[reason.removeprefix("Skipped: ")] += 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say of each transport which of the kit's tests applied, and why others did not."""
    if not _results:
        return
    terminalreporter.section("conformance with cachefw.transport")
    for key, worst in sorted(_results.items()):
        transport, where = key
        count = Counter(worst.values())
        line = f"transport {transport!r}: {count['passed']} of {_kit[key]} tests passed"
        line += f", {count['failed']} failed" if count["failed"] else ""
        line += f", {count['skipped']} did not apply" if count["skipped"] else ""
        missing = _kit[key] - len(worst)
        line += f", {missing} were not run" if missing else ""
        terminalreporter.write_line(f"{line} ({where})", red=bool(count["failed"]), yellow=bool(missing))
        for reason, times in sorted(_reasons.get(key, Counter()).items()):
            # That a capability is offered is why one test of honesty does not apply: the other one does.
            if " offers Capability." not in reason:
                terminalreporter.write_line(f"    {times} x {reason}")
