"""``cachefw demo``: two processes hand over a KV cache; this one starts them, listens, and draws."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import click

from cachefw.cli import reports
from cachefw.cli.children import Child, DemoError, Family
from cachefw.cli.models import MODELS, Model, near_models
from cachefw.cli.options import TransportCommand, default_transport
from cachefw.cli.pattern import Places
from cachefw.cli.pool import kind_for, pitch
from cachefw.errors import OutOfMemoryError, TransportUnavailable, UnsupportedOperation
from cachefw.memory import MemoryKind
from cachefw.plugins import catalogue
from cachefw.transport import Capability

__all__ = ["Outcome", "demo", "hand_over", "memory_available"]

Listener = Callable[[Child, reports.Report], None]


@attrs.frozen
class Outcome:
    """What the demo found, ready to show."""

    task: reports.Task
    model: Model
    kind: MemoryKind
    prefill_settings: dict[str, Any]
    result: reports.Result

    @property
    def blocks(self) -> int:
        """Blocks of one pull, in each tensor."""
        return self.model.blocks_for(self.task.tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of one pull."""
        return self.model.nbytes(self.task.tokens)

    @property
    def verified(self) -> bool:
        """Whether every block was as it had to be."""
        return self.result.wrong == 0

    def mismatch(self) -> DemoError:
        """The error that says which blocks were wrong."""
        result = self.result
        lines = [f"{result.wrong:,} of {result.checked + result.spared:,} blocks are not as they have to be:"]
        lines += [f"  {example}" for example in result.examples]
        if result.wrong > len(result.examples):
            lines.append(f"  and {result.wrong - len(result.examples):,} more")
        return DemoError("\n".join(lines), code="demo.mismatch")

    def facts(self) -> dict[str, Any]:
        """The object that ``--json`` prints. ``seconds`` and ``gb_per_s`` are those of the warm pull."""
        result, nbytes = self.result, self.nbytes
        return {
            "transport": self.task.transport,
            "remark": result.remark,
            "path": result.path,
            "memory": self.kind.value,
            "prefill_settings": self.prefill_settings,
            "decode_settings": result.settings,
            "model": self.model.name,
            "tokens": self.task.tokens,
            "bytes": nbytes,
            "blocks": self.blocks,
            "tensors": self.model.tensors,
            "seconds": result.warm_seconds,
            "gb_per_s": nbytes / result.warm_seconds / 1e9,
            "cold_seconds": result.cold_seconds,
            "cold_gb_per_s": nbytes / result.cold_seconds / 1e9,
            "memcpy_gb_per_s": nbytes / result.memcpy_seconds / 1e9,
            "share_of_memcpy": result.memcpy_seconds / result.warm_seconds,
            "verified": self.verified,
            "checked_blocks": result.checked,
            "untouched_blocks": result.spared,
            "wrong_blocks": result.wrong,
            "examples": result.examples,
        }


def _model(ctx: click.Context, param: click.Parameter, value: str) -> Model:
    if value in MODELS:
        return MODELS[value]
    raise click.BadParameter(f"no model {value!r}; {near_models(value)}", ctx, param)


def _settings(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for given in values:
        name, equals, value = given.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{given!r} is not NAME=VALUE", ctx, param)
        if name in settings:
            raise click.BadParameter(f"{name} is given twice", ctx, param)
        try:
            settings[name] = json.loads(value)
        except ValueError:
            text = f"{value!r} is not JSON; a value is a number, true, false, or a string as {json.dumps(value)}"
            raise click.BadParameter(text, ctx, param) from None
    return settings


def _setting_option(side: str, device: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        f"--{side}-setting",
        f"{side}_settings",
        multiple=True,
        callback=_settings,
        metavar="NAME=VALUE",
        help=f"A setting of the transport on the {side} side; VALUE is JSON. May be repeated, and goes before "
        f"the transport's own options. Default for device memory: device={device}, where there is such a device.",
    )


@click.command(cls=TransportCommand)
@click.option(
    "--model",
    callback=_model,
    metavar="[" + "|".join(MODELS) + "]",
    default="llama-3.1-8b",
    show_default=True,
    help="Whose KV cache.",
)
@click.option("--tokens", type=int, default=4096, show_default=True, help="Tokens to hand over, in whole blocks.")
@click.option("--transport", help="Name of the transport; default: the first of CACHEFW_TRANSPORTS, else the built-in.")
@click.option(
    "--path",
    type=click.Choice(["shm", "cma"]),
    help="Way of the bytes, for a transport that has these two: shm for memory that it allocates, cma for ordinary "
    "memory. Default: memory that the transport allocates, where it does.",
)
@_setting_option("prefill", 0)
@_setting_option("decode", 1)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the contents and of the scattering.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, 1e6, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds for everything.",
)
@click.option("--corrupt", is_flag=True, help="Flip one bit on the prefill side, to see the check fail.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def demo(
    model: Model,
    tokens: int,
    transport: str | None,
    path: str | None,
    prefill_settings: dict[str, Any],
    decode_settings: dict[str, Any],
    seed: int,
    timeout: float,
    corrupt: bool,
    as_json: bool,
    transport_settings: dict[str, Any],
) -> None:
    """Hand a KV cache from one process to another, and check every byte.

    A prefill process fills a paged cache of a real model's shape, a decode process pulls its blocks: a first time
    (cold; into host memory never touched), and once more (warm). Only the pulls are timed, in GB of 10^9 bytes, and
    compared with a plain copy of as many bytes of host memory. Both use host memory where the transport takes that,
    else device memory. The exit code is 1 if a byte differs.

    A transport may bring options of its own; --transport NAME --help shows them.
    """
    if tokens < model.block_tokens:
        raise click.BadParameter(
            f"{tokens} is less than one block of {model.name}, which holds {model.block_tokens} tokens",
            param_hint="'--tokens'",
        )
    task = reports.Task(
        model=model.name,
        tokens=tokens,
        seed=seed,
        transport=transport if transport is not None else default_transport(),
        path=path,
        timeout=timeout,
        corrupt=corrupt,
        prefill_settings={**transport_settings, **prefill_settings},
        decode_settings={**transport_settings, **decode_settings},
    )
    from cachefw.cli.drawing import progress, show

    with progress(model.nbytes(tokens)) as draw:
        outcome = hand_over(task, draw)
    if as_json:
        click.echo(json.dumps(outcome.facts()))
    else:
        show(outcome.facts())
    if not outcome.verified:
        raise outcome.mismatch()


def hand_over(task: reports.Task, listener: Listener) -> Outcome:
    """Run the two processes.

    Args:
        task: What they are to do.
        listener: Gets every report, and who sent it.

    Raises:
        OutOfMemoryError: There is not enough for it here; nothing was started.
        TransportUnavailable: No such transport.
        UnsupportedOperation: The transport cannot do what the demo needs.
        DemoError: A child failed, died or hung.
    """
    model = MODELS[task.model]
    kind = _check_transport(task.transport)
    # Real device memory is the devices' own; that of a simulation is this machine's.
    simulated = kind is not MemoryKind.HOST and bool(catalogue.probe(task.transport).remark)
    _check_memory(model, task.tokens, kind, pools=kind is MemoryKind.HOST or simulated)
    result, settings = None, task.prefill_settings
    with Family(task.timeout) as family:
        prefill = family.start("prefill", "cachefw.cli.prefill", task)
        decode = family.start("decode", "cachefw.cli.decode", task)
        for child, report in family.listen(prefill, decode):
            listener(child, report)
            if isinstance(report, reports.Card):
                settings = report.settings
                decode.tell(report.card)
            elif isinstance(report, reports.Result):
                result = report
        prefill.finish()
    if result is None:
        raise DemoError("the decode process ended without a result", code="demo.child")
    return Outcome(task, model, kind, settings, result)


def _check_transport(name: str) -> MemoryKind:
    plugin = catalogue.get(name)
    info = plugin.info
    if info is None:
        raise TransportUnavailable(f"{plugin} offers no transport", transport=name)
    kind = kind_for(info)
    if kind is None:
        kinds = ", ".join(sorted(str(kind) for kind in info.kinds))
        verb = "reads" if Capability.READ in info.capabilities else "does not read"
        raise UnsupportedOperation(
            f"transport {name!r} {verb} {kinds} of peers; the demo needs one that reads host memory, or that reads, "
            "allocates and copies device memory",
            operation="demo",
            transport=name,
        )
    return kind


def _check_memory(model: Model, tokens: int, kind: MemoryKind, *, pools: bool) -> None:
    sides = [pitch(desc, kind) * desc.num_tensors if pools else 0 for desc in Places.descs(model, tokens)]
    # The decode side gives its cache back before it measures memcpy. 150 MB are two interpreters.
    needed = sides[0] + max(sides[1], 2 * model.nbytes(tokens)) + 150_000_000
    available = memory_available()
    if available is not None and needed > available:
        raise OutOfMemoryError(
            f"this needs {needed / 1e9:.2f} GB of memory ({sides[0] / 1e9:.2f} GB on the prefill side, the rest on the "
            f"decode side), and {available / 1e9:.2f} GB are available; give fewer --tokens or a smaller --model",
            operation="demo",
            facts={"needed": needed, "available": available},
        )


def memory_available() -> int | None:
    """Bytes that can still be used here, by the host's and the container's account; None when neither is known."""
    known = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                known.append(int(line.split()[1]) * 1024)
    except OSError:
        # Another system, or /proc is not mounted: the container's account may still be there.
        known = []
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            used = int((group / "memory.current").read_text())
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            known.append(max(0, int(limit) - used + int(statistics["inactive_file"])))
    except (OSError, KeyError, ValueError):
        return min(known, default=None)
    return min(known, default=None)
