"""The documentation is true: its code runs and prints what it says, and its tables are those of the code."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from cachefw import hookspecs
from cachefw.catalog import Entry
from cachefw.cli.description import read
from cachefw.config import SETTINGS
from cachefw.core_rules import CACHE_RULES, MEMORY_RULES
from cachefw.diagnostics import everything
from cachefw.doctor import host_checks
from cachefw.integrations.vllm.settings import Settings
from cachefw.plugins import catalogue

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted(DOCS.glob("*.md"))]
HOOKS = [name for name in vars(hookspecs) if name.startswith("cachefw_")]
OTHERS = {ROOT / "plugins", ROOT / "runtimes"}
SECONDS = 60

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@attrs.frozen
class Code:
    """A python block of a page, the text block after it, which is what it prints, and whether it says who runs it."""

    text: str
    printed: str | None
    elsewhere: bool = False

    @property
    def file(self) -> str | None:
        """The name that its first line gives it: a program of its own."""
        named = re.match(r"# (\w+\.py)\n", self.text)
        return named[1] if named else None

    @property
    def here(self) -> bool:
        return self.file is None and not self.elsewhere


def blocks(page: Path) -> Iterator[Code]:
    pattern = r"(^<!-- (?:tested by|not run)[^\n]*\n)?^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?"
    for match in re.finditer(pattern, page.read_text(), re.DOTALL | re.MULTILINE):
        yield Code(match[2], match[3], bool(match[1]))


WITH_CODE = [page for page in PAGES if any(code.here for code in blocks(page))]


def plain(text: str) -> str:
    """Without what differs between two runs."""
    return re.sub(r"0x[0-9a-f]+", "0x...", text)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_code_runs_and_prints_what_the_page_says(page: Path, tmp_path: Path) -> None:
    snippets = [code for code in blocks(page) if code.here]
    mark = "-- next block --"
    script = tmp_path / "page.py"
    script.write_text(f"\nprint({mark!r})\n".join(code.text for code in snippets))
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for code, printed in zip(snippets, done.stdout.split(mark + "\n"), strict=True):
        if code.printed is not None:
            assert plain(printed) == plain(code.printed)


def test_the_two_processes_of_the_quick_start(tmp_path: Path) -> None:
    page = (DOCS / "quickstart.md").read_text()
    programs = {code.file: code.text for code in blocks(DOCS / "quickstart.md") if code.file}
    assert sorted(programs) == ["decode.py", "prefill.py"]
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
    prefill = subprocess.Popen(
        [sys.executable, "prefill.py"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with prefill:
        try:
            assert prefill.stdout is not None
            card = prefill.stdout.readline().strip()
            decode = subprocess.run(
                [sys.executable, "decode.py", card],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            assert (decode.returncode, decode.stderr) == (0, "")
            assert f"```text\n{decode.stdout}```" in page
            prefill.communicate("\n", timeout=SECONDS)
        except BaseException:
            prefill.kill()
            raise
    assert prefill.returncode == 0


def test_the_readme_example_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    (example,) = re.findall(r"<!-- example -->\n```python\n(.*?)```\n<!-- /example -->", text, re.DOTALL)
    assert len(example.splitlines()) <= 15


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        path = (page.parent / target).resolve()
        # The core's sdist brings no other distribution.
        elsewhere = OTHERS.intersection(path.parents) and not (ROOT / "runtimes").exists()
        # A folder is nothing that the site could show.
        assert "://" in target or elsewhere or path.is_file(), f"{page.name} links to {target}"


def test_the_page_about_vllm_has_each_setting_of_the_connector() -> None:
    page = (DOCS / "serving-with-vllm.md").read_text()
    shown = dict(re.findall(r"^\| `(\w+)` \| ?(.*?) ?\| .+ \|$", page, re.MULTILINE))
    fields = {field.name: field.default for field in attrs.fields(Settings)}
    assert sorted(shown) == sorted(fields)
    for name, default in fields.items():
        if isinstance(default, (str, float)):
            assert shown[name].strip("`") == (default if isinstance(default, str) else f"{default:g}")


def rows_of(owner: str) -> list[tuple[str, str, str]]:
    """The rules of the core or of a transport, as the page has them."""
    pattern = rf"^\| `({owner}\.[\w.]+)` \| (.+) \| (.+) \|$"
    return re.findall(pattern, (DOCS / "rules.md").read_text(), re.MULTILINE)


def test_every_rule_of_the_core_has_its_row() -> None:
    assert rows_of("core") == [(rule.name, rule.summary, rule.source) for rule in (*CACHE_RULES, *MEMORY_RULES)]


@pytest.mark.parametrize("name", sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")))
def test_every_rule_of_a_transport_has_its_row(name: str) -> None:
    if name not in catalogue.plugins():
        pytest.skip(f"the transport {name!r} is not installed")
    plugin = catalogue.get(name).module
    rules = importlib.import_module(f"{plugin.__name__}.rules").RULES
    assert rows_of(name) == [(rule.name, rule.summary, rule.source) for rule in rules]


def test_every_hook_has_its_heading() -> None:
    headings = re.findall(r"^## `(\w+)\((.*)\)`$", (DOCS / "hooks.md").read_text(), re.MULTILINE)
    signatures = [(name, ", ".join(inspect.signature(getattr(hookspecs, name)).parameters)) for name in HOOKS]
    assert headings == signatures


def test_the_settings_of_plugins_have_their_rows() -> None:
    rows = re.findall(r"^\| `(CACHEFW_\w+)` \| (.+) \| (.+) \|$", (DOCS / "plugins.md").read_text(), re.MULTILINE)
    defaults = {"plugins": "all", "disable_plugins": "none", "plugin_timeout": "30"}
    for (variable, default, meaning), (name, expected) in zip(rows, defaults.items(), strict=True):
        assert (variable, default) == (SETTINGS[name].variable, expected)
        assert SETTINGS[name].summary.startswith(meaning)
    assert SETTINGS["plugin_timeout"].default == 30


@pytest.mark.parametrize("name", HOOKS)
def test_examples_of_the_hooks_run(name: str) -> None:
    (found,) = doctest.DocTestFinder(recurse=False).find(getattr(hookspecs, name), name, module=hookspecs)
    assert found.examples
    assert doctest.DocTestRunner().run(found).failed == 0


# ---------------------------------------------------------------------- errors, settings, doctor, planning

KNOWN = everything()
OWNERS = {entry.owner for entry in KNOWN.entries}


def entries_of(sort: str, owner: str) -> list[Entry]:
    return [entry for entry in KNOWN.entries if (entry.sort, entry.owner) == (sort, owner)]


def code_tables() -> dict[str, list[tuple[str, str]]]:
    """The tables of codes, by the first code in each."""
    tables = re.findall(
        r"^\| code \| meaning \|\n\|---\|---\|\n((?:\|.*\|\n)+)", (DOCS / "errors.md").read_text(), re.MULTILINE
    )
    found = [re.findall(r"^\| `([\w.]+)` \| (.+) \|$", table, re.MULTILINE) for table in tables]
    return {rows[0][0]: rows for rows in found}


@pytest.mark.parametrize("owner", ["cachefw", "host", "hccs", "rdma", "cachefw-ascendcl"])
def test_every_code_has_its_row(owner: str) -> None:
    if owner not in OWNERS:
        pytest.skip(f"{owner} is not installed")
    wanted = [(entry.name, entry.title) for entry in entries_of("code", owner)]
    assert code_tables()[wanted[0][0]] == wanted


@pytest.mark.parametrize("owner", ["LLM-DataDist", "AscendCL", "HIXL", "UCX"])
def test_every_status_has_its_row(owner: str) -> None:
    if owner not in OWNERS:
        pytest.skip(f"nobody is installed who knows {owner}")
    rows = re.findall(r"^\| (-?\d+) \| `(\w+)` \| (.+) \|$", (DOCS / "errors.md").read_text(), re.MULTILINE)
    wanted = [(entry.name, entry.aliases[0], entry.title) for entry in entries_of("status", owner)]
    assert [row for row in rows if row in wanted] == wanted


def test_errors_md_has_no_row_too_many() -> None:
    if len(OWNERS) < 8:
        pytest.skip("not every plugin of this repository is installed")
    text = (DOCS / "errors.md").read_text()
    codes, names = (
        re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE),
        re.findall(r"^\| -?\d+ \| `(\w+)`", text, re.MULTILINE),
    )
    assert len(codes) == sum(entry.sort == "code" for entry in KNOWN.entries)
    assert len(names) == sum(entry.sort == "status" for entry in KNOWN.entries)


def test_every_setting_has_its_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| (.+) \|$", (DOCS / "settings.md").read_text(), re.MULTILINE)
    own = [
        (entry.name, entry.text.removeprefix("default: "), entry.title) for entry in entries_of("setting", "cachefw")
    ]
    assert [row for row in rows if not row[1].startswith("cachefw-")] == own
    others = [(entry.name, entry.owner, entry.title) for entry in KNOWN.entries if entry.sort == "setting"]
    assert {row for row in others if row[1] != "cachefw"} <= set(rows)


def test_every_check_has_its_row() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.+) \|$", (DOCS / "doctor.md").read_text(), re.MULTILINE)
    names = {check.name: check.title for check in host_checks(KNOWN) if check.name not in KNOWN.checks}
    assert rows == list(names.items())
    for name in KNOWN.checks:
        assert f"`{name}`" in (DOCS / "doctor.md").read_text()


def test_the_description_of_the_page_is_one(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (text,) = re.findall(r"^```yaml\n(.*?)```$", (DOCS / "planning.md").read_text(), re.DOTALL | re.MULTILINE)
    path = tmp_path / "page.yaml"
    path.write_text(text)
    described = read(path)
    assert (described.profile, len(described.memories), len(described.caches)) == ("A2", 1, 1)
    assert described.caches[0].addrs[1] == 0x12D6371B8000 + 0x2000000


def calls_of(heading: str) -> list[tuple[str, str]]:
    """The calls of a library and what becomes of them, as the page has them."""
    page = (DOCS / "moving-from-hixl-and-mooncake.md").read_text()
    part = page.split(f"\n## `{heading}`\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \| (\w*) \|", part, re.MULTILINE)


def public(kind: type) -> set[str]:
    return {name for name, value in inspect.getmembers(kind, inspect.isroutine) if not name.startswith("_")}


def test_every_call_of_hixl_has_its_row() -> None:
    from cachefw.compat import hixl

    rows = calls_of("hixl")
    assert sorted(name for name, _ in rows) == sorted({*public(hixl.Hixl), "get_capability"})
    assert {answer for _, answer in rows} <= {"same", "better", "refused"}


def test_every_call_of_mooncake_has_its_row() -> None:
    from cachefw.compat.mooncake import engine, values

    rows = calls_of("mooncake.engine")
    assert sorted(name for name, _ in rows) == sorted({*public(engine.TransferEngine), *values.ABSENT})
    assert {answer for _, answer in rows} <= {"same", "better", "refused"}
    assert {name for name, answer in rows if answer == "refused"} == {*values.ABSENT, "get_local_topology"}


def test_every_call_of_llm_datadist_is_on_its_page() -> None:
    from cachefw.compat.llm_datadist.v2.cache_manager import CacheManager
    from cachefw.compat.llm_datadist.v2.llm_datadist import LLMDataDist

    page = (DOCS / "moving-from-llm-datadist.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (?:same|better|refused) \|", page, re.MULTILINE)
    told = set(re.findall(r"`(?:\w+\.)?(\w+)(?:\(.*?\))?`", " ".join(rows)))
    properties = {"cache_manager", "cluster_id", "kv_cache_manager"}
    # For the instance and for tests, not for programs.
    inner = {"set_is_call_linked", "check_cache_key"}
    assert (public(LLMDataDist) | public(CacheManager) | properties) - inner <= told
