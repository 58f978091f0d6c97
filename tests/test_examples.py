"""No example of the documentation is left untried: each block of code is run, or says who runs it, or why nobody can.

Python blocks of the pages that `test_docs.py` reads are run there, with the text that follows them. Blocks in
``console`` are run here: what stands after a command is in its output, in this order; ``...`` stands for anything.
Before any other block stands a comment: ``<!-- tested by PATH -->`` or ``<!-- not run: REASON -->``.
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

import cachefw

ROOT = Path(__file__).resolve().parents[1]
PATTERNS = ["*.md", "docs/*.md", "plugins/**/README.md", "runtimes/**/README.md", "examples/**/README.md"]
OURS = {"plugins", "runtimes", "examples", "docs"}
DOCS = runpy.run_path(str(ROOT / "tests/test_docs.py"))
SECONDS = 60


@attrs.frozen
class Block:
    """A block of code on a page, the comment before it, and whether it follows a python block at once."""

    page: Path
    line: int
    language: str
    text: str
    comment: str
    follows_python: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    found: list[Block] = []
    fence, start, end = "", 0, -2
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        if not fence and line.startswith("```"):
            fence, start = line, number
        elif fence and line == "```":
            comment = re.fullmatch(r"<!-- (.+) -->", lines[start - 2])
            at_once = bool(found) and found[-1].language == "python" and start == end + 2
            text = "\n".join([*lines[start : number - 1], ""])
            found.append(Block(page, start, fence[3:], text, comment[1] if comment else "", at_once))
            fence, end = "", number
    assert not fence, f"{page.name}:{start}: this block does not end"
    return found


def pages() -> list[Path]:
    found = {path for pattern in PATTERNS for path in ROOT.glob(pattern)}
    tools = {".tox", "build", "dist", "node_modules"}
    return sorted(path for path in found if not tools.intersection(path.relative_to(ROOT).parts))


BLOCKS = [block for page in pages() for block in blocks(page)]
CONSOLE = [block for block in BLOCKS if block.language == "console"]


def elsewhere(block: Block) -> bool:
    """Whether `test_docs.py` runs it, or compares it with what was run."""
    read = block.page in DOCS["PAGES"]
    program = re.match(r"# \w+\.py\n", block.text)
    told = block.comment.startswith(("tested by", "not run"))
    return read and (
        (block.language == "python" and not program and not told) or (block.language == "text" and block.follows_python)
    )


def test_there_are_examples() -> None:
    assert len(CONSOLE) >= 10
    assert sum(elsewhere(block) for block in BLOCKS) >= 25


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_stands_between_fences(page: Path) -> None:
    """Of code that is only indented nothing is known, and it would be left untried."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"^\n    (?! *[-*] ).+", text, re.MULTILINE) == []


@pytest.mark.parametrize("block", [block for block in BLOCKS if not elsewhere(block)], ids=str)
def test_each_example_is_tried_or_says_why_not(block: Block) -> None:
    if block.language == "console" and not block.comment:
        return
    kind, _, rest = re.sub(r"^(tested by|not run:|command:|example) ?", r"\1\n", block.comment).partition("\n")
    here = f"{block}: put <!-- tested by PATH --> or <!-- not run: REASON --> before this block"
    assert kind in ("tested by", "not run:", "command:"), here
    if kind == "tested by":
        # The tests of another distribution are not beside the core's everywhere.
        if (ROOT / "runtimes").exists() or rest.startswith("tests/"):
            assert block.page.name in (ROOT / rest).read_text(), f"{block}: {rest} does not read {block.page.name}"
    elif kind == "not run:":
        assert len(rest.split()) >= 4, f"{block}: say why, in words"
    else:
        assert rest in ("demo", "test"), f"{block}: .ci/run has no command {rest}"


@pytest.mark.parametrize(
    "path", sorted({path for block in BLOCKS for path in re.findall(r"\S+/test_\w+\.\w+", block.comment)})
)
def test_what_runs_them_exists(path: str) -> None:
    if not (ROOT / "runtimes").exists() and not path.startswith("tests/"):
        pytest.skip("the core's sdist brings no other distribution")
    assert (ROOT / path).exists()


def commands(block: Block) -> list[tuple[str, str]]:
    """Each command of a console block, and the output that the page shows for it."""
    parts = re.split(r"^\$ (.+)\n", block.text, flags=re.MULTILINE)
    assert not parts[0], f"{block}: a console block begins with a command"
    return list(zip(parts[1::2], parts[2::2], strict=True))


def stands_in(shown: str, printed: str) -> bool:
    """Whether the pieces of `shown` between lines of dots are in `printed` in this order. Tables may be wider there."""
    printed, position = re.sub(" +", " ", printed), 0
    for part in re.split(r"^ *\.\.\.\n", shown, flags=re.MULTILINE):
        piece = re.sub(" +", " ", part).strip("\n")
        position = printed.find(piece, position)
        if position < 0:
            return False
        position += len(piece)
    return True


@pytest.mark.parametrize("block", CONSOLE, ids=str)
def test_commands_run_and_print_what_the_page_says(block: Block, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CACHEFW_")}
    environment |= {"COLUMNS": "80", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for line, shown in commands(block):
        words = shlex.split(line, comments=True)
        assert words[0] in ("cachefw", "python"), f"{block}: only our own commands can be run here: {line}"
        absent = [name for name in ("hccs", "rdma") if name in words and name not in DOCS["catalogue"].plugins()]
        if absent or ("507899" in words and "hccs" not in DOCS["catalogue"].plugins()):
            pytest.skip(f"{line}: not every plugin of this repository is installed")
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert "Traceback" not in done.stderr
        assert "Usage:" not in done.stderr, f"{block}: {line}\n{done.stderr}"
        # What the doctor finds is the machine's: its code tells healthy, warnings or broken.
        assert done.returncode in ((0, 1, 2) if "doctor" in words else (0,)), f"{block}: {line}\n{done.stderr}"
        assert stands_in(shown, done.stdout), f"{block}: {line} prints\n{done.stdout}"


def test_dots_stand_for_anything() -> None:
    printed = "one\ntwo\nthree\n"
    assert stands_in("one\n...\nthree\n", printed)
    assert stands_in("", printed)
    assert not stands_in("three\n...\none\n", printed)
    assert not stands_in("one\nthree\n", printed)


def test_the_kit_of_conformance_md_is_one(tmp_path: Path) -> None:
    (program,) = [block for block in blocks(ROOT / "docs/conformance.md") if block.language == "python"]
    (tmp_path / "test_conformance.py").write_text(program.text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "registration or probe", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout
    assert "transport 'host': " in done.stdout


def test_every_command_has_its_heading() -> None:
    """With the line that `cachefw --help` has for it."""
    known = importlib.import_module("cachefw.cli")._COMMANDS
    page = (ROOT / "docs/commands.md").read_text()
    found = re.findall(r"^## `cachefw ([\w-]+)`\n\n(.+)$", page, re.MULTILINE)
    assert [name for name, _ in found] == sorted(known)
    for name, line in found:
        assert line.startswith(known[name][1]), f"docs/commands.md says another thing of {name} than cachefw --help"
        assert re.search(rf"^(\$ )?cachefw {name}\b", page, re.MULTILINE), f"docs/commands.md has no example of {name}"


def test_the_lines_of_observing_md_work() -> None:
    pytest.importorskip("prometheus_client")
    pytest.importorskip("opentelemetry.sdk")
    metrics, spans = [
        block.text for block in blocks(ROOT / "docs/observing.md") if block.comment.startswith("tested by")
    ]
    names: dict[str, Any] = {"cachefw": cachefw}
    with cachefw.Node(2, metrics=True) as names["node"]:
        # On any port that is free.
        exec(metrics.replace("port=9400", "port=0"), names)
        names["server"].close()
    exec(spans, names)
    names["node"].close()
