"""What every code, status, rule, setting and hook means: one catalogue for errors, ``cachefw explain`` and the doctor.

The core fills it with what it knows itself. A plugin adds what it knows, about the numbers of its vendor above all,
through the hook `cachefw_diagnostics`; until it is loaded, only the name of its distribution is known here.
"""

from __future__ import annotations

import difflib
import enum
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import attrs

__all__ = [
    "Cause",
    "Check",
    "Diagnosis",
    "Diagnostics",
    "Entry",
    "Health",
    "Leftover",
    "MachineProfile",
    "contribute",
    "core_entries",
    "find",
    "lookup",
    "near",
    "numbers",
    "rule_entries",
]


class Health(enum.Enum):
    """What a check said. `NOT_CHECKED` never reads as `OK`."""

    OK = "ok"
    #: Nothing is wrong; worth knowing.
    NOTE = "note"
    NOT_CHECKED = "not checked"
    WARNING = "warning"
    BROKEN = "broken"


@attrs.frozen
class Diagnosis:
    """One statement of one check.

    Attributes:
        check: The name of the check.
        health: What it said.
        found: What was found, in one sentence.
        meaning: What follows from it; "" where that is plain.
        fix: What to do; "" where nothing has to be done.
        facts: The values behind `found`, by name; JSON can hold them.
    """

    check: str
    health: Health
    found: str
    meaning: str = ""
    fix: str = ""
    facts: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class Check:
    """Something that can be looked at on a machine.

    Attributes:
        name: ``subject.detail``, stable.
        title: What is looked at, in a few words.
        run: Looks, changes nothing, ends within seconds. Yields at least one `Diagnosis`; its name is filled in. What
            it raises counts as not checked.
    """

    name: str
    title: str
    run: Callable[[], Iterable[Diagnosis]]

    def diagnose(self) -> list[Diagnosis]:
        """All it has to say; never raises."""
        try:
            found = [attrs.evolve(diagnosis, check=self.name) for diagnosis in self.run()]
        except Exception as error:
            text = f"it could not be looked at: {type(error).__name__}: {error}"
            return [Diagnosis(self.name, Health.NOT_CHECKED, text, facts={"error": repr(error)})]
        return found or [Diagnosis(self.name, Health.NOT_CHECKED, "the check said nothing")]


@attrs.frozen
class Cause:
    """Why something happens.

    Attributes:
        what: The cause, in one sentence.
        fix: What to do about it.
        probe: The name of the `Check` that tells whether this is it; "" where none can.
        operation: In which operation it can be that, e.g. ``"register"``; "" is any.
        kind: Of which memory, e.g. ``"host memory"``; "" is any.
        transport: With which transport; "" is any.
    """

    what: str
    fix: str
    probe: str = ""
    operation: str = ""
    kind: str = ""
    transport: str = ""

    def applies(self, operation: str = "", kind: str = "", transport: str = "") -> bool:
        """Whether it can be the cause there; what is not said, on either side, excludes nothing."""
        pairs = ((self.operation, operation), (self.kind, kind), (self.transport, transport))
        return all(not mine or not asked or mine == asked for mine, asked in pairs)


@attrs.frozen
class Entry:
    """What one name or number means.

    Attributes:
        name: What `CacheError.code` says, a vendor's number in decimal digits, or the name of a rule, setting or hook.
        sort: ``"code"``, ``"status"``, ``"errno"``, ``"rule"``, ``"setting"`` or ``"hook"``.
        title: What it means, in one sentence.
        owner: Who says it.
        aliases: Other names for it.
        causes: The likely ones first.
        source: Where this is known from.
        text: What else there is to say, in lines.
    """

    name: str
    sort: str
    title: str
    owner: str = "cachefw"
    aliases: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    source: str = ""
    text: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All names, its own first."""
        return (self.name, *self.aliases)


@attrs.frozen
class MachineProfile:
    """A machine whose rules a transport knows, for dry runs.

    Attributes:
        name: What ``plan(profile=...)`` takes.
        products: The machine in words.
        alignment: Bytes that a region's start must be a multiple of; None when it is not known, 1 for any.
        largest_region: Bytes of the largest region; None when nothing is known to limit it.
    """

    name: str
    products: str
    alignment: int | None = None
    largest_region: int | None = None


@attrs.frozen
class Leftover:
    """Files that a process of this software leaves behind when it is killed.

    Attributes:
        pattern: A glob of absolute paths.
        what: Whose they are, in words.
    """

    pattern: str
    what: str


@attrs.frozen
class Diagnostics:
    """What a plugin knows about its errors and its machine.

    Attributes:
        entries: For the catalogue.
        checks: For the doctor; what `Cause.probe` names.
        profiles: Machines that its rules know.
        leftovers: What the doctor may clean away once no process uses it.
        describe: Makes of an open transport of the plugin what two ends should compare: versions, profile, devices.
    """

    entries: tuple[Entry, ...] = ()
    checks: tuple[Check, ...] = ()
    profiles: tuple[MachineProfile, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    describe: Callable[[Any], Mapping[str, str]] | None = None


class _RuleLike(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def source(self) -> str: ...


def rule_entries(
    rules: Iterable[_RuleLike], owner: str, causes: Mapping[str, tuple[Cause, ...]] | None = None
) -> tuple[Entry, ...]:
    """An entry for each rule.

    Args:
        rules: `cachefw.rules.Rule` values.
        owner: Whose they are.
        causes: By the rule's name, how it comes to be broken.
    """
    return tuple(
        Entry(rule.name, "rule", f"demands: {rule.summary}", owner, (), (causes or {}).get(rule.name, ()), rule.source)
        for rule in rules
    )


# ---- looking up ----------------------------------------------------------------------------------------------------


@functools.cache
def core_entries() -> tuple[Entry, ...]:
    """What the core knows itself, without rules, settings and hooks, which stand in modules of their own."""
    from cachefw.catalog import codes, errnos, links, llm_datadist, serving, transports

    tables = codes, links, transports, serving, errnos, llm_datadist
    return tuple(entry for table in tables for entry in table.ENTRIES)


_modules: dict[str, Any] = {}


def contribute(name: str, module: Any) -> None:
    """Remember a loaded plugin, whose entries `lookup` will ask for."""
    _modules[name] = module


def lookup(name: str) -> Entry | None:
    """The entry of a code, from the core and from the plugins that are loaded; None when there is none."""
    found = find(core_entries(), name)
    for module in list(_modules.values()):
        found = found or find(_entries_of(module), name)
    return found[0] if found else None


def _entries_of(module: Any) -> tuple[Entry, ...]:
    hook: Callable[[], object] | None = getattr(module, "cachefw_diagnostics", None)
    try:
        made = hook() if callable(hook) else None
    except Exception:
        # Somebody wants to read an error, and must not get another instead; the doctor says that the hook fails.
        return ()
    return made.entries if isinstance(made, Diagnostics) else ()


def numbers(text: str) -> set[str]:
    """The spellings of a number: as it is, and as the signed or unsigned value of the same 32 bits."""
    try:
        value = int(text, 0)
    except ValueError:
        return set()
    found = {str(value)}
    if -(2**31) <= value < 0:
        found.add(str(value + 2**32))
    elif 2**31 <= value < 2**32:
        found.add(str(value - 2**32))
    return found


def find(entries: Iterable[Entry], what: str) -> list[Entry]:
    """The entries with that name, other name, or number, in whichever case."""
    wanted = {what.strip().lower(), *numbers(what.strip())}
    return [entry for entry in entries if not wanted.isdisjoint(name.lower() for name in entry.names)]


def near(entries: Iterable[Entry], what: str, most: int = 3) -> list[str]:
    """Names that were perhaps meant, the best first."""
    known = {name.lower(): name for entry in entries for name in entry.names if not re.fullmatch(r"-?\d+", name)}
    text = what.strip().lower()
    found = difflib.get_close_matches(text, known, most, 0.6)
    # A word of a name, such as "alignment", is a good guess too.
    found += [name for name in known if text and text in re.split(r"[._]", name) and name not in found]
    return [known[name] for name in found[:most]]
