"""The codes that a package gives to its errors, read from its source, to be held against the catalogue."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from cachefw.catalog import Entry, core_entries

__all__ = ["codes_in", "lacking_codes"]


def _texts(node: ast.expr | None) -> Iterator[str]:
    """The texts that an expression can be; a part that is computed is ``*``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        # "" is what a value without a code has.
        yield from [node.value] if node.value else []
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
    elif isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))
    elif isinstance(node, ast.BoolOp):
        yield from (text for value in node.values for text in _texts(value))


def _assigned(node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of an assignment, tuples taken apart."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        pairs = [(node.target, node.value)]
    for target, value in pairs:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            yield from zip(target.elts, value.elts, strict=False)
        else:
            yield target, value


def codes_in(source: str) -> Iterator[tuple[int, str]]:
    """Every code in a source text, with its line: an argument or a variable ``code``, or a ``default_code``.

    A part of a code that is computed is ``*``.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            for word in node.keywords:
                if word.arg == "code":
                    yield from ((node.lineno, text) for text in _texts(word.value))
        elif isinstance(node, ast.stmt):
            for target, value in _assigned(node):
                if isinstance(target, ast.Name) and target.id in ("code", "default_code"):
                    yield from ((node.lineno, text) for text in _texts(value))


def lacking_codes(folder: Path, entries: Iterable[Entry]) -> dict[str, str]:
    """The codes in the source below a folder that neither `entries` nor the core's catalogue explain.

    Args:
        folder: A package.
        entries: What its plugin adds to the catalogue (`cachefw_diagnostics`).

    Returns:
        For each code a place where it stands, ``"file:line"``; {} when all are explained.
    """
    known = [entry.name for entry in (*core_entries(), *entries) if entry.sort in ("code", "rule")]
    lacking = {}
    for path in sorted(folder.rglob("*.py")):
        for line, code in codes_in(path.read_text(encoding="utf-8")):
            pattern = re.escape(code).replace(r"\*", r"\w+")
            if not any(re.fullmatch(pattern, name) for name in known):
                lacking[code] = f"{path.relative_to(folder)}:{line}"
    return lacking
