"""Finding and opening HIXL. Nothing is opened by an import; one library is open at a time in a process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping

import attrs

from cachefw.errors import BusyError, TransportUnavailable

from ._hixl import ffi, lib
from .status import TRANSPORT, status_text

__all__ = ["NAME", "REQUIRED", "VARIABLE", "Library", "candidates", "hold", "symbols", "unhold"]

VARIABLE = "CACHEFW_HIXL"
NAME = "libcann_hixl.so"


@attrs.frozen
class Library:
    """The library that is open.

    Attributes:
        path: The file, as the loader knows it.
        source: Who named it.
        missing: Functions of our list that it lacks.
    """

    path: str
    source: str
    missing: tuple[str, ...] = ()


def symbols() -> tuple[str, ...]:
    """The functions of HIXL that are bound."""
    return tuple(ffi.string(lib.cfw_hixl_symbol(index)).decode() for index in range(lib.cfw_hixl_num_symbols()))


#: What a library must have. The synchronous transfers are bound, but a deadline of theirs leaves bytes under way that
#: nobody can ask after any more, so the provider does without.
REQUIRED = frozenset(name for name in symbols() if not name.endswith("Sync"))


def candidates(environ: Mapping[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """Where HIXL is looked for, as (source, path): ``CACHEFW_HIXL`` alone when it is set, else the loader's places."""
    environ = os.environ if environ is None else environ
    chosen = environ.get(VARIABLE, "")
    yield (VARIABLE, chosen) if chosen else ("the loader", NAME)


_lock = threading.Lock()
_open: Library | None = None
_uses = 0


def hold(environ: Mapping[str, str] | None = None) -> Library:
    """Open the first library that can be used, or share the one that is open, until `unhold`.

    Raises:
        TransportUnavailable: None can be used; the text has every attempt.
        BusyError: Another file is open.
    """
    global _open, _uses  # noqa: PLW0603
    with _lock:
        if _open is None:
            _open = _search(environ)
        else:
            chosen = (os.environ if environ is None else environ).get(VARIABLE, "")
            if chosen and os.path.realpath(chosen) != os.path.realpath(_open.path):
                raise BusyError(
                    f"HIXL is open from {_open.path}; close its transports before {chosen} is opened",
                    operation="open",
                    transport=TRANSPORT,
                )
        _uses += 1
        return _open


def unhold() -> None:
    """Take back one `hold`. The last one closes the library, whose file stays mapped: it has threads of its own."""
    global _open, _uses  # noqa: PLW0603
    with _lock:
        _uses -= 1
        if not _uses:
            lib.cfw_hixl_close()
            _open = None


def _search(environ: Mapping[str, str] | None) -> Library:
    tried = []
    for source, path in candidates(environ):
        info = ffi.new("cfw_hixl_info *")
        status = lib.cfw_hixl_open(path.encode(), info)
        if status:
            words = ffi.string(info.text).decode(errors="replace")
            tried.append(f"{source}: {path}: {status_text(status)}" + (f": {words}" if words else ""))
            continue
        missing = tuple(name for index, name in enumerate(symbols()) if not lib.cfw_hixl_has(index))
        lacks = sorted(REQUIRED.intersection(missing))
        if not lacks:
            return Library(ffi.string(info.path).decode(errors="surrogateescape") or path, source, missing)
        lib.cfw_hixl_close()
        tried.append(f"{source}: {path}: it lacks {', '.join(lacks)}; a newer HIXL is needed (CANN 9 or newer)")
    raise TransportUnavailable(
        "no usable HIXL library was found. Tried:\n  "
        + "\n  ".join(tried)
        + f"\nTo mend it: source the toolkit's set_env.sh, or set {VARIABLE} to the path of {NAME}",
        code="hixl.unavailable",
        operation="open",
        transport=TRANSPORT,
        facts={"attempts": tuple(tried)},
    )
