"""Finding and opening UCX.

Nothing is opened by an import. A library that was opened stays for the life of the process: UCX leaves threads and
handlers behind.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from cachefw.errors import TransportUnavailable

from .status import TRANSPORT, name_of

if TYPE_CHECKING:
    from ._native import Ucx

__all__ = ["DEFAULTS", "VARIABLE", "Attempt", "Candidate", "Library", "candidates", "open_library"]

VARIABLE = "CACHEFW_UCX"
SONAME = "libucp.so.0"
WHEEL = "libucx"

#: What the environment says to UCX before it is loaded, unless the user said something of their own.
DEFAULTS: dict[str, str] = {
    # Else it installs handlers for the signals of faults, which print their own traces and hide Python's.
    "UCX_HANDLE_ERRORS": "none",
    # Else it takes SIGHUP from the application, to show a debugger.
    "UCX_DEBUG_SIGNO": "0",
    # It would write to standard output; every failure reaches us as a status.
    "UCX_LOG_LEVEL": "fatal",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    # A card gives up a silent peer after 7 times 0.13 s instead of 8 times 1 s. Not 7 repetitions, which the
    # kernel's software card takes for endlessly many.
    "UCX_RC_TIMEOUT": "100ms",
    "UCX_RC_RETRY_COUNT": "6",
    "UCX_UD_TIMEOUT": "2s",
    # Else connecting to a host that does not answer holds up everything else for minutes.
    "UCX_TCP_CONN_NB": "y",
    # Before 1.14 it looks for the sender's kind of address where only one maker's cards put it, and drops every packet
    # of the others.
    "UCX_UD_VERBS_ETH_DGID_CHECK": "n",
}


@attrs.frozen
class Candidate:
    """A place to look at.

    Attributes:
        source: Who named it: a variable, the loader, or a wheel.
        path: What to load; empty when the source names nothing.
        note: Why there is nothing to load.
    """

    source: str
    path: str
    note: str = ""


@attrs.frozen
class Attempt:
    """What came of one candidate.

    Attributes:
        source: Who named it.
        path: What was tried; empty when the source named nothing.
        result: In words.
    """

    source: str
    path: str
    result: str

    def __str__(self) -> str:
        return f"{self.source}: {self.path}: {self.result}" if self.path else f"{self.source}: {self.result}"


@attrs.frozen
class Library:
    """A library that is open.

    Attributes:
        path: The file, as the loader knows it.
        source: Who named it.
        version: UCX's, (major, minor, release).
        handle: For the native side.
        attempts: Everything that was tried, this one last.
    """

    path: str
    source: str
    version: tuple[int, int, int]
    handle: Ucx = attrs.field(repr=False)
    attempts: tuple[Attempt, ...] = attrs.field(repr=False)

    def text(self, status: int) -> str:
        """UCX's own words for a status."""
        native = _native()
        return bytes(native.ffi.string(native.lib.cfw_ucx_text(self.handle, status))).decode(errors="replace")

    def __str__(self) -> str:
        return f"UCX {'.'.join(map(str, self.version))} at {self.path}"


def candidates(environ: Mapping[str, str] | None = None) -> Iterator[Candidate]:
    """Where UCX is looked for, in order.

    1. ``CACHEFW_UCX``: the path of a ``libucp.so``. When it is set, nothing else is tried.
    2. The loader: ``libucp.so.0``, by its own rules (``LD_LIBRARY_PATH``, ``ldconfig``). Debian's is ``libucx0``.
    3. The wheel ``libucx`` (``pip install 'cachefw-rdma[ucx]'``), which has no InfiniBand and no RoCE inside.

    Args:
        environ: The variables; those of the process by default.
    """
    environ = os.environ if environ is None else environ
    chosen = environ.get(VARIABLE, "")
    if chosen:
        yield Candidate(VARIABLE, chosen)
        return
    yield Candidate(VARIABLE, "", "not set")
    yield Candidate("the loader", SONAME)
    wheel = _wheel()
    if wheel is None:
        yield Candidate(f"the wheel {WHEEL}", "", "not installed")
    else:
        yield Candidate(f"the wheel {WHEEL}", str(wheel))


def _wheel() -> Path | None:
    # Only looked up: its own loader would also open what the system has.
    spec = importlib.util.find_spec(WHEEL)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        found = Path(folder) / "lib" / SONAME
        if found.exists():
            return found
    return None


_lock = threading.Lock()
_open: dict[str, Library] = {}


def open_library(environ: MutableMapping[str, str] | None = None) -> Library:
    """Open the first library that can be used; the same one again for the same ``CACHEFW_UCX``.

    Sets `DEFAULTS` in the environment, where the user set nothing, as UCX reads them when it is loaded.

    Thread safety: may be called from any thread; one searches, the others wait.

    Args:
        environ: The variables; those of the process by default.

    Raises:
        TransportUnavailable: None can be used. The text and ``facts["attempts"]`` have every attempt with its result.
    """
    environ = os.environ if environ is None else environ
    with _lock:
        chosen = environ.get(VARIABLE, "")
        if chosen not in _open:
            for name, value in DEFAULTS.items():
                environ.setdefault(name, value)
            _open[chosen] = _search(candidates(environ))
        return _open[chosen]


def _native() -> Any:
    from . import _native as native

    return native


def _search(places: Iterator[Candidate]) -> Library:
    attempts: list[Attempt] = []
    for place in places:
        found = place.note or _try(place, attempts)
        if isinstance(found, Library):
            return found
        attempts.append(Attempt(place.source, place.path, found))
    tried = "\n".join(f"  {attempt}" for attempt in attempts)
    raise TransportUnavailable(
        f"no usable UCX library was found. Tried, in order:\n{tried}\n"
        f"To mend it: apt-get install libucx0 (has InfiniBand and RoCE), or pip install 'cachefw-rdma[ucx]' (tcp and "
        f"shared memory only), or set {VARIABLE} to the path of {SONAME}",
        code="ucx.unavailable",
        operation="open_library",
        transport=TRANSPORT,
        facts={"attempts": tuple(attempts)},
    )


def _try(place: Candidate, attempts: list[Attempt]) -> Library | str:
    """The library of one candidate, or why it is none."""
    native = _native()
    ffi, lib = native.ffi, native.lib
    info, made = ffi.new("cfw_ucx_info *"), ffi.new("cfw_ucx **")
    status = lib.cfw_ucx_open(place.path.encode(), info, made)
    version = info.version[0], info.version[1], info.version[2]
    found = ".".join(map(str, version))
    oldest = f"{lib.CFW_UCX_MAJOR}.{lib.CFW_UCX_MINOR}"
    if status == lib.CFW_RDMA_NOT_LOADED:
        return f"the loader refused it: {_text(native, info.text)}"
    if status == lib.CFW_RDMA_TOO_OLD:
        return f"it is UCX {found}, which is too old: {oldest} or newer is needed"
    if status == lib.CFW_RDMA_FOREIGN:
        said = f"it says that it is UCX {found}, but" if any(version) else "it is no UCX:"
        return f"{said} {info.missing} functions are missing, {_text(native, info.lacks)} among them"
    if status:
        return name_of(status)
    path = _text(native, info.path) or place.path
    return Library(path, place.source, version, made[0], (*attempts, Attempt(place.source, path, "opened")))


def _text(native: Any, chars: Any) -> str:
    return bytes(native.ffi.string(chars)).decode(errors="replace")
