"""Running a program in this interpreter as ``python program`` and ``python -m program`` do."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType, TracebackType

import attrs

__all__ = ["NoProgram", "Program", "module", "script"]


class NoProgram(Exception):
    """There is nothing to run; the text says why, as the interpreter would."""


@attrs.frozen
class Program:
    """What is to be the main module.

    Attributes:
        file: Its source, as the program sees it in ``__file__``.
        spec: How it was found; None for a plain file.
    """

    file: str
    spec: ModuleSpec | None

    def run(self) -> None:
        """Run it as ``__main__``. Whatever it raises comes out; tracebacks begin with the program's own code."""
        main = ModuleType("__main__")
        loader = SourceFileLoader("__main__", self.file) if self.spec is None else self.spec.loader
        vars(main).update(
            __file__=self.file,
            __builtins__=builtins,
            __spec__=self.spec,
            __loader__=loader,
            __package__=None if self.spec is None else self.spec.parent,
            __cached__=None if self.spec is None else self.spec.cached,
        )
        sys.modules["__main__"] = main
        try:
            exec(self._code(), vars(main))  # noqa: S102
        except BaseException:
            # Not now, but when the interpreter reports it: the program may have set a hook of its own.
            report = sys.excepthook

            def begin_in_program(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
                own = _own(trace, vars(main))
                report(kind, error.with_traceback(own), own)

            sys.excepthook = begin_in_program
            raise

    def _code(self) -> CodeType:
        if self.spec is None:
            with io.open_code(self.file) as source:
                return compile(source.read(), self.file, "exec", dont_inherit=True)
        code: CodeType | None = self.spec.loader.get_code(self.spec.name)  # type: ignore[union-attr]
        if code is None:
            raise ImportError(f"no code object available for {self.spec.name}", name=self.spec.name)
        return code


def script(path: str, args: Sequence[str]) -> Program:
    """Prepare a file, or a directory or archive with a ``__main__``; sets ``sys.argv`` and the first of the path.

    Raises:
        NoProgram: There is no such file, or no ``__main__`` in it.
    """
    sys.argv[:] = [path, *args]
    if not os.path.exists(path):
        raise NoProgram(f"can't open file {os.path.abspath(path)!r}: [Errno 2] No such file or directory")
    spec = None
    if os.path.isdir(path) or not _is_text(path):
        whole = os.path.abspath(path)
        _lead_path(whole)
        spec = PathFinder.find_spec("__main__", [whole])
        if spec is None or spec.origin is None:
            raise NoProgram(f"can't find '__main__' module in {whole!r}")
        return Program(spec.origin, spec)
    # As the interpreter does: links are followed, so that modules beside the real file are found.
    _lead_path(os.path.dirname(os.path.realpath(path)))
    return Program(os.path.abspath(path), None)


def module(name: str, args: Sequence[str]) -> Program:
    """Prepare a module or a package with a ``__main__``; sets ``sys.argv`` and the first of the path.

    Raises:
        NoProgram: There is no such module.
    """
    _lead_path(os.getcwd())
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise NoProgram(f"Error while finding module specification for {name!r} ({error})") from error
    if spec is None or not hasattr(spec.loader, "get_code") or spec.origin is None:
        raise NoProgram(f"No module named {name}")
    sys.argv[:] = [spec.origin, *args]
    return Program(spec.origin, spec)


def _is_text(path: str) -> bool:
    with open(path, "rb") as file:
        return not file.read(4).startswith(b"PK\x03\x04")


def _lead_path(folder: str) -> None:
    """Put a folder where `python` puts the script's, in place of the one that it put there for us."""
    if getattr(sys.flags, "safe_path", False):
        return
    sys.path[0] = folder


def _own(trace: TracebackType | None, namespace: dict[str, object]) -> TracebackType | None:
    """The part of a traceback that begins in the program."""
    part = trace
    while part is not None and part.tb_frame.f_globals is not namespace:
        part = part.tb_next
    return part
