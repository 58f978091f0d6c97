"""The Python module ``hixl``, answered by cachefw: one-sided transfers between engines named by ``"ip:port"``.

Names, values, defaults and statuses are HIXL's; the bytes go over cachefw's transports. What is better, and what is
refused, is told in ``docs/moving-from-hixl-and-mooncake.md``. Reasons are logged as ``cachefw.compat``.
"""

from __future__ import annotations

from cachefw.compat.hixl.hixl import *  # noqa: F403
from cachefw.compat.hixl.hixl import __all__ as __all__
