"""The command ``cachefw``. A subcommand is imported when it is called, so that ``cachefw --help`` answers at once."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

import click

from cachefw.config import setting
from cachefw.errors import CacheError

__all__ = ["debugging", "main"]

# Subcommand -> the module of this package that has a command of that name, and its line in the help.
_COMMANDS = {
    "config": ("config", "Show every setting, its value, and where that comes from."),
    "demo": ("demo", "Hand a KV cache from one process to another, and check every byte."),
    "doctor": ("doctor", "Find out what is wrong: on this host, or between it and a node."),
    "explain": ("explain", "Explain the code of an error, a number, a rule, a setting or a hook."),
    "new-transport": ("new_transport", "Write a distribution with a transport that works, to be changed step by step."),
    "plan": ("plan", "Check a registration without the memory or the hardware."),
    "top": ("top", "Watch a node: its links, its memory, what it moves."),
    "transports": ("transports", "Show the transports that are installed, and which can be used here."),
}


def debugging() -> bool:
    """Whether ``CACHEFW_DEBUG=1`` asks for tracebacks and for every step of a child."""
    return bool(setting("debug"))


class _Main(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"{__name__}.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, _COMMANDS)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(sorted(_COMMANDS))}."
            ctx.fail(f"no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in sorted(_COMMANDS)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CacheError as error:
            if debugging():
                raise
            click.secho("error:", fg="red", bold=True, err=True, nl=False)
            click.echo(f" {error}", err=True)
            if error.entry is not None and error.entry.causes:
                click.echo(f"cachefw explain {error.code} has likely causes.", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(130)


@click.group(
    cls=_Main,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="CACHEFW_DEBUG=1 shows the traceback behind an error.",
)
@click.version_option(package_name="cachefw", prog_name="cachefw", message="%(prog)s %(version)s")
def main() -> None:
    """Check, register and move KV-cache memory between processes."""
