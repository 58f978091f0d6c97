"""What runs outside of the tests is sound: workflows, forms, hooks before a commit, and the pages of the site."""

from __future__ import annotations

import itertools
import re
import runpy
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

import cachefw
from cachefw import hookspecs

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
FORMS = sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"))
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
FILES = [*FORMS, *WORKFLOWS, ROOT / ".pre-commit-config.yaml", ROOT / ".clang-format", ROOT / "mkdocs.yml"]
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}

pytestmark = pytest.mark.skipif(not (ROOT / "runtimes").exists(), reason="the core's sdist has none of these files")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def tox() -> ConfigParser:
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")
    return config


def spread(text: str) -> set[str]:
    """What ``a{b,c}`` stands for, in a list separated by commas."""
    found = set()
    for entry in re.split(r",\s*(?![^{]*\})", text):
        parts = [part.split(",") for part in re.split(r"[{}]", entry.strip())]
        found |= {"".join(each) for each in itertools.product(*parts)}
    return found


ENVS = spread(tox()["tox"]["env_list"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_can_be_read(path: Path) -> None:
    assert isinstance(load(path), dict)


def test_there_are_forms_and_workflows() -> None:
    assert [path.stem for path in WORKFLOWS] == ["ci", "wheels"]
    assert {"config", "fault"} <= {path.stem for path in FORMS}
    assert (ROOT / ".github/pull_request_template.md").exists()


@pytest.mark.parametrize("path", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.name)
def test_forms_ask_for_the_bundle(path: Path) -> None:
    form = load(path)
    assert {"name", "description", "body"} <= set(form)
    assert {part["type"] for part in form["body"]} <= KINDS
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in asked}) == len(asked)
    (bundle,) = [part for part in asked if part["id"] == "bundle"]
    assert "cachefw doctor --bundle report.json" in bundle["attributes"]["description"]
    if path.stem == "fault":
        assert bundle["validations"] == {"required": True}


def jobs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = load(ROOT / f".github/workflows/{name}.yml")["jobs"]
    return found


@pytest.mark.parametrize(
    ("path", "name", "job"),
    [(path, name, job) for path in WORKFLOWS for name, job in load(path)["jobs"].items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_jobs_are_bounded_and_named(path: Path, name: str, job: dict[str, Any]) -> None:
    assert job["timeout-minutes"] <= 60, f"{path.name}: {name}"
    for step in job["steps"]:
        assert ("uses" in step) != ("run" in step), f"{path.name}: {name}: {step}"
        # A version, so that a release of somebody else changes nothing here by itself.
        assert re.search(r"@v\d", step.get("uses", "@v0")), f"{path.name}: {name}: {step}"


def test_workflows_write_nothing() -> None:
    for path in WORKFLOWS:
        assert load(path)["permissions"] == {"contents": "read"}


def test_the_matrix_of_ci_is_that_of_tox() -> None:
    found = jobs("ci")
    matrix = found["tests"]["strategy"]["matrix"]
    tests = {f"py{python.replace('.', '')}-{part}" for python in matrix["python"] for part in matrix["part"]}
    checks = found["checks"]["strategy"]["matrix"]["env"]
    # Where torch cannot be installed, .ci/run leaves its tests out; so they are not among those of a plain `tox`.
    assert tests | set(checks) == ENVS | {"torch"}
    assert all(f"testenv:{env}" in tox() for env in ["docs", "torch"])
    assert "tox run -e ${{ matrix.env }}" in [step.get("run") for step in found["checks"]["steps"]]
    # Where UCX is missing, the tests of rdma would be skipped.
    assert any("libucx0" in step.get("run", "") and "'rdma'" in step["if"] for step in found["tests"]["steps"])


def test_what_ci_runs_here_runs_there() -> None:
    (line,) = re.findall(r"^for env in (.+); do$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert [*line.split(), "torch"] == jobs("ci")["checks"]["strategy"]["matrix"]["env"]
    assert '"$tools/bin/tox" run -e torch' in (ROOT / ".ci/run").read_text()


def test_wheels_are_built_of_every_distribution() -> None:
    found = jobs("wheels")
    matrix = found["compiled"]["strategy"]["matrix"]
    folders = {each["distribution"]: each["folder"] for each in matrix["include"]}
    assert sorted(folders) == sorted(matrix["distribution"])
    pure = " ".join(step.get("run", "") for step in found["pure"]["steps"])
    everything = {".": ROOT} | {
        str(path.parent.relative_to(ROOT)): path.parent
        for group in ("plugins", "runtimes")
        for path in ROOT.glob(f"{group}/*/pyproject.toml")
    }
    compiled = {
        name for name, folder in everything.items() if "scikit_build_core" in (folder / "pyproject.toml").read_text()
    }
    assert set(folders.values()) == compiled
    for name in everything:
        assert f" {name}" in pure
    assert found["compiled"]["env"]["CIBW_BUILD"].startswith("cp310-")
    # As `tox -e dist` does it.
    settings = {each.get("settings") for each in matrix["include"]} - {None}
    assert all(f"-C{each}" in tox()["testenv:dist"]["commands"] for each in settings)
    assert found["check"]["steps"][-1]["run"] == "python tools/check_dist.py dist"


def test_hooks_before_a_commit_have_what_they_need() -> None:
    hooks = {hook["id"]: hook for repo in load(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]}
    assert set(hooks) == {"ruff-check", "ruff-format", "mypy", "clang-format"}
    project = (ROOT / "pyproject.toml").read_text()
    lists = re.findall(r"^(?:dependencies|test) = \[\n(.*?)^\]", project, re.DOTALL | re.MULTILINE)
    needed = {name for text in lists for name in re.findall(r'^  "([\w-]+>=[\d.]+)"', text, re.MULTILINE)}
    assert {"attrs>=24.1", "pytest>=8"} <= needed
    assert needed <= set(hooks["mypy"]["additional_dependencies"])
    assert hooks["mypy"]["pass_filenames"] is False


def nav(entries: list[Any]) -> list[str]:
    pages = []
    for entry in entries:
        (value,) = entry.values()
        pages += nav(value) if isinstance(value, list) else [value]
    return pages


def test_every_page_is_in_the_navigation() -> None:
    """So does the build say; here it is said without mkdocs."""
    pages = nav(load(ROOT / "mkdocs.yml")["nav"])
    assert len(pages) == len(set(pages))
    written = {page for page in pages if not page.startswith("reference/")}
    assert all((ROOT / page).exists() for page in written)
    expected = {path.relative_to(ROOT).as_posix() for pattern in ("*.md", "docs/*.md") for path in ROOT.glob(pattern)}
    assert expected <= written


def test_nothing_is_fetched_when_a_page_is_read() -> None:
    config = load(ROOT / "mkdocs.yml")
    assert config["theme"]["font"] is False
    assert set(config["validation"]["links"].values()) == {"warn"}
    assert not any("://" in str(each) for each in [*config.get("extra_css", []), *config.get("extra_javascript", [])])


def test_the_site_says_everything_public_and_knows_what_is_foreign(tmp_path: Path) -> None:
    site = runpy.run_path(str(ROOT / "tools/site.py"))
    pages = site["reference"]()
    assert {f"reference/{name}" for name in pages} <= set(nav(load(ROOT / "mkdocs.yml")["nav"]))
    told = set(re.findall(r"^::: cachefw\.\S*?(\w+)$", "\n".join(pages.values()), re.MULTILINE))
    # What hookimpl is for, the text of its module says.
    assert set(cachefw.__all__) - {"__version__", "hookimpl"} <= told
    assert {name for name in vars(hookspecs) if name.startswith("cachefw_")} <= told
    (tmp_path / "a.html").write_text('<img src="here.png"><a href="https://example.org">x</a>')
    assert site["foreign"](tmp_path) == []
    (tmp_path / "b.html").write_text('<script async src="//cdn.example.org/x.js"></script>')
    (tmp_path / "c.css").write_text("@font-face { src: url(https://example.org/x.woff) }")
    assert [found.partition(":")[0] for found in site["foreign"](tmp_path)] == ["b.html", "c.css"]
