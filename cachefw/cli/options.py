"""A command that opens one transport, whose own options it takes besides its own."""

from __future__ import annotations

import click

from cachefw.config import setting
from cachefw.errors import PluginError, TransportUnavailable
from cachefw.plugins import catalogue

__all__ = ["TransportCommand", "default_transport"]


def default_transport() -> str:
    """The transport of a command that is given none.

    Raises:
        TransportUnavailable: The setting names none.
    """
    names: tuple[str, ...] = setting("transports")
    if not names:
        raise TransportUnavailable("the setting CACHEFW_TRANSPORTS names no transport; give --transport")
    return names[0]


class TransportCommand(click.Command):
    """Adds the options that the transport of ``--transport`` brings (`TransportInfo.options`).

    The callback gets what they were given as ``transport_settings``, a dictionary by setting. Like others, an option
    that is given twice counts the last time.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the transport first, then parse with its options too."""
        own = list(self.params)
        chosen = _chosen(own, args)
        flags = {flag for parameter in own for flag in parameter.opts}
        extra = _options(default_transport() if chosen is None else chosen, flags)
        ctx.meta[__name__] = list(extra.values())
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if chosen is not None:
                raise
            text = f"{error.message} If it is one of a transport, name that with --transport."
            raise click.NoSuchOption(error.option_name, text, error.possibilities, ctx) from None
        given = {setting: ctx.params.pop(str(option.name)) for setting, option in extra.items()}
        ctx.params["transport_settings"] = {name: value for name, value in given.items() if value is not None}
        return rest

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Those of the command, then those of the transport, then ``--help``."""
        *own, last = super().get_params(ctx)
        return [*own, *ctx.meta.get(__name__, ()), last]


def _chosen(own: list[click.Parameter], args: list[str]) -> str | None:
    """What ``--transport`` says, whatever else is there."""
    transport = next(parameter for parameter in own if parameter.name == "transport")
    context = {"ignore_unknown_options": True, "allow_extra_args": True}
    look = click.Command("look", params=[transport], add_help_option=False, context_settings=context)
    with look.make_context("look", list(args), resilient_parsing=True) as found:
        name: str | None = found.params["transport"]
    return name


def _options(transport: str, taken: set[str]) -> dict[str, click.Option]:
    """A transport's options, by setting.

    Raises:
        TransportUnavailable: There is no such transport.
        PluginError: One of them exists already.
    """
    plugin = catalogue.get(transport)
    made: dict[str, click.Option] = {}
    for option in plugin.info.options if plugin.info is not None else ():
        if option.flag in taken or option.setting in made:
            raise PluginError(
                f"{plugin} brings the option {option.flag} for its setting {option.setting}; one of them exists "
                "already, so its author has to name it otherwise",
                transport=transport,
            )
        taken = {*taken, option.flag}
        help_text = f"Of transport {transport}: {option.summary}"
        names = [option.flag, f"transport_setting_{len(made)}"]
        made[option.setting] = click.Option(names, metavar=option.metavar, help=help_text)
    return made
