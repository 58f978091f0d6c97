"""Run by Python processes below ``python -m cachefw.compat run``, so that they answer the same imports."""

from __future__ import annotations

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_self = sys.modules[__name__]

try:
    from cachefw.compat import install_inherited
except ModuleNotFoundError as error:
    # Another interpreter, which has no cachefw, is none of our business.
    if error.name is None or error.name.partition(".")[0] != "cachefw":
        raise
else:
    install_inherited()

# The folder stays in PYTHONPATH, for this process's own children, and leaves the path here: the user's own module of
# this name is next.
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]
del sys.modules[__name__]
try:
    import sitecustomize  # type: ignore[import-not-found] # noqa: F401
except ModuleNotFoundError as error:
    if error.name != __name__:
        raise
# The import under way expects what it began with, or the user's.
sys.modules.setdefault(__name__, _self)
