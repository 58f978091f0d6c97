"""The conformance kit on files of a directory of its own."""

import pytest

from cachefw.plugins import catalogue
from cachefw.testing import TransportTests


class TestFilesTransport(TransportTests):
    @pytest.fixture
    def transport_info(self):
        return catalogue.get("files").info

    @pytest.fixture
    def transport_settings(self, tmp_path):
        return {"directory": str(tmp_path), "threads": 2}
