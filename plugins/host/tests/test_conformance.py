"""The conformance kit on the host transport, on its usual way, with cross-memory reads alone, and over TCP."""

from __future__ import annotations

import pytest

from cachefw.plugins import catalogue
from cachefw.testing import TransportTests
from cachefw.transport import TransportInfo


class TestHostTransport(TransportTests):
    @pytest.fixture
    def transport_info(self) -> TransportInfo:
        # Through the entry point, like every user: the package has two names.
        return catalogue.get("host").info


class TestCrossMemory(TestHostTransport):
    @pytest.fixture
    def transport_settings(self) -> dict[str, object]:
        return {"paths": ["cma"]}


class TestStreams(TestHostTransport):
    @pytest.fixture
    def transport_settings(self) -> dict[str, object]:
        return {"paths": ["tcp"]}
