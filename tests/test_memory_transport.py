"""The reference transport keeps the contract, with its transfers in the caller's thread and in threads of their own."""

from __future__ import annotations

import pytest

from cachefw.testing import MemoryTransport, TransportTests


class TestMemoryTransport(TransportTests):
    @pytest.fixture
    def transport_info(self):
        return MemoryTransport.info_named()


class TestInBackground(TestMemoryTransport):
    @pytest.fixture
    def transport_settings(self):
        return {"background": True}
