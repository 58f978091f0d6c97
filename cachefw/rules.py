"""The vocabulary of rules: what a check found, and the plan that holds all findings of one call."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from cachefw.memory import MemoryRegion

__all__ = ["Finding", "Limits", "Outcome", "Plan", "Request", "Rule"]

GIB = 2**30


class Outcome(enum.Enum):
    """What a rule said. `NOT_CHECKED` never reads as `OK`."""

    OK = "ok"
    REFUSED = "refused"
    NOT_CHECKED = "not checked"


@attrs.frozen
class Finding:
    """One statement of one rule.

    Attributes:
        rule: Its stable name, e.g. ``"core.unique"``.
        outcome: What it said.
        transport: The transport whose rule it is, or None for the core's and for policies.
        index: Position in the list of addresses, or None when it is about the whole call.
        address: The address concerned, or None.
        length: Bytes from there, or None.
        message: What was asked and what was found, in one sentence.
        facts: The numbers in the message, by name.
        fix: What to do, in one sentence.
        source: Where the rule comes from.
        builtin: The builtin exception that a refusal is as well.
    """

    rule: str
    outcome: Outcome
    message: str
    transport: str | None = None
    index: int | None = None
    address: int | None = None
    length: int | None = None
    facts: Mapping[str, Any] = attrs.field(factory=dict)
    fix: str = ""
    source: str = ""
    builtin: type[Exception] = ValueError


@attrs.frozen
class Limits:
    """How much one node may register. The defaults are those of LLM-DataDist.

    Attributes:
        addresses: Over `register_cache` and `register_blocks_cache` together.
        device_bytes: Over all device memory.
        host_bytes: Over all host memory, pinned or not.
        source: Where the numbers come from.
    """

    addresses: int = 240
    device_bytes: int = 50 * GIB
    host_bytes: int = 20 * GIB
    source: str = "LLM-DataDist CacheManager"


@attrs.frozen
class Request:
    """What a plugin is asked to check: the new regions of one registration, for one transport.

    Attributes:
        operation: ``"register_cache"``, ``"register_blocks_cache"`` or ``"register_memory"``.
        transport: The open transport whose rules are asked for; None for a plugin that brings none (a policy).
        regions: The regions, in order. Views of memory that is registered already are not among them.
        indices: For each region its position in the caller's list.
        remote_accessible: Whether linked peers are to reach them.
        linked: Whether a link exists.
        profile: Which machine the rules are to assume, e.g. ``"A3/fabric"``; None for this one.
        registered_bytes: What this node has registered already.
        dry: Whether the regions are made up, e.g. for a machine that is not this one: nothing of this process and this
            machine says anything about them. What only the memory itself could tell is not checked then.
        registered_host_bytes: How much of `registered_bytes` is host memory; None when that is not known.
    """

    operation: str
    transport: str | None
    regions: tuple[MemoryRegion, ...]
    indices: tuple[int, ...]
    remote_accessible: bool
    linked: bool
    profile: str | None = None
    registered_bytes: int = 0
    dry: bool = False
    registered_host_bytes: int | None = None

    def place(self, index: int) -> str:
        """What the caller calls the region at `index`, for messages."""
        return "the region" if self.operation == "register_memory" else f"addrs[{index}]"


@attrs.frozen
class Rule:
    """A named check. `check` yields findings for what it refuses or cannot check; none means OK.

    Attributes:
        name: ``owner.subject``, stable.
        summary: What it demands, in one sentence.
        source: Where it comes from.
        check: Called with the owner's own kind of request.
    """

    name: str
    summary: str
    source: str
    check: Callable[[Any], Iterable[Finding]]

    def run(self, request: Any, transport: str | None = None) -> list[Finding]:
        """All it has to say about `request`: at least one finding, the name and source filled in."""
        found = [
            attrs.evolve(finding, rule=self.name, source=finding.source or self.source, transport=transport)
            for finding in self.check(request)
        ]
        if found:
            return found
        return [Finding(self.name, Outcome.OK, self.summary, transport=transport, source=self.source)]


@attrs.frozen
class Plan:
    """Every finding about one registration; made without touching anything.

    ``print(plan)`` is a table: one row a rule, with what to do about a refusal.

    Attributes:
        operation: The call it is about.
        findings: In the order of the rules, the core's first.
        regions: The native regions that committing would register, in order.
        views: How many of the addresses lie in memory that is registered already.
    """

    operation: str
    findings: tuple[Finding, ...]
    regions: tuple[MemoryRegion, ...] = ()
    views: int = 0

    @property
    def refused(self) -> tuple[Finding, ...]:
        """Findings that stop the registration."""
        return tuple(finding for finding in self.findings if finding.outcome is Outcome.REFUSED)

    @property
    def not_checked(self) -> tuple[Finding, ...]:
        """Findings that could not be decided here; refusals under ``strict=True``."""
        return tuple(finding for finding in self.findings if finding.outcome is Outcome.NOT_CHECKED)

    @property
    def ok(self) -> bool:
        """Whether nothing is refused. What was not checked does not count as refused: look at `not_checked`."""
        return not self.refused

    def __str__(self) -> str:
        return self.table(width=120)

    def table(self, width: int) -> str:
        """The plan as text, at most `width` columns wide."""
        from io import StringIO

        from rich.console import Console

        out = StringIO()
        Console(file=out, width=width, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(f"{self.operation}: {self._verdict()}"), title_justify="left")
        for column in ("transport", "rule", "outcome", "at", "found, and what to do"):
            table.add_column(column, no_wrap=column in ("rule", "outcome"))
        styles = {Outcome.OK: "green", Outcome.REFUSED: "bold red", Outcome.NOT_CHECKED: "yellow"}
        for finding in self.findings:
            text = finding.message + (f"\n-> {finding.fix}" if finding.fix else "")
            table.add_row(
                finding.transport or "core",
                finding.rule,
                Text(finding.outcome.value, styles[finding.outcome]),
                "" if finding.index is None else str(finding.index),
                Text(text),
            )
        return Group(table)

    def _verdict(self) -> str:
        total = sum(region.length for region in self.regions)
        what = f"{len(self.regions)} native regions, {total:,} bytes"
        if self.views:
            what += f", {self.views} views of memory registered already"
        if self.refused:
            return f"{len(self.refused)} refused; nothing would be registered"
        if self.not_checked:
            return f"would register {what}; {len(self.not_checked)} not checked"
        return f"would register {what}"
