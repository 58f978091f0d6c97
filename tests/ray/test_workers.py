"""Actors that Ray kills and restarts keep the right bytes coming."""

from __future__ import annotations

import os
import signal

import prefill_decode
import pytest
import ray

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def actors(cluster):
    (prefill,), (decode,), group = prefill_decode.start()
    yield prefill, decode
    ray.util.remove_placement_group(group)


def test_every_byte_of_every_prompt_arrives(actors):
    prefill, decode = actors
    # More than fit at once, so that blocks are used again.
    for prompt in range(3 * prefill_decode.BLOCKS // prefill_decode.BLOCKS_EACH):
        done = prefill_decode.serve(prefill, decode, prompt)
        assert done["verified"]
        assert done["bytes"] == prefill_decode.LAYERS * prefill_decode.BLOCKS_EACH * prefill_decode.BLOCK_BYTES
        assert (done["transport"], done["path"]) == ("host", "shm")
    assert ray.get(prefill.let_go.remote(), timeout=60) == 0


@pytest.mark.parametrize("which", [0, 1], ids=["prefill", "decode"])
def test_a_worker_that_dies_is_restarted_and_found_again(actors, which):
    prefill, decode = actors
    before = ray.get(actors[which].pid.remote(), timeout=60)
    assert prefill_decode.serve(prefill, decode, 1)["verified"]
    os.kill(before, signal.SIGKILL)
    assert prefill_decode.serve(prefill, decode, 2)["verified"]
    assert ray.get(actors[which].pid.remote(), timeout=60) != before


def test_a_ticket_of_a_worker_that_is_gone_is_refused(actors):
    prefill, decode = actors
    ticket = ray.get(prefill.prefill.remote(3), timeout=60)
    os.kill(ray.get(prefill.pid.remote(), timeout=60), signal.SIGKILL)
    with pytest.raises((ray.exceptions.RayActorError, ray.exceptions.RayTaskError)) as caught:
        ray.get(decode.decode.remote(ticket), timeout=60)
    assert "cachefw" in str(caught.value)
    assert prefill_decode.serve(prefill, decode, 4)["verified"]
