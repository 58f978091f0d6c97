"""The file that ``cachefw plan`` reads: what would be registered, in JSON or YAML."""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from cachefw.cache import CacheDesc, DataType, Placement, as_int
from cachefw.dry import DryCache, DryMemory, lay_out
from cachefw.errors import CacheError, RequestError, refusal
from cachefw.memory import MemoryKind, MemoryRegion
from cachefw.rules import Limits

__all__ = ["DATA_TYPES", "KINDS", "Description", "read"]

_GIB = 2**30
KINDS = {kind.name.lower(): kind for kind in MemoryKind}
DATA_TYPES = {data_type.name.removeprefix("DT_").lower(): data_type for data_type in DataType}
DATA_TYPES |= {"fp32": DataType.DT_FLOAT, "float32": DataType.DT_FLOAT, "fp16": DataType.DT_FLOAT16}
DATA_TYPES |= {"half": DataType.DT_FLOAT16, "bfloat16": DataType.DT_BF16}

_TOP = ("transports", "profile", "linked", "limits", "memories", "caches")
_LIMITS = ("addresses", "device_gib", "host_gib")
_MEMORY = ("name", "address", "length", "memory", "remote_accessible")
_CACHE = (
    "name",
    "tensors",
    "shape",
    "data_type",
    "memory",
    "addresses",
    "base",
    "step",
    "align",
    "blocks",
    "remote_accessible",
)


@attrs.frozen
class Description:
    """What the file says.

    Attributes:
        transports: Names, or () where it names none.
        profile: The machine, or None.
        linked: Whether a link exists.
        limits: Those of the node.
        memories: What `register_memory` would take, first.
        caches: What the register calls would take.
    """

    transports: tuple[str, ...]
    profile: str | None
    linked: bool
    limits: Limits
    memories: tuple[DryMemory, ...]
    caches: tuple[DryCache, ...]


def read(path: Path) -> Description:
    """Read a description.

    Raises:
        RequestError: Also a `ValueError`: it cannot be read, is no JSON or YAML (line and column are said), or says
            what makes no sense: everything that is wrong with it, at once.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _refuse(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    parsed = _yaml(path, text) if path.suffix.lower() in (".yaml", ".yml") else _json(path, text)
    reader = _Reader()
    made = reader.description(parsed)
    if reader.faults:
        lines = "".join(f"\n  {number}. {fault}" for number, fault in enumerate(reader.faults, 1))
        raise _refuse(f"{path} does not describe a registration:{lines}")
    return made


def _refuse(text: str) -> CacheError:
    return refusal(RequestError, {ValueError}, text, code="plan.description", operation="plan")


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _refuse(
            f"{path}, line {error.lineno}, column {error.colno}: no JSON: {error.msg}{_shown(text, error.lineno)}"
        ) from None


def _yaml(path: Path, text: str) -> Any:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError:
        raise _refuse(f"{path} is YAML, which needs PyYAML: pip install 'cachefw[yaml]', or write it as JSON") from None
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        shown = _shown(text, mark.line + 1) if mark is not None else ""
        raise _refuse(f"{path}{where}: no YAML: {error.problem or error.context}{shown}") from None
    except yaml.YAMLError as error:
        raise _refuse(f"{path}: no YAML: {error}") from None


def _shown(text: str, line: int) -> str:
    lines = text.splitlines()
    return f"\n  {lines[line - 1].rstrip()[:100]}" if 0 < line <= len(lines) else ""


class _Reader:
    """Makes values of what was parsed, and collects what is wrong instead of stopping there."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._ends: dict[MemoryKind, int] = {}

    def description(self, given: Any) -> Description:
        top = self._mapping(given, "the file", _TOP)
        names = top.get("transports", [])
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            self.faults.append(f"transports must be a list of names, not {names!r}")
            names = []
        profile = top.get("profile")
        if profile is not None and not isinstance(profile, (str, int)):
            self.faults.append(f"profile must be a name, not {profile!r}")
        memories = [self._memory(row, f"memories[{i}]") for i, row in enumerate(self._list(top, "memories"))]
        caches = [self._cache(row, f"caches[{i}]") for i, row in enumerate(self._list(top, "caches"))]
        if not memories and not caches and not self.faults:
            self.faults.append("there is nothing to register: give caches, memories, or both")
        return Description(
            tuple(names),
            None if profile is None else str(profile),
            bool(self._flag(top, "linked", "linked", False)),
            self._limits(top.get("limits", {})),
            tuple(memory for memory in memories if memory is not None),
            tuple(cache for cache in caches if cache is not None),
        )

    def _mapping(self, given: Any, where: str, known: Iterable[str]) -> Mapping[str, Any]:
        if not isinstance(given, Mapping):
            self.faults.append(f"{where} must be a mapping of {', '.join(known)}, not {_short(given)}")
            return {}
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, 1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                self.faults.append(f"{where} has an unknown name {name!r}; {hint}")
        return given

    def _list(self, top: Mapping[str, Any], name: str) -> list[Any]:
        given = top.get(name, [])
        if isinstance(given, list):
            return given
        self.faults.append(f"{name} must be a list, not {_short(given)}")
        return []

    def _int(self, row: Mapping[str, Any], name: str, where: str) -> int | None:
        given = row.get(name)
        number = _number(given)
        if number is None:
            said = (
                "is missing"
                if given is None
                else f"must be a whole number or a string as '0x1000', not {_short(given)}"
            )
            self.faults.append(f"{where}.{name} {said}")
        return number

    def _flag(self, row: Mapping[str, Any], name: str, where: str, default: bool | None) -> bool | None:
        given = row.get(name, default)
        if given is None or isinstance(given, bool):
            return given
        self.faults.append(f"{where} must be true or false, not {_short(given)}")
        return default

    def _choice(self, row: Mapping[str, Any], name: str, where: str, known: Mapping[str, Any], default: str) -> Any:
        given = row.get(name, default)
        key = str(given).lower().removeprefix("dt_")
        if key in known:
            return known[key]
        near = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        self.faults.append(f"{where}.{name} is {_short(given)}; {hint}")
        return known[default]

    def _limits(self, given: Any) -> Limits:
        row = self._mapping(given, "limits", _LIMITS)
        values: dict[str, Any] = {}
        for name, field, unit in (
            ("addresses", "addresses", 1),
            ("device_gib", "device_bytes", _GIB),
            ("host_gib", "host_bytes", _GIB),
        ):
            number = row.get(name)
            if number is None:
                continue
            if isinstance(number, bool) or not isinstance(number, (int, float)) or number <= 0:
                self.faults.append(f"limits.{name} must be a number above 0, not {_short(number)}")
            else:
                values[field] = int(number * unit)
        return Limits(**values, source="the description") if values else Limits()

    def _memory(self, given: Any, where: str) -> DryMemory | None:
        row = self._mapping(given, where, _MEMORY)
        if not row:
            return None
        address, length = self._int(row, "address", where), self._int(row, "length", where)
        kind = self._choice(row, "memory", where, KINDS, "device")
        remote = self._flag(row, "remote_accessible", f"{where}.remote_accessible", None)
        if address is None or length is None:
            return None
        return DryMemory(str(row.get("name", where)), MemoryRegion(address, length, kind), remote)

    def _cache(self, given: Any, where: str) -> DryCache | None:
        row = self._mapping(given, where, _CACHE)
        if not row:
            return None
        tensors = self._int(row, "tensors", where)
        shape = row.get("shape")
        dims = [as_int(dim) for dim in shape] if isinstance(shape, list) else []
        if not dims or None in dims:
            self.faults.append(f"{where}.shape must be a list of whole numbers, not {_short(shape)}")
            return None
        kind = self._choice(row, "memory", where, KINDS, "device")
        data_type = self._choice(row, "data_type", where, DATA_TYPES, "float16")
        blocks = self._flag(row, "blocks", f"{where}.blocks", True)
        remote = self._flag(row, "remote_accessible", f"{where}.remote_accessible", None)
        if tensors is None:
            return None
        placement = Placement.DEVICE if kind is MemoryKind.DEVICE else Placement.HOST
        desc = CacheDesc(tensors, tuple(dim for dim in dims if dim is not None), data_type, placement)
        addresses = self._addresses(row, where, desc, kind)
        if addresses is None:
            return None
        return DryCache(str(row.get("name", where)), desc, addresses, kind, bool(blocks), remote)

    def _addresses(
        self, row: Mapping[str, Any], where: str, desc: CacheDesc, kind: MemoryKind
    ) -> tuple[int, ...] | None:
        if "addresses" in row:
            given = row["addresses"]
            numbers = [_number(each) for each in given] if isinstance(given, list) else []
            if not isinstance(given, list) or None in numbers or "base" in row or "step" in row:
                wish = "a list of whole numbers or of strings as '0x1000', without base and step"
                self.faults.append(f"{where}.addresses must be {wish}")
                return None
            return tuple(number for number in numbers if number is not None)
        if "base" in row:
            base = self._int(row, "base", where)
            step = self._int(row, "step", where) if "step" in row else desc.size
            return None if base is None or step is None else tuple(base + i * step for i in range(desc.num_tensors))
        align = self._int(row, "align", where) if "align" in row else 2 * 2**20
        if align is None or align < 1:
            self.faults.append(f"{where}.align must be at least 1")
            return None
        made = lay_out(desc, kind, align, self._ends.get(kind, 0))
        self._ends[kind] = made[-1] + desc.size if made else self._ends.get(kind, 0)
        return made


def _number(given: Any) -> int | None:
    if isinstance(given, str):
        try:
            return int(given, 0)
        except ValueError:
            return None
    return as_int(given)


def _short(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else text[:57] + "..."
