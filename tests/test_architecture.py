"""The page that a newcomer reads first is true: its rooms are those of the imports, and what it names exists."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
IN_BACKTICKS = re.compile(r"`([^`]+)`")


def layering() -> ModuleType:
    """The test of the imports, which knows them all. Not a package, so loaded by its path."""
    spec = importlib.util.spec_from_file_location("architecture_layering", ROOT / "tests/test_layering.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LAYERING = layering()
EXISTING = {LAYERING.unit(path) for path in LAYERING.CORE} - LAYERING.UNRANKED


def rows(heading: str) -> list[list[str]]:
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = re.findall(r"^\| (.+) \|$", part, re.MULTILINE)
    return [line.split(" | ") for line in lines[1:]]


ROOMS = {room: IN_BACKTICKS.findall(modules) for room, modules, _ in rows("The rooms of the core")}
ROOM_OF = {module: room for room, modules in ROOMS.items() for module in modules}


def test_every_module_has_its_room() -> None:
    named = [module for modules in ROOMS.values() for module in modules]
    assert sorted(named) == sorted(EXISTING), "ARCHITECTURE.md names each module of the core in one room"


@pytest.mark.parametrize("room", ROOMS)
def test_modules_of_a_room_stand_in_the_order_of_the_layers(room: str) -> None:
    ranks = [LAYERING.RANK[module] for module in ROOMS[room]]
    assert ranks == sorted(ranks)


def test_a_room_imports_from_the_rooms_above_it() -> None:
    order = list(ROOMS)
    seen = set()
    for path in LAYERING.CORE:
        here = LAYERING.unit(path)
        for line, there in LAYERING.core_units(path, LAYERING.package_of(path, ROOT)):
            if here in ROOM_OF and there in ROOM_OF:
                seen.add((ROOM_OF[here], ROOM_OF[there]))
                up = order.index(ROOM_OF[there]) <= order.index(ROOM_OF[here])
                assert up, f"{path.name}:{line}: {here} ({ROOM_OF[here]}) imports {there} ({ROOM_OF[there]})"
    assert ("manager", "registration") in seen


def test_what_a_plugin_may_import() -> None:
    (sentence,) = re.findall(r"^A plugin imports (.+), the runtime", PAGE, re.MULTILINE)
    assert set(IN_BACKTICKS.findall(sentence)) == LAYERING.PLUGIN_MAY


def test_the_picture_names_modules_that_exist() -> None:
    (picture,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    begins = re.findall(r"^ {4}((?:[a-z_.]+(?:, )?)+)  ", picture, re.MULTILINE)
    named = {name for words in begins for name in words.split(", ")}
    assert {"planning", "hooks", "registrar", "layout", "links.transfers", "links.table", "reports"} <= named
    for name in named:
        path = ROOT / "cachefw" / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), f"ARCHITECTURE.md names {name}"


@pytest.mark.skipif(not (ROOT / "runtimes").exists(), reason="the core's sdist brings no other distribution")
def test_folders_and_files_that_it_names_exist() -> None:
    files = [name for row in rows("What is where") for name in IN_BACKTICKS.findall(row[0])]
    files += [name for row in rows("Where to begin") for cell in row for name in IN_BACKTICKS.findall(cell)]
    paths = [name.replace("NAME", "*") for name in files if "/" in name]
    assert len(paths) > 15
    for name in paths:
        assert list(ROOT.glob(name)), f"ARCHITECTURE.md names {name}"


def test_every_distribution_is_in_the_table() -> None:
    named = {name for row in rows("What is where") for name in IN_BACKTICKS.findall(row[1])}
    folders = [path.parent.name for group in ("plugins", "runtimes") for path in ROOT.glob(f"{group}/*/pyproject.toml")]
    assert {f"cachefw-{folder}" for folder in folders} | {"cachefw"} <= named


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_a_newcomer_finds_it(page: str) -> None:
    assert "](ARCHITECTURE.md)" in (ROOT / page).read_text()
