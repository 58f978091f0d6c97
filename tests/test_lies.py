"""The kit finds what is wrong: each transport here tells one lie, and the test meant for that lie must fail."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import cachefw
from cachefw.testing import TransportTests


def _load():
    spec = importlib.util.spec_from_file_location("liars", Path(__file__).with_name("liars.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LIARS = _load().LIARS

GENERATED = """\
import importlib.util
import sys
import pytest
from cachefw.testing import TransportTests

spec = importlib.util.spec_from_file_location("liars", {path!r})
liars = importlib.util.module_from_spec(spec)
sys.modules["liars"] = liars
spec.loader.exec_module(liars)

def kit(liar):
    class Kit(TransportTests):
        @pytest.fixture
        def transport_info(self):
            return liar.info_named(liar.__name__.lower(), liar.offers)
    return Kit

for liar in liars.LIARS:
    globals()["Test" + liar.__name__] = kit(liar)
"""
# Found by entry point, as what an author installs; in another process it cannot even be loaded.
PLUGIN = """\
import sys
from cachefw.hookspecs import hookimpl

@hookimpl
def cachefw_transports():
    yield sys.modules["liars"].ReachesNobody.info_named("reachesnobody")
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The kit on every liar: what it printed, and the tests that failed, by the liar's name and without parameters."""
    folder = tmp_path_factory.mktemp("liars")
    (folder / "test_liars.py").write_text(GENERATED.format(path=str(Path(__file__).with_name("liars.py"))))
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "reaches_nobody.py").write_text(PLUGIN)
    info = folder / "reaches_nobody-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reaches-nobody\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[cachefw.plugins]\nreachesnobody = reaches_nobody\n")
    tests = [f"test_liars.py::Test{liar.__name__}::{name}" for liar in LIARS for name in liar.caught_by]
    search = [str(folder), str(Path(cachefw.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=line", "--junitxml=report.xml", *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search), "CACHEFW_TESTING_TIMEOUT": "0.5", "CI": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    failed: dict[str, set[str]] = {}
    for case in ElementTree.parse(folder / "report.xml").iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            name = case.get("classname", "").rpartition(".Test")[2]
            failed.setdefault(name, set()).add(case.get("name", "").partition("[")[0])
    return done.stdout, failed


@pytest.fixture(scope="module")
def verdicts(run):
    return run[1]


@pytest.mark.parametrize("liar", LIARS, ids=lambda liar: liar.__name__)
def test_lie_is_found(verdicts, liar):
    assert verdicts.get(liar.__name__, set()) == set(liar.caught_by)


def test_summary_says_what_passed_and_what_was_not_run(run, verdicts):
    whole = sum(name.startswith("test_") for name in dir(TransportTests))
    section = run[0].partition("conformance with cachefw.transport")[2]
    for liar in LIARS:
        failed = len(liar.caught_by)
        line = f"transport {liar.__name__.lower()!r}: 0 of {whole} tests passed, {failed} failed, "
        assert f"{line}{whole - failed} were not run" in section
