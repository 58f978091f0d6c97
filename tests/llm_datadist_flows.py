"""What LLM-DataDist's sample programs do, one flow each, in as many processes as they have.

`run` starts a process for each part of a flow. A part meets the others by printing a line and reading one back; it
checks the data that it can see and exits with 0. The names of the flows are those of the samples.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from cachefw.compat import llm_datadist as ld
from cachefw.memory import MemoryKind

SECONDS = 60
FP16 = ld.DataType.DT_FLOAT16
FLOAT = ld.DataType.DT_FLOAT
GONE = ld.LLMStatusCode.LLM_KV_CACHE_NOT_EXIST
POOL = json.dumps({"memory_size": 64 * 2**20})
RANK_TABLE = json.dumps(
    {
        "server_count": "1",
        "server_list": [
            {
                "device": [
                    {"device_id": "0", "device_ip": "10.0.0.1", "rank_id": "0"},
                    {"device_id": "1", "device_ip": "10.0.0.2", "rank_id": "1"},
                ],
                "server_id": "1",
                "host_ip": "127.0.0.1",
            }
        ],
        "status": "completed",
        "version": "1.2",
    }
)


# ---------------------------------------------------------------------- the processes


def run(flow: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a flow, and fail with what a part wrote if it failed."""
    parts = PARTS.get(flow, ("p", "d"))
    environment = {**os.environ, **(environment or {}), "FLOW_RUN": f"{os.getpid()}-{time.monotonic_ns()}"}
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, flow, part],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for part in parts
    ]
    deadline = time.monotonic() + SECONDS
    try:
        while True:
            lines = [_line(process, deadline) for process in processes]
            if not any(lines):
                break
            assert all(lines), f"{flow}: a part ended before the others: {lines}"
            for process, line in zip(processes, lines, strict=True):
                others = [json.loads(other) for other in lines if other is not line]
                process.stdin.write(json.dumps(others) + "\n")
                process.stdin.flush()
        codes = [process.wait(max(deadline - time.monotonic(), 1)) for process in processes]
    except BaseException:
        for process in processes:
            process.kill()
        raise AssertionError("\n".join(process.communicate()[1] for process in processes)) from None
    finally:
        errors = []
        for process in processes:
            if not process.stderr.closed:
                errors.append(process.stderr.read())
            for stream in (process.stdin, process.stdout, process.stderr):
                stream.close()
            process.wait(10)
    assert codes == [0] * len(parts), f"{flow}: {codes}\n" + "\n".join(errors)


def _line(process: subprocess.Popen[str], deadline: float) -> str:
    """The next line that a part prints to meet the others; "" when it has ended."""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            assert selector.select(max(deadline - time.monotonic(), 0)), "a part does not go on"
            line = process.stdout.readline()
            if not line or line.startswith("{"):
                return line


def meet(**data: Any) -> list[dict[str, Any]]:
    """Wait for the other parts; what they said."""
    print(json.dumps(data), flush=True)
    answer: list[dict[str, Any]] = json.loads(sys.stdin.readline())
    return answer


# ---------------------------------------------------------------------- memory


class Memory:
    """Memory of a cache: of the host, or of an emulated device where the engine has one."""

    def __init__(self, dist: ld.LLMDataDist) -> None:
        self.manager = dist._engine.manager
        self.kept: list[Any] = []
        self.device = None
        if not dist._engine.emulated:
            from cachefw_ascendcl import Runtime

            self.runtime = Runtime()
            self.device = self.runtime.device(dist._engine.options.device_id)
        assert (self.device is not None) == (os.environ.get("FLOW_MEMORY") == "device")

    def make(self, shape: list[int], value: float = 0, dtype: Any = np.float32) -> int:
        """The address of a new tensor."""
        data = np.full(shape, value, dtype)
        if self.device is None:
            self.kept.append(data)
            return int(data.ctypes.data)
        allocation = self.manager.allocate(data.nbytes, MemoryKind.DEVICE)
        self.kept.append(allocation)
        self.write(allocation.address, data)
        return allocation.address

    def write(self, address: int, data: np.ndarray) -> None:
        data = np.ascontiguousarray(data)
        if self.device is None:
            ctypes.memmove(address, data.ctypes.data, data.nbytes)
        else:
            from cachefw_ascendcl import CopyKind

            self.device.copy(address, data.ctypes.data, data.nbytes, CopyKind.HOST_TO_DEVICE)

    def read(self, address: int, shape: list[int], dtype: Any = np.float32) -> np.ndarray:
        data = np.empty(shape, dtype)
        if self.device is None:
            ctypes.memmove(data.ctypes.data, address, data.nbytes)
        else:
            from cachefw_ascendcl import CopyKind

            self.device.copy(data.ctypes.data, address, data.nbytes, CopyKind.DEVICE_TO_HOST)
        return data

    def rows(self, address: int, shape: list[int], dtype: Any = np.float32) -> list[float]:
        """The value of each row; each has one."""
        data = self.read(address, shape, dtype).reshape(shape[0], -1)
        assert (data == data[:, :1]).all()
        return data[:, 0].tolist()

    def close(self) -> None:
        if self.device is not None:
            self.kept.clear()
            self.device.close()
            self.runtime.close()


# ---------------------------------------------------------------------- what the flows share


def start(part: str, cluster_id: int, **options: Any) -> tuple[ld.LLMDataDist, Memory]:
    role = ld.LLMRole.PROMPT if part.startswith("p") else ld.LLMRole.DECODER
    dist = ld.LLMDataDist(role, cluster_id)
    config = ld.LLMConfig()
    config.device_id = 0 if part == "p" else 1
    config.sync_kv_timeout = 20000
    for name, value in options.items():
        setattr(config, name, value)
    dist.init(config.generate_options())
    return dist, Memory(dist)


def port_of(dist: ld.LLMDataDist) -> int:
    return int(dist._engine.node.address.rpartition(":")[2])


def cluster(cluster_id: int, port: int | None) -> ld.LLMClusterInfo:
    info = ld.LLMClusterInfo()
    info.remote_cluster_id = cluster_id
    info.append_local_ip_info("127.0.0.1", 0)
    if port is not None:
        info.append_remote_ip_info("127.0.0.1", port)
    return info


def ok(result: tuple[ld.LLMStatusCode, list[ld.LLMStatusCode]]) -> None:
    assert set(result[1]) == {result[0]} == {ld.LLMStatusCode.LLM_SUCCESS}, result


def refused(status: ld.LLMStatusCode, call: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(ld.LLMException) as caught:
        call(*arguments)
    assert caught.value.status_code is status


def link(dist: ld.LLMDataDist) -> int:
    number = dist.link(f"link-{os.environ['FLOW_RUN']}", {1: 0, 2: 1}, RANK_TABLE)
    deadline = time.monotonic() + SECONDS
    while (status := dist.query_register_mem_status(number)) is ld.RegisterMemStatus.PREPARING:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert status is ld.RegisterMemStatus.OK
    return number


def end(dist: ld.LLMDataDist, memory: Memory) -> None:
    dist.finalize()
    memory.close()


# ---------------------------------------------------------------------- without get mode, linked by rank table


def pull_cache_sample(part: str) -> None:
    dist, memory = start(part, 1 if part == "p" else 2, enable_cache_manager=True, mem_pool_cfg=POOL)
    manager = dist.cache_manager
    number = link(dist)
    desc = ld.CacheDesc(4, [2, 16384], FP16)
    keys = [ld.CacheKey(prompt_cluster_id=1, req_id=request, model_id=0) for request in (0, 1)]
    cache = manager.allocate_cache(desc, keys if part == "p" else ())
    data = [np.full((2, 16384), 10 * i, np.float16) + np.arange(2, dtype=np.float16)[:, None] for i in range(4)]
    if part == "p":
        for address, tensor in zip(cache.tensor_addrs, data, strict=True):
            memory.write(address, tensor)
    meet()
    if part == "d":
        manager.pull_cache(keys[0], cache, batch_index=0)
        manager.pull_cache(keys[1], cache, batch_index=1)
        for address, tensor in zip(cache.tensor_addrs, data, strict=True):
            assert (memory.read(address, [2, 16384], np.float16) == tensor).all()
        refused(GONE, manager.pull_cache, keys[0], cache)
    meet()
    dist.unlink(number)
    meet()
    if part == "p":
        for key in keys:
            manager.remove_cache_key(key)
    manager.deallocate_cache(cache)
    assert cache.tensor_addrs == []
    assert not dist._engine.manager.caches
    end(dist, memory)


def pull_blocks_sample(part: str) -> None:
    dist, memory = start(part, 1 if part == "p" else 2, enable_cache_manager=True)
    manager = dist.cache_manager
    shape = [2, 1048576]
    desc = ld.CacheDesc(1, shape, FLOAT)
    address = memory.make(shape, 1.0 if part == "p" else 0.0)
    cache = manager.register_blocks_cache(desc, [address], ld.BlocksCacheKey(1, 0) if part == "p" else None)
    number = link(dist)
    meet()
    if part == "d":
        manager.pull_blocks(ld.BlocksCacheKey(1, 0), cache, src_blocks=[0, 1], dst_blocks=[0, 1])
        assert memory.rows(address, shape) == [1.0, 1.0]
        outside = np.zeros(shape, np.float32)
        cpu = ld.Cache.create_cpu_cache(ld.CacheDesc(1, shape, FLOAT, ld.Placement.HOST), [int(outside.ctypes.data)])
        manager.swap_blocks(cache, cpu, {0: 1})
        assert outside[:, 0].tolist() == [0.0, 1.0]
        outside[0] = 3.0
        manager.swap_blocks(cpu, cache, {0: 1, 1: 0})
        assert memory.rows(address, shape) == [1.0, 3.0]
    meet()
    dist.unlink(number)
    end(dist, memory)


def pull_from_cache_to_blocks(part: str) -> None:
    pool = {"mem_pool_cfg": POOL} if part == "p" else {}
    dist, memory = start(part, 1 if part == "p" else 2, enable_cache_manager=True, **pool)
    manager = dist.cache_manager
    shape, key = [2, 16384], ld.CacheKey(prompt_cluster_id=1, req_id=0, model_id=0)
    if part == "p":
        number = link(dist)
        cache = manager.allocate_cache(ld.CacheDesc(4, shape, FP16), [key])
        for index, address in enumerate(cache.tensor_addrs):
            memory.write(address, np.array([[index + 1], [99]], np.float16) * np.ones(shape, np.float16))
        meet()
    else:
        addresses = [memory.make(shape, 0, np.float16) for _ in range(4)]
        cache = manager.register_blocks_cache(ld.CacheDesc(4, shape, FP16), addresses)
        number = link(dist)
        meet()
        manager.pull_blocks(key, cache, src_blocks=[], dst_blocks=[0])
        assert [memory.rows(address, shape, np.float16) for address in addresses] == [[i + 1, 0] for i in range(4)]
        refused(GONE, manager.pull_blocks, key, cache, [], [1])
    meet()
    dist.unlink(number)
    if part == "p":
        manager.remove_cache_key(key)
        manager.deallocate_cache(cache)
        assert not dist._engine.manager.caches
    end(dist, memory)


# ---------------------------------------------------------------------- get mode, linked by address


def both(
    part: str, value: dict[str, float], **options: Any
) -> tuple[ld.LLMDataDist, Memory, int, Callable[[], list[float]]]:
    """Two tensors of [3, 10] floats registered as blocks: cluster 0 is the prompt, 1 the decoder."""
    dist, memory = start(part, 0 if part == "p" else 1, **options)
    addresses = [memory.make([3, 10], value[part]) for _ in range(2)]
    cache = dist.cache_manager.register_blocks_cache(
        ld.CacheDesc(2, [3, 10], FLOAT), addresses, ld.BlocksCacheKey(0 if part == "p" else 1, 0)
    )

    def rows() -> list[float]:
        one, other = (memory.rows(address, [3, 10]) for address in addresses)
        assert one == other
        return one

    return dist, memory, cache, rows


def push_blocks_sample(part: str) -> None:
    dist, memory, cache, rows = both(part, {"p": 1, "d": 0}, local_comm_res="", listen_ip_info="127.0.0.1:0")
    (other,) = meet(port=port_of(dist))
    info = cluster(0 if part == "d" else 1, other["port"])
    if part == "d":
        ok(dist.link_clusters([info], 5000))
        dist.cache_manager.push_blocks(ld.BlocksCacheKey(0, 0), cache, [0, 1], [0, 2])
    meet()
    if part == "p":
        assert rows() == [0, 1, 0]
    meet()
    ok(dist.unlink_clusters([info], force=True))
    dist.cache_manager.unregister_cache(cache.cache_id)
    end(dist, memory)


def push_cache_sample(part: str) -> None:
    dist, memory = start(part, 0 if part == "p" else 1, local_comm_res="", listen_ip_info="127.0.0.1:0")
    addresses = [memory.make([3, 10], 0 if part == "p" else 1) for _ in range(2)]
    cache = dist.cache_manager.register_cache(ld.CacheDesc(2, [3, 10], FLOAT), addresses)
    (other,) = meet(port=port_of(dist))
    if part == "d":
        info = cluster(0, other["port"])
        ok(dist.link_clusters([info], 5000))
        key = ld.CacheKeyByIdAndIndex(cluster_id=0, cache_id=1, batch_index=0)
        dist.cache_manager.push_cache(key, cache, src_batch_index=0)
        ok(dist.unlink_clusters([info]))
    meet()
    if part == "p":
        assert [memory.rows(address, [3, 10]) for address in addresses] == [[1, 0, 0]] * 2
    dist.cache_manager.unregister_cache(cache.cache_id)
    end(dist, memory)


def transfer_cache_async_sample(part: str) -> None:
    class Ready(ld.LayerSynchronizer):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def synchronize_layer(self, layer_index: int, timeout_in_millis: int | None) -> bool:
            self.seen.append(layer_index)
            return True

    dist, memory, cache, rows = both(
        part,
        {"p": 1, "d": 0},
        enable_cache_manager=True,
        enable_remote_cache_accessible=True,
        listen_ip_info="127.0.0.1:0",
    )
    (other,) = meet(port=port_of(dist))
    info = cluster(1 if part == "p" else 0, other["port"])
    if part == "p":
        ok(dist.link_clusters([info], 5000))
        config = ld.TransferWithCacheKeyConfig(ld.BlocksCacheKey(1, 0), range(0, 1), range(0, 1))
        ready = Ready()
        task = dist.cache_manager.transfer_cache_async(cache, ready, [config])
        assert task.get_results() == [ld.LLMStatusCode.LLM_SUCCESS]
        assert task.synchronize() is ld.LLMStatusCode.LLM_SUCCESS
        assert ready.seen == [0]
    meet()
    if part == "d":
        assert rows() == [1, 0, 0]
    meet()
    ok(dist.unlink_clusters([info], force=True))
    dist.cache_manager.unregister_cache(cache.cache_id)
    end(dist, memory)


def switch_role_sample(part: str) -> None:
    listen = {"listen_ip_info": "127.0.0.1:0"} if part == "p" else {}
    dist, memory, cache, rows = both(part, {"p": 1, "d": 0}, local_comm_res="", **listen)
    manager = dist.cache_manager
    (other,) = meet(port=port_of(dist) if part == "p" else None)
    if part == "d":
        info = cluster(0, other["port"])
        ok(dist.link_clusters([info], 5000))
        manager.pull_blocks(ld.BlocksCacheKey(0, 0), cache, [0, 1], [0, 2])
        assert rows() == [1, 0, 1]
        refused(ld.LLMStatusCode.LLM_EXIST_LINK, dist.switch_role, ld.LLMRole.PROMPT)
        ok(dist.unlink_clusters([info]))
    meet()
    if part == "p":
        dist.switch_role(ld.LLMRole.DECODER)
        assert dist._engine.node.address is None
        (other,) = meet()
        info = cluster(1, other["port"])
        ok(dist.link_clusters([info], 5000))
        meet()
    else:
        config = ld.LLMConfig()
        config.listen_ip_info = "127.0.0.1:0"
        dist.switch_role(ld.LLMRole.PROMPT, config.generate_options())
        meet(port=port_of(dist))
        meet()
        manager.push_blocks(
            ld.BlocksCacheKey(0, 0), cache, [0, 1, 2], [0, 1, 2], range(0, 2), range(0, 2), tensor_num_per_layer=1
        )
    meet()
    assert rows() == [1, 0, 1]
    ok(dist.unlink_clusters([cluster(1 if part == "p" else 0, None)], force=True))
    manager.unregister_cache(cache.cache_id)
    end(dist, memory)


def hixl_transfer_backend_sample(part: str) -> None:
    dist, memory, cache, rows = both(
        part, {"p": 1, "d": 0}, transfer_backend="hixl", enable_cache_manager=True, listen_ip_info="127.0.0.1:0"
    )
    manager = dist.cache_manager
    (other,) = meet(port=port_of(dist))
    there = 1 if part == "p" else 0
    refused(ld.LLMStatusCode.LLM_NOT_YET_LINK, manager.pull_blocks, ld.BlocksCacheKey(there, 0), cache, [2], [2])
    meet()
    ok(dist.link_clusters([cluster(there, other["port"])], 5000))
    meet()
    if part == "p":
        manager.pull_blocks(ld.BlocksCacheKey(there, 0), cache, [2], [2])
        assert rows() == [1, 1, 0]
    meet()
    if part == "d":
        manager.push_blocks(ld.BlocksCacheKey(there, 0), cache, [0, 1], [0, 1])
    meet()
    assert rows() == [0, 0, 0]
    ok(dist.unlink_clusters([cluster(there, None)]))
    manager.unregister_cache(cache.cache_id)
    meet()
    end(dist, memory)


def pull_blocks_xpyd_sample(part: str) -> None:
    """Two prompts and one decoder; ids as address and port make them."""
    base = (127 << 24 | 1) << 16
    ids = {"p1": base + 1, "p2": base + 2, "d": base + 3}
    listen = {"listen_ip_info": "127.0.0.1:0"} if part != "d" else {}
    dist, memory = start(part, ids[part], local_comm_res="", **listen)
    value = float(ids[part] if part != "d" else 0)
    address = memory.make([3, 10], value)
    key = ld.BlocksCacheKey(ids[part], 0)
    cache = dist.cache_manager.register_blocks_cache(ld.CacheDesc(1, [3, 10], FLOAT), [address], key)
    others = meet(port=port_of(dist) if part != "d" else None)
    if part == "d":
        prompts = ("p1", "p2")
        infos = [cluster(ids[name], other["port"]) for name, other in zip(prompts, others, strict=True)]
        ok(dist.link_clusters(infos, 5000))
        for name in prompts:
            dist.cache_manager.pull_blocks(ld.BlocksCacheKey(ids[name], 0), cache, [0, 1], [0, 2])
            there = float(np.float32(ids[name]))
            assert memory.rows(address, [3, 10]) == [there, 0, there]
        ok(dist.unlink_clusters(infos))
    meet()
    end(dist, memory)


def device_and_host_memory(part: str) -> None:
    """No sample of the vendor's: memory mapped anew, and a pull from device into host memory."""
    dist, memory, cache, rows = both(part, {"p": 1, "d": 0}, local_comm_res="", listen_ip_info="127.0.0.1:0")
    manager = dist.cache_manager
    outside = np.zeros((2, 3, 10), np.float32)
    desc = ld.CacheDesc(2, [3, 10], FLOAT, ld.Placement.HOST)
    addresses = [int(each.ctypes.data) for each in outside]
    host = manager.register_blocks_cache(desc, addresses, remote_accessible=False)
    info = ld.MemInfo(ld.Memtype.MEM_TYPE_DEVICE, cache.tensor_addrs[0], 120)
    refused(ld.LLMStatusCode.LLM_NOT_YET_LINK, manager.remap_registered_memory, info)
    (other,) = meet(port=port_of(dist))
    if part == "d":
        ok(dist.link_clusters([cluster(0, other["port"])], 5000))
        manager.pull_blocks(ld.BlocksCacheKey(0, 0), cache, [0], [1])
    meet()
    if part == "p" and memory.device is None:
        refused(ld.LLMStatusCode.LLM_FEATURE_NOT_ENABLED, manager.remap_registered_memory, info)
    elif part == "p":
        manager.remap_registered_memory([info])
    meet()
    if part == "d":
        manager.pull_blocks(ld.BlocksCacheKey(0, 0), cache, [0], [2])
        assert rows() == [0, 1, 1]
        manager.pull_blocks(ld.BlocksCacheKey(0, 0), host, [0, 1], [2, 0])
        assert outside[:, :, 0].tolist() == [[1, 0, 1]] * 2
    meet()
    end(dist, memory)


PARTS = {"pull_blocks_xpyd_sample": ("p1", "p2", "d")}
FLOWS: dict[str, Callable[[str], None]] = {
    flow.__name__: flow
    for flow in (
        pull_cache_sample,
        pull_blocks_sample,
        pull_from_cache_to_blocks,
        push_blocks_sample,
        push_cache_sample,
        transfer_cache_async_sample,
        switch_role_sample,
        hixl_transfer_backend_sample,
        pull_blocks_xpyd_sample,
        device_and_host_memory,
    )
}

if __name__ == "__main__":
    FLOWS[sys.argv[1]](sys.argv[2])
