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
RUNTIMES = sorted(path.parent for path in ROOT.glob("runtimes/*/pyproject.toml"))

under_tox = pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox installs wheels")
each_plugin = pytest.mark.parametrize("folder", PLUGINS, ids=lambda folder: folder.name)
each_distribution = pytest.mark.parametrize("folder", [*PLUGINS, *RUNTIMES], ids=lambda folder: folder.name)


def settings(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def needed(folder: Path) -> list[Path]:
    """The folders of what a distribution of this repository needs from it besides the core."""
    names = [name.partition("==")[0] for name in settings(folder)["project"]["dependencies"]]
    return [other for other in [*PLUGINS, *RUNTIMES] if f"cachefw-{other.name}" in names]


def tox() -> ConfigParser:
    config = ConfigParser(interpolation=None)
    config.read(ROOT / "tox.ini")
    return config


def in_braces(text: str) -> list[list[str]]:
    return [inside.split(",") for inside in re.findall(r"\{([^}]*)\}", text)]


def in_tox(folder: Path) -> str:
    return "{/}".join(["{tox_root}", *folder.relative_to(ROOT).parts])


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


@each_distribution
def test_one_name(folder: Path) -> None:
    name = folder.name
    project = settings(folder)["project"]
    assert project["name"] == f"cachefw-{name}"
    entry_points = {"cachefw.plugins": {name: f"cachefw_{name}"}} if folder in PLUGINS else {}
    assert project.get("entry-points", {}) == entry_points
    packages = [path.name for path in (folder / "src").iterdir() if path.is_dir()]
    assert packages == [f"cachefw_{name}"]
    assert (folder / "src" / packages[0] / "py.typed").exists()


@each_distribution
def test_one_version(folder: Path) -> None:
    root = settings(ROOT)["project"]
    project = settings(folder)["project"]
    assert project["version"] == root["version"]
    assert project["requires-python"] == root["requires-python"]
    ours = [entry for entry in project["dependencies"] if entry.startswith("cachefw")]
    names = ["cachefw", *(f"cachefw-{other.name}" for other in needed(folder))]
    assert sorted(ours) == sorted(f"{name}=={root['version']}" for name in names)


def test_nothing_builds_on_a_plugin() -> None:
    for folder in [*PLUGINS, *RUNTIMES]:
        assert set(needed(folder)) <= set(RUNTIMES)


@each_distribution
def test_tox_tests_it(folder: Path) -> None:
    name = folder.name
    config = tox()
    python, factors = in_braces(config["tox"]["env_list"])
    assert name in factors
    assert python == [
        entry.rpartition(".")[2] for entry in settings(ROOT)["project"]["classifiers"] if "Python :: 3." in entry
    ]
    for option, value in {
        "package_env": f".pkg-{name}",
        "wheel_build_env": f".pkg-{name}",
        "commands": f"pytest {{posargs:{folder.relative_to(ROOT)}/tests}}",
    }.items():
        assert f"{name}: {value}" in config["testenv"][option].splitlines()
    assert config[f"testenv:.pkg-{name}"]["package_root"] == in_tox(folder)
    for other in needed(folder):
        for option, command in {"deps": "", "commands_pre": "{[testenv]reinstall} "}.items():
            lines = [line.partition(": ") for line in config["testenv"][option].splitlines()]
            assert any(name in who.split(",") and what == command + in_tox(other) for who, _, what in lines)


def test_the_readme_tests_all_of_it() -> None:
    """So does `.ci/run`, which takes its command from there."""
    (line,) = readme_command("test")
    _, factors = in_braces(tox()["tox"]["env_list"])
    assert re.findall(r" -f (\w+)", line) == factors


@each_distribution
def test_tools_know_it(folder: Path) -> None:
    tool = settings(ROOT)["tool"]
    assert tool["uv"]["sources"][f"cachefw-{folder.name}"] == {"workspace": True}
    assert f"{folder.parent.name}/*" in tool["uv"]["workspace"]["members"]
    assert f"$MYPY_CONFIG_FILE_DIR/{folder.relative_to(ROOT)}/src" in tool["mypy"]["mypy_path"]


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


@pytest.mark.parametrize("folder", [ROOT, *PLUGINS, *RUNTIMES], ids=lambda folder: folder.name)
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
