"""The conformance kit over what UCX chooses by itself, over tcp, and over shared memory."""

import pytest

from cachefw.plugins import catalogue
from cachefw.testing import TransportTests


class TestDefault(TransportTests):
    @pytest.fixture
    def transport_info(self):
        return catalogue.get("rdma").info


class TestTcp(TestDefault):
    @pytest.fixture(params=["tcp,self"])
    def transport_settings(self, request):
        return {"tls": request.param}


@pytest.mark.parametrize("transport_settings", ["posix,cma,self"], indirect=True)
class TestSharedMemory(TestTcp):
    def test_target_closes_first(self):
        pytest.skip("in shared memory UCX watches over the peer's process, which is this one: see test_deaths.py")

    def test_peer_is_killed(self):
        pytest.skip("a read that runs when its peer dies may stay unsettled in UCX: see test_deaths.py and README.md")
