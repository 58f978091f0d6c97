"""The command line over RDMA, by two processes: over tcp and over shared memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SECONDS = 100


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cachefw", "demo", "--transport", "rdma", "--tokens", "256", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.mark.parametrize(
    ("options", "settings", "paths"),
    [
        (["--ucx-tls", "tcp,self", "--net-device", "lo"], {"tls": "tcp,self", "net_devices": "lo"}, ["tcp"]),
        (["--ucx-tls", "posix,cma,self"], {"tls": "posix,cma,self"}, ["posix", "cma", "posix+cma"]),
        (["--ucx-tls", "tcp", "--decode-setting", 'tls="tcp,self"'], {"tls": "tcp,self"}, ["tcp"]),
    ],
    ids=["tcp", "shm", "one-side"],
)
def test_the_cache_arrives_over_what_was_asked_for(ucx, options, settings, paths) -> None:
    done = demo(*options, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["verified"] is True
    assert facts["decode_settings"] == settings
    assert facts["path"] in paths


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ucx-tls", "nosuch"], ["TLS=nosuch", "ucx_info -d"]),
        (["--ucx-tls", "tcp", "--net-device", "eth77"], ["NET_DEVICES=eth77", "ucx_info -d"]),
    ],
)
def test_what_is_not_there_is_named(ucx, options, said) -> None:
    done = demo(*options)
    assert done.returncode == 1
    for words in said:
        assert words in done.stderr
