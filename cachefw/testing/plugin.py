"""What pytest loads by itself where cachefw is installed: the markers, so that ``--strict-markers`` knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

__all__ = ["pytest_configure"]


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    config.addinivalue_line("markers", "hardware: needs a device or a network card that most machines do not have")
