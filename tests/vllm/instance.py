"""A vLLM engine in a process of its own, without a server: scheduler and worker both live there."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

#: Settings that the model and the comparison of tokens rest on.
ENGINE = {
    "dtype": "float32",
    "max_model_len": 1024,
    "enforce_eager": True,
    "block_size": 32,
    "seed": 0,
    "max_num_seqs": 16,
    "kv_cache_memory_bytes": 64 * 2**20,
}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_HOST_IP": "127.0.0.1",
    "OMP_NUM_THREADS": "1",
}
#: What a proxy says to the prefill instance.
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
#: Seconds for an answer; starting takes 7 on a quiet machine.
PATIENCE = 240.0


def serve(connection: Any, log: str, model: str, transfer: Mapping[str, Any] | None, engine: Mapping[str, Any]) -> None:
    """The process: answers (prompts, tokens, parameters) with (token ids, parameters), until it hears None.

    (function, arguments) has the function called with the engine.
    """
    os.environ.update(ENVIRONMENT)
    descriptor = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    extra = {} if transfer is None else {"kv_transfer_config": KVTransferConfig(**transfer)}
    llm = LLM(model=model, **{**ENGINE, **engine}, **extra)
    core = llm.llm_engine.engine_core.engine_core
    core.step_fn = _like_a_server(core, core.step_fn)
    connection.send("ready")
    while (order := connection.recv()) is not None:
        if callable(order[0]):
            function, arguments = order
            connection.send(function(llm, *arguments))
            continue
        prompts, count, parameters = order
        sampling = [
            SamplingParams(
                temperature=0,
                max_tokens=count,
                ignore_eos=True,
                extra_args={"kv_transfer_params": one} if one else None,
            )
            for one in parameters
        ]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        if transfer is not None:
            # A server's loop goes on while there is something to say to the workers.
            while core.scheduler.connector.has_pending_push_work():
                llm.llm_engine.step()
        connection.send([(list(o.outputs[0].token_ids), o.kv_transfer_params) for o in outputs])
    llm.llm_engine.engine_core.shutdown()
    connection.send("bye")
    # Taking down torch and vLLM takes seconds, and nothing is left to do.
    os._exit(0)


#: What `_time_loads` has noted.
_loads: list[tuple[int, float]] = []


def _time_loads(_llm: Any) -> None:
    outcomes = _worker()._outcomes
    count = outcomes.loaded

    def loaded(nbytes: int, pieces: int, seconds: float) -> None:
        _loads.append((nbytes, seconds))
        count(nbytes, pieces, seconds)

    outcomes.loaded = loaded


def _timed(_llm: Any) -> list[tuple[int, float]]:
    got = _loads[:]
    _loads.clear()
    return got


def _like_a_server(core: Any, step: Callable[[], Any]) -> Callable[[], Any]:
    """A step that ends as it does in a server: with a short sleep where nothing was to be computed."""

    def patient() -> Any:
        outputs, executed = step()
        if not executed and core.scheduler.has_requests():
            time.sleep(0.001)
        return outputs, executed

    return patient


#: What `_note_pushes` has noted.
_pushes: list[tuple[range, int, bool]] = []


def _worker() -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()._worker


def _reset(llm: Any) -> bool:
    return bool(llm.reset_prefix_cache())


def _usage(llm: Any) -> float:
    return float(llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.usage)


def _waiting(_llm: Any) -> int:
    return len(_worker()._sends._waiting)


def _note_pushes(_llm: Any, damage: bool) -> None:
    worker = _worker()
    manager = worker._node.cache_manager

    def push(key: Any, cache: Any, here: Any, there: Any, tensors: range, *rest: Any, **more: Any) -> Any:
        _pushes.append((tensors, len(here), worker._sends.running))
        there = there[::-1] if damage else there
        return type(manager).push_blocks(manager, key, cache, here, there, tensors, *rest, **more)

    manager.push_blocks = push
    _pushes.clear()


def _noted(_llm: Any) -> list[tuple[range, int, bool]]:
    got = _pushes[:]
    _pushes.clear()
    return got


class Instance:
    """One engine. `transfer` is vLLM's ``kv_transfer_config``; None makes an engine that knows of no other."""

    def __init__(
        self, folder: Path, name: str, model: Path, transfer: Mapping[str, Any] | None = None, **engine: Any
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, str(self.log), str(model), transfer, engine))
        self._process.start()
        theirs.close()

    def _hear(self) -> Any:
        try:
            if self._connection.poll(PATIENCE):
                return self._connection.recv()
        except EOFError:
            pass
        raise AssertionError(f"{self.name} gave no answer; the end of its log:\n" + "\n".join(self.lines()[-30:]))

    def ready(self) -> Instance:
        """Wait until it takes prompts."""
        assert self._hear() == "ready"
        return self

    def ask(self, prompts: Sequence[str], count: int, parameters: Sequence[Mapping[str, Any] | None] = ()) -> None:
        """Begin a generation."""
        given = list(parameters) or [None] * len(prompts)
        self._connection.send((list(prompts), count, given))

    def answer(self) -> tuple[list[list[int]], list[Any]]:
        """Tokens and parameters of each prompt."""
        got = self._hear()
        return [tokens for tokens, _ in got], [params for _, params in got]

    def generate(
        self, prompts: Sequence[str], count: int, parameters: Sequence[Mapping[str, Any] | None] = ()
    ) -> tuple[list[list[int]], list[Any]]:
        """Greedy tokens of each prompt, and what came with them."""
        self.ask(prompts, count, parameters)
        return self.answer()

    def prefill(self, prompts: Sequence[str]) -> list[dict[str, Any]]:
        """What a proxy does first: one token of each prompt, and the parameters to hand on."""
        return self.generate(prompts, 1, [PREFILL] * len(prompts))[1]

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of a module says that gets the engine, in its process."""
        self._connection.send((function, arguments))
        return self._hear()

    def forget(self) -> None:
        """Empty the prefix cache."""
        assert self.call(_reset) is True

    def watch(self, *, damage: bool = False) -> None:
        """Have it note what it writes to others; with `damage`, the blocks of each transfer to each other's places."""
        self.call(_note_pushes, damage)

    def pushes(self) -> list[tuple[range, int, bool]]:
        """What it has written since the last call: tensors, how many blocks, and whether a step was computing."""
        return list(self.call(_noted))

    def time_loads(self) -> None:
        """Have it note its loads."""
        self.call(_time_loads)

    def loads(self) -> list[tuple[int, float]]:
        """What it has loaded since the last call: bytes, and seconds from the post until it was known to be whole."""
        return list(self.call(_timed))

    def waiting(self) -> int:
        """How many requests others want of it that have not come."""
        return int(self.call(_waiting))

    def usage(self) -> float:
        """Share of the blocks that are in use."""
        return float(self.call(_usage))

    def lines(self) -> list[str]:
        """Its log."""
        return self.log.read_text(errors="replace").splitlines() if self.log.exists() else []

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join(10)

    def stop(self) -> None:
        """Have it end; kill it if it does not."""
        try:
            self._connection.send(None)
            if self._connection.poll(30):
                self._connection.recv()
        except (EOFError, BrokenPipeError):
            # It is gone already, which is what was wanted.
            self._process.join(1)
        self._process.join(10)
        self.kill()
