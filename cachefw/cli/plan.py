"""``cachefw plan``: a dry run of registrations, for any machine, without memory or hardware."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import attrs
import click

from cachefw.cache import CacheDesc, Placement
from cachefw.catalog import MachineProfile
from cachefw.cli.description import DATA_TYPES, KINDS, Description, read
from cachefw.cli.models import MODELS, Model, near_models
from cachefw.cli.planned import facts_of, show
from cachefw.config import setting
from cachefw.diagnostics import everything
from cachefw.dry import DryCache, dry_run, lay_out
from cachefw.memory import MemoryKind
from cachefw.plugins import catalogue
from cachefw.rules import Limits

__all__ = ["plan"]


@attrs.frozen
class _Share:
    """What one rank of a model holds."""

    model: Model
    layers: int
    heads: int
    block_tokens: int
    blocks: int
    words: str

    @property
    def tensors(self) -> int:
        return self.layers * len(self.model.parts)


def _bad(text: str, option: str) -> click.BadParameter:
    return click.BadParameter(text, param_hint=f"'--{option}'")


def _share(name: str, tp: int, pp: int, tokens: int, block_size: int | None) -> _Share:
    if name not in MODELS:
        raise _bad(f"no model {name!r}; {near_models(name)}", "model")
    model = MODELS[name]
    latent = model.parts == ("latent",)
    if pp > model.layers:
        raise _bad(f"{model.name} has {model.layers} layers, and {pp} stages are more than that", "pp")
    if not latent and model.heads % tp and tp % model.heads:
        fit = ", ".join(str(n) for n in range(1, model.heads + 1) if model.heads % n == 0)
        raise _bad(f"{model.heads} key/value heads do not divide over {tp} ranks; these do: {fit}, and multiples", "tp")
    heads = model.heads if latent else max(1, model.heads // tp)
    layers = -(-model.layers // pp)
    block_tokens = block_size or model.block_tokens
    if tokens < 1:
        raise _bad(f"{tokens} is no number of tokens", "tokens")
    words = f"{model.name}, {tokens:,} tokens in blocks of {block_tokens}, one of {tp * pp} ranks (tp {tp}, pp {pp})"
    if latent and tp > 1:
        words += "; its latent cache is whole on every rank of tp"
    elif tp > model.heads:
        words += "; key/value heads are held more than once"
    if model.layers % pp:
        words += f"; {layers} layers on the largest stage"
    return _Share(model, layers, heads, block_tokens, -(-tokens // block_tokens), words)


def _cache(share: _Share, memory: str, data_type: str | None, align: int, blocks: int | None = None) -> DryCache:
    kind = KINDS[memory]
    shape = (blocks or share.blocks, share.block_tokens, share.heads, share.model.head_size)
    chosen = share.model.data_type if data_type is None else DATA_TYPES[data_type]
    placement = Placement.DEVICE if kind is MemoryKind.DEVICE else Placement.HOST
    desc = CacheDesc(share.tensors, shape, chosen, placement)
    return DryCache(share.model.name, desc, lay_out(desc, kind, align), kind)


@click.command()
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--model", help=f"Instead of FILE, a model's cache: {', '.join(MODELS)}.")
@click.option("--tokens", type=int, default=65536, show_default=True, help="Tokens that the cache has room for.")
@click.option("--block-size", type=click.IntRange(1, 65536), help="Tokens in a block; default: the model's.")
@click.option("--tp", type=click.IntRange(1, 4096), default=1, show_default=True, help="Tensor parallelism.")
@click.option("--pp", type=click.IntRange(1, 4096), default=1, show_default=True, help="Pipeline parallelism.")
@click.option("--data-type", type=click.Choice(sorted(DATA_TYPES)), help="Of the elements; default: the model's.")
@click.option(
    "--memory",
    type=click.Choice(sorted(KINDS)),
    help="Where the cache lies; default: what the first transport takes, device memory first.",
)
@click.option(
    "--align",
    type=click.IntRange(1, 2**40),
    default=2 * 2**20,
    show_default=True,
    help="Bytes at a multiple of which each tensor is to start.",
)
@click.option(
    "--transport",
    "transports",
    multiple=True,
    help="Whose rules; may be repeated. Default: the file's, else CACHEFW_TRANSPORTS.",
)
@click.option("--profile", help="The machine to assume, e.g. A2; default: the file's, else none.")
@click.option("--linked", is_flag=True, help="Plan for a node that has a link already.")
@click.option("--strict", is_flag=True, help="Count what could not be checked as refused.")
@click.option("--verbose", "-v", is_flag=True, help="Show every rule in full.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(
    file: Path | None,
    model: str | None,
    tokens: int,
    block_size: int | None,
    tp: int,
    pp: int,
    data_type: str | None,
    memory: str | None,
    align: int,
    transports: tuple[str, ...],
    profile: str | None,
    linked: bool,
    strict: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Check a registration without the memory or the hardware.

    FILE says in JSON or YAML what would be registered; --model makes one rank's cache of a model instead. The rules of
    transports whose hardware is elsewhere are run, too. Nothing is opened, allocated or changed.

    \b
      cachefw plan cache.yaml --transport hccs --profile A3
      cachefw plan --model llama-3.1-8b --tp 2 --tokens 131072 --transport hccs --profile A2

    The exit code is 0 when nothing is refused, else 1.
    """  # noqa: D301 - click takes the character for "leave these lines"
    if (file is None) is (model is None):
        raise click.UsageError("give either FILE or --model")
    share = None if model is None else _share(model, tp, pp, tokens, block_size)
    told = read(file) if file is not None else Description((), None, False, Limits(), (), ())
    names = transports or told.transports or tuple(setting("transports"))
    assumed = profile if profile is not None else told.profile
    _check_profile(names, assumed)
    caches = told.caches
    if share is not None:
        memory = memory or _memory(names)
        caches = (_cache(share, memory, data_type, align),)
    run = dry_run(
        names,
        caches,
        told.memories,
        profile=assumed,
        limits=told.limits,
        linked=linked or told.linked,
    )
    facts = facts_of(run)
    if share is not None and memory is not None:
        facts["model"] = {"words": share.words, "blocks": share.blocks, "block_tokens": share.block_tokens}
        facts["model"]["fits"] = _fits(share, memory, data_type, align, told.limits)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        show(run, facts, verbose=verbose)
    unsure = strict and any(step.plan.not_checked for step in run.steps)
    raise click.exceptions.Exit(0 if run.ok and not unsure else 1)


def _memory(names: tuple[str, ...]) -> str:
    """What the first transport takes: device memory if it does, else host memory."""
    info = catalogue.get(names[0]).info
    kinds = info.kinds if info is not None else frozenset()
    order = (MemoryKind.DEVICE, MemoryKind.HOST, MemoryKind.PINNED)
    return next((kind.name.lower() for kind in order if kind in kinds), MemoryKind.HOST.name.lower())


def _check_profile(names: tuple[str, ...], profile: str | None) -> None:
    """Refuse a profile that no transport knows, with near matches; the others have rules of their own for it."""
    for name in names:
        catalogue.get(name)
    if profile is None:
        return
    known: dict[str, MachineProfile] = {}
    for name, rows in everything().profiles.items():
        if name in names:
            known.update((row.name, row) for row in rows)
    if not known:
        raise _bad(f"{', '.join(names)} knows no profiles; leave it out", "profile")
    if profile in known or profile.partition("/")[0] in known:
        return
    folded = {name.lower(): name for name in known}
    near = [folded[name] for name in difflib.get_close_matches(profile.lower(), folded, 2, 0.4)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    listed = ", ".join(f"{name} ({row.products})" for name, row in known.items())
    raise _bad(f"no profile {profile!r}; {hint}there are {listed}", "profile")


def _fits(share: _Share, memory: str, data_type: str | None, align: int, limits: Limits) -> dict[str, int]:
    """How many blocks, and tokens, the limits of one node leave room for."""
    one = _cache(share, memory, data_type, align, blocks=1).desc
    limit = limits.device_bytes if memory == "device" else limits.host_bytes
    blocks = limit // (one.size * one.num_tensors)
    return {"blocks": blocks, "tokens": blocks * share.block_tokens, "limit_bytes": limit}
