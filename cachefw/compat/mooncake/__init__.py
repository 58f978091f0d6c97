"""Mooncake's package, as far as its transfer engine goes: see `cachefw.compat.mooncake.engine`."""

from __future__ import annotations

__all__: list[str] = []
