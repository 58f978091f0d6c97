"""``python -m cachefw``: the command line."""

from __future__ import annotations

from cachefw.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
