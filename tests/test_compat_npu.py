"""`cachefw.compat.npu`: a device for torch on request, and nothing at all without one."""

from __future__ import annotations

import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from compat_kit import SECONDS, free_port, wait_for_listener

SAMPLE = Path(__file__).with_name("samples") / "hixl_d2rd.py"

with_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


@pytest.fixture(autouse=True)
def _without_a_simulator(monkeypatch):
    """Other tests may have asked for one."""
    monkeypatch.delenv("CACHEFW_ASCENDCL", raising=False)


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", inspect.cleandoc(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_without_a_request_nothing_happens():
    run(
        """
        import sys
        from cachefw.compat import npu
        npu.autoload()
        assert "torch" not in sys.modules and "cachefw.compat.npu_torch" not in sys.modules
        assert npu.current_device() == 0
        """,
        CACHEFW_NPU="",
    )


def test_the_entry_point_is_there():
    from importlib.metadata import entry_points

    from cachefw.compat import npu

    (entry,) = [entry for entry in entry_points(group="torch.backends") if entry.name == "cachefw_npu"]
    assert entry.load() is npu.autoload


@with_torch
def test_importing_torch_unasked_changes_nothing():
    run(
        """
        import torch, sys
        assert not hasattr(torch, "npu") and not hasattr(torch.Tensor, "npu")
        assert "cachefw.compat.npu_torch" not in sys.modules
        assert torch._C._get_privateuse1_backend_name() == "privateuseone"
        assert type(torch.zeros).__name__ == "builtin_function_or_method"
        """,
        CACHEFW_NPU="0",
    )


@with_torch
@pytest.mark.parametrize("way", ["variable", "call"])
def test_tensors_say_where_they_are(way):
    begin = "import torch" if way == "variable" else "import torch; from cachefw.compat.npu import activate; activate()"
    run(
        begin
        + """
import numpy, threading
from cachefw.compat.npu import activate, current_device
from cachefw.memory import MemoryKind, region_of
activate()
torch.npu.set_device("npu:2")
assert torch.npu.current_device() == current_device() == 2
made = torch.full((8, 4), 0xAA, dtype=torch.uint8, device="npu")
assert (str(made.device), made.is_npu, made.is_cpu, made.get_device()) == ("npu:2", True, False, 2)
assert "device='npu:2'" in repr(made[0])
assert made.cpu().device.type == "cpu" and not made.cpu().is_npu
assert (made.cpu().numpy() == 0xAA).all() and bool((made == 0xAA).all())
region = region_of(made)
assert (region.address, region.length, region.kind) == (made.data_ptr(), 32, MemoryKind.HOST)
for like in (made + 1, made.view(-1), made[1:], torch.zeros_like(made), made.new_ones(3), torch.cat([made, made]),
             made.clone(), made.max(dim=0).values, made.to(torch.float16)):
    assert str(like.device) == "npu:2", like
assert made[1:].data_ptr() == made.data_ptr() + 4
assert str(torch.zeros_like(made, device="cpu").device) == "cpu"
assert str(torch.empty(1, device=torch.device("npu", 5)).device) == "npu:5"
plain = torch.ones(2, 3)
there = plain.npu()
there.fill_(5)
assert there.npu() is there and there.to("npu:2") is there and plain.sum() == 6
assert str(plain.to("npu:1", torch.float64).dtype) == "torch.float64"
assert str(plain.to(there).device) == "npu:2" and str(there.to(plain).device) == "cpu"
assert there.to("cpu").is_npu is False and there.tolist() == [[5.0] * 3] * 2
there.copy_(plain)
plain.copy_(there * 3)
assert plain.sum() == 18
assert torch.as_tensor(plain, device="npu").data_ptr() != plain.data_ptr()
assert str(torch.tensor([1, 2], device="npu:0").device) == "npu:0"
seen = []
thread = threading.Thread(target=lambda: seen.append(torch.empty(3, device="npu").device))
thread.start()
thread.join()
assert str(seen[0]) == "npu:2"
torch.manual_seed(1)
with torch.npu.device(0):
    assert str(torch.rand(1, device="npu").device) == "npu:0"
start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
start.record()
end.record(torch.npu.current_stream())
torch.npu.synchronize()
assert start.elapsed_time(end) >= 0 and torch.npu.is_available() and torch.npu.device_count() == 8
for wrong, kind in ((9, ValueError), (-1, ValueError), ("cpu", ValueError), (None, TypeError), (True, TypeError)):
    try:
        torch.npu.set_device(wrong)
    except kind:
        continue
    raise AssertionError(wrong)
for wrong, kind, words in ((there.numpy, TypeError, "cpu()"), (lambda: numpy.asarray(there), TypeError, "cpu()"),
                           (lambda: torch.npu.synchronise, AttributeError, "did you mean synchronize")):
    try:
        wrong()
    except kind as error:
        assert words in str(error), error
        continue
    raise AssertionError(words)
""",
        CACHEFW_NPU="1" if way == "variable" else "",
    )


@with_torch
def test_processes_of_a_group_meet(tmp_path):
    """The vendor's samples hold ranks together by barriers, for which torch asks what accelerator there is."""
    code = f"""
        import copy, sys, torch
        import torch.distributed as dist
        rank = int(sys.argv[1])
        dist.init_process_group("gloo", init_method="file://{tmp_path}/meeting", rank=rank, world_size=2)
        torch.npu.set_device(rank)
        mine = torch.full((4,), rank + 1.0).npu()
        dist.barrier()
        total = mine.cpu()
        dist.all_reduce(total)
        assert total.tolist() == [3.0] * 4
        other = copy.deepcopy(mine)
        assert str(other.device) == f"npu:{{rank}}" and other.data_ptr() != mine.data_ptr()
        weight = torch.ones(3, requires_grad=True)
        (weight * 2).sum().backward()
        assert weight.grad.tolist() == [2.0] * 3
        dist.barrier()
        dist.destroy_process_group()
        """
    command = [sys.executable, "-c", inspect.cleandoc(code)]
    environment = {**os.environ, "CACHEFW_NPU": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen([*command, str(rank)], env=environment) for rank in range(2)]
    try:
        assert [rank.wait(SECONDS) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@with_torch
def test_a_wrong_variable_and_a_real_device_are_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "import torch"],
        env={**os.environ, "CACHEFW_NPU": "yes"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "CACHEFW_NPU='yes': must be 0 or 1" in done.stderr
    (tmp_path / "torch_npu.py").write_text("")
    run(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import torch
        from cachefw import UnsupportedOperation
        from cachefw.compat.npu import activate
        try:
            activate()
        except UnsupportedOperation as error:
            assert "torch_npu is installed" in str(error)
        else:
            raise AssertionError
        assert not hasattr(torch, "npu")
        """,
        CACHEFW_NPU="",
    )


@with_torch
def test_the_sample_of_hixl_runs_unchanged():
    port = free_port()
    address = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "cachefw.compat", "run", "--npu", "--transports", "host", SAMPLE]
    server = subprocess.Popen(
        [*command, "--role", "server", "--local-engine", address], stdout=subprocess.PIPE, text=True
    )
    with server:
        try:
            wait_for_listener(port + 1000)
            client = subprocess.run(
                [*command, "--role=client", "--device=1", "--local-engine=127.0.0.1:0", f"--remote-engine={address}"],
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            assert (client.stdout, client.stderr, client.returncode) == ("client done on npu:1\n", "", 0)
            assert server.communicate(timeout=SECONDS)[0] == "server done on npu:0\n"
        except BaseException:
            server.kill()
            raise
    assert server.returncode == 0
