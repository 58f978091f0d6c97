"""Pulls with NIXL, as a program of its own: it runs in an environment that has nixl-cu12 and numpy, and not cachefw.

The order comes as JSON on the standard input, the outcome is a line of JSON. The argument ``target`` makes the other
end.
"""

import json
import os
import subprocess
import sys
import time

import numpy as np

EMPTY = 0xEE


def blocks_of(order):
    count = order["buffers"]
    size = order["slots"] * order["block"]
    return [np.empty(size, np.uint8) for _ in range(count)], size


def words(buffer, block, order):
    mark = np.uint64(buffer << 48 | block << 32)
    return np.arange(order["block"] // 8, dtype=np.uint64) + mark


def make_agent(name, buffers, size):
    import logging

    logging.disable(logging.INFO)
    from nixl_cu12 import nixl_agent, nixl_agent_config

    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    rows = np.array([[each.ctypes.data, size, 0] for each in buffers], np.uint64)
    agent.register_memory(rows, "DRAM")
    return agent


def target():
    order = json.loads(sys.stdin.readline())
    buffers, size = blocks_of(order)
    for number, buffer in enumerate(buffers):
        view = buffer.view(np.uint64).reshape(order["slots"], -1)
        for slot in range(order["slots"]):
            view[slot] = words(number, slot, order)
    agent = make_agent("target", buffers, size)
    addresses = [each.ctypes.data for each in buffers]
    print(json.dumps({"metadata": agent.get_agent_metadata().hex(), "addresses": addresses}), flush=True)
    sys.stdin.read()


def rows_of(addresses, slots, block):
    offsets = np.array(slots, np.uint64) * np.uint64(block)
    places = np.add.outer(np.array(addresses, np.uint64), offsets).ravel()
    rows = np.zeros((len(places), 3), np.uint64)
    rows[:, 0], rows[:, 1] = places, block
    return rows


def finish(agent, handle):
    state = agent.transfer(handle)
    while state == "PROC":
        state = agent.check_xfer_state(handle)
    agent.release_xfer_handle(handle)
    if state != "DONE":
        raise RuntimeError(f"NIXL says {state}")


def main():
    text = sys.stdin.read()
    order = json.loads(text)
    other = subprocess.Popen(
        [sys.executable, __file__, "target"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        other.stdin.write(text.replace("\n", " ") + "\n")
        other.stdin.flush()
        buffers, size = blocks_of(order)
        agent = make_agent("initiator", buffers, size)
        about = json.loads(other.stdout.readline())
        remote = agent.add_remote_agent(bytes.fromhex(about["metadata"]))
        agent.make_connection(remote)
        here, there, block = order["here"], order["there"], order["block"]
        addresses = [each.ctypes.data for each in buffers]

        def called():
            local = agent.get_xfer_descs(rows_of(addresses, here, block), "DRAM")
            source = agent.get_xfer_descs(rows_of(about["addresses"], there, block), "DRAM")
            finish(agent, agent.initialize_xfer("READ", local, source, remote))

        local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", rows_of(addresses, here, block), "DRAM")
        source = agent.prep_xfer_dlist(remote, rows_of(about["addresses"], there, block), "DRAM")
        index = np.arange(len(addresses) * len(here), dtype=np.int32)

        def prepared():
            finish(agent, agent.make_prepped_xfer("READ", local, index, source, index))

        taken = {"as called": [], "prepared": []}
        for turn in range(order["rounds"] + 1):
            for name, pull in (("as called", called), ("prepared", prepared)):
                for buffer in buffers:
                    buffer.fill(EMPTY)
                begin = time.perf_counter_ns()
                pull()
                if turn:  # the first one connects
                    taken[name].append(time.perf_counter_ns() - begin)
                for number, buffer in enumerate(buffers):
                    view = buffer.view(np.uint64).reshape(order["slots"], -1)
                    for mine, theirs in zip(here, there, strict=True):
                        if not np.array_equal(view[mine], words(number, theirs, order)):
                            raise RuntimeError(f"wrong bytes in buffer {number}, block {mine}")
        print(json.dumps({"ns": taken}), flush=True)
    except Exception as error:
        print(json.dumps({"error": f"NIXL: {error}"}), flush=True)
    finally:
        other.kill()
        other.wait()
    # It may crash when the interpreter takes it down.
    os._exit(0)


if __name__ == "__main__":
    target() if sys.argv[1:] == ["target"] else main()
