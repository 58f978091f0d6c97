"""Text for narrow and wide terminals, pipes and people who want no colour."""

from __future__ import annotations

import os
import shutil
import textwrap

import click

__all__ = ["HEALTH_STYLES", "say", "styled", "width"]

#: How `cachefw.catalog.Health` looks, by its value.
HEALTH_STYLES = {"ok": "green", "note": "cyan", "not checked": "magenta", "warning": "yellow", "broken": "red"}


def width() -> int:
    """Columns to write: those of the terminal, 80 where there is none; lines of more than 100 are hard to read."""
    return max(40, min(100, shutil.get_terminal_size((80, 24)).columns))


def styled(text: str, colour: str = "", *, bold: bool = False, dim: bool = False) -> str:
    """Text with colour; click takes it out again where the output is no terminal."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, fg=colour or None, bold=bold or None, dim=dim or None)


def say(text: str = "", indent: int = 0, hang: int | None = None, colour: str = "", *, dim: bool = False) -> None:
    """Print a paragraph, its lines as they are, each wrapped.

    Args:
        text: Lines; blank ones stay.
        indent: Columns before the first line.
        hang: Columns before the others; None for as many.
        colour: Of all of it.
        dim: Whether it is less important.
    """
    later = indent if hang is None else hang
    for number, line in enumerate(text.splitlines() or [""]):
        own = len(line) - len(line.lstrip(" "))
        begin = (indent if number == 0 else later) + own
        wrapped = textwrap.wrap(
            line.strip(),
            width(),
            initial_indent=" " * begin,
            subsequent_indent=" " * (later + own),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for each in wrapped or [""]:
            click.echo(styled(each, colour, dim=dim) if colour or dim else each)
