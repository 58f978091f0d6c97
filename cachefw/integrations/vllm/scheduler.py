"""The half of the connector that decides: what is loaded from where, and which blocks are kept for others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

from cachefw.errors import BrokenError, CacheError
from cachefw.integrations.vllm import exchange
from cachefw.integrations.vllm.ledger import Slots
from cachefw.integrations.vllm.settings import Settings
from cachefw.integrations.vllm.steps import Computing, Load, Registered, Step

__all__ = ["Scheduler"]

_log = init_logger("vllm.cachefw")

#: A prefill that ended in one of these has a whole cache to hand on.
_WHOLE = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)
#: The block that stands for none: it is never given to a request.
_NULL_BLOCK = 0
#: A waiting request renews its lease so many times in the lease's length.
_RENEWALS = 4
#: Reasons that are remembered, so that each is logged once.
_REMEMBERED = 1000


class Scheduler:
    """Block lists and parameters; no memory, no links. Lives in the engine's scheduling thread.

    Args:
        engine: The instance's name; a new one after each start.
        settings: The instance's settings.
        groups: How many groups of layers the cache has.
    """

    def __init__(self, engine: str, settings: Settings, groups: int) -> None:
        self._engine = engine
        self._settings = settings
        self._push = settings.mode == "push"
        self._groups = groups
        self._workers: list[exchange.Handshake] = []
        self._step = Step()
        # Requests that wait to be loaded: by name here, what they wait for and when its lease is renewed next.
        self._waiting: dict[str, tuple[exchange.Remote, float]] = {}
        # Reasons that were logged: once for each instance and reason is enough.
        self._told: set[tuple[str, str]] = set()
        self._slots = Slots()
        # The slots of requests that are kept for others, by name.
        self._kept: dict[str, int] = {}
        # Requests that others may want before they have ended, by name.
        self._early: dict[str, tuple[Request, str, str]] = {}

    def know_workers(self, metadata: Mapping[int, Any]) -> None:
        """Learn how the ranks of this instance are reached, once each has registered its memory."""
        self._workers = [found.handshake for _, found in sorted(metadata.items()) if isinstance(found, Registered)]

    # ------------------------------------------------------------------ loading

    def new(self, request: Request) -> None:
        """A request arrived: keep what it waits for alive until it is its turn."""
        remote = self._remote(request)
        if remote is not None:
            self._waiting[request.request_id] = remote, time.monotonic() + remote.lease / _RENEWALS
        params = request.kv_transfer_params or {}
        transfer = params.get("transfer_id")
        if self._push and params.get("do_remote_decode") and isinstance(transfer, str) and transfer:
            self._early[request.request_id] = request, transfer, exchange.digest(request.prompt_token_ids)

    def matched(self, request: Request, computed: int) -> tuple[int, bool]:
        """How many tokens beyond `computed` can be loaded, and whether that goes on beside the engine's steps."""
        remote = self._remote(request)
        if remote is None:
            return 0, False
        tokens = request.num_prompt_tokens if remote.tokens < 0 else min(remote.tokens, request.num_prompt_tokens)
        more = tokens - computed
        return (more, True) if more > 0 else (0, False)

    def allocated(self, request: Request, groups: Sequence[Sequence[Any]], external: int) -> None:
        """Blocks were found for a request: load `external` tokens into those of `groups` that hold nothing yet.

        Called once more when the load is over, which by then says nothing new.
        """
        remote = self._remote(request)
        self._waiting.pop(request.request_id, None)
        if remote is None:
            return
        request.kv_transfer_params["do_remote_prefill"] = False
        if external <= 0:
            self._step.releases.append((remote.cards, remote.request))
            return
        if self._push:
            self._step.loads[request.request_id] = self._wanted(request, groups, remote)
            return
        theirs_all = remote.blocks or []
        pairs: list[tuple[int, int]] = []
        fault = None
        if len(groups) != len(theirs_all):
            fault = f"{len(groups)} groups of layers here, {len(theirs_all)} there"
        for mine, theirs in zip(groups, theirs_all, strict=False):
            # The same place in both lists holds the same tokens. What has a hash is in this prefix cache already.
            wanted = [place for place, block in enumerate(mine) if block.block_hash is None and not block.is_null]
            if wanted and wanted[-1] >= len(theirs):
                fault = f"{wanted[-1] + 1} blocks are needed, and {len(theirs)} were offered"
                break
            pairs += [(mine[place].block_id, theirs[place]) for place in wanted if theirs[place] != _NULL_BLOCK]
        local, there = [here for here, _ in pairs], [other for _, other in pairs]
        self._step.loads[request.request_id] = Load(
            local, there, remote.request, remote.cards, remote.slot, remote.use, fault=fault
        )

    @staticmethod
    def _wanted(request: Request, groups: Sequence[Sequence[Any]], remote: exchange.Remote) -> Load:
        """What the prefill instance is to write, and where; it knows itself which blocks it has."""
        pairs = [
            (number, place, block.block_id)
            for number, mine in enumerate(groups)
            for place, block in enumerate(mine)
            if block.block_hash is None and not block.is_null
        ]
        prompt = exchange.digest(request.prompt_token_ids)
        return Load([], [], remote.request, remote.cards, remote.slot, remote.use, prompt, pairs)

    def _remote(self, request: Request) -> exchange.Remote | None:
        """What the request can be loaded from; None, and the reason in the log once, when it is to be computed here."""
        params = request.kv_transfer_params
        if not params or not params.get("do_remote_prefill"):
            return None
        engine = str(params.get("remote_engine_id"))
        remote = None
        try:
            remote = exchange.parse(params)
            self._check(remote, request)
        except CacheError as error:
            if remote is not None and len(remote.cards) == len(self._workers):
                self._step.releases.append((remote.cards, remote.request))
            params["do_remote_prefill"] = False
            self._say(engine, f"request {request.request_id} is computed here, not loaded: {error}", str(error))
            return None
        return remote

    def _say(self, about: str, text: str, reason: str = "") -> None:
        if (about, reason) not in self._told:
            if len(self._told) > _REMEMBERED:
                self._told.clear()
            self._told.add((about, reason))
            _log.warning("%s", text)

    def _check(self, remote: exchange.Remote, request: Request) -> None:
        differences = exchange.differences(self._workers[0].shape, remote.shape)
        if len(remote.cards) != len(self._workers):
            differences.append(f"ranks: {len(self._workers)} here, {len(remote.cards)} there")
        if differences:
            raise BrokenError(
                f"the cache of instance {remote.engine} is not like this one's: "
                + "; ".join(differences)
                + ". Start both instances with the same settings",
                code="vllm.layout",
                operation="vllm",
            )
        if remote.blocks is None and not self._push:
            raise BrokenError(
                'transfer_id asks for a prefill that has not ended, which works with "mode": "push" in '
                "kv_connector_extra_config of both instances",
                code="vllm.mode",
                operation="vllm",
            )
        if remote.blocks is not None and remote.prompt != exchange.digest(request.prompt_token_ids):
            raise BrokenError(
                f"instance {remote.engine} computed another prompt than that of this request; hand on "
                "kv_transfer_params together with the prompt that they were returned for",
                code="vllm.prompt",
                operation="vllm",
            )

    # ------------------------------------------------------------------ handing on

    def finished(self, request: Request, groups: Sequence[Sequence[int]]) -> tuple[bool, dict[str, Any] | None]:
        """A request is over: whether its blocks are kept, and what the client hands on to another instance."""
        params = request.kv_transfer_params
        waiting = self._waiting.pop(request.request_id, None)
        early = self._early.pop(request.request_id, None)
        if early is not None and request.status not in _WHOLE:
            self._step.dropped[request.request_id] = early[1]
        if waiting is not None:
            # Given up before its turn came.
            self._step.releases.append((waiting[0].cards, waiting[0].request))
            return False, None
        if not params or not params.get("do_remote_decode") or request.status not in _WHOLE or not any(groups):
            return False, None
        taken = self._slots.take()
        if taken is None:
            if early is not None:
                self._step.dropped[request.request_id] = early[1]
            self._say("slots", f"more than {len(self._kept):,} requests are kept for others; further ones are not")
            return False, None
        hold = self._step.holds[request.request_id] = exchange.Hold(self._settings.lease, *taken)
        self._kept[request.request_id] = hold.slot
        prompt, total = exchange.digest(request.prompt_token_ids), request.num_prompt_tokens
        if self._push:
            blocks = tuple(list(group) for group in groups)
            transfer = "" if early is None else early[1]
            self._step.whole[request.request_id] = Computing(transfer, prompt, blocks, total, total)
        computed = request.num_computed_tokens
        return True, exchange.offer(self._engine, request.request_id, groups, computed, self._workers, prompt, hold)

    def sent(self, names: Iterable[str]) -> None:
        """Every rank has let go of these requests."""
        for name in names:
            slot = self._kept.pop(name, None)
            if slot is not None:
                self._slots.give_back(slot)

    # ------------------------------------------------------------------ steps

    @property
    def pending(self) -> bool:
        """Whether there is something to say to the workers although no request runs."""
        return bool(self._step.releases or self._step.holds or self._step.dropped)

    def take_step(self, scheduled: SchedulerOutput) -> Step:
        """What has come together since the last step, and what this one computes for others."""
        for name, (request, transfer, prompt) in self._early.items():
            if self._groups > 1:
                # Blocks of a sliding window are given away while the prompt is computed.
                break
            more = scheduled.num_scheduled_tokens.get(name)
            if more is None:
                if request.status is RequestStatus.PREEMPTED:
                    self._step.preempted.append(name)
                continue
            blocks = scheduled.kv_connector_block_state.get_block_ids(name)
            # The request does not count what this step computes yet.
            before, total = request.num_computed_tokens, request.num_prompt_tokens
            if before < total:
                self._step.computing[name] = Computing(transfer, prompt, blocks, before + more, total)
        now = time.monotonic()
        for name, (remote, due) in self._waiting.items():
            if due <= now:
                self._waiting[name] = remote, now + remote.lease / _RENEWALS
                self._step.renewals.append((remote.cards, remote.request))
        step, self._step = self._step, Step()
        return step
