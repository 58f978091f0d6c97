"""Answer imports of other libraries, so that programs written for them run on cachefw unchanged.

    import cachefw.compat
    cachefw.compat.install()
    import hixl                     # is cachefw.compat.hixl

or, without touching the program, ``python -m cachefw.compat run script.py args...``.

A package is one module object under both names, submodules included. Nothing happens on import of this module, and a
package that is really installed is only put aside on request.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachefw.errors import CacheError

__all__ = ["DEFAULT", "PACKAGES", "child_environment", "install", "installed", "uninstall"]

#: Where the answer to each package lives.
PACKAGES = {
    "llm_datadist": "cachefw.compat.llm_datadist",
    "llm_datadist_wrapper": "cachefw.compat.llm_datadist.llm_datadist_wrapper",
    "hixl": "cachefw.compat.hixl",
    "mooncake": "cachefw.compat.mooncake",
}
#: What `install` answers when it is given no names. Mooncake has parts that are no transfer engine, so it is asked for.
DEFAULT = ("llm_datadist", "llm_datadist_wrapper", "hixl")

#: From the runner to the processes below it: Python runs the ``sitecustomize.py`` of a folder on its path.
_VARIABLE = "CACHEFW_COMPAT"
_CHILDREN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_children")


class _Finder:
    """Finds ``name.sub`` as ``cachefw.compat.name.sub``, and gives the very module that this other name has.

    Not derived from the import system's base classes, which take longer to import than all of this.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, dot, rest = fullname.partition(".")
        if top not in self.names:
            return None
        home = PACKAGES[top] + dot + rest
        try:
            spec = importlib.util.find_spec(home)
        except ModuleNotFoundError as error:
            # A parent that does not exist is an answer; a broken import inside it is not.
            if error.name is None or not (home + ".").startswith(error.name + "."):
                raise
            spec = None
        if spec is None:
            return None
        package = spec.submodule_search_locations is not None
        found = ModuleSpec(fullname, self, origin=spec.origin, is_package=package)  # type: ignore[arg-type]
        found.loader_state = home
        return found

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(spec.loader_state)
        # The import system is about to write its own spec over the one that relative imports and reload go by.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None  # noqa: S101
        module.__spec__ = module.__spec__.loader_state


_finder = _Finder()


def install(*names: str, replace: bool = False) -> tuple[str, ...]:
    """Have imports of these packages, and of their submodules, answered by cachefw, in this process from now on.

    Installing again what is installed does nothing.

    Args:
        *names: Of `PACKAGES`; none means `DEFAULT`.
        replace: Put aside a package of that name which is really installed. Without it that is refused, so that nobody
            believes to measure the one and runs the other.

    Returns:
        The names.

    Raises:
        RequestError: Also a `ValueError`: a name that cachefw does not answer, one that is really installed, or one
            that this program has imported already. Nothing is changed then.
    """
    wanted = _known(names or DEFAULT, "install")
    for name in wanted:
        if name in _finder.names:
            continue
        loaded = sys.modules.get(name)
        if loaded is not None and not loaded.__name__.startswith(__name__ + "."):
            raise _refused(
                f"{name} was imported already, from {_place(loaded)}; call install() before anything imports it",
                "install",
            )
        if not replace and loaded is None:
            real = importlib.util.find_spec(name)
            if real is not None:
                where = real.origin or next(iter(real.submodule_search_locations or ()), "an unknown place")
                raise _refused(
                    f"{name} is really installed ({where}), and would be hidden; install(..., replace=True) or "
                    "`run --replace` puts cachefw in its place on purpose",
                    "install",
                )
    _finder.names.update(wanted)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    return wanted


def uninstall(*names: str) -> None:
    """Stop answering imports; modules that were imported meanwhile stay usable to who holds them.

    Args:
        *names: Of `PACKAGES`; none means all. What is not installed is passed over.

    Raises:
        RequestError: As for `install`.
    """
    _finder.names.difference_update(leaving := _known(names or tuple(PACKAGES), "uninstall"))
    for name, module in list(sys.modules.items()):
        # A really installed package of the name is not ours to forget.
        if name.partition(".")[0] in leaving and module.__name__.startswith(__name__ + "."):
            del sys.modules[name]
    if not _finder.names and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def installed() -> tuple[str, ...]:
    """The packages that cachefw answers in this process now."""
    return tuple(sorted(_finder.names))


def child_environment(names: Iterable[str]) -> dict[str, str]:
    """The variables that have Python processes started from here answer `names` too, whatever starts them.

    Such a process looks into a folder of cachefw's first; a ``sitecustomize`` of the user's still runs.
    """
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != _CHILDREN]
    return {_VARIABLE: ",".join(names), "PYTHONPATH": os.pathsep.join([_CHILDREN, *inherited])}


def install_inherited() -> None:
    """Install what the variable of `child_environment` asks for; the process that set it has checked the names."""
    names = os.environ.get(_VARIABLE, "")
    if names:
        install(*names.split(","), replace=True)


def _known(names: Iterable[str], operation: str) -> tuple[str, ...]:
    known = tuple(dict.fromkeys(names))
    for name in known:
        if name not in PACKAGES:
            raise _refused(f"cachefw answers {', '.join(PACKAGES)}, not {name!r}", operation)
    return known


def _place(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or "an unknown place")


def _refused(text: str, operation: str) -> CacheError:
    from cachefw.errors import RequestError, refusal

    return refusal(RequestError, {ValueError}, text, operation=operation)
