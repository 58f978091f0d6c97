"""What the vLLM connector costs, with real engines on the CPU and models made here.

python benchmarks/vllm/figures.py tokens     # do two instances say what one says, 100 times?
python benchmarks/vllm/figures.py transfer   # a load of the connector's beside a bare pull_blocks of the same bytes
python benchmarks/vllm/figures.py ttft       # time to the first token of two instances beside that of one

Each starts its engines (installed as docs/serving-with-vllm.md says), takes a minute or three, prints a table and one
line of JSON, and ends with 1 if a bound is broken. What is compared runs in turns, on whatever else the machine does.
Engines are called without servers, and pause between steps as servers do; the time to the first token is that of their
caller, and includes handing the parameters on.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "tests" / "vllm"), str(ROOT / "examples" / "vllm")]

import engine_side  # noqa: E402
import instance  # noqa: E402
import tiny_model  # noqa: E402

#: A model with large blocks (2 MiB for 32 tokens), for bytes; and one that takes its time over a prompt.
WIDE = {"hidden_size": 256, "num_hidden_layers": 8, "num_key_value_heads": 8, "head_dim": 128}
SLOW = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8, "head_dim": 32}
WORDS = tiny_model.TEXTS[0][:44].split() + tiny_model.TEXTS[1][:58].split()
#: Rounds that do not count.
WARM = 6


def prompt(seed: int, words: int) -> str:
    """Words in an order that no other seed has."""
    chance = random.Random(seed)
    return f"{seed} " + " ".join(chance.choice(WORDS) for _ in range(words))


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The 25th, 50th and 75th percentile."""
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def table(rows: Sequence[Sequence[Any]]) -> None:
    """Print rows in columns; the first is the head."""
    texts = [[f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]))]
    for row in texts:
        print(
            "  ".join(
                cell.rjust(width) if at else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        )


class Engines:
    """Instances of one model, started side by side, and stopped in the end."""

    def __init__(self, folder: Path, model: dict[str, Any], **engine: Any) -> None:
        self.folder = folder
        self.model = folder / "model"
        tiny_model.make(self.model, **model)
        self.engine = engine
        self.all: list[instance.Instance] = []

    def start(self, name: str, role: str | None = None, mode: str = "pull") -> instance.Instance:
        transfer = None
        if role is not None:
            extra = {"mode": mode, "lease": 60.0}
            transfer = {
                "kv_connector": "CachefwConnector",
                "kv_load_failure_policy": "recompute",
                "kv_role": role,
                "kv_connector_extra_config": extra,
            }
        made = instance.Instance(self.folder, name, self.model, transfer, **self.engine)
        self.all.append(made)
        return made

    def __enter__(self) -> Engines:
        return self

    def __exit__(self, *exc: object) -> None:
        for one in self.all:
            one.stop()


def pair(engines: Engines, mode: str) -> tuple[instance.Instance, instance.Instance]:
    """A prefill and a decode instance."""
    both = engines.start(f"prefill-{mode}", "kv_producer", mode), engines.start(f"decode-{mode}", "kv_consumer", mode)
    return both[0].ready(), both[1].ready()


def tokens(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Runs of prompts of all lengths, several at once; what one instance says is asked for first."""
    rows: list[list[Any]] = [["mode", "runs", "equal", "prompts", "tokens", "loads that failed"]]
    found: dict[str, Any] = {"figure": "tokens", "runs": options.runs, "good": True}
    runs = [[prompt(100 * run + i, 3 + 7 * ((run * 5 + i * 13) % 20)) for i in range(3)] for run in range(options.runs)]
    for mode in options.modes:
        with Engines(folder / mode, {}) as engines:
            prefill, decode = pair(engines, mode)
            equal = count = 0
            for prompts in runs:
                wanted, _ = decode.generate(prompts, options.tokens)
                decode.forget()
                params = prefill.prefill(prompts)
                got, _ = decode.generate(prompts, options.tokens, params)
                equal += got == wanted
                count += sum(map(len, got))
            failed = sum("could not be loaded" in line or "computed here" in line for line in decode.lines())
        rows.append([mode, len(runs), equal, 3 * len(runs), count, failed])
        found[mode] = {"equal": equal, "prompts": 3 * len(runs), "tokens": count, "failed": failed}
        found["good"] &= equal == len(runs) and failed == 0
    table(rows)
    return found


def transfer(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """In turns: a load, from its post until it is known to be whole; and the bare call, same blocks."""
    rows: list[list[Any]] = [["mode", "MB", "load ms", "25-75 %", "bare ms", "25-75 %", "load / bare"]]
    found: dict[str, Any] = {"figure": "transfer", "rounds": options.rounds, "bound": 1.5, "good": True}
    for mode in options.modes:
        with Engines(folder / mode, WIDE, kv_cache_memory_bytes=160 * 2**20) as engines:
            prefill, decode = pair(engines, mode)
            decode.time_loads()
            loads, bare, size = [], [], 0
            # Until every block of both has been used once: first touches of fresh pages are not what is measured.
            for number in range(options.rounds + WARM):
                prompts = [prompt(number, 900)]
                params = prefill.prefill(prompts)
                # Whichever is second finds the source in the processor's caches.
                before = decode.call(engine_side.bare_pull, params[0]) if number % 2 else None
                decode.generate(prompts, 1, copy.deepcopy(params))
                ((size, seconds),) = decode.loads()
                decode.forget()
                other = before or decode.call(engine_side.bare_pull, params[0])
                if number >= WARM:
                    loads.append(seconds * 1e3)
                    bare.append(other * 1e3)
        low, load, high = quartiles(loads)
        least, single, most = quartiles(bare)
        ratio = load / single
        rows.append([mode, size / 1e6, load, f"{low:.1f}-{high:.1f}", single, f"{least:.1f}-{most:.1f}", ratio])
        found[mode] = {"bytes": size, "load_ms": load, "bare_ms": single, "ratio": ratio, "loads": loads, "bare": bare}
        found["good"] &= ratio <= 1.5
    table(rows)
    return found


def ttft(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """In turns: the first token of one instance, and of two less the transfer, of prompts nobody has seen.

    Long ones, since the decode instance computes one token of its own, which is as much as one token costs.
    """
    rows: list[list[Any]] = [["", "tokens", "first token ms", "25-75 %", "to one instance"]]
    found: dict[str, Any] = {"figure": "ttft", "rounds": options.rounds, "bound": 1.05, "good": True}
    with Engines(folder, SLOW, max_model_len=2048) as engines:
        single = engines.start("single")
        prefill, decode = pair(engines, options.modes[0])
        single.ready()
        decode.time_loads()
        one, two, there, moved, length = [], [], [], [], 0
        for number in range(options.rounds + WARM):
            text = [prompt(number, 1750)]

            def alone(text: list[str] = text) -> float:
                begin = time.perf_counter()
                single.generate(text, 1)
                return time.perf_counter() - begin

            def together(text: list[str] = text) -> tuple[float, float, float, int]:
                begin = time.perf_counter()
                params = prefill.prefill(text)
                half = time.perf_counter() - begin
                decode.generate(text, 1, params)
                whole = time.perf_counter() - begin
                ((_, seconds),) = decode.loads()
                return whole, half, seconds, params[0]["remote_num_tokens"]

            if number % 2:
                first, (whole, half, seconds, length) = alone(), together()
            else:
                (whole, half, seconds, length), first = together(), alone()
            if number >= WARM:
                one.append(first * 1e3)
                two.append((whole - seconds) * 1e3)
                there.append(half * 1e3)
                moved.append(seconds * 1e3)
    here = [after - before for after, before in zip(two, there, strict=True)]
    for name, values in (
        ("one instance", one),
        ("two, less the transfer", two),
        ("  prefill", there),
        ("  decode", here),
        ("transfer", moved),
    ):
        low, middle, high = quartiles(values)
        rows.append([name, length, middle, f"{low:.1f}-{high:.1f}", middle / statistics.median(one)])
        found[name] = {"p50_ms": middle, "p25_ms": low, "p75_ms": high, "all": values}
    # The median of the rounds' own quotients: both of a round had the same machine.
    found["ratio"] = statistics.median(after / before for after, before in zip(two, one, strict=True))
    found["mode"], found["good"] = options.modes[0], found["ratio"] <= 1.05
    table(rows)
    print(f"median of the rounds' quotients: {found['ratio']:.3f}")
    return found


FIGURES: dict[str, Callable[[argparse.Namespace, Path], dict[str, Any]]] = {
    "tokens": tokens,
    "transfer": transfer,
    "ttft": ttft,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--modes", nargs="+", choices=["pull", "push"], help="default: both; ttft takes the first")
    parser.add_argument("--runs", type=int, default=100, help="of tokens")
    parser.add_argument("--rounds", type=int, default=20, help="of transfer and ttft, after six that do not count")
    parser.add_argument("--tokens", type=int, default=12, help="in an answer")
    parser.add_argument("--json", type=Path, help="also write the JSON there")
    options = parser.parse_args()
    options.modes = options.modes or ["pull", "push"]
    with tempfile.TemporaryDirectory() as folder:
        found = FIGURES[options.figure](options, Path(folder))
    text = json.dumps(found)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 0 if found["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
