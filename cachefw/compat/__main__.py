"""``python -m cachefw.compat run``: run a program with other libraries' imports answered by cachefw."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from cachefw import compat
from cachefw.compat import program
from cachefw.errors import CacheError

__all__ = ["main"]


@click.group()
def main() -> None:
    """Run programs written for other libraries on cachefw."""


@main.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="PROGRAM is the name of a module, as for `python -m`.")
@click.option("--mooncake", is_flag=True, help="Answer imports of mooncake.engine as well.")
@click.option("--npu", is_flag=True, help='Give torch a device "npu" that is ordinary memory (CACHEFW_NPU=1).')
@click.option("--transports", metavar="NAMES", help="Transports to use whatever the program asks (CACHEFW_TRANSPORTS).")
@click.option("--replace", is_flag=True, help="Put aside packages of these names that are really installed.")
@click.argument("target", metavar="PROGRAM")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def run(
    module: bool, mooncake: bool, npu: bool, transports: str | None, replace: bool, target: str, args: tuple[str, ...]
) -> NoReturn:
    """Run PROGRAM with ARGS as `python PROGRAM ARGS...` would, with llm_datadist and hixl answered by cachefw.

    Python processes that the program starts do the same.
    """
    if transports is not None:
        os.environ["CACHEFW_TRANSPORTS"] = transports
    if npu:
        os.environ["CACHEFW_NPU"] = "1"
    prepare = program.module if module else program.script
    try:
        ready = prepare(target, args)
        # After the program's own folder came to the path: a module of the name in it is a real one too.
        names = compat.install(*compat.DEFAULT, *(["mooncake"] if mooncake else []), replace=replace)
    except (CacheError, program.NoProgram) as error:
        click.echo(f"python -m cachefw.compat run: {error}", err=True)
        sys.exit(2)
    os.environ.update(compat.child_environment(names))
    raise _Ready(ready)


class _Ready(Exception):
    """Carries the program out of click, which would otherwise have a say in its exit code and tracebacks."""

    def __init__(self, ready: program.Program) -> None:
        super().__init__()
        self.ready = ready


if __name__ == "__main__":
    try:
        main(prog_name="python -m cachefw.compat")
    except _Ready as carried:
        chosen = carried.ready
    chosen.run()
