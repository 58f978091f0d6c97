"""The conformance kit on the HCCS transport, over the simulator in strict mode (see conftest.py)."""

from __future__ import annotations

import pytest
from device_memory import DeviceMemory

from cachefw.plugins import catalogue
from cachefw.testing import TransportTests
from cachefw.transport import TransportInfo


class TestHccsTransport(TransportTests):
    @pytest.fixture
    def transport_info(self) -> TransportInfo:
        return catalogue.get("hccs").info

    @pytest.fixture
    def make_memory(self):
        return lambda transport, size, kind: DeviceMemory(transport.allocate(size, kind, 1))
