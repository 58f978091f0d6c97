"""One catalogue: every code in the source has its entry, every entry is used, and errors and people find it."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cachefw import catalog, errors, hookspecs
from cachefw.catalog import Cause, Check, Diagnosis, Diagnostics, Entry, Health, elsewhere
from cachefw.cli import main
from cachefw.compat.llm_datadist import LLMStatusCode
from cachefw.config import SETTINGS
from cachefw.core_rules import CACHE_RULES, MEMORY_RULES
from cachefw.diagnostics import everything, of
from cachefw.doctor import host_checks
from cachefw.plugins import catalogue
from cachefw.testing.codes import codes_in, lacking_codes

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    folder: sorted(folder.rglob("*.py"))
    for folder in [ROOT / "cachefw", *sorted(ROOT.glob("plugins/*/src/*")), *sorted(ROOT.glob("runtimes/*/src/*"))]
}
# Data and lists of codes, which raise nothing.
SILENT = {"catalog", "catalog.py", "diagnostics.py", "testing"}
KNOWN = everything()
CODES = {entry.name for entry in KNOWN.entries if entry.sort in ("code", "rule")}


def raised() -> dict[str, str]:
    """Every code in the source, with one place."""
    found = {}
    for folder, files in SOURCES.items():
        for path in files:
            if SILENT.isdisjoint(path.relative_to(folder).parts):
                found.update((code, f"{path.relative_to(ROOT)}:{line}") for line, code in codes_in(path.read_text()))
    return found


def fits(code: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", r"[\w]+"), code) is not None


@pytest.mark.skipif(len(catalogue.plugins()) < 3, reason="not every plugin of this repository is installed")
def test_every_code_has_its_entry() -> None:
    lacking = {code: place for code, place in raised().items() if not any(fits(name, code) for name in CODES)}
    assert not lacking


def test_every_code_of_the_core_has_its_entry() -> None:
    lacking = {
        code: place
        for code, place in raised().items()
        if place.startswith("cachefw/") and not any(fits(name, code) for name in CODES)
    }
    assert not lacking


@pytest.mark.skipif(len(catalogue.plugins()) < 3, reason="not every plugin of this repository is installed")
def test_every_entry_of_a_code_is_given_by_somebody() -> None:
    text = "".join(
        path.read_text()
        for folder, files in SOURCES.items()
        for path in files
        if SILENT.isdisjoint(path.relative_to(folder).parts)
    )
    given = list(raised())
    # Rules outside of the tuples of rules, and codes in tables, stand in the source as they are.
    stale = {
        entry.name
        for entry in KNOWN.entries
        if entry.sort == "code"
        and f'"{entry.name}"' not in text
        and not any(fits(entry.name, pattern) for pattern in given)
    }
    assert not stale


def test_codes_are_found_in_every_form(tmp_path: Path) -> None:
    source = """
        raise E(code=f"a.{x}.y")
        raise E(code=known or "b")
        code = "c" if y else "d"
        code, text = "e", 1
        class F(E):
            default_code: str = "f"
    """
    (tmp_path / "source.py").write_text(textwrap.dedent(source))
    assert lacking_codes(tmp_path, []) == {
        "a.*.y": "source.py:2",
        "b": "source.py:3",
        "c": "source.py:4",
        "d": "source.py:4",
        "e": "source.py:5",
        "f": "source.py:7",
    }
    known = [Entry(name, "code", "x") for name in ("a.b.y", "b", "c", "d", "f")]
    assert lacking_codes(tmp_path, [*known, Entry("e", "status", "x")]) == {"e": "source.py:5"}


def test_every_family_and_rule_and_setting_and_hook_has_its_entry() -> None:
    families = {getattr(errors, name).default_code for name in errors.__all__ if name != "refusal"}
    assert families <= CODES
    assert {rule.name for rule in (*CACHE_RULES, *MEMORY_RULES)} <= CODES
    names = {entry.name for entry in KNOWN.entries}
    assert {setting.variable for setting in SETTINGS.values()} <= names
    assert {name for name in vars(hookspecs) if name.startswith("cachefw_")} <= names


def test_the_entry_of_a_hook_leaves_out_its_example() -> None:
    hooks = [entry for entry in everything().entries if entry.sort == "hook"]
    assert hooks
    for entry in hooks:
        assert ">>>" in (getattr(hookspecs, entry.name).__doc__ or "")
        assert "When: " in entry.text
        assert not re.search(">>>|Example", entry.text), entry.name


def test_names_are_unique_for_an_owner_and_texts_are_whole() -> None:
    seen: dict[tuple[str, str, str], str] = {}
    for entry in KNOWN.entries:
        for name in entry.names:
            assert seen.setdefault((entry.owner, entry.sort, name), entry.name) == entry.name
        assert entry.title
        for cause in entry.causes:
            assert cause.what
            assert cause.fix
            assert not cause.what.endswith(".")


def test_every_probe_can_be_run() -> None:
    checks = {check.name for check in host_checks(KNOWN)}
    probes = {cause.probe for entry in KNOWN.entries for cause in entry.causes if cause.probe}
    # A core alone names only its own checks.
    assert probes <= checks


def test_rules_of_plugins_are_in_it() -> None:
    for name in catalogue.plugins():
        plugin = catalogue.get(name)
        entries = {entry.name for entry in of(plugin).entries if entry.sort == "rule"}
        assert {rule for rule in entries if rule.startswith(f"{name}.")}


# ---------------------------------------------------------------------- errors use it


def test_errors_know_their_entry() -> None:
    error = errors.BrokenError("cannot reach 127.0.0.1:1", code="link.unreachable")
    assert error.entry is not None
    assert "no node listens" in error.entry.causes[0].what.lower()
    assert errors.BrokenError("?", code="nobody.knows").entry is None


def test_errors_of_a_plugin_know_theirs_once_it_is_loaded() -> None:
    catalogue.get("host")
    entry = errors.BrokenError("denied", code="cma.denied").entry
    assert entry is not None
    assert entry.owner == "host"


# ---------------------------------------------------------------------- looking up


def test_numbers_are_found_in_every_spelling() -> None:
    entries = [Entry("4294967295", "status", "failed", "A"), Entry("-4", "status", "no memory", "B")]
    for spelt in ("4294967295", "0xffffffff", "0xFFFFFFFF", "-1"):
        assert [entry.owner for entry in catalog.find(entries, spelt)] == ["A"]
    for spelt in ("-4", "4294967292", "0xfffffffc"):
        assert [entry.owner for entry in catalog.find(entries, spelt)] == ["B"]
    assert catalog.find(entries, "4") == []
    assert catalog.find(entries, "") == []


def test_causes_are_narrowed_by_what_is_known() -> None:
    cause = Cause("x", "y", operation="register", kind="host memory", transport="t")
    assert cause.applies()
    assert cause.applies("register", "host memory", "t")
    assert not cause.applies("transfer")
    assert not cause.applies("register", "device memory")
    assert not cause.applies(transport="u")
    assert Cause("x", "y").applies("transfer", "device memory", "u")


@pytest.mark.parametrize(
    ("what", "owner", "distribution"),
    [
        ("507899", "AscendCL", "cachefw-ascendcl"),
        ("ACL_ERROR_RT_FAILURE", "AscendCL", "cachefw-ascendcl"),
        ("503900", "HIXL", "cachefw-rdma"),
        ("103901", "HIXL", "cachefw-rdma"),
        ("UCS_ERR_IO_ERROR", "UCX", "cachefw-rdma"),
        ("-25", "UCX", "cachefw-rdma"),
    ],
)
def test_what_is_not_installed_has_somebody_who_knows_it(what: str, owner: str, distribution: str) -> None:
    assert [(row.owner, row.distribution) for row in elsewhere.elsewhere(what)] == [(owner, distribution)]


def test_nobody_is_named_for_what_nobody_has() -> None:
    assert elsewhere.elsewhere("nonsense") == []
    assert elsewhere.elsewhere("700000") == []


# ---------------------------------------------------------------------- plugins that say it wrongly


@pytest.mark.parametrize(
    ("hook", "said"),
    [(lambda: 3, "returned 3, not a Diagnostics"), (lambda: 1 / 0, "raised ZeroDivisionError: division by zero")],
)
def test_a_plugin_whose_hook_fails_is_named(hook, said) -> None:
    class Bad:
        cachefw_diagnostics = staticmethod(hook)

    plugin = catalogue.get("host")
    module, plugin.module = plugin.module, Bad
    try:
        (check,) = of(plugin).checks
        (told,) = check.diagnose()
    finally:
        plugin.module = module
    assert told.health is Health.WARNING
    assert said in told.found
    assert plugin.distribution in told.found


def test_an_error_can_be_read_though_a_plugin_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bad:
        @staticmethod
        def cachefw_diagnostics() -> Diagnostics:
            raise RuntimeError("no")

    monkeypatch.setattr(catalog, "_modules", {"bad": Bad, "worse": object(), **catalog._modules})
    assert errors.BrokenError("?", code="nobody.knows").entry is None
    catalogue.get("host")
    assert errors.BrokenError("denied", code="cma.denied").entry is not None


def test_a_plugin_without_the_hook_knows_nothing() -> None:
    plugin = catalogue.get("host")
    module, plugin.module = plugin.module, object()
    try:
        assert of(plugin) == Diagnostics()
    finally:
        plugin.module = module


def test_a_check_that_fails_reads_as_not_checked() -> None:
    def fail():
        yield Diagnosis("", Health.OK, "so far so good")
        raise PermissionError("not yours")

    (told,) = Check("x.y", "y", fail).diagnose()
    assert (told.check, told.health) == ("x.y", Health.NOT_CHECKED)
    assert "PermissionError: not yours" in told.found
    (told,) = Check("x.y", "y", lambda: ()).diagnose()
    assert told.health is Health.NOT_CHECKED


# ---------------------------------------------------------------------- cachefw explain


def explain(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, ["explain", *arguments])


def test_explain_fits_a_narrow_terminal_and_has_causes_fixes_and_source() -> None:
    result = explain("link.timeout")
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 80
    assert "\x1b" not in result.output
    assert "1. the peer hangs" in result.output
    assert "-> look at its process" in result.output
    assert "cachefw explain link.timeout --probe" in result.output


def test_explain_runs_probes() -> None:
    result = explain("ENOMEM", "--operation", "register", "--probe", "--json")
    (entry,) = json.loads(result.output)
    first = entry["causes"][0]
    assert first["probe"] == "limits.memlock"
    assert "RLIMIT_MEMLOCK is" in first["probed"][0]["found"]
    assert all(cause["operation"] in ("", "register") for cause in entry["causes"])
    assert "limits.memlock: " in explain("ENOMEM", "--probe").output


def test_explain_ranks_by_what_fits() -> None:
    (entry,) = json.loads(explain("EFAULT", "--kind", "device", "--json").output)
    assert "expandable segments" in entry["causes"][0]["what"]
    assert "host memory" not in {cause["kind"] for cause in entry["causes"]}


def test_explain_takes_negative_numbers_and_numbers_of_several() -> None:
    result = explain("-1", "--json")
    owners = {entry["owner"] for entry in json.loads(result.output)}
    assert {"Linux", "LLM-DataDist"} <= owners
    assert explain("--json", "-12").exit_code == 0


def test_explain_knows_all_of_llm_datadist() -> None:
    for name, number in (
        ("LLM_LINK_FAILED", 0x5010B009),
        ("LLM_TIMEOUT", 0x5010B01A),
        ("LLM_OUT_OF_MEMORY", 1343270940),
    ):
        (entry,) = json.loads(explain(name, "--json").output)
        assert entry["name"] == str(number)
    (entry,) = json.loads(explain("LLMStatusCode.LLM_PARAM_INVALID", "--json").output)
    assert entry["name"] == "1343270917"


def test_statuses_of_llm_datadist_are_those_of_its_module() -> None:
    known = {entry.aliases[0]: entry.name for entry in KNOWN.entries if entry.owner == "LLM-DataDist"}
    theirs = {status.name: str(int(status)) for status in LLMStatusCode if status.name != "LLM_SUCCESS"}
    assert known == theirs


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("lnk.timeout", "did you mean link.timeout"),
        ("core.uniqe", "core.unique"),
        ("CACHEFW_TIMEOT", "CACHEFW_TIMEOUT"),
        ("cachefw_validate_memry", "cachefw_validate_memory"),
        ("spacewire.card", "a transport 'spacewire' would come with cachefw-spacewire"),
        ("zzzzzz", "--list shows all"),
    ],
)
def test_what_is_misspelt_gets_near_matches(what: str, said: str) -> None:
    result = explain(what)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_what_an_absent_plugin_knows_names_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {"host": catalogue.plugins()["host"]}
    monkeypatch.setattr(type(catalogue), "plugins", lambda self: alone)
    result = explain("507899")
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert "It looks like AscendCL's, which cachefw-ascendcl knows; pip install it" in said


@pytest.mark.skipif("hccs" not in catalogue.plugins(), reason="cachefw-hccs is not installed")
def test_a_number_that_its_owner_does_not_know_is_not_sent_elsewhere() -> None:
    said = " ".join(explain("507898").output.split())
    assert "'507898' looks like AscendCL's, and cachefw-ascendcl, which is installed, has no entry for it" in said
    assert "did you mean ACL_ERROR_RT_LINK_ERROR" in " ".join(explain("ACL_ERROR_RT_LINK_EROR").output.split())


def test_explain_lists_everything() -> None:
    listed = json.loads(explain("--list", "--json").output)
    assert {entry["name"] for entry in listed} == {entry.name for entry in KNOWN.entries}
    text = explain("--list").output
    assert max(map(len, text.splitlines())) <= 80
    assert explain().exit_code == 2
    assert explain("link.timeout", "--list").exit_code == 2
