"""Links and transports that end while other threads post over them: nothing is touched that is gone already."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own: what goes wrong here kills it.
SCRIPT = """
import sys, threading, time
import cachefw

def one_life(size, unlink):
    with (
        cachefw.Node(1, "127.0.0.1:0", transports=["host"]) as there,
        cachefw.Node(2, transports=["host"]) as here,
    ):
        source, target = (node.cache_manager.allocate(size) for node in (there, here))
        there.cache_manager.register_memory(source, remote_accessible=True)
        here.cache_manager.register_memory(target)
        link = here.link(there.address)
        prepared = link.prepare(cachefw.Operation.READ, target.address, source.address, size)
        prepared.post()
        ends = []

        def post():
            try:
                while True:
                    prepared.post()
            except cachefw.CacheError as error:
                ends.append(error)

        threads = [threading.Thread(target=post) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.002)
        node = here if unlink == "here" else there
        node.unlink(node.links[0])
        for thread in threads:
            thread.join()
        assert len(ends) == 2, ends

end = time.monotonic() + 3
while time.monotonic() < end:
    for size in (4096, 2**18, 2**20):
        one_life(size, sys.argv[1])
"""


@pytest.mark.parametrize("unlink", ["here", "there"])
def test_a_link_may_end_while_other_threads_post(unlink: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, unlink], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
