"""Finding and opening AscendCL.

Nothing is opened by an import. One library is open at a time, for the whole process.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from cachefw.errors import BusyError, CacheError, TransportUnavailable

from . import _acl, _elf
from ._acl import ffi, lib
from .status import name_of

__all__ = [
    "VARIABLE",
    "Attempt",
    "Candidate",
    "Library",
    "candidates",
    "close_library",
    "current_library",
    "open_library",
    "simulator_path",
]

VARIABLE = "CACHEFW_ASCENDCL"
SIMULATOR = "simulator"
_LOADER = "the loader"
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_FOLDERS = ("lib64", "runtime/lib64")
# From CANN 8.5 on the first is a front that needs the second; a runtime without the toolkit may have the second alone.
_FILES = ("libascendcl.so", "libacl_rt.so")


@attrs.frozen
class Candidate:
    """A place to look at.

    Attributes:
        source: Who named it: a variable, or the loader.
        path: What to load; empty when the source names nothing.
        simulated: Whether a simulator is accepted there.
        note: Why there is nothing to load.
    """

    source: str
    path: str
    simulated: bool = False
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
    """The library that is open.

    Attributes:
        path: The file, as the loader knows it.
        source: Who named it.
        version: Of the programming interface, (major, minor, patch); None when it does not say.
        is_simulator: Whether it emulates devices. Whoever reports figures has to say so.
        description: The simulator's own words; empty for a real one.
        missing: The functions of our list that it lacks, because its CANN is older.
        device_count: Devices it sees; 0 also when it cannot tell.
        device_status: What it answered to that question. Not 0 without a working driver.
        attempts: Everything that was tried, this one last.
    """

    path: str
    source: str
    version: tuple[int, int, int] | None
    is_simulator: bool
    description: str
    missing: tuple[str, ...]
    device_count: int
    device_status: int
    attempts: tuple[Attempt, ...] = attrs.field(repr=False)

    def has(self, name: str) -> bool:
        """Whether it has a function; False for one that is not on our list."""
        return name in _symbols() and name not in self.missing

    def __str__(self) -> str:
        version = "of an unknown version" if self.version is None else ".".join(map(str, self.version))
        lacks = f", without {len(self.missing)} newer functions" if self.missing else ""
        return f"{'SIMULATED ' if self.is_simulator else ''}AscendCL {version} at {self.path}{lacks}"


def simulator_path() -> Path:
    """Where the simulator is when it was built: beside the compiled module."""
    return Path(_acl.__file__).parent / "_simulator" / "libascendcl.so"


def candidates(environ: Mapping[str, str] | None = None) -> Iterator[Candidate]:
    """Where AscendCL is looked for, in order.

    1. ``CACHEFW_ASCENDCL``: the path of a library, or the word ``simulator``. When it is set, nothing else is tried.
    2. ``ASCEND_HOME_PATH``, then ``ASCEND_TOOLKIT_HOME`` (the toolkit's ``set_env.sh`` sets them): ``libascendcl.so``,
       then ``libacl_rt.so``, in ``lib64`` and ``runtime/lib64`` below it.
    3. The loader: the same two names, by its own rules (``LD_LIBRARY_PATH``, ``ldconfig``).

    The simulator is accepted only where the first names it.

    Args:
        environ: The variables; those of the process by default.
    """
    environ = os.environ if environ is None else environ
    chosen = environ.get(VARIABLE, "")
    if chosen:
        yield Candidate(VARIABLE, str(simulator_path()) if chosen == SIMULATOR else chosen, simulated=True)
        return
    yield Candidate(VARIABLE, "", note="not set")
    seen: set[Path] = set()
    for variable in _HOMES:
        home = environ.get(variable, "")
        if not home:
            yield Candidate(variable, "", note="not set")
            continue
        for folder in (Path(home) / folder for folder in _FOLDERS):
            if folder in seen:
                yield Candidate(variable, str(folder), note="tried before")
            elif not folder.is_dir():
                yield Candidate(variable, str(folder), note="no such folder")
            else:
                for name in _FILES:
                    yield Candidate(variable, str(folder / name))
            seen.add(folder)
    for name in _FILES:
        yield Candidate(_LOADER, name)


_lock = threading.RLock()
_open: Library | None = None
_uses = 0


def _after_fork() -> None:
    # Another thread of the parent may have held it.
    global _lock  # noqa: PLW0603
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def current_library() -> Library | None:
    """The library that is open, or None. Opens nothing."""
    return _open


def open_library(environ: Mapping[str, str] | None = None) -> Library:
    """Open the first library that can be used; the one that is open already, if any.

    Thread safety: may be called from any thread; one searches, the others wait.

    Args:
        environ: The variables that say where to look; those of the process by default.

    Raises:
        TransportUnavailable: None can be used. The text and ``facts["attempts"]`` have every attempt with its result.
    """
    global _open  # noqa: PLW0603
    with _lock:
        if _open is None:
            _open = _search(candidates(environ))
        return _open


def close_library() -> None:
    """Let another library be opened. Idempotent; the file stays mapped, as its threads may still run.

    Raises:
        BusyError: A `Runtime` is open.
    """
    global _open  # noqa: PLW0603
    with _lock:
        if _uses:
            raise BusyError(
                f"AscendCL is in use by {_uses} runtime{'s' * (_uses > 1)}; close them first", operation="close_library"
            )
        lib.cfw_acl_close()
        _open = None


def hold(environ: Mapping[str, str] | None = None) -> Library:
    """`open_library`, and keep it open until `unhold`."""
    global _uses  # noqa: PLW0603
    with _lock:
        library = open_library(environ)
        _uses += 1
        return library


def unhold() -> None:
    """Take back one `hold`; the last one closes the library."""
    global _uses  # noqa: PLW0603
    with _lock:
        _uses -= 1
        if not _uses:
            close_library()


@functools.cache
def _symbols() -> tuple[str, ...]:
    return tuple(ffi.string(lib.cfw_acl_symbol(index)).decode() for index in range(lib.cfw_acl_num_symbols()))


def _search(places: Iterator[Candidate]) -> Library:
    attempts: list[Attempt] = []
    for place in places:
        found = place.note or _try(place, attempts)
        if isinstance(found, Library):
            return found
        attempts.append(Attempt(place.source, place.path, found))
    raise _unavailable(attempts)


def _try(place: Candidate, attempts: list[Attempt]) -> Library | str:
    """The library of one candidate, or why it is none."""
    # The loader's words on a bad file are poor, and it must not run the code of what is no library for this machine.
    if "/" in place.path:
        reason = _elf.objection(Path(place.path))
        if reason is not None:
            built = Path(place.path) != simulator_path() or "no such file" not in reason
            return reason if built else f"{reason}: the simulator was not built into this installation"
    info = ffi.new("cfw_acl_info *")
    status = lib.cfw_acl_open(place.path.encode(), lib.CFW_ACL_ALLOW_SIMULATOR if place.simulated else 0, info)
    text = ffi.string(info.text).decode(errors="replace")
    if status == lib.CFW_ACL_NOT_LOADED:
        return f"the loader refused it: {text}"
    if status:
        return _REFUSED.get(status, f"status {status}")
    path = ffi.string(info.path).decode(errors="surrogateescape") or place.path
    result = "opened"
    if info.count_status:
        result += f", but asked for devices it answers {info.count_status} ({name_of(info.count_status)})"
    return Library(
        path=path,
        source=place.source,
        version=None if info.version_status else (info.version[0], info.version[1], info.version[2]),
        is_simulator=bool(info.simulated),
        description=text,
        missing=tuple(name for index, name in enumerate(_symbols()) if not lib.cfw_acl_has(index)),
        device_count=0 if info.count_status else info.device_count,
        device_status=info.count_status,
        attempts=(*attempts, Attempt(place.source, path, result)),
    )


_REFUSED: dict[int, str] = {
    lib.CFW_ACL_FOREIGN: "loaded, but it has not one function of AscendCL",
    lib.CFW_ACL_STUB: (
        f"a stub of the toolkit, for linking only: its functions answer {lib.ACL_ERROR_COMPILING_STUB_MODE}; "
        "the runtime that comes with the driver is needed"
    ),
    lib.CFW_ACL_SIMULATED: f"a simulator, which is used only when {VARIABLE} names it",
    lib.CFW_ACL_BUSY: "another library is open",
    lib.CFW_ACL_NO_MEMORY: "no memory for its table of functions",
}


def _unavailable(attempts: list[Attempt]) -> CacheError:
    tried = "\n".join(f"  {attempt}" for attempt in attempts)
    return TransportUnavailable(
        f"no usable AscendCL library was found. Tried, in order:\n{tried}\n"
        f"To mend it: source the toolkit's set_env.sh, or set {VARIABLE} to the path of libascendcl.so, or to "
        f"'{SIMULATOR}' to work without a device",
        code="acl.unavailable",
        operation="open_library",
        facts={"attempts": tuple(attempts)},
    )
