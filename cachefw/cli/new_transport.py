"""``cachefw new-transport``: a distribution with a transport that works, to be changed step by step."""

from __future__ import annotations

import datetime
import difflib
import re
import shutil
import tempfile
from pathlib import Path

import click

from cachefw.errors import RequestError, refusal
from cachefw.plugins import catalogue
from cachefw.version import VERSION

__all__ = ["new_transport", "write"]

_SCAFFOLD = Path(__file__).with_name("scaffold")
_LICENCES = ("Apache-2.0", "MIT", "BSD-3-Clause")
#: As `TransportInfo` has it.
_NAME = r"[a-z][a-z0-9_-]{0,31}"


@click.command()
@click.argument("name")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Where to write it, a new folder; default: ./cachefw-NAME."
)
@click.option(
    "--license", "licence", type=click.Choice(_LICENCES), default=_LICENCES[0], show_default=True, help="Its licence."
)
@click.option("--holder", help="Who holds the copyright; default: the contributors of cachefw-NAME.")
def new_transport(name: str, folder: Path | None, licence: str, holder: str | None) -> None:
    """Write a distribution that brings a transport NAME, with tests that pass.

    The transport moves memory within one process. Its comments say what takes the place of what.
    """
    made = write(name, folder, licence, holder)
    click.echo(f"{made} has the transport {name!r}. Next:")
    click.echo(f"  cd {made} && pip install -e '.[test]' && pytest")


def write(name: str, folder: Path | None = None, licence: str = _LICENCES[0], holder: str | None = None) -> Path:
    """Write the distribution, all of it or nothing.

    Args:
        name: The transport's name: lower case letters, digits, ``-`` and ``_``.
        folder: A folder that does not exist yet; None for ``cachefw-NAME`` here.
        licence: One of the SPDX names Apache-2.0, MIT and BSD-3-Clause.
        holder: Who holds the copyright.

    Returns:
        The folder.

    Raises:
        RequestError: Also a `ValueError`: the name cannot be a transport's or is taken, or the folder exists or cannot
            be written.
    """
    _check_name(name)
    folder = Path(f"cachefw-{name}") if folder is None else folder
    if folder.exists() or folder.is_symlink():
        raise _bad(f"{folder} exists already; nothing was written. Name another with --folder, or move it away")
    package = f"cachefw_{name.replace('-', '_')}"
    distribution = f"cachefw-{name.replace('_', '-')}"
    values = {
        "name": name,
        "Class": "".join(part.capitalize() for part in re.split("[-_]", name)),
        "package": package,
        "distribution": distribution,
        # Eight bytes, by which a card or a description of another transport is told from one's own.
        "magic": name[:8].ljust(8, "-"),
        "licence": licence,
        "version": VERSION,
        "year": str(datetime.date.today().year),
        "holder": holder or f"the contributors of {distribution}",
    }
    files = {
        "pyproject.toml": "pyproject.toml.in",
        "tox.ini": "tox.ini.in",
        "README.md": "README.md.in",
        ".gitignore": "gitignore.in",
        "LICENSE": f"LICENSE-{licence}",
        f"src/{package}/__init__.py": "__init__.py.in",
        f"src/{package}/transport.py": "transport.py.in",
        "tests/test_conformance.py": "test_conformance.py.in",
    }
    try:
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise _bad(f"{folder} cannot be written: {error}; nothing was written") from None
    try:
        for path, template in files.items():
            target = draft / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_filled(template, values), encoding="utf-8")
        draft.chmod(0o755)
        draft.rename(folder)
    except OSError as error:
        raise _bad(f"{folder} cannot be written: {error}; nothing was written") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _filled(template: str, values: dict[str, str]) -> str:
    text = (_SCAFFOLD / template).read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], text)


def _check_name(name: str) -> None:
    if not re.fullmatch(_NAME, name):
        near = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")
        near = re.sub(r"^[^a-z]+", "", near)[:32]
        hint = f"; did you mean {near!r}?" if near else ""
        raise _bad(
            f"{name!r} cannot be a transport's name: it has lower case letters, digits, - and _, begins with a letter, "
            f"and has at most 32 characters{hint}"
        )
    plugins = catalogue.plugins()
    if name in plugins:
        free = next(f"{name}-{number}" for number in range(2, 1000) if f"{name}-{number}" not in plugins)
        raise _bad(f"{name!r} is taken by the {plugins[name]}; did you mean a new one, such as {free[:32]!r}?")
    for near in difflib.get_close_matches(name, plugins, 1, 0.85):
        click.echo(f"note: {near!r} is installed, and reads much like {name!r}", err=True)


def _bad(text: str) -> Exception:
    return refusal(RequestError, {ValueError}, text, operation="new-transport")
