"""Running what may block beside the loop, also while the interpreter exits."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["aside"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


async def aside(
    function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """Call a function in a thread of the loop's, or here when the interpreter takes no more work for threads.

    The latter is so in `atexit` handlers, where a node that was never closed is closed at last.
    """
    call = functools.partial(function, *args, **kwargs)
    try:
        running = asyncio.get_running_loop().run_in_executor(None, call)
    except RuntimeError:
        return call()
    return await running
