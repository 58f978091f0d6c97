"""Build the documentation site into a folder, which is the only argument: `python tools/site.py FOLDER`.

The pages stay where they are; here they are gathered with their links unchanged, and those that are generated from the
code are added. A warning of mkdocs is an error, and so is a page that needs the network.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

# What is gathered. Markdown of tests that is a sample, and not a page, has no place here.
PAGES = [
    "*.md",
    "LICENSE",
    "docs/**/*",
    "plugins/**/README.md",
    "runtimes/**/README.md",
    "examples/**/README.md",
    "tests/*/README.md",
]
# Modules that plugins import, of which everything public is shown; of others, the names of the package `cachefw`.
CONTRACT = ["catalog", "rules", "transport"]
LEFT_BY_TOOLS = {".tox", ".venv", "build", "dist", "node_modules", ".pytest_cache"}

CSS = """
/* Tables may scroll; the words in them are not torn apart. */
.md-typeset td code { word-break: normal; overflow-wrap: break-word; }
.md-typeset td:first-child code { white-space: nowrap; }
.md-typeset table:not([class]) { font-size: .68rem; }
.md-grid { max-width: 74rem; }
.doc-contents { padding-left: 1rem; border-left: .1rem solid var(--md-default-fg-color--lightest); }
"""

COMMANDS = """# Options of the commands

What `cachefw COMMAND --help` says; [Commands](../docs/commands.md) says what each is for.

::: mkdocs-click
    :module: cachefw.cli
    :command: main
    :prog_name: cachefw
    :style: plain
    :depth: 1
    :remove_ascii_art: true
"""


def gather(to: Path) -> None:
    """Copy the pages, and what they link to."""
    found = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    pages = {path for path in found if path.is_file() and not LEFT_BY_TOOLS.intersection(path.relative_to(ROOT).parts)}
    linked = {
        (page.parent / target).resolve()
        for page in pages
        if page.suffix == ".md"
        for target in re.findall(r"\]\(([^)#:]+)", page.read_text())
    }
    for path in sorted(pages | {path for path in linked if path.is_file() and ROOT in path.parents}):
        copy = to / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def literal(module: str, name: str) -> Any:
    """A constant of a module of cachefw, without importing it."""
    path = ROOT / "cachefw" / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id == name for each in node.targets
        ):
            return ast.literal_eval(node.value)
    raise LookupError(f"{path} has no {name}")


def enumerations() -> set[str]:
    """Classes whose members are shown though they have no docstrings."""
    classes = re.compile(r"^class (\w+)\(enum\.(?:Enum|Flag|IntEnum|IntFlag)\):", re.MULTILINE)
    return {name for path in (ROOT / "cachefw").rglob("*.py") for name in classes.findall(path.read_text())}


def block(name: str, **options: bool) -> str:
    """What mkdocstrings puts the documentation of `name` in the place of."""
    lines = [f"      {option}: {str(value).lower()}" for option, value in options.items()]
    return "\n".join([f"::: cachefw.{name}", *(["    options:", *lines] if lines else []), ""])


def reference() -> dict[str, str]:
    """Name of a page -> its text: one for each module that has public names, and one for the command line."""
    members: dict[str, list[str]] = {module: literal(module, "__all__") for module in CONTRACT}
    for name, home in literal("", "_HOMES").items():
        if home not in CONTRACT:
            members.setdefault(home, []).append(name)
    enums = enumerations()
    pages = {"commands.md": COMMANDS}
    for home, names in members.items():
        shown = [
            block(
                f"{home}.{name}",
                **({"show_if_no_docstring": True, "inherited_members": False} if name in enums else {}),
            )
            for name in names
        ]
        pages[f"{home}.md"] = "\n".join([f"# cachefw.{home}\n", *shown])
    hooks = re.findall(r"^def (cachefw_\w+)", (ROOT / "cachefw/hookspecs.py").read_text(), re.MULTILINE)
    head = block("hookspecs", members=False, show_root_heading=False, show_root_toc_entry=False)
    pages["hookspecs.md"] = "\n".join(["# cachefw.hookspecs\n", head, *(block(f"hookspecs.{name}") for name in hooks)])
    return pages


def foreign(site: Path) -> list[str]:
    """What a browser would fetch from elsewhere while it shows a page."""
    pattern = re.compile(
        r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^"'> ]+|url\(["']?https?:[^)]+"""
    )
    found = []
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        found += [f"{path.relative_to(site)}: {match[0]}" for match in pattern.finditer(path.read_text())]
    return found


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("give one folder to build into: python tools/site.py FOLDER")
    site = Path(sys.argv[1]).resolve()
    if site.exists() and any(site.iterdir()) and not (site / "search/search_index.json").exists():
        sys.exit(f"{site} holds something else, which would be deleted: give a new folder, or that of an earlier site")
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder).resolve() / "pages"
        gather(pages)
        (pages / "site.css").write_text(CSS)
        (pages / "reference").mkdir()
        for name, text in reference().items():
            (pages / "reference" / name).write_text(text)
        config = pages.parent / "mkdocs.yml"
        settings = [
            f"INHERIT: {ROOT / 'mkdocs.yml'}",
            f"docs_dir: {pages}",
            f"site_dir: {site}",
            "plugins: {mkdocstrings: {handlers: {python: {paths: ['" + str(ROOT) + "']}}}}",
        ]
        config.write_text("\n".join(settings) + "\n")
        environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "-f", str(config)]
        done = subprocess.run(command, cwd=pages.parent, env=environment, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    if found := foreign(site):
        sys.exit("\n".join(["these pages need the network:", *found]))
    print(f"{len(list(site.rglob('*.html')))} pages: {site / 'index.html'}")


if __name__ == "__main__":
    main()
