"""Tests: a peer in another process, which is killed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from cachefw.errors import BrokenError, CacheError
from cachefw.node import Node
from cachefw.plugins import catalogue
from cachefw.testing._bench import TIMEOUT
from cachefw.testing._fixtures import Fixtures
from cachefw.testing._peer import SIZE, memory_of
from cachefw.transport import Capability, Operation, Reach, TransportInfo

__all__ = ["PeerTests"]


class _Peer:
    """A node in a process of its own, with registered memory that may be read."""

    def __init__(self, info: TransportInfo, settings: Mapping[str, Any], number: int) -> None:
        order = json.dumps({"transport": info.name, "settings": dict(settings), "cluster": number})
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "cachefw.testing._peer", order],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.kill()
            raise AssertionError("the peer's process ended before it was ready; its errors are above")
        self.address, self.memory = json.loads(line).values()

    def kill(self) -> None:
        """As the kernel does when memory is short: nothing is given back by the process itself."""
        self._process.kill()
        self._process.communicate(timeout=TIMEOUT)


@contextlib.contextmanager
def _peer(info: TransportInfo, settings: Mapping[str, Any], number: int) -> Iterator[_Peer]:
    peer = _Peer(info, settings, number)
    try:
        yield peer
    finally:
        peer.kill()


class PeerTests(Fixtures):
    """Two processes; the core's nodes make the link, as for every user."""

    @pytest.fixture
    def peer_settings(self, transport_info: TransportInfo, transport_settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """The settings for both processes, if the test can run at all."""
        if transport_info.reach is Reach.PROCESS:
            pytest.skip(f"transport {transport_info.name!r} reaches no other process (Reach.PROCESS)")
        if Capability.READ not in transport_info.capabilities:
            pytest.skip(f"transport {transport_info.name!r} does not offer Capability.READ")
        installed = catalogue.plugins().get(transport_info.name)
        if installed is None or catalogue.probe(transport_info.name).info != transport_info:
            pytest.skip(f"transport {transport_info.name!r} is not installed, so that another process cannot open it")
        try:
            json.dumps(dict(transport_settings))
        except TypeError as error:
            pytest.skip(f"the settings cannot be handed to another process: {error}")
        return transport_settings

    def test_peer_is_killed(self, transport_info: TransportInfo, peer_settings: Mapping[str, Any]) -> None:
        """When a peer's process is killed, what runs settles, what follows is refused, and a new peer can be reached.

        No call hangs, and each failure is a `CacheError`.
        """
        name = transport_info.name
        with Node(1, transports=[name], settings={name: dict(peer_settings)}) as node:
            owner = memory_of(node, transport_info)
            here = node.cache_manager.register_memory(owner).region.address
            with _peer(transport_info, peer_settings, 2) as peer:
                link = node.link(peer.address, TIMEOUT)
                link.sync(TIMEOUT)
                link.read(here, peer.memory, SIZE, timeout=TIMEOUT)
                part = SIZE // 8
                places = range(0, SIZE, part)
                prepared = [link.prepare(Operation.READ, here + at, peer.memory + at, part) for at in places]
                running = [each.post(wait=False) for each in prepared]
                peer.kill()
            for transfer in running:
                assert transfer.wait(TIMEOUT), "what ran when the peer was killed has not settled"
                assert transfer.error is None or isinstance(transfer.error, CacheError)
            refused = False
            while not refused:
                # Until the end of the connection was noticed, the memory may still be there.
                try:
                    link.read(here, peer.memory, 64, timeout=TIMEOUT)
                except BrokenError:
                    refused = True
            with _peer(transport_info, peer_settings, 2) as again:
                link = node.link(again.address, TIMEOUT)
                link.sync(TIMEOUT)
                link.read(here, again.memory, SIZE, timeout=TIMEOUT)
                node.unlink(link)
