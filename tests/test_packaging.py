"""One name and one version everywhere, and the tests run against what is installed."""

from __future__ import annotations

import os
import re
import sys
from configparser import ConfigParser
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

import cachefw

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))

under_tox = pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox installs wheels")
each_plugin = pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)


def settings(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def readme_command(name: str) -> list[str]:
    block = re.search(rf"<!-- command: {name} -->\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block, f"README.md has no command {name}"
    return block[1].splitlines()


@under_tox
def test_wheel_is_tested() -> None:
    assert "site-packages" in Path(cachefw.__file__).parts
    assert distribution("cachefw").version == settings(ROOT)["project"]["version"]


def test_there_are_plugins() -> None:
    assert "host" in [folder.name for folder in PLUGINS]


@each_plugin
def test_one_name(folder: Path) -> None:
    name = folder.name
    project = settings(folder)["project"]
    assert project["name"] == f"cachefw-{name}"
    assert project["entry-points"]["cachefw.plugins"] == {name: f"cachefw_{name}"}
    assert [path.name for path in (folder / "src").iterdir() if path.is_dir()] == [f"cachefw_{name}"]


@each_plugin
def test_one_version(folder: Path) -> None:
    root = settings(ROOT)["project"]
    project = settings(folder)["project"]
    assert project["version"] == root["version"]
    assert f"cachefw=={root['version']}" in project["dependencies"]
    assert project["requires-python"] == root["requires-python"]


@each_plugin
def test_tox_tests_it(folder: Path) -> None:
    name = folder.name
    tox = ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    python, factors = re.findall(r"\{([^}]*)\}", tox["tox"]["env_list"])
    assert name in factors.split(",")
    assert python.split(",") == [
        entry.rpartition(".")[2] for entry in settings(ROOT)["project"]["classifiers"] if "Python :: 3." in entry
    ]
    for option, value in {
        "package_env": f".pkg-{name}",
        "wheel_build_env": f".pkg-{name}",
        "commands": f"pytest {{posargs:plugins/{name}/tests}}",
    }.items():
        assert f"{name}: {value}" in tox["testenv"][option].splitlines()
    assert tox[f"testenv:.pkg-{name}"]["package_root"] == f"{{tox_root}}{{/}}plugins{{/}}{name}"


@each_plugin
def test_extra_or_embedded(folder: Path) -> None:
    root = settings(ROOT)
    name = folder.name
    embedded = root["project"]["entry-points"]["cachefw.plugins"]
    if name in embedded:
        assert embedded[name] == f"_cachefw_embedded.cachefw_{name}"
        assert root["tool"]["scikit-build"]["wheel"]["packages"][f"_cachefw_embedded/cachefw_{name}"]
    else:
        assert root["project"]["optional-dependencies"][name] == [f"cachefw-{name}=={root['project']['version']}"]


@pytest.mark.parametrize("folder", [ROOT, *PLUGINS], ids=lambda folder: folder.name)
def test_licence(folder: Path) -> None:
    project = settings(folder)["project"]
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"]
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_package_knows_the_version() -> None:
    assert cachefw.__version__ == settings(ROOT)["project"]["version"]


def test_changelog_knows_the_version() -> None:
    assert f"\n## {settings(ROOT)['project']['version']} " in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("name", ["demo", "test"])
def test_readme_commands_are_one_line(name: str) -> None:
    (line,) = readme_command(name)
    assert line.startswith("python3 -m venv ")
