"""The conformance kit on the host transport, on its usual way, with cross-memory reads alone, and over TCP."""

from __future__ import annotations

import ssl

import attrs
import pytest

from cachefw.plugins import catalogue
from cachefw.session import Session, TlsContexts
from cachefw.testing import TransportTests
from cachefw.testing.sessions import sessions
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


class TestEncryptedStreams(TestStreams):
    @pytest.fixture(autouse=True)
    def _links_with_tls(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # The streams take the link's key, not its certificates: any contexts will do.
        contexts = TlsContexts(
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )

        def encrypted() -> tuple[Session, Session]:
            one, other = sessions()
            return attrs.evolve(one, tls=contexts), attrs.evolve(other, tls=contexts)

        for module in ("_bench", "_closing", "_errors"):
            monkeypatch.setattr(f"cachefw.testing.{module}.sessions", encrypted)
