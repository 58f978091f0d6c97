"""The checks that every public call is made of; each raises what code written for LLM-DataDist expects."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, cast

from cachefw.compat.llm_datadist.status import invalid, out_of_range, wrong_type
from cachefw.errors import CacheError

__all__ = [
    "check_dict",
    "check_elements",
    "check_int32",
    "check_int64",
    "check_isinstance",
    "check_uint16",
    "check_uint32",
    "check_uint64",
    "near",
    "require",
]

_Classes = type | tuple[type, ...]


def _named(classes: _Classes) -> str:
    return " or ".join(cls.__name__ for cls in (classes if isinstance(classes, tuple) else (classes,)))


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"


def wrong(name: str, classes: _Classes, value: object) -> CacheError:
    """The error of a value of the wrong type."""
    return wrong_type(f"{name} must be {_named(classes)}, not {_shown(value)}")


def check_isinstance(
    name: str, value: Any, classes: _Classes, element: _Classes | None = None, *, allow_none: bool = True
) -> None:
    """Check a type; None passes unless told otherwise.

    Raises:
        TypeError: Another type; of a container also an element that is none of `element` (of a dict: a key).
    """
    if value is None and allow_none:
        return
    if not isinstance(value, classes):
        raise wrong(name, classes, value)
    if element is not None:
        check_elements(name, cast("Iterable[Any]", value), element)


def check_elements(name: str, values: Iterable[Any], element: _Classes) -> None:
    """Check the type of each element; None fails.

    Raises:
        TypeError: One is something else.
    """
    for index, item in enumerate(values):
        if not isinstance(item, element):
            raise wrong(f"{name}[{index}]", element, item)


def check_dict(name: str, value: Any, key: _Classes, of: _Classes, element: _Classes | None = None) -> None:
    """Check a dict with its keys and values, and what its values hold.

    Raises:
        TypeError: Something in it has another type.
    """
    check_isinstance(name, value, dict, key)
    for inner, item in value.items():
        check_isinstance(f"{name}[{inner!r}]", item, of, element, allow_none=False)


def _check_range(name: str, value: Any, low: int, high: int) -> int:
    if not isinstance(value, int):
        raise wrong(name, int, value)
    if not low <= value <= high:
        raise out_of_range(f"{name} must lie in {low} ... {high}, not {value}")
    return value


def check_uint16(name: str, value: Any) -> int:
    """Check an integer of 16 bits; TypeError or ValueError."""
    return _check_range(name, value, 0, 2**16 - 1)


def check_uint32(name: str, value: Any) -> int:
    """Check an unsigned integer of 32 bits; TypeError or ValueError."""
    return _check_range(name, value, 0, 2**32 - 1)


def check_uint64(name: str, value: Any) -> int:
    """Check an unsigned integer of 64 bits; TypeError or ValueError."""
    return _check_range(name, value, 0, 2**64 - 1)


def check_int32(name: str, value: Any) -> int:
    """Check an integer of 32 bits; TypeError or ValueError."""
    return _check_range(name, value, -(2**31), 2**31 - 1)


def check_int64(name: str, value: Any) -> int:
    """Check an integer of 64 bits; TypeError or ValueError."""
    return _check_range(name, value, -(2**63), 2**63 - 1)


def require(condition: Any, text: str) -> None:
    """Check anything else.

    Raises:
        LLMException: With `LLM_PARAM_INVALID`; a ValueError too.
    """
    if not condition:
        raise invalid(text)


def near(name: str, known: Iterable[str]) -> str:
    """Words that name what an unknown name may have meant, or ""."""
    close = difflib.get_close_matches(name, list(known), 3, 0.6)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
